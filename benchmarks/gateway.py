"""The gateway beside vllm-router, sglang-router and LiteLLM in front of the same instant engines, interleaved.

.venv/bin/python benchmarks/gateway.py [--routers assay,vllm-router] [--rounds 3] [--quick] [--added] [--json]

Throughput: 32 and 200 connections that ask again as soon as an answer is complete, whole answers and streams of eight
events, small prompts and prompts of 8 kB of which three quarters are shared. Added time: 200 streams whose events come
every 50 ms, far from what the engines and the load can do; what a router adds is its time less that of asking the
engines directly. Every router starts once; in each round every one has its turn, and the medians over the rounds
count. All programs share this machine's processors with the load and the engines, so processor time per request is
reported too. Peers live in environments of their own under .cache/peers, which are made on first use; where one cannot
be had the others run and the exit code is 2. "vllm-router:cache_aware" is a program with one of its policies.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from routers import COMMANDS, HERE, KEY, TICKS, Running, UnavailableError, engines, router

ROUTERS = "assay,vllm-router,vllm-router:cache_aware,sglang-router,sglang-router:cache_aware,litellm"
GOALS = {"litellm": (100.0, 100.0), "vllm-router": (0.7, 0.8), "sglang-router": (None, 1.0)}  # whole answers, streams
QUIET_ENOUGH = 0.1  # share of the machine that other programs may have
PROCESSORS = os.cpu_count() or 1
Rounds = list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """One load."""

    connections: int
    stream: bool = False
    prompt: int = 300
    events: int = 8
    gap: float = 0.0

    @property
    def title(self) -> str:
        """What is under way at a time."""
        size = "" if self.prompt < 1024 else f", prompts of {self.prompt // 1024} kB"
        pace = f", an event every {self.gap * 1e3:.0f} ms" if self.gap else ""
        return f"{self.connections} {'streams' if self.stream else 'whole answers'} at a time{pace}{size}"

    def options(self) -> list[str]:
        """What benchmarks/load.py is told."""
        words = [f"--connections={self.connections}", f"--prompt={self.prompt}", f"--events={self.events}"]
        return [*words, f"--gap={self.gap}", f"--first={self.gap}", *(["--stream"] if self.stream else [])]


FULL = (
    *(Part(connections, stream) for connections in (32, 200) for stream in (False, True)),
    *(Part(32, stream, prompt=8192) for stream in (False, True)),
    *(Part(200, stream=True, prompt=prompt, events=20, gap=0.05) for prompt in (300, 8192)),
)
QUICK = (Part(32), Part(32, stream=True), Part(200, stream=True, events=20, gap=0.05))


def machine_cpu() -> float:
    """Processor seconds of the whole machine since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS  # less idle and waiting for disks


def turn(running: Running, direct: Running, part: Part, seconds: float) -> dict[str, Any]:
    """One load on one router, what the router spent on it, and how busy other programs kept the machine."""
    command = [sys.executable, str(HERE / "load.py"), *running.urls, *part.options(), f"--seconds={seconds}"]
    spent, served, busy, start = running.cpu(), direct.cpu(), machine_cpu(), time.perf_counter()
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"OPENAI_API_KEY": KEY}
    )
    elapsed = time.perf_counter() - start
    spent, served, busy = running.cpu() - spent, direct.cpu() - served, machine_cpu() - busy
    figures: dict[str, Any] = {"rate": 0.0, "answers": 0, "failed": part.connections, "client_cpu": 0.0}
    figures |= json.loads(ended.stdout) if not ended.returncode else {"reason": ended.stderr.strip().splitlines()[-1]}
    ours = figures["client_cpu"] + served + (spent if running is not direct else 0.0)
    figures |= {"cpu": spent / max(1, figures["answers"]), "share": spent / elapsed}
    figures |= {"machine": busy / elapsed / PROCESSORS, "others": max(0.0, busy - ours) / elapsed / PROCESSORS}
    return figures


