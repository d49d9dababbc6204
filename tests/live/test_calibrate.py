"""The step time of an engine comes back from the log of a gateway before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from assay.cli.main import assay
from assay.live.access_log import Line
from assay.live.calibrate import Calibration, fit, read
from assay.record.errors import BadInput
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse, uniform
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.chat import chat

TRUTH = StepCost(
    tokens=0.012 + 4e-5 * np.arange(9000.0), decode_seq=5e-5, decode_kv=2e-8, prefill_fixed=2e-4, prefill_pair=1e-9,
    kv_tokens=400_000,
)  # fmt: skip


def log(cost: StepCost, engines: int = 1, rate: float = 2.0, count: int = 1500, jitter: float = 0.0) -> list[Line]:
    """What a gateway before such engines would write down of Poisson arrivals."""
    trace = chat(count, rate=rate * engines, seed=1, stay=np.array([0.4]), curve=np.ones(1))
    records = simulate(trace, uniform(engines, cost), RoundRobin()).records
    noise = jitter * stream(1, "jitter").exponential(size=(count, 2)).cumsum(axis=1)
    return [
        Line(
            time=round(1.8e9 + float(row["arrival"]), 6), id=f"run-{n}", endpoint="chat", status=200, stream=True,
            engine=f"engine-{row['instance']}", tries=1, prompt_tokens=int(row["prompt"]),
            completion_tokens=int(row["output"]), cached_tokens=int(row["cached"]),
            ttft=round(float(row["first"] - row["arrival"] + noise[n, 0]), 6),
            e2e=round(float(row["finish"] - row["arrival"] + noise[n, 1]), 6),
        )
        for n, row in enumerate(records)
    ]  # fmt: skip


def worst_decode(found: Calibration, truth: StepCost) -> float:
    """The largest relative error of a decode iteration, of 1 to 64 sequences of any usual length."""
    shapes = [(b, b * context) for b in range(1, 65) for context in (500, 1500, 4000)]
    return max(abs(found.cost.seconds(b, kv) / truth.seconds(b, kv) - 1) for b, kv in shapes)


def worst_prefill(found: Calibration, truth: StepCost) -> float:
    chunks = [[(n, 0)] for n in (200, 500, 1000, 2000, 4000, 8000)]
    return max(abs(found.cost.seconds(chunks=c) / truth.seconds(chunks=c) - 1) for c in chunks)


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_iterations_of_any_batch_are_predicted(rate: float) -> None:
    found = fit(log(TRUTH, rate=rate))
    assert worst_decode(found, TRUTH) < 0.03
    assert worst_prefill(found, TRUTH) < 0.03
    assert found.itl_error < 0.01
    assert found.ttft_error < 0.20  # half an iteration more or less is chance


def test_engines_are_told_apart_and_fitted_together() -> None:
    """Each engine's batch is its own: counted together, four would look like one that is four times as fast."""
    found = fit(log(TRUTH, engines=4))
    assert found.engines == 4
    assert worst_decode(found, TRUTH) < 0.03


def test_an_engine_that_reads_weights_before_it_computes() -> None:
    """Up to 256 tokens cost nothing more: what a GPU does while its memory is the limit."""
    tokens = np.maximum(0.015, 0.015 + 6e-5 * (np.arange(9000.0) - 256))
    truth = StepCost(tokens=tokens, decode_seq=1e-5, decode_kv=3e-8, kv_tokens=400_000)
    found = fit(log(truth))
    assert worst_decode(found, truth) < 0.03
    assert worst_prefill(found, truth) < 0.05


def test_a_network_that_trembles_costs_little() -> None:
    assert worst_decode(fit(log(TRUTH, jitter=2e-3)), TRUTH) < 0.03


def test_a_hundred_requests_are_enough() -> None:
    found = fit(log(TRUTH, count=100))
    assert worst_decode(found, TRUTH) < 0.10
    assert worst_prefill(found, TRUTH) < 0.10


