"""Steps in labelled series: assay beside Apache Otava 0.8 and asv 0.6's step detection, in one run.

.venv/bin/python benchmarks/change_points.py [--seeds 10] [--processes 240] [--json FILE]

Two kinds of labelled series. *patterns*: those of `otava-test-data` whose labels are changes of level (a step, a
regression that is fixed again, several changes), and those without any (noise, outliers, two bands). *machine*: this
machine's own noise, recorded from fresh processes that all do the same work, with a step of 5, 10 or 20 % planted in
half of the histories. Every method is scored with its default dial, and with its dial set to the most sensitive value
that takes no more than one point in a thousand for a step on other series without any: then all are compared at about
the same rate of false alarms. A found step may be off by two places. All but PELT leave out steps below 3 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from assay.observe.bench.history import steps
from assay.observe.ci_bench import step_cases as bench_steps
from assay.observe.ci_bench.step_cases import Score
from assay.record import intervals
from assay.sim.changepoints import bic, pelt
from assay.sim.random import stream
from routers import environment

PEER = Path(__file__).parent / "peers" / "change_points_run.py"
Labelled = tuple[list[float], list[int]]  # a series and where it steps
DIALS: dict[str, tuple[float, Sequence[float]]] = {  # the default, and all from the most sensitive on
    "assay": (1e-3, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-13, 1e-16)),
    "assay-pelt": (1.0, (1, 2, 3, 5, 8, 12, 20, 40, 80)),
    "otava": (1e-3, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-13, 1e-16)),
    "asv": (0.05, (0.0, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)),
}


class Peer:
    """Otava and asv in a process of their own, asked line by line."""

    def __init__(self) -> None:
        command = [str(environment("change-points") / "python"), str(PEER)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> Any:
        """Its answer to one line."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        """End the process by ending its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def detect(peer: Peer, method: str, dial: float, series: list[list[float]]) -> tuple[list[list[int]], float]:
    """What a method finds in each series, and its seconds."""
    if method in ("otava", "asv"):
        answer = peer.ask({"detect": method, "dial": dial, "series": series})
        return answer["found"], answer["seconds"]
    begun = time.perf_counter()
    found = []
    for values in series:
        levels = np.log(values)
        if method == "assay":
            found.append([at for at, _, _ in steps(levels, min_change=0.03, significance=dial)])
        else:
            found.append(pelt(levels, dial * bic(levels), min_size=3))
    return found, time.perf_counter() - begun


def patterns(peer: Peer, seeds: Sequence[int]) -> list[Labelled]:
    """Otava's labelled patterns, short and long, calm and noisy."""
    made: list[Labelled] = []
    for seed in seeds:
        for length, sigma in ((50, 2.0), (50, 5.0), (150, 2.0), (150, 5.0)):
            asked = peer.ask({"patterns": {"length": length, "sigma": sigma, "seed": seed}})
            made += [(one["values"], one["truth"]) for one in asked]
    return made


def machine(noise: bench_steps.Matrix, histories: int, planted: bool) -> list[Labelled]:
    """Histories cut out of recorded noise, with a step in every other one if they are planted."""
    random = stream(0, "change-points", "histories", planted)
    made: list[Labelled] = []
    for number in range(histories):
        history = bench_steps.cut(noise, random)
        truth: list[int] = []
        if planted and number % 2:
            history, truth = bench_steps.plant(history, random)
        made.append((np.median(history, axis=1).tolist(), truth))
    return made


def contest(peer: Peer, kind: str, silent: list[Labelled], trials: list[Labelled]) -> list[dict[str, Any]]:
    """Every method with its default dial and with the tuned one."""
    detect(peer, "assay", 1e-3, [trials[0][0]])  # compiled before the clock runs
    detect(peer, "assay-pelt", 1.0, [trials[0][0]])
    rows = []
    for method, (default, dials) in DIALS.items():
        quiet = [values for values, _ in silent]
        allowed = bench_steps.ALLOWED * sum(map(len, quiet))
        tuned = next((d for d in dials if sum(map(len, detect(peer, method, d, quiet)[0])) <= allowed), dials[-1])
        for setting, dial in (("default", default), ("tuned", tuned)):
            found, seconds = detect(peer, method, dial, [values for values, _ in trials])
            score = bench_steps.score(
                [(at, truth, len(values)) for at, (values, truth) in zip(found, trials, strict=True)]
            )
            rows.append({"kind": kind, "method": method, "setting": setting, "dial": dial, "series": len(trials),
                         "f1": score.f1, "seconds": seconds, **asdict(score)})  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("series    method      setting      dial     F1             recall         false per 1000   off       s")
    for row in rows:
        score = Score(*(row[name] for name in ("planted", "found", "false", "unchanged", "misplaced")))
        recall = intervals.clopper_pearson(score.found, score.planted)
        false = intervals.clopper_pearson(min(score.false, score.unchanged), score.unchanged)
        off = "–" if score.misplaced is None else f"{score.misplaced:.2f}"
        print(
            f"{row['kind']:9} {row['method']:11} {row['setting']:8} {row['dial']:8.0e} {score.f1:6.3f} "
            f"{recall.value:5.2f} ({recall.low:.2f}–{recall.high:.2f}) "
            f"{1000 * false.value:8.2f} ({1000 * false.low:.2f}–{1000 * false.high:.2f}) {off:>5} {row['seconds']:7.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=240)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    peer = Peer()
    try:
        tuning = [one for one in patterns(peer, range(1000, 1000 + asked.seeds)) if not one[1]]
        rows = contest(peer, "patterns", tuning, patterns(peer, range(asked.seeds)))
        noise = bench_steps.recorded(asked.processes, 0)
        half = len(noise) // 2
        rows += contest(peer, "machine", machine(noise[:half], 40, False), machine(noise[half:], 80, True))
    finally:
        peer.stop()
    show(rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
