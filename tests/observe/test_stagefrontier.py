"""StageFrontier: the paper's component, its study's pieces, and what the dashboards beside it do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from assay.observe import stagefrontier
from assay.observe.frontier.collector import STAGES, SYNC_STAGES, Vectors, frame
from assay.observe.frontier.diagnosis import diagnose
from assay.observe.stagefrontier import StageFrontier, profiled, trials
from assay.observe.stagefrontier.dashboards import DASHBOARDS
from assay.observe.stagefrontier.ddp import SLOW, Fault, Job
from assay.record import catalogue
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.record.types import Claim, Estimate, NotMeasured
from assay.record.verdicts import judge
from assay.sim.telemetry import Frame


def vectors(durations: np.ndarray, first: int = 0) -> Frame:
    return frame(Vectors(r, first, STAGES, durations[:, r], durations.shape[1]) for r in range(durations.shape[1]))


def test_the_component_gives_what_the_arrays_give() -> None:
    usual, late = trials.model_job(4, 20, None, 0), trials.model_job(4, 20, Fault("data", 3, 0.01), 0)
    found = StageFrontier(vectors(usual)).explain(vectors(late, first=100))
    assert found == diagnose(late, STAGES, usual)
    assert (found.suspects[0].entity, found.suspects[0].indicator, found.label) == ("3", "data", "confirmed")


def test_clocks_that_disagree_by_hours_and_run_apart_change_nothing() -> None:
    usual, late = trials.model_job(4, 20, None, 0), trials.model_job(4, 20, Fault("optimizer", 1, 0.01), 0)
    offsets = {f"rank {r}": (r - 2) * 3_600 * 10**9 + r for r in range(4)}
    straight = StageFrontier(vectors(usual)).explain(vectors(late))
    assert StageFrontier(vectors(usual).shifted(offsets)).explain(vectors(late).shifted(offsets)) == straight


def test_a_rank_that_never_reported_makes_the_window_incomplete() -> None:
    late = trials.model_job(4, 20, Fault("data", 1, 0.01), 0)
    half = frame(Vectors(r, 0, STAGES, late[:, r], 4) for r in range(3))
    lone = Frame.of(vectors(late).entities, spans=half.spans)
    assert StageFrontier().explain(lone).label == "incomplete"


def test_a_reference_of_another_job_and_a_frame_without_stages_are_refused() -> None:
    usual = trials.model_job(4, 5, None, 0)
    with pytest.raises(BadInput, match="other ranks or stages"):
        StageFrontier(vectors(usual[:, :3])).explain(vectors(usual))
    with pytest.raises(BadInput, match="category 'stage'"):
        StageFrontier().explain(Frame.of([{"id": 0, "kind": "rank", "name": "0"}]))


@pytest.mark.parametrize("kind", ["data", "forward"])
def test_the_delay_is_displaced_for_means_and_not_for_the_frontier(kind: str) -> None:
    usual, late = trials.model_job(8, 30, None, 0), trials.model_job(8, 30, Fault(kind, 5, 0.015), 0)
    assert DASHBOARDS["mean"](late, usual, STAGES).suspects[0].indicator == "backward"
    assert diagnose(late, STAGES, usual).suspects[0].indicator == kind


def test_who_knows_which_stage_is_waiting_finds_a_stall_without_a_frontier() -> None:
    usual, late = trials.model_job(8, 30, None, 0), trials.model_job(8, 30, Fault("data", 5, 0.015), 0)
    found = DASHBOARDS["own time"](late, usual, STAGES)
    assert (found.suspects[0].entity, found.suspects[0].indicator) == ("5", "data")


@pytest.mark.parametrize("name", list(DASHBOARDS))
def test_every_dashboard_names_each_stage_once_or_each_pair_once(name: str) -> None:
    usual = trials.model_job(4, 10, None, 1)
    named = [(s.entity, s.indicator) for s in DASHBOARDS[name](usual, usual[::-1], STAGES).suspects]
    assert len(named) == len(set(named)) >= len(STAGES)


def test_a_modelled_cluster_is_diagnosed_exactly_and_within_the_first_two() -> None:
    rows = trials.many_ranks(ranks=128, steps=40, seed=3)
    assert all(row["exact"] and row["top2"] for row in rows.values())
    assert all(row["ranks"] == 128 for row in rows.values())


def test_modelled_ranks_leave_the_backward_pass_together() -> None:
    d = trials.model_job(6, 10, Fault("checkpoint", 2, 0.02), 0)
    cut = STAGES.index("backward") + 1
    lengths = d[:-1, :, cut:].sum(2) + d[1:, :, :cut].sum(2)
    assert (lengths == lengths[:, :1]).all()


def test_a_schedule_has_every_stage_and_size_and_healthy_stretches_between() -> None:
    planned = trials.schedule(2, trials.DELTAS, 10, Job(), seed=1)
    single = [stretch.faults[0] for stretch in planned if len(stretch.faults) == 1]
    assert len(single) == 50
    assert {(f.kind, round(f.delay / Job().step, 2)) for f in single} == {(k, d) for k in SLOW for d in trials.DELTAS}
    assert len({fault.rank for fault in single}) == 4
    both = [{fault.kind for fault in stretch.faults} for stretch in planned if len(stretch.faults) == 2]
    assert sum(kinds == {"forward", "backward"} for kinds in both) == 2 and len(both) == 4
    assert not planned[0].faults
    assert sum(not stretch.faults for stretch in planned) >= 10
    assert planned != trials.schedule(2, trials.DELTAS, 10, Job(), seed=2)


def test_windows_are_pooled_without_a_row_that_joins_two() -> None:
    d = np.ones((3, 2, 7), np.int64)
    windows = [trials.Window(np.arange(3), (0, 1), SYNC_STAGES, d, np.ones((3, 2), bool))] * 2
    durations, valid = trials.pooled(windows)
    assert durations.shape == (7, 2, 7)
    assert valid[:, 0].tolist() == [True] * 3 + [False] + [True] * 3


def test_the_wait_inside_backward_keeps_every_nanosecond() -> None:
    d = np.arange(2 * 3 * 7).reshape(2, 3, 7)
    merged = trials.within_backward(d)
    assert merged.shape == (2, 3, 6)
    assert merged.sum(2).tolist() == d.sum(2).tolist()
    assert merged[0, 0].tolist() == [0, 1, 2 + 3, 4, 5, 6]


def trace(steps: int = 3, late: int = 0) -> Frame:
    """A trace with PyTorch's own marks: 4 of data, 8 forward, 12 backward, 3 optimizer, 5 of the rest."""
    spans, at = [], 100
    for seq in range(steps):
        for name, long, gap in (
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4 + late, 0),
            ("DistributedDataParallel.forward", 8, 12),
            ("aten::linear", 1, 0),
            ("Optimizer.step#SGD.step", 3, 5),
        ):
            inside = name.startswith("aten")
            spans.append(
                {"entity": 0, "name": name, "cat": "cpu_op", "start": at - 15 * inside, "dur": long, "seq": seq}
            )
            at += 0 if inside else long + gap
    return Frame.of([{"id": 0, "kind": "rank", "name": "0"}], spans=spans)


