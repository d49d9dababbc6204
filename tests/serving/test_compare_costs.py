"""Dollars and joules for a million tokens, and what is said where they are not known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine.bill import joules_of, per_million, priced
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse, uniform
from assay.sim import cost_file, energy_scale
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests
from tests.serving.command import answer, one_line, run

TRACE = Requests.of(np.arange(20.0), [200] * 20, [30] * 20)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    rows = (f"{a},{p},{o}" for a, p, o in zip(TRACE.arrival, TRACE.prompt, TRACE.output, strict=True))
    path.write_text("\n".join(["time,prompt_tokens,output_tokens", *rows]))
    return path


def test_a_million_tokens_cost_what_the_fleet_costs_while_it_makes_them() -> None:
    fleet = priced(parse("2xh200:qwen3-8b:tp2+1xl4:qwen3-8b"), "h200=3,l4=0.5")
    outcome = simulate(TRACE, fleet, RoundRobin())
    spent = per_million(outcome)
    flow = outcome.flow
    assert flow.stop - flow.start == pytest.approx(0.8 * (TRACE.arrival[-1] - TRACE.arrival[0]))
    dollars = (2 * 2 * 3 + 0.5) * flow.seconds / 3600
    assert spent["usd_per_mtok"] == pytest.approx(dollars / flow.tokens * 1e6)
    assert spent["usd_per_mtok_all"] == pytest.approx(dollars / (flow.tokens + flow.prompts) * 1e6)
    assert 0.5 * 20 * 30 < flow.tokens < 20 * 30
    joules = joules_of(outcome, flow.seconds, flow.share)
    assert joules is not None
    assert spent["joules_per_mtok"] == pytest.approx(joules / flow.tokens * 1e6)
    assert spent["joules_per_request"] == pytest.approx(joules / (20 * flow.share))


def test_joules_lie_between_idling_and_the_boards_limit() -> None:
    fleet = parse("2xh200:qwen3-8b:tp2")
    outcome = simulate(TRACE, fleet, RoundRobin())
    joules, idle = joules_of(outcome), 4 * energy_scale.measured().idle_watts * outcome.makespan
    assert joules is not None
    busy = 2 * float(outcome.instances["busy"].sum())
    assert idle < joules <= idle + (700 - energy_scale.measured().idle_watts) * busy
    assert joules == pytest.approx(idle + energy_scale.measured().factor * outcome.instances["joules"].sum())


def test_a_price_of_ones_own_takes_the_place_of_the_list_price(log: Path) -> None:
    asked = ("--trace", log, "--fleet", "2xH200:qwen3-8b", "--policies", "round-robin")
    listed, own = answer(*asked), answer(*asked, "--price", "7.6")
    assert own["table"][0]["usd_per_mtok"] == pytest.approx(2 * listed["table"][0]["usd_per_mtok"])
    assert "(assumed)" in listed["costs"]["dollars"] and "(--price)" in own["costs"]["dollars"]
    assert own["table"][0]["joules_per_mtok"] == listed["table"][0]["joules_per_mtok"]
    assert energy_scale.sentence() in own["costs"]["joules"]
    other = answer("--trace", log, "--fleet", "2xh100:qwen3-8b", "--policies", "round-robin")
    assert "on h100 nothing was measured" in other["costs"]["joules"]


@pytest.mark.parametrize(
    ("price", "says"),
    [("free", "h200=2.5"), ("-1", "h200=2.5"), ("nan", "h200=2.5"), ("h100=2", "the fleet has no h100; it has h200")],
)
def test_a_wrong_price_gets_a_line_with_the_cure(log: Path, price: str, says: str) -> None:
    assert says in one_line(run("--trace", log, "--fleet", "2xh200:qwen3-8b", "--price", price, code=2))


def test_what_is_not_known_is_not_made_up(log: Path, tmp_path: Path) -> None:
    cost = StepCost(0.005 + 1e-5 * np.arange(9000), kv_tokens=100_000)
    assert set(per_million(simulate(TRACE, uniform(2, cost), RoundRobin())).values()) == {None}
    file = tmp_path / "mine.toml"
    file.write_text(cost_file.text(cost))
    asked = ("--trace", log, "--fleet", f"2xfitted:{file}", "--policies", "round-robin")
    found = answer(*asked)
    assert found["table"][0]["usd_per_mtok"] is None and found["table"][0]["joules_per_mtok"] is None
    assert "give --price" in found["costs"]["dollars"] and "not known" in found["costs"]["joules"]
    paid = answer(*asked, "--price", "2")
    assert paid["table"][0]["usd_per_mtok"] > 0


def test_a_fleet_file_may_name_its_own_price(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[instance]]\nlayout = "h200:qwen3-8b"\nusd_per_hour = 10.0\n')
    found = answer("--trace", log, "--fleet", path, "--policies", "round-robin")
    assert "10 $/h a GPU (the fleet's file)" in found["costs"]["dollars"]
