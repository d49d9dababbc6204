"""CCL-Bench: searches that remember, pairs of published rows, links twice as fast, and real rows of two engines."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe import ccl_bench
from assay.observe.traces import ddp_variants, metrics, trials
from assay.observe.traces.ddp_variants import Bench, CannotRun, Workload
from assay.observe.traces.search import PROPOSERS, Halving, Random, Setup, Tpe, best, search, setups, stored
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.record.types import NotMeasured, Verdict

SPACE = {"a": (1, 2, 3, 4), "b": ("x", "y"), "c": (False, True)}


def cost(setup: Setup, effort: float = 1.0) -> float:
    return float(10 + abs(setup["a"] - 3) + 2 * (setup["b"] == "x") - setup["c"])


# --------------------------------------------------------------------------------------------- searches


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_with_enough_trials_every_setup_is_tried_once_and_the_best_is_found(name: str) -> None:
    found = search(SPACE, cost, PROPOSERS[name], 100, seed=3)
    tried = [trial.setup for trial in found]
    assert len(tried) == len(setups(SPACE)) == 16
    assert all(setup in tried for setup in setups(SPACE))
    assert best(found).cost == min(cost(setup) for setup in setups(SPACE))


def test_tpe_needs_fewer_trials_than_chance() -> None:
    optimum = min(cost(setup) for setup in setups(SPACE))

    def needed(proposer: Any, seed: int) -> int:
        return next(trial.number for trial in search(SPACE, cost, proposer, 16, seed=seed) if trial.cost == optimum)

    seeds = range(30)
    assert sum(needed(Tpe(), seed) for seed in seeds) < 0.85 * sum(needed(Random(), seed) for seed in seeds)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(0, 5))
def test_halving_keeps_the_better_half_with_twice_the_effort_within_its_budget(budget: int, seed: int) -> None:
    found = search(SPACE, cost, Halving(), budget, seed=seed)
    assert 1 <= len(found) <= budget
    efforts = [trial.effort for trial in found]
    assert efforts == sorted(efforts)
    for effort in sorted(set(efforts))[1:]:
        before = sorted(cost(trial.setup) for trial in found if trial.effort == effort / 2)
        here = sorted(cost(trial.setup) for trial in found if trial.effort == effort)
        assert here == before[: len(here)]
        assert len(here) == max(1, len(before) // 2)


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_search_broken_off_goes_on_from_its_stored_rows(name: str, tmp_path: Path) -> None:
    whole = search(SPACE, cost, PROPOSERS[name], 9, seed=1, default=setups(SPACE)[0])
    count = 0

    def breaks(setup: Setup, effort: float) -> float:
        nonlocal count
        count += 1
        if count > 4:
            raise KeyboardInterrupt
        return cost(setup)

    path = tmp_path / "trials.jsonl"
    with pytest.raises(KeyboardInterrupt):
        search(SPACE, breaks, PROPOSERS[name], 9, seed=1, store=path, default=setups(SPACE)[0])
    assert len(stored(path)) == 4
    assert search(SPACE, cost, PROPOSERS[name], 9, seed=1, store=path, default=setups(SPACE)[0]) == whole
    assert stored(path) == whole
    assert whole[0].given
    assert whole[0].setup == setups(SPACE)[0]


def test_a_setup_that_cannot_run_is_a_row_too_and_never_the_best() -> None:
    def refuses(setup: Setup, effort: float) -> float:
        if setup["c"]:
            raise RuntimeError("out of\nmemory")
        return float("nan") if setup["a"] == 1 else cost(setup)

    found = search(SPACE, refuses, Tpe(), 16)
    assert [trial.failure for trial in found].count("RuntimeError: out of memory") == 8
    assert not best(found).setup["c"]
    with pytest.raises(BadInput, match="no trial of the search could be run"):
        best([trial for trial in found if trial.cost is None])


def test_a_space_without_choices_and_a_store_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least one choice"):
        search({"a": ()}, cost, Random(), 3)
    path = tmp_path / "trials.jsonl"
    path.write_text('{"number": 0}\n')
    with pytest.raises(BadInput, match=r"trials.jsonl:1: no trial"):
        search(SPACE, cost, Random(), 3, store=path)


# ------------------------------------------------------------------------------------- the published table


def _row(name: str, step: float | None, overlap: float | None, **more: Any) -> dict[str, Any]:
    same = {"model_family": "deepseek_v3_16b", "phase": "training", "hardware_model": "a100", "total_count": 8,
            "batch_size": 8, "seq_len": 1024, "tp": 4, "pp": 1}  # fmt: skip
    return {"workload_name": name, **same, "avg_step_time": step, "compute_comm_overlap": overlap, **more}


def test_pairs_of_the_same_workload_are_judged_and_no_others() -> None:
    rows = [
        _row("ep4", 12.0, 5.0, ep=4),
        _row("ep8", 3.6, 2.8, ep=8, model_family="DeepSeek-V3-16B"),
        _row("ep8 again", 3.6, 8.0, ep=8, communication_fraction=90.0),
        _row("other model", 1.0, 0.0, model_family="llama"),
        _row("no overlap told", 1.0, None),
    ]
    found = trials.compared(rows)
    assert set(found) == {"ep4 / ep8", "ep8 again / ep4", "ep8 again / ep8"}
    assert found["ep4 / ep8"]["against"]
    assert found["ep4 / ep8"]["experts"]
    assert not found["ep8 again / ep4"]["against"]
    assert found["ep8 again / ep8"]["alike"]
    assert found["ep8 again / ep8"]["hides"]  # equal steps, overlap of 2.8 % and 8 %
    table = pl.DataFrame([{"seed": 0, **one} for one in found.values()])
    share = ccl_bench.of_published("against", "judged", experts=True)(table)
    assert (share.value, share.n) == (0.5, 2)


def test_a_table_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "benchmark_data.json"
    for held in ("[]", '{"rows": [1]}', '{"rows": [{"metadata"', json.dumps({"rows": [{"metadata": {}}]})):
        path.write_text(held)
        with pytest.raises(BadInput, match="no table of CCL-Bench") as refused:
            trials.read_published(path)
        assert "\n" not in str(refused.value)


def test_without_the_table_and_torch_the_study_runs_and_its_claims_say_what_is_missing(
    monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))
    monkeypatch.setattr(ccl_bench, "find_spec", lambda name: None)
    table = ccl_bench.study(Lab("ccl-bench"))
    assert set(table["experiment"]) == {"doubled"}
    assert ccl_bench.tpu_to_gpu("v6e torus")(table).n == 9
    with pytest.raises(NotMeasured, match=r"benchmark_data\.json"):
        ccl_bench.of_published("against", "judged")(table)
    with pytest.raises(NotMeasured, match="extra torch"):
        ccl_bench.best_to_best(table)


# ---------------------------------------------------------------------------------- links twice as fast, claims


def test_twice_the_bandwidth_saves_at_most_half_and_more_where_links_are_slower() -> None:
    found = trials.doubled("1b", 512, 0)
    gains = {name: one["gain"] for name, one in found.items()}
    assert all(0 < gain < 0.5 for gain in gains.values())
    for cut in trials.CUTS:
        assert gains[f"{cut} v6e torus"] > gains[f"{cut} v6e torus, all links"] > 0
        assert gains[f"{cut} v6e torus"] > gains[f"{cut} a100 nvlink"]


def test_a_tpu_s_step_comes_from_published_figures_alone(monkeypatch: Any) -> None:
    """The rest of its record is the GPU's it was made from; a step must not depend on it."""
    before = trials.doubled("1b", 512, 0)
    kept, real = ("peak_flops", "mem_bw", "nvlink"), trials.device

    def other(name: str) -> Any:
        found = real(name)
        odd = {one.name: 7.0 * getattr(found, one.name) for one in fields(found)
               if isinstance(getattr(found, one.name), float) and one.name not in kept}  # fmt: skip
        return replace(found, **odd)

    monkeypatch.setattr(trials, "device", other)
    assert trials.doubled("1b", 512, 0) == before
    links = {name: network for name, (_, network) in trials.machines().items()}
    assert links["v6e torus"].scaled(bandwidth=4) == links["v6e torus, all links"]


