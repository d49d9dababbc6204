"""The history of a repository's benchmarks: every run kept with its environment, change points over commits, blame.

The store is a folder of JSON files, one a run, written whole and never changed. A series is one benchmark on one kind
of machine, in the order of the branch's commits. What the series of a commit cannot tell apart is told apart by
comparing interleaved (:func:`bisect`): the commits between the last point before a change and the first behind it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.observe.bench import noise
from assay.observe.bench.noise import Noise
from assay.observe.series import decompose
from assay.record.errors import BadInput
from assay.record.store import write_whole
from assay.sim.changepoints import e_divisive
from assay.workloads.long_series import Grid

SCHEMA = 1
MIN_SIZE = 3  # points on either side of a change
WINDOW = 2 * MIN_SIZE - 1  # points whose median tells a lone value: the shortest segment is more than half of them
COMMON = 0.9  # what a tenth of the points or more do is noise of its own kind (two bands, coarse clocks), not lone
QUANTILE_TO_SIGMA = 1.6449  # of normal noise: nine values in ten are within so many standard deviations
FAR_OFF = 4.0  # standard deviations
LONG = 64  # points from which on cycles can be told
TIMES = 4  # a cycle must have come, to be one
MOST = 2000  # points of a series that are searched, the latest ones
LARGEST = 50_000_000  # bytes of one run


class Measured(msgspec.Struct, frozen=True):
    """One benchmark of one run: the median seconds of each process, or why there are none."""

    seconds: list[float] = []
    metric: str = "wall"
    instructions: float | None = None
    error: str = ""

    @property
    def value(self) -> float | None:
        """The middle of the processes; None where it did not run."""
        return float(np.median(self.seconds)) if self.seconds else None


class Run(msgspec.Struct, frozen=True):
    """All benchmarks of one commit, with what is needed to know where the numbers come from."""

    commit: str
    dirty: bool
    started: str
    config: dict[str, Any]
    digest: str
    fingerprint: dict[str, Any]
    machine: str
    results: dict[str, Measured]
    schema: int = SCHEMA


def save(folder: Path, run: Run) -> Path:
    """Add a run to the store."""
    stamp = run.started.replace(":", "").replace("-", "")
    path = folder / f"{stamp}-{run.commit[:12]}-{secrets.token_hex(4)}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(run), indent=1))
    return path


def runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Every readable run, the oldest first, and a line for each file that was left out."""
    found: list[Run] = []
    skipped: list[str] = []
    for path in sorted(p for p in Path(folder).glob("*.json") if not p.name.startswith(".")):
        try:
            if path.stat().st_size > LARGEST:
                raise msgspec.ValidationError(f"larger than {LARGEST:,} bytes")
            run = msgspec.json.decode(path.read_bytes(), type=Run)
            if run.schema != SCHEMA:
                raise msgspec.ValidationError(f"schema {run.schema}, not {SCHEMA}")
            bad = [s for m in run.results.values() for s in m.seconds if not (math.isfinite(s) and s > 0)]
            if bad:
                raise msgspec.ValidationError(f"seconds of {bad[0]}")
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            skipped.append(f"{path.name}: {error}")
        else:
            found.append(run)
    return found, skipped


# ----------------------------------------------------------------------------------------------- series


@dataclass(frozen=True, slots=True)
class Point:
    """One commit of a series: its value (median over its runs), and where in the branch it stands."""

    commit: str
    value: float
    position: int  # in the branch's commits
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Series:
    """One benchmark on one kind of machine, in the order of commits."""

    benchmark: str
    machine: str
    points: tuple[Point, ...]
    failed: tuple[str, ...] = ()  # commits at which it did not run
    dirty: int = 0  # runs of a changed tree, which belong to no commit
    unit: str = "seconds"  # '' where it is not known
    better: str = "less"  # or 'more', or '' where it is not known


def collect(found: Iterable[Run], commits: Sequence[str]) -> list[Series]:
    """The series of all benchmarks: runs of a dirty tree are counted, not plotted; unknown commits are left out."""
    place = {commit: position for position, commit in enumerate(commits)}
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    failed: dict[tuple[str, str], dict[str, None]] = {}
    dirty: dict[tuple[str, str], int] = {}
    for run in found:
        for name, measured in run.results.items():
            key = (name, run.machine)
            values.setdefault(key, {})
            if run.dirty:
                dirty[key] = dirty.get(key, 0) + 1
            elif run.commit not in place:
                continue
            elif (value := measured.value) is None:
                failed.setdefault(key, {})[run.commit] = None
            else:
                values[key].setdefault(run.commit, []).append(value)
    made = []
    for (name, machine), by_commit in sorted(values.items()):
        points = [Point(c, float(np.median(v)), place[c], len(v)) for c, v in by_commit.items()]
        points.sort(key=lambda point: point.position)
        lost = [c for c in failed.get((name, machine), {}) if c not in by_commit]
        lost.sort(key=place.__getitem__)
        made.append(Series(name, machine, tuple(points), tuple(lost), dirty.get((name, machine), 0)))
    return made


# ----------------------------------------------------------------------------------------- change points


