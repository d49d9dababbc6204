"""Two real training engines on this machine, each with settings of its own, recorded as benchmark rows.

`ddp` is torch's DistributedDataParallel, `fsdp` its `fully_shard`. Both train the same stack of layers on the same
batches over gloo, a process a rank with one computing thread. A step always handles the whole batch; settings only say
how: in how many pieces, in which buckets or units, at which precision. Gradients are reduced after the last piece.
Needs the extra `torch`.

Ranks run one plan: the function they are given decides on rank 0 what is run next (a search does), and all follow.
Before each run rank 0 looks at the clock: a step that sends dozens of messages takes a hundred times as long where
other work holds the processors, and a plan of so many runs would then not end.
Nothing sleeps: compute is compute. On two cores gloo's threads and the ranks share them, as on any small machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from assay.observe.traces import cards
from assay.record.store import write_whole
from assay.sim.gloo_ranks import PATIENCE, joined
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

Setup = dict[str, Any]
COLLECTIVE = 60.0  # seconds that a collective may take, or a rank between two of them
IMPORTS = (__name__, "torch", "torch.nn.parallel", "torch._dynamo", "torch.distributed.fsdp")  # once for all ranks
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "ddp": {"bucket": (0.5, 2.0, 25.0), "pieces": (1, 2, 4), "half": (False, True)},
    "fsdp": {"unit": (1, 3, 12), "reshard": (True, False), "pieces": (1, 2, 4)},  # 12 layers: all there are
}
DEFAULTS: dict[str, Setup] = {  # what the engines do unless told otherwise
    "ddp": {"bucket": 25.0, "pieces": 1, "half": False},
    "fsdp": {"unit": 1, "reshard": True, "pieces": 1},
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What all engines train: `layers` of `width` by `width`, `batch` samples a step and rank."""

    ranks: int = 2
    layers: int = 6
    width: int = 384
    batch: int = 64
    seed: int = 0  # of weights and batches

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.layers * (self.width * self.width + self.width)


def card(workload: Workload, engine: str, setup: Setup) -> cards.Card:
    """The workload card of a run."""
    shard = workload.ranks if engine == "fsdp" else 1
    arch = cards.Arch(num_params=float(workload.parameters), num_layers=float(workload.layers))
    xpu = cards.Xpu(type="CPU", model="cpu", total_count=workload.ranks, count_per_node=workload.ranks)
    words = ", ".join(f"{name}={value}" for name, value in setup.items())
    return cards.Card(
        description=f"{workload.layers} layers of {workload.width} under {engine}: {words}",
        workload=cards.Workload(
            model=cards.Model(granularity="model_fwd_bwd_pass", precision="fp32", model_arch=arch),
            data=cards.Data(batch_size=float(workload.batch * workload.ranks), seq_len=1.0),
            hardware=cards.Hardware(xpu_spec=xpu),
        ),
        executor=cards.Executor(
            framework=cards.Framework(name=f"torch-{engine}"), library=cards.Library(name="gloo", env=setup),
            plan=cards.Plan(dp_replicate=workload.ranks // shard, dp_shard=shard),
        ),
        metric_source=cards.Source(traces=("json",)),
    )  # fmt: skip


class Step(NamedTuple):
    """One step: seconds from a common instant to the last rank's end, and processor seconds of a rank, on average.

    Two ranks that compute all the time fill two cores, so the second is what the first would be on a machine that does
    nothing else; whatever else it does counts in the first only.
    """

    seconds: float
    processor: float


class CannotRun(RuntimeError):  # noqa: N818 - what an engine says to a setup
    """An engine refuses a setup; all ranks alike."""


class OutOfTime(Exception):  # noqa: N818 - how a plan ends
    """The seconds that a plan was given are over; what it ran before is whole."""


class Bench:
    """What a plan has on rank 0: run a setup, timed or recorded; the other ranks follow.

    A plan may change the `workload` between two runs. Once `seconds` have passed, every run is refused.
    """

    def __init__(self, rank: int, workload: Workload, folder: Path, seconds: float = math.inf) -> None:
        self.rank, self.workload, self.folder = rank, workload, folder
        self.seconds, self._begun = seconds, time.monotonic()
        self._built: dict[str, Any] = {}

    def steps(self, engine: str, setup: Setup, count: int) -> list[Step]:
        """What each of some steps took; one more warms it up."""
        return list(self._do("steps", engine, setup, count, ""))

    def record(self, engine: str, setup: Setup, steps: int, name: str) -> Path:
        """A row of this name: the profiler's traces of some steps, and the card."""
        self._do("record", engine, setup, steps, name)
        folder = self.folder / name
        write_whole(folder / "card.yaml", cards.text(card(self.workload, engine, setup)).encode())
        return folder

    def _do(self, *order: Any) -> Any:
        if time.monotonic() - self._begun > self.seconds:  # before the others are told: they wait for another order
            raise OutOfTime(f"not done within {self.seconds:g} s")
        from torch import distributed as dist

        held = [(self.workload, *order)]
        dist.broadcast_object_list(held, src=0)
        return self._obey(*held[0])

    def follow(self) -> None:
        """On the other ranks: do what rank 0 says until it is done."""
        from torch import distributed as dist

        while True:
            held: list[Any] = [None]
            dist.broadcast_object_list(held, src=0)
            if held[0] is None:
                return
            with suppress(CannotRun):  # rank 0 fails alike, and says so
                self._obey(*held[0])

    def finish(self) -> None:
        """On rank 0: let the others go."""
        from torch import distributed as dist

        dist.broadcast_object_list([None], src=0)

    def _obey(
        self, workload: Workload, what: str, engine: str, setup: Setup, steps: int, name: str
    ) -> list[Step]:  # fmt: skip
        key = f"{workload} {engine} {sorted(setup.items())}"
        if key not in self._built:
            try:
                self._built[key] = _engine(workload, engine, setup, self.rank)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                raise CannotRun(f"{engine} cannot run {setup}: {error}") from error
            self._built[key]()  # DDP lays its buckets anew after the first step
        step = self._built[key]
        if what == "record":
            return _profiled(step, steps, self.folder / name, self.rank)
        step()
        return [_timed(step) for _ in range(steps)]


def run(workload: Workload, folder: Path, plan: Callable[..., Any], *arguments: Any, seconds: float = 300.0) -> Any:
    """Start the ranks, run `plan(bench, *arguments)` on rank 0, and give what it returned. Rows lie in the folder.

    The plan has so many seconds from when the ranks have met; a run under way may end, and is waited for.
    """
    told = (workload, str(folder), plan, arguments, seconds)
    with scratch() as store, Ranks(workload.ranks, _work, str(store), *told, imports=IMPORTS) as ranks:
        return ranks.wait(timeout=PATIENCE + seconds + COLLECTIVE)[0]


def _work(
    rank: Rank, store: str, workload: Workload, folder: str, plan: Callable[..., Any], arguments: tuple[Any, ...],
    seconds: float,
) -> Any:  # fmt: skip
    with joined(rank, store, patience=COLLECTIVE):
        bench = Bench(rank.index, workload, Path(folder), seconds)
        if rank.index:
            bench.follow()
            return None
        found = plan(bench, *arguments)
        bench.finish()
        return found


# ---------------------------------------------------------------------------------------------------- engines


def _layers(workload: Workload) -> Any:
    import torch

    torch.manual_seed(workload.seed)  # all ranks and all engines begin alike
    return torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(workload.width, workload.width), torch.nn.GELU())
        for _ in range(workload.layers)
    ])  # fmt: skip


