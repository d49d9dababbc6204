"""A real job whose replicas are really killed: a small language model on a text, beside the same job left alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim import tiny_lm
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.recover.backends import Backend, Gloo
from assay.training.recover.keeper import Keeper
from assay.training.recover.replicas import Replicas
from assay.training.recover.rivals import SYSTEMS, Restarting

ANY = -1
PATIENCE = 240.0  # seconds for a whole job; it takes a few
TICK = 0.2
IMPORTS = ("torch", "torch._dynamo", "assay.training.recover.job")  # the second by torch.optim, for 1.4 s


@dataclass(frozen=True)
class Kill:
    """A replica ends itself by SIGKILL when it passes this point: no handler runs, no connection is said good-bye to.

    Points are those of `Replicas`: microbatch, bucket, agree, agreed, and `at` which of them (`ANY` for the first);
    `late` seconds later, from a thread, which hits wherever the replica is by then.
    """

    rank: int
    step: int
    point: str = "bucket"
    at: int = 0
    late: float | None = None


@dataclass(frozen=True)
class Training:
    """What is trained: microbatches of `rows` windows of a text, `batch` of them a step."""

    replicas: int = 4
    batch: int = 8
    steps: int = 4
    rows: int = 1
    seq: int = 16
    layers: int = 1
    width: int = 32
    rate: float = 0.05
    optimizer: str = "sgd"
    bucket: int = 8 << 10
    seed: int = 0
    text: str = ""
    timeout: float = 60.0
    system: str = "recover"
    spares: int = 0
    checkpoint: str = ""  # a file to begin from, and to write to after every `every` steps
    every: int = 2

    @property
    def shape(self) -> tiny_lm.Shape:
        """The network's."""
        return tiny_lm.Shape(layers=self.layers, width=self.width, hidden=2 * self.width, heads=2, kv_heads=2)


@dataclass
class Outcome:
    """What the survivors say: weights, loss of every step, and what it took."""

    losses: list[float]
    weights: NDArray[Any]
    counted: list[int]  # microbatches in each step's sum
    computed: int  # microbatches, all replicas together that lived
    again: int  # of them in place of dead ones
    recovered: int
    alive: list[int]  # members after each step
    mending: list[float] = field(default_factory=list)  # seconds from each death until the survivors agreed
    apart: float = 0.0  # between the survivors' weights
    ended: list[float] = field(default_factory=list)  # when each step was over, seconds after the first began


def windows(training: Training, step: int, one: int, ids: NDArray[Any]) -> Any:
    """The data of a microbatch: the same whoever computes it."""
    random = stream(training.seed, "recover", "data", step, one)
    starts = random.integers(0, len(ids) - training.seq - 1, training.rows)
    return ids[starts[:, None] + np.arange(training.seq + 1)]


def tokens(training: Training) -> NDArray[Any]:
    """The text as bytes."""
    return np.array(tiny_lm.encode(training.text or tiny_lm.text(training.seed, 400)), np.int64)


def network(training: Training) -> tuple[tiny_lm.Params, Any]:
    """Fresh weights, and their optimizer."""
    import torch

    fresh = tiny_lm.init(training.shape, training.seed)
    params = tiny_lm.Params(fresh.shape, {name: t.requires_grad_() for name, t in fresh.tensors.items()})
    some = list(params.tensors.values())
    if training.optimizer == "adamw":
        return params, torch.optim.AdamW(some, lr=training.rate)
    return params, torch.optim.SGD(some, lr=training.rate, momentum=0.9)


