"""Which verdicts changed since an older record, and why: the rule, a new measurement, or another sentence.

The older record is what `assay record --json` printed then, whatever its version.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from assay.record import catalogue, verdicts
from assay.record.types import Answer, Estimate, Result, Stated, Verdict
from assay.record.wording import interval_text, with_unit


@dataclass(frozen=True, slots=True)
class Changed:
    """One claim of a paper in two records."""

    key: str
    id: str
    text: str
    before: str
    now: str
    share: float | None
    share_low: float | None
    share_high: float | None
    why: str


def changes(before: Iterable[Mapping[str, Any]], results: Mapping[str, Result]) -> Iterator[Changed]:
    """Every claim of the measured papers beside its older verdict; `why` is empty where both are the same."""
    old = {row["key"]: {_id(row["key"], c): c for c in row.get("claims") or ()} for row in before}
    for key, result in results.items():
        sentences = {sentence.id: sentence for sentence in catalogue.paper(key).claims}
        for answer in result.stated:
            then = old.get(key, {}).get(answer.id)
            yield Changed(
                key, answer.id, answer.text, (then or {}).get("verdict") or "–", answer.verdict.value,
                answer.share, answer.share_low, answer.share_high, _why(then, answer, sentences.get(answer.id)),
            )  # fmt: skip


def _id(key: str, claim: Mapping[str, Any]) -> str:
    return claim.get("id") or catalogue.renamed().get(key, {}).get(claim["text"], "")


def _why(then: Mapping[str, Any] | None, now: Answer, sentence: Stated | None) -> str:
    if then is None or "verdict" not in then:
        return "a new sentence"
    if then["verdict"] == now.verdict.value:
        return ""
    if now.verdict is Verdict.BY_CONSTRUCTION:
        return now.construction
    if now.measured is None:
        return now.note
    if then.get("measured") is None:
        return f"measured now: {with_unit(now.measured, now.unit)}"
    if now.verdict is Verdict.EXCEEDED and _same(then, now):
        return f"the rule: {100 * (now.share or 0):.0f} % of the effect, because {now.exceeds}"
    by_rule = _judged(then, sentence)
    if by_rule is not None and by_rule.verdict is now.verdict:
        share = "" if by_rule.share is None else f": the old {100 * by_rule.share:.0f} % of the effect"
        return f"the rule{share}"
    if _same(then, now):
        was = interval_text(then.get("low"), then.get("high"), now.unit)
        return f"the interval: {interval_text(now.low, now.high, now.unit)}, not {was}"
    return f"measured anew: {with_unit(now.measured, now.unit)}, not {with_unit(then['measured'], now.unit)}"


def _same(then: Mapping[str, Any], now: Answer) -> bool:
    """Whether the older record measured the same value."""
    return now.measured is not None and math.isclose(then["measured"], now.measured, rel_tol=1e-6)


def _judged(then: Mapping[str, Any], sentence: Stated | None) -> verdicts.Judgement | None:
    """The older estimate under today's rule."""
    low, high = then.get("low"), then.get("high")
    if sentence is None or low is None or high is None:
        return None
    return verdicts.judge(sentence, Estimate(then["measured"], float(low), float(high), then.get("n", 0)))
