"""Docstrings for the site: their examples as code, references by their names.

Ours are written to be read in a file: an example stands without a heading, where Markdown takes `>>>` for a quotation
and a printed list for a link.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

from assay.record.wording import spoken


class Docstrings(griffe.Extension):
    """What `mkdocs.yml` names."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Every docstring, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


def shown(docstring: str) -> str:
    """A docstring as Markdown.

    >>> print(shown("Adds to a :class:`~x.Sum`.\\n\\n>>> add(1, 2)\\n[3]\\n\\nThat is all."))
    Adds to a Sum.
    <BLANKLINE>
    ```pycon
    >>> add(1, 2)
    [3]
    ```
    <BLANKLINE>
    That is all.
    """
    parts = re.split(r"(^[ \t]*>>> (?:.+\n?)+)", docstring, flags=re.MULTILINE)
    return "".join(_fenced(part) if part.lstrip().startswith(">>> ") else spoken(part) for part in parts)


def _fenced(example: str) -> str:
    indent = re.match(r"[ \t]*", example)
    margin = indent[0] if indent else ""
    return f"{margin}```pycon\n{example.rstrip()}\n{margin}```\n"
