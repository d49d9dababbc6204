"""The one rule that makes every verdict.

A sentence's kind decides how it is judged, the paper's number how large its effect is; both stand in `papers.toml`, and
both join only after the measurement. Nothing here can be chosen by a study or a claim.

- An effect (ratio, change, difference) has a share: measured over the paper's, ratios and changes as logarithms.
  Reproduced: at least two thirds of the effect, and no effect at all lies outside the interval. Direction: certain and
  smaller, or two thirds and not certain. Without a number: reproduced if an effect in its direction is certain,
  direction where so few seeds say so that its interval is not known.
- Exceeded: more than three halves of an effect or a proportion that the paper prints, or an interval wholly above that.
  Mostly a weak rival or an easy model, so it is counted nowhere; `exceeds` says why.
- A bound, an exponent (± 0.1), a level (a factor of 3/2), a proportion (± 0.05), "unchanged" (± 0.02), a count (none):
  the interval lies on the bound's side, or within the kind's tolerance. Direction: the value does, the interval does
  not, as of a bound that one seed keeps.
- A universal statement falls with one counterexample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from assay.record.types import EFFECTS, PRINTED, Answer, Estimate, Kind, Result, Stated, Verdict

ENOUGH, MOST = 2 / 3, 3 / 2  # of an effect
EXPONENT = 0.1
LEVEL = 3 / 2  # a factor: as much as the two thirds of an effect
PROPORTION = 0.05
UNCHANGED = 0.02
_LEAST = 1e-12  # a ratio of nothing at all has no logarithm
_ROUNDING = 1e-9
UNSAID = "nobody has said why yet: take it for a weak rival or an easy model"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the share of the effect behind it with its interval where the sentence has a number.

    Of a bound and of a level the share is 1 at the paper's own number, and above 1 on the claimed side of a bound.
    """

    verdict: Verdict
    share: float | None = None
    low: float | None = None
    high: float | None = None


def judge(sentence: Stated, found: Estimate) -> Judgement:
    """The verdict on a sentence.

    >>> falls = Stated("ttft", "TTFT falls.", Kind.CHANGE, -0.5)
    >>> judge(falls, Estimate(-0.4, -0.45, -0.35, 5)).verdict.value
    'reproduced'
    >>> judge(falls, Estimate(-0.2, -0.25, -0.15, 5)).verdict.value
    'direction'
    >>> judge(falls, Estimate(0.1, -0.1, 0.3, 5)).verdict.value
    'not reproduced'
    >>> judge(falls, Estimate(-0.7, -0.75, -0.65, 5)).verdict.value  # a fall to 0.3, where the paper's is to 0.5
    'exceeded'
    """
    if math.isnan(found.value) or math.isinf(found.value):
        return Judgement(Verdict.NOT_MEASURED)
    share, low, high = _shares(sentence, found)
    verdict = _effect(sentence, share, low) if sentence.kind in EFFECTS else _held(sentence, found)
    if sentence.value is None:
        return Judgement(verdict)
    if sentence.kind in PRINTED and max(share, low) > MOST + _ROUNDING:
        verdict = Verdict.EXCEEDED
    return Judgement(verdict, *(_finite(x) for x in (share, low, high)))


def _shares(sentence: Stated, found: Estimate) -> tuple[float, float, float]:
    """The share of the effect at the value and at both ends of the interval, the smaller end first."""
    ends = sorted(_share(sentence, end) for end in (found.low, found.high))
    return _share(sentence, found.value), ends[0], ends[1]


def _share(sentence: Stated, measured: float) -> float:
    if math.isnan(measured):
        return -math.inf  # an interval that is not known holds everything
    kind, paper = sentence.kind, sentence.value
    if kind in EFFECTS:
        full = 1.0 if paper is None else abs(effect(kind, paper))
        upward = sentence.toward == "up" if paper is None else effect(kind, paper) > 0
        return effect(kind, measured) / full * (1 if upward else -1)
    if paper is None:
        return measured
    off = (measured - paper) / (abs(paper) or 1.0)
    return 1 - off if kind in (Kind.AT_MOST, Kind.EXPONENT_AT_MOST) or sentence.toward == "down" else 1 + off


def effect(kind: Kind, value: float) -> float:
    """An effect on the scale on which shares of it are taken; no effect is 0.

    >>> effect(Kind.CHANGE, 0.0), effect(Kind.RATIO, 1.0), effect(Kind.DIFFERENCE, 0.3)
    (0.0, 0.0, 0.3)
    """
    if kind is Kind.DIFFERENCE or math.isinf(value):
        return value
    return math.log(max(value if kind is Kind.RATIO else 1 + value, _LEAST))


def _effect(sentence: Stated, share: float, low: float) -> Verdict:
    certain, enough = low > 0, share >= ENOUGH
    if sentence.value is None:
        unknown = math.isinf(low) and share > 0  # of one seed or two: not certain is another thing than not so
        return Verdict.REPRODUCED if certain else Verdict.DIRECTION if unknown else Verdict.NOT_REPRODUCED
    if certain and enough:
        return Verdict.REPRODUCED
    return Verdict.DIRECTION if certain or enough else Verdict.NOT_REPRODUCED


def _held(sentence: Stated, found: Estimate) -> Verdict:
    low, high = _tolerated(sentence)
    if sentence.kind is Kind.EVERY:
        return Verdict.REPRODUCED if found.value >= 1.0 else Verdict.NOT_REPRODUCED
    if not low <= found.value <= high:
        return Verdict.NOT_REPRODUCED
    return Verdict.REPRODUCED if low <= found.low and found.high <= high else Verdict.DIRECTION


