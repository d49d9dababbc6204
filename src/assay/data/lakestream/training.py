"""A real training job over gloo, fed by a plane or by loaders of its own, while whoever prepares its batches is killed.

Batch n is the same bytes in every feed, so undisturbed or not the losses must be the same to the last bit. Producers
are processes of their own; loaders are torch's workers, children of the ranks they feed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.lakestream.jobs import dataset, opened, produce
from assay.data.lakestream.pace import Fixed
from assay.sim import gloo_ranks
from assay.sim.ranks import Rank, RankFailed, Ranks
from assay.sim.scratch import scratch
from assay.sim.streams import stream

RANKS, PRODUCERS = 2, 2
ROWS, WIDTH = 64, 64  # of a rank's slice
TURNS = tuple(f"p{i}" for i in range(PRODUCERS))
PREPARING = 100  # transforms of a slice: preparing a batch costs more than training on it, as with images
PATIENCE = 90.0
IMPORTS = ("torch", "torch._dynamo", __name__)  # once for all ranks; the second by torch.optim, for 1.2 s


def prepared(number: int, rank: int, seed: int) -> bytes:
    """A rank's slice of batch n: raw numbers, transformed again and again, as a pipeline of filters would."""
    rows = stream(seed, "batch", number, rank).standard_normal((ROWS, WIDTH))
    for _ in range(PREPARING):
        rows = np.fft.irfft(np.fft.rfft(rows, axis=1), WIDTH, axis=1)
    return rows.astype(np.float32).tobytes()


def produce_share(store: str, turn: int, batches: int, seed: int) -> None:
    """A producer: every so-manieth batch, from wherever this name stopped."""

    def source(cursor: Any) -> Iterator[tuple[list[bytes], int]]:
        for number in range(cursor or turn, batches, PRODUCERS):
            yield [prepared(number, rank, seed) for rank in range(RANKS)], number + PRODUCERS

    produce(store, TURNS[turn], source, slices=RANKS, producers=PRODUCERS, pace=Fixed(0.05))


class Local:
    """What a loader inside the job prepares: this rank's slice of every batch."""

    def __init__(self, rank: int, batches: int, seed: int, pids: Path) -> None:
        self.rank, self.batches, self.seed, self.pids = rank, batches, seed, pids

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, number: int) -> bytes:
        (self.pids / str(os.getpid())).touch()  # who prepares, for whoever kills
        return prepared(number, self.rank, self.seed)


