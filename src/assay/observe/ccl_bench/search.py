"""Search for a better configuration by running it: propose, run, measure, remember, propose again.

A proposer looks at all trials so far and names the next (:class:`Random`, :class:`Tpe`, :class:`Halving`); it keeps
nothing itself, so a search that was broken off goes on from its stored rows. Every trial is a row, those that failed
too: a configuration that cannot run is an answer.

>>> space = {"bucket": (1, 5, 25), "shard": (False, True)}
>>> trials = search(space, lambda setup, effort: 10.0 + setup["bucket"] - 3.0 * setup["shard"], Tpe(), 6, seed=1)
>>> best(trials).setup
{'bucket': 1, 'shard': True}
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.record.errors import BadInput
from assay.record.store import write_whole
from assay.sim.random import stream

Setup = dict[str, Any]
Space = Mapping[str, Sequence[Any]]
Run = Callable[[Setup, float], float]
"""Runs a setup with an effort (1: in full) and gives its cost; raises where it cannot run."""


@dataclass(frozen=True)
class Trial:
    """One run: what was tried, with which effort, what it cost, or why it failed."""

    number: int
    setup: Setup
    effort: float
    cost: float | None
    failure: str = ""
    given: bool = False  # the default, which no proposer asked for


class Proposer(ABC):
    """Names the next setup and the effort to try it with; None when there is nothing left to try."""

    @abstractmethod
    def propose(self, space: Space, trials: Sequence[Trial], budget: int, seed: int) -> tuple[Setup, float] | None:
        """The next, after these trials, of so many that there will be."""


def setups(space: Space) -> list[Setup]:
    """All of them, in order.

    >>> setups({"a": (1, 2), "b": ("x",)})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    if not space or not all(len(choices) for choices in space.values()):
        raise BadInput("a search needs at least one choice for each name")
    if math.prod(len(choices) for choices in space.values()) > 100_000:
        raise BadInput("a space of more than 100000 setups: leave some choices out")
    return [dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*space.values())]


def _untried(space: Space, trials: Sequence[Trial]) -> list[Setup]:
    tried = [trial.setup for trial in trials]
    return [setup for setup in setups(space) if setup not in tried]


@dataclass(frozen=True)
class Random(Proposer):
    """Any setup not tried yet, all alike."""

    def propose(self, space: Space, trials: Sequence[Trial], budget: int, seed: int) -> tuple[Setup, float] | None:
        """The next of a random order."""
        left = _untried(space, trials)
        if not left:
            return None
        return left[int(stream(seed, "search", "random", str(len(trials))).integers(len(left)))], 1.0


@dataclass(frozen=True)
class Tpe(Proposer):
    """Tree-structured Parzen estimator: where the good trials are dense and the others are not.

    Each choice of each name is as likely as its share among the best `good` of the trials (and one more of every
    choice, so that none is impossible); of the untried setups the one with the largest ratio of the two likelihoods is
    next. The first `warm_up` are random. Bergstra et al., NeurIPS 2011.
    """

    good: float = 0.25
    warm_up: int = 3

    def propose(self, space: Space, trials: Sequence[Trial], budget: int, seed: int) -> tuple[Setup, float] | None:
        """The most promising of the untried setups."""
        left = _untried(space, trials)
        if not left:
            return None
        if len(trials) < self.warm_up:
            return Random().propose(space, trials, budget, seed)
        ranked = sorted(trials, key=lambda trial: math.inf if trial.cost is None else trial.cost)
        count = max(1, math.ceil(self.good * len(ranked)))
        promise = np.zeros(len(left))
        for name, choices in space.items():
            share = [_shares(name, choices, some) for some in (ranked[:count], ranked[count:])]
            promise += [math.log(share[0][choices.index(s[name])] / share[1][choices.index(s[name])]) for s in left]
        best_ones = np.flatnonzero(promise >= promise.max() - 1e-12)
        return left[int(stream(seed, "search", "tpe", str(len(trials))).choice(best_ones))], 1.0


