"""How a claim reads its answer off a study's table.

Each function here returns a measure: a callable from the table (one row per case and seed) to an `Estimate`.
Cases are chosen by column: `mean("ttft", policy="lmetric", rate=8)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.record import intervals
from assay.record.timing import calm
from assay.record.types import Estimate, NoRows, NotMeasured

if TYPE_CHECKING:  # ranks of real jobs import the paper they belong to, and no table
    import polars as pl

Measure = Callable[["pl.DataFrame"], Estimate]


def rows(table: pl.DataFrame, where: Mapping[str, Any]) -> pl.DataFrame:
    """The rows of the chosen cases, by seed. No such row, or an empty measurement, is an error that says which.

    >>> import polars as pl
    >>> rows(pl.DataFrame({"rule": ["a", "b"], "seed": [0, 0], "steps": [3, 4]}), {"rule": "b"})["steps"].to_list()
    [4]
    """
    for column in where:
        if column not in table.columns:
            raise KeyError(f"the table has no column '{column}'; it has {', '.join(table.columns)}")
    found = table.filter(**where).sort("seed")
    if found.is_empty():
        case = ", ".join(f"{column}={value}" for column, value in where.items())
        raise NoRows(f"no row of the table has {case}")
    return found


def _observed(table: pl.DataFrame, column: str, where: Mapping[str, Any]) -> pl.Series:
    series = rows(table, where)[column]
    if series.null_count():
        raise NotMeasured(f"'{column}' was not measured for {', '.join(map(str, where.values()))}")
    return series


def clocked(measure: Measure, **where: Any) -> Measure:
    """A measure of seconds by the clock: not measured where others had the processors meanwhile.

    The rows of `where` say by `free_cores` what a :class:`~assay.record.timing.Gauge` saw while they were timed.

    >>> import polars as pl
    >>> table = pl.DataFrame({"seed": [0], "seconds": [3.0], "free_cores": [0.1]})
    >>> clocked(mean("seconds"))(table)
    Traceback (most recent call last):
    assay.record.types.NotMeasured: the machine was too busy (others left 0.1 ... run it again when it is idle
    """

    def measured(table: pl.DataFrame) -> Estimate:
        calm(rows(table, where))
        return measure(table)

    return measured


def mean(column: str, **where: Any) -> Measure:
    """The mean over seeds, with its interval.

    >>> import polars as pl
    >>> table = pl.DataFrame({"rule": ["a", "a"], "seed": [0, 1], "steps": [3.0, 5.0]})
    >>> mean("steps", rule="a")(table).value
    4.0
    """
    return lambda table: intervals.bootstrap(_observed(table, column, where).to_list())


def ratio(column: str, of: Mapping[str, Any], to: Mapping[str, Any], **where: Any) -> Measure:
    """How many times `of`'s mean is `to`'s, paired by seed: a speed-up is `of` the slow one `to` the fast one.

    >>> import polars as pl
    >>> table = pl.DataFrame({"method": ["a", "b"], "seed": [0, 0], "seconds": [6.0, 2.0]})
    >>> ratio("seconds", of={"method": "a"}, to={"method": "b"})(table).value
    3.0
    """

    def measure(table: pl.DataFrame) -> Estimate:
        return intervals.ratio(
            _observed(table, column, {**where, **of}).to_list(), _observed(table, column, {**where, **to}).to_list()
        )

    return measure


def change(column: str, new: Mapping[str, Any], old: Mapping[str, Any], **where: Any) -> Measure:
    """new/old − 1, paired by seed: −0.3 is a fall by 30 %.

    >>> import polars as pl
    >>> table = pl.DataFrame({"policy": ["a", "b"], "seed": [0, 0], "ttft": [3.0, 2.0]})
    >>> round(change("ttft", new={"policy": "b"}, old={"policy": "a"})(table).value, 3)
    -0.333
    """
    paired = ratio(column, of=new, to=old, **where)

    def measure(table: pl.DataFrame) -> Estimate:
        times = paired(table)
        return Estimate(times.value - 1, times.low - 1, times.high - 1, times.n)

    return measure


def probability(successes: str, trials: str, **where: Any) -> Measure:
    """Pooled successes over trials, with the exact binomial interval.

    >>> import polars as pl
    >>> table = pl.DataFrame({"graph": ["k"], "seed": [0], "hits": [9], "replicas": [10]})
    >>> probability("hits", "replicas", graph="k")(table).value
    0.9
    """
    return lambda table: intervals.clopper_pearson(
        int(_observed(table, successes, where).sum()), int(_observed(table, trials, where).sum())
    )


def share(column: str, **where: Any) -> Measure:
    """The share of rows in which a test held, with the exact binomial interval.

    >>> import polars as pl
    >>> found = share("same")(pl.DataFrame({"seed": [0, 1], "same": [True, False]}))
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.5, 0.013, 0.987)
    """

    def measure(table: pl.DataFrame) -> Estimate:
        held = _observed(table, column, where)
        return intervals.clopper_pearson(int(held.sum()), len(held))

    return measure


def best(measures: Mapping[str, Measure], choose: Callable[..., Any] = max, *, every: bool = False) -> Measure:
    """The best of several cases (or the worst, with `min`), which says over which it was sought: "up to" in a paper.

    Whoever looks at k cases finds a good one by chance, so each case's interval pays for all of them; the answer's
    goes from the best of the lower ends to the best of the upper ends. Cases that were not measured are left out, and
    the answer says how many there were; unless the sentence is about `every` one of them.

    >>> import polars as pl
    >>> table = pl.DataFrame({"load": [1, 2, 1, 2], "seed": [0, 0, 1, 1], "gain": [1.5, 3.0, 1.4, 2.8]})
    >>> found = best({f"load {x}": mean("gain", load=x) for x in (1, 2)})(table)
    >>> round(found.value, 2), found.cases
    (2.9, 'load 2, of 2 cases')
    """

    def measure(table: pl.DataFrame) -> Estimate:
        found: dict[str, Estimate] = {}
        reasons = []
        for name, one in measures.items():
            try:
                found[name] = one(table)
            except NotMeasured as reason:
                if every:
                    raise
                reasons.append(str(reason))
        if not found:
            raise NotMeasured(reasons[0] if reasons else "no case was measured")
        name = choose(found, key=lambda case: found[case].value)
        with intervals.family(len(found)):
            low, high = _ends([measures[case](table) for case in found], choose)
        return replace(found[name], low=low, high=high, cases=f"{name}, of {len(found)} cases")

    return measure


def _ends(cases: list[Estimate], choose: Callable[..., Any]) -> tuple[float, float]:
    """Between what the best case lies, whichever it is; of a choice that is no order of the values, all of them."""
    below, above = (choose, choose) if choose in (min, max) else (min, max)
    return below(one.low for one in cases), above(one.high for one in cases)


def counted(value: float, n: int = 1) -> Estimate:
    """A value that was counted or computed, not sampled: it has no spread.

    >>> counted(3)
    Estimate(value=3.0, low=3.0, high=3.0, n=1, cases='')
    """
    return Estimate(float(value), float(value), float(value), n)


def slope(x: str, y: str, **where: Any) -> Measure:
    """The exponent of y in x over the chosen cases and all seeds, with its interval.

    >>> import polars as pl
    >>> table = pl.DataFrame({"n": [1, 2, 4], "seed": [0, 0, 0], "steps": [5.0, 10.0, 20.0]})
    >>> slope("n", "steps")(table).value
    1.0
    """
    return lambda table: intervals.slope(_observed(table, x, where).to_list(), _observed(table, y, where).to_list())


def not_here(why: str) -> Measure:
    """A claim this study cannot answer; `why` says what it would take.

    >>> import polars as pl
    >>> not_here("needs a GPU")(pl.DataFrame())
    Traceback (most recent call last):
    assay.record.types.NotMeasured: needs a GPU
    """

    def measure(table: pl.DataFrame) -> Estimate:
        raise NotMeasured(why)

    return measure
