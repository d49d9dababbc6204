"""`assay compare serving`: one command on a trace and a fleet, and what it says to wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.serving.baselines.routers import RoundRobin
from assay.serving.compare import compare, over_traces, who_wins_apart
from assay.serving.engine import timeline
from assay.serving.engine.own_trace import at_rate
from assay.serving.engine.plots import comparison
from assay.serving.engine.simulator import simulate
from assay.serving.engine.targets import read_slo
from assay.serving.fleet import parse, uniform
from assay.serving.interface import SLO
from assay.sim import trust
from assay.sim.llm_cost import StepCost
from assay.workloads.chat import chat
from assay.workloads.requests import Requests
from tests.serving.command import one_line, run

COST = StepCost(0.005 + 1e-5 * np.arange(9000), decode_kv=1e-8, kv_tokens=200_000)
FLEET = "4xh200:qwen3-8b"

MINE = """
class Mine:
    key = "mine"
    def route(self, request, fleet):
        return fleet.argmin(fleet.prefill_tokens + fleet.new_prefill_tokens(request))

class Raises:
    def route(self, request, fleet):
        return 0 if request.id < 3 else 1 // 0

class Far:
    def route(self, request, fleet):
        return 99

class Slow:
    def route(self, request, fleet):
        end = __import__("time").perf_counter() + 0.1
        while __import__("time").perf_counter() < end:
            pass
        return 0
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    made = chat(300, rate=20.0, seed=1)
    with path.open("w") as out:
        for r in range(len(made)):
            row = {"timestamp": round(float(made.arrival[r]) * 1e3), "input_length": int(made.prompt[r])}
            blocks = -(-row["input_length"] // 512)
            out.write(
                json.dumps(
                    row
                    | {"output_length": int(made.output[r]), "hash_ids": [k + 1000 * (r % 9) for k in range(blocks)]}
                )
                + "\n"
            )
    return path


def test_the_answer_has_the_shape_the_readme_shows(trace: Path) -> None:
    answer = json.loads(
        run(
            "--trace",
            trace,
            "--fleet",
            FLEET,
            "--policies",
            "lmetric,round-robin",
            "--slo",
            "ttft=1,tpot=0.05",
            "--json",
        )
    )
    parts = ["trace", "fleet", "costs", "policies", "simulation", "table", "why", "units", "trust"]
    assert list(answer) == parts
    assert [row["policy"] for row in answer["table"]] == ["lmetric", "round-robin"]
    wanted = (
        "requests ttft_mean ttft_p50 ttft_p99 tpot_mean tpot_p99 e2e_mean cached_ratio goodput preemptions sim_seconds"
    ).split()
    assert all(name in row for row in answer["table"] for name in wanted)
    assert (answer["trace"]["read"], answer["trace"]["used"], answer["trace"]["refused"]) == (300, 300, 0)
    assert answer["why"].count(". ") <= 2 and answer["why"].startswith(("lmetric", "round-robin"))


def test_the_columns_that_matter_are_shown_and_all_of_them_with_wide(trace: Path) -> None:
    asked = ("--trace", trace, "--fleet", FLEET, "--policies", "lmetric,round-robin")
    assert "policy       ttft mean  ttft p99  tpot mean  e2e mean  cached ratio  usd per mtok" in run(*asked)
    assert "more columns: --wide" in run(*asked)
    assert "preemptions" in run(*asked, "--wide")
    with_targets = run(*asked, "--slo", "ttft=1,tpot=0.05")
    assert "policy       goodput  attainment  ttft p99  tpot p99  cached ratio  usd per mtok" in with_targets
    assert "policy       goodput  attainment  e2e p99  cached ratio" in run(*asked, "--slo", "e2e=20")


def test_units_stand_below_the_names_and_the_simulators_own_time_apart(trace: Path) -> None:
    asked = ("--trace", trace, "--fleet", FLEET, "--policies", "lmetric,round-robin")
    lines = run(*asked, "--wide").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("policy "))
    units = lines[head + 1].split()
    assert {"s", "req/s", "share", "tokens/s", "$/Mtok", "J/Mtok"} <= set(units)
    assert "sim seconds" not in lines[head]
    assert any(line.startswith("simulation: sim seconds") for line in lines)
    answer = json.loads(run(*asked, "--json"))
    latencies = [name for name in answer["table"][0] if name.startswith(("ttft", "tpot", "e2e", "itl", "queueing"))]
    assert {answer["units"][name] for name in latencies} == {"s"}
    assert answer["simulation"]["sim_seconds"] == pytest.approx(sum(row["sim_seconds"] for row in answer["table"]))