def span(sentence: Stated) -> tuple[float, float]:
    """The values that count as the sentence's own: of an effect those from two thirds of it to three halves.

    >>> span(Stated("seconds", "It takes at most 3 s.", Kind.AT_MOST, 3.0))
    (-inf, 3.0)
    >>> span(Stated("power", "Rounds grow linearly.", Kind.EXPONENT, 1.0))
    (0.9, 1.1)
    """
    kind, paper = sentence.kind, sentence.value
    if kind in EFFECTS and paper is not None:
        least, most = sorted(_part(kind, paper, part) for part in (ENOUGH, MOST))
        return least, most
    if kind in EFFECTS:
        nothing = float(kind is Kind.RATIO)
        return (nothing, math.inf) if sentence.toward == "up" else (-math.inf, nothing)
    low, high = _tolerated(sentence)
    if kind is not Kind.PROPORTION or paper is None:
        return low, high
    above = (MOST - 1) * (abs(paper) or 1.0)
    return (max(low, paper - above), high) if sentence.toward == "down" else (low, min(high, paper + above))


def _tolerated(sentence: Stated) -> tuple[float, float]:
    """Where the interval of what is no effect has to lie."""
    kind, paper = sentence.kind, sentence.value
    if kind is Kind.EVERY:
        return 1.0, 1.0
    if kind is Kind.UNCHANGED:
        return -UNCHANGED, UNCHANGED
    number = 0.0 if paper is None else paper
    low, high = {
        Kind.AT_MOST: (-math.inf, number),
        Kind.AT_LEAST: (number, math.inf),
        Kind.EXPONENT: (number - EXPONENT, number + EXPONENT),
        Kind.EXPONENT_AT_MOST: (-math.inf, number + EXPONENT),
        Kind.LEVEL: (number / LEVEL, number * LEVEL),
        Kind.PROPORTION: (number - PROPORTION, number + PROPORTION),
        Kind.COUNT: (number, number),
    }[kind]
    # Of a level or a proportion that is better the lower or the higher it is, more than the paper's is no fault.
    return (-math.inf if sentence.toward == "down" else low), (math.inf if sentence.toward == "up" else high)


def neutral(kind: Kind) -> float | None:
    """The value of no effect; None where a sentence is about none.

    >>> neutral(Kind.RATIO), neutral(Kind.CHANGE), neutral(Kind.AT_MOST)
    (1.0, 0.0, None)
    """
    return (1.0 if kind is Kind.RATIO else 0.0) if kind in EFFECTS else None


def _part(kind: Kind, paper: float, part: float) -> float:
    """The value that is so much of the paper's effect."""
    if kind is Kind.DIFFERENCE:
        return part * paper
    return math.exp(part * effect(kind, paper)) - (1 if kind is Kind.CHANGE else 0)


def rule(sentence: Stated) -> str:
    """What makes the sentence reproduced, in a few signs.

    >>> rule(Stated("cost", "It costs less.", Kind.RATIO, toward="down")), rule(Stated("all", "Always.", Kind.EVERY))
    ('< 1 for certain', 'every case')
    """
    low, high = span(sentence)
    if sentence.kind is Kind.EVERY:
        return "every case"
    if sentence.kind in EFFECTS and sentence.value is None:
        return f"{'>' if math.isinf(high) else '<'} {neutral(sentence.kind):g} for certain"
    if low == high:
        return f"= {low:g}"
    if math.isinf(high):
        return f"≥ {low:.4g}"
    return f"≤ {high:.4g}" if math.isinf(low) else f"{low:.4g} … {high:.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def answered(answer: Answer, sentence: Stated | None) -> Answer:
    """An answer judged anew from its stored estimate, as the sentence now reads."""
    if sentence is None:
        note = "stored before there was one rule for verdicts, and its sentence is gone; run it again"
        return replace(answer, verdict=Verdict.NOT_MEASURED, note=note) if answer.kind is None else answer
    answer = replace(
        answer, id=sentence.id, text=sentence.text, kind=sentence.kind, unit=sentence.measured_in,
        toward=sentence.toward, over=sentence.over, paper=sentence.value,
    )  # fmt: skip
    if answer.measured is None:
        return replace(answer, verdict=Verdict.NOT_MEASURED)
    low, high = (math.nan if end is None else end for end in (answer.low, answer.high))
    found = judge(sentence, Estimate(answer.measured, low, high, answer.n))
    verdict = Verdict.BY_CONSTRUCTION if answer.construction else found.verdict
    why = (sentence.exceeds or UNSAID) if verdict is Verdict.EXCEEDED else ""
    return replace(answer, verdict=verdict, share=found.share, share_low=found.low, share_high=found.high, exceeds=why)


def judged_anew(result: Result, stated: Iterable[Stated], renamed: Mapping[str, str]) -> Result:
    """A stored result under today's rule and sentences. `renamed` has the ids of sentences that once read otherwise."""
    now = {sentence.id: sentence for sentence in stated}
    texts = {sentence.text: sentence.id for sentence in now.values()}
    answers = []
    for answer in result.claims:
        known = now.get(answer.id or texts.get(answer.text) or renamed.get(answer.text, ""))
        answers.append(answered(answer, known if answer.stated else answer.sentence))
    return replace(result, claims=tuple(answers))