def _shares(name: str, choices: Sequence[Any], trials: Sequence[Trial]) -> list[float]:
    counts = [1.0 + sum(trial.setup[name] == choice for trial in trials) for choice in choices]
    return [count / sum(counts) for count in counts]


@dataclass(frozen=True)
class Halving(Proposer):
    """Successive halving: many setups with little effort, the better `1/keep` of them with `keep` times as much.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    keep: int = 2
    least: float = 0.25

    def propose(self, space: Space, trials: Sequence[Trial], budget: int, seed: int) -> tuple[Setup, float] | None:
        """The next of the rung, or the first of the next rung."""
        own = [trial for trial in trials if not trial.given]
        budget -= len(trials) - len(own)
        trials = own
        first = self.width(budget, len(setups(space)))
        effort, count, begun = self.least, first, 0
        while True:
            rung = trials[begun : begun + count]
            if len(rung) < count:
                break
            if count == 1 or effort >= 1.0:
                return None
            begun, count, effort = begun + count, max(1, count // self.keep), min(1.0, effort * self.keep)
        if begun == 0:
            left = _untried(space, trials)
            return left[int(stream(seed, "search", "halving", str(len(trials))).integers(len(left)))], effort
        before = trials[begun - self._before(first, begun) : begun]
        ranked = sorted(before, key=lambda trial: math.inf if trial.cost is None else trial.cost)
        return ranked[len(trials) - begun].setup, effort

    def width(self, budget: int, space: int) -> int:
        """How many to begin with so that all rungs together take at most the budget.

        >>> Halving().width(7, 100)  # 4 with a quarter of the effort, 2 with half, 1 in full
        4
        """
        for first in range(min(budget, space), 0, -1):
            total, count, effort = 0, first, self.least
            while True:
                total += count
                if count == 1 or effort >= 1.0:
                    break
                count, effort = max(1, count // self.keep), min(1.0, effort * self.keep)
            if total <= budget:
                return first
        return 1

    def _before(self, first: int, begun: int) -> int:
        """How many trials the rung had that ended at `begun`."""
        count, end = first, first
        while end < begun:
            count = max(1, count // self.keep)
            end += count
        return count


PROPOSERS: dict[str, Proposer] = {"random": Random(), "tpe": Tpe(), "halving": Halving()}


def best(trials: Sequence[Trial]) -> Trial:
    """The cheapest of those tried with the most effort."""
    done = [trial for trial in trials if trial.cost is not None]
    if not done:
        raise BadInput("no trial of the search could be run: " + "; ".join(t.failure for t in trials[:3]))
    most = max(trial.effort for trial in done)
    return min((t for t in done if t.effort == most), key=lambda trial: (trial.cost, trial.number))


def search(
    space: Space, run: Run, proposer: Proposer, budget: int, *, seed: int = 0, store: Path | None = None,
    default: Setup | None = None,
) -> list[Trial]:  # fmt: skip
    """Try at most `budget` setups, the default first, in full; with `store`, every trial is a line of that file.

    A search goes on from what is stored.
    """
    trials = stored(store) if store is not None else []
    while len(trials) < budget:
        given = default is not None and not trials
        step = (default or {}, 1.0) if given else proposer.propose(space, trials, budget, seed)
        if step is None:
            break
        setup, effort = step
        cost: float | None = None
        failure = ""
        try:
            cost = float(run(setup, effort))
            if not math.isfinite(cost):
                cost, failure = None, "its cost is no finite number"
        except (RuntimeError, ValueError, BadInput) as error:
            failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        trials.append(Trial(len(trials), setup, effort, cost, failure, given))
        if store is not None:
            write_whole(store, b"".join(msgspec.json.encode(trial) + b"\n" for trial in trials))
    return trials


def stored(path: Path) -> list[Trial]:
    """The trials of a file; none where there is no file."""
    if not path.exists():
        return []
    trials = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            trials.append(msgspec.json.decode(line, type=Trial))
        except msgspec.MsgspecError as error:
            raise BadInput(f"{path}:{number}: no trial of a search: {error}") from None
    return trials
