"""Rows to the ranks of a process group and back, with gradients: an all-to-all that autograd can go home through.

Needs the extra `torch`, and a process group (`assay.sim.gloo_ranks`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Sizes = list[int]


def exchange(sizes: list[tuple[Sizes, Sizes]], *rows: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """What all ranks sent here, for each kind of rows; `sizes` are how many go to and how many come from every rank.

    `group` are the ranks, all of them unless given.

    Several kinds go in one step of the graph: all ranks then exchange their gradients in one order, also where one of
    them had nothing to send or to compute.
    """
    found: tuple[Tensor, ...] = _Exchange.apply(sizes, group, *rows)
    return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: list[tuple[Sizes, Sizes]], group: Any, *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.sizes, ctx.group = sizes, group
        return tuple(_swap(mine, *both, group) for mine, both in zip(rows, sizes, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        swapped = (_swap(mine, into, out, ctx.group) for mine, (out, into) in zip(gradients, ctx.sizes, strict=True))
        return (None, None, *swapped)


def _swap(rows: Tensor, out: Sizes, into: Sizes, group: Any) -> Tensor:
    found = rows.new_empty((sum(into), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), into, out, group=group)
    return found
