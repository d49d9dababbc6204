"""One rank of PhysicsNeMo's ShardTensor on the models and samples of the study; writes its numbers for comparison.

Started by `benchmarks/training_shardtensor.py`, once for each rank, by the Python that has PhysicsNeMo.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def sample(kind: str, seed: int, rows: int) -> tuple[torch.nn.Module, torch.Tensor, int]:
    """A model of the study, or a piece of one made only of calls that PhysicsNeMo registers; its input; what is cut."""
    from torch import nn

    from assay.training.shardtensor import measured, models

    if kind in measured.KINDS:
        return measured.made(kind, seed, rows)
    torch.manual_seed(seed)
    if kind == "transformer layer":
        return models.Block(16, 2), torch.randn(1, rows, 16), 1
    if kind == "perceptron":
        layers = nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)
        return nn.Sequential(*layers), torch.randn(1, rows, 7), 1
    wide = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1)
    deep = nn.Conv2d(8, 16, 2, 2), nn.SiLU(), nn.ConvTranspose2d(16, 2, 2, 2)
    return nn.Sequential(*wide, *deep), torch.randn(1, 2, rows, 16), 2


def _without_accelerator() -> None:
    """PhysicsNeMo 2.2.2 has shapes on "cuda", pins memory, names a device to its group: here all of it is the CPU's."""

    def on_cpu(call: Any) -> Any:
        def changed(*args: Any, **given: Any) -> Any:
            kept = {key: value for key, value in given.items() if key not in ("device_id", "pin_memory")}
            return call(*args, **kept | ({"device": "cpu"} if given.get("device") == "cuda" else {}))

        return changed

    dist.init_process_group = on_cpu(dist.init_process_group)
    for name in ("tensor", "zeros_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.to = on_cpu(torch.Tensor.to)  # type: ignore[method-assign]
    torch.cuda.set_device = lambda device: None
    # torchvision's wheel is for torch with CUDA; without its kernels it misses these names when it is imported.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _with_torchs_shard_order() -> None:
    """torch 2.13 keeps an order of shards in a layout; PhysicsNeMo 2.2.2 changes placements and leaves the old one."""
    from physicsnemo.domain_parallel import shard_tensor  # type: ignore[import-not-found]

    def replace(layout: Any, **changes: Any) -> Any:
        anew = {"shard_order": None} if "placements" in changes else {}  # None: torch works it out again
        return dataclasses.replace(layout, **anew | changes)

    shard_tensor.dataclasses = SimpleNamespace(replace=replace)


def whole(tensor: Any) -> Any:
    """All of it, as an array."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().numpy()


def main(folder: Path, rank: int) -> None:
    asked = json.loads((folder / "job.json").read_text())
    size = asked["ranks"]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(asked["port"])}
    torch.set_num_threads(1)
    _without_accelerator()
    from physicsnemo.distributed import DistributedManager  # type: ignore[import-not-found]
    from physicsnemo.domain_parallel import ShardTensor, register_custom_ops
    from torch.distributed.tensor import Shard

    from assay.training.shardtensor.job import outputs

    register_custom_ops()  # which importing it does where there is an accelerator
    _with_torchs_shard_order()
    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((size,), ("domain",))
    found: dict[str, Any] = {}
    for case in asked["cases"]:
        kind, sizes = case["kind"], case["sizes"]
        model, x, dim = sample(kind, asked["seed"], case["rows"])
        start = sum(sizes[:rank])
        part = x.narrow(dim, start, sizes[rank]).contiguous()
        arrays: list[Any] = []
        refused, began = "", time.perf_counter()
        try:
            shard = ShardTensor.from_local(part, mesh, (Shard(dim),), sharding_shapes="infer")
            results = outputs(model(shard))
            arrays += [whole(y) for y in results]
            loss: Any = sum(y.square().mean() for y in results)
            (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).backward()
            arrays += [whole(w.grad) for w in model.parameters()]
        except Exception as error:  # whatever a peer of another version raises is its answer
            refused = f"{'gradients: ' if arrays else ''}{type(error).__name__}: {error}".splitlines()[0][:200]
        if rank == 0 and arrays:
            np.savez(folder / f"{kind}.npz", *arrays)
        found[kind] = {"seconds": None if refused else time.perf_counter() - began, "refused": refused}
    (folder / f"answer{rank}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
