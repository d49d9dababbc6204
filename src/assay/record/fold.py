"""A study's tables with their seeds folded: one row a case, means of what was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from assay.record.types import Result

SEED, EXPERIMENT = "seed", "experiment"


class FoldedRow(NamedTuple):
    """One case: its values, how many seeds stand behind it, and the mean of each measurement."""

    case: tuple[Any, ...]
    seeds: int
    means: tuple[Any, ...]


class Folded(NamedTuple):
    """A folded table: the names of the case's columns, those of the measurements, and a row a case."""

    case: tuple[str, ...]
    measured: tuple[str, ...]
    rows: list[FoldedRow]


def fold(rows: Sequence[Mapping[str, Any]], cases: Collection[str]) -> Folded:
    """Fold the seeds of a table; `cases` are the columns that say which case a row is.

    A table without seeds is left as it is, a row a row, and all its columns are measurements.

    >>> fold([{"rule": "a", "seed": 0, "steps": 3}, {"rule": "a", "seed": 1, "steps": 5}], cases=["rule"])
    Folded(case=('rule',), measured=('steps',), rows=[FoldedRow(case=('a',), seeds=2, means=(4.0,))])
    """
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    if SEED not in columns:
        return Folded((), columns, [FoldedRow((), 1, tuple(row.get(name) for name in columns)) for row in rows])
    case = tuple(name for name in columns if name in cases)
    measured = tuple(name for name in columns if name not in cases and name != SEED)
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        # By repr: a cell may be a list, which has no hash, and True is not the case 1.
        groups.setdefault(tuple(repr(row.get(name)) for name in case), []).append(row)
    return Folded(case, measured, [_folded(group, case, measured) for group in groups.values()])


def named(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table by its name, without the columns that only others fill; one without a name is "".

    >>> [(name, list(rows[0])) for name, rows in named([{"experiment": "cost", "n": 4}, {"n": 3, "bits": 9}]).items()]
    [('cost', ['n']), ('', ['n', 'bits'])]
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row.get(EXPERIMENT) or ""), []).append(row)
    return {name: _filled(part) for name, part in found.items()}


def _filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    columns = dict.fromkeys(name for row in rows for name in row if name != EXPERIMENT)
    filled = [name for name in columns if any(row.get(name) is not None for row in rows)]
    return [{name: row.get(name) for name in filled} for row in rows]


def folded(result: Result) -> dict[str, Folded]:
    """Each table of a result, folded, by its name; "" where there is one without a name."""
    return {name: fold(rows, result.cases) for name, rows in named(result.table).items()}


def _folded(group: Sequence[Mapping[str, Any]], case: tuple[str, ...], measured: tuple[str, ...]) -> FoldedRow:
    return FoldedRow(
        tuple(group[0].get(name) for name in case), len(group), tuple(mean(group, name) for name in measured)
    )


def mean(group: Sequence[Mapping[str, Any]], name: str) -> Any:
    """The mean of a column; of booleans whether all hold; of words the one there is, or how many kinds.

    >>> mean([{"ok": True}, {"ok": False}], "ok"), mean([{"by": "a"}, {"by": "b"}], "by"), mean([{}], "by")
    (False, '2 kinds', None)
    """
    values = [row[name] for row in group if row.get(name) is not None]
    if not values:
        return None
    if all(isinstance(value, bool) for value in values):
        return all(values)
    if all(isinstance(value, int | float) for value in values):
        return values[0] if len(set(values)) == 1 else sum(values) / len(values)
    kinds = len(set(map(str, values)))
    return values[0] if kinds == 1 else f"{kinds} kinds"
