"""What the scripts `h200_*.py` of kernels share: the package's files without assay, answers line by line, timing.

A machine with a GPU needs NumPy and what the kernels need (CuPy, or torch and Triton), but none of what assay needs:
`packages` lets `from assay.kernels.merbit import layout` read that file while no `__init__` runs.
"""

# mypy: ignore-errors
# ruff: noqa: D102

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
import types
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/assay"
KERNELS = SOURCE / "kernels"
STARTED = time.monotonic()


def packages(*names):
    """Packages of assay that can be imported from while their `__init__` is not run."""
    for name in ("assay", "assay.record", "assay.kernels", "assay.kernels.engine", *names):
        if name in sys.modules:
            continue
        package = types.ModuleType(name)
        package.__path__ = [str(SOURCE.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


class Answers:
    """Lines of JSON, each as it comes, in a file of $OUT (or of this folder) and on the screen."""

    def __init__(self, script, shown=10_000, **always):
        self.path, self.shown, self.always = Path(os.environ.get("OUT", "."), f"{script}.jsonl"), shown, always
        self.path.unlink(missing_ok=True)

    def __call__(self, part, **row):
        row = {"part": part, **self.always, **row}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row)[: self.shown], flush=True)

    def run(self, parts):
        """Each part; one that fails is told, and the next begins."""
        for name, part in parts.items():
            begun = time.monotonic()
            try:
                part()
            except Exception:
                self("failed", name=name, error=traceback.format_exc()[-1500:])
            self("done", name=name, seconds=time.monotonic() - begun, all=time.monotonic() - STARTED)


def asked(parts):
    """The parts named on the command line, or all."""
    return {name: parts[name] for name in sys.argv[1:]} if sys.argv[1:] else parts


def module(name, **defines):
    """A CUDA source of the package, compiled."""
    import cupy

    from assay.kernels.engine.cuda import text

    options = ("--std=c++17", *(f"-D{key}={value}" for key, value in defines.items()))
    return cupy.RawModule(code=text(KERNELS / name), options=options)


class CupyClock:
    """Events of CuPy."""

    def __init__(self):
        import cupy

        self.cupy, self.flush = cupy, cupy.empty(256 << 20, cupy.uint8)
        self.overwrite, self.wait = self.flush.fill, cupy.cuda.Device().synchronize

    def mark(self):
        event = self.cupy.cuda.Event()
        event.record()
        return event

    def between(self, begin, end):
        return self.cupy.cuda.get_elapsed_time(begin, end) / 1e3


class TorchClock:
    """Events of torch."""

    def __init__(self):
        import torch

        self.torch, self.flush = torch, torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.overwrite, self.wait = self.flush.fill_, torch.cuda.synchronize

    def mark(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin, end):
        return begin.elapsed_time(end) / 1e3


CLOCKS = {}


def timed(contenders, rounds=11, clock=CupyClock):
    """Seconds of each contender in each round by CUDA events, all once a round, the L2 cache overwritten before."""
    if clock not in CLOCKS:
        CLOCKS[clock] = clock()
    its = CLOCKS[clock]
    names, marks = list(contenders), {name: [] for name in contenders}
    for name in names:
        contenders[name]()
    its.wait()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            its.overwrite(turn)
            begin = its.mark()
            contenders[name]()
            marks[name].append((begin, its.mark()))
    its.wait()
    return {name: [its.between(*pair) for pair in pairs] for name, pairs in marks.items()}


def medians(seconds):
    """The median of each contender's rounds."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def captured(run):
    """Launches by torch as one CUDA graph, so that the host's pace does not count. It holds `run` and its buffers."""
    import torch

    run()
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        run()
    return lambda held=run: graph.replay()
