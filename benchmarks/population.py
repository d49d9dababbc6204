"""Approximate majority by counts, beside ppsim, in one run: seconds to the end, or for some units of parallel time.

.venv/bin/python benchmarks/population.py [--rounds 5] [--json FILE]

Three states, 51 % against 49 %, the start of ppsim's own example. Both simulate the same ordered meetings and take
turns; each of ppsim's figures is what its own process says its `run` took, ours what the call took, on one core.
Below, a test of Kolmogorov and Smirnov on the time to the end at n = 10,000: both must simulate the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from assay.protocols import APPROXIMATE_MAJORITY, run_counts
from routers import UnavailableError, environment

PEER = Path(__file__).parent / "peers" / "ppsim_run.py"
SETTINGS = ((10**6, None, "to the end"), (10**8, 1.0, "one unit of time"))
MEETINGS = 10_000  # agents in the test of equality
REPLICAS = 300


class Peer:
    """ppsim in a process of its own, asked line by line."""

    def __init__(self) -> None:
        command = [str(environment("ppsim") / "python"), str(PEER)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, n: int, limit: float | None, seed: int) -> dict[str, Any]:
        """One run: its seconds, its parallel time, its final counts."""
        assert self.process.stdin is not None and self.process.stdout is not None
        a = n * 51 // 100
        self.process.stdin.write(json.dumps({"a": a, "b": n - a, "time": limit, "seed": seed}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def stop(self) -> None:
        """End the process by ending its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def ours(n: int, limit: float | None, seed: int) -> dict[str, Any]:
    a = n * 51 // 100
    begun = time.perf_counter()
    outcome = run_counts(APPROXIMATE_MAJORITY, {"A": a, "B": n - a}, max_time=limit, seed=seed)
    return {"seconds": time.perf_counter() - begun, "time": float(outcome.time[0]), "final": outcome.final(0)}


def compare(peer: Peer, rounds: int) -> list[dict[str, Any]]:
    table = []
    for n, limit, words in SETTINGS:
        ours(n // 100, limit, 0)  # compiled before the clock runs
        pairs = []
        for seed in range(rounds):
            first, second = (peer.ask, ours) if seed % 2 else (ours, peer.ask)
            answers = first(n, limit, seed), second(n, limit, seed)
            pairs.append(answers if seed % 2 else answers[::-1])
        theirs, mine = (np.array([pair[side]["seconds"] for pair in pairs]) for side in (0, 1))
        table.append({
            "agents": n, "what": words, "rounds": rounds, "ppsim_seconds": float(np.median(theirs)),
            "assay_seconds": float(np.median(mine)), "speedup": float(np.median(theirs / mine)),
            "speedup_least": float((theirs / mine).min()),
        })  # fmt: skip
    return table


def same_process(peer: Peer) -> float:
    """The p-value that both give the same distribution of the time to the end."""
    theirs = [peer.ask(MEETINGS, None, seed)["time"] for seed in range(REPLICAS)]
    a = MEETINGS * 51 // 100
    counts = {"A": a, "B": MEETINGS - a}
    mine = run_counts(APPROXIMATE_MAJORITY, counts, replicas=REPLICAS, seed=1).time
    return float(stats.ks_2samp(theirs, mine).pvalue)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        peer = Peer()
    except UnavailableError as error:
        raise SystemExit(str(error)) from None
    try:
        table = compare(peer, options.rounds)
        p_value = same_process(peer)
    finally:
        peer.stop()
    for row in table:
        print(
            f"n = {row['agents']:>11,} {row['what']:<17} ppsim {row['ppsim_seconds']:8.3f} s   assay "
            f"{row['assay_seconds']:8.4f} s   {row['speedup']:6.1f} times (least {row['speedup_least']:.1f})"
        )
    print(f"same distribution of the time to the end at n = {MEETINGS:,}: p = {p_value:.3f} ({REPLICAS} runs each)")
    if options.json:
        options.json.write_text(json.dumps({"table": table, "same_process_p": p_value}, indent=1))


if __name__ == "__main__":
    main()
