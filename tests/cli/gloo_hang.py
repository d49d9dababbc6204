"""A real torch.distributed job on Gloo that hangs, with torch's own Flight Recorder switched on."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from assay.sim.ranks import Rank

ROUNDS = 3


def hang(rank: Rank, folder: str, absent: int, odd: int) -> None:
    """All ranks reduce three times; then one does not call, or one calls something else, and the rest wait."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    import torch
    import torch.distributed as dist

    store = f"file://{folder}/.store"
    dist.init_process_group("gloo", init_method=store, rank=rank.index, world_size=rank.size)
    expected = ROUNDS if rank.index == absent else ROUNDS + 1
    threading.Thread(target=_dump, args=(rank, folder, expected), daemon=True).start()
    tensor = torch.ones(8)
    for _ in range(ROUNDS):
        dist.all_reduce(tensor)
    if rank.index == odd:
        dist.all_gather([torch.zeros(8) for _ in range(rank.size)], tensor)
    elif rank.index != absent:
        dist.all_reduce(tensor)
    time.sleep(300)


def _dump(rank: Rank, folder: str, expected: int) -> None:
    """Write the dump once the rank stands where it will stand for ever; pickles and JSON in turn."""
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    while True:
        time.sleep(0.1)
        entries = json.loads(_dump_fr_trace_json()).get("entries", [])
        if len(entries) == expected and all(entry["retired"] for entry in entries[:ROUNDS]):
            break
    time.sleep(0.3)
    data = _dump_fr_trace_json() if rank.index % 2 else _dump_fr_trace()
    (Path(folder) / f"nccl_trace_rank_{rank.index}").write_bytes(data)
    rank.array("written")[rank.index] = 1