def _engine(workload: Workload, engine: str, setup: Setup, rank: int) -> Callable[[], None]:
    """A function that trains one step."""
    import torch

    model = (_ddp if engine == "ddp" else _fsdp)(workload, setup)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = torch.Generator().manual_seed(workload.seed * workload.ranks + rank)
    batch = torch.randn(workload.batch, workload.width, generator=own)
    pieces = batch.chunk(setup["pieces"])

    def step() -> None:
        optimizer.zero_grad()
        for number, piece in enumerate(pieces):
            reduced = number == len(pieces) - 1
            if engine == "fsdp":
                model.set_requires_gradient_sync(reduced)
            with nullcontext() if reduced or engine == "fsdp" else model.no_sync():
                (model(piece).square().mean() / len(pieces)).backward()
        optimizer.step()

    return step


def _ddp(workload: Workload, setup: Setup) -> Any:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(_layers(workload), bucket_cap_mb=setup["bucket"])
    if setup["half"]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    return model


def _fsdp(workload: Workload, setup: Setup) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (workload.ranks,))
    model, unit = _layers(workload), setup["unit"]
    for first in range(0, workload.layers, unit):
        together = list(model[first : first + unit])
        fully_shard(together if len(together) > 1 else together[0], mesh=mesh, reshard_after_forward=setup["reshard"])
    return fully_shard(model, mesh=mesh, reshard_after_forward=setup["reshard"])


def _timed(step: Callable[[], None]) -> Step:
    import torch
    from torch import distributed as dist

    dist.barrier()
    begun, spent = time.perf_counter(), time.process_time()
    step()
    dist.barrier()
    seconds = time.perf_counter() - begun
    processor = torch.tensor([time.process_time() - spent], dtype=torch.float64)
    dist.all_reduce(processor)  # after the step, and so no part of it
    return Step(seconds, float(processor[0]) / dist.get_world_size())


def _profiled(step: Callable[[], None], steps: int, folder: Path, rank: int) -> list[Step]:
    from torch import distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for _ in range(steps + 1):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank-{rank}.json"))
    dist.barrier()
    return []
