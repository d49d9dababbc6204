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
    from assay.training.shardtensor.shards import Unsupported

    sizes = sizes_of(inputs[0].shape[dim], shares)
    found = on_ranks(len(sizes), _checked, model, inputs, dim, sizes)
    refused = next((part for part in found if isinstance(part, str)), None)
    if refused is not None:
        raise Unsupported(refused)
    output, gradients, given = (max(values) for values in zip(*(part[:3] for part in found), strict=True))
    return Checked(output, gradients, given, sizes, sum(part[3] for part in found))


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
    out = apart([f.local if isinstance(f, ShardTensor) else f for f in found], results, scale_of(truth))
    weights = [(a.grad, b.grad) for a, b in zip(cut.parameters(), whole.parameters(), strict=True)]
    back = [(p.local.grad, x.grad) for p, x in zip(parts, given, strict=True)]
    scale = scale_of([b for _, b in (*weights, *back)])
    mine_of = [(a, None if b is None else mine(b, dim, domain, sizes)) for a, b in back]
    return out, _owed(weights, scale), _owed(mine_of, scale), sent


def _owed(pairs: Sequence[tuple[Any, Any]], scale: float) -> float:
    """How far gradients are apart; one that is lacking is nothing, which is right only where nothing is owed."""
    import torch

    known = [(a, b) for a, b in pairs if a is not None or b is not None]
    both = [(torch.zeros_like(b) if a is None else a, torch.zeros_like(a) if b is None else b) for a, b in known]
    return apart([a for a, _ in both], [b for _, b in both], scale)


def outputs(found: Any) -> list[Any]:
    """A model's results as a list."""
    return list(found) if isinstance(found, tuple | list) else [found]


def scale_of(truth: Sequence[Any]) -> float:
    """The largest finite value there is; 1 where there is none but zeros."""
    sizes = [b.detach().abs().double() for b in truth if b is not None and b.numel()]
    return max([float(size.masked_fill(~size.isfinite(), 0).max()) for size in sizes], default=0.0) or 1.0


def rounding(tensors: Sequence[Any]) -> float:
    """By how much of the largest value results of these may differ because sums are added in another order.

    A thousand times what one number is rounded by, as a few thousand additions may bring; 16 times that of numbers of
    16 bits, whose sums are kept in more.

    >>> import torch
    >>> rounding([torch.zeros(1)]) < 2e-4, rounding([torch.zeros(1, dtype=torch.float64)]) < 1e-12
    (True, True)
    """
    import torch

    kinds = [torch.finfo(x.dtype).eps for x in tensors if x.is_floating_point()]
    return max((eps * (1024 if eps < 1e-5 else 16) for eps in kinds), default=0.0)


def apart(found: Sequence[Any], truth: Sequence[Any], scale: float) -> float:
    """The largest difference, as a share; 1 for a number where there should be none, and the other way round."""
    worst = 0.0
    for a, b in zip(found, truth, strict=True):
        if a.shape != b.shape:
            return 1.0
        if b.numel():
            a, b = a.detach().double(), b.detach().double()
            same = (a == b) | (a.isnan() & b.isnan())
            worst = max(worst, float((a - b).abs().nan_to_num(scale, scale).masked_fill(same, 0).max()) / scale)
    return worst
