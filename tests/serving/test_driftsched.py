"""DriftSched learns how wrong its guesses were, and the order by guesses shortens the median, not the tail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import measures
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.serving import driftsched
from assay.serving.baselines.length_estimates import BiasedBase, Quantiles
from assay.serving.driftsched import BASE, DriftSched
from assay.serving.interface import Finished, Request
from assay.workloads.prompts import HEAVY, Prompts, generate

EVEN = {"acme": 1.0, "borealis": 1.0, "cascade": 1.0}


def done(output: int) -> Finished:
    return Finished(output, ttft=0.1, e2e=1.0, cached=0, instance=0)


def errors(prompts: Prompts, **options: Any) -> Any:
    """Every prompt in turn is estimated and then finishes; the absolute errors after the first 400."""
    order = DriftSched("fcfs", text=lambda request: prompts.texts[int(request.id)], **options)
    trace = prompts.requests
    for r in range(len(trace)):
        request = Request(r, 0.0, int(trace.prompt[r]), tier="standard", tenant=trace.tenants[trace.tenant[r]])
        order.key(request, 0.0)
        order.finished(request, done(int(trace.output[r])))
    return np.abs(np.array([estimate - actual for _, estimate, actual in list(order.log)[400:]]))


# ------------------------------------------------------------------------------------------- the estimate


@given(st.sampled_from(sorted(BASE)), st.floats(0.3, 2.8))
@settings(deadline=None)
def test_the_bias_converges_to_the_true_ratio_in_fifty_answers(category: str, ratio: float) -> None:
    lengths = BiasedBase(BASE)
    for _ in range(50):
        lengths.learn(category, ratio * BASE[category])
    assert lengths.bias[category] == pytest.approx(ratio, rel=0.1)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
@settings(deadline=None)
def test_the_bias_stays_in_its_bounds(outputs: list[int]) -> None:
    lengths = BiasedBase(BASE)
    for output in outputs:
        lengths.learn("summary", output)
        assert 0.25 <= lengths.bias["summary"] <= 3.0


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.5, -1.0, -0.3), (1.8, -1.0, -0.3), (1.0, -0.1, 0.1)])
def test_feedback_helps_where_the_base_is_wrong_and_only_there(ratio: float, least: float, most: float) -> None:
    prompts = generate(1200, 0, ratio=ratio, limits={}, spread=0.2, manner=EVEN, labelled=True)
    change = errors(prompts).mean() / errors(prompts, feedback=False).mean() - 1
    assert least <= change <= most


def test_counting_words_is_what_looks_like_drift() -> None:
    rows, exact = (
        driftsched.compare_at(counting, "continuous", "labelled", learning=300, flood=200, floods=1, seed=0)["sjf"]
        for counting in ("words", "tokens")
    )
    for kind in BASE:
        assert exact[f"bias_{kind}"] == pytest.approx(1.0, abs=0.1)
        assert rows[f"bias_{kind}"] < 0.92
    assert rows["bias_technical"] < 0.7


def test_quantiles_by_tenant_beat_one_bias_for_all() -> None:
    prompts = generate(1500, 0, limits={}, spread=0.2, labelled=True)  # tenants differ in manner
    assert errors(prompts, predictor=Quantiles()).mean() < errors(prompts).mean()


def test_estimates_do_not_know_the_answer() -> None:
    short, long = (generate(50, 0, ratio=ratio, limits={}, labelled=True) for ratio in (0.3, 3.0))
    assert short.texts == long.texts and short.requests.output.sum() < long.requests.output.sum()
    for r, text in enumerate(short.texts):
        request = Request(r, 0.0, 20, tier="premium", text=text)
        assert DriftSched().estimate(request) == DriftSched().estimate(request)
        assert DriftSched().key(request, 0.0) == int(BASE[DriftSched().category(request)] * 1.2 * _longer(text))


def _longer(text: str) -> float:
    from assay.workloads.prompts import tokens

    return min(1.5, 1.0 + tokens(text) / 1000)


def test_prompts_that_name_their_kind_are_told_apart() -> None:
    prompts = generate(400, 1, labelled=True)
    order = DriftSched()
    kinds = prompts.requests.category
    assert kinds is not None
    found = [order.category(Request(r, 0.0, 1, text=text)) for r, text in enumerate(prompts.texts)]
    truth = [prompts.requests.categories[kind] for kind in kinds]
    assert np.mean([a == b for a, b in zip(found, truth, strict=True)]) > 0.97


def test_a_policy_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="no policy 'lifo'"):
        DriftSched("lifo")


# ------------------------------------------------------------------------------------------- in service


@pytest.fixture(scope="module")
def table() -> Any:
    """The quick study of two seeds, with one flood where it has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driftsched, "FLOODS", 1)
        return driftsched.study(Lab("driftsched", seeds=(3, 1000)))


