"""Metrics of a benchmark row: exact on intervals, silent about nothing, and never a change to the evidence."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.traces import cards, rows
from assay.observe.traces import metrics as trace_metrics
from assay.observe.traces.cards import Card
from assay.observe.traces.metrics import METRICS, Row, explain, load, measure, metrics_table
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads.kineto_file import read_file
from assay.workloads.kineto_generate import Job, write

MS = 1_000_000
ENTITIES = [
    {"id": 0, "kind": "rank", "name": "0"},
    {"id": 1, "kind": "stream", "name": "7", "parent": 0},
    {"id": 2, "kind": "stream", "name": "20", "parent": 0},
    {"id": 3, "kind": "thread", "name": "main", "parent": 0},
]


def span(cat: str, start: int, end: int, name: str = "x", entity: int = 1, **more: Any) -> dict[str, Any]:
    return {"entity": entity, "name": name, "cat": cat, "start": start, "dur": end - start, **more}


def row(spans: list[dict[str, Any]], card: Card | None = None, entities: list[dict[str, Any]] | None = None) -> Row:
    numbered = [{"span": number, **one} for number, one in enumerate(spans, 1)]
    return Row(card or Card(), Frame.of(entities or ENTITIES, spans=numbered))


def value(one: Row, metric: str) -> float | None:
    found: float | None = measure(one, [metric])["value"][0]
    return found


def why(one: Row, metric: str) -> str:
    line = measure(one, [metric])
    assert line["value"][0] is None
    return str(line["why"][0])


# ------------------------------------------------------------------------------------------ sets of time


interval = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(interval, min_size=1, max_size=6),
    st.lists(interval, min_size=1, max_size=6),
    st.lists(interval, max_size=4),
    interval,
)
def test_overlap_exposure_and_idleness_are_those_of_counting_every_instant(
    compute: list[tuple[int, int]], comm: list[tuple[int, int]], copies: list[tuple[int, int]], step: tuple[int, int]
) -> None:
    spans = [span("kernel", *one) for one in compute] + [span("comm", *one, entity=2) for one in comm]
    spans += [span("memcpy", *one) for one in copies] + [span("step", *step, entity=3, seq=1)]
    one = row(spans)
    busy = {}
    for name, some in (("compute", compute), ("comm", comm), ("copies", copies)):
        busy[name] = np.zeros(100, bool)
        for start, end in some:
            busy[name][start:end] = True
    within = slice(*step)
    both, any_of = busy["compute"] & busy["comm"], busy["compute"] | busy["comm"] | busy["copies"]
    total = step[1] - step[0]
    parts = one.steps.row(0, named=True)
    assert parts["overlapped"] + parts["exposed"] == parts["comm"] == int(busy["comm"][within].sum())
    assert parts["idle"] + int(any_of[within].sum()) == total
    if busy["comm"][within].any():
        overlap = value(one, "compute_comm_overlap")
        assert overlap is not None
        assert 0.0 <= overlap <= 1.0
        assert overlap == pytest.approx(both[within].sum() / busy["comm"][within].sum())
    else:
        assert "within a step" in why(one, "compute_comm_overlap")
    assert value(one, "idle_share") == pytest.approx(1 - any_of[within].sum() / total)


def test_two_collectives_at_once_are_counted_once() -> None:
    """Sums of durations would give 160 of 100 for communication, and an overlap of one half."""
    spans = [span("step", 0, 100, entity=3, seq=1), span("kernel", 0, 40), span("comm", 0, 80, entity=2)]
    one = row([*spans, span("comm", 20, 100, entity=2)])
    assert value(one, "compute_comm_overlap") == pytest.approx(0.4)
    assert value(one, "communication_fraction") == pytest.approx(1.0)


def test_with_a_gpu_the_host_s_collectives_are_communication_too() -> None:
    comm = span("comm", 30, 90, "gloo:all_reduce", entity=3)
    one = row([span("kernel", 0, 40), comm, span("step", 0, 100, entity=3, seq=1)])
    assert one.device.filter(pl.col("cat") == "comm")["dur"].to_list() == [60]
    assert value(one, "compute_comm_overlap") == pytest.approx(1 / 6)
    assert "which kernels waited" in why(one, "scale_up_bw_utility")


def test_handing_a_collective_over_is_no_compute() -> None:
    hosts = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "thread", "name": "main", "parent": 0},
             {"id": 2, "kind": "thread", "name": "gloo", "parent": 0}]  # fmt: skip
    spans = [span("cpu_op", 0, 50, "aten::mm"), span("cpu_op", 50, 100, "c10d::allreduce_"),
             span("comm", 50, 100, "gloo:all_reduce", entity=2)]  # fmt: skip
    assert value(row(spans, entities=hosts), "compute_comm_overlap") == 0.0


# --------------------------------------------------------------------------------------- one metric each


def test_step_time_is_the_mean_over_ranks_and_steps() -> None:
    spans = [span("step", 0, 10 * MS, entity=3, seq=1), span("step", 10 * MS, 30 * MS, entity=3, seq=2)]
    assert value(row([*spans, span("kernel", 0, MS)]), "avg_step_time") == pytest.approx(0.015)


def test_the_first_pass_of_an_engine_is_the_first_token_s() -> None:
    serving = cards.parse("workload: {model: {phase: inference}}")
    passes = [span("annotation", 50 * i * MS, (50 * i + (40 if i == 0 else 10)) * MS, "execute_context_0_generation_1",
                   entity=3) for i in range(3)]  # fmt: skip
    one = row([*passes, span("kernel", 0, MS)], serving)
    assert value(one, "ttft") == pytest.approx(0.040)
    assert value(one, "tpot") == pytest.approx(0.010)
    assert "training run" in why(row([*passes, span("kernel", 0, MS)]), "ttft")


CARD = """
workload:
  model: {phase: PHASE, moe: MOE, precision: bf16,
          model_arch: {num_params: 8.0e9, num_params_embedding: 1.0e9, num_layers: 32, num_heads: 32, head_dim: 128}}
  data: {batch_size: 4, seq_len: 512}
  hardware: {xpu_spec: {type: GPU, model: DEVICE, total_count: 4}}
