"""Records real traces on a GPU: two ranks of a small transformer share it, gradients go over gloo.

python benchmarks/h200_trace.py OUT [--steps 8] [--layers 12]

Each rank leaves `kineto.RANK.json` (torch profiler) and `host.RANK.json` (execution trace observer) of the same steps,
and `steps.RANK.json` with the seconds of each step as the rank's own clock measured them. NCCL refuses two ranks on one
GPU, so communication is gloo's: copies to the host, sockets, copies back.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any


def rank(index: int, size: int, out: str, steps: int, layers: int, port: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=index, world_size=size)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.TransformerEncoder(layer, layers).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(Path(out) / f"host.{index}.json"))
    seconds = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=2, active=steps),
        execution_trace_observer=observer,
        record_shapes=True,
    ) as profiler:
        for _ in range(3 + steps):
            began = time.perf_counter()
            x = torch.randn(32, 128, 512, device="cuda")
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            profiler.step()
            seconds.append(time.perf_counter() - began)
    profiler.export_chrome_trace(str(Path(out) / f"kineto.{index}.json"))
    (Path(out) / f"steps.{index}.json").write_text(json.dumps(seconds[3:]))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--port", type=int, default=29511)
    given = parser.parse_args()
    from torch import multiprocessing

    processes: Any = multiprocessing  # `spawn` carries no types

    given.out.mkdir(parents=True, exist_ok=True)
    arguments = (2, str(given.out), given.steps, given.layers, given.port)
    processes.spawn(rank, arguments, nprocs=2)


if __name__ == "__main__":
    main()