def value(table: Any, policy: str, column: str, **where: Any) -> float:
    return float(measures.rows(table, driftsched.PRINTED | {"policy": policy} | where)[column].mean())


def test_the_papers_claims_are_judged_under_continuous_batching_on_prompts_that_seldom_name_their_kind(
    table: Any,
) -> None:
    natural = measures.rows(table, {"engine": "continuous", "prompts": "natural", "counting": "tokens"})
    for claim in driftsched.claims[:4]:
        assert claim.measure(natural) == claim.measure(table), claim.id
    assert natural["told_ratio"].max() < 0.1
    assert value(table, "sjf", "told_ratio") > 0.8
    assert value(table, "sjf", "overtaking_ratio", **driftsched.NATURAL) > 0.5
    assert value(table, "fcfs", "overtaking_ratio", **driftsched.NATURAL) == 0.0


def test_keywords_are_worth_little_where_people_seldom_write_them(table: Any) -> None:
    """Most of the gain on labelled prompts is the label's; knowing the lengths would still be worth it."""
    guessed, known = (
        -driftsched.shortest("e2e_p50", driftsched.NATURAL, order)(table).value
        for order in ("sjf", "sjf, true lengths")
    )
    labelled = -driftsched.shortest("e2e_p50", driftsched.LABELLED)(table).value
    assert guessed < 0.5 * labelled
    assert known > 0.5


def test_prompts_of_a_file_are_served_where_it_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"instruction": f"Why {n}?", "output": "so " * (n + 1)} for n in range(30)]
    (tmp_path / driftsched.PEOPLE).write_text(json.dumps(rows))
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))
    served = driftsched.compare_at("tokens", "continuous", "people's", learning=40, flood=40, floods=2, seed=7)
    assert served["sjf"]["told_ratio"] == 0.0 and served["sjf"]["report_p99"] is None
    assert served["sjf"]["e2e_p50"] > 0.0


def test_the_shortest_first_lowers_the_median_under_overload(table: Any) -> None:
    for where in (driftsched.PRINTED, driftsched.LABELLED):
        fifo, sjf = (value(table, policy, "e2e_p50", **where) for policy in ("fcfs", "sjf"))
        assert sjf < 0.9 * fifo


def test_the_starvation_of_long_jobs_is_reported(table: Any) -> None:
    """Where answers leave one by one, reports pay for it: they come last, whenever they came."""
    fifo, sjf = (value(table, policy, "report_p99", **driftsched.LABELLED) for policy in ("fcfs", "sjf"))
    assert sjf > fifo


def test_true_lengths_bound_what_estimates_can_give(table: Any) -> None:
    assert value(table, "sjf, true lengths", "e2e_mean") <= value(table, "sjf", "e2e_mean")


def test_tiers_come_first_where_they_should(table: Any) -> None:
    fifo = value(table, "fcfs", "premium_p50")
    assert value(table, "priority", "premium_p50") < value(table, "weighted", "premium_p50") < fifo


def test_with_tokens_feedback_has_little_left_to_mend(table: Any) -> None:
    for column in ("mae", "rmse"):
        change = {
            counting: value(table, "sjf", column, counting=counting)
            / value(table, "sjf, no feedback", column, counting=counting)
            for counting in ("words", "tokens")
        }
        assert change["words"] < 0.7
        assert change["tokens"] > 0.85


def test_the_study_answers_every_claim(table: Any) -> None:
    for claim in driftsched.claims:
        if claim.id != "median-people":  # it takes a file
            assert np.isfinite(claim.measure(table).value), claim.id
    assert driftsched.plot(table).to_dict()


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_all_five_orders_serve_everybody(seed: int) -> None:
    prompts = generate(60, seed, mix=HEAVY, gaps=(0.0, 0.01))
    for policy in driftsched.POLICIES:
        row = driftsched._row(DriftSched(policy), prompts, [prompts], "micro-batch")
        assert np.isfinite(row["e2e_mean"])
