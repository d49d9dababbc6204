"""Threshold automata that come with assay: well-known protocols, encoded from their descriptions."""

from __future__ import annotations

from pathlib import Path

from assay.protocols.automata.automaton import Automaton
from assay.protocols.automata.parser import read
from assay.record.errors import BadInput

_FOLDER = Path(__file__).parent / "library"


def names() -> list[str]:
    """The automata at hand.

    >>> names()
    ['agreement', 'bracha', 'broadcast', 'commit', 'folklore', 'one_step', 'rounds']
    """
    return sorted(path.stem for path in _FOLDER.iterdir() if path.suffix in (".ta", ".eta"))


def load(name: str) -> Automaton:
    """One of them.

    >>> load("broadcast").locations
    ('without', 'having', 'relayed', 'accepted')
    """
    for suffix in (".ta", ".eta"):
        if (path := _FOLDER / f"{name}{suffix}").is_file():
            return read(path)
    raise BadInput(f"no built-in automaton '{name}'; there are {', '.join(names())}")
