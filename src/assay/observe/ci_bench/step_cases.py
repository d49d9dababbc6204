"""A contest of step detectors on real noise.

Noise is that of benchmarks repeated for months on public cloud machines, or is recorded here from fresh processes that
all do the same work. Histories are cut out of it, with steps of known size planted in half of them. Each method has one
dial; it is set to the most sensitive value at which the method takes no more than one commit in a thousand for a step,
on noise of the same kind that is not used afterwards: so all are compared at about the same rate of false alarms.
Apache Otava and asv, where they are installed, are asked for the same steps: of 3 % or more for Otava, as ours is; the
dial of asv is that very size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.bench import checkouts
from assay.observe.bench import config as bench_config
from assay.observe.bench.history import steps as e_divisive_steps
from assay.observe.bench.processes import Bench, workers
from assay.observe.ci_bench import lab
from assay.observe.series.trials import BENCHMARKS, FOLDER, MACHINES
from assay.record.traces import find
from assay.sim.changepoints import bic, pelt
from assay.sim.random import stream
from assay.sim.scratch import scratch
from assay.workloads import long_series

SAMPLES = 5  # timed pieces of one process
LENGTH = 40  # commits of a history
SIZES = (0.05, 0.1, 0.2)  # of planted steps
NEAR = 2  # commits a found step may be off
ALLOWED = 0.001  # unchanged commits that may be taken for a step while a dial is set
EDGE = 8  # commits from either end, and from another step, in which no step is planted
MOST_STEPS = 3  # planted in one history
Matrix = NDArray[np.float64]  # a row for each commit, a column for each sample
Detect = Callable[[Matrix, float], list[int]]


def recorded(commits: int, seed: int) -> Matrix:
    """Seconds of so many fresh processes of one commit, some samples each: the noise of this machine, as it is."""
    with scratch() as place, checkouts.session() as folder:
        repository = place / "repository"
        lab.history(repository, [], seed)
        config = bench_config.load(repository / "bench.toml")
        checkout = checkouts.working_tree(repository)
        bench = Bench("simulate", config.benchmark["simulate"], config, checkout, folder)
        rows = []
        for number in range(commits):
            with workers((bench,), number) as (worker,):
                worker.run(1)
                rows.append([worker.run(1)["wall"] for _ in range(SAMPLES)])
    return np.array(rows)


def of_clouds(commits: int, seed: int) -> list[Matrix]:
    """For each public benchmark so many consecutive stretches of a drawn machine's record, some values each."""
    random = stream(seed, "bench-steps", "clouds")
    made = []
    for benchmark in BENCHMARKS:
        machine = MACHINES[int(random.integers(len(MACHINES)))]
        file = find(f"{FOLDER}/{benchmark}_westus2_d8sv5.csv")
        (series,) = [part for part in long_series.split(long_series.read(file)) if part.name == machine]
        values = series.values[np.isfinite(series.values) & (series.values > 0)]
        begin = int(random.integers(len(values) - commits * SAMPLES + 1))
        made.append(values[begin : begin + commits * SAMPLES].reshape(commits, SAMPLES))
    return made


# ---------------------------------------------------------------------------------------------- methods


def _e_divisive(history: Matrix, significance: float) -> list[int]:
    levels = np.log(np.median(history, axis=1))
    return [at for at, _, _ in e_divisive_steps(levels, min_change=0.03, significance=significance)]


def _pelt(history: Matrix, factor: float) -> list[int]:
    levels = np.log(np.median(history, axis=1))
    return pelt(levels, factor * bic(levels), min_size=3)


def _threshold(history: Matrix, change: float) -> list[int]:
    levels = np.median(history, axis=1)
    return [at for at in range(1, len(levels)) if abs(math.log(levels[at] / levels[at - 1])) > change]


def _welch(history: Matrix, p: float) -> list[int]:
    from scipy import stats

    logs = np.log(history)
    found = stats.ttest_ind(logs[1:], logs[:-1], axis=1, equal_var=False).pvalue
    return [int(at) + 1 for at in np.flatnonzero(found < p)]


def _otava(history: Matrix, p: float) -> list[int]:
    from otava.analysis import compute_change_points  # type: ignore[import-not-found]

    found, _ = compute_change_points(np.median(history, axis=1).tolist(), max_pvalue=p, min_magnitude=0.03)
    return [int(point.index) for point in found]


def _asv(history: Matrix, change: float) -> list[int]:
    """Its steps, of those that its own report would show: larger than so much and than the error on either side."""
    from asv.step_detect import detect_steps  # type: ignore[import-not-found]

    steps = detect_steps(np.median(history, axis=1).tolist())
    return [
        int(after[0]) for before, after in pairwise(steps)
        if abs(after[2] - before[2]) > max(change * before[2], after[4], before[4])
    ]  # fmt: skip


