"""The words of the record as small frozen types. This module imports nothing of assay's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ROOMS = ("serving", "training", "federated", "continuum", "protocols", "data", "kernels", "observe")
SEEDS = {"quick": 5, "full": 10}  # how many, by the size of a run


class Evidence(StrEnum):
    """How real the substrate of a result is."""

    REAL = "real"  # the real thing ran: sockets, files, training, the exact process
    REPLAY = "replay"  # a real public trace drove it
    MODEL = "model"  # a calibrated simulator, because the hardware is not at hand


class Verdict(StrEnum):
    """What a study says about a claim. A claim that fails is a result like any other."""

    REPRODUCED = "reproduced"
    EXCEEDED = "exceeded"  # more than three halves of the paper's effect: not counted, until somebody has said why
    DIRECTION = "direction"  # the right sign, but a smaller effect or one not yet certain
    NOT_REPRODUCED = "not reproduced"
    NOT_MEASURED = "not measured here"
    BY_CONSTRUCTION = "by construction"  # true by how it was written here: no measurement, never counted


class Kind(StrEnum):
    """What sort of sentence a claim is. The kind alone decides how it is judged: see `assay.record.verdicts`."""

    RATIO = "ratio"  # how many times as much; no effect is 1
    CHANGE = "change"  # new/old - 1; no effect is 0
    DIFFERENCE = "difference"  # of shares, errors, points; no effect is 0
    AT_MOST = "at most"
    AT_LEAST = "at least"
    EXPONENT = "exponent"
    EXPONENT_AT_MOST = "exponent at most"
    LEVEL = "level"  # an amount that is neither an effect nor a bound: seconds, watts, an error
    PROPORTION = "proportion"  # a share of cases or a probability, as such
    COUNT = "count"
    UNCHANGED = "unchanged"  # "hardly changes", "comparable": a difference near nothing
    EVERY = "every"  # a universal statement; its value is the share of the tried cases in which it held


EFFECTS = (Kind.RATIO, Kind.CHANGE, Kind.DIFFERENCE)
PRINTED = (*EFFECTS, Kind.PROPORTION)  # of these more than the paper's is no better: see `Verdict.EXCEEDED`
UNITS = {
    Kind.RATIO: "ratio",
    Kind.CHANGE: "change",
    Kind.EXPONENT: "exponent",
    Kind.EXPONENT_AT_MOST: "exponent",
    Kind.PROPORTION: "share",
    Kind.COUNT: "count",
    Kind.EVERY: "share",
}  # what a kind is measured in where its claim does not say


class NotMeasured(Exception):  # noqa: N818 - a verdict with its reason, not a failure
    """Raised by a claim's measure when this machine cannot answer it; the text says why and what would."""


class NoRows(NotMeasured):
    """The study's table holds nothing of the case that a claim asks for: it was not run."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A sentence to be judged, in our words: its kind, its unit, and the number it prints, if any.

    `toward` tells the direction of an effect where no number does: "up" or "down". `over` is "best" where the paper
    says "up to" and "worst" where it says "in the weakest case". `exceeds` says why our effect is larger than the
    paper's, where it is: a weak rival, an easy model.

    >>> Stated("ttft", "TTFT falls against round robin.", Kind.CHANGE, -0.4).measured_in
    'change'
    """

    id: str
    text: str
    kind: Kind
    value: float | None = None
    unit: str = ""
    toward: str = ""
    over: str = ""
    exceeds: str = ""

    @property
    def measured_in(self) -> str:
        """The unit: the claim's own, or its kind's."""
        return self.unit or UNITS.get(self.kind, "")


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
    """A measured value with its interval and the number of independent observations behind it.

    `cases` says over which cases a best or worst one was sought, and which it was.
    """

    value: float
    low: float
    high: float
    n: int
    cases: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """How a study's table answers one sentence.

    A paper's own sentence stands in `papers.toml` under `id`, with its kind and its number: they join after the
    measurement, so that a study cannot aim at what it does not know, and no claim chooses its own bound. A claim with
    `asks` is assay's own question: `Claim("peer", measure, asks="…", kind=Kind.RATIO, toward="up")`; a bound of such a
    question stands in its sentence. `construction` says why an answer is true by how we wrote it, where it is, and
    `exceeds` why the effect of such a question is larger than its number (the paper's own say it in `papers.toml`).
    """

    id: str
    measure: Callable[[Any], Estimate]
    evidence: Evidence | None = None  # where it differs from the study's
    construction: str = ""
    asks: str = ""
    kind: Kind | None = None
    value: float | None = None
    unit: str = ""
    toward: str = ""
    exceeds: str = ""

    @property
    def question(self) -> Stated | None:
        """assay's own question; None where the sentence is the paper's."""
        if not self.asks or self.kind is None:
            return None
        return Stated(self.id, self.asks, self.kind, self.value, self.unit, self.toward, exceeds=self.exceeds)


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
    trust: str = ""  # of a model: how far it is off measured hardware


@dataclass(frozen=True, slots=True)
class Answer:
    """A claim after the measurement: what the paper says, what we measured, the share of the effect, the verdict."""

    text: str
    paper: float | None  # the sentence's number; of assay's own question its bound
    measured: float | None
    low: float | None
    high: float | None
    n: int
    verdict: Verdict
    evidence: Evidence
    id: str = ""
    kind: Kind | None = None  # None: stored before there was one rule
    unit: str = ""
    toward: str = ""
    over: str = ""
    share: float | None = None  # of the effect: measured over the paper's
    share_low: float | None = None
    share_high: float | None = None
    stated: bool = True  # False: assay's own question, not the paper's
    cases: str = ""  # over which cases a best or worst one was sought
    construction: str = ""
    exceeds: str = ""  # why the effect is larger than the paper's, of one that exceeds it
    note: str = ""
    broken: bool = False  # its measure raised: a defect of the study, not of the machine

    @property
    def sentence(self) -> Stated | None:
        """What was judged; None for an answer stored before there was one rule."""
        if self.kind is None:
            return None
        return Stated(self.id, self.text, self.kind, self.paper, self.unit, self.toward, self.over, self.exceeds)


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
    seeds: tuple[int, ...] | int = ()  # those that were used; older results tell only how many
    started: str = ""
    source: str = ""  # digest of the code the study consists of: "this version"
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    on: str = "local"
    resumed: int = 0  # cases taken over from an interrupted run
    trust: str = ""  # of a model: how far it is off measured hardware
    cases: tuple[str, ...] = ()  # the columns of the table that say which case a row is; older results do not tell

    @property
    def stated(self) -> tuple[Answer, ...]:
        """The answers to the paper's own claims: what its headline counts."""
        return tuple(a for a in self.claims if a.stated)

    @property
    def tally(self) -> dict[str, int]:
        """How many of the paper's claims got which verdict, in the verdicts' order."""
        verdicts = [a.verdict for a in self.stated]
        return {v.value: verdicts.count(v) for v in Verdict if v in verdicts}

    @property
    def headline(self) -> str:
        """All of the paper's claims in three words: "2 of 4".

        >>> Result("k", Evidence.REAL, "quick", 1.0, {}, [], ()).headline
        '0 of 0'
        """
        return f"{self.tally.get(Verdict.REPRODUCED.value, 0)} of {len(self.stated)}"
