"""Waits of the host, in the words of several vendors: the same program has the same path, whatever its calls' names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.traces.breakdown import split
from assay.observe.traces.host_waits import host_waits
from assay.observe.traces.kernel_path import critical_path, links
from assay.observe.traces.report import report
from assay.sim.telemetry import Frame
from assay.workloads import kineto
from tests.oracles.host_waits import Call, Op, waits

US = 1000


@dataclass(frozen=True)
class Vendor:
    """What a vendor's profiler calls the same things."""

    launch: str
    copy: str
    sync: str
    malloc: str
    runtime: str
    copied: str = "Memcpy DtoH (Device -> Pageable)"
    on_device: dict[str, str] = field(default_factory=lambda: {"kernel": "kernel", "copy": "gpu_memcpy"})
    link: str = "correlation"
    processes: dict[int, str] = field(default_factory=dict)


VENDORS = {
    "cuda": Vendor("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc", "cuda_runtime"),
    "cuda driver": Vendor("cuLaunchKernel", "cuMemcpyDtoH_v2", "cuCtxSynchronize", "cuMemAlloc_v2", "cuda_driver"),
    "rocm": Vendor("hipLaunchKernel", "hipMemcpyWithStream", "hipDeviceSynchronize", "hipMalloc", "cuda_runtime",
                   "CopyDeviceToHost"),
    "xpu": Vendor("urEnqueueKernelLaunch", "urEnqueueUSMMemcpy", "urQueueFinish", "urUSMDeviceAlloc", "xpu_runtime",
                  "Memcpy D2M (Device -> Memory)"),
    "level zero": Vendor("zeCommandListAppendLaunchKernel", "zeCommandListAppendMemoryCopy", "zeFenceHostPoll",
                         "zeMemAllocDevice", "xpu_driver", "Memcpy D2M (Device -> Memory)"),
    "mtia": Vendor("runFunction", "copyToHost", "synchronizeStream", "allocate", "mtia_runtime", "dma_request",
                   {"kernel": "mtia_ccp_events", "copy": "mtia_ccp_events"}),
    "private": Vendor("musaLaunchKernel", "musaMemcpy", "musaStreamSynchronize", "musaMalloc", "privateuse1_runtime"),
    "ascend": Vendor("Node@launch", "AscendCL@aclrtMemcpy", "AscendCL@aclrtSynchronizeStreamWithTimeout",
                     "AscendCL@aclrtMalloc", "", "MEMCPY_ASYNC", {"kernel": "", "copy": ""}, "connection_id",
                     {7: "Python", 8: "CANN", 0: "Ascend Hardware", 9: "Overlap Analysis"}),
}  # fmt: skip

# what, its number, start and end in µs: a launch, a copy that blocks, memory, a launch and a wait for it, a launch
PROGRAM = [
    ("launch", 1, 0, 5), ("kernel", 1, 5, 205), ("copy call", 2, 10, 220), ("copy", 2, 205, 215),
    ("malloc", 0, 220, 320), ("launch", 3, 325, 330), ("kernel", 3, 332, 532), ("sync", 0, 335, 540),
    ("launch", 4, 545, 550), ("kernel", 4, 552, 600),
]  # fmt: skip
PATH = [
    ("kernel", 5, 205), ("memcpy", 205, 215), ("sync", 215, 220), ("host", 220, 325), ("launch", 325, 332),
    ("kernel", 332, 532), ("sync", 532, 540), ("host", 540, 545), ("launch", 545, 552), ("kernel", 552, 600),
]  # fmt: skip


