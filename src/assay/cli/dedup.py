"""`assay dedup`: the data room's verb that most people come for, under a name of its own."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.data import verb


class Later(click.Command):
    """A verb of the data room that is imported when it is used: to be listed, its one line is enough."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The real command's context."""
        assert self.name is not None
        return verb(self.name).make_context(info_name, args, parent, **extra)


command = Later(
    "dedup",
    help="Remove near-duplicates from a corpus that grows.",
    epilog="Example:  assay dedup examples/news.jsonl --out clean --index index",
)
