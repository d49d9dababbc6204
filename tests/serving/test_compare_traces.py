"""Several traces of one's own, sessions without blocks, and policies on fleets they are not made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.serving.compare import compare_all
from assay.serving.fleet import parse
from assay.workloads.chat import chat
from tests.serving.command import answer, one_line, run

FLEET = ("--fleet", "2xh200:qwen3-8b")
TWO = ("--policies", "round-robin,lmetric")


def write(path: Path, rows: list[tuple[float, str, int, int]]) -> Path:
    lines = ["ts\tsession\tprompt_tokens\toutput_tokens", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Thirty sessions whose prompts carry their history."""
    rng, rows = np.random.default_rng(5), []
    for session in range(30):
        time, history = float(rng.uniform(0, 20)), 400
        for _ in range(4):
            prompt, output = history + int(rng.integers(20, 200)), int(rng.integers(10, 60))
            rows.append((round(time, 3), f"s{session}", prompt, output))
            time, history = time + float(rng.uniform(2, 9)), prompt + output
    return write(tmp_path / "talks.tsv", sorted(rows))


@pytest.fixture
def singles(tmp_path: Path) -> Path:
    """Requests of which nobody knows what they share."""
    return write(tmp_path / "singles.tsv", [(0.4 * k, f"x{k}", 500 + 7 * k, 25) for k in range(40)])


def test_a_session_without_blocks_finds_its_history_in_the_cache(talks: Path, singles: Path) -> None:
    found = answer("--trace", talks, *FLEET, "--policies", "lmetric")
    assert found["table"][0]["cached_ratio"] > 0.5
    assert "reuse by session (assumed): 90 of 90" in found["trace"]["notes"]
    assert answer("--trace", talks, *FLEET, "--policies", "lmetric", "--cache", "off")["table"][0]["cached_ratio"] == 0
    plain = answer("--trace", singles, *FLEET, "--policies", "lmetric")
    assert plain["table"][0]["cached_ratio"] == 0
    assert "reuse of prefixes is not modelled" in plain["trace"]["notes"]


def test_each_trace_has_its_table_and_one_line_says_who_wins_over_all(talks: Path, singles: Path) -> None:
    found = answer("--trace", talks, "--trace", singles, *FLEET, *TWO)
    assert [part["trace"]["name"] for part in found["traces"]] == ["talks.tsv", "singles.tsv"]
    alone = answer("--trace", singles, *FLEET, *TWO)
    same = [name for name in alone["table"][0] if name != "sim_seconds"]
    assert [[row[n] for n in same] for row in found["traces"][1]["table"]] == [
        [row[n] for n in same] for row in alone["table"]
    ]
    for row in found["table"]:
        each = [next(r for r in p["table"] if r["policy"] == row["policy"])["ttft_mean"] for p in found["traces"]]
        assert row["ttft_mean"] == pytest.approx((each[0] * each[1]) ** 0.5)
    assert found["why"].startswith("Over all: ") and "of 2 traces" in found["why"]
    assert "units" in found and "units" not in found["traces"][0]
    printed = run("--trace", talks, "--trace", singles, *FLEET, *TWO)
    assert printed.count("\npolicy ") == 3
    assert printed.index("talks.tsv") < printed.index("singles.tsv") < printed.index("Over all")


def test_the_lead_over_all_has_an_interval_and_a_policy_beside_itself_ties() -> None:
    traces = [chat(200, rate=20.0, seed=seed) for seed in range(3)]
    found, _ = compare_all(traces, parse("4xh200:qwen3-8b"), {"lmetric": "lmetric", "round-robin": "round-robin"})
    second = next(row for row in found["table"] if row["led_by"] is not None)
    assert second["led_by_low"] < second["led_by"] < second["led_by_high"]
    each = [next(row for row in part["table"] if row["led_by"] is not None) for part in found["traces"]]
    widest = max(row["led_by_high"] - row["led_by_low"] for row in each)
    assert second["led_by_high"] - second["led_by_low"] < widest  # three traces tell more than one
    same, _ = compare_all(traces, parse("4xh200:qwen3-8b"), {"a": "lmetric", "b": "lmetric"})
    assert "a and b tie at" in same["why"]


def test_several_traces_with_targets_and_at_capacity(talks: Path, singles: Path) -> None:
    asked = ("--trace", talks, "--trace", singles, *FLEET, *TWO, "--slo", "ttft=0.1")
    found = answer(*asked)
    assert {"goodput", "first"} <= set(found["table"][0])
    searched = answer(*asked, "--find", "capacity")
    assert [part["capacity"]["never"] for part in searched["traces"]] == [0, 0]
    assert all(row["capacity"] > 0 for row in searched["table"])


def test_a_picture_is_of_one_trace(talks: Path, singles: Path, tmp_path: Path) -> None:
    two = ("--trace", talks, "--trace", singles, *FLEET)
    assert "one --trace" in one_line(run(*two, "--plot", tmp_path / "p.svg", code=2))
    assert "talks.tsv" not in one_line(run(*two[:2], "--trace", "nowhere.csv", *FLEET, code=2))


def test_a_policy_for_lock_step_is_told_where_nobody_steps_together(singles: Path, tmp_path: Path) -> None:
    apart = answer("--trace", singles, *FLEET, "--policies", "balanceroute,round-robin")
    assert apart["policies"]["notes"].startswith("balanceroute is made for workers that step together")
    path = tmp_path / "fleet.toml"
    path.write_text('lockstep = [2]\n[[instance]]\nlayout = "h200:qwen3-8b"\ncount = 2\n')
    together = ("--trace", singles, "--fleet", path)
    assert answer(*together, "--policies", "balanceroute,round-robin")["policies"] == {}
    blind = answer(*together, "--policies", "round-robin")
    assert "no policy here looks at that; balanceroute does" in blind["policies"]["notes"]
    assert answer("--trace", singles, *FLEET, "--policies", "round-robin")["policies"] == {}