def recorded(vendor: Vendor, folder: Path) -> Frame:
    """The program as this vendor's profiler writes it down."""
    names = {"launch": vendor.launch, "copy call": vendor.copy, "sync": vendor.sync, "malloc": vendor.malloc,
             "kernel": "gemm", "copy": vendor.copied}  # fmt: skip
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in vendor.processes.items()
    ]
    for what, number, start, end in PROGRAM:
        device = what in ("kernel", "copy")
        pid, tid = (0, 20) if device else (8 if vendor.processes else 7, 1)
        cat = vendor.on_device[what] if device else vendor.runtime
        event: dict[str, Any] = {"ph": "X", "name": names[what], "pid": pid, "tid": tid, "ts": str(start) + ".0",
                                 "dur": end - start, "args": {vendor.link: number} if number else {}}  # fmt: skip
        events.append(event | ({"cat": cat} if cat else {}))
    if vendor.processes:  # what the profiler worked out from the rest is no work of anybody's
        events.append({"ph": "X", "name": "Computing", "pid": 9, "tid": 0, "ts": "0", "dur": 600})
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return kineto.read(path)


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_same_program_has_the_same_path_in_every_vendors_words(vendor: str, tmp_path: Path) -> None:
    path = critical_path(links(recorded(VENDORS[vendor], tmp_path)))
    assert path.select("kind", "start", "end").rows() == [(kind, a * US, b * US) for kind, a, b in PATH]


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_lies_in_the_hosts_time_is_named(vendor: str, tmp_path: Path) -> None:
    about = report(recorded(VENDORS[vendor], tmp_path))["critical_path"]
    assert about["host"][0] == {"name": VENDORS[vendor].malloc, "seconds": pytest.approx(100e-6)}
    assert {row["name"] for row in about["host"][1:]} == {""}  # nothing is recorded of the rest
    assert sum(row["seconds"] for row in about["host"]) == pytest.approx(about["kinds"]["host"])
    assert next(row["name"] for row in about["longest"] if row["kind"] == "host") == VENDORS[vendor].malloc


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_breakdown_knows_the_device_by_its_profilers_words(vendor: str, tmp_path: Path) -> None:
    row = split(recorded(VENDORS[vendor], tmp_path)).row(0, named=True)
    assert (row["total"], row["compute"], row["memcpy"]) == (595 * US, 448 * US, 10 * US)