@dataclass(frozen=True, slots=True)
class Change:
    """A step in a series: how large, between which commits, and how unlikely by chance."""

    benchmark: str
    machine: str
    index: int  # of the first point behind it
    change: float  # 0.05: five per cent more from here on
    before: str  # the last commit measured before it
    after: str  # the first one behind it
    suspects: int  # commits that may have done it: those behind `before`, up to `after`
    p: float
    better: str = "less"

    @property
    def kind(self) -> str:
        """`regression` or `improvement`; `rise` or `fall` where nobody told which is which."""
        if not self.better:
            return "rise" if self.change > 0 else "fall"
        return "regression" if (self.change > 0) == (self.better == "less") else "improvement"


def changes(series: Series, *, min_change: float = 0.03, significance: float = 0.001) -> list[Change]:
    """The steps of a series that are large enough and not by chance."""
    points = series.points[-MOST:]
    levels = np.log([point.value for point in points]) if points else np.zeros(0)
    found = steps(levels, min_change=min_change, significance=significance)
    return [
        Change(
            series.benchmark, series.machine, len(series.points) - len(points) + at, change, points[at - 1].commit,
            points[at].commit, points[at].position - points[at - 1].position, p, series.better,
        )
        for at, change, p in found
    ]  # fmt: skip


def steps(
    levels: Sequence[float] | np.ndarray[Any, Any], *, min_change: float, significance: float, seed: int = 0
) -> list[tuple[int, float, float]]:
    """(position, change, p) of the steps of a series of logarithms.

    Candidates come from E-divisive with a loose permutation test, which takes points for exchangeable. On a shared
    machine they are not: slow noise gives many. So the weakest one is taken out, again and again; the noise is fitted
    anew each time. From where the series is described best (many steps in fast noise, or few in slow), the first set is
    kept whose steps all stand a test between their own segments, in noise as correlated as theirs. Before all that
    cycles are taken out of a long series, and lone values that are far off pulled in: a busy night a week, or one bad
    run, would otherwise hide a step from a test of means.

    `min_change` has no part in the search: of the steps found, the smaller ones are not given. So who asks for larger
    steps gets some of the same, and never loses one that is large enough.
    """
    values = _without_lone(_without_cycles(np.asarray(levels, float)))
    cuts = e_divisive(values, min_size=MIN_SIZE, significance=0.05, permutations=99, seed=seed)
    sets = list(_thinned(values, cuts))
    best = min(range(len(sets)), key=lambda at: sets[at][0])
    found = next(found for _, worst, found in sets[best:] if worst <= significance)
    return [(at, change, p) for at, change, p in found if abs(change) >= min_change]


def _thinned(
    values: np.ndarray[Any, Any], cuts: Sequence[int]
) -> Iterator[tuple[float, float, list[tuple[int, float, float]]]]:
    """(cost of the description, weakest p, steps) with all candidates, without the weakest, and so on to none."""
    left = list(cuts)
    while left:
        parts = np.split(values, left)
        around = noise.fit(parts)
        found = [(cut, *_step(*sides, around)) for cut, sides in zip(left, pairwise(parts), strict=True)]
        worst, at = max((p, i) for i, (_, _, p) in enumerate(found))
        yield noise.cost(parts, around), worst, found
        del left[at]
    yield noise.cost([values], noise.fit([values])) if cuts else 0.0, 0.0, []


def _without_cycles(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Without what came back again and again (a series taken apart as by `assay decompose`, a point a step)."""
    if len(values) < LONG:
        return values
    apart = decompose.automatic(Grid("levels", 0.0, 1.0, values), multiplicative=False)
    seen = [cycle for cycle in apart.cycles if len(values) >= TIMES * cycle.period]
    return np.asarray(values - sum((cycle.values(len(values)) for cycle in seen), np.zeros(len(values))))


def _without_lone(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """No farther from the median of its neighbours than noise reaches (Hampel): that median keeps steps as they are."""
    if len(values) < WINDOW:
        return values
    padded = np.pad(values, WINDOW // 2, constant_values=np.nan)
    around = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)
    off = values - around
    reach = FAR_OFF * float(np.quantile(np.abs(off), COMMON)) / QUANTILE_TO_SIGMA
    return np.asarray(around + np.clip(off, -reach, reach))


def _step(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], around: Noise) -> tuple[float, float]:
    return math.expm1(float(np.median(right) - np.median(left))), noise.step(left, right, around)


# ----------------------------------------------------------------------------------------------- bisect


def bisect(commits: Sequence[str], slower: Callable[[str, str], bool | None]) -> tuple[str, str]:
    """Narrow a change down: (last commit without it, first commit with it).

    `commits` begin with one without the change and end with one that has it; `slower(base, head)` compares two,
    interleaved, and says None where it cannot decide. Then the range stays as wide as it is.

    >>> bisect(["a", "b", "c", "d", "e"], lambda base, head: base < "d" <= head)
    ('c', 'd')
    """
    if len(commits) < 2:
        raise BadInput("a bisection needs two commits or more")
    low, high = 0, len(commits) - 1
    while high - low > 1:
        middle = (low + high) // 2
        has = slower(commits[low], commits[middle])
        if has is None:
            break
        low, high = (low, middle) if has else (middle, high)
    return commits[low], commits[high]