"""


def _card(phase: str = "training", moe: str = "false", device: str = "nvidia_a100") -> Card:
    return cards.parse(CARD.replace("PHASE", phase).replace("MOE", moe).replace("DEVICE", device))


def test_mfu_is_the_paper_s_formula() -> None:
    second = [span("step", 0, 1000 * MS, entity=3, seq=1), span("step", 1000 * MS, 2000 * MS, entity=3, seq=2)]
    work = [*second, span("kernel", 0, MS)]
    attention = 32 * 32 * 128 * 512
    trained = (6 * 7e9 + 12 * attention) * 4 * 512 / (312e12 * 4)
    assert value(row(work, _card()), "mfu") == pytest.approx(trained)
    assert value(row(work, _card("inference")), "mfu") == pytest.approx((2 * 7e9 + 4 * attention) * 4 / (312e12 * 4))
    on_tpu = value(row(work, _card(device="tpu_v6e")), "mfu")
    assert on_tpu == pytest.approx(trained * 312 / 918)
    assert "num_params_active" in why(row(work, _card(moe="true")), "mfu")
    assert "peak of 'abacus'" in why(row(work, _card(device="abacus")), "mfu")


def test_bandwidth_has_the_bus_factor_of_its_collective() -> None:
    two = [{"id": i, "kind": "rank", "name": str(i)} for i in range(2)]
    two += [{"id": 2 + i, "kind": "stream", "name": "7", "parent": i} for i in range(2)]
    spans = [span("comm", 0, MS, "ncclDevKernel_AllReduce_Sum", entity=2 + i, bytes=4_000_000, group="0", seq=1)
             for i in range(2)]  # fmt: skip
    spans += [span("comm", MS, 2 * MS, "ncclDevKernel_AllGather", entity=2 + i, bytes=4_000_000, group="0", seq=2)
              for i in range(2)]  # fmt: skip
    one = row(spans, entities=two)
    assert value(one, "all_reduce_bandwidth") == pytest.approx(4e9)
    assert value(one, "all_gather_bandwidth") == pytest.approx(2e9)
    assert value(one, "collective_volume") == pytest.approx(8e6)
    assert value(one, "all_gather_volume") == pytest.approx(4e6)
    alone = row(spans[:1], entities=two)
    assert "how many ranks" in why(alone, "all_reduce_bandwidth")


def test_ranks_are_compared_only_where_there_are_two() -> None:
    two = [{"id": i, "kind": "rank", "name": str(i)} for i in range(2)]
    two += [{"id": 2 + i, "kind": "stream", "name": "7", "parent": i} for i in range(2)]
    spans = [span("kernel", 0, 30, entity=2), span("kernel", 0, 10, entity=3)]
    spans += [span("comm", 30, 40, entity=2), span("comm", 10, 40, entity=3)]
    one = row(spans, entities=two)
    assert value(one, "load_imbalance") == pytest.approx(1.0)
    assert value(one, "straggler_delay") == pytest.approx(2 / 3)
    assert "two ranks" in why(row([span("kernel", 0, 30), span("comm", 30, 40)]), "straggler_delay")


def test_links_twice_as_fast_save_half_of_an_exposed_transfer() -> None:
    one = row([span("comm", 0, 60, "nccl", bytes=8, seq=1), span("kernel", 60, 100)])
    assert value(one, "scale_up_bw_utility") == pytest.approx(0.3)


# ------------------------------------------------------------------------------------ what is missing, what is new


def test_what_a_row_lacks_is_not_applicable_with_a_reason_and_never_zero() -> None:
    bare = measure(row([span("kernel", 0, 100)]))
    lacking = bare.filter(pl.col("value").is_null())
    assert set(lacking["metric"]) == set(METRICS) - {"dominant_kernel_share", "idle_share"}
    assert all(len(reason) > 10 for reason in lacking["why"].to_list())
    unsized = row([span("kernel", 0, 100), span("comm", 0, 50, "ncclAllReduce", entity=2)])
    assert "sizes" in why(unsized, "collective_volume")
    assert "sizes" in why(unsized, "all_reduce_bandwidth")


def test_a_metric_thought_of_later_runs_on_an_old_row_and_leaves_the_evidence_as_it_was(tmp_path: Path) -> None:
    paths = write(Job(ranks=2, steps=2, layers=3), tmp_path)
    (tmp_path / "card.yaml").write_text("workload: {}")
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    new = {"kernels": lambda one: float(len(one.device)), "odd": lambda one: float("nan")}
    found = metrics_table(tmp_path, {**METRICS, **new})
    kernels = found.filter(pl.col("metric") == "kernels")["value"].to_list()
    assert kernels[0] > 10
    assert found.filter(pl.col("metric") == "odd")["why"][0] == "the evidence gives no finite number"
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()} == before
    assert len(paths) == 2


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match="no metric 'speed'; there are avg_step_time"):
        measure(row([span("kernel", 0, 1)]), ["speed"])


def test_two_rows_are_explained_by_their_metrics_and_the_kernels_that_changed() -> None:
    fast = row([span("kernel", 0, 50, "gemm"), span("comm", 50, 60, "ncclAllReduce", entity=2)])
    slow = row([span("kernel", 0, 50, "gemm"), span("comm", 50, 150, "ncclAllReduce", entity=2)])
    metrics, kernels = explain(fast, slow)
    exposed = metrics.filter(pl.col("metric") == "exposed_comm_time")
    assert exposed["ratio"][0] == pytest.approx(10.0)
    assert kernels["name"][0] == "ncclAllReduce"
    assert kernels["change"][0] == pytest.approx(90e-9)


# ------------------------------------------------------------------------------------------------ reading a row


def test_a_folder_without_a_card_gets_one_drafted_from_its_traces(tmp_path: Path) -> None:
    write(Job(ranks=2, steps=2, layers=3), tmp_path)
    one = load(tmp_path)
    assert one.card.workload.hardware.xpu_spec.total_count == 2
    assert one.card.executor.library.name == "nccl"
    assert "check every line" in one.card.description
    assert cards.parse(cards.text(one.card)) == one.card
    for name in ("avg_step_time", "compute_comm_overlap", "all_reduce_bandwidth", "scale_up_bw_utility"):
        assert value(one, name) is not None


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no trace in it"):
        load(tmp_path)
    with pytest.raises(BadInput, match="No such file"):
        load(tmp_path / "nowhere")


def _events() -> dict[str, Any]:
    gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_gather", "pid": 1, "tid": 2, "ts": 5.5, "dur": 10,
            "args": {"Input type": ["float"], "Input Dims": [[100]]}}  # fmt: skip
    several = {**gloo, "name": "gloo:all_reduce", "ts": 20,
               "args": {"Input type": ["c10::BFloat16"], "Input Dims": [[[10, 2], [5]]]}}  # fmt: skip
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 8, "args": {}}
    kernels = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": dur,
                "args": {"grid": [blocks, 1, 1], "stream": 7}} for blocks, dur in ((66, 1), (500, 3))]  # fmt: skip
    about = {"rank": 0, "world_size": 2, "backend": "gloo"}
    return {"deviceProperties": [{"name": "NVIDIA H200", "numSms": 132}], "distributedInfo": about,
            "traceEvents": [gloo, several, operator, *kernels]}  # fmt: skip


def test_sizes_of_the_host_s_collectives_and_grids_come_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json.gz").write_bytes(gzip.compress(json.dumps(_events()).encode()))
    one = load(tmp_path)
    comm = one.device.filter(pl.col("cat") == "comm").sort("start")
    assert comm["bytes"].to_list() == [2 * 400, 50]  # a gather is as large as its result; a list of tensors is summed
    assert value(one, "mean_sm_coverage") == pytest.approx((0.5 * 1 + 1.0 * 3) / 4)
    assert one.card.workload.hardware.xpu_spec.model == "nvidia_h200"


def test_a_file_cut_short_still_gives_times_and_says_what_it_cannot(tmp_path: Path) -> None:
    path = write(Job(ranks=1, steps=3, layers=3), tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-2000])
    one = load(tmp_path)
    assert any("ends early" in what for what in one.frame.repairs)
    assert value(one, "avg_step_time") is not None
    assert "grids" in why(one, "mean_sm_coverage")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_details_of_a_damaged_file_are_sound_or_it_is_refused(tmp_path_factory: Any, data: st.DataObject) -> None:
    held = bytearray(json.dumps(_events()).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(32, 126))
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(bytes(held[: data.draw(st.integers(0, len(held)))]))
    try:
        found = rows.details(read_file(path, detailed=True))
    except BadInput:
        return
    assert (found.kernels["blocks"] >= 0).all() and (found.kernels["dur"] >= 0).all()


def test_the_table_of_metrics_names_each_once() -> None:
    assert trace_metrics.measure(row([span("kernel", 0, 1)]))["metric"].is_unique().all()
