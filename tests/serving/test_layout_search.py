"""The cheapest layout is the cheapest: against all of them simulated; and what bounds forbid is really impossible."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from assay.cli.main import main
from assay.record.errors import BadInput
from assay.serving.baselines.routers import LeastRequests
from assay.serving.engine import layout_report
from assay.serving.engine.layout_bounds import Limits, per_request
from assay.serving.engine.layout_search import Search, cuts
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse
from assay.serving.interface import SLO
from assay.sim.random import stream
from assay.workloads.chat import chat
from assay.workloads.requests import Requests
from tests.oracles import layouts as oracle


def made(seed: int, n: int, rate: float, prompt: int, output: int) -> Requests:
    rng = stream(seed, "layouts")
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    lengths = [np.maximum(rng.lognormal(np.log(mean), 0.6, n), 1).astype(int) for mean in (prompt, output)]
    return Requests.of(arrival.tolist(), lengths[0].tolist(), lengths[1].tolist())


@st.composite
def searches(draw: st.DrawFn) -> Search:
    seed, loop = draw(st.integers(0, 99)), draw(st.sampled_from(["open", "closed"]))
    rate = draw(st.sampled_from([2.0, 10.0, 40.0]))
    if loop == "open":
        requests = made(seed, 80, rate, draw(st.sampled_from([200, 3000])), draw(st.sampled_from([20, 150])))
    else:
        requests = chat(80, rate=rate, seed=seed)
    slo = SLO(ttft=draw(st.sampled_from([0.15, 0.5, 3.0])), tpot=draw(st.sampled_from([0.015, 0.025, 0.06])))
    layout, gpus = draw(st.sampled_from([("h200:qwen3-32b", 4), ("h100:qwen3-30b-a3b", 3), ("a100:llama-3-8b", 3)]))
    return Search(
        requests, slo, gpus, layout, "least-requests", attainment=draw(st.sampled_from([0.8, 0.95])),
        options={"loop": loop},
    )  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(searches())
def test_the_cheapest_is_that_of_all_layouts_simulated_and_what_a_bound_forbids_no_run_does(search: Search) -> None:
    every = oracle.attainments(search)
    for pools, (_, share) in every.items():
        for pool in pools:
            one = replace(parse(f"1x{pool.kind}").instances[0], role=pool.role)
            least = Limits.of(one, search.requests, search.slo, search.block).replicas(search.attainment)
            if pool.size < least:
                event("forbidden")
                assert share < search.attainment, (pools, least)
    cheapest = min((gpus for gpus, share in every.values() if share >= search.attainment), default=None)
    found = search.search()
    assert found.complete
    for tried in (*found.meets, *found.misses):  # what it says of a layout is what a run says
        assert every[tried.pools] == (tried.gpus, tried.attainment)
    if oracle.monotone(every, search.attainment):
        event("monotone")
        assert (found.meets[0].gpus if found.meets else None) == cheapest
    elif found.meets:
        assert cheapest is not None
        assert found.meets[0].gpus >= cheapest


def test_bounds_do_forbid() -> None:
    trace = made(1, 200, 40.0, 3000, 150)
    one = parse("1xa100:llama-3-8b").instances[0]
    assert Limits.of(one, trace, SLO(ttft=2.0, tpot=0.05), 16).replicas(0.95) > 3  # the work of more than three
    hopeless = Limits.of(one, trace, SLO(tpot=0.001), 16)
    assert hopeless.replicas(0.95) > 1000
    assert "miss the targets even on an idle one" in hopeless.reason(0.95)
    small = Limits.of(replace(one, kv_tokens=1600), trace, SLO(), 16)
    assert "do not fit into its memory" in small.reason(0.95)
    assert Limits.of(one, trace, SLO(), 16).replicas(0.95) == 1  # no deadline, no hurry


def test_targets_may_differ_by_tier() -> None:
    trace = replace(made(1, 4, 1.0, 100, 10), tier=np.array([0, 1, 0, 1], np.int32), tiers=("chat", "batch"))
    ttft, tpot, _ = per_request({"chat": SLO(ttft=0.5), "": SLO(ttft=9.0, tpot=0.1)}, trace)
    assert ttft.tolist() == [0.5, 9.0, 0.5, 9.0]
    assert tpot.tolist() == [np.inf, 0.1, np.inf, 0.1]


def test_cuts_are_those_that_hold_the_model() -> None:
    fit, refused = cuts("h100:llama-3-70b", 8)
    assert set(refused) == {"h100:llama-3-70b"}
    assert {one.gpus for one in fit.values()} == {2, 4, 8}
    assert any(":ep4" in name for name in cuts("h200:qwen3-30b-a3b", 4)[0])
    assert not any(":ep" in name for name in fit)  # it has no experts
    with pytest.raises(BadInput, match="fits no cut of 4 GPUs"):
        Search(made(1, 9, 1.0, 100, 10), SLO(ttft=1.0), 4, "h100:deepseek-v3", "least-requests").search()


def test_a_search_that_may_not_go_on_says_so() -> None:
    search = Search(made(1, 60, 30.0, 800, 100), SLO(0.4, 0.02), 4, "h200:qwen3-32b", "least-requests", most=2)
    found = search.search()
    assert not found.complete
    assert found.simulated == 2
    assert "stopped after 2 simulations" in layout_report.answer(search, found)["why"]


def test_the_row_is_what_the_winner_does_when_it_runs() -> None:
    search = Search(made(3, 120, 12.0, 800, 100), SLO(0.6, 0.03), 4, "h200:qwen3-32b", "least-requests")
    row = layout_report.answer(search, search.search())["table"][0]
    again = simulate(search.requests, parse(row["fleet"]), LeastRequests())
    assert row["attainment"] == again.attainment(search.slo) >= 0.95
    assert row["goodput_per_gpu"] == pytest.approx(again.goodput(search.slo) / row["gpus"])
    flow = again.flow
    assert row["usd_per_mtok"] == pytest.approx(row["usd_per_hour"] * flow.seconds / 3600 / flow.tokens * 1e6)


def test_where_nothing_serves_in_time_the_nearest_is_told() -> None:
    crowd = Search(made(3, 200, 100.0, 3000, 100), SLO(0.3, 0.03), 2, "h200:qwen3-32b", "least-requests")
    found = crowd.search()
    assert not found.meets
    said = layout_report.answer(crowd, found)
    assert "No layout of 2 GPUs" in said["why"]
    if found.nearest is not None:
        assert said["table"][0]["attainment"] == max(tried.attainment for tried in found.misses) < 0.95
    hopeless = Search(made(3, 50, 1.0, 3000, 100), SLO(tpot=0.0005), 2, "h200:qwen3-32b", "least-requests")
    found = hopeless.search()
    assert found.simulated == 0  # the bounds suffice
    assert "even on an idle one" in layout_report.answer(hopeless, found)["why"]


# ------------------------------------------------------------------------------------------ the command


def assay(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", ["assay", "compare", "serving", *arguments]), contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended,
    ):  # fmt: skip
        main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


CALL = ("--trace", "chat", "--limit", "150", "--find", "layout", "--rate", "3", "--slo", "ttft=0.5,tpot=0.03")


def test_the_command_names_the_cheapest_and_its_trust() -> None:
    code, out, _ = assay(*CALL, "--gpus", "4", "--model", "qwen3-32b", "--gpu", "h200", "--json")
    assert code == 0
    answer = json.loads(out)
    first = answer["table"][0]
    assert first["gpus"] == min(row["gpus"] for row in answer["table"])
    assert first["fleet"] in answer["why"]
    assert "measured" in answer["trust"]
    assert answer["search"]["gpus"] == 4
    code, out, _ = assay(*CALL, "--fleet", "2xh200:qwen3-32b:tp2", "--json")  # what is not given is the fleet's
    assert json.loads(out)["table"] == answer["table"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--find", "layout"), "--find layout needs --slo"),
        ((*CALL, "--plot", "x.svg"), "draws nothing"),
        ((*CALL, "--model", "qwen3-32b:tp2"), "give it uncut"),
        (("--gpus", "4"), "add --find layout"),
        ((*CALL, "--fleet", "1xh200:qwen3-32b+1xh100:qwen3-32b"), "give --model and --gpu"),
        ((*CALL, "--gpus", "2", "--model", "deepseek-v3", "--gpu", "l4"), "fits no cut of 2 GPUs"),
    ],
)
def test_wrong_questions_get_one_line_with_the_cure(arguments: tuple[str, ...], says: str) -> None:
    code, _, err = assay(*arguments)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