def test_a_profilers_trace_is_cut_into_stages_by_its_own_marks() -> None:
    assert profiled.cut(trace(late=2)).tolist() == [[6, 8, 12, 3, 5]] * 2
    with pytest.raises(BadInput, match="fewer than two steps"):
        profiled.cut(trace(steps=1))


def test_the_recorder_is_timed_beside_a_step() -> None:
    rows = trials.recorder_cost(steps=20, seed=12345)
    assert len(rows) == 3 and all(row["share"] == row["seconds"] / trials.JOB.step > 0 for row in rows.values())


# -------------------------------------------------------------------------------------------------- the claims


def answer(name: str) -> Claim:
    return next(claim for claim in stagefrontier.claims if claim.id == name)


def judged(table: pl.DataFrame, name: str) -> tuple[Estimate, str]:
    stated = {claim.id: claim for claim in catalogue.papers()["stagefrontier"].claims}
    sentence = stated.get(name) or answer(name).question
    assert sentence is not None
    measured = answer(name).measure(table)
    return measured, judge(sentence, measured).verdict.value


FAULT = {
    "experiment": "faults", "method": "frontier", "recording": trials.APART, "visible": False, "delta": 0.1,
    "top1": True, "top2": True, "stage_top1": True, "label": "unsure", "seed": 7, "noise": 0.02, "pace": 1,
}  # fmt: skip


def test_the_headline_counts_all_faults_from_a_tenth_of_a_step_up_seen_or_not() -> None:
    hit = [FAULT | {"window": i, "visible": i == 0} for i in range(40)]
    small = [FAULT | {"window": 90 + i, "delta": 0.05, "top2": False} for i in range(10)]
    found, verdict = judged(pl.from_dicts(hit + small), "top-two")
    assert (found.value, found.n, verdict) == (1.0, 40, "direction")  # forty are not enough to be sure of 95 %
    missed = [row | {"top2": i >= 4} for i, row in enumerate(hit)]
    found, verdict = judged(pl.from_dicts(missed), "top-two")
    assert (found.value, verdict) == (0.9, "not reproduced")
    many = [FAULT | {"window": i} for i in range(120)]
    assert judged(pl.from_dicts(many), "top-two")[1] == "reproduced"


def test_one_visible_fault_is_no_proof() -> None:
    found, verdict = judged(pl.from_dicts([FAULT | {"window": 0, "visible": True}]), "top-two")
    assert round(found.low, 3) == 0.025 and verdict == "direction"


def test_the_best_dashboard_is_the_rival_and_sees_the_same_faults() -> None:
    rows = [FAULT | {"window": i} for i in range(10)]
    for name in DASHBOARDS:
        rows += [FAULT | {"window": i, "method": name, "top1": i < (8 if name == "own time" else 2)} for i in range(10)]
    found, _ = judged(pl.from_dicts(rows), "best-dashboard")
    assert (found.value, found.n, found.cases) == (pytest.approx(0.2), 10, "own time, of 5")


