"""CCL-Bench: searches that remember, pairs of published rows, links twice as fast, and real rows of two engines."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe import ccl_bench
from assay.observe.ccl_bench import ddp_variants, trials
from assay.observe.ccl_bench.ddp_variants import Bench, CannotRun, OutOfTime, Step, Workload
from assay.observe.ccl_bench.search import PROPOSERS, Halving, Random, Setup, Tpe, best, search, setups, stored
from assay.observe.traces import metrics
from assay.record import catalogue
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.record.tables import joined
from assay.record.types import Estimate, NotMeasured, Verdict
from assay.record.verdicts import judge
from assay.sim.random import stream

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
    assert found["ep4 / ep8"]["judged"] and not found["ep4 / ep8"]["shorter"]
    assert found["ep8 again / ep4"]["judged"] and found["ep8 again / ep4"]["shorter"]
    assert not found["ep8 again / ep8"]["judged"]  # equal steps
    share = ccl_bench.shorter(pl.DataFrame([{"seed": 0, **one} for one in found.values()]))
    assert (share.value, share.n) == (0.0, 2)  # one of two: no more often than not


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
    lab = Lab("ccl-bench", seeds=(1000, 7, 12345))
    table = joined(ccl_bench.study(lab))
    assert set(table["experiment"]) == {"doubled"}
    assert set(table["seed"]) == lab.used == {1000, 7, 12345}
    assert ccl_bench.tpu_to_gpu("v6e torus")(table).n == 3
    with pytest.raises(NotMeasured, match="assay traces get ccl-bench"):
        ccl_bench.shorter(table)
    for measure in (ccl_bench.slow_to_fast("wide"), ccl_bench.times_the_step, ccl_bench.gained("ddp")):
        with pytest.raises(NotMeasured, match="extra torch"):
            measure(table)


# ---------------------------------------------------------------------------------- links twice as fast, claims


def test_twice_the_bandwidth_saves_at_most_half_and_more_where_links_are_slower() -> None:
    found = trials.doubled("small", 5)
    gains = {name: one["gain"] for name, one in found.items()}
    assert all(0 < gain < 0.5 for gain in gains.values())
    for cut in trials.CUTS:
        assert gains[f"{cut} v6e torus"] > gains[f"{cut} v6e torus, all links"] > 0
        assert gains[f"{cut} v6e torus"] > gains[f"{cut} a100 nvlink"]


def test_a_tpu_s_step_comes_from_published_figures_alone(monkeypatch: Any) -> None:
    """The rest of its record is the GPU's it was made from; a step must not depend on it."""
    before = trials.doubled("small", 0)
    kept, real = ("peak_flops", "mem_bw", "nvlink"), trials.device

    def other(name: str) -> Any:
        found = real(name)
        odd = {one.name: 7.0 * getattr(found, one.name) for one in fields(found)
               if isinstance(getattr(found, one.name), float) and one.name not in kept}  # fmt: skip
        return replace(found, **odd)

    monkeypatch.setattr(trials, "device", other)
    assert trials.doubled("small", 0) == before
    links = {name: network for name, (_, network) in trials.machines().items()}
    assert links["v6e torus"].scaled(bandwidth=4) == links["v6e torus, all links"]


def _answered(id: str, table: pl.DataFrame) -> tuple[Estimate, Verdict]:
    claim = next(one for one in ccl_bench.claims if one.id == id)
    sentences = {one.id: one for one in catalogue.paper("ccl-bench").claims}
    found = claim.measure(table)
    return found, judge(claim.question or sentences[id], found).verdict


def _pairs(step: float, overlap: float) -> pl.DataFrame:
    rows = [{"experiment": "pair", "seed": 9, "turn": turn, "method": method, "step": took * (1 + turn / 50),
             "compute_comm_overlap": hidden}
            for turn in range(12)
            for method, took, hidden in (("less", 0.05, 0.02), ("more", step, overlap))]  # fmt: skip
    return pl.DataFrame(rows)


@pytest.mark.parametrize(("step", "verdict"), [(0.1, Verdict.REPRODUCED), (0.04, Verdict.NOT_REPRODUCED)])
def test_the_claim_on_overlap_can_fail_and_is_no_claim_where_nothing_overlaps_more(
    step: float, verdict: Verdict
) -> None:
    assert _answered("overlap", _pairs(step, 0.2))[1] is verdict
    for overlap in (0.02, 0.0):  # which of them overlaps more was said beforehand: they are not turned over
        with pytest.raises(NotMeasured, match="overlap alike"):
            _answered("overlap", _pairs(step, overlap))