def _pairs(eager: float, overlap: float) -> pl.DataFrame:
    rows = [{"experiment": "pair", "seed": 0, "window": window, "setup": setup, "collective_volume": 1.0,
             "avg_step_time": step, "compute_comm_overlap": hidden}
            for window in range(8)
            for setup, step, hidden in (("one all-reduce", 0.05, 0.02), ("eager", eager, overlap))]  # fmt: skip
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("eager", "overlap", "verdict"),
    [(0.1, 0.2, Verdict.REPRODUCED), (0.04, 0.2, Verdict.NOT_REPRODUCED), (0.1, 0.0, Verdict.NOT_REPRODUCED)],
)
def test_the_claim_on_overlap_can_fail_either_way(eager: float, overlap: float, verdict: Verdict) -> None:
    claim = next(one for one in ccl_bench.claims if one.text.startswith("more overlap of compute"))
    assert claim.holds.judge(claim.measure(_pairs(eager, overlap))) is verdict
    with pytest.raises(NotMeasured, match="overlap alike"):
        claim.measure(_pairs(eager, 0.02))


# -------------------------------------------------------------------------------------------------- real rows


def _some_rows(bench: Bench) -> dict[str, Any]:
    half = {"bucket": 25.0, "pieces": 1, "half": True}
    for name, engine, setup in (("lean", "ddp", trials.PAIR["one all-reduce"]), ("eager", "ddp", trials.PAIR["eager"]),
                                ("half", "ddp", half), ("shard", "fsdp", ddp_variants.DEFAULTS["fsdp"])):  # fmt: skip
        bench.record(engine, setup, 1, name)
    try:
        bench.seconds("fsdp", {"unit": 0, "reshard": True, "pieces": 1}, 1)
        refused = ""
    except CannotRun as error:
        refused = str(error)
    return {"refused": refused, "seconds": bench.seconds("ddp", half, 2)}


def test_real_engines_leave_rows_whose_volume_is_that_of_their_gradients(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("yaml")
    workload = Workload(layers=2, width=64, batch=8)
    told = ddp_variants.run(workload, tmp_path, _some_rows)
    assert "fsdp cannot run" in told["refused"]
    assert len(told["seconds"]) == 2
    rows = {name: metrics.load(tmp_path / name) for name in ("lean", "eager", "half", "shard")}
    volume = {name: metrics.METRICS["collective_volume"](one) for name, one in rows.items()}
    size = 4 * workload.parameters
    assert volume["lean"] == size
    assert volume["eager"] == 4 * size  # after each of four pieces
    assert volume["half"] == size / 2
    assert volume["shard"] == 3 * size  # gathered forward and backward, then reduced
    assert rows["shard"].card.executor.plan.dp_shard == 2
    assert rows["lean"].card.workload.model.model_arch.num_params == workload.parameters
    for one in rows.values():
        found = metrics.measure(one, ["avg_step_time", "compute_comm_overlap", "idle_share"])
        assert found["value"].null_count() == 0