def train(rank: Rank, folder: str, feed: str, batches: int, seed: int) -> dict[str, Any]:
    """A rank: the losses of all steps, how long they took, and the longest wait for a batch."""
    with gloo_ranks.joined(rank, folder, patience=PATIENCE, leave=False) as dist:
        import torch
        from torch.utils.data import DataLoader

        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if feed == "plane":
            items: Any = dataset(
                f"{folder}/plane", rank.index, rank.size, turns=TURNS, decode=lambda parts: bytes(parts[0])
            )
            batch_of = iter(items)
        else:
            items = Local(rank.index, batches, seed, Path(folder))
            # Forked, as on any Linux: a rank that was started by a fork server would start another one for its worker.
            loader = DataLoader(
                items, batch_size=None, num_workers=1, prefetch_factor=4, multiprocessing_context="fork"
            )
            batch_of = iter(loader)
        rank.array("steps")[rank.index] = 0  # ready: whoever prepares may begin
        losses: list[str] = []
        waits: list[float] = []
        began = time.perf_counter()
        while True:
            asked = time.perf_counter()
            data = next(batch_of, None)
            if data is None:
                break
            waits.append(time.perf_counter() - asked)
            began = began if losses else time.perf_counter()  # a feed's start is not its speed
            rows = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(ROWS, WIDTH)
            loss = (model(rows).squeeze(1) - rows.sum(1).tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            shared = torch.cat([loss.detach().reshape(1), *(grad.reshape(-1) for grad in grads)])
            dist.all_reduce(shared)
            shared /= rank.size
            at = 1
            for grad in grads:
                grad.copy_(shared[at : at + grad.numel()].reshape(grad.shape))
                at += grad.numel()
            optimizer.step()
            losses.append(float(shared[0]).hex())
            rank.array("steps")[rank.index] = len(losses)
        return {"losses": losses, "seconds": time.perf_counter() - began, "longest_wait": max(waits[1:])}


def job(feed: str, kills: int, batches: int, seed: int) -> dict[str, Any]:
    """A whole job; each kill is a SIGKILL of a process that prepares batches, at a batch drawn from the seed."""
    numbers = sorted(stream(seed, "kills").integers(2, 3 * batches // 4, kills).tolist())
    arrays = {"steps": np.full(RANKS, -1)}
    with ExitStack() as inside:
        folder = inside.enter_context(scratch())
        opened(str(folder / "plane"), slices=RANKS, producers=PRODUCERS)
        given = (train, str(folder), feed, batches, seed)
        ranks = inside.enter_context(Ranks(RANKS, *given, arrays=arrays, imports=IMPORTS))
        _until(lambda: ranks.array("steps").min() >= 0, ranks)
        preparing: Producers | Loaders = Producers(folder, batches, seed) if feed == "plane" else Loaders(folder)
        try:
            for turn, number in enumerate(numbers):
                _until(lambda: preparing.made(ranks) >= number, ranks)  # noqa: B023 - waited for here
                preparing.kill(turn)
            found = ranks.wait(PATIENCE)
        except RankFailed as error:
            return {"survived": False, "kills": preparing.killed, "losses": [], "why": str(error)}
        finally:
            preparing.end()
    return {
        "survived": all(len(one["losses"]) == batches for one in found), "kills": preparing.killed,
        "losses": found[0]["losses"], "rate": (batches - 1) / max(one["seconds"] for one in found),
        "longest_wait": max(one["longest_wait"] for one in found),
    }  # fmt: skip


def _until(true: Callable[[], bool], ranks: Ranks) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end or not all(row["alive"] for row in ranks.table):
            ranks.wait(0.5)  # raises what happened to them
            return
        time.sleep(0.001)


class Producers:
    """The plane's producers, each started again when it was killed."""

    def __init__(self, folder: Path, batches: int, seed: int) -> None:
        self.store, self.batches, self.seed, self.killed = str(folder / "plane"), batches, seed, 0
        self.context = multiprocessing.get_context("forkserver")
        self.running = [self._started(turn) for turn in range(PRODUCERS)]

    def _started(self, turn: int) -> Any:
        process = self.context.Process(target=produce_share, args=(self.store, turn, self.batches, self.seed))
        process.start()
        return process

    def made(self, ranks: Ranks) -> int:
        """Batches that are written."""
        return len(list(Path(self.store).glob("data/*/*")))

    def kill(self, number: int) -> None:
        """End one of them at once, and start it again; one that had finished does not count."""
        turn = number % PRODUCERS
        self.running[turn].kill()
        self.running[turn].join()
        self.killed += self.running[turn].exitcode == -signal.SIGKILL
        self.running[turn] = self._started(turn)

    def end(self) -> None:
        """None is left running."""
        for process in self.running:
            process.kill()
            process.join()


class Loaders:
    """The workers of the ranks' own loaders."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.killed = folder, 0

    def made(self, ranks: Ranks) -> int:
        """Batches that all ranks have used: others are in memory."""
        return int(ranks.array("steps").min())

    def kill(self, number: int) -> None:
        """End one of them at once; torch does not start it again."""
        pids = self._pids()
        os.kill(pids[number % len(pids)], signal.SIGKILL)
        self.killed += 1

    def _pids(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]

    def end(self) -> None:
        """A worker whose rank is gone may wait for ever to hand its batch over."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
