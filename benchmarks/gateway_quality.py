"""Which router gives the shorter time to first token, in front of the same mock engines, on a prefix-heavy trace.

    .venv/bin/python benchmarks/gateway_quality.py

Agent loops (prompts grow turn by turn and share their beginnings) on four mock engines with the simulator's times.
Every router serves the whole trace, one after the other, with caches emptied in between and texts of its own, so that
nothing of one turn is found by the next. The routers' policies are their own; the simulator's prediction for the same
policy stands beside the measurement, where there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import uvloop
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from assay.live.replay import replay
from assay.serving import Requests, chat, parse, router, simulate
from assay.workloads.chat import Agents
from routers import COMMANDS, Launch, Running, UnavailableError, environment, free_port, spawn

ROUTERS = "assay:lmetric,vllm-router:cache_aware,sglang-router:cache_aware,assay:round-robin,assay:vllm-v1"
SAME = {"cache_aware": "sglang-cache-aware", "round_robin": "round-robin"}  # our name for a peer's policy
START = 120.0  # seconds that a program may take to its first answer


def start_engines(count: int, layout: str, folder: Path) -> Running:
    """Mock engines, each a process."""
    ports = [free_port() for _ in range(count)]
    commands = [
        [str(environment("assay") / "assay"), "engine", "--layout", layout, "--port", str(port)] for port in ports
    ]
    processes = [spawn(command, folder / f"engine-{i}.log") for i, command in enumerate(commands)]
    running = Running("engines", [f"http://127.0.0.1:{port}" for port in ports], processes)
    for url in running.urls:
        wait_for(url, layout.split(":")[1], running)
    return running


def start_router(name: str, engines: Sequence[str], model: str, folder: Path) -> Running:
    """A router, after its first answer."""
    program, _, policy = name.partition(":")
    port = free_port()
    command = COMMANDS[program](Launch(environment(program), policy, engines, port, folder))
    running = Running(name, [f"http://127.0.0.1:{port}"], [spawn(command, folder / f"{name.replace(':', '-')}.log")])
    wait_for(running.urls[0], model, running)
    return running


def wait_for(url: str, model: str, running: Running) -> None:
    body = json.dumps({"model": model, "prompt": "ready?", "max_tokens": 1}).encode()
    until = time.monotonic() + START
    while True:
        try:
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=5):
                return
        except (OSError, urllib.error.HTTPError) as error:
            if time.monotonic() > until or any(process.poll() is not None for process in running.processes):
                running.stop()
                raise UnavailableError(f"{running.name} does not answer: {error}") from error
            time.sleep(0.2)


def empty_caches(engines: Running) -> None:
    for url in engines.urls:
        request = urllib.request.Request(f"{url}/reset_prefix_cache", b"", method="POST")
        urllib.request.urlopen(request, timeout=10).close()


def computed(engines: Running) -> tuple[float, float]:
    """Prompt tokens asked for and found in the caches so far, over all engines."""
    from assay.live import signals

    queries = hits = 0.0
    for url in engines.urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            reading = signals.read(answer.read())
        queries, hits = queries + (reading.queries or 0.0), hits + (reading.hits or 0.0)
    return queries, hits


def turn(name: str, engines: Running, trace: Requests, model: str, salt: int, folder: Path) -> dict[str, Any]:
    """One router serves the whole trace."""
    empty_caches(engines)
    router = start_router(name, engines.urls, model, folder)
    try:
        before = computed(engines)
        rows = uvloop.run(replay(router.urls[0], trace, model=model, salt=salt, text=True))
        after = computed(engines)
    finally:
        router.stop()
    sessions = np.arange(len(rows)) if trace.session is None else trace.session
    good = rows.with_columns(session=sessions).filter((pl.col("status") == 200) & (pl.col("error") == ""))
    ttft, tpot = good["ttft"].to_numpy(), good["tpot"].to_numpy()
    low, high = interval(ttft, good["session"].to_numpy())
    return {
        "router": name, "answered": len(good), "failed": len(rows) - len(good),
        "ttft_mean": float(np.nanmean(ttft)), "ttft_low": low, "ttft_high": high, "ttft_p50": float(np.nanmedian(ttft)),
        "ttft_p99": float(np.nanquantile(ttft, 0.99)), "tpot_mean": float(np.nanmean(tpot)),
        "cached_ratio": (after[1] - before[1]) / max(after[0] - before[0], 1.0),
    }  # fmt: skip


def interval(values: NDArray[np.float64], groups: NDArray[np.int64], draws: int = 2000) -> tuple[float, float]:
    """95 % of the mean, from drawing whole conversations again and again: turns of one are not independent."""
    names, member = np.unique(groups, return_inverse=True)
    totals, counts = np.bincount(member, values), np.bincount(member)
    chosen = np.random.default_rng(0).integers(0, len(names), (draws, len(names)))
    means = totals[chosen].sum(1) / counts[chosen].sum(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def predicted(name: str, trace: Requests, fleet: str) -> dict[str, float]:
    policy = name.partition(":")[2]
    found = simulate(trace, parse(fleet), router(SAME.get(policy, policy)), loop="open").summary()
    return {"ttft_simulated": found["ttft_mean"], "cached_simulated": found["cached_ratio"]}


def show(rows: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    if asked.json:
        print(json.dumps(rows))
        return
    table = Table(title=f"{asked.requests} requests of agent loops at {asked.rate:g}/s on 4x{asked.layout}")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "router" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    best = min(rows, key=lambda row: row["ttft_mean"])
    ours = next((row for row in rows if row["router"] == "assay:lmetric"), rows[0])
    for row in rows:
        if row is not ours:
            change = ours["ttft_mean"] / row["ttft_mean"] - 1
            print(f"{ours['router']} against {row['router']}: mean time to first token {change:+.0%}")
    print(f"shortest: {best['router']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", default=ROUTERS)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=float, default=9.0)
    parser.add_argument("--layout", default="a100:qwen3-8b")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    trace = chat(asked.requests, rate=asked.rate, seed=asked.seed, agents=Agents())
    model, rows, missing = asked.layout.split(":")[1], [], []
    with tempfile.TemporaryDirectory() as name:
        engines = start_engines(4, asked.layout, Path(name))
        try:
            for salt, router in enumerate(asked.routers.split(",")):
                print(f"{router} …", file=sys.stderr, flush=True)
                try:
                    row = turn(router, engines, trace, model, salt, Path(name))
                except UnavailableError as error:
                    missing.append(str(error))
                    continue
                rows.append(row | predicted(router, trace, f"4x{asked.layout}"))
        finally:
            engines.stop()
    if rows:
        show(rows, asked)
    for line in missing:
        print(line, file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
