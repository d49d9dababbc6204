"""The verbs of `assay data` that grinnder brings; a module here is a verb."""
