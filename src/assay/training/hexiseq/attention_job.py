"""Attention by unequal shares on real processes, beside attention in one piece on the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.hexiseq.pace import Split
from assay.training.hexiseq.shares import intervals, tokens_of

HEADS, KV_HEADS, WIDTH = 8, 4, 8


def drawn(ranks: int, random: np.random.Generator, heads: int = HEADS, kv_heads: int = KV_HEADS) -> Split:
    """Random groups, unequal tokens, unequal whole heads; some ranks may have no heads, or hardly any tokens."""
    groups = int(random.integers(1, ranks + 1))
    group = np.concatenate([np.arange(groups), random.integers(0, groups, ranks - groups)])
    random.shuffle(group)
    tokens = random.integers(1, 24, ranks)
    keys = np.zeros(ranks, np.int64)
    for g in range(groups):
        for r in random.choice(np.flatnonzero(group == g), kv_heads):
            keys[r] += 1
    return Split(group, tokens, keys * (heads // kv_heads))


def same(ranks: int, seed: int) -> dict[str, Any]:
    """How far outputs and gradients are apart at most, on three drawn splits, and how unequal those were."""
    random = stream(seed, "hexiseq", "real")
    splits = [drawn(ranks, random) for _ in range(3)]
    try:
        found = run(splits, seed)
        apart = max(
            float(np.abs(outcome[name] - expected).max())
            for split, outcome in zip(splits, found, strict=True)
            for name, expected in in_one_piece(int(split.tokens.sum()), seed).items()
        )
    except ModuleNotFoundError as error:
        raise NotMeasured("real attention needs the extra torch") from error
    uneven = [split.tokens.max() / split.tokens.min() for split in splits]
    rings = sum(len(intervals(split, KV_HEADS)) for split in splits if split.groups > 1)
    return {"apart": apart, "uneven": float(np.max(uneven)), "sub_rings": rings}


def run(splits: Sequence[Split], seed: int) -> list[dict[str, Any]]:
    """By each split, outputs and gradients of queries, keys and values in the order of the sequence."""
    ranks = len(splits[0].group)
    with scratch() as folder:
        job = partial(_work, folder=str(folder), splits=splits, seed=seed)
        with Ranks(ranks, job, imports=("torch", "assay.training.hexiseq.attention")) as running:
            answers = running.wait(timeout=240)
    found = []
    for split, parts in zip(splits, zip(*answers, strict=True), strict=True):
        order = np.argsort(np.concatenate(tokens_of(split)))
        found.append({name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]})
    return found


def tensors(tokens: int, seed: int) -> list[Any]:
    """Queries, keys, values and the gradient that comes back, of all tokens."""
    import torch

    random = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, heads, WIDTH, generator=random) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]


def in_one_piece(tokens: int, seed: int) -> dict[str, Any]:
    """The same by torch's own attention."""
    from assay.training.engine import attention

    return attention.in_one_piece(tensors(tokens, seed), [tokens], causal=True)


def _work(rank: Rank, folder: str, splits: Sequence[Split], seed: int) -> list[dict[str, Any]]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        return [_attend(rank, split, seed) for split in splits]


def _attend(rank: Rank, split: Split, seed: int) -> dict[str, Any]:
    import torch

    from assay.training.hexiseq.attention import attend

    mine = torch.from_numpy(tokens_of(split)[rank.index])
    *inputs, gradient = (whole[mine].clone() for whole in tensors(int(split.tokens.sum()), seed))
    for part in inputs:
        part.requires_grad_()
    out = attend(inputs[0], inputs[1], inputs[2], split)
    out.backward(gradient)
    names = dict(zip(("q", "k", "v"), inputs, strict=True))
    return {"out": out.detach().numpy()} | {name: part.grad.numpy() for name, part in names.items()}
