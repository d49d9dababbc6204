"""The training job of the lab `ddp`, as one rank runs it: real DistributedDataParallel over gloo, recorded as it goes.

The job knows the faults, the recorder does not: a fault sits in the data set, in a layer, in a gradient hook, in the
optimizer or in the checkpoint's file, where such faults live. Healthy "compute" is mostly sleep, because four busy
ranks on two cores would measure the scheduler; a small real model runs its forward and backward pass besides, and its
gradients really are reduced over sockets. A slow-down is real work (matrix products, fsync), for as long as it says.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.observe.frontier.collector import SYNC_STAGES, Collector
from assay.sim.gloo_ranks import joined
from assay.sim.ranks import Rank

if TYPE_CHECKING:
    from assay.observe.stagefrontier.ddp import Fault, Job, Stretch

IMPORTS = (__name__, "torch", "torch.nn.parallel", "torch._dynamo")  # the last by every optimizer, torch's longest
IMPORTING = 300.0  # seconds until the last rank must have torch
BEAT = 0.05  # seconds between two signs of life
PUBLISHED = 10  # steps after which a rank hands over what it recorded
_CHECKPOINT = bytes(16_384)


class Trouble:
    """The faults of this rank, as the job's own parts meet them. `due` is set by the schedule before every step."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.due = rank, ()  # type: int, tuple[Fault, ...]
        self._matrix = np.ones((64, 64), np.float32)
        self._file = folder / f"checkpoint-{rank}.bin"

    def of(self, *kinds: str) -> Fault | None:
        """The fault of one of these kinds that this rank has now."""
        return next((fault for fault in self.due if fault.kind in kinds and fault.rank == self.rank), None)

    def stall(self) -> None:
        """The data are late: nothing to do but wait."""
        if fault := self.of("data"):
            time.sleep(fault.delay)

    def work(self, kind: str) -> None:
        """More work than the others have."""
        if fault := self.of(kind):
            until(fault.delay, lambda: self._matrix @ self._matrix)

    def save(self) -> None:
        """A checkpoint; where the disk is slow, fsync takes its time."""
        with self._file.open("wb", buffering=0) as file:
            file.write(_CHECKPOINT)
            if fault := self.of("checkpoint"):
                until(fault.delay, lambda: flush(file))

    def die(self) -> None:
        """What ends a rank or freezes it."""
        if fault := self.of("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL)


def flush(file: FileIO) -> None:
    """A few bytes more, all the way to the disk."""
    file.write(b"\0" * 512)
    os.fsync(file.fileno())


def until(seconds: float, work: Callable[[], object]) -> None:
    """Work for so long, at least once."""
    end = time.perf_counter() + seconds
    work()
    while time.perf_counter() < end:
        work()


def work(rank: Rank, job: Job, schedule: tuple[Stretch, ...], folder: str) -> int:
    """All stretches of a schedule on one rank; durations and signs of life go into the shared arrays."""
    with joined(rank, folder, patience=job.patience, importing=IMPORTING, leave=False):
        return _train(rank, job, schedule, folder)


def _train(rank: Rank, job: Job, schedule: tuple[Stretch, ...], folder: str) -> int:
    trouble = Trouble(rank.index, Path(folder))
    collector = Collector(rank.index, rank.size, SYNC_STAGES)
    threading.Thread(target=_beat, args=(collector, rank), daemon=True).start()
    step = trainer(job, trouble, collector)
    for _ in range(job.warm_up):
        step()
    begun = collector.steps
    for number, stretch in enumerate(schedule):
        trouble.due = stretch.faults
        with profiled(stretch, Path(folder), number, rank.index):
            collector.start()  # what a profiler takes to start or to write its trace is no step's time
            for _ in range(stretch.steps):
                step()
                if collector.steps % PUBLISHED == 0:
                    _publish(collector, rank, begun)
    _publish(collector, rank, begun)
    rank.meet(job.patience)  # a rank that left early would look like a dead one to gloo
    return collector.steps - begun


def trainer(job: Job, trouble: Trouble, collector: Collector) -> Callable[[], None]:
    """A function that trains one step, its stages recorded."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(_model(job, trouble))
    sync = collector.index("sync")
    model.register_comm_hook(None, _reducing(lambda: collector.begin(sync), trouble))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer.register_step_pre_hook(lambda *_: _host_work(job, trouble))
    batches = _batches(job, trouble)
    seen: list[Any] = [None]

    def step() -> None:
        with collector.stage("data"):
            seen[0] = next(batches)
        with collector.stage("forward"):
            loss = model(seen[0]).square().mean()
        with collector.stage("backward"):  # the last gradient bucket opens `sync` inside; leaving closes both
            trouble.die()
            if not trouble.of("absent"):
                loss.backward()
            else:
                time.sleep(job.patience)
        with collector.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with collector.stage("checkpoint"):
            time.sleep(job.checkpoint)
            trouble.save()
        collector.step()

    return step


def _host_work(job: Job, trouble: Trouble) -> None:
    time.sleep(job.optimizer)
    trouble.work("optimizer")


def _model(job: Job, trouble: Trouble) -> Any:
    import torch

    class Passes(torch.autograd.Function):
        """The identity, whose two directions take as long as a bigger model's."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            time.sleep(job.forward)
            trouble.work("forward")
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            time.sleep(job.backward)
            trouble.work("backward")
            return gradients[0]

    class Layer(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Passes.apply(x)

    return torch.nn.Sequential(
        torch.nn.Linear(job.width, job.width), Layer(), torch.nn.ReLU(), torch.nn.Linear(job.width, job.width)
    )


def _batches(job: Job, trouble: Trouble) -> Iterator[Any]:
    import torch

    class Examples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> Any:
            if index % job.batch == 0:
                time.sleep(job.data)
                trouble.stall()
            return torch.full((job.width,), float(index % 7))

    return iter(torch.utils.data.DataLoader(Examples(), batch_size=job.batch))


def _reducing(ready: Callable[[], None], trouble: Trouble) -> Callable[[Any, Any], Any]:
    """DDP's own all-reduce, telling when the last bucket of gradients is ready and only waiting is left."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def reduce(state: Any, bucket: Any) -> Any:
        if trouble.of("mismatch"):  # not the size the others reduce
            dist.all_reduce(torch.ones(bucket.buffer().numel() // 2))
        future = allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]
        if bucket.is_last():
            ready()
        return future

    reduce.__annotations__ = {}  # DDP compares them with types, and here they are strings
    return reduce


def profiled(stretch: Stretch, folder: Path, number: int, rank: int) -> Any:
    """PyTorch's own profiler around a stretch that asks for it; its trace lies in the folder afterwards."""
    if not stretch.profile:
        return nullcontext()
    import torch

    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"trace-{number}-{rank}.json")),
    )


def _publish(collector: Collector, rank: Rank, begun: int) -> None:
    while (vectors := collector.take()) is not None:
        rows = rank.array("durations")[rank.index]
        first = vectors.first_step - begun
        skip = max(0, -first)  # warm-up
        rows[first + skip : first + len(vectors.durations)] = vectors.durations[skip:]
        rank.array("reported")[rank.index] = max(0, first + len(vectors.durations))


def _beat(collector: Collector, rank: Rank) -> None:
    """Where this rank is, several times a second, as long as its process runs."""
    where = rank.array("where")
    while True:
        step, stage = collector.now()
        where[rank.index] = step, stage, where[rank.index][2] + 1
        time.sleep(BEAT)
