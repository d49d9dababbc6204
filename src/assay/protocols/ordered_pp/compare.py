"""`assay compare ordered-pp`: whether agents in a row can tell the words of the user's language from others."""

from __future__ import annotations

from typing import Any

import click

from assay.protocols.ordered_pp import answer
from assay.record.wording import listed


@click.command(epilog='Example:  assay compare ordered-pp --language "a.*b" --words aab,aba')
@click.option("--language", required=True, help="Which words the agents tell apart: a regular expression.")
@click.option("--words", default="", help="Words to run the agents on, separated by commas.")
@click.option("--alphabet", default="", help="Letters beyond those of the expression and the words.")
@click.option("--replicas", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(language: str, words: str, **options: Any) -> dict[str, Any]:
    """Agents in a row on your own language: whether they can recognise it, and how they decide your words."""
    return answer(language, listed(words), **options)
