"""The two models by our ShardTensor and by PhysicsNeMo's, on the same samples and stretches, over gloo.

python benchmarks/training_shardtensor.py --peer PYTHON [--ranks 2]      # a Python with benchmarks/envs/physicsnemo.txt

The two models are followed by pieces of them that are made only of calls which the peer registers. Each case is a
peer job of its own, so that a call which it refuses on one rank leaves the others alone. A line says whether outputs
and gradients are the same numbers, with the largest difference, or what the peer's own error was; where it gives
outputs and refuses gradients, both.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.ranks import ENVIRONMENT
from assay.sim.scratch import scratch
from assay.training.shardtensor.job import on_ranks, sizes_of

CASES = {"vit": 40, "unet": 40, "transformer layer": 48, "convolutions": 40, "perceptron": 48}
PEER = Path(__file__).parent / "peers" / "physicsnemo_run.py"
SOURCE = Path(__file__).parents[1] / "src"  # the models are ours, and the peer's environment has no assay
SAME, PATIENCE = 1e-5, 150


def ours(kind: str, rows: int, sizes: list[int], seed: int) -> list[Any]:
    """On this rank: outputs and gradients of weights as arrays, and bytes sent."""
    from assay.training.shardtensor.dispatch import Domain, ShardTensor, shard
    from assay.training.shardtensor.job import outputs

    sys.path.insert(0, str(PEER.parent))
    from physicsnemo_run import sample

    domain = Domain()
    model, x, dim = sample(kind, seed, rows)
    results = outputs(model(shard(x, dim, domain, sizes)))
    loss: Any = sum(y.square().mean() for y in results)
    loss.backward()
    whole = [y.full_tensor() if isinstance(y, ShardTensor) else y for y in results]
    return [t.detach().numpy() for t in (*whole, *(w.grad for w in model.parameters()))]  # type: ignore[union-attr]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def peer(python: str, case: dict[str, Any], ranks: int, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """What PhysicsNeMo answers, and its arrays where it has any."""
    with scratch() as folder:
        job = {"ranks": ranks, "port": free_port(), "seed": seed, "cases": [case]}
        (folder / "job.json").write_text(json.dumps(job))
        settings = os.environ | ENVIRONMENT | {"PYTHONPATH": str(SOURCE)}
        running = [
            subprocess.Popen([python, str(PEER), str(folder), str(r)], env=settings, stderr=subprocess.DEVNULL)
            for r in range(ranks)
        ]
        try:
            for process in running:
                process.wait(timeout=PATIENCE)
            told = json.loads((folder / "answer0.json").read_text())[case["kind"]]
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            late = isinstance(error, subprocess.TimeoutExpired)
            told = {"refused": f"no answer in {PATIENCE} s" if late else "it ended without an answer", "seconds": None}
        finally:
            for process in running:
                process.kill()
                process.wait()
        path = folder / f"{case['kind']}.npz"
        arrays = [np.array(a) for a in np.load(path).values()] if path.exists() else []
    return told, arrays


def compared(mine: list[Any], theirs: list[Any], refused: str) -> dict[str, Any]:
    """One line for a case: the same numbers or not, or the peer's error."""
    gaps = [float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(mine, theirs, strict=False)]
    if not gaps:
        return {"says": f"not compared: {refused}"}
    which = "same" if max(gaps) <= SAME else "other"
    told = f"{which} numbers, {max(gaps):.1g} apart in {len(gaps)} of {len(mine)} arrays"
    return {"apart": max(gaps), "says": f"{told}; peer's error in {refused}" if refused else told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    asked = parser.parse_args()
    for kind, rows in CASES.items():
        if kind not in asked.only:
            continue
        for name, shares in (("even", [1.0] * asked.ranks), ("uneven", [float(n + 1) for n in range(asked.ranks)])):
            sizes = [4 * n for n in sizes_of(rows // 4, shares)]
            mine = on_ranks(asked.ranks, ours, kind, rows, sizes, asked.seed)[0]
            told, theirs = peer(asked.peer, {"kind": kind, "rows": rows, "sizes": sizes}, asked.ranks, asked.seed)
            row: dict[str, Any] = {"model": kind, "stretches": name, "sizes": sizes} | told
            print(json.dumps(row | compared(mine, theirs, told["refused"])), flush=True)


if __name__ == "__main__":
    main()
