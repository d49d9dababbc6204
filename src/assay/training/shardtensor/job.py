"""A model on real processes: one rank has it whole, all have it in stretches, and both are held against each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.record.errors import BadInput
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

IMPORTS = ("torch", "assay.training.shardtensor.dispatch")
PATIENCE = 240.0  # seconds


def on_ranks(ranks: int, work: Callable[..., Any], *arguments: Any, patience: float = PATIENCE) -> list[Any]:
    """What every rank of a process group returns; `work(*arguments)` is a top-level function."""
    with (
        scratch() as folder,
        Ranks(ranks, partial(_join, folder=str(folder), work=work), *arguments, imports=IMPORTS) as r,
    ):
        return r.wait(timeout=patience)


def _join(rank: Rank, *arguments: Any, folder: str, work: Callable[..., Any]) -> Any:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        return work(*arguments)


@dataclass(frozen=True)
class Checked:
    """A model in stretches beside itself in one piece: largest differences, as shares of the largest value."""

    output: float
    gradients: float
    inputs: float
    sizes: tuple[int, ...]
    sent: int  # bytes, by all ranks, forward and backward

    @property
    def apart(self) -> float:
        """The largest of all."""
        return max(self.output, self.gradients, self.inputs)


def sizes_of(length: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to shares, by the largest remainders.

    >>> sizes_of(100, [0.37, 0.27, 0.36])
    (37, 27, 36)
    """
    if not shares or min(shares) < 0 or sum(shares) <= 0:
        raise BadInput(f"shares {tuple(shares)}; one number above 0 for each rank expected")
    exact = [length * share / sum(shares) for share in shares]
    found = [int(n) for n in exact]
    for at in sorted(range(len(exact)), key=lambda i: found[i] - exact[i])[: length - sum(found)]:
        found[at] += 1
    return tuple(found)


def check(model: Any, *inputs: Any, dim: int, shares: Sequence[float]) -> Checked:
    """Run a model on as many processes as there are shares, cut along `dim` of its inputs, and in one piece.

    Raises:
        Unsupported: the model calls what has no distributed version; the message names it.
    """
    sizes = sizes_of(inputs[0].shape[dim], shares)
    found = on_ranks(len(sizes), _checked, model, inputs, dim, sizes)
    return settle(found, sizes)


def settle(found: list[Any], sizes: tuple[int, ...]) -> Checked:
    """What the ranks found, or the refusal they met."""
    from assay.training.shardtensor.shards import Unsupported

    refused = next((part for part in found if isinstance(part, str)), None)
    if refused is not None:
        raise Unsupported(refused)
    output, gradients, inputs = (max(values) for values in zip(*(part[:3] for part in found), strict=True))
    return Checked(output, gradients, inputs, sizes, sum(part[3] for part in found))


def _checked(model: Any, inputs: Any, dim: int, sizes: Sequence[int]) -> Any:
    from assay.training.shardtensor.dispatch import Domain, Unsupported

    try:
        return compared(model, inputs, dim, sizes, Domain())
    except Unsupported as error:
        return str(error)


def compared(model: Any, inputs: Sequence[Any], dim: int, sizes: Sequence[int], domain: Any) -> tuple[float, ...]:
    """On this rank: how far outputs, gradients of weights and of inputs are apart, and bytes sent."""
    import torch

    from assay.training.shardtensor.shards import ShardTensor, mine, shard

    whole, cut = copy.deepcopy(model), copy.deepcopy(model)
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    parts = [shard(x.detach(), dim, domain, sizes) for x in inputs]
    for part in parts:
        part.requires_grad_(part.is_floating_point())
    truth, before = outputs(whole(*given)), domain.sent
    found = outputs(cut(*parts))
    random = torch.Generator().manual_seed(1)
    probes = [torch.randn(y.shape, generator=random, dtype=torch.float64).to(y.dtype) for y in truth]
    sum((y * p).sum() for y, p in zip(truth, probes, strict=True)).backward()
    sum((y * p).sum() for y, p in zip(found, probes, strict=True)).backward()
    sent = domain.sent - before
    results = [
        mine(y, f.axis, domain, f.sizes) if isinstance(f, ShardTensor) else y for y, f in zip(truth, found, strict=True)
    ]
    out = apart([f.local if isinstance(f, ShardTensor) else f for f in found], results)
    weights = [(a.grad, b.grad) for a, b in zip(cut.parameters(), whole.parameters(), strict=True)]
    by_weights = apart([a for a, b in weights if b is not None], [b for _, b in weights if b is not None])
    back = [
        (p.local.grad, mine(x.grad, dim, domain, sizes))
        for p, x in zip(parts, given, strict=True)
        if x.grad is not None
    ]
    return out, by_weights, apart([a for a, _ in back], [b for _, b in back]), sent


def outputs(found: Any) -> list[Any]:
    """A model's results as a list."""
    return list(found) if isinstance(found, tuple | list) else [found]


def apart(found: Sequence[Any], truth: Sequence[Any]) -> float:
    """The largest difference, of the largest value there is (1 where all are smaller); not a number counts as 1."""
    scale = max([1.0, *(float(b.detach().abs().max()) for b in truth if b.numel())])
    pairs = [(a.detach(), b.detach()) for a, b in zip(found, truth, strict=True) if b.numel()]
    return max([0.0, *(float((a - b).abs().nan_to_num(scale).max()) for a, b in pairs)]) / scale
