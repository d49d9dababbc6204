"""Data-parallel training whose gradients travel compressed: the three lines that matter are marked.

python examples/compressed.py                                   # two processes of its own
torchrun --nproc-per-node 2 examples/compressed.py              # or under torchrun
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from assay.training.ncclz import Compression, hook  # 1

STEPS = 20


def train() -> float:
    """A small regression; every rank has its own batches."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    state = Compression(bits=8, links="1gbit")  # 2: or Compression(eps=1e-5)
    model.register_comm_hook(state, hook)  # 3
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(32, 64, generator=random)
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raw = 4 * STEPS * sum(p.numel() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}, {state.coded} buckets coded, "
              f"{raw / max(1, state.sent):.1f} times fewer bytes")  # fmt: skip
    return float(loss)


def main(rank: int, store: str) -> None:
    """One of two ranks that find each other by a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train()
        dist.destroy_process_group()
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
