"""A job of four replicas, again and again, while replicas and keepers are killed, stopped, hung and deafened at random.

    python -m tests.training.recover.soak SECONDS [SEED]

What is trained is a small transformer in double precision. Beside every job stands the same training in a plain loop of
one process: each step of each replica must have counted the whole batch, with that loop's loss to 1e-9; whoever lives
to the end must have the same weights to the bit, and that loop's to 1e-9; only who was hit may be gone, and nothing may
be left: no process, no file, no shared memory. Once a minute a line says how it stands; the last one is the result.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPLICAS, BATCH, STEPS = 4, 8, 120
HANG_AFTER, DEAF, LONGEST = 20.0, 5.0, 900.0  # seconds; the last for a job
NEAR = 1e-9
FATAL = ("kill", "stop", "hang")
HARMLESS = ("stop and go", "deaf", "kill keeper", "stop keeper", "kill keeper twice")
MARK = "ASSAY_SOAK_JOB"
Twin = tuple[list[float], list[list[float]]]  # the losses of a plain loop, and its last weights


# ------------------------------------------------------------------------------------------- what is trained, and how


def transformer() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Small(nn.Module):
        def __init__(self, width: int = 48, letters: int = 64, seq: int = 24) -> None:
            super().__init__()
            self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(seq, width)
            self.queries = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
            self.hidden = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
            self.back = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
            self.out = nn.Linear(width, letters)

        def forward(self, ids: Any) -> Any:
            x = self.letters(ids) + self.places.weight[: ids.shape[1]]
            for at in range(2):
                parts = self.queries[at](self.norms[2 * at](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
                seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
                x = x + seen.transpose(1, 2).flatten(2)
                x = x + self.back[at](nn.functional.gelu(self.hidden[at](self.norms[2 * at + 1](x))))
            return self.out(self.norms[4](x))

    return Small().double()


def loss_of(model: Any, step: int, one: int) -> Any:
    """Next letter of a walk that mostly goes one way; the same data whoever computes it."""
    import torch

    at = torch.Generator().manual_seed(1000 * step + one)
    ids = (torch.randint(64, (8, 1), generator=at) + torch.randint(1, 4, (8, 25), generator=at).cumsum(1)) % 64
    logits = model(ids[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def another(model: Any) -> None:
    """What others than the first replica have; they throw it away, unless the first dies before it gave its own."""
    import torch

    torch.nn.init.normal_(model.out.weight, generator=torch.Generator().manual_seed(1))


def plain(first: bool) -> Twin:
    """The losses and the last weights of a loop that knows of no replicas, from the first one's weights or others'."""
    import torch

    model = transformer()
    if not first:
        another(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        some = []
        for one in range(BATCH):
            loss = loss_of(model, step, one) / BATCH
            loss.backward()
            some.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(math.fsum(some))
    return losses, [p.detach().flatten().tolist() for p in model.parameters()]


def replica(folder: Path) -> None:
    """One of four: a line for every step, the weights at the end."""
    import ctypes

    def hang(*_: object) -> None:
        while True:
            time.sleep(0.1)

    def deaf(*_: object) -> None:
        ctypes.PyDLL(None).usleep(int(1e6 * DEAF))  # keeps the interpreter's lock

    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, deaf)
    import torch

    from assay.training.recover import join

    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    model = transformer()
    if rank != "0":
        another(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    job = join(model, batch=BATCH, bucket=64 << 10, optimizer=optimizer, every=10)
    with (folder / f"steps-{rank}").open("w", buffering=1) as lines:
        for step in range(STEPS):
            for one in job.step():
                loss = loss_of(model, step, one)
                loss.backward()
                job.note(loss)
            optimizer.step()
            optimizer.zero_grad()
            lines.write(json.dumps([step, job.counted, job.loss.hex(), len(job.members), time.time()]) + "\n")
    weights = [[x.hex() for x in p.detach().flatten().tolist()] for p in model.parameters()]
    (folder / f"weights-{rank}").write_text(json.dumps(weights))
    job.leave()


# ------------------------------------------------------------------------------------------------------- what is done


@dataclass
class Fault:
    """What happens to a replica, or the keeper, some time after any replica has ended so many steps."""

    kind: str
    rank: int
    step: int  # -1: while processes start
    late: float
    since: float = 0.0
    hit: float = 0.0


@dataclass
class Tally:
    """How it stands."""

    jobs: int = 0
    steps: int = 0  # lines of replicas, each looked at
    faults: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds from a fault to the next step's end
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        slowest = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in sorted(self.slowest.items()))
        return (
            f"{self.jobs} jobs, {self.steps} steps of replicas counted, {len(self.wrong)} wrong; "
            f"{faults or 'no faults'}; the longest from a fault to the end of the next step, s: {slowest or '-'}"
        )


def drawn(dice: random.Random) -> list[Fault]:
    """At most three fatal ones, each of another replica, and as many others."""
    hit = dice.sample(range(REPLICAS), dice.randint(1, REPLICAS - 1))
    found = []
    for rank in hit:
        kind = dice.choices(FATAL, (3, 1, 1))[0]
        early = kind == "kill" and dice.random() < 0.2
        step, late = (-1, 3.0) if early else (dice.randrange(STEPS - 5), 0.3)
        found.append(Fault(kind, rank, step, dice.uniform(0, late)))
    for _ in range(dice.randint(1, 4)):
        kind = dice.choice(HARMLESS)
        found.append(Fault(kind, dice.randrange(REPLICAS), dice.randrange(STEPS - 5), dice.uniform(0, 0.3)))
    return found


class Job:
    """`assay recover run` of this file, and what is done to it."""

    def __init__(self, folder: Path, faults: list[Fault]) -> None:
        self.folder, self.faults = folder, faults
        self.done: list[Fault] = []
        self.gone: set[int] = set()
        (folder / "tmp").mkdir()
        line = [sys.executable, "-m", "assay.cli.main", "recover", "run", "-n", str(REPLICAS), "--json",
                "--hang-after", str(HANG_AFTER), "--", __file__, "--replica", str(folder)]  # fmt: skip
        around = {**os.environ, MARK: str(folder), "TMPDIR": str(folder / "tmp")}
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(line, env=around, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    def pids(self) -> dict[str, int]:
        """Of replicas and keeper, by what the launcher said last."""
        found = {}
        for line in self.err.read_text().splitlines():
            words = line.replace(",", "").replace(";", "").split()
            for at, word in enumerate(words[:-1]):
                if word == "process" and words[at + 1].isdigit():
                    keeps = words[0] == "the" or words[at - 2 : at] == ["keeper", "is"]
                    found["keeper" if keeps else words[at - 2]] = int(words[at + 1])
        return found

    def steps(self, rank: int) -> list[list[Any]]:
        """What a replica wrote of its steps; the last line may be half."""
        with suppress(FileNotFoundError):
            lines = (self.folder / f"steps-{rank}").read_text().split("\n")[:-1]
            return [json.loads(line) for line in lines]
        return []

    def watch(self) -> None:
        """Do the faults when their time comes, until the job is over."""
        end = time.monotonic() + LONGEST
        while self.process.poll() is None and time.monotonic() < end:
            pids = self.pids()
            step = max((len(self.steps(rank)) for rank in range(REPLICAS)), default=0)
            for one in self.faults:
                due = "keeper" in pids and (one.step < 0 or step > one.step)
                if due and not one.since:
                    one.since = time.monotonic()
                if one.since and not one.hit and time.monotonic() > one.since + one.late:
                    one.hit = time.time()
                    self.strike(one, pids)
            time.sleep(0.02)
        self.process.kill()
        self.process.wait()

    def strike(self, one: Fault, pids: dict[str, int]) -> None:
        if one.kind not in FATAL and (one.rank in self.gone or not self.steps(one.rank)):
            return  # deaf and hung can be only who has come so far
        pid = pids["keeper" if "keeper" in one.kind else str(one.rank)]
        with suppress(ProcessLookupError):
            if one.kind in FATAL:
                self.gone.add(one.rank)
            if one.kind == "stop and go":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(3 * one.late + 0.2)
                os.kill(pid, signal.SIGCONT)
            elif one.kind == "kill keeper twice":
                os.kill(pid, signal.SIGKILL)
                while self.pids()["keeper"] == pid and self.process.poll() is None:
                    time.sleep(0.005)
                os.kill(self.pids()["keeper"], signal.SIGKILL)
            else:
                kinds = {"kill": 9, "stop": signal.SIGSTOP, "hang": signal.SIGUSR1, "deaf": signal.SIGUSR2}
                os.kill(pid, kinds[one.kind.split()[0]])
            self.done.append(one)

    def begins_as(self, twin: Twin) -> bool:
        """Whether the first step has that loop's loss."""
        firsts = [lines[0][2] for rank in range(REPLICAS) if (lines := self.steps(rank))]
        return any(math.isclose(float.fromhex(loss), twin[0][0], rel_tol=NEAR) for loss in firsts)

    def problems(self, twins: tuple[Twin, Twin]) -> Iterator[str]:
        """What is not as it must be, beside the loop from the first one's weights; or others', if it died at once."""
        early = any(one.rank == 0 and one.step < 0 for one in self.done)
        losses, weights = twins[early and not self.begins_as(twins[0])]
        try:
            said = json.loads(self.out.read_text())
        except ValueError:
            yield f"no answer, code {self.process.returncode}: {self.err.read_text()[-2000:]}"
            return
        codes = {int(rank): code for rank, code in said["codes"].items()}
        lives = [rank for rank, code in codes.items() if code == 0]
        for rank, code in codes.items():
            if code != 0 and not (code == -signal.SIGKILL and rank in self.gone):
                yield f"replica {rank} ended with code {code}, hit: {rank in self.gone}: {self.err.read_text()[-2000:]}"
        for rank in range(REPLICAS):
            lines = self.steps(rank)
            if [line[0] for line in lines] != list(range(STEPS if rank in lives else len(lines))):
                yield f"replica {rank} has other steps than 0 to {STEPS}"
            for step, counted, loss, _, _ in lines:
                if counted != BATCH or not math.isclose(float.fromhex(loss), losses[step], rel_tol=NEAR):
                    yield f"replica {rank}, step {step}: {counted} microbatches, loss {loss} for {losses[step].hex()}"
        ends = {(self.folder / f"weights-{rank}").read_text() for rank in lives}
        if len(ends) != 1:
            yield f"{len(lives)} survivors end with {len(ends)} different weights"
        for end in ends:
            found = [float.fromhex(x) for some in json.loads(end) for x in some]
            twin = [x for some in weights for x in some]
            apart = math.dist(found, twin) / math.hypot(*twin)
            if not apart <= NEAR:
                yield f"weights are {apart:.1e} of their norm from the plain loop's"

    def left(self) -> Iterator[str]:
        """What should be gone by now."""
        marked = f"{MARK}={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marked in (path / "environ").read_bytes().split(b"\0"):
                    yield f"process {path.name} is left"
        for path in (self.folder / "tmp").iterdir():
            yield f"{path} is left"
        for pid in self.pids().values():
            yield from (f"{path} is left" for path in Path("/dev/shm").glob(f"*_{pid}_*"))