def test_an_engine_that_hides_its_cache_is_named() -> None:
    lines = log(TRUTH)
    for line in lines:
        line.matched_tokens, line.cached_tokens = line.cached_tokens or 0, None
    found = fit(lines)
    assert worst_decode(found, TRUTH) < 0.03  # what the gateway matched stands for it
    assert any("--enable-prompt-tokens-details" in note for note in found.notes)


def test_what_tells_nothing_of_gaps_still_counts_as_load() -> None:
    """Answers in one piece and those whose client left were on the engine all the same."""
    lines = log(TRUTH, rate=4.0)
    for n, line in enumerate(lines):
        if n % 4 == 0:
            line.stream, line.ttft = False, line.e2e
        elif n % 50 == 1:
            line.status, line.ttft, line.completion_tokens = 499, None, 0
    found = fit(lines)
    assert worst_decode(found, TRUTH) < 0.05
    assert any("say nothing of gaps" in note for note in found.notes)
    forgotten = fit([line for line in lines if line.stream])
    assert forgotten.itl_error > found.itl_error


def test_a_log_that_cannot_tell_says_what_would() -> None:
    """Equal requests, one at a time: one batch size, one length of prompt."""
    lines = [
        Line(time=1.8e9 + 10.0 * n, id=f"run-{n}", endpoint="chat", status=200, stream=True, engine="a", tries=1,
             prompt_tokens=100, completion_tokens=50, ttft=0.02, e2e=1.0)
        for n in range(100)
    ]  # fmt: skip
    found = fit(lines)
    assert found.cost.seconds(1, 125) == pytest.approx(0.02, rel=0.02)
    notes = " ".join(found.notes)
    for advice in ("send bursts", "hard to tell apart", "send shorter and longer ones"):
        assert advice in notes


def test_too_little_is_refused() -> None:
    with pytest.raises(BadInput, match="3 streamed answers of at least 8 tokens are too few"):
        fit([*log(TRUTH, count=60)[:3], Line(time=1.8e9, id="run-x", endpoint="chat", status=503)])


def test_the_command_writes_a_file_that_names_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "gateway.jsonl", tmp_path / "mine.toml"
    lines = log(TRUTH)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b'{"time": 18')
    assert len(read(path)) == len(lines)
    _run("calibrate", path, "--out", out, "--kv-tokens", "400000")
    said = capsys.readouterr().out
    assert "ms a sequence" in said
    assert f"--fleet 4xfitted:{out}" in said
    fleet = parse(f"4xfitted:{out}")
    assert len(fleet) == 4
    assert fleet.instances[0].room == 400_000
    assert fleet.instances[0].cost.seconds(8, 8000) == pytest.approx(TRUTH.seconds(8, 8000), rel=0.05)
    _run("calibrate", path, "--json", "--engine", "engine-0")
    assert json.loads(capsys.readouterr().out)["itl_error"] < 0.05
    with pytest.raises(BadInput, match=r"no engine 'b' in .*; there are engine-0"):
        _run("calibrate", path, "--engine", "b")


def test_a_fitted_fleet_may_have_roles_and_stand_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("tokens = [[0, 0.01], [8192, 0.1]]\nkv_tokens = 100000\n")
    split = parse(f"1xfitted:{tmp_path}/c.toml:prefill+2xfitted:{tmp_path}/c.toml:decode")
    assert [instance.role for instance in split.instances] == ["prefill", "decode", "decode"]
    (tmp_path / "fleet.toml").write_text(
        f'[[instance]]\nlayout = "fitted:{tmp_path}/c.toml"\ncount = 3\nmax_seqs = 64\n'
    )
    assert [instance.max_seqs for instance in parse(f"{tmp_path}/fleet.toml").instances] == [64] * 3


def _run(*words: Any) -> None:
    assay.main([str(word) for word in words], prog_name="assay", standalone_mode=False)
