"""CUCo's search on one GPU: products and transfers over the copy engines, which stand in for a link.

    python3 benchmarks/h200_cuco.py           # NVIDIA GPU with torch and NumPy; no assay
    python3 benchmarks/h200_cuco.py --tiny    # the same code on a CPU, without overlap, in a few seconds

`out`: a product whose tiles go to pinned host memory as they are done. `in`: tiles that come from there and are
multiplied. A directive says where transfers are placed, what waits for what, in which chunks, with how much room on the
device, over how many streams. Candidates are verified on three random inputs, with room and results filled with what is
no number, once as it comes, once with slow transfers and once with slow products; only then timed. The search is the
package's own file, beside random search, host-driven transfers and stream-level overlap with its best chunk. Writes
h200_cuco.jsonl to $OUT, or here.
"""

# mypy: ignore-errors
# ruff: noqa: D102

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

SEARCH = Path(__file__).parents[1] / "src/assay/sim/search.py"
OUT = Path(os.environ.get("OUT", "."), "h200_cuco.jsonl")
LIMIT = 170.0  # seconds in all
BUDGET = 41
TILES = 16
STARTED = time.monotonic()
KNOBS = {
    "placement": ("after", "inside"),
    "scope": ("all", "chunk", "arrival", "none"),
    "chunk": (16, 8, 4, 2, 1),
    "depth": (1, 2, 4, 16),
    "streams": (1, 2),
    "wait": ("block", "poll"),
}
HOST = ("after", "all", 16, 1, 1, "block")
SAFE = ("inside", "all", 8, 1, 1, "block")
CLOSE = 2e-2  # bfloat16, in parts of the largest number


