"""The study of continuous benchmarking: its pieces on small sizes, and its claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from assay.observe import ci_bench
from assay.observe.bench import checkouts, history, instructions, store
from assay.observe.bench import config as bench_config
from assay.observe.bench.history import Run
from assay.observe.bench.processes import Bench
from assay.observe.ci_bench import lab as bench_lab
from assay.observe.ci_bench import step_cases as bench_steps
from assay.observe.ci_bench.step_cases import UNTUNED
from assay.record import catalogue
from assay.record.lab import Lab
from assay.record.tables import joined
from assay.record.types import Estimate, NotMeasured, Verdict
from assay.record.verdicts import judge
from assay.sim.random import stream


def answered(id: str, table: pl.DataFrame) -> tuple[Estimate, Verdict]:
    claim = next(one for one in ci_bench.claims if one.id == id)
    sentences = {one.id: one for one in catalogue.paper("ci-bench").claims}
    found = claim.measure(table)
    return found, judge(claim.question or sentences[id], found).verdict


def test_two_users_store_the_same_but_for_times_and_load(monkeypatch: pytest.MonkeyPatch) -> None:
    user = ci_bench.LAYERS["user.toml"].replace('"always"', '"never"')  # to count takes seconds: see below
    monkeypatch.setitem(ci_bench.LAYERS, "user.toml", user)
    assert ci_bench.again(seed=77_000) == {"same": True, "unlike": "", "counts_off": None}


@pytest.mark.slow
def test_two_users_count_the_same() -> None:
    if why := instructions.counter().why:
        pytest.skip(why)
    row = ci_bench.again(seed=1000)
    assert row["same"] and row["counts_off"] < 0.01


def test_two_users_who_store_unlike_results_are_a_counterexample() -> None:
    table = pl.DataFrame({"experiment": ["again"] * 3, "seed": [7, 8, 9], "same": [True, False, True],
                          "unlike": ["", "fingerprint", ""]})  # fmt: skip
    found, verdict = answered("reusable", table)
    assert verdict is Verdict.NOT_REPRODUCED and found.cases == "stored unlike: fingerprint"
    assert answered("reusable", table.filter("same"))[1] is Verdict.REPRODUCED


def test_a_comparison_ends_in_one_of_its_decisions() -> None:
    row = ci_bench.comparisons(change=0.0, replicas=1, pairs=10, rounds=2, seed=0)
    assert row["comparisons"] == 1 and row["alarms"] + row["no_change"] + row["undecided"] == 1
    assert abs(row["change_mean"]) < 5


def test_steps_are_contested_on_recorded_noise() -> None:
    rows = ci_bench.steps(noise="machine", commits=12, histories=4, seed=1000)
    assert {"e-divisive", "pelt", "threshold", "welch", "threshold 10 %"} <= set(rows)
    assert all(2 <= row["planted"] <= 6 and 0 <= row["f1"] <= 1 for row in rows.values())


def installed(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Modules that are there, by their dotted names; what a detector imports, and nothing else of it."""
    for name, content in modules.items():
        package, module = (ModuleType(part) for part in (name, f"{name}.{content[0]}"))
        setattr(module, content[1], content[2])
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, f"{name}.{content[0]}", module)
    monkeypatch.setattr(bench_steps, "find_spec", lambda name: name if name in modules else None)