def test_a_stream_that_waits_for_another_computes_nothing(tmp_path: Path) -> None:
    """Accelerators whose queues are processors note such waits as work of the stream."""
    events = [
        {"ph": "X", "cat": "mtia_ccp_events", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur}
        for name, tid, ts, dur in (("merge", 1, 0, 100), ("event_wait", 2, 0, 100), ("remote", 2, 100, 20))
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert split(kineto.read(path)).row(0, named=True)["compute"] == 120 * US
    assert "event_wait" not in [row["name"] for row in report(kineto.read(path))["kernels"]]


# ------------------------------------------------------------------------------------------------- what is no wait


def frame_of(calls: list[Call], ops: list[Op]) -> Frame:
    """A thread of calls that do not overlap, and streams."""
    streams = sorted({op.stream for op in ops})
    entities = [{"id": 0, "kind": "rank", "name": "0", "parent": None},
                {"id": 1, "kind": "thread", "name": "t", "parent": 0},
                *({"id": 10 + one, "kind": "stream", "name": str(one), "parent": 0} for one in streams)]  # fmt: skip
    spans = [{"span": 1 + at, "entity": 1, "name": call.name, "cat": "other", "start": call.start,
              "dur": call.end - call.start} for at, call in enumerate(calls)]  # fmt: skip
    spans += [{"span": 1000 + at, "entity": 10 + op.stream, "name": "k", "cat": "kernel", "start": op.start,
               "dur": op.end - op.start} for at, op in enumerate(ops)]  # fmt: skip
    edges = [{"src": 1 + op.call, "dst": 1000 + at, "kind": "calls"} for at, op in enumerate(ops) if op.call >= 0]
    return Frame.of(entities, spans=spans, edges=edges)


def waited(calls: list[Call], ops: list[Op]) -> dict[int, int]:
    """For each call that waited, when what it waited for was over."""
    joined = links(frame_of(calls, ops))
    at = {(call.start, call.end): i for i, call in enumerate(calls)}
    times = zip(joined.sync_start.tolist(), joined.sync_end.tolist(), strict=True)
    return {at[time]: int(joined.end[op]) for time, op in zip(times, joined.sync_op.tolist(), strict=True)}


def test_memory_that_took_long_is_no_wait_though_the_device_ran_dry_meanwhile() -> None:
    calls = [Call("cudaMalloc", 10 * US, 900 * US)]
    assert waited(calls, [Op(7, 0, 100 * US)]) == {}


def test_slow_launches_into_a_full_queue_are_no_waits() -> None:
    calls = [Call("cudaLaunchKernel", i * 40 * US, (i * 40 + 35) * US) for i in range(5)]
    ops = [Op(7, (200 + 50 * i) * US, (250 + 50 * i) * US, i * 40 * US, i) for i in range(5)]
    assert waited(calls, ops) == {}


def test_a_launch_that_blocks_is_a_wait() -> None:
    """As with CUDA_LAUNCH_BLOCKING=1."""
    calls = [Call("cudaLaunchKernel", 0, 230 * US)]
    assert waited(calls, [Op(7, 10 * US, 220 * US, 0, 0)]) == {0: 220 * US}


def test_a_free_that_waits_for_the_device_is_a_wait() -> None:
    calls = [Call("cudaFree", 20 * US, 130 * US)]
    assert waited(calls, [Op(7, 0, 120 * US, -1), Op(8, 0, 60 * US)]) == {0: 120 * US}


def test_an_event_in_the_middle_of_a_stream_is_waited_for_though_the_stream_goes_on() -> None:
    launch = Call("urEnqueueKernelLaunch", 0, 4 * US)
    ops = [Op(7, US, 100 * US, 0, 0), Op(7, 100 * US, 400 * US, 0, 0)]
    assert waited([launch, Call("urEventWait", 5 * US, 108 * US)], ops) == {1: 100 * US}
    assert waited([launch, Call("urUSMHostAlloc", 5 * US, 108 * US)], ops) == {}


ops_drawn = st.builds(
    lambda stream, start, dur, early: (stream, start * 10 * US, dur * 10 * US, early * 10 * US),
    st.integers(0, 2), st.integers(1, 60), st.integers(0, 12), st.integers(-1, 12),
)  # fmt: skip
names_drawn = st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "urEventWait", "cudaLaunchKernel"])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(names_drawn, st.integers(1, 12), st.integers(0, 6)), max_size=8),
    st.lists(st.tuples(ops_drawn, st.integers(-1, 7)), min_size=1, max_size=10),
)
def test_waits_are_those_of_the_slow_reading(
    drawn: list[tuple[str, int, int]], some: list[tuple[tuple[int, int, int, int], int]]
) -> None:
    calls, now = [], 0
    for name, length, pause in drawn:
        calls.append(Call(name, now, now + length * 7 * US))
        now = calls[-1].end + pause * US
    ops = []
    for (stream, start, dur, early), call in some:
        linked = 0 <= call < len(calls)
        start = max(start, calls[call].start) if linked else start
        del early  # who launched is known where the call is, and only there
        ops.append(Op(stream, start, start + dur, calls[call].start if linked else -1, call if linked else -1))
    assert waited(calls, ops) == waits(calls, ops)


def test_the_table_of_waits_names_the_rows_that_were_waited_for() -> None:
    calls = [Call("cudaLaunchKernel", 0, 4 * US), Call("cudaFree", 20 * US, 130 * US)]
    frame = frame_of(calls, [Op(7, US, 60 * US, 0, 0), Op(7, 60 * US, 120 * US, 0, 0)])
    joined = links(frame)
    found = host_waits(frame, joined.ops)
    assert found.select("start", "end", "op").rows() == [(20 * US, 130 * US, 1)]
    assert found.schema["op"] == pl.Int64
