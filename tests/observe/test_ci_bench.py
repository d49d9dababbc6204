"""The study of continuous benchmarking: its pieces on small sizes, and its claims."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from assay.observe import ci_bench
from assay.observe.bench import checkouts, history, instructions, store
from assay.observe.bench import config as bench_config
from assay.observe.bench import lab as bench_lab
from assay.observe.bench import steps as bench_steps
from assay.observe.bench.history import Run
from assay.observe.bench.processes import Bench
from assay.observe.bench.steps import UNTUNED
from assay.record import catalogue
from assay.record.types import NotMeasured, Verdict
from assay.sim.random import stream


def claim(text: str) -> ci_bench.Claim:
    (found,) = [one for one in ci_bench.claims if one.text.startswith(text)]
    return found


def test_two_users_store_the_same_but_for_times_and_load() -> None:
    assert ci_bench.again(seed=0) == {"same": True, "unlike": ""}


def test_a_comparison_ends_in_one_of_its_decisions() -> None:
    row = ci_bench.comparisons(change=0.0, replicas=1, pairs=10, rounds=2, seed=0)
    assert row["comparisons"] == 1 and row["alarms"] + row["no_change"] + row["undecided"] == 1
    assert abs(row["change_mean"]) < 5


def test_steps_are_contested_on_recorded_noise() -> None:
    rows = ci_bench.steps(commits=12, histories=4, seed=0)
    assert {"e-divisive", "pelt", "threshold", "welch", "threshold 10 %"} == set(rows)
    assert all(row["planted"] == 2 and 0 <= row["f1"] <= 1 for row in rows.values())


def test_without_a_counter_the_claim_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "counter", lambda: instructions.Counter("", "no valgrind"))
    rows = ci_bench.counts(hash_seeds=1, seed=0)
    table = pl.DataFrame([{"experiment": "count", "change": float(c), "seed": 0, **row} for c, row in rows.items()])
    with pytest.raises(NotMeasured, match="no valgrind"):
        claim("a planted regression of 2 %").measure(table)


def test_one_false_alarm_in_two_hundred_is_told_with_its_interval() -> None:
    table = pl.DataFrame(
        {
            "experiment": ["compare"] * 2,
            "change": [0.0] * 2,
            "seed": [0, 1],
            "alarms": [0, 1],
            "comparisons": [100, 100],
        }
    )
    estimate = claim("equal code is called changed by time").measure(table)
    assert estimate.value == 0.005 and estimate.n == 200 and estimate.high == pytest.approx(0.0275, abs=0.001)
    assert claim("equal code is called changed by time").holds.judge(estimate) is Verdict.DIRECTION


@pytest.mark.parametrize("histories", [1, 20, 1000])
def test_more_histories_of_the_same_noise_do_not_make_a_false_alarm_rate_more_certain(histories: int) -> None:
    cut = {"false": histories, "unchanged": 800 * histories, "commits": 45}  # one in 800, however often it is told
    table = pl.DataFrame([{"experiment": "steps", "method": "e-divisive", "seed": seed, **cut} for seed in (0, 1)])
    asked = claim("an unchanged commit of a history")
    estimate = asked.measure(table)
    assert estimate.value == 1 / 800 and estimate.n == 90
    assert estimate.low == 0 and estimate.high > 1 / 90
    silent = asked.measure(table.with_columns(false=pl.lit(0)))
    assert (silent.value, silent.low) == (0, 0) and silent.high == pytest.approx(1 - 0.025 ** (1 / 90))
    assert asked.holds.judge(silent) is Verdict.DIRECTION


def test_the_rival_is_the_best_of_the_others() -> None:
    table = pl.DataFrame(
        {
            "experiment": ["steps"] * 6, "method": ["e-divisive", "pelt", "welch"] * 2, "seed": [0, 0, 0, 1, 1, 1],
            "f1": [0.9, 0.5, 0.7, 0.8, 0.5, 0.6],
        }
    )  # fmt: skip
    assert ci_bench.best_rival(table).value == pytest.approx(0.2)


def test_every_stated_claim_is_answered_and_the_plot_is_drawn() -> None:
    paper = catalogue.paper("ci-bench")
    assert {stated.text for stated in paper.claims} <= {one.text for one in ci_bench.claims}
    rows = [
        {"experiment": "steps", "method": m, "found": 3, "planted": 5, "false": 1, "unchanged": 90} for m in ("a", "b")
    ]
    drawn = ci_bench.plot(pl.DataFrame(rows)).to_dict()
    assert [panel["layer"][0]["encoding"]["x"]["title"] for panel in drawn["vconcat"]] == [
        "planted steps found, %", "unchanged commits taken for a step, %"
    ]  # fmt: skip


def steps_table(**f1: float) -> pl.DataFrame:
    rows = [
        {"experiment": "steps", "method": name.replace("_", "-"), "seed": seed, "f1": one}
        for seed in (0, 1) for name, one in f1.items()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_a_method_that_was_not_tuned_is_no_rival_at_an_equal_rate_of_false_alarms() -> None:
    noisy = steps_table(e_divisive=0.3, pelt=0.2).vstack(
        steps_table(untuned=0.9).with_columns(method=pl.lit(next(iter(UNTUNED))))
    )
    assert ci_bench.best_rival(noisy).value == pytest.approx(0.1)


def test_where_nobody_finds_a_step_no_method_is_called_the_better() -> None:
    with pytest.raises(NotMeasured, match="idle"):
        ci_bench.best_rival(steps_table(e_divisive=0.0, pelt=0.0, welch=0.0))
    nothing = steps_table(e_divisive=0.0).with_columns(misplaced=pl.lit(None, pl.Float64))
    with pytest.raises(NotMeasured, match="no step was found"):
        ci_bench.misplaced(nothing)


def test_a_step_found_far_from_where_it_was_planted_fails_the_claim() -> None:
    table = steps_table(e_divisive=0.5).with_columns(misplaced=pl.lit(2.0))
    asked = claim("a step that was found lies")
    assert asked.holds.judge(asked.measure(table)) is Verdict.NOT_REPRODUCED


def test_on_a_hundred_histories_of_machine_like_noise_steps_are_found_near_and_silence_is_kept() -> None:
    """Noise with bursts, drift and two speeds of a process, as recorded ones have; full studies use recorded noise."""
    random = stream(3, "test", "hundred histories")
    level = np.cumsum(random.normal(0, 0.0005, 400)) + 0.006 * (random.random(400) < 0.3)
    noise = np.exp(level[:, None] + np.abs(random.standard_t(3, (400, 5))) * 0.004)
    scores = bench_steps.contest(noise, histories=200, seed=0)
    ours = scores["e-divisive"]
    assert ours.planted == 100
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