def test_otava_and_asv_stand_in_the_contest_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.full((40, 5), 0.002) * np.exp(stream(5, "test").normal(0, 1e-3, (40, 5)))
    assert not {"otava", "asv"} & set(bench_steps.contest([noise], 2, seed=3)) or find_spec("otava")

    def change_points(values: list[float], *, max_pvalue: float, min_magnitude: float) -> Any:
        return [SimpleNamespace(index=at) for at in jumps(values, min_magnitude)], []

    def jumps(values: list[float], least: float) -> list[int]:
        return [int(at) + 1 for at in np.flatnonzero(np.abs(np.diff(np.log(values))) > least)]

    def detect_steps(values: list[float]) -> list[tuple[int, int, float, float, float]]:
        edges = [0, *jumps(values, 0.03), len(values)]
        return [(a, b, float(np.median(values[a:b])), 0.0, 0.0) for a, b in pairwise(edges)]

    installed(monkeypatch, otava=("analysis", "compute_change_points", change_points),
              asv=("step_detect", "detect_steps", detect_steps))  # fmt: skip
    scores = bench_steps.contest([noise], 8, seed=3)
    assert scores["otava"].found == scores["asv"].found == scores["otava"].planted >= 4
    assert scores["otava"].false == scores["asv"].false == 0


@pytest.mark.parametrize(("rival", "package"), [("otava", "apache-otava"), ("asv", "asv")])
def test_a_peer_that_is_not_installed_is_said_to_be_missing(rival: str, package: str) -> None:
    with pytest.raises(NotMeasured, match=f"pip install {package}"):
        answered(rival, steps_table(e_divisive=0.5, pelt=0.2))
    better = steps_table(e_divisive=0.5, pelt=0.2, **{rival: 0.3})
    assert answered(rival, better)[1] is Verdict.REPRODUCED
    assert answered(rival, steps_table(e_divisive=0.5, **{rival: 0.6}))[1] is Verdict.NOT_REPRODUCED


def test_without_a_counter_the_claim_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "counter", lambda: instructions.Counter("", "no valgrind"))
    rows = ci_bench.counts(hash_seeds=1, seed=0)
    table = pl.DataFrame([{"experiment": "count", "change": float(c), "seed": 0, **row} for c, row in rows.items()])
    with pytest.raises(NotMeasured, match="no valgrind"):
        answered("instructions", table)


def compared(more: Sequence[float], equal: Sequence[float], planted: float, experiment: str) -> pl.DataFrame:
    return pl.DataFrame([
        {"experiment": experiment, "change": change, "seed": 1000 + at, "change_mean": one}
        for change, found in ((planted, more), (0.0, equal)) for at, one in enumerate(found)
    ])  # fmt: skip


def test_a_planted_change_is_judged_by_what_was_measured_of_it_beside_equal_code() -> None:
    found, verdict = answered("time", compared([0.05, 0.06, 0.055], [0.0, 0.005, -0.005], 0.05, "compare"))
    assert verdict is Verdict.REPRODUCED and found.value == pytest.approx(0.055) and found.n == 3
    assert answered("time", compared([0.02, 0.025, 0.022], [0.0, 0.0, 0.0], 0.05, "compare"))[1] is Verdict.DIRECTION
    longer = compared([0.05, 0.06, 0.055], [0.0, 0.005, -0.005, 0.001, -0.001], 0.05, "compare")
    assert answered("time", longer)[0] == found and answered("equal-code", longer)[0].n == 5  # each seed by its own
    drift = compared([0.05, 0.06, 0.055], [0.05, 0.055, 0.06], 0.05, "compare")  # a machine that slows down meanwhile
    assert answered("time", drift)[1] is Verdict.NOT_REPRODUCED
    assert answered("equal-code", drift)[1] is Verdict.NOT_REPRODUCED
    counted, verdict = answered("instructions", compared([0.0199], [0.0001], 0.02, "count"))
    assert verdict is Verdict.REPRODUCED and counted.value == pytest.approx(0.0198)


def test_the_rival_is_the_best_of_the_others_and_is_named() -> None:
    table = pl.concat([steps_table(e_divisive=0.9, pelt=0.95, welch=0.7, threshold=0.1),
                       steps_table(untuned=0.95).with_columns(method=pl.lit(next(iter(UNTUNED))))])  # fmt: skip
    found, verdict = answered("neighbours", table)
    assert found.value == pytest.approx(0.2) and found.cases == "welch, of 2 cases"
    assert verdict is Verdict.REPRODUCED
    assert answered("usual-threshold", table)[1] is Verdict.NOT_REPRODUCED