def loss_of(params: tiny_lm.Params, batch: Any) -> Any:
    """Next byte, mean over the microbatch."""
    import torch
    from torch.nn import functional

    ids = torch.from_numpy(batch)
    logits, _ = tiny_lm.forward(params, ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@contextmanager
def meeting(training: Training) -> Iterator[tuple[Keeper, tuple[str, int]]]:
    """A keeper, and a store beside it where gloo's groups find each other."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with Keeper(training.replicas, training.timeout) as keeper:
        yield keeper, ("127.0.0.1", store.port)


def run(training: Training, kills: Sequence[Kill] = (), told: Callable[[NDArray[Any]], None] | None = None) -> Outcome:
    """The job, with these deaths in it; where the system restarts, all the jobs that it takes.

    Raises:
        RankFailed: a replica raised, or the job hung.
    """
    if training.system != "restart":
        answers, lost = _once(training, kills, told)
        return joined(answers, [when for _, when in lost])
    computed, restarts, began = 0, 0, time.monotonic()
    with scratch() as folder:
        training = replace(training, checkpoint=str(folder / "checkpoint.npz"))
        while True:
            answers, lost = _once(training, kills, told)
            computed += sum(answer["computed"] for answer in answers.values())
            if not lost:
                break
            restarts += 1
            training = replace(training, replicas=training.replicas - len(lost))
            fired = {rank for rank, _ in lost}
            kills = [replace(kill, rank=kill.rank % training.replicas) for kill in kills if kill.rank not in fired]
    outcome = joined(answers, [])
    outcome.computed, outcome.recovered = computed, restarts
    outcome.ended = [*outcome.ended[:-1], time.monotonic() - began]
    return outcome


def _once(
    training: Training, kills: Sequence[Kill], told: Callable[[NDArray[Any]], None] | None
) -> tuple[dict[int, dict[str, Any]], list[tuple[int, float]]]:
    """What the survivors of one group of processes say, and who died when."""
    with meeting(training) as (keeper, store):
        job = partial(_work, training=training, kills=list(kills), keeper=keeper.address, store=store)
        slots = np.zeros((training.replicas, 4))
        with Ranks(training.replicas, job, arrays={"at": slots}, imports=IMPORTS) as ranks, _told(ranks, told):
            answers = ranks.survivors(PATIENCE, keeper.exited)
        return answers, [(rank, when) for rank, why, when in keeper.lost if why != "left"]


@contextmanager
def _told(ranks: Ranks, told: Callable[[NDArray[Any]], None] | None) -> Iterator[None]:
    """Meanwhile, tell several times a second where every replica is: step, microbatches so far, members, loss."""
    over = threading.Event()

    def look() -> None:
        while told is not None and not over.wait(TICK):
            told(ranks.array("at").copy())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def joined(answers: dict[int, dict[str, Any]], deaths: Sequence[float]) -> Outcome:
    """One outcome of all that survivors say; those who died when are told by the keeper."""
    first, *others = answers.values()
    weights = first["weights"]
    mended = sorted(min(answer["mended"][n] for answer in answers.values()) for n in range(len(first["mended"])))
    mending = [min(when - death for when in mended if when >= death) for death in deaths if mended[-1:] >= [death]]
    scale = float(np.abs(weights).max())
    return Outcome(
        losses=first["losses"], weights=weights, counted=first["counted"], alive=first["alive"], mending=mending,
        computed=sum(answer["computed"] for answer in answers.values()),
        again=sum(answer["again"] for answer in answers.values()), recovered=first["recovered"],
        apart=max((float(np.abs(other["weights"] - weights).max()) / scale for other in others), default=0.0),
        ended=first["ended"],
    )  # fmt: skip


def _work(
    rank: Rank, training: Training, kills: Sequence[Kill], keeper: tuple[str, int], store: tuple[str, int]
) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    backend = Gloo(keeper, store, rank.index, training.timeout)
    slot = rank.array("at")[rank.index]

    def seen(step: int, ids: int, alive: int, loss: float) -> None:
        slot[:] = step, ids, alive, loss

    return train(training, backend, [kill for kill in kills if kill.rank == rank.index], seen)


def train(
    training: Training, backend: Backend, kills: Sequence[Kill] = (),
    seen: Callable[[int, int, int, float], None] = lambda *_: None, dies: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """The loop of one replica; `dies` is called right before it kills itself."""
    ids = tokens(training)
    params, optimizer = network(training)
    first = _load(training, params, optimizer)
    now, log = first, Log()

    def watch(point: str, at: int) -> None:
        if point == "agreed":
            log.mended.append(time.monotonic())
        for kill in kills:
            if (kill.step, kill.point) == (now, point) and kill.at in (at, ANY):
                _die(kill.late, dies)

    some = list(params.tensors.values())
    kind = SYSTEMS[training.system](training.replicas - training.spares)
    job: Replicas = kind(some, training.batch, backend, bucket=training.bucket, optimizer=optimizer, watch=watch)
    began = time.monotonic()
    try:
        for now in range(first, training.steps):
            for one in job.step():
                loss = loss_of(params, windows(training, now, one, ids))
                loss.backward()
                job.note(loss.detach())
                log.computed += 1
                seen(now, log.computed, len(job.members), log.losses[-1] if log.losses else float("nan"))
            optimizer.step()
            optimizer.zero_grad()
            log.step(job, time.monotonic() - began)
            _save(training, params, optimizer, now + 1, job)
            seen(now + 1, log.computed, len(job.members), job.loss)
    except Restarting:
        pass
    job.leave()
    weights = np.concatenate([t.detach().numpy().ravel() for t in some])
    return {"weights": weights, "again": job.again, "recovered": job.recovered, **asdict(log)}


@dataclass
class Log:
    """What a replica remembers of its steps."""

    losses: list[float] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    mended: list[float] = field(default_factory=list)
    computed: int = 0

    def step(self, job: Replicas, when: float) -> None:
        """One more is over."""
        self.losses.append(job.loss)
        self.counted.append(job.counted)
        self.alive.append(len(job.members))
        self.ended.append(when)


def _save(training: Training, params: tiny_lm.Params, optimizer: Any, step: int, job: Replicas) -> None:
    """By the first replica: weights and momenta, whole or not at all."""
    if not training.checkpoint or step % training.every or job.backend.rank != job.members[0]:
        return
    path = Path(training.checkpoint)
    momenta = [optimizer.state[t]["momentum_buffer"].numpy() for t in params.tensors.values()]
    aside = path.with_suffix(".part.npz")
    np.savez(aside, *(t.detach().numpy() for t in params.tensors.values()), *momenta, step=np.array(step))
    aside.rename(path)


def _load(training: Training, params: tiny_lm.Params, optimizer: Any) -> int:
    """The step to begin with."""
    import torch

    if not training.checkpoint or not Path(training.checkpoint).exists():
        return 0
    with np.load(training.checkpoint) as found, torch.no_grad():
        for at, tensor in enumerate(params.tensors.values()):
            tensor.copy_(torch.from_numpy(found[f"arr_{at}"]))
            optimizer.state[tensor]["momentum_buffer"] = torch.from_numpy(found[f"arr_{at + len(params.tensors)}"])
        return int(found["step"])


def _die(late: float | None, dies: Callable[[], None]) -> None:
    def end() -> None:
        dies()
        os.kill(os.getpid(), signal.SIGKILL)

    if late is None:
        end()
    timer = threading.Timer(late or 0.0, end)
    timer.daemon = True
    timer.start()


def distance(some: NDArray[Any], other: NDArray[Any]) -> float:
    """Of weights, relative to their norm."""
    return float(np.linalg.norm(some - other) / np.linalg.norm(other))
