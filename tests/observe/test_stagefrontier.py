"""StageFrontier: the paper's component, its study's pieces, and what the dashboards beside it do."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import assay
from assay.observe import stagefrontier
from assay.observe.ddp import SLOW, Fault, Job
from assay.observe.frontier import profiled, trials
from assay.observe.frontier.collector import STAGES, SYNC_STAGES, Vectors, frame
from assay.observe.frontier.dashboards import DASHBOARDS
from assay.observe.frontier.diagnosis import diagnose
from assay.observe.stagefrontier import StageFrontier
from assay.record.errors import BadInput
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
    planned = trials.schedule(50, 10, Job(), seed=1)
    single = [stretch.faults[0] for stretch in planned if len(stretch.faults) == 1]
    assert len(single) == 50
    assert {(f.kind, round(f.delay / Job().step, 2)) for f in single} == {(k, d) for k in SLOW for d in trials.DELTAS}
    assert len({fault.rank for fault in single}) == 4
    assert not planned[0].faults
    assert sum(not stretch.faults for stretch in planned) >= 10
    assert planned != trials.schedule(50, 10, Job(), seed=2)


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
    rows = trials.recorder_cost(steps=20, step=0.05, seed=0)
    assert all(row["share"] == row["seconds"] / 0.05 > 0 for row in rows.values())


def test_every_claim_of_the_paper_is_answered_word_for_word() -> None:
    papers = tomllib.loads((Path(assay.__file__).parent / "record" / "papers.toml").read_text())["paper"]
    stated = [claim["text"] for paper in papers if paper["key"] == "stagefrontier" for claim in paper["claims"]]
    assert [claim.text for claim in stagefrontier.claims][: len(stated)] == stated


def test_the_claims_read_a_table_of_the_study() -> None:
    row = {"experiment": "faults", "method": "frontier", "recording": trials.APART, "visible": True, "seed": 0}
    rows = [
        row | {"top1": i > 0, "top2": True, "stage_top1": True, "label": "confirmed", "delta": 0.5} for i in range(4)
    ]
    unseen = row | {"visible": False, "top1": False, "top2": False, "stage_top1": False, "label": ""}
    rows += [unseen | {"delta": delta} for delta in (0.05, 0.1)]
    rows += [row | {"recording": trials.WITHIN, "method": "mean", "stage_top1": i > 2} for i in range(4)]
    rows += [row | {"experiment": "co-critical", "label": "co-critical"}, row | {"experiment": "healthy", "label": ""}]
    table = pl.from_dicts(rows, infer_schema_length=None)
    answers = {claim.text.split(",")[0]: claim.measure for claim in stagefrontier.claims}
    assert answers["share of 50 injected faults"](table).value == 1.0
    assert answers["the first suspect is the right rank and stage"](table).value == 0.75
    assert answers["of all faults from a tenth of a step up"](table).value == 4 / 5  # those too that noise hides
    assert stagefrontier.misrouted("mean", trials.WITHIN)(table).value == 0.75
    assert stagefrontier.unconfirmed(trials.APART)(table).value == stagefrontier.silent(table).value == 1.0