def test_what_was_not_run_at_this_size_or_not_at_hand_is_said() -> None:
    few = pl.DataFrame({"experiment": ["again"], "seed": [1], "method": ["x"]})
    with pytest.raises(NotMeasured, match="--full"):
        answered("instructions", few)
    for id in ("misplaced", "neighbours", "usual-threshold"):
        with pytest.raises(NotMeasured, match="assay traces get azure-vm-noise"):
            answered(id, few)


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of three machines in the published format."""
    folder = tmp_path / bench_steps.FOLDER
    folder.mkdir()
    for number, benchmark in enumerate(bench_steps.BENCHMARKS):
        lines = ["value,runtime,starttime,VM_id"]
        for machine in range(3):
            times = np.datetime64("2024-06-06T00:00:00") + np.arange(500) * np.timedelta64(2, "h")
            lines += [f"{1000 * (machine + 1) + i + number},9.0,{str(t).replace('T', ' ')}.000,{machine}"
                      for i, t in enumerate(times)]  # fmt: skip
        (folder / f"{benchmark}_westus2_d8sv5.csv").write_text("\n".join(lines))
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))


@pytest.mark.usefixtures("clouds")
def test_noise_of_clouds_is_a_drawn_stretch_of_one_machine_in_its_order() -> None:
    for seed in (0, 1000, 77_000):
        drawn = bench_steps.of_clouds(90, seed)
        assert len(drawn) == len(bench_steps.BENCHMARKS)
        assert all(noise.shape == (90, bench_steps.SAMPLES) and (np.diff(noise.ravel()) == 1).all() for noise in drawn)
    starts = {tuple(float(noise[0, 0]) for noise in bench_steps.of_clouds(90, seed)) for seed in range(8)}
    assert len(starts) == 8


def test_every_stated_claim_is_answered_and_the_plot_is_drawn() -> None:
    paper = catalogue.paper("ci-bench")
    assert {stated.id for stated in paper.claims} == {one.id for one in ci_bench.claims if not one.asks}
    rows = [
        {"experiment": "steps", "noise": "clouds", "method": m, "found": 3, "planted": 5, "false": 1, "unchanged": 90}
        for m in ("a", "b")
    ]
    drawn = ci_bench.plot(pl.DataFrame(rows)).to_dict()
    assert [panel["layer"][0]["encoding"]["x"]["title"] for panel in drawn["vconcat"]] == [
        "planted steps found, %", "unchanged commits taken for a step, %"
    ]  # fmt: skip


def steps_table(**f1: float) -> pl.DataFrame:
    rows = [
        {"experiment": "steps", "noise": "clouds", "method": name.replace("_", "-"), "seed": seed,
         "f1": one + seed / 1e5}
        for seed in (7, 1000, 12, 99) for name, one in f1.items()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_where_nobody_finds_a_step_no_method_is_called_the_better() -> None:
    nothing = steps_table(e_divisive=0.0, threshold=0.0, welch=0.0).with_columns(
        f1=pl.lit(0.0), misplaced=pl.lit(None, pl.Float64)
    )
    assert answered("neighbours", nothing)[1] is Verdict.NOT_REPRODUCED
    with pytest.raises(NotMeasured, match="no step was found"):
        answered("misplaced", nothing)


@pytest.mark.parametrize(("off", "verdict"), [(2.0, Verdict.NOT_REPRODUCED), (0.5, Verdict.REPRODUCED)])
def test_a_step_found_far_from_where_it_was_planted_fails_the_claim(off: float, verdict: Verdict) -> None:
    assert answered("misplaced", steps_table(e_divisive=0.5).with_columns(misplaced=pl.lit(off)))[1] is verdict


@dataclass(frozen=True)
class Asked(Lab):
    """A lab that runs nothing and remembers with which seeds it was asked to."""

    asked: list[tuple[str, int]] = field(default_factory=list)

    def run(self, function: Any, cases: Sequence[Mapping[str, Any]], *, per: Any = None, alone: bool = False) -> Any:
        self.asked.extend((function.__name__, seed) for seed in self.seeds)
        name = {per: "0.0"} if per else {}
        return pl.DataFrame([{**case, **name, "seed": seed} for case in cases for seed in self.seeds])


@pytest.mark.usefixtures("clouds")
def test_every_experiment_runs_with_the_seeds_that_were_given() -> None:
    lab = Asked("ci-bench", seeds=(1000, 7, 12345))
    ci_bench.study(lab)
    assert {name for name, _ in lab.asked} == {"comparisons", "again", "steps"}
    assert {seed for name, seed in lab.asked if name in ("comparisons", "steps")} == {1000, 7, 12345}
    assert {seed for name, seed in lab.asked if name == "again"} == {1000}  # dear: the first
    lab = Asked("ci-bench", "full", seeds=(1000, 7, 12345))
    table = joined(ci_bench.study(lab))
    assert {seed for name, seed in lab.asked if name == "counts"} == {1000, 7, 12345}
    assert set(table["noise"].drop_nulls()) == {"machine", "clouds"}


@pytest.mark.parametrize("histories", [80, pytest.param(200, marks=pytest.mark.slow)])
def test_on_histories_of_machine_like_noise_steps_are_found_near_and_silence_is_kept(histories: int) -> None:
    """Noise with bursts, drift and two speeds of a process, as recorded ones have; full studies use recorded noise."""
    random = stream(3, "test", "hundred histories")
    level = np.cumsum(random.normal(0, 0.0005, 400)) + 0.006 * (random.random(400) < 0.3)
    noise = np.exp(level[:, None] + np.abs(random.standard_t(3, (400, 5))) * 0.004)
    scores = bench_steps.contest([noise], histories=histories, seed=0)
    ours = scores["e-divisive"]
    assert ours.planted >= histories // 2
    assert ours.misplaced is not None and ours.misplaced <= 1
    assert ours.false <= ours.unchanged / 1000
    assert ours.f1 >= max(scores[name].f1 for name in bench_steps.METHODS)


def test_running_a_stored_configuration_again_gives_the_same_fingerprint_and_digest(tmp_path: Path) -> None:
    bench_lab.history(tmp_path / "r", [])
    written = bench_config.load(tmp_path / "r" / "bench.toml")
    config = msgspec.structs.replace(written, rounds=1, sample=1e-4, instructions="never")

    def run(config: bench_config.Config) -> Run:
        with checkouts.session() as folder:
            return store.measure(config, checkouts.working_tree(tmp_path / "r"), folder, lambda done, total: None)

    first = run(config)
    path = history.save(tmp_path / "history", first)
    (kept,), skipped = history.runs(path.parent)
    again = run(msgspec.convert(kept.config, bench_config.Config))
    assert not skipped and again.digest == kept.digest and again.config == kept.config
    stable = [{key: one for key, one in run.fingerprint.items() if key != "load"} for run in (kept, again)]
    assert stable[0] == stable[1] and kept.machine == again.machine


@pytest.mark.slow
def test_the_count_of_calls_leaves_out_the_start_of_their_process(tmp_path: Path) -> None:
    """The start is five times a call; what is left of it is that a first call teaches the interpreter its types."""
    if why := instructions.counter().why:
        pytest.skip(why)
    bench_lab.history(tmp_path / "r", [])
    config = bench_config.load(tmp_path / "r" / "bench.toml")
    with checkouts.session() as folder:
        tree = checkouts.working_tree(tmp_path / "r")
        bench = Bench("simulate", config.benchmark["simulate"], config, tree, folder)
        once, thrice = instructions.of(bench, 1, 0), instructions.of(bench, 3, 0)
    assert once == pytest.approx(thrice, rel=0.01)
