"""Paper keys as command-line arguments, with completion."""

from __future__ import annotations

from typing import Any

import click

from assay.record.catalogue import papers


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Keys that begin as typed, with their titles."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(p.key, help=p.title) for p in papers().values() if p.key.startswith(incomplete)]