def test_a_confirmed_rank_of_two_that_are_equally_late_is_a_counterexample() -> None:
    row = FAULT | {"experiment": "co-critical", "recording": trials.WITHIN, "stage": "forward and backward"}
    table = pl.from_dicts([row | {"label": "confirmed"}, row | {"label": "co-critical"}])
    found, verdict = judged(table, "co-critical-within")
    assert (found.value, found.cases, verdict) == (0.5, "confirmed: forward and backward", "not reproduced")


@pytest.mark.parametrize("name", ["top-two", "best-dashboard", "means", "co-critical", "co-critical-within", "healthy"])
def test_where_the_steps_of_a_launch_scatter_nothing_is_said_of_it(name: str) -> None:
    rows = [
        FAULT | {"window": i, "experiment": kind, "recording": where, "method": method, "stage": "data", "noise": noise}
        for kind in ("faults", "co-critical", "healthy")
        for where in (trials.APART, trials.WITHIN)
        for method in ("frontier", *DASHBOARDS)
        for i, noise in enumerate([0.02] * 4 + [0.9] * 6)
    ]
    with pytest.raises(NotMeasured, match=r"too busy \(noise of 90% of a step, 1 times"):
        answer(name).measure(pl.from_dicts(rows))
    calm = pl.from_dicts(rows).with_columns(noise=pl.lit(0.04))
    assert answer(name).measure(calm).n
    # Another launch's noise counts as well: one table, one answer.
    with pytest.raises(NotMeasured, match="too busy"):
        answer(name).measure(pl.concat([calm, pl.from_dicts(rows).with_columns(pl.col("seed") + 1)]))


@pytest.mark.parametrize(
    ("gauged", "noises", "launched"),
    [
        (0.01, [0.1], [(1, 16)]),
        (0.39, [0.1], [(1, 16)]),  # no fault is lost in so much
        (0.9, [0.1], [(3, 16)]),
        (9.0, [0.1], [(4, 16)]),
        (0.01, [0.9, 0.1], [(1, 16), (2, 12)]),  # all are noisy: twice as slow
        (0.01, [{3: 0.9, 5: 0.9}, {3: 0.1, 5: 0.9}, 0.1], [(1, 16), (1, 2), (1, 1)]),  # two of them: these again
        (0.01, [0.9, 0.9, 0.9], [(1, 16), (2, 12), (4, 12)]),  # it does not get better: then that is how it is
    ],
)
def test_noise_alone_makes_the_job_slower_or_runs_windows_again(
    gauged: float, noises: list[Any], launched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def launch(job: Job, planned: Any, wanted: Any, profiled: Any, seed: int) -> dict[str, Any]:
        seen.append((round(job.step / trials.JOB.step), len(wanted)))
        least = min(fault.delay for stretch in planned for fault in stretch.faults)
        assert least == pytest.approx(0.1 * job.step)  # whatever its pace
        noise = noises[len(seen) - 1]
        at = noise if isinstance(noise, dict) else dict.fromkeys(wanted, noise)
        return {f"{i} frontier {trials.APART}": {"noise": at.get(i, 0.1)} for i in wanted}

    monkeypatch.setattr(trials, "gauge", lambda job, steps: gauged)
    monkeypatch.setattr(trials, "_launched", launch)
    trials.hidden_faults(1, (0.1, 1.0), 7, (), seed=5)
    assert seen == launched


def test_traces_are_compared_with_summaries_that_lead_to_the_same_stage() -> None:
    row = {"experiment": "profiler", "agrees": True, "trace_bytes": 1_000_000, "summary_bytes": 1_000, "seed": 7}
    table = pl.from_dicts([row, row, row, row | {"agrees": False, "trace_bytes": 1}])
    found, verdict = judged(table, "trace-bytes")
    assert (found.value, found.n, verdict) == (1000.0, 3, "direction")  # ln 1,000 / ln 143,700 is 0.58
    assert judged(table, "profilers")[1] == "not reproduced"


def test_an_identity_is_no_measurement() -> None:
    assert "telescope" in answer("accounting").construction


@pytest.mark.parametrize("seeds", [(12345, 7, 99), (1000,)])
def test_the_given_seeds_are_the_ones_that_run(monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]) -> None:
    ran: dict[str, list[int]] = {}

    def stand_in(name: str, row: dict[str, Any]) -> Callable[..., Any]:
        def trial(seed: int, **case: Any) -> dict[str, Any]:
            ran.setdefault(name, []).append(seed)
            return {"0": row}

        trial.__module__, trial.__qualname__ = trials.__name__, name
        return trial

    for name in ("hidden_faults", "many_ranks", "recorder_cost"):
        monkeypatch.setattr(trials, name, stand_in(name, trials._row(experiment=name)))
    lab = Lab("stagefrontier", seeds=seeds)
    stagefrontier.study(lab)
    assert ran["hidden_faults"] == list(seeds[:1]) and set(ran["many_ranks"]) == set(seeds[:2])
    assert ran["recorder_cost"] == list(seeds) and lab.used == set(seeds)
