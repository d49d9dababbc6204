"""Kineto-style traces of a data-parallel training job, of any size, with the schedule that they were written from.

A small schedule of a real loop: the host copies a batch, launches the forward kernels and, on a second thread, the
backward ones; after each layer's backward a bucket is all-reduced on a stream of its own, beside the next layers; the
optimiser waits for all of them, and the host for the device. A collective begins on a rank when its bucket is ready
there and ends on all ranks together. Each rank's clock is off by some amount.

>>> job = Job(ranks=2, steps=2, layers=3, slow_rank=1, slow_by=1.5)
>>> done = list(schedule(job))
>>> sorted({op.kind for op in done if op.rank == 0})
['call', 'comm', 'cpu', 'kernel', 'memcpy', 'step']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

BASE = 4_500_000_000_000_000  # ns: what a profiler's clock reads when it begins
COMPUTE, COPY, COMM = 7, 16, 20  # streams
MAIN, AUTOGRAD = 4242, 4311  # threads
_LATENCY, _CALL, _OP = 3_000, 4_000, 9_000  # ns: from a call to its kernel, a call, an operator around it
_KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_32x3_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_32x3_tn_align8::Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >"
    "(Flash_fwd_params)",
)
_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_OPTIMISER = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4> >()"
Times = NDArray[np.int64]
Kind = Literal["step", "cpu", "call", "kernel", "comm", "memcpy"]


@dataclass(frozen=True)
class Job:
    """What runs: `layers` a step, `bucket` bytes reduced after each; one rank may be `slow_by` times slower.

    `resolution` is that of the profiler's clock in ns: 1 gives fractions of microseconds, 1000 whole ones.
    """

    ranks: int = 2
    steps: int = 3
    layers: int = 12
    bucket: int = 25 << 20
    bandwidth: float = 100e9
    kernel: float = 60e-6
    slow_rank: int | None = None
    slow_by: float = 1.0
    skew: float = 0.5
    resolution: int = 1
    seed: int = 0
    numbered: bool = True  # collectives carry their number, as newer profilers write it


class Op(NamedTuple):
    """One thing that ran, in ns of its rank's clock; `link` joins a call with what it launched."""

    rank: int
    kind: Kind
    name: str
    place: int
    start: int
    end: int
    link: int
    seq: int
    step: int


class _Rank:
    """Where each rank's host and streams are; all times are arrays over ranks."""

    def __init__(self, job: Job) -> None:
        zero = np.full(job.ranks, BASE, np.int64)
        self.host, self.free = zero.copy(), {place: zero.copy() for place in (COMPUTE, COPY, COMM)}
        self.links = 0


def schedule(job: Job) -> Iterator[Op]:
    """Everything that runs, step by step; within a step in the order of launching."""
    random = stream(job.seed, "kineto", "job")
    off = np.round(random.uniform(-job.skew, job.skew, job.ranks) * 1e9).astype(np.int64)
    off -= off % job.resolution
    state = _Rank(job)
    number = 0
    for step in range(job.steps):
        begun = state.host.copy()
        ops, number = _step(job, state, random, step, number)
        for rank in range(job.ranks):
            ends = (int(begun[rank]), int(state.host[rank]))
            yield Op(
                rank,
                "step",
                f"ProfilerStep#{step}",
                MAIN,
                ends[0] + int(off[rank]),
                ends[1] + int(off[rank]),
                0,
                -1,
                step,
            )
        for kind, name, place, start, end, link, seq in ops:
            for rank in range(job.ranks):
                first, last = int(start[rank] + off[rank]), int(end[rank] + off[rank])
                yield Op(rank, kind, name, place, first, last, link, seq, step)


_Row = tuple[Kind, str, int, Times, Times, int, int]


