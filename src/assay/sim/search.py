"""Search by asking and telling, for settings whose worth only a trial can tell: islands in two phases, and at random.

A candidate is a value for each knob. Whoever searches calls :meth:`ask` for the next one, tries it, and tells its
score: a positive number if it passed every test (a speed-up, the more the better), and 0 with a stage and a note if it
did not. No candidate is asked for twice. This file needs NumPy only, so scripts on other machines load it by its path.

>>> search = Islands({"chunk": (1, 2, 4), "wait": ("block", "poll")}, np.random.default_rng(0), safe=(1, "block"))
>>> search.ask().values
(1, 'block')
>>> search.tell(1.0)
>>> while search.asked < 6:
...     chunk, wait = search.ask().values
...     search.tell(chunk * (1.5 if wait == "poll" else 1.0))
>>> search.best.values, search.best.score
((4, 'poll'), 6.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

Knobs = Mapping[str, Sequence[Any]]
Values = tuple[Any, ...]  # one for each knob, in the knobs' order
EXPLORE = 0.4  # of the generations; then the search exploits
MIGRATE = 3  # generations between visits of the neighbour's best
SUMMARY = 2  # generations between two meta-summaries
FAILED = 0.25  # what a failure counts as in a summary, in speed-ups


@dataclass(frozen=True)
class Candidate:
    """What is to be tried, where it comes from, and what came of it."""

    values: Values
    generation: int = 0
    island: int = 0
    phase: str = "safe"
    parent: Values | None = None
    score: float = 0.0
    stage: str = ""  # where it failed; nothing if it passed
    note: str = ""


@dataclass(frozen=True)
class Feedback:
    """What a mutator may know: all candidates so far, the phase, and the summary's bias for each value of a knob."""

    knobs: Knobs
    phase: str
    tried: Sequence[Candidate]
    bias: Mapping[str, tuple[float, ...]]  # mean logarithm of the score with this value, over that of all
    random: np.random.Generator


Mutator = Callable[[Candidate, Feedback], Values]


class Search(Protocol):
    """What every search offers."""

    tried: list[Candidate]

    def ask(self) -> Candidate:
        """The next candidate; StopIteration when none is left."""
        ...

    def tell(self, score: float, stage: str = "", note: str = "") -> None:
        """What came of the candidate that was asked for last."""
        ...


def structured(parent: Candidate, feedback: Feedback) -> Values:
    """Draw knobs anew, values that did well more often: half of the knobs while exploring, one while exploiting."""
    random, names = feedback.random, list(feedback.knobs)
    free = [at for at, name in enumerate(names) if len(feedback.knobs[name]) > 1]
    explores = feedback.phase == "explore"
    turned = (len(free) + 1) // 2 if explores else 1
    values = list(parent.values)
    for at in random.permutation(free)[:turned].tolist():
        choices = [k for k, value in enumerate(feedback.knobs[names[at]]) if explores or value != values[at]]
        weight = np.cumsum(np.exp([2.0 * feedback.bias[names[at]][k] for k in choices]))
        drawn = int(np.searchsorted(weight, random.random() * weight[-1]))
        values[at] = feedback.knobs[names[at]][choices[min(drawn, len(choices) - 1)]]
    return tuple(values)


def summarise(knobs: Knobs, tried: Sequence[Candidate]) -> dict[str, tuple[float, ...]]:
    """How much better or worse than all candidates those with a value did, as a logarithm; shrunk where they are few.

    >>> tried = [Candidate((1,), score=1.0), Candidate((2,), score=2.0), Candidate((3,), stage="verify")]
    >>> [round(x, 2) for x in summarise({"chunk": (1, 2, 3)}, tried)["chunk"]]
    [0.12, 0.46, -0.58]
    """
    worth = np.log([max(one.score, FAILED) for one in tried])
    middle = float(worth.mean()) if len(worth) else 0.0
    return {
        name: tuple(
            sum(own := [float(w) - middle for w, one in zip(worth, tried, strict=True) if one.values[at] == value])
            / (len(own) + 1)
            for value in choices
        )
        for at, (name, choices) in enumerate(knobs.items())
    }


def _unseen(knobs: Knobs, seen: set[Values], random: np.random.Generator) -> Values:
    """One of those never asked for, each as likely as the other."""
    for _ in range(64):
        values = tuple(choices[int(random.integers(len(choices)))] for choices in knobs.values())
        if values not in seen:
            return values
    grid = np.stack(np.meshgrid(*(range(len(choices)) for choices in knobs.values()), indexing="ij"), -1)
    every = [
        tuple(choices[k] for choices, k in zip(knobs.values(), row, strict=True))
        for row in grid.reshape(-1, len(knobs)).tolist()
    ]
    left = [values for values in every if values not in seen]
    if not left:
        raise StopIteration("every candidate was asked for")
    return left[int(random.integers(len(left)))]