def test_the_pair_differs_in_one_thing_so_that_overlap_is_what_is_compared() -> None:
    less, more = trials.PAIR["less"], trials.PAIR["more"]
    assert less.keys() == more.keys()
    assert [name for name in less if less[name] != more[name]] == ["bucket"]


def test_the_pair_is_not_the_easy_one() -> None:
    """Two setups an engineer might choose, of the search's own space, at equal precision: see below for their bytes."""
    more, less = trials.PAIR["more"], trials.PAIR["less"]
    assert all(setup in setups(ddp_variants.SPACES["ddp"]) for setup in (more, less))
    assert more["half"] == less["half"] and more != less


class Timed:
    """A bench whose processor time is what a test says of a setup, by a clock that says nothing; one cannot run."""

    clock: ClassVar = itertools.cycle((0.5, 9.0, 1.0))

    def steps(self, engine: str, setup: Setup, count: int) -> list[Step]:
        if setup == {"bucket": 2.0, "pieces": 1, "half": False}:
            raise CannotRun("out of memory")
        return [Step(next(self.clock), 1.0 + abs(setup["bucket"] - 2.0) + setup["pieces"] + setup["half"] / 2)] * count


def test_the_best_setup_is_the_best_of_all_that_run_and_not_what_a_few_trials_met() -> None:
    bench: Any = Timed()
    for seed in (0, 1000, 77_000):
        rows: dict[str, dict[str, Any]] = {}
        found = trials._best(bench, "ddp", rows, stream(seed, "test"))
        assert found == {"bucket": 2.0, "pieces": 1, "half": True}
        assert len(rows) == 18
        assert [row["why"] for row in rows.values() if row["processor"] is None] == ["out of memory"]


def test_a_lucky_step_makes_no_best_setup() -> None:
    lucky = {"bucket": 25.0, "pieces": 4, "half": True}
    told: list[Setup] = []

    class Lucky(Timed):
        def steps(self, engine: str, setup: Setup, count: int) -> list[Step]:
            told.append(setup)
            first = setup == lucky and told.count(lucky) == 1
            return [Step(0.001, 0.001)] * count if first else super().steps(engine, setup, count)

    bench: Any = Lucky()
    assert trials._best(bench, "ddp", {}, stream(5, "test")) == {"bucket": 2.0, "pieces": 1, "half": True}
    assert told.count(lucky) > 1  # it was among those that were timed again


def _finals(fsdp: float, ddp: float) -> list[dict[str, Any]]:
    return [{"experiment": "final", "workload": "wide", "seed": 4, "turn": turn, "engine": engine, "method": method,
             "processor": step * (1 + turn / 100), "step": 9.0}
            for turn in range(6) for method in ("default", "best")
            for engine, step in (("fsdp", fsdp), ("ddp", ddp))]  # fmt: skip


@pytest.mark.parametrize(
    ("fsdp", "verdict"), [(0.3, Verdict.REPRODUCED), (0.15, Verdict.DIRECTION), (0.03, Verdict.NOT_REPRODUCED)]
)
def test_the_slow_engine_is_named_before_the_measurement(fsdp: float, verdict: Verdict) -> None:
    """Where FSDP is the faster one the ratio is below 1: it is not turned over."""
    found, judged = _answered("frameworks", pl.DataFrame(_finals(fsdp, 0.1)))
    assert judged is verdict
    assert found.value == pytest.approx(fsdp / 0.1)
    assert found.cases == "wide, of 1 cases"


def test_engines_are_compared_by_what_they_cost_and_not_by_what_else_the_machine_did() -> None:
    calm, busy = (pl.DataFrame(_finals(0.15, 0.1)) for _ in range(2))
    busy = busy.with_columns(step=pl.Series(np.random.default_rng(7).uniform(0.1, 50.0, len(busy))))
    assert _answered("frameworks", busy) == _answered("frameworks", calm)
    assert _answered("tuned-fsdp", busy) == _answered("tuned-fsdp", calm)


