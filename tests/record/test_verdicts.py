"""One rule makes every verdict: what a word means does not depend on the claim."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record import catalogue, store
from assay.record.changes import changes
from assay.record.types import Answer, Estimate, Evidence, Kind, Result, Stated, Verdict
from assay.record.verdicts import answered, judge, judged_anew, rule, span

TTFT = "time to first token falls against vLLM-v1's load-only router"  # as older results have it
R, D, N, X = Verdict.REPRODUCED, Verdict.DIRECTION, Verdict.NOT_REPRODUCED, Verdict.EXCEEDED


def sentence(kind: Kind, value: float | None = None, **more: str) -> Stated:
    return Stated("claim", "It is so.", kind, value, unit="points", **more)


@pytest.mark.parametrize(
    ("claim", "estimate", "verdict"),
    [
        # Effects: two thirds of the paper's, as logarithms, and certain.
        (sentence(Kind.RATIO, 8.0), (4.01, 3.0, 5.0), R),
        (sentence(Kind.RATIO, 8.0), (3.99, 3.0, 5.0), D),  # certain, and smaller
        (sentence(Kind.RATIO, 8.0), (6.0, 0.9, 9.0), D),  # large enough, and not certain
        (sentence(Kind.RATIO, 8.0), (3.0, 0.9, 5.0), N),
        (sentence(Kind.RATIO, 8.0), (0.2, 0.1, 0.3), N),  # certain, the other way
        (sentence(Kind.RATIO, 0.5), (0.6, 0.5, 0.7), R),
        (sentence(Kind.CHANGE, -0.92), (-0.55, -0.6, -0.5), D),  # 32 % of the effect, whatever it looks like
        (sentence(Kind.CHANGE, -0.92), (-0.83, -0.9, -0.7), R),
        (sentence(Kind.DIFFERENCE, 0.3), (0.2, 0.1, 0.3), R),
        (sentence(Kind.DIFFERENCE, 0.3), (0.19, 0.1, 0.3), D),
        # More than three halves of it is another thing than the paper's, and so is an interval wholly above them.
        (sentence(Kind.RATIO, 4.0), (7.9, 7.0, 9.0), R),
        (sentence(Kind.RATIO, 4.0), (8.1, 7.0, 9.0), X),
        (sentence(Kind.RATIO, 4.0), (7.9, 8.1, 9.0), X),
        (sentence(Kind.RATIO, 4.0), (8.1, -math.inf, math.inf), X),  # one seed
        (sentence(Kind.RATIO, 0.25), (0.12, 0.1, 0.13), X),
        (sentence(Kind.CHANGE, -0.75), (-0.87, -0.9, -0.8), R),
        (sentence(Kind.CHANGE, -0.75), (-0.88, -0.9, -0.8), X),
        (sentence(Kind.CHANGE, 0.1), (0.2, 0.15, 0.25), X),
        (sentence(Kind.DIFFERENCE, -0.2), (-0.31, -0.4, -0.2), X),
        (sentence(Kind.DIFFERENCE, -0.2), (0.31, 0.2, 0.4), N),
        (sentence(Kind.RATIO, 2.0, over="best"), (3.0, 2.5, 3.5), X),
        (sentence(Kind.LEVEL, 100.0, toward="down"), (20.0, 19.0, 21.0), R),
        (sentence(Kind.AT_LEAST, 2.0), (9.0, 8.0, 10.0), R),
        (sentence(Kind.AT_MOST, 2.0), (0.1, 0.05, 0.2), R),
        (sentence(Kind.COUNT, 2.0), (9.0, 9.0, 9.0), N),
        # Without a number: a certain effect in its direction.
        (sentence(Kind.CHANGE, toward="down"), (-0.01, -0.02, -0.001), R),
        (sentence(Kind.CHANGE, toward="down"), (-0.3, -0.7, 0.1), N),
        (sentence(Kind.RATIO, toward="up"), (1.2, 1.1, 1.3), R),
        (sentence(Kind.RATIO, toward="up"), (0.8, 0.7, 0.9), N),
        # A bound is kept, with the interval on its side, or not kept; not certain is another thing than not kept.
        (sentence(Kind.AT_MOST, 0.05), (0.04, 0.03, 0.05), R),
        (sentence(Kind.AT_MOST, 0.05), (0.04, 0.03, 0.06), D),
        (sentence(Kind.AT_MOST, 0.05), (0.06, 0.04, 0.08), N),
        (sentence(Kind.AT_MOST, 0.05), (0.04, -math.inf, math.inf), D),  # one seed
        (sentence(Kind.AT_MOST, 0.05), (0.06, -math.inf, math.inf), N),
        (sentence(Kind.AT_LEAST, 0.95), (0.97, 0.96, 0.98), R),
        (sentence(Kind.AT_LEAST, 0.95), (0.97, 0.94, 0.98), D),
        (sentence(Kind.AT_LEAST, 0.95), (0.94, 0.90, 0.98), N),
        (sentence(Kind.COUNT, 85.0), (85.0, -math.inf, math.inf), D),
        # The tolerance is the kind's.
        (sentence(Kind.EXPONENT, 1.0), (1.02, 0.95, 1.09), R),
        (sentence(Kind.EXPONENT, 1.0), (1.02, 0.85, 1.19), D),
        (sentence(Kind.EXPONENT, 1.0), (1.2, 1.15, 1.25), N),
        (sentence(Kind.EXPONENT_AT_MOST, 2.0), (1.4, 1.3, 1.5), R),
        (sentence(Kind.EXPONENT_AT_MOST, 2.0), (2.05, 1.95, 2.15), D),
        (sentence(Kind.LEVEL, 100.0), (140.0, 130.0, 149.0), R),
        (sentence(Kind.LEVEL, 100.0), (50.0, 49.0, 51.0), N),
        (sentence(Kind.LEVEL, 100.0, toward="down"), (50.0, 49.0, 51.0), R),
        (sentence(Kind.PROPORTION, 0.31), (0.33, 0.31, 0.35), R),
        (sentence(Kind.PROPORTION, 0.31), (0.4, 0.35, 0.45), N),
        (sentence(Kind.PROPORTION, 0.31), (0.5, 0.4, 0.6), X),
        (sentence(Kind.PROPORTION, 0.6, toward="up"), (0.85, 0.7, 0.95), R),
        (sentence(Kind.PROPORTION, 0.6, toward="up"), (0.91, 0.85, 0.95), X),
        (sentence(Kind.PROPORTION, 0.3, toward="down"), (0.1, 0.05, 0.15), X),
        (sentence(Kind.PROPORTION, 1.0, toward="up"), (0.98, 0.96, 1.0), R),
        (sentence(Kind.COUNT, 85.0), (83.0, 83.0, 83.0), N),
        (sentence(Kind.COUNT, 85.0), (85.0, 85.0, 85.0), R),
        (sentence(Kind.UNCHANGED), (0.001, -0.01, 0.01), R),
        (sentence(Kind.UNCHANGED), (0.001, -0.03, 0.03), D),
        (sentence(Kind.UNCHANGED), (0.03, 0.025, 0.035), N),
        # A universal statement falls with one counterexample.
        (sentence(Kind.EVERY), (1.0, 0.7, 1.0), R),
        (sentence(Kind.EVERY), (0.9999, 0.999, 1.0), N),
        # One observation tells no spread, so nothing is certain.
        (sentence(Kind.RATIO, 2.0), (2.0, -math.inf, math.inf), D),
        (sentence(Kind.RATIO, toward="up"), (2.0, -math.inf, math.inf), D),
        (sentence(Kind.RATIO, toward="down"), (2.0, -math.inf, math.inf), N),
        (sentence(Kind.RATIO, toward="up"), (1.0, -math.inf, math.inf), N),
        (sentence(Kind.DIFFERENCE, toward="up"), (1.0, math.nan, math.nan), D),  # as of a stored answer
        (sentence(Kind.AT_MOST, 1.0), (0.5, math.nan, math.nan), D),
        (sentence(Kind.RATIO, 2.0), (math.nan, math.nan, math.nan), Verdict.NOT_MEASURED),
    ],
)
def test_the_rule(claim: Stated, estimate: tuple[float, float, float], verdict: Verdict) -> None:
    assert judge(claim, Estimate(*estimate, 5)).verdict is verdict


def test_the_share_of_the_effect_is_on_the_effects_own_scale() -> None:
    found = judge(sentence(Kind.CHANGE, -0.75), Estimate(-0.5, -0.75, 0.0, 5))
    assert (found.share, found.low, found.high) == pytest.approx((0.5, 0.0, 1.0))
    assert judge(sentence(Kind.DIFFERENCE, -0.4), Estimate(-0.1, -0.2, 0.0, 5)).share == pytest.approx(0.25)
    assert judge(sentence(Kind.AT_MOST, 0.1), Estimate(0.05, 0.04, 0.2, 5)).share == pytest.approx(1.5)
    assert judge(sentence(Kind.RATIO, toward="up"), Estimate(2.0, 1.5, 3.0, 5)).share is None


kinds = st.sampled_from([k for k in Kind if k not in (Kind.EVERY, Kind.UNCHANGED)])
values = st.floats(0.01, 100.0).filter(lambda v: abs(math.log(v)) > 1e-3)


@given(kinds, values)
def test_the_papers_own_number_measured_exactly_is_reproduced(kind: Kind, value: float) -> None:
    found = judge(sentence(kind, value), Estimate(value, value, value, 9))
    assert found.verdict is R
    assert found.share == pytest.approx(1.0)


@given(st.sampled_from([Kind.RATIO, Kind.CHANGE, Kind.DIFFERENCE]), values, values, st.floats(0, 3), st.floats(0, 3))
def test_an_effect_and_its_opposite_are_never_both_reproduced(
    kind: Kind, paper: float, measured: float, below: float, above: float
) -> None:
    estimate = Estimate(measured, measured - below, measured + above, 5)
    both = [judge(sentence(kind, toward=way), estimate).verdict for way in ("up", "down")]
    assert both != [R, R]
    one = judge(sentence(kind, paper), estimate)
    if one.verdict is R:
        low, high = span(sentence(kind, paper))
        assert low - 1e-9 * abs(low) <= measured <= high + 1e-9 * abs(high)


@given(kinds, values, values)
def test_the_rule_in_signs_says_when(kind: Kind, paper: float, measured: float) -> None:
    assert rule(sentence(kind, paper))
    verdict = judge(sentence(kind, paper), Estimate(measured, measured, measured, 5)).verdict
    low, high = span(sentence(kind, paper))
    inside = low <= measured <= high
    assert inside == (verdict is R) or math.isclose(measured, low) or math.isclose(measured, high)


def stored(text: str, **more: object) -> dict[str, object]:
    """An answer as the store had it before there was one rule."""
    answer = {
        "text": text, "paper": -0.92, "measured": -0.55, "low": -0.6, "high": -0.5, "n": 5, "verdict": "reproduced",
        "evidence": "model", "holds": {"low": None, "high": -0.5, "neutral": None}, "stated": True,
    }  # fmt: skip
    return answer | more


def test_an_old_result_is_judged_anew_from_its_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    folder = tmp_path / "results" / "lmetric"
    folder.mkdir(parents=True)
    claims = [
        stored(TTFT),
        stored("a sentence that nobody remembers"),
        stored("a question of our own", stated=False),
    ]
    old = {"key": "lmetric", "evidence": "model", "size": "quick", "seconds": 1.0, "machine": {}, "table": [],
           "claims": claims, "seeds": 5}  # fmt: skip
    (folder / "20260709T120000.000Z-quick-0.json").write_text(json.dumps(old))
    found = store.latest("lmetric")
    assert found is not None
    first, gone, own = found[1].claims
    assert (first.id, first.verdict) == ("ttft-vllm", D)  # 32 % of the effect: no longer enough
    assert first.share == pytest.approx(0.316, abs=1e-3)
    assert gone.verdict is own.verdict is Verdict.NOT_MEASURED
    assert "run it again" in gone.note
    assert found[1].headline == "0 of 2"


def result(answer: Answer) -> Result:
    return Result("lmetric", Evidence.MODEL, "quick", 1.0, {}, [], (answer,))


def answer(measured: float | None, **more: object) -> Answer:
    ends = (None, None) if measured is None else (measured - 0.01, measured + 0.01)
    blank = Answer("", None, measured, *ends, 5, Verdict.NOT_MEASURED, Evidence.MODEL, **more)
    return answered(blank, catalogue.paper("lmetric").claims[0])


def test_a_result_follows_its_sentence_when_that_is_corrected() -> None:
    corrected = Stated("ttft-vllm", "TTFT falls.", Kind.CHANGE, -0.45)
    anew = judged_anew(result(answer(-0.55)), [corrected], {}).claims[0]
    assert (anew.verdict, anew.paper, anew.text) == (R, -0.45, "TTFT falls.")


def test_an_effect_that_exceeds_the_papers_says_why_and_is_never_counted() -> None:
    easy = Stated("ttft-vllm", "TTFT falls.", Kind.CHANGE, -0.2, exceeds="The rival never looks at the queue.")
    found = judged_anew(result(answer(-0.55)), [easy], {})
    assert (found.claims[0].verdict, found.claims[0].exceeds) == (X, easy.exceeds)
    assert found.headline == "0 of 1" and found.tally == {"exceeded": 1}
    unsaid = judged_anew(found, [replace(easy, exceeds="")], {}).claims[0]
    assert "nobody has said why" in unsaid.exceeds
    assert judged_anew(found, [replace(easy, value=-0.5)], {}).claims[0].exceeds == ""  # and no longer exceeds it


def test_what_is_true_by_construction_is_never_counted() -> None:
    found = result(answer(-0.95, construction="we typed it in"))
    assert found.claims[0].verdict is Verdict.BY_CONSTRUCTION
    assert found.headline == "0 of 1"


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (stored(TTFT), answer(-0.55), "the rule: the old 32 %"),
        (stored(TTFT), answer(0.2), "measured anew"),
        (stored("", id="ttft-vllm", verdict="direction"), answer(-0.5), ""),
        (stored("", id="ttft-vllm"), answer(None, note="no trace"), "no trace"),
        (stored("", id="ttft-vllm"), answer(-0.9, construction="a formula"), "a formula"),
        (stored("something else"), answer(-0.9), "a new sentence"),
        (stored("", id="ttft-vllm", measured=-0.99), answer(-0.99), "the rule: 182 % of the effect, because nobody"),
        (stored("", id="ttft-vllm", measured=-0.9), replace(answer(-0.9), low=None, high=None,
         verdict=Verdict.DIRECTION), "the interval: –, not −60 … −50 %"),
    ],
)  # fmt: skip
def test_why_a_verdict_changed(before: dict[str, object], now: Answer, why: str) -> None:
    record = [{"key": "lmetric", "claims": [before]}]
    changed = next(changes(record, {"lmetric": result(now)}))
    assert changed.why.startswith(why)
    assert bool(changed.why) == bool(why)
