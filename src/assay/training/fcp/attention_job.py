"""Distributed attention on real processes, beside attention in one piece on the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.fcp.blocks import Plan, plan

HEADS, WIDTH = 2, 8


def same(ranks: int, causal: bool, seed: int) -> dict[str, Any]:
    """How far outputs and gradients are apart at most, on drawn lengths, and how many blocks travelled."""
    random = stream(seed, "fcp", "real")
    lengths = [int(n) for n in random.integers(1, 40, 6)] + [int(random.integers(60, 120))]
    found = plan(lengths, ranks, size=16, causal=causal, memory=1.5)
    (outcomes,) = run([found], seed)
    try:
        expected = in_one_piece(lengths, causal, seed)
    except ModuleNotFoundError as error:
        raise NotMeasured("real attention needs the extra torch") from error
    apart = max(float(np.abs(outcomes[name] - expected[name]).max()) for name in expected)
    return {"apart": apart, "messages": len(found.block), "rounds": found.rounds, "tokens": sum(lengths)}


def run(plans: Sequence[Plan], seed: int) -> list[dict[str, Any]]:
    """By each plan, outputs and gradients of queries, keys and values, in the user's order of tokens."""
    for found in plans:
        found.check_rounds()
    with scratch() as folder:
        job = partial(_work, folder=str(folder), plans=plans, seed=seed)
        with Ranks(plans[0].ranks, job, imports=("torch", "assay.training.fcp.attention")) as running:
            ranks = running.wait(timeout=240)
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*ranks, strict=True)
    ]


def tensors(tokens: int, seed: int) -> list[Any]:
    """Queries, keys, values and the gradient that comes back, of all tokens."""
    import torch

    random = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, HEADS, WIDTH, generator=random) for _ in range(4)]


def _work(rank: Rank, folder: str, plans: Sequence[Plan], seed: int) -> list[dict[str, Any]]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        return [_attend(rank, found, seed) for found in plans]


def _attend(rank: Rank, found: Plan, seed: int) -> dict[str, Any]:
    """From the user's layout to the plan's, attention, back, and all the way home with the gradients."""
    from assay.training.fcp.attention import attend, reshuffled

    total = int(found.blocks.lengths.sum())
    each = -(-total // rank.size)
    mine = slice(rank.index * each, (rank.index + 1) * each)
    *inputs, gradient = (whole[mine].clone() for whole in tensors(total, seed))
    for part in inputs:
        part.requires_grad_()
    moved = [reshuffled(part, found) for part in inputs]
    out = reshuffled(attend(moved[0], moved[1], moved[2], found), found, back=True)
    out.backward(gradient)
    names = dict(zip(("q", "k", "v"), inputs, strict=True))
    return {"out": out.detach().numpy()} | {name: part.grad.numpy() for name, part in names.items()}


def in_one_piece(lengths: list[int], causal: bool, seed: int) -> dict[str, Any]:
    """The same by torch's own attention, a sequence at a time."""
    from assay.training.engine import attention

    return attention.in_one_piece(tensors(sum(lengths), seed), lengths, causal)