def _step(job: Job, state: _Rank, random: np.random.Generator, step: int, number: int) -> tuple[list[_Row], int]:
    ops: list[_Row] = []

    def whole(times: NDArray[np.float64]) -> Times:
        return np.maximum(np.round(times / job.resolution), 1).astype(np.int64) * job.resolution

    def long(seconds: float) -> Times:
        slow = np.where(np.arange(job.ranks) == job.slow_rank, job.slow_by, 1.0)
        return whole(1e9 * seconds * slow * random.lognormal(0.0, 0.1, job.ranks))

    def host(nanoseconds: int) -> Times:
        return whole(nanoseconds * random.lognormal(0.0, 0.2, job.ranks))

    def launch(kind: Kind, op: str, call: str, name: str, thread: int, place: int, takes: Times, after: Times) -> Times:
        """An operator with its call inside, and what runs on the device; gives when that is over."""
        state.links += 1
        outer = state.host
        call_start = outer + host(_OP // 3)
        call_end = call_start + host(_CALL)
        state.host = call_end + host(_OP // 3)
        ready = np.maximum(np.maximum(state.free[place], call_end + whole(np.full(job.ranks, _LATENCY))), after)
        if kind == "comm":
            takes = ready.max() + takes.max() - ready  # together at the end
        ops.append(("cpu", op, thread, outer, state.host.copy(), state.links, -1))
        ops.append(("call", call, thread, call_start, call_end, state.links, -1))
        ops.append((kind, name, place, ready, ready + takes, state.links, number if kind == "comm" else -1))
        state.free[place] = ready + takes
        state.host = state.host + host(_OP // 3)
        return state.free[place]

    none = np.full(job.ranks, BASE, np.int64)
    copied = launch("memcpy", "aten::copy_", "cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", MAIN, COPY,
                    long(job.kernel * 2), none)  # fmt: skip
    for layer in range(job.layers):
        for name in _KERNELS:
            launch("kernel", "aten::mm", "cudaLaunchKernel", name, MAIN, COMPUTE, long(job.kernel),
                   copied if layer == 0 else none)  # fmt: skip
    peers = max(job.ranks, 2)  # a job of one rank is one of a pair whose other was not recorded
    transfer = 2 * (peers - 1) / peers * job.bucket / job.bandwidth + 10e-6
    for _ in range(job.layers):
        for name in _KERNELS[:2]:
            done = launch("kernel", "autograd::engine::evaluate_function: MmBackward0", "cudaLaunchKernel", name,
                          AUTOGRAD, COMPUTE, long(job.kernel), none)  # fmt: skip
        takes = np.repeat(whole(np.array([1e9 * transfer * random.lognormal(0.0, 0.05)])), job.ranks)
        launch("comm", "c10d::allreduce_", "cudaLaunchKernelExC", _REDUCE, AUTOGRAD, COMM, takes, done)
        number += 1
    for _ in range(3):
        launch("kernel", "aten::_foreach_addcdiv_", "cudaLaunchKernel", _OPTIMISER, MAIN, COMPUTE,
               long(job.kernel), state.free[COMM])  # fmt: skip
    waited = np.maximum(state.host + host(_CALL), np.maximum.reduce(list(state.free.values())) + host(_CALL // 2))
    ops.append(("call", "cudaDeviceSynchronize", MAIN, state.host, waited, 0, -1))
    state.host = waited + host(_OP)
    return ops, number


def write(job: Job, folder: Path, *, indent: str = "    ") -> list[Path]:
    """Write one `rank-N.json` for each rank, events last but for `distributedInfo`, as the profiler lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank-{rank}.json" for rank in range(job.ranks)]
    files = [path.open("w") for path in paths]
    try:
        for file in files:
            file.write('{\n  "schemaVersion": 1,\n  "displayTimeUnit": "ms",\n  "traceEvents": [\n')
            file.write(f'{indent}{{"ph": "M", "name": "thread_name", "pid": 1000, "tid": {MAIN}, "ts": 0, '
                       f'"args": {{"name": "thread {MAIN} (python)"}}}}')  # fmt: skip
        for op in schedule(job):
            _event(job, op, files[op.rank], indent)
        for rank, file in enumerate(files):
            info = f'"backend": "nccl", "rank": {rank}, "world_size": {job.ranks}'
            file.write(f'\n  ],\n  "traceName": "rank-{rank}.json",\n  "distributedInfo": {{{info}}}\n}}\n')
    finally:
        for file in files:
            file.close()
    return paths


def _event(job: Job, op: Op, file: IO[str], indent: str) -> None:
    ts, dur = _micro(job, op.start), _micro(job, op.end - op.start)
    match op.kind:
        case "step":
            place, args = f'"pid": 1000, "tid": {op.place}', '"External id": 0'
            cat = "user_annotation"
        case "cpu":
            place = f'"pid": 1000, "tid": {op.place}'
            args = (
                f'"External id": {op.link}, "Record function id": {op.link}, "Concrete Inputs": ["", "", ""], '
                '"Input type": ["c10::BFloat16", "c10::BFloat16", ""], "Input Dims": [[8192, 4096], [4096, 4096], []]'
            )
            cat = "cpu_op"
        case "call":
            place, args = (
                f'"pid": 1000, "tid": {op.place}',
                f'"External id": {op.link}, "cbid": 211, "correlation": {op.link}',
            )
            cat = "cuda_runtime"
        case _:
            place, args, cat = _on_device(job, op)
    file.write(
        f',\n{indent}{{\n{indent}"ph": "X", "cat": "{cat}", "name": "{op.name}", {place},\n'
        f'{indent}"ts": {ts}, "dur": {dur},\n{indent}"args": {{{args}}}}}'
    )
    if op.link and op.kind in ("call", "kernel", "comm", "memcpy"):  # the arrow that viewers draw
        phase, ends = ("s", "") if op.kind == "call" else ("f", ', "bp": "e"')
        file.write(
            f',\n{indent}{{"ph": "{phase}", "id": {op.link}, {place}, "ts": {ts}, "cat": "ac2g", "name": "ac2g"{ends}}}'
        )


def _on_device(job: Job, op: Op) -> tuple[str, str, str]:
    args = (
        f'"External id": {op.link}, "queued": 0, "device": 0, "context": 1, "stream": {op.place}, '
        f'"correlation": {op.link}'
    )
    if op.kind == "memcpy":
        args += f', "bytes": {job.bucket}, "memory bandwidth (GB/s)": 24.5'
        return f'"pid": 0, "tid": {op.place}', args, "gpu_memcpy"
    args += (
        ', "registers per thread": 128, "shared memory": 49152, "blocks per SM": 2.4, "warps per SM": 19.39, '
        '"grid": [32, 8, 1], "block": [256, 1, 1], "est. achieved occupancy %": 30'
    )
    if op.kind == "comm":
        ranks = ", ".join(map(str, range(job.ranks)))
        args += (
            f', "Collective name": "allreduce", "In msg nelems": {job.bucket // 2}, "Out msg nelems": {job.bucket // 2}'
            f', "Group size": {job.ranks}, "dtype": "BFloat16", "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": "[{ranks}]"'
        )
        if job.numbered:
            args += f', "Seq": {op.seq}'
    return f'"pid": 0, "tid": {op.place}', args, "kernel"


def _micro(job: Job, nanoseconds: int) -> str:
    """As the profiler writes a time: microseconds, with a fraction where its clock has one."""
    if job.resolution % 1000 == 0:
        return str(nanoseconds // 1000)
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
