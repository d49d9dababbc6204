"""The words of the record as small frozen types. This module imports nothing of assay's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ROOMS = ("serving", "training", "federated", "continuum", "protocols", "data", "kernels", "observe")


class Evidence(StrEnum):
    """How real the substrate of a result is."""

    REAL = "real"  # the real thing ran: sockets, files, training, the exact process
    REPLAY = "replay"  # a real public trace drove it
    MODEL = "model"  # a calibrated simulator, because the hardware is not at hand


class Verdict(StrEnum):
    """What a study says about a claim. A claim that fails is a result like any other."""

    REPRODUCED = "reproduced"
    DIRECTION = "direction"  # the right sign, but a smaller effect or one not yet certain
    NOT_REPRODUCED = "not reproduced"
    NOT_MEASURED = "not measured here"


class NotMeasured(Exception):  # noqa: N818 - a verdict with its reason, not a failure
    """Raised by a claim's measure when this machine cannot answer it; the text says why and what would."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A claim as the paper states it: a sentence in our words, and its number if it prints one."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Paper:
    """An entry of the record.

    >>> Paper("radius-fps", "kernels", "RadiusFPS", "2606.06255", "Exact sampling.").module
    'assay.kernels.radius_fps'
    """

    key: str
    room: str
    title: str
    arxiv: str | None
    line: str
    claims: tuple[Stated, ...] = ()

    @property
    def module(self) -> str:
        """Where the paper is built, once it is."""
        return f"assay.{self.room}.{self.key.replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with its interval and the number of independent observations behind it."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Holds:
    """The test that turns an estimate into a verdict. Made by `at_least`, `at_most`, `between`, `exactly`.

    `low` and `high` bound the values that count as the claim's effect (None: no bound on that side); `neutral` is the
    value of no effect at all.
    """

    low: float | None = None
    high: float | None = None
    neutral: float | None = None

    def judge(self, estimate: Estimate) -> Verdict:
        """The verdict on an estimate.

        Reproduced: the value is in bounds, and the whole interval lies on the effect's side of `neutral` (in bounds,
        if there is no neutral value). Direction: the effect is certain but too small, or large enough but not certain.

        >>> at_least(1.3, neutral=1.0).judge(Estimate(1.5, 1.1, 1.9, 5))
        <Verdict.REPRODUCED: 'reproduced'>
        >>> at_least(1.3, neutral=1.0).judge(Estimate(1.2, 1.1, 1.3, 5))
        <Verdict.DIRECTION: 'direction'>
        >>> at_least(1.3, neutral=1.0).judge(Estimate(1.2, 0.9, 1.5, 5))
        <Verdict.NOT_REPRODUCED: 'not reproduced'>
        """
        if not all(map(math.isfinite, (estimate.value, estimate.low, estimate.high))):
            return Verdict.NOT_MEASURED
        low, high = self.span
        in_bounds = low <= estimate.value <= high
        if self.neutral is None:
            certain = in_bounds and low <= estimate.low and estimate.high <= high
        elif self.neutral <= low:
            certain = estimate.low > self.neutral
        else:
            certain = estimate.high < self.neutral
        if in_bounds and certain:
            return Verdict.REPRODUCED
        return Verdict.DIRECTION if in_bounds or certain else Verdict.NOT_REPRODUCED

    @property
    def span(self) -> tuple[float, float]:
        """The bounds as numbers, infinite where there is none."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"= {self.low:g}"
        if self.high is None:
            return f"≥ {self.low:g}"
        if self.low is None:
            return f"≤ {self.high:g}"
        return f"{self.low:g} … {self.high:g}"


def at_least(bound: float, *, neutral: float | None = None) -> Holds:
    """The claim holds from `bound` upwards; `neutral` (1 for a speed-up, 0 for a change) marks no effect.

    >>> str(at_least(1.3))
    '≥ 1.3'
    """
    return Holds(low=bound, neutral=neutral)


def at_most(bound: float, *, neutral: float | None = None) -> Holds:
    """The claim holds up to `bound`.

    >>> at_most(-0.3, neutral=0.0).judge(Estimate(-0.1, -0.2, -0.05, 8))
    <Verdict.DIRECTION: 'direction'>
    """
    return Holds(high=bound, neutral=neutral)


def between(low: float, high: float) -> Holds:
    """The claim holds from `low` to `high`.

    >>> between(1.8, 2.2).judge(Estimate(2.0, 1.9, 2.1, 8))
    <Verdict.REPRODUCED: 'reproduced'>
    """
    return Holds(low=low, high=high)


def exactly(value: float) -> Holds:
    """The claim holds for this value alone: an identity, checked in every case and not estimated.

    >>> exactly(1.0).judge(Estimate(1.0, 1.0, 1.0, 40))
    <Verdict.REPRODUCED: 'reproduced'>
    """
    return Holds(low=value, high=value)


@dataclass(frozen=True, slots=True)
class Claim:
    """How a study's table answers one sentence of a paper.

    The paper's own number is not here but in `papers.toml`, joined by `text` after the measurement: a study cannot
    aim at what it does not know. A claim whose text stands only in the module is assay's own question.
    """

    text: str
    measure: Callable[[Any], Estimate]
    holds: Holds
    evidence: Evidence | None = None  # where it differs from the study's


@dataclass(frozen=True, slots=True)
class Study:
    """A paper's experiment, as its module declares it."""

    paper: Paper
    run: Callable[[Any], Any]
    claims: tuple[Claim, ...]
    evidence: Evidence
    plot: Callable[[Any], Any] | None = None
    idea: str = ""
    example: str = ""  # a few lines of Python, from the module's docstring
    own_input: str = ""  # the command that runs it on the user's own input
    use_when: str = ""
    avoid_when: str = ""
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A claim after the measurement: what the paper says, what we measured, and the verdict."""

    text: str
    paper: float | None
    measured: float | None
    low: float | None
    high: float | None
    n: int
    verdict: Verdict
    evidence: Evidence
    holds: Holds
    stated: bool = True  # False: assay's own question, not the paper's
    note: str = ""
    broken: bool = False  # its measure raised: a defect of the study, not of the machine


@dataclass(frozen=True, slots=True)
class Result:
    """A study that ran: its table, its answers, and all that is needed to know where they come from."""

    key: str
    evidence: Evidence
    size: str
    seconds: float
    machine: dict[str, Any]
    table: list[dict[str, Any]]
    claims: tuple[Answer, ...]
    seeds: int = 0
    started: str = ""
    source: str = ""  # digest of the code the study consists of: "this version"
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    on: str = "local"
    resumed: int = 0  # cases taken over from an interrupted run

    @property
    def headline(self) -> Answer | None:
        """The first claim that was measured: what the front page shows."""
        measured = (a for a in self.claims if a.verdict is not Verdict.NOT_MEASURED)
        return next(measured, self.claims[0] if self.claims else None)

    @property
    def tally(self) -> dict[str, int]:
        """How many claims got which verdict, in the verdicts' order."""
        verdicts = [a.verdict for a in self.claims]
        return {v.value: verdicts.count(v) for v in Verdict if v in verdicts}