def test_the_printed_error_of_the_step_times_is_the_one_measured_on_an_h200(trace: Path) -> None:
    said = run("--trace", trace, "--fleet", "2xh200:qwen3-8b", "--policies", "lmetric")
    assert any(" ".join(trust.sentence(formula).split()) in " ".join(said.split()) for formula in trust.measured())


def test_a_calm_trace_is_a_tie_and_a_loaded_one_has_an_interval(trace: Path) -> None:
    asked = ("--trace", trace, "--fleet", FLEET, "--policies", "vllm-v1,round-robin,least-requests")
    calm = run(*asked, "--rate", "0.2", "--slo", "ttft=2")
    assert " tie at " in calm and "the choice hardly matters" in " ".join(calm.split())
    loaded = json.loads(run(*asked, "--rate", "x8", "--json"))
    others = [row for row in loaded["table"] if row["led_by"] is not None]
    assert all(row["led_by_low"] < row["led_by"] < row["led_by_high"] for row in others)
    assert "95 % interval" in loaded["why"]


def test_a_unit_in_which_another_wins_is_told_and_one_in_which_ours_may_win_is_none() -> None:
    """Round-robin gives a slow GPU as many requests as a fast one: there is no doubt who is first."""
    made = {"round-robin": "round-robin", "least-requests": "least-requests"}
    other, spec = chat(200, rate=20.0, seed=1), parse("2xh200:qwen3-8b+1xl4:qwen3-8b")

    def answer(first: str, second: str, low: float) -> dict[str, object]:
        rows = ((first, 1.0, None, None), (second, 1.1, 0.1, low))
        return {"table": [dict(zip(("policy", "ttft_mean", "led_by", "led_by_low"), row, strict=True)) for row in rows]}

    ours = answer("round-robin", "least-requests", -0.1)
    assert who_wins_apart(ours, other, spec, made, {}) == "least-requests wins, not round-robin"
    for low in (-0.1, 0.1):
        assert who_wins_apart(answer("least-requests", "round-robin", low), other, spec, made, {}) == ""


def test_who_wins_says_how_sure_that_is_and_a_tie_is_called_one(trace: Path) -> None:
    answer = json.loads(run("--trace", trace, "--fleet", FLEET, "--policies", "lmetric,round-robin", "--json"))
    winner, other = sorted(answer["table"], key=lambda row: row["ttft_mean"])
    assert winner["led_by"] is None
    assert other["led_by"] == pytest.approx(1 - winner["ttft_mean"] / other["ttft_mean"])
    assert other["led_by_low"] < other["led_by"] < other["led_by_high"]
    assert ("wins" if other["led_by_low"] > 0 else "tie") in answer["why"]
    twice = run("--trace", trace, "--fleet", FLEET, "--policies", "round-robin,least-requests", "--limit", 40)
    assert "95 % interval" in twice
    same = json.loads(
        run("--trace", trace, "--fleet", "1xh200:qwen3-8b", "--policies", "round-robin,lmetric", "--json")
    )
    assert same["why"].startswith("round-robin and lmetric tie at")  # one instance leaves no choice


def test_several_traces_tell_how_far_a_lead_reaches() -> None:
    traces = [chat(200, rate=20.0, seed=seed) for seed in range(4)]
    table, runs = over_traces(traces, parse(FLEET), ["round-robin", "lmetric"])
    winner, other = table
    assert set(runs) == {"round-robin", "lmetric"}
    assert winner["ttft_mean"] < other["ttft_mean"]
    assert winner["led_by"] is None
    assert other["led_by"] == pytest.approx(1 - winner["ttft_mean"] / other["ttft_mean"])
    assert other["led_by_low"] <= other["led_by"] <= other["led_by_high"]


def test_signals_can_be_old_and_admission_the_older_rule(trace: Path) -> None:
    asked = ["--trace", trace, "--fleet", FLEET, "--policies", "least-requests,round-robin", "--rate", "x6", "--json"]
    fresh, old = (json.loads(run(*asked, *more)) for more in ([], ["--age", "2", "--admission", "chunk"]))
    assert (fresh["fleet"]["signals"], fresh["fleet"]["admission"]) == ("as they are", "prompt")
    assert (old["fleet"]["signals"], old["fleet"]["admission"]) == ("read every 2 s", "chunk")
    (router, blind), (router_then, blind_then) = fresh["table"], old["table"]
    assert router["ttft_mean"] < router_then["ttft_mean"]  # it herds
    assert blind["ttft_mean"] == blind_then["ttft_mean"]


