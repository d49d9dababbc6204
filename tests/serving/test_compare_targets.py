"""Targets by tier, and the requests that can never meet theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine.alone import never, times_alone
from assay.serving.engine.capacity import find
from assay.serving.engine.contest import add_leads, why
from assay.serving.engine.simulator import simulate
from assay.serving.engine.targets import read_targets
from assay.serving.fleet import FleetSpec, Instance, parse, uniform
from assay.serving.interface import SLO, Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests
from tests.serving.command import answer, one_line, run
from tests.serving.conftest import Case, cases

FLEET = ("--fleet", "2xh200:qwen3-8b")
COST = StepCost(0.005 + 1e-5 * np.arange(9000), decode_kv=1e-8, kv_tokens=200_000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Forty short interactive requests, ten long jobs, and two of which nobody says what they are."""
    rows = ["time;prompt_len;output_len;service_tier"]
    rows += [f"{0.5 * k};{100 + k};20;interactive" for k in range(40)]
    rows += [f"{2.0 * k + 0.1};{6000 + 500 * k};300;nightly" for k in range(10)]
    rows += [f"{3.0 + k};200;10;" for k in range(2)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows))
    return path


# ------------------------------------------------------------------------------------------ targets by tier


def test_each_tier_is_held_to_its_own_targets(log: Path) -> None:
    asked = ("--trace", log, *FLEET, "--policies", "round-robin", "--slo", "interactive:ttft=0.5,tpot=0.1")
    strict = answer(*asked, "--slo", "nightly:e2e=0.01")
    rows = {row["tier"]: row for row in strict["tiers"]}
    assert {tier: row["requests"] for tier, row in rows.items()} == {"interactive": 40, "nightly": 10, "no tier": 2}
    assert [rows[tier]["attainment"] for tier in ("interactive", "nightly", "no tier")] == [1.0, 0.0, 1.0]
    assert strict["table"][0]["attainment"] == pytest.approx(42 / 52)
    assert rows["nightly"]["targets"] == "e2e=0.01"
    lenient = answer(*asked, "--slo", "e2e=0.01")  # for all the others, with a tier and without one
    assert {row["tier"]: row["attainment"] for row in lenient["tiers"]} == {
        "interactive": 1.0, "nightly": 0.0, "no tier": 0.0,
    }  # fmt: skip
    printed = run(*asked, "--slo", "nightly:e2e=0.01")
    assert "tier         requests  targets" in printed


def test_tiers_are_told_apart_where_one_target_is_for_all(log: Path) -> None:
    found = answer("--trace", log, *FLEET, "--policies", "round-robin", "--slo", "ttft=0.05")
    short, long = (row for row in found["tiers"] if row["tier"] in ("interactive", "nightly"))
    assert short["attainment"] > long["attainment"]
    assert {row["targets"] for row in found["tiers"]} == {"ttft=0.05"}


@pytest.mark.parametrize(
    ("slo", "says"),
    [
        ("batch:e2e=60", "it has interactive, nightly"),
        ("nightly:e2e", "ttft=1,tpot=0.05"),
        ("nightly:e2e=-1", "ttft=1,tpot=0.05"),
        ("nightly:e2e=inf", "ttft=1,tpot=0.05"),
        ("nightly:e2e=1,e2e=2", "twice"),
    ],
)
def test_a_tier_or_a_target_that_is_not_there_gets_a_line_with_the_cure(log: Path, slo: str, says: str) -> None:
    assert says in one_line(run("--trace", log, *FLEET, "--slo", slo, code=2))


def test_a_trace_without_tiers_is_told_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("time,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n")
    said = one_line(run("--trace", path, *FLEET, "--slo", "chat:ttft=1", code=2))
    assert "names no tiers" in said and "--slo ttft=1,tpot=0.05" in said
    assert "twice" not in said
    again = one_line(run("--trace", path, *FLEET, "--slo", "ttft=1", "--slo", "ttft=2", code=2))
    assert "has targets already" in again


def test_a_tier_may_have_a_colon_in_its_name() -> None:
    assert read_targets(["team:a:ttft=1", "e2e=9"]) == {"team:a": SLO(ttft=1.0), "": SLO(e2e=9.0)}
    assert read_targets(["ttft=1"]) == SLO(ttft=1.0)
    assert read_targets([]) is None