def started(names: list[str], stack: ExitStack, missing: list[str]) -> Iterator[Running]:
    """The engines and the routers in front of them, which end with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    direct = engines(2, folder)
    stack.callback(direct.stop)
    yield direct
    for name in names:
        try:
            running = router(name, direct.urls, folder)
        except UnavailableError as why:
            print(why, file=sys.stderr)
            missing.append(name)
            continue
        stack.callback(running.stop)
        yield running


def measure(
    all_running: list[Running], parts: tuple[Part, ...], rounds: int, seconds: float
) -> list[dict[str, Rounds]]:
    """For each part what each router did in each round; the engines themselves come first."""
    results: list[dict[str, Rounds]] = [{running.name: [] for running in all_running} for _ in parts]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(parts) * rounds * len(all_running))
        for running in all_running:  # first requests load and compile what later ones find
            progress.update(bar, description=f"warming {running.name}")
            turn(running, all_running[0], Part(8, stream=True), 1.0)
        for part, found in zip(parts, results, strict=True):
            for number in range(rounds):
                first = number % len(all_running)
                for running in all_running[first:] + all_running[:first]:
                    progress.update(bar, description=f"{part.title}: {running.name}")
                    found[running.name].append(turn(running, all_running[0], part, seconds))
                    progress.advance(bar)
    return results


def middle(rounds: Rounds, *keys: str) -> float:
    """The median over the rounds of a figure; not a number where no round has it.

    >>> middle([{"first": {"p50": 1.0}}, {"first": {"p50": 3.0}}, {"first": {}}], "first", "p50")
    2.0
    """
    values: list[float] = []
    for figures in rounds:
        value: Any = figures
        for key in keys:
            value = value.get(key, {})
        if value != {}:
            values.append(value)
    return float(statistics.median(values)) if values else float("nan")


def print_throughput(part: Part, found: dict[str, Rounds]) -> None:
    print(f"\n{part.title}\n{'':<28}{'per s':>9}{'best':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU µs each':>13}{'failed':>8}")
    key = "first" if part.stream else "total"
    for name, rounds in found.items():
        best, failed = max(figures["rate"] for figures in rounds), sum(figures["failed"] for figures in rounds)
        times = "".join(f"{middle(rounds, key, share) * 1e3:>9.2f}" for share in ("p50", "p99"))
        cpu = middle(rounds, "cpu") * 1e6
        print(f"  {name:<26}{middle(rounds, 'rate'):>9,.0f}{best:>9,.0f}{times}{cpu:>13,.0f}{failed:>8}")


def print_added(part: Part, found: dict[str, Rounds]) -> None:
    print(f"\n{part.title}: ms added (direct: taken) to the first event, an event's way, the wait between two")
    heads = [f"{name} {share}" for name in ("first", "way", "wait") for share in ("p50", "p99")]
    print(f"{'':<28}" + "".join(f"{head:>10}" for head in heads) + f"{'CPU':>7}{'machine':>9}{'failed':>8}")
    figures = [(key, share) for key in ("there", "way", "gap") for share in ("p50", "p99")]
    for name, rounds in found.items():
        cells = ""
        for figure in figures:
            without = 0.0 if name == "direct" else middle(found["direct"], *figure)
            cells += f"{(middle(rounds, *figure) - without) * 1e3:>10.3f}"
        failed = sum(round_["failed"] for round_ in rounds)
        print(f"  {name:<26}{cells}{middle(rounds, 'share'):>7.0%}{middle(rounds, 'machine'):>9.0%}{failed:>8}")


def print_ratios(parts: tuple[Part, ...], results: list[dict[str, Rounds]]) -> None:
    """Against the faster policy of each peer."""
    print()
    for part, found in zip(parts, results, strict=True):
        if part.gap or "assay" not in found:
            continue
        ours = middle(found["assay"], "rate")
        for peer, goals in GOALS.items():
            theirs = max((middle(found[name], "rate") for name in found if name.split(":")[0] == peer), default=0.0)
            if theirs:
                goal = goals[part.stream]
                wanted = f" (at least {goal:g})" if goal else ""
                print(f"{part.title}: assay / {peer} {ours / theirs:.2f}{wanted}")


def print_troubles(results: list[dict[str, Rounds]]) -> None:
    """One reason for each router that failed, and whether the machine was this benchmark's own."""
    turns = [(name, figures) for found in results for name, rounds in found.items() for figures in rounds]
    for name, why in {name: figures["reason"] for name, figures in turns if figures["failed"]}.items():
        print(f"{name} failed: {why[:200]}")
    others = [figures["others"] for _, figures in turns]
    print(f"Other programs took {statistics.median(others):.0%} of the machine, {max(others):.0%} at most in a turn.")
    if statistics.median(others) > QUIET_ENOUGH:
        print("That is too much: only processor time per answer can be trusted.")


def show(parts: tuple[Part, ...], results: list[dict[str, Rounds]], asked: argparse.Namespace) -> None:
    if asked.json:
        named = [{"part": part.title, "routers": found} for part, found in zip(parts, results, strict=True)]
        machine = {"processors": PROCESSORS, "system": platform.platform(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "seconds": asked.seconds, "parts": named}))
        return
    for part, found in zip(parts, results, strict=True):
        (print_added if part.gap else print_throughput)(part, found)
    print_ratios(parts, results)
    print_troubles(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", default=ROUTERS, help=f"default: {ROUTERS}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn")
    parser.add_argument("--quick", action="store_true", help="three loads, one round of a second")
    parser.add_argument("--added", action="store_true", help="only what a router adds to paced streams")
    parser.add_argument("--json", action="store_true", help="every round's figures")
    asked = parser.parse_args()
    names = [name.strip() for name in asked.routers.split(",") if name.strip()]
    if unknown := [name for name in names if name.split(":")[0] not in COMMANDS]:
        parser.error(f"no router {unknown[0]!r}; there are {', '.join(COMMANDS)}")
    if asked.quick:
        asked.rounds, asked.seconds = 1, 1.0
    parts = tuple(part for part in (QUICK if asked.quick else FULL) if part.gap or not asked.added)
    missing: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stack ends what was started
    try:
        with ExitStack() as stack:
            results = measure(list(started(names, stack, missing)), parts, asked.rounds, asked.seconds)
    except UnavailableError as why:  # the engines themselves
        print(why, file=sys.stderr)
        return 2
    show(parts, results, asked)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
