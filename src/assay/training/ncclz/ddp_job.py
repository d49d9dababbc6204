"""A small language model trained by DistributedDataParallel on real processes, with one hook after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from assay.sim import gloo_ranks, tiny_lm
from assay.sim.ranks import Rank
from assay.training.ncclz.ddp import Compression, hook
from assay.training.ncclz.race_job import PATIENCE, on_ranks

CONTEXT, BATCH, RATE = 8, 32, 3e-3
EPS = 1e-4


def trained(ranks: int, steps: int, seeds: Sequence[int], hooks: Sequence[str]) -> list[dict[str, dict[str, Any]]]:
    """For every seed the held-out loss after so many steps with each hook, from the same start on the same batches."""
    found = on_ranks(ranks, _work, steps, list(seeds), list(hooks))
    return [
        {name: row | {"same": all(one[k][name]["loss"] == row["loss"] for one in found)} for name, row in rows.items()}
        for k, rows in enumerate(found[0])
    ]


def _work(
    rank: Rank, where: str, steps: int, seeds: Sequence[int], hooks: Sequence[str]
) -> list[dict[str, dict[str, Any]]]:
    with gloo_ranks.joined(rank, where, patience=PATIENCE):
        return [{name: _run(name, rank, steps, seed) for name in hooks} for seed in seeds]


@lru_cache(maxsize=4)
def _pairs(seed: int) -> Any:
    """Contexts of a text and the letters that follow them; the same for every hook."""
    import torch

    letters = torch.tensor(tiny_lm.encode(tiny_lm.text(seed, sentences=400)))
    return letters.unfold(0, CONTEXT + 1, 1)


def _run(name: str, rank: Rank, steps: int, seed: int) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(seed)
    inner = nn.Sequential(
        nn.Embedding(128, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 128)
    )
    model = DistributedDataParallel(inner)
    state = None
    if name != "fp32":
        state = Compression(eps=EPS if name == "ncclz eps" else None, links="1gbit", always=True, seed=seed)
        model.register_comm_hook(state, hook)
    text, held = _pairs(seed), _pairs(seed + 2**32)[:2000]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    random = torch.Generator().manual_seed(1000 * seed + rank.index)
    for _ in range(steps):
        rows = text[torch.randint(len(text), (BATCH,), generator=random)]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        final = float(nn.functional.cross_entropy(inner(held[:, :-1]), held[:, -1]))
    count = sum(p.numel() for p in inner.parameters())
    coded = state.coded if state else 0
    return {"loss": final, "bytes": 4 * count * steps, "sent": state.sent if state else None, "coded": coded}
