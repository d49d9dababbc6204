"""`assay trace` beside HolisticTraceAnalysis on one large Kineto file: seconds, peak memory, and the same numbers.

Both run as processes of their own, in turns, on a file that is written first (`--megabytes`, 220 unless told). Both
look at all steps. Times in the file are whole microseconds, because HolisticTraceAnalysis rounds finer ones. The
commands differ in one respect, in the peer's favour: `assay trace` also finds the critical path, the top kernels and
two what-ifs.

    python benchmarks/traces.py            # about two minutes
    python benchmarks/traces.py --megabytes 500 --rounds 5 --json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.record.intervals import ratio
from assay.workloads.kineto_generate import Job, write
from routers import HERE, UnavailableError, environment

STEPS, PER_LAYER = 5, 8_290  # bytes of the file that a layer of a step takes, about


@dataclass(frozen=True)
class Turn:
    """What one process took, and what it said."""

    seconds: float
    cpu: float  # processor seconds: what is left to compare on a busy machine
    peak: int
    said: Any


def child(command: list[str]) -> Turn:
    """Run a process to its end. Its peak memory is the kernel's own figure for it."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(started.pid, 0)
        seconds = time.perf_counter() - begun
        started.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if started.returncode:
            said = err.read().decode("utf-8", "replace").strip().splitlines()
            raise UnavailableError(f"{command[0]}: exit {started.returncode}: {said[-1] if said else ''}")
        return Turn(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, json.loads(out.read()))


def commands(path: Path) -> dict[str, list[str]]:
    """What is run, by name."""
    ours = [str(environment("assay") / "assay"), "trace", str(path), "--json"]
    peer = [str(environment("hta") / "python"), str(HERE / "peers" / "hta_run.py"), f"0={path}"]
    return {"assay": ours, "hta": peer}


def numbers(name: str, said: Any) -> dict[str, float]:
    """Overlap in percent and the parts in microseconds, from either output."""
    if name == "hta":
        overlap, parts = said["overlap"][0], said["breakdown"][0]
        kept = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
        return {"overlap": overlap["comp_comm_overlap_pctg"]} | {key.removesuffix("(us)"): parts[key] for key in kept}
    row = next(row for row in said["breakdown"] if row["step"] is None)
    return {
        "overlap": round(100 * said["overlap"][0]["overlap"], 2),
        "idle_time": row["idle"] * 1e6,
        "compute_time": row["compute"] * 1e6,
        "non_compute_time": (row["exposed"] + row["memcpy"]) * 1e6,
        "kernel_time": row["total"] * 1e6,
    }


def equal(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether overlaps agree to the two digits that are printed and times to a nanosecond."""
    return all(abs(one[key] - other[key]) <= 1e-3 + 1e-12 * abs(one[key]) for key in one)


def measure(path: Path, rounds: int) -> dict[str, list[Turn]]:
    """Both in turns; a first turn of each on a small file fills the caches of compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        small = write(Job(ranks=1, steps=3, layers=4), Path(folder))[0]
        for command in commands(small).values():
            child(command)
    turns: dict[str, list[Turn]] = {name: [] for name in commands(path)}
    for turn in range(rounds):
        order = list(commands(path).items())
        for name, command in order if turn % 2 == 0 else order[::-1]:
            turns[name].append(child(command))
    return turns


def main() -> None:
    """Write, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=220)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    layers = max(4, chosen.megabytes * 1_000_000 // (STEPS * PER_LAYER))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Job(ranks=1, steps=STEPS, layers=layers, resolution=1000), Path(folder))[0]
        size = path.stat().st_size
        try:
            turns = measure(path, chosen.rounds)
        except UnavailableError as error:
            sys.exit(str(error))
    found = {name: numbers(name, some[0].said) for name, some in turns.items()}
    seconds = {name: [turn.seconds for turn in some] for name, some in turns.items()}
    cpu = {name: [turn.cpu for turn in some] for name, some in turns.items()}
    peaks = {name: max(turn.peak for turn in some) for name, some in turns.items()}
    faster = ratio(seconds["hta"], seconds["assay"])
    summary = {
        "bytes": size, "rounds": chosen.rounds, "seconds": seconds, "cpu": cpu, "peak": peaks, "numbers": found,
        "faster": {"value": faster.value, "low": faster.low, "high": faster.high},
        "memory": peaks["assay"] / peaks["hta"], "equal": equal(found["hta"], found["assay"]),
    }  # fmt: skip
    print(json.dumps(summary, indent=2) if chosen.json else text(summary))
    sys.exit(0 if summary["equal"] else 1)


def text(summary: dict[str, Any]) -> str:
    """For people."""
    lines = [f"a Kineto file of {summary['bytes'] / 1e6:.0f} MB, {summary['rounds']} turns each"]
    for name, some in summary["seconds"].items():
        shown = " ".join(f"{value:.2f}" for value in some)
        busy = " ".join(f"{value:.2f}" for value in summary["cpu"][name])
        lines.append(f"{name:6} seconds {shown}   cpu {busy}   peak {summary['peak'][name] / 1e6:,.0f} MB")
    faster = summary["faster"]
    lines.append(f"assay is {faster['value']:.1f} times as fast ({faster['low']:.1f} to {faster['high']:.1f})")
    lines.append(f"and takes {summary['memory']:.2f} of the memory; equal numbers: {summary['equal']}")
    ours, theirs = summary["numbers"]["assay"], summary["numbers"]["hta"]
    lines += [f"  {key:18} hta {theirs[key]:16,.2f}   assay {ours[key]:16,.2f}" for key in theirs]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