def test_a_request_without_a_tier_or_a_model_is_not_taken_for_the_last_one() -> None:
    codes = np.array([0, -1, 1], np.int32)
    labels = {"tier": codes, "tiers": ("a", "b"), "model": codes, "models": ("m", "n")}
    trace = Requests.of([0.0, 1.0, 2.0], [10, 10, 10], [2, 2, 2], **labels)
    seen: list[tuple[str, str, list[bool]]] = []

    class Notes:
        def route(self, request: Request, fleet: Fleet) -> int:
            assert fleet.eligible is not None
            seen.append((request.tier, request.model, fleet.eligible.tolist()))
            return int(np.argmax(fleet.eligible))

    outcome = simulate(trace, FleetSpec((Instance(COST, model="m"), Instance(COST, model="n"))), Notes())
    assert seen == [("a", "m", [True, False]), ("", "", [True, True]), ("b", "n", [False, True])]
    assert outcome.met({"a": SLO(), "b": SLO(ttft=1e-9)}).tolist() == [True, True, False]
    assert outcome.met({"b": SLO(), "": SLO(ttft=1e-9)}).tolist() == [False, False, True]


# ------------------------------------------------------------------------------------------ what never can be met


@given(cases(most=15))
def test_nobody_is_served_faster_than_alone(case: Case) -> None:
    outcome, _, _ = case.run("macro")
    alone = times_alone(case.requests, case.fleet, case.prefix_cache)
    for name in ("ttft", "e2e"):
        took, least = getattr(outcome, name), getattr(alone, name)[outcome.served]
        assert (took >= least * (1 - 1e-9) - 1e-9).all(), name
    assert np.isinf(alone.ttft[~outcome.served]).all()


def test_alone_is_what_one_request_on_an_idle_instance_takes() -> None:
    trace = Requests.of(np.zeros(4), [50, 900, 20_000, 900], [1, 40, 3, 40])
    fleet = FleetSpec((Instance(COST), Instance(COST.scaled(0.5), max_tokens=512)))
    alone = times_alone(trace, fleet)
    for r in range(len(trace)):
        each = [simulate(trace.part(r, r + 1), FleetSpec((one,)), RoundRobin()) for one in fleet.instances]
        assert alone.ttft[r] == pytest.approx(min(run.ttft[0] for run in each))
        assert alone.tpot[r] == pytest.approx(min(run.tpot[0] for run in each))
        assert alone.e2e[r] == pytest.approx(min(run.e2e[0] for run in each))


def test_a_prompt_that_came_before_may_meet_what_it_could_not_the_first_time() -> None:
    from assay.workloads.prefixes import chains

    tree = chains(list(range(100)) * 2, [0, 100, 200], 16, [1600, 1600])
    trace = Requests.of([0.0, 1.0], [1600, 1600], [2, 2], prefixes=tree)
    cold, warm = (times_alone(trace, uniform(1, COST), cached).ttft for cached in (False, True))
    assert warm[0] == cold[0] and warm[1] < 0.5 * cold[1]
    lost, _ = never(trace, times_alone(trace, uniform(1, COST)), SLO(ttft=float(cold[0]) * 0.9))
    assert lost.tolist() == [True, False]


def test_capacity_names_the_prompts_that_can_never_meet_the_target(log: Path) -> None:
    asked = ("--trace", log, *FLEET, "--policies", "round-robin,least-requests", "--find", "capacity")
    found = answer(*asked, "--slo", "ttft=0.2")
    (row,) = found["never"]
    jobs = np.array([6000 + 500 * k for k in range(10)])
    alone = times_alone(Requests.of(np.zeros(10), jobs, [300] * 10), parse("2xh200:qwen3-8b")).ttft
    assert 0 < (alone > 0.2).sum() < 10
    assert row == {
        "target": "ttft=0.2", "requests": int((alone > 0.2).sum()), "smallest_prompt": int(jobs[alone > 0.2][0]),
        "its_output": 300,
        "best": pytest.approx(alone[alone > 0.2][0]),
    }  # fmt: skip
    assert found["capacity"]["never"] == row["requests"]
    assert found["capacity"]["counted"] == 52 - row["requests"]
    assert all(each["capacity"] > 0 and each["attainment_counted"] >= 0.95 for each in found["table"])
    assert f"{row['requests']} of 52 requests can never meet" in found["why"]
    assert f"{row['smallest_prompt']:,} tokens" in found["why"]


def test_where_nobody_can_meet_the_targets_the_capacity_is_said_to_be_zero(log: Path) -> None:
    found = answer("--trace", log, *FLEET, "--policies", "round-robin", "--find", "capacity", "--slo", "tpot=0.0001")
    assert found["capacity"]["counted"] == 0
    assert [row["capacity"] for row in found["table"]] == [0.0]
    assert found["table"][0]["usd_per_mtok"] is None
    assert "so the capacity is zero" in found["why"] and "52 of 52" in found["why"]