@dataclass
class Random:
    """Candidates at random, none twice.

    >>> search = Random({"chunk": (1, 2)}, np.random.default_rng(0))
    >>> found = []
    >>> for _ in range(2):
    ...     found.append(search.ask().values)
    ...     search.tell(1.0)
    >>> sorted(found)
    [(1,), (2,)]
    """

    knobs: Knobs
    random: np.random.Generator
    tried: list[Candidate] = field(default_factory=list)
    _seen: set[Values] = field(default_factory=set)
    _asked: Candidate | None = None

    def ask(self) -> Candidate:
        """The next candidate."""
        values = _unseen(self.knobs, self._seen, self.random)
        self._asked = Candidate(values, len(self.tried) + 1, phase="random")
        self._seen.add(values)
        return self._asked

    def tell(self, score: float, stage: str = "", note: str = "") -> None:
        """What came of it."""
        assert self._asked is not None, "ask first"
        self.tried.append(replace(self._asked, score=score, stage=stage, note=note))


@dataclass
class Islands:
    """Evolution on islands: explore for the first part of the generations, exploit what was found after that.

    Args:
        knobs: the values of each knob.
        random: where chance comes from.
        safe: a candidate known to be right, from which all islands start; without it each starts at random.
        generations: in each of which every island tries one candidate.
        explore: the share of generations that explore. None: a single phase, that draws anew for every candidate
            whether it explores, at the same rate.
        mutate: gives the next candidate from a parent; where it refuses (raises ValueError) :func:`structured` does.
    """

    knobs: Knobs
    random: np.random.Generator
    safe: Values | None = None
    generations: int = 12
    islands: int = 4
    explore: float | None = EXPLORE
    mutate: Mutator = structured
    tried: list[Candidate] = field(default_factory=list)
    refused: int = 0
    migrated: int = 0
    summaries: int = 0
    bias: dict[str, tuple[float, ...]] = field(default_factory=dict)
    _asked: Candidate | None = None
    _seen: set[Values] = field(default_factory=set)
    _visitors: dict[int, Candidate] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """How many candidates were tried."""
        return len(self.tried)

    @property
    def best(self) -> Candidate:
        """The best so far."""
        return max(self.tried, key=lambda one: one.score)

    def ask(self) -> Candidate:
        """The next candidate: the safe one first."""
        if self.safe is not None and not self.tried:
            self._asked = Candidate(self.safe)
            return self._asked
        turn = len(self.tried) - (self.safe is not None)
        generation, island = 1 + turn // self.islands, turn % self.islands
        if island == 0:
            self._between(generation)
        seen = self._seen
        parent = self._parent(island, phase := self._phase(generation))
        if parent is None:
            self._asked = Candidate(_unseen(self.knobs, seen, self.random), generation, island, "random")
            return self._asked
        feedback = Feedback(self.knobs, phase, self.tried, self.bias, self.random)
        values = self._new(parent, feedback, seen)
        self._asked = Candidate(values, generation, island, phase, parent.values)
        return self._asked

    def tell(self, score: float, stage: str = "", note: str = "") -> None:
        """What came of it."""
        assert self._asked is not None, "ask first"
        self._seen.add(self._asked.values)
        self.tried.append(replace(self._asked, score=score, stage=stage, note=note))

    def _phase(self, generation: int) -> str:
        if self.explore is None:
            return "explore" if self.random.random() < EXPLORE else "exploit"
        return "explore" if generation <= math.ceil(self.explore * self.generations) else "exploit"

    def _between(self, generation: int) -> None:
        """What happens before a generation: now and then a summary, now and then a visit."""
        if not self.bias or generation % SUMMARY == 0:
            self.bias, self.summaries = summarise(self.knobs, self.tried), self.summaries + 1
        if generation % MIGRATE == 0:
            for island in range(self.islands):
                home = [one for one in self.tried if one.island == (island - 1) % self.islands and one.score > 0]
                if home:
                    self._visitors[island] = max(home, key=lambda one: one.score)
                    self.migrated += 1

    def _parent(self, island: int, phase: str) -> Candidate | None:
        """While exploring one of the island's own or its visitor, while exploiting any; the better the likelier."""
        own = [one for one in self.tried if phase == "exploit" or one.phase == "safe" or one.island == island]
        own += [self._visitors[island]] if island in self._visitors else []
        if not own:
            return None
        own.sort(key=lambda one: -one.score)
        at = int(self.random.geometric(0.5)) - 1
        return own[min(at, len(own) - 1)]

    def _new(self, parent: Candidate, feedback: Feedback, seen: set[Values]) -> Values:
        """A candidate never asked for: the mutator's, then more and more turned knobs, then any."""
        try:
            values = self.mutate(parent, feedback)
            if values not in seen:
                return values
        except ValueError:
            self.refused += 1
        for attempt in range(24):
            wider = replace(feedback, phase=feedback.phase if attempt < 12 else "explore")
            values = structured(parent, wider)
            if values not in seen:
                return values
        return _unseen(self.knobs, seen, self.random)
