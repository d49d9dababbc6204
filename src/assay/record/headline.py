"""The part of a study's table that people read first: six columns, and no more rows than fit a screen.

What the claims name, they are about: a column or a value that occurs among the constants of a claim's measure comes
before one that does not. Nothing has to be declared, and nothing is run to find out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from assay.record.fold import Folded, FoldedRow, mean
from assay.record.types import Claim

COLUMNS, ROWS = 6, 20
_CASES = 3  # of the six, at most


@dataclass(frozen=True, slots=True)
class Headline:
    """Some columns and rows of a table, and what was left out to get there."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    everywhere: dict[str, Any]  # what is the same in all rows
    over: tuple[str, ...]  # the cases over which the rows are means
    cases: int  # rows of the whole table
    hidden: int  # columns left out


def named(claims: Iterable[Claim]) -> frozenset[Any]:
    """The words and numbers that the claims' measures name: columns, policies, sizes.

    >>> from assay.record.measures import mean
    >>> sorted(named([Claim("steps", mean("steps", rule="div"))]) & {"steps", "rule", "div", "pull"})
    ['div', 'rule', 'steps']
    """
    found: set[Any] = set()
    seen: set[int] = set()
    for claim in claims:
        _collect(claim.measure, found, seen)
    return frozenset(found)


def _collect(thing: Any, found: set[Any], seen: set[int]) -> None:
    if isinstance(thing, str | int | float) and not isinstance(thing, bool):
        found.add(thing)
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        parts: Iterable[Any] = [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = thing
    elif isinstance(thing, functools.partial):
        parts = [thing.func, thing.args, thing.keywords]
    elif isinstance(thing, FunctionType):
        parts = [*_told(thing.__code__, thing.__globals__), *_enclosed(thing), thing.__defaults__, thing.__kwdefaults__]
    else:
        parts = []
    for part in parts:
        _collect(part, found, seen)


def _told(code: CodeType, names: dict[str, Any]) -> Iterable[Any]:
    """The constants of a function, of those inside it, and of those of its paper that it calls by name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _told(constant, names)
        else:
            yield constant
    for name in code.co_names:
        known = names.get(name)
        if not isinstance(known, FunctionType) or not known.__module__.startswith("assay.record."):
            yield known


def _enclosed(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def headline(table: Folded, about: frozenset[Any] = frozenset()) -> Headline:
    """The columns and rows to read first; `about` is what the claims name.

    >>> rows = [FoldedRow((rule, n), 5, (n, 0.5)) for rule in ("div", "pull") for n in range(30)]
    >>> first = headline(Folded(("rule", "n"), ("steps", "share"), rows), frozenset({"share"}))
    >>> first.columns, first.rows, first.over
    (('rule', 'steps', 'share'), [('div', 14.5, 0.5), ('pull', 14.5, 0.5)], ('n',))
    """
    values = {name: _distinct(row.case[at] for row in table.rows) for at, name in enumerate(table.case)}
    varying = [name for name in table.case if len(values[name]) > 1]
    chosen = _chosen(table, varying, values, about)
    measured = _figures(table, COLUMNS - len(chosen), about)
    groups: dict[tuple[str, ...], list[FoldedRow]] = {}
    for row in table.rows:
        groups.setdefault(tuple(repr(row.case[table.case.index(name)]) for name in chosen), []).append(row)
    if not varying:  # a row is a row
        groups = {(str(at),): [row] for at, row in enumerate(table.rows)}
    folded = len(groups) < len(table.rows)
    return Headline(
        (*chosen, *measured),
        [_row(group, table, chosen, measured) for group in groups.values()],
        {name: values[name][0] for name in table.case if name not in varying and values[name]},
        tuple(name for name in varying if name not in chosen) if folded else (),
        len(table.rows),
        len(varying) - len(chosen) + len(table.measured) - len(measured),
    )


def _figures(table: Folded, count: int, about: frozenset[Any]) -> list[str]:
    """So many measured columns: those that vary before those that do not, what the claims name first, words last."""
    found = {name: _distinct(row.means[at] for row in table.rows) for at, name in enumerate(table.measured)}

    def rank(name: str) -> tuple[bool, bool, bool]:
        constant = len(found[name]) < 2 and len(table.rows) > 1
        return constant, name not in about, any(isinstance(value, str) for value in found[name])

    first = sorted(table.measured, key=rank)[:count]
    return [name for name in table.measured if name in first]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({repr(value): value for value in values}.values())


def _chosen(table: Folded, varying: list[str], values: dict[str, list[Any]], about: frozenset[Any]) -> list[str]:
    """The cases to tell apart: the contenders, then other words that the claims name, then the longest scales.

    One more is told apart as long as the rows still fit a screen.
    """
    chosen: list[str] = []
    parts = 1
    for name in _order(table, varying, values, about):
        now = len({tuple(repr(row.case[table.case.index(each)]) for each in (*chosen, name)) for row in table.rows})
        if now > parts and len(chosen) < _CASES and (now <= ROWS or not chosen):
            chosen.append(name)
            parts = now
    return [name for name in table.case if name in chosen]


def _order(table: Folded, varying: list[str], values: dict[str, list[Any]], about: frozenset[Any]) -> list[str]:
    words = [name for name in reversed(varying) if any(_is_word(value) for value in values[name])]
    # A word that settles another one is the name of a run, not a case of its own.
    apart = [name for name in words if not any(_settles(table, name, other) for other in words if other != name)]
    known = {name: sum(_is_word(value) and value in about for value in values[name]) for name in words}
    order = sorted(apart or words, key=lambda name: -known[name])
    # Studies put whom they compare last, behind the circumstances.
    contenders = next((name for name in apart if known[name]), None)
    order.sort(key=lambda name: name != contenders)
    return order + sorted((name for name in varying if name not in words), key=lambda name: -len(values[name]))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and not value.isdigit()


def _settles(table: Folded, one: str, other: str) -> bool:
    """Whether a value of `one` leaves `other` no choice, but not the other way round."""
    at, to = table.case.index(one), table.case.index(other)
    pairs = {(repr(row.case[at]), repr(row.case[to])) for row in table.rows}
    return len(pairs) == len({first for first, _ in pairs}) > len({second for _, second in pairs})


def _row(group: Sequence[FoldedRow], table: Folded, chosen: Sequence[str], measured: Sequence[str]) -> tuple[Any, ...]:
    """One line: its case, and the means of what was measured; of what holds or not, the share in which it holds."""
    means = [dict(zip(table.measured, row.means, strict=True)) for row in group]
    if len(group) > 1:
        means = [{name: float(v) if isinstance(v, bool) else v for name, v in row.items()} for row in means]
    cases = [group[0].case[table.case.index(name)] for name in chosen]
    return (*cases, *(mean(means, name) for name in measured))
