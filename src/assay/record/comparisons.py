"""The comparison of a room or a paper, found by name: a click command that returns its answer.

Whoever asks prints or draws the answer: `assay compare` as tables or JSON, the workbench as a page. What such a
command holds is said in `assay.cli.compare`.
"""

from __future__ import annotations

import copy
import difflib
import importlib
from pathlib import Path
from typing import Any

import click

from assay.record import catalogue
from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.record.types import ROOMS

_PACKAGE = Path(__file__).parents[1]


def has_own(room: str) -> bool:
    """Whether the room asks a question of its own, or leaves comparing to its papers."""
    return (_PACKAGE / room / "compare.py").is_file()


def found(name: str) -> click.Command:
    """The comparison of a room or a paper, which returns its answer."""
    if name in ROOMS and has_own(name):
        return load(f"assay.{name}.compare")
    if name not in catalogue.papers() and (close := difflib.get_close_matches(name, ROOMS, n=1, cutoff=0.8)):
        raise BadInput(f"no room or paper has the name '{name}'; did you mean {close[0]}?")
    try:
        paper = catalogue.paper(name)
    except BadInput as error:  # it names the closest keys
        raise BadInput(f"no room is called '{name}', and {error}") from error
    if module := catalogue.comparisons(paper.room).get(name):
        return load(module)
    kinds = catalogue.offers(name) if catalogue.is_built(paper) else frozenset()
    if kinds and has_own(paper.room):
        room = importlib.import_module(f"assay.{paper.room}.compare")
        return _with_defaults(room.command, name, room.beside(min(kinds), name))
    raise BadInput(f"'{name}' has no comparison on your own input; assay show {name} says what it takes")


def load(module: str) -> click.Command:
    """The command of a module; BadInput names the extra that it lacks."""
    try:
        found: click.Command = importlib.import_module(module).command
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("compare", error)) from error
    return found


def _with_defaults(command: click.Command, name: str, defaults: dict[str, Any]) -> click.Command:
    """The room's command with other defaults."""
    params = [copy.copy(param) for param in command.params]
    for param in params:
        param.default = defaults.get(param.name or "", param.default)
    return click.Command(name, callback=command.callback, params=params, help=command.help, epilog=command.epilog)