# Each method's dial, from the most sensitive value on.
METHODS: dict[str, tuple[Detect, Sequence[float]]] = {
    "e-divisive": (_e_divisive, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)),
    "pelt": (_pelt, (1, 2, 3, 5, 8, 12, 20, 40)),
    "threshold": (_threshold, (0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)),
    "welch": (_welch, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-13)),
}
PEERS: dict[str, tuple[Detect, Sequence[float]]] = {  # by the name of their module
    "otava": (_otava, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-13, 1e-16)),
    "asv": (_asv, (0.0, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)),
}
UNTUNED = {"threshold 10 %": (_threshold, 0.1)}  # what many pipelines do


def methods() -> dict[str, tuple[Detect, Sequence[float]]]:
    """Ours and those of other tools that are installed here.

    >>> sorted(set(METHODS) - set(methods()))
    []
    """
    return METHODS | {name: how for name, how in PEERS.items() if find_spec(name) is not None}


# ---------------------------------------------------------------------------------------------- contest


@dataclass(frozen=True, slots=True)
class Score:
    """What a method did over all histories."""

    planted: int
    found: int
    false: int
    unchanged: int
    misplaced: float | None  # commits a found step was off, at the median

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 where nothing was found.

        >>> Score(planted=10, found=8, false=2, unchanged=100, misplaced=0.0).f1
        0.8
        """
        return 2 * self.found / (self.planted + self.found + self.false) if self.found else 0.0


def contest(noises: Sequence[Matrix], histories: int, seed: int) -> dict[str, Score]:
    """For each kind of noise, tune every method on the first half of it and score it on the second; all together."""
    random = stream(seed, "bench-steps", "histories")
    told: dict[str, list[tuple[list[int], list[int], int]]] = {}
    for noise in noises:
        half = len(noise) // 2
        silent = [cut(noise[:half], random) for _ in range(histories)]
        trials: list[tuple[Matrix, list[int]]] = []
        for number in range(histories):
            history = cut(noise[half:], random)
            trials.append(plant(history, random) if number % 2 else (history, []))
        chosen = {name: (detect, tuned(detect, dial, silent)) for name, (detect, dial) in methods().items()}
        for name, (detect, value) in (chosen | UNTUNED).items():
            told.setdefault(name, []).extend((detect(h, value), truth, len(h)) for h, truth in trials)
    return {name: score(found) for name, found in told.items()}


def tuned(detect: Detect, dial: Sequence[float], silent: Sequence[Matrix]) -> float:
    """The most sensitive value of a dial at which histories without steps are nearly silent; the last if none is.

    >>> tuned(lambda history, value: [3] if value < 2 else [], (1, 2, 3), [np.ones((40, 1))])
    2
    """
    allowed = ALLOWED * sum(map(len, silent))
    return next((value for value in dial if sum(len(detect(h, value)) for h in silent) <= allowed), dial[-1])


def cut(noise: Matrix, random: np.random.Generator) -> Matrix:
    """A history: consecutive processes from anywhere, wrapped around, so that bursts and drift stay as they were."""
    start = int(random.integers(len(noise)))
    return noise[(start + np.arange(LENGTH)) % len(noise)].copy()


def plant(history: Matrix, random: np.random.Generator) -> tuple[Matrix, list[int]]:
    """The history with one to three steps, each up or down, and where they are; none within `EDGE` of another."""
    room = len(history) - 2 * EDGE + 1
    count = int(random.integers(1, MOST_STEPS + 1))
    spread = np.sort(random.choice(room - (count - 1) * (EDGE - 1), count, replace=False))
    places = [EDGE + int(at) + number * (EDGE - 1) for number, at in enumerate(spread)]
    for at in places:
        size = float(random.choice(SIZES))
        history[at:] *= 1 + size if random.random() < 0.7 else 1 / (1 + size)
    return history, places


def score(trials: Sequence[tuple[list[int], list[int], int]]) -> Score:
    """Match found steps with planted ones, each once; what is left over on either side is missed or false.

    >>> score([([10, 30], [11], 40)])
    Score(planted=1, found=1, false=1, unchanged=39, misplaced=1.0)
    """
    planted = found = false = unchanged = 0
    off: list[int] = []
    for detected, truth, length in trials:
        left = list(detected)
        for place in truth:
            near: Any = min(left, key=lambda at: abs(at - place), default=None)
            if near is not None and abs(near - place) <= NEAR:
                left.remove(near)
                off.append(abs(near - place))
                found += 1
        planted += len(truth)
        false += len(left)
        unchanged += length - len(truth)
    return Score(planted, found, false, unchanged, float(np.median(off)) if off else None)
