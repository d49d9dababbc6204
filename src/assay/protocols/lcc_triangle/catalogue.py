"""The catalogue: named consistency models with their closure, ordering, timeliness and return function.

>>> rows = catalogue()
>>> linear = next(row for row in rows if row.name == "linearizability")
>>> str(linear.configuration), linear.timely, linear.returns
('full · single refining causality in real time', 'immediate', 'last')
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from assay.protocols.judges.lattice import FULL, Configuration, Ordering, Point

TIMELY = ("absent", "eventual", "bounded", "immediate")
RETURNS = ("last", "multi", "merge", "snapshot")
_FIELDS = {"name", "closure", "order", "refines", "timely", "returns", "source"}
_PATH = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue."""

    name: str
    configuration: Configuration
    timely: str
    """How soon what was written must show: absent, eventual, bounded or immediate."""
    returns: str
    """What a read returns: the last value, concurrent ones, their merge, or a snapshot of all keys."""
    source: str
    caveat: str = ""
    """What the coordinates leave out; empty where they are meant to be exact."""
    named: bool = True

    @property
    def coordinates(self) -> tuple[Point, str, str]:
        """Where it lies: two rows with equal coordinates promise the same, as far as these go."""
        return self.configuration.demands, self.timely, self.returns


def parse(rows: Sequence[dict[str, Any]]) -> tuple[Entry, ...]:
    """Rows as they stand in the file.

    Raises:
        ValueError: a field that is missing or has no such value, or two rows in one place without a caveat.

    """
    entries = tuple(_entry(row) for row in rows)
    first: dict[tuple[Point, str, str], Entry] = {}
    for entry in entries:
        other = first.setdefault(entry.coordinates, entry)
        if other is not entry and not (entry.caveat or other.caveat):
            raise ValueError(f"'{entry.name}' has the coordinates of '{other.name}'; a caveat in one of them expected")
    return entries


def _entry(row: dict[str, Any]) -> Entry:
    name = row.get("name", "a row without a name")
    if missing := _FIELDS - set(row):
        raise ValueError(f"'{name}' lacks '{min(missing)}'; {', '.join(sorted(_FIELDS))} expected")
    for field, known in (("timely", TIMELY), ("returns", RETURNS)):
        if row[field] not in known:
            raise ValueError(f"'{name}': {field} is '{row[field]}'; one of {', '.join(known)} expected")
    closure = FULL if row["closure"] == "full" else frozenset(row["closure"].split())
    realtime = (row["timely"], row["order"], row["refines"]) == ("immediate", "single", "causality")
    try:
        ordering = Ordering(row["order"], row["refines"], bool(row.get("appends")), realtime)
        configuration = Configuration(closure, ordering)
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from None
    named = row.get("kind", "model") == "model"
    return Entry(name, configuration, row["timely"], row["returns"], row["source"], row.get("caveat", ""), named)


@cache
def catalogue() -> tuple[Entry, ...]:
    """All rows, checked."""
    return parse(tomllib.loads(_PATH.read_text(encoding="utf-8"))["row"])


def weaker(one: Entry, other: Entry) -> bool:
    """Whether the first promises at most what the second does, on all axes, with the same kind of answer.

    >>> by_name = {row.name: row for row in catalogue()}
    >>> weaker(by_name["sequential consistency"], by_name["linearizability"])
    True
    """
    return (
        one.configuration.demands <= other.configuration.demands
        and TIMELY.index(one.timely) <= TIMELY.index(other.timely)
        and one.returns == other.returns
    )