def test_by_tier_each_targets_misses_are_named(log: Path) -> None:
    found = answer("--trace", log, *FLEET, "--policies", "round-robin", "--find", "capacity",
                   "--slo", "nightly:e2e=0.01", "--slo", "interactive:ttft=5")  # fmt: skip
    assert [(row["tier"], row["target"], row["requests"]) for row in found["never"]] == [("nightly", "e2e=0.01", 10)]
    assert found["table"][0]["capacity"] > 0


def test_what_fits_no_instance_is_among_those_that_never_can() -> None:
    trace = Requests.of([0.0, 1.0, 2.0], [100, 900_000, 100], [2, 2, 2])
    lost, rows = never(trace, times_alone(trace, uniform(2, COST)), SLO(ttft=5.0))
    assert lost.tolist() == [False, True, False]
    assert rows[0].smallest_prompt == 900_000 and np.isinf(rows[0].best)


def test_prefill_and_decode_apart_are_asked_together() -> None:
    pair = FleetSpec((Instance(COST, role="prefill"), Instance(COST.scaled(2.0), role="decode")), latency=0.5)
    trace = Requests.of([0.0], [1000], [11])
    alone, one = times_alone(trace, pair), simulate(trace, pair, RoundRobin())
    assert (alone.ttft[0], alone.tpot[0]) == (one.ttft[0], one.tpot[0])


def test_a_capacity_that_no_rate_breaks_is_a_lower_bound_and_no_time_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Requests.of([0.0, 1e4, 2e4], [100] * 3, [2] * 3)
    slow = StepCost(0.1 + 1e-5 * np.arange(9000), kv_tokens=9_000)
    found = find(trace, uniform(1, slow), RoundRobin, SLO(ttft=60.0), start=50.0)
    assert found.rate < found.above < 1.03 * found.rate and found.outcome.flow.sustained
    monkeypatch.setattr("assay.serving.engine.capacity.MOST", 2000)  # no more than a hundred requests a second
    assert find(trace, uniform(2, COST), RoundRobin, SLO(ttft=60.0), start=80.0).above == float("inf")
    from assay.record.errors import BadInput

    with pytest.raises(BadInput, match="lasts some time"):
        find(Requests.of([0.0, 0.0], [5, 5], [2, 2]), uniform(2, COST), RoundRobin, SLO(ttft=1.0))


def test_capacities_as_close_as_the_bisection_are_a_tie(log: Path) -> None:
    asked = ("--trace", log, "--fleet", "1xh200:qwen3-8b", "--find", "capacity", "--slo", "interactive:ttft=1")
    found = answer(*asked, "--policies", "round-robin,least-requests")  # one instance leaves no choice
    assert "round-robin and least-requests tie at" in found["why"]
    assert "the bisections leave" in found["why"]


def test_a_higher_capacity_is_no_lead_where_attainment_does_not_tell_the_runs_apart() -> None:
    trace, targets = Requests.of(np.arange(60.0), [900] * 60, [20] * 60), SLO(ttft=0.013)
    slow, fast = (simulate(trace, uniform(1, cost), RoundRobin()) for cost in (COST, COST.scaled(0.9)))
    assert slow.attainment(targets) < fast.attainment(targets)
    for other, sure in ((fast, False), (slow, True)):
        table: list[dict[str, Any]] = [
            {"policy": "a", "capacity": 10.0, "capacity_above": 10.1},
            {"policy": "b", "capacity": 9.0, "capacity_above": 9.1},
        ]
        add_leads(table, {"a": fast, "b": other}, targets, find=True)
        assert table[1]["led_by"] == pytest.approx(0.1)
        assert (table[1]["led_by_low"] > 0) is sure


def test_a_tie_names_the_lead_over_those_who_tie_not_over_one_who_is_surely_behind() -> None:
    rest = {"cached_ratio": 0.0, "queueing_mean": 0.0, "tpot_mean": 0.01}
    rows = [
        rest | {"policy": name, "ttft_mean": ttft, "led_by": by, "led_by_low": low, "led_by_high": high}
        for name, ttft, by, low, high in (
            ("first", 1.0, None, None, None), ("steady", 1.1, 0.09, 0.08, 0.1), ("wild", 1.2, 0.17, -0.5, 0.5),
        )
    ]  # fmt: skip
    said = why(rows, None, find=False)
    assert said.startswith("first and wild tie at 1 s mean time to first token: first is 17 % ahead of wild")
    assert "hardly matters" not in said  # for who takes the steady one it does
