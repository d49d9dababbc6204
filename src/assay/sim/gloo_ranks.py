"""Ranks that form a process group: torch.distributed over gloo, on the loopback, one computing thread each.

What every real data-parallel job of ours begins and ends with; what it trains is its own. Needs the extra `torch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from assay.sim.ranks import Rank

PATIENCE = 120.0  # seconds that ranks wait for one another; torch alone may take 20 to import on a busy machine


@contextmanager
def joined(
    rank: Rank, folder: str, *, patience: float = PATIENCE, importing: float = PATIENCE, leave: bool = True
) -> Iterator[Any]:
    """Within it, this rank is in the group; gives `torch.distributed`.

    Args:
        rank: who this process is.
        folder: where the ranks find each other: a scratch folder of the job, which whoever started it removes.
        patience: seconds that a collective may take.
        importing: seconds that the ranks wait for each other's imports.
        leave: take the group down in the end; a job that kills or stops its ranks leaves that to the system.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # loopback only
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank.meet(importing)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank.index, world_size=rank.size,
        timeout=timedelta(seconds=patience),
    )  # fmt: skip
    rank.meet(patience)  # who left while another still connects would be taken for one that crashed
    try:
        yield dist
    finally:
        if leave:
            dist.destroy_process_group()