def load(path):
    """A file of the package as a module, without assay."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


search = load(SEARCH)


def tell(part, **row):
    """One line of the answer, at once."""
    row = {"part": f"cuco-{part}", **row}
    with OUT.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


class Nothing:
    """Stands for streams and events where there is no GPU: everything happens in order."""

    def __getattr__(self, name):
        return lambda *_, **__: True


class Machine:
    """Streams of a GPU, or nothing in their place."""

    def __init__(self, tiny):
        self.gpu = not tiny
        self.device = "cpu" if tiny else "cuda"
        self.compute = Nothing() if tiny else torch.cuda.Stream()
        self.copies = [Nothing() if tiny else torch.cuda.Stream() for _ in range(2)]
        self.wait = "block"

    def on(self, stream):
        return torch.cuda.stream(stream) if self.gpu else contextlib.nullcontext()

    def mark(self, stream):
        event = torch.cuda.Event() if self.gpu else Nothing()
        event.record(stream)
        return event

    def rest(self):
        if not self.gpu:
            return
        marks = [self.mark(stream) for stream in (self.compute, *self.copies)]
        for mark in marks:
            while self.wait == "poll" and not mark.query():
                pass
            mark.synchronize()

    def settle(self):
        """Whatever was begun on any stream is done."""
        if self.gpu:
            torch.cuda.synchronize()

    def dawdle(self, stream, cycles):
        if self.gpu and cycles:
            with self.on(stream):
                torch.cuda._sleep(cycles)


class Program:
    """Tiles of a product, and where they come from or go to."""

    def __init__(self, machine, kind, rows, inner, columns):
        self.machine, self.kind = machine, kind
        self.shape = rows // TILES, inner, columns
        self.inputs = {}

    def input(self, seed):
        if seed not in self.inputs:
            rows, inner, columns = self.shape
            made = torch.Generator().manual_seed(seed)
            a = torch.randn(TILES, rows, inner, generator=made).to(torch.bfloat16)
            b = (torch.randn(inner, columns, generator=made) * inner**-0.5).to(torch.bfloat16).to(self.machine.device)
            right = torch.stack([(tile.to(self.machine.device) @ b) for tile in a]).cpu()
            a = a.to(self.machine.device) if self.kind == "out" else self.pinned(a)
            self.inputs[seed] = a, b, right
        return self.inputs[seed]

    def pinned(self, tensor):
        return tensor.pin_memory() if self.machine.gpu else tensor

    def buffers(self):
        """Room on the device for all tiles, and the result."""
        rows, inner, columns = self.shape
        width = columns if self.kind == "out" else inner
        room = torch.empty(TILES, rows, width, dtype=torch.bfloat16, device=self.machine.device)
        out = torch.empty(TILES, rows, columns, dtype=torch.bfloat16)
        return room, self.pinned(out) if self.kind == "out" else out.to(self.machine.device)


def lowered(directive):
    """The directive, or why it cannot be: the same rule as between ranks."""
    chunks = TILES // directive["chunk"]
    if directive["placement"] == "after" and chunks > directive["depth"]:
        raise ValueError(f"after: room for {chunks} chunks is needed")
    return chunks, min(chunks, directive["depth"])


def perform(program, d, seed, room, out, slow=None, cycles=0):
    """Run it once: two actors, the products and the transfers, and what the directive makes them wait for."""
    m, (a, b, _) = program.machine, program.input(seed)
    chunks, depth = lowered(d)
    m.wait, c = d["wait"], d["chunk"]
    first, then = ("product", "copy") if program.kind == "out" else ("copy", "product")
    ready, free = [None] * chunks, [None] * chunks

    def stream(actor, k):
        return m.compute if actor == "product" else m.copies[k % d["streams"]]

    def act(actor, k):
        tiles, slot = slice(k * c, (k + 1) * c), slice((k % depth) * c, (k % depth + 1) * c)
        with m.on(stream(actor, k)):
            if program.kind == "out" and actor == "product":
                torch.matmul(a[tiles].flatten(0, 1), b, out=room[slot].flatten(0, 1))
            elif program.kind == "out":
                out[tiles].copy_(room[slot], non_blocking=True)
            elif actor == "copy":
                room[slot].copy_(a[tiles], non_blocking=True)
            else:
                torch.matmul(room[slot].flatten(0, 1), b, out=out[tiles].flatten(0, 1))

    def do_first(k):
        on = stream(first, k)
        if k >= depth and d["scope"] in ("all", "chunk"):
            on.wait_event(free[k - depth])
        m.dawdle(on, cycles if slow == first else 0)
        act(first, k)
        ready[k] = m.mark(on)

    def do_then(k):
        on = stream(then, k)
        if d["scope"] != "none":
            on.wait_event(ready[k])
        m.dawdle(on, cycles if slow == then else 0)
        act(then, k)
        free[k] = m.mark(on)
        if d["scope"] == "all":
            m.rest()

    if d["placement"] == "after":
        for k in range(chunks):
            do_first(k)
        if d["scope"] == "all":
            m.rest()
        for k in range(chunks):
            do_then(k)
    else:
        for k in range(chunks):
            do_first(k)
            do_then(k)
    m.rest()


def off(out, right):
    """The largest difference in parts of the largest number; infinite where something is none."""
    found = float((out.float().cpu() - right.float()).abs().max() / right.float().abs().max())
    return found if np.isfinite(found) else float("inf")


def once(program, d, room, out):
    began = time.perf_counter()
    perform(program, d, 0, room, out)
    return time.perf_counter() - began


def evaluate(program, values, room, out, rounds=5):
    """Compile, verify, time: where it failed, how far it was off, and the seconds of its runs."""
    d = dict(zip(KNOBS, values, strict=True))
    try:
        lowered(d)
    except ValueError as error:
        return "compile", [], [], str(error)
    errors = []
    for seed, slow in enumerate((None, "copy", "product")):
        program.input(seed)
        room.fill_(float("nan"))
        out.fill_(float("nan"))
        program.machine.settle()
        perform(program, d, seed, room, out, slow, 20_000_000)
        errors.append(off(out, program.input(seed)[2]))
        if not errors[-1] <= CLOSE:
            return "verify", errors, [], f"input {seed}: off by {errors[-1]:.3g}"
    once(program, d, room, out)
    return "", errors, [once(program, d, room, out) for _ in range(rounds)], ""


def pursue(program, seeker, base, room, out, name):
    """One search with its budget; every verified candidate is a line."""
    reached = []
    while len(seeker.tried) < BUDGET and time.monotonic() - STARTED < LIMIT:
        asked = seeker.ask()
        stage, errors, seconds, note = evaluate(program, asked.values, room, out)
        score = 0.0 if stage else base / statistics.median(seconds)
        seeker.tell(score, stage, note)
        reached.append(max([score, *reached[-1:]]))
        if not stage:
            tell("candidate", kind=program.kind, search=name, values=list(asked.values), generation=asked.generation,
                 phase=asked.phase, errors=errors, seconds=seconds)  # fmt: skip
    if not seeker.tried:
        return None
    stages = [one.stage or "passed" for one in seeker.tried]
    tell("search", kind=program.kind, search=name, best=list(max(seeker.tried, key=lambda one: one.score).values),
         reached=reached, stages={stage: stages.count(stage) for stage in set(stages)})  # fmt: skip
    return max(seeker.tried, key=lambda one: one.score).values


def race(program, versions, room, out, rounds):
    """Seconds of each version, all once a round, in a rotating order; each checked again in the end."""
    names, seconds = list(versions), {name: [] for name in versions}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(once(program, dict(zip(KNOBS, versions[name], strict=True)), room, out))
    for name, values in versions.items():
        out.fill_(float("nan"))
        program.machine.settle()
        perform(program, dict(zip(KNOBS, values, strict=True)), 2, room, out)
        error = off(out, program.input(2)[2])
        tell("race", kind=program.kind, version=name, values=list(values), error=error, right=error <= CLOSE,
             seconds=seconds[name])  # fmt: skip


def kind(machine, name, tiny):
    """Host-driven, stream-level overlap tuned, and two searches, on one kind of program."""
    sizes = (64, 32, 32) if tiny else {"out": (16384, 12288, 4096), "in": (16384, 4096, 12288)}[name]
    program = Program(machine, name, *sizes)
    room, out = program.buffers()
    stage, _, seconds, note = evaluate(program, HOST, room, out)
    if stage:
        raise RuntimeError(f"host-driven fails to {stage}: {note}")
    base = statistics.median(seconds)
    alone = {}
    for actor in ("product", "copy"):  # what each takes by itself, for whoever reads the rows
        began = time.perf_counter()
        with machine.on(machine.compute):
            if actor == "product":
                torch.matmul(program.input(0)[0][0].to(machine.device), program.input(0)[1])
            else:
                (out[0] if name == "out" else room[0]).copy_(room[0] if name == "out" else program.input(0)[0][0])
        machine.rest()
        alone[actor] = time.perf_counter() - began
    tell("alone", kind=name, tile=alone, base=base, sizes=list(sizes), tiles=TILES)
    by_hand = [("inside", "chunk", chunk, 16, 1, "block") for chunk in KNOBS["chunk"][1:]]
    tuned = {values: evaluate(program, values, room, out) for values in by_hand}
    hand = min((v for v in tuned if not tuned[v][0]), key=lambda v: statistics.median(tuned[v][2]))
    found = pursue(
        program, search.Islands(KNOBS, np.random.default_rng(0), SAFE, (BUDGET - 1) // 4), base, room, out, "two-phase"
    )
    race(program, {"host": HOST, "stream": hand, "found": found}, room, out, 3 if tiny else 21)
    pursue(program, search.Random(KNOBS, np.random.default_rng(1)), base, room, out, "random")  # if there is time left


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tiny", action="store_true")
    tiny = arguments.parse_args().tiny
    machine = Machine(tiny)
    gpu = torch.cuda.get_device_name() if machine.gpu else "none"
    tell("facts", gpu=gpu, torch=torch.__version__, python=platform.python_version(), knobs=KNOBS, close=CLOSE)
    for name in ("out", "in"):
        try:
            kind(machine, name, tiny)
        except Exception as error:
            tell("error", kind=name, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-1500:])
    tell("done", seconds=time.monotonic() - STARTED)


if __name__ == "__main__":
    main()
