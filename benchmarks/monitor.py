"""What watching costs a training job: steps with and without the monitor, paired, in one process.

.venv/bin/python benchmarks/monitor.py --steps 8000

The job is real (a torch model, one thread, its batch sized so that a step takes 50 ms or more), the monitor is the
whole of it: stages, marks, the thread that sends every step to a folder as a rank's would to `assay watch`. What its
calls add is the difference within a pair of neighbouring steps, in an order that a coin decides, so that a drift of
the machine hits both alike; its interval is a bootstrap over pairs. The thread runs beside both steps of a pair, so its
processor time is added whole, as if the job had stood still meanwhile. Beside it: one stage boundary in a loop, and the
frontier of 1,000 ranks x 1,000 steps.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from assay.live import monitor
from assay.observe.frontier.collector import SYNC_STAGES, Collector
from assay.observe.frontier.diagnosis import frontier
from assay.record.intervals import bootstrap
from assay.record.timing import interleave, median
from assay.record.types import Estimate
from assay.sim.random import stream

STEP = 0.05  # seconds, at least
Step = Callable[[bool], None]


def job(width: int = 512) -> Step:
    """A training step of STEP seconds or more; its argument says whether it is watched."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = 64

    def work(rows: int) -> None:
        model(torch.ones(rows, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        work(batch)
    while median(interleave({"step": partial(work, batch)}, rounds=5)["step"]) < STEP * 1.1:
        batch = batch * 5 // 4
    examples = torch.ones(batch * 4, width)

    def plain() -> None:
        rows = examples[torch.randperm(len(examples))[:batch]]
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def watched() -> None:
        with monitor.stage("data"):
            rows = examples[torch.randperm(len(examples))[:batch]]
        with monitor.stage("forward"):
            loss = model(rows).square().mean()
        with monitor.stage("backward"):
            loss.backward()
        with monitor.stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with monitor.stage("checkpoint"):
            pass
        monitor.step()

    return lambda on: watched() if on else plain()


def seconds_of(step: Step, on: bool) -> float:
    """Seconds of one step."""
    begin = time.perf_counter()
    step(on)
    return time.perf_counter() - begin


def overhead(steps: int) -> tuple[Estimate, float, float]:
    """The share of a step that the calls add, the share of the thread's own time, and the seconds of a plain step."""
    step = job()
    coin = stream(0, "benchmarks", "monitor", "order")
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="assay-watch-") as folder:
        monitor.start(folder, rank=0, size=1)
        thread = next(one for one in threading.enumerate() if one.name == "assay-monitor")
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        begin, used = time.perf_counter(), time.clock_gettime(clock)
        for _ in range(max(2, steps // 2)):
            first = bool(coin.integers(2))
            for on in (first, not first):
                seconds[on].append(seconds_of(step, on))
        used = (time.clock_gettime(clock) - used) / (time.perf_counter() - begin)
        monitor.stop()
    off, on_ = np.array(seconds[False]), np.array(seconds[True])
    # A step in which the host took a break says nothing of the monitor: the middle of the pairs does.
    return bootstrap(on_ / off - 1, statistic=_middle), used, float(np.median(off))


def _middle(values: Any, axis: int) -> Any:
    """The mean of the middle half."""
    ordered = np.sort(values, axis=axis)
    n = ordered.shape[axis]
    return np.take(ordered, range(n // 4, n - n // 4), axis=axis).mean(axis=axis)


def boundary(rounds: int = 50, stages: int = 2_000) -> float:
    """Seconds of one stage boundary (an entry or an exit), without the loop around it."""
    collector = Collector(0, 1, SYNC_STAGES)

    def recorded() -> None:
        for _ in range(stages):
            with collector.stage("forward"):
                pass

    def bare() -> None:
        for _ in range(stages):
            pass

    found = interleave({"recorded": recorded, "bare": bare}, rounds)
    return (median(found["recorded"]) - median(found["bare"])) / (2 * stages)


def sweep() -> float:
    """Seconds of the frontier of 1,000 steps of 1,000 ranks with 6 stages."""
    durations = stream(0, "benchmarks", "monitor").integers(0, 10**7, (1000, 1000, 6))
    frontier(durations[:2])  # compiled
    return median(interleave({"frontier": lambda: frontier(durations)}, rounds=7)["frontier"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4_000, help="training steps, both sides together")
    steps = parser.parse_args().steps
    print(f"one stage boundary            {boundary() * 1e6:8.2f} us")
    print(f"1,000 ranks x 1,000 x 6       {sweep() * 1e3:8.1f} ms")
    found, used, step = overhead(steps)
    print(f"a step without the monitor    {step * 1e3:8.1f} ms")
    print(f"added by its calls            {found.value:+8.3%}   [{found.low:+.3%}, {found.high:+.3%}], {found.n} pairs")
    print(f"its thread's own time         {used:8.3%}")
    both = found.value + used, found.low + used, found.high + used
    print(f"together                      {both[0]:+8.3%}   [{both[1]:+.3%}, {both[2]:+.3%}]")


if __name__ == "__main__":
    main()