def one_job(dice: random.Random, tally: Tally, twins: tuple[Twin, Twin], faults: list[Fault]) -> None:
    with tempfile.TemporaryDirectory(prefix="assay-soak-") as name:
        job = Job(Path(name), faults)
        launcher = bool(faults) and dice.random() < 0.1  # the launcher itself is killed
        if launcher:
            time.sleep(dice.uniform(1, 20))
            job.process.kill()
        job.watch()
        if launcher:
            tally.faults["kill launcher"] += 1
            end = time.monotonic() + 30.0  # the system ends its replicas with it; a busy one takes a moment
            while any(job.left()) and time.monotonic() < end:
                time.sleep(0.1)
        found = [*([] if launcher else job.problems(twins)), *job.left()]
        tally.jobs += 1
        tally.wrong += [f"job {tally.jobs}: {one}" for one in found]
        for one in found[:5]:
            print(f"WRONG job {tally.jobs}: {one}\n  {job.done}", flush=True)
        ends = sorted(line[4] for rank in range(REPLICAS) for line in job.steps(rank))
        tally.steps += len(ends)
        for one in job.done:
            tally.faults[one.kind] += 1
            after = next((end - one.hit for end in ends if end > one.hit), 0.0)
            tally.slowest[one.kind] = max(after, tally.slowest.get(one.kind, 0.0))


def main(seconds: float, seed: int) -> Tally:
    """Jobs, one after another, for so long; the first is left alone."""
    import torch

    torch.set_num_threads(1)
    dice, tally, began, told = random.Random(seed), Tally(), time.monotonic(), 0.0
    twins = plain(True), plain(False)
    one_job(dice, tally, twins, [])
    while time.monotonic() - began < seconds:
        one_job(dice, tally, twins, drawn(dice))
        if time.monotonic() - told > 60.0:
            told = time.monotonic()
            print(f"{(told - began) / 60:.0f} min: {tally.line()}", flush=True)
    print(f"after {time.monotonic() - began:.0f} s, seed {seed}: {tally.line()}", flush=True)
    return tally


if __name__ == "__main__":
    if sys.argv[1] == "--replica":
        replica(Path(sys.argv[2]))
    else:
        sys.exit(bool(main(float(sys.argv[1]), int([*sys.argv, "0"][2])).wrong))
