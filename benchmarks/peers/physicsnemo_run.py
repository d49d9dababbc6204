"""One rank of PhysicsNeMo's ShardTensor on the models and samples of the study; writes its numbers for comparison.

Started by `benchmarks/training_shardtensor.py`, once for each rank, by the Python that has PhysicsNeMo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def main(folder: Path, rank: int) -> None:
    asked = json.loads((folder / "job.json").read_text())
    size = asked["ranks"]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(asked["port"])}
    torch.set_num_threads(1)
    from physicsnemo.distributed import DistributedManager  # type: ignore[import-not-found]
    from physicsnemo.domain_parallel import ShardTensor  # type: ignore[import-not-found]
    from torch.distributed.tensor import Shard

    from assay.training.shardtensor.job import outputs
    from assay.training.shardtensor.measured import made

    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((size,), ("domain",))
    found: dict[str, Any] = {}
    for case in asked["cases"]:
        kind, sizes = case["kind"], case["sizes"]
        model, x, dim = made(kind, asked["seed"], case["rows"])
        start = sum(sizes[:rank])
        part = x.narrow(dim, start, sizes[rank]).contiguous()
        try:
            shard = ShardTensor.from_local(part, mesh, (Shard(dim),), sharding_shapes="infer")
            began = time.perf_counter()
            results = outputs(model(shard))
            loss: Any = sum(y.square().mean() for y in results)
            whole = [y.full_tensor() if hasattr(y, "full_tensor") else y for y in results]
            (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).backward()
            grown: list[Any] = [w.grad for w in model.parameters()]
            gradients = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grown]
            arrays = [t.detach().numpy() for t in (*whole, *gradients)]
            if rank == 0:
                np.savez(folder / f"{kind}.npz", *arrays)
            found[kind] = {"seconds": time.perf_counter() - began, "refused": ""}
        except Exception as error:  # whatever a peer of another version raises is its answer
            found[kind] = {"seconds": None, "refused": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    (folder / f"answer{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