def test_pictures_and_timeline_are_written(trace: Path, tmp_path: Path) -> None:
    run(
        "--trace",
        trace,
        "--fleet",
        FLEET,
        "--policies",
        "lmetric",
        "--plot",
        tmp_path / "p.svg",
        "--timeline",
        tmp_path / "t.json",
    )
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_a_policy_of_ones_own_ranks_beside_the_others(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    answer = json.loads(
        run(
            "--trace",
            trace,
            "--fleet",
            FLEET,
            "--policies",
            "lmetric",
            "--policy",
            f"{tmp_path}/mine.py:Mine",
            "--json",
        )
    )
    assert [row["policy"] for row in answer["table"]] == ["lmetric", "Mine"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("Raises", "request 3"), ("Far", "chose instance 99 of a fleet of 4"), ("Slow", "too slow"), ("Nobody", "Nobody")],
)
def test_a_policy_that_misbehaves_is_told_in_one_line(trace: Path, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    said = one_line(run("--trace", trace, "--fleet", FLEET, "--policies", f"{tmp_path}/mine.py:{name}", code=2))
    assert says in said
    assert name == "Nobody" or "request " in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--fleet", "4xh900:qwen3-8b"], "h900"),
        (["--fleet", "4xh200:qwen9"], "qwen9"),
        (["--fleet", "h200"], "16xh200"),
        (["--fleet", "2xl4:llama-3-70b"], "tp"),
        (["--policies", "lmetrik"], "lmetrik"),
        (["--policies", ","], "no policy"),
        (["--slo", "ttft=fast"], "ttft=1"),
        (["--rate", "-2"], "x2"),
        (["--find", "capacity"], "--slo"),
        (["--order", "backwards"], "backwards"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_wrong_input_gets_one_line_with_the_cure(trace: Path, arguments: list[str], says: str) -> None:
    assert says in one_line(run("--trace", trace, "--fleet", FLEET, *arguments, code=2))


def test_a_prompt_that_fits_nowhere_is_refused_and_counted(tmp_path: Path) -> None:
    rows = [(0, 100, 10), (10, 5_000_000, 10), (20, 100, 10)]
    path = tmp_path / "huge.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": []}) + "\n"
            for t, p, o in rows
        )
    )
    answer = json.loads(run("--trace", path, "--fleet", "1xh200:qwen3-8b", "--policies", "round-robin", "--json"))
    assert (answer["trace"]["read"], answer["trace"]["used"], answer["trace"]["refused"]) == (3, 2, 1)
    assert "request 1" in answer["trace"]["notes"]
    path.write_text(json.dumps({"timestamp": 0, "input_length": 5_000_000, "output_length": 1, "hash_ids": []}) + "\n")
    assert "tp" in one_line(run("--trace", path, "--fleet", "1xh200:qwen3-8b", code=2))


def test_rates_and_targets_are_read() -> None:
    trace = Requests.of([0.0, 1.0, 2.0], [5, 5, 5], [2, 2, 2])
    assert at_rate(trace, "x2").rate == pytest.approx(3.0, rel=0.05)
    assert at_rate(trace, "7").rate == pytest.approx(7.0, rel=0.05)
    assert read_slo("e2e=30") == SLO(e2e=30.0)


def test_a_fleet_file_says_what_a_line_cannot(tmp_path: Path) -> None:
    path, layout = tmp_path / "fleet.toml", 'layout = "h200:qwen3-8b"'
    prefill, decode = f"{layout}\ncount = 2\nrole = 'prefill'", f"{layout}\nrole = 'decode'"
    path.write_text(f"block = 32\n[[instance]]\n{prefill}\n[[instance]]\n{decode}\n")
    fleet = parse(str(path))
    assert [instance.role for instance in fleet.instances] == ["prefill", "prefill", "decode"]
    outcome = simulate(chat(50, rate=5.0, seed=1), fleet, RoundRobin())
    assert outcome.served.all() and np.isfinite(outcome.e2e).all()


def test_the_timeline_accounts_for_every_iteration() -> None:
    outcome = simulate(chat(100, rate=20.0, seed=3), uniform(2, COST), RoundRobin())
    spans = [event for event in timeline.events(outcome) if event["ph"] == "X"]
    assert sum(event["args"]["iterations"] for event in spans) == outcome.instances["iterations"].sum()
    assert comparison({"round-robin": outcome}).to_dict()


def test_without_a_trace_agent_loops_are_generated() -> None:
    answer = json.loads(run("--fleet", FLEET, "--policies", "lmetric", "--limit", 200, "--json"))
    assert answer["trace"]["format"] == "generated"
    assert answer["table"][0]["requests"] == 200


def test_comparing_from_python(trace: Path) -> None:
    made = chat(100, rate=10.0, seed=1)
    answer, outcomes = compare(made, parse(FLEET), {"lmetric": "lmetric", "vllm-v1": "vllm-v1"})
    assert set(outcomes) == {"lmetric", "vllm-v1"} and len(answer["table"]) == 2
