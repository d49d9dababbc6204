"""`assay dedup`: the data room's verb that most people come for, under a name of its own."""

from assay.cli.data import verb

command = verb("dedup")