@pytest.mark.parametrize("step", [0.1, 0.04])
def test_turns_that_differ_too_much_tell_nothing_whatever_they_say(step: float) -> None:
    pairs = _pairs(step, 0.2)
    noise = pl.Series([1.0, 1.0, 1.0, 6.0] * (len(pairs) // 4))  # every other turn of "more" takes six times as long
    with pytest.raises(NotMeasured, match="too busy"):
        _answered("overlap", pairs.with_columns(step=pl.col("step") * noise))
    once = pl.Series([1.0] * (len(pairs) - 1) + [50.0])
    assert _answered("overlap", pairs.with_columns(step=pl.col("step") * once))[1] is _answered("overlap", pairs)[1]


# ------------------------------------------------------------------------------------------- when time is over


class Slow(Timed):
    """A bench whose time is over after so many runs; it records nothing."""

    def __init__(self, runs: int) -> None:
        self.left, self.workload = runs, Workload()

    def steps(self, engine: str, setup: Setup, count: int) -> list[Step]:
        self.left -= 1
        if self.left < 0:
            raise OutOfTime("not done within 3 s")
        return [
            Step(0.02 if engine == "ddp" else 0.05, 0.01 * (2 + setup["pieces"]) * (1 + (engine == "fsdp")))
        ] * count

    def record(self, engine: str, setup: Setup, steps: int, name: str) -> Path:
        return Path(name)


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_metrics", lambda folder: {"compute_comm_overlap": 0.4 * folder.name.startswith("mo")})


def _stopped(runs: int) -> pl.DataFrame:
    bench: Any = Slow(runs)
    rows = trials._session(bench, ("middle",), 9, 0, seed=31)
    return pl.from_dicts([{"seed": 31, "turn": None, **row} for row in rows.values()], infer_schema_length=None)


@pytest.mark.usefixtures("unrecorded")
def test_a_plan_that_runs_out_of_time_keeps_its_whole_turns_and_no_part_of_one() -> None:
    whole = _stopped(10_000)
    assert "stopped" not in whole["experiment"].to_list()
    bench = Slow(10_000)
    trials._session(bench, ("middle",), 9, 0, seed=31)  # type: ignore[arg-type]
    used = 10_000 - bench.left
    for short in (1, 4, 7, 20):  # a turn is six runs: two of the pair, and default and best of both engines
        table = _stopped(used - short)
        turns = 9 - -(-short // 6)
        assert table.filter(pl.col("experiment") == "pair")["turn"].n_unique() == turns
        finals = table.filter(pl.col("experiment") == "final")
        assert len(finals) == 4 * turns
        assert table.filter(pl.col("experiment") == "stopped")["why"].to_list() == ["not done within 3 s"]
        assert _answered("frameworks", table)[0].n == turns  # enough of them to tell


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("runs", [0, 11, 70])
def test_too_few_turns_are_no_answer_and_the_reason_is_the_machine(runs: int) -> None:
    table = _stopped(runs)
    for id in ("frameworks", "overlap", "tuned-fsdp"):
        with pytest.raises(NotMeasured, match=r"too busy .* not done within 3 s"):
            _answered(id, table)


def test_a_bench_runs_nothing_more_once_its_seconds_have_passed(tmp_path: Path) -> None:
    bench = Bench(0, Workload(), tmp_path, seconds=-1.0)
    with pytest.raises(OutOfTime, match="not done within"):
        bench.steps("ddp", ddp_variants.DEFAULTS["ddp"], 1)
    with pytest.raises(OutOfTime):  # a search does not take it for a setup that fails
        search(SPACE, lambda setup, effort: bench.steps("ddp", setup, 1)[0].processor, Random(), 5)


# -------------------------------------------------------------------------------------------------- real rows


def _some_rows(bench: Bench) -> dict[str, Any]:
    half = {"bucket": 25.0, "pieces": 1, "half": True}
    for name, setup in {**trials.PAIR, "half": half}.items():
        bench.record("ddp", setup, 1, name)
    bench.record("fsdp", ddp_variants.DEFAULTS["fsdp"], 1, "shard")
    try:
        bench.steps("fsdp", {"unit": 0, "reshard": True, "pieces": 1}, 1)
        refused = ""
    except CannotRun as error:
        refused = str(error)
    return {"refused": refused, "steps": [list(one) for one in bench.steps("ddp", half, 2)]}


def test_real_engines_leave_rows_whose_volume_is_that_of_their_gradients(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("yaml")
    workload = Workload(layers=2, width=64, batch=8, seed=77_000)
    told = ddp_variants.run(workload, tmp_path, _some_rows)
    assert "fsdp cannot run" in told["refused"]
    assert len(told["steps"]) == 2 and all(seconds > 0 and processor > 0 for seconds, processor in told["steps"])
    rows = {name: metrics.load(tmp_path / name) for name in ("less", "more", "half", "shard")}
    volume = {name: metrics.METRICS["collective_volume"](one) for name, one in rows.items()}
    size = 4 * workload.parameters
    assert volume["less"] == volume["more"] == size  # the pair sends equal bytes
    assert volume["half"] == size / 2
    assert volume["shard"] == 3 * size  # gathered forward and backward, then reduced
    assert rows["shard"].card.executor.plan.dp_shard == 2
    assert rows["less"].card.workload.model.model_arch.num_params == workload.parameters
    for one in rows.values():
        found = metrics.measure(one, ["avg_step_time", "compute_comm_overlap", "idle_share"])
        assert found["value"].null_count() == 0
