"""The three models by our ShardTensor and by PhysicsNeMo's, on the same samples and stretches, over gloo.

python benchmarks/training_shardtensor.py --peer PYTHON [--ranks 2]      # a Python with benchmarks/envs/physicsnemo.txt

Each case is a peer job of its own, so that a call which it refuses on one rank leaves the others alone. Where it gives
outputs and refuses gradients, outputs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.ranks import ENVIRONMENT
from assay.sim.scratch import scratch
from assay.training.shardtensor.job import on_ranks, sizes_of

CASES = {"vit": 40, "unet": 40, "points": 52}
PEER = Path(__file__).parent / "peers" / "physicsnemo_run.py"


def ours(kind: str, rows: int, sizes: list[int], seed: int) -> list[Any]:
    """On this rank: outputs and gradients of weights as arrays, and bytes sent."""
    from assay.training.shardtensor.dispatch import Domain, ShardTensor, shard
    from assay.training.shardtensor.job import outputs
    from assay.training.shardtensor.measured import made

    domain = Domain()
    model, x, dim = made(kind, seed, rows)
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
        settings = os.environ | ENVIRONMENT
        running = [
            subprocess.Popen([python, str(PEER), str(folder), str(r)], env=settings, stderr=subprocess.DEVNULL)
            for r in range(ranks)
        ]
        try:
            for process in running:
                process.wait(timeout=150)
            told = json.loads((folder / "answer0.json").read_text())[case["kind"]]
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            told = {"refused": f"no answer: {type(error).__name__}", "seconds": None}
        finally:
            for process in running:
                process.kill()
                process.wait()
        path = folder / f"{case['kind']}.npz"
        arrays = [np.array(a) for a in np.load(path).values()] if path.exists() else []
    return told, arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for kind, rows in CASES.items():
        for name, shares in (("even", [1.0] * asked.ranks), ("uneven", [float(n + 1) for n in range(asked.ranks)])):
            sizes = [4 * n for n in sizes_of(rows // 4, shares)]
            mine = on_ranks(asked.ranks, ours, kind, rows, sizes, asked.seed)[0]
            told, theirs = peer(asked.peer, {"kind": kind, "rows": rows, "sizes": sizes}, asked.ranks, asked.seed)
            row: dict[str, Any] = {"model": kind, "stretches": name, "sizes": sizes} | told
            if theirs:
                gaps = [
                    float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(mine, theirs, strict=False)
                ]
                row |= {"apart": max(gaps), "arrays": f"{len(theirs)} of {len(mine)}"}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
