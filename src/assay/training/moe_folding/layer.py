"""A transformer block in torch whose two halves lie on two meshes over the same ranks, and the dispatcher between them.

Tokens are cut over all ranks of a stage: their sequences over dp, slices of them over cp and tp. The first half is cut
over tp: its rows are gathered before and scattered after. The experts lie on (etp, ecp, ep, edp): a rank sorts its rows
by expert, sends them to the ranks that hold these experts (all-to-all over ep, sizes first), which gather what other
holders of slices got (over etp), sort by their own experts, compute one after the other, and send everything back the
same way, summed over the slices. Autograd goes home through the same exchanges. Needs the extra `torch`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import silu

from assay.sim.grids import Grid
from assay.sim.row_exchange import Sizes, exchange
from assay.training.interface import Layout

AUXILIARY = 0.01  # weight of the loss that keeps experts evenly loaded


@dataclass(frozen=True)
class Peers:
    """A process group, and the place of this rank in it."""

    group: Any
    size: int
    place: int

    @classmethod
    def of(cls, grid: Grid, *names: str) -> Peers:
        """Who differs from this rank on these axes only; every rank has to ask for the same, in the same order."""
        found = None
        for ranks in grid.groups(*names).tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                found = cls(group, len(ranks), ranks.index(dist.get_rank()))
        assert found is not None, "every rank is in one group"
        return found

    def summed(self, values: Tensor) -> Tensor:
        """Over the group; nothing flows back."""
        total = values.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def lengths(self, rows: Tensor) -> Sizes:
        """How many rows everyone has."""
        return [int(n) for n in self.everyones(torch.tensor([len(rows)]))]

    def everyones(self, values: Tensor) -> Tensor:
        """What equally large tensors the others hold, one after the other; nothing flows back."""
        found = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(found, values.detach().contiguous(), group=self.group)
        return torch.cat(found)

    def gathered(self, rows: Tensor, lengths: Sizes) -> Tensor:
        """The rows of all, one after the other. Going back, gradients are summed and scattered."""
        sizes = [([len(rows)] * self.size, lengths)]
        return exchange(sizes, rows.repeat(self.size, 1), group=self.group)[0]

    def scattered(self, rows: Tensor, lengths: Sizes) -> Tensor:
        """The sum of what all hold, each the part that is its own. Going back, gradients are gathered."""
        mine = lengths[self.place]
        (found,) = exchange([(lengths, [mine] * self.size)], rows, group=self.group)
        return found.view(self.size, mine, rows.shape[1]).sum(0)


def within_capacity(probability: Tensor, chosen: Tensor, experts: int, factor: float) -> Tensor:
    """Which of the chosen (token, expert) pairs an expert has room for: those with the highest probability.

    An expert takes `ceil(factor * k * tokens / experts)` of them; of equals the first.

    >>> chosen = torch.tensor([[0], [0], [0], [1]])
    >>> within_capacity(torch.tensor([[0.2], [0.9], [0.5], [0.1]]), chosen, experts=2, factor=1.0).flatten().tolist()
    [False, True, True, True]
    """
    tokens, k = chosen.shape
    room = math.ceil(factor * k * tokens / experts)
    best_first = torch.argsort(probability.flatten(), descending=True, stable=True)
    by_expert = best_first[torch.argsort(chosen.flatten()[best_first], stable=True)]
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    place = torch.arange(tokens * k) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    kept = torch.empty(tokens * k, dtype=torch.bool)
    kept[by_expert] = place < room
    return kept.view(tokens, k)


class Block(nn.Module):
    """One block on a layout's two meshes; `layout` has one stage, and all ranks of the process group are its.

    Args:
        layout: both meshes.
        hidden: width of a token.
        inner: width inside the first half; tp divides it.
        ffn: width inside an expert; etp divides it.
        experts: how many; ep divides them.
        top_k: experts of a token.
        capacity: None drops nothing; else experts have room for so many times their even share.
        whole_sequence: tokens that do not fit are chosen among all of a sequence, not slice by slice.
    """

    def __init__(
        self, layout: Layout, hidden: int, inner: int, ffn: int, experts: int, top_k: int,
        capacity: float | None = None, whole_sequence: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layout, self.number, self.top_k = layout, experts, top_k
        self.capacity, self.whole_sequence = capacity, whole_sequence
        attention, mesh = layout.attention, layout.experts
        self.tp, self.sequence = Peers.of(attention, "tp"), Peers.of(attention, "tp", "cp")
        self.copies, self.all = Peers.of(attention, "cp", "dp"), Peers.of(attention, "tp", "cp", "dp")
        self.ep, self.etp = Peers.of(mesh, "ep"), Peers.of(mesh, "etp")
        self.expert_copies = Peers.of(mesh, "ecp", "edp")
        local = experts // layout.ep
        self.into = nn.Parameter(torch.zeros(hidden, inner // layout.tp))
        self.out = nn.Parameter(torch.zeros(inner // layout.tp, hidden))
        self.gate = nn.Parameter(torch.zeros(hidden, experts))
        self.up = nn.Parameter(torch.zeros(local, hidden, 2, ffn // layout.etp))  # gate and value of a SwiGLU
        self.down = nn.Parameter(torch.zeros(local, ffn // layout.etp, hidden))
        self.computed = 0
        """Rows that this rank's slices of experts computed in the last pass."""
        self.dropped = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's tokens through both halves, and its share of the loss for evenness."""
        lengths = [len(x)] * self.layout.tp
        inner = silu(self.tp.gathered(x, lengths) @ self.into) @ self.out
        x = x + self.tp.scattered(inner, lengths)
        scores = (x @ self.gate).softmax(-1)
        probability, chosen = scores.topk(self.top_k)
        return x + self.mixture(x, probability, self._kept(probability, chosen), chosen), self._unevenness(
            scores, chosen
        )

    def _kept(self, probability: Tensor, chosen: Tensor) -> Tensor:
        if self.capacity is None:
            return torch.ones_like(chosen, dtype=torch.bool)
        if not self.whole_sequence:
            return within_capacity(probability.detach(), chosen, self.number, self.capacity)
        everyones = self.sequence.everyones(probability), self.sequence.everyones(chosen)
        kept = within_capacity(*everyones, self.number, self.capacity)
        return kept.view(self.sequence.size, *chosen.shape)[self.sequence.place]

    def _unevenness(self, scores: Tensor, chosen: Tensor) -> Tensor:
        """The customary loss, its counts taken over the whole sequence: slices of it are not even on their own."""
        counts = self.sequence.summed(torch.bincount(chosen.flatten(), minlength=self.number).float())
        return AUXILIARY * self.number * (counts / counts.sum() * scores.mean(0)).sum()

    def mixture(self, x: Tensor, probability: Tensor, kept: Tensor, chosen: Tensor) -> Tensor:
        """The dispatcher: rows to their experts and back, weighted."""
        pairs = torch.nonzero(kept.flatten()).flatten()
        self.dropped = kept.numel() - len(pairs)
        order = pairs[torch.argsort(chosen.flatten()[pairs], stable=True)]
        token, expert = order // self.top_k, chosen.flatten()[order]
        counts = torch.bincount(expert, minlength=self.number)
        local = self.number // self.ep.size
        theirs = torch.empty_like(counts)  # [source, my expert]
        dist.all_to_all_single(theirs, counts, group=self.ep.group)
        out, into = (both.view(self.ep.size, local).sum(1).tolist() for both in (counts, theirs))
        (rows,) = exchange([(out, into)], x[token], group=self.ep.group)
        lengths = self.etp.lengths(rows)
        everyones = self.etp.everyones(theirs).view(-1, local)
        kinds = torch.repeat_interleave(torch.arange(local).repeat(len(everyones)), everyones.flatten())
        done = self._computed(self.etp.gathered(rows, lengths), kinds)
        (back,) = exchange([(into, out)], self.etp.scattered(done, lengths), group=self.ep.group)
        weight = probability.flatten()[order]
        return torch.zeros_like(x).index_add(0, token, back * weight[:, None])

    def _computed(self, rows: Tensor, expert: Tensor) -> Tensor:
        """Rows sorted by expert, one product for each of them, and sorted back."""
        self.computed = len(rows)
        order = torch.argsort(expert, stable=True)
        groups = rows[order].split(torch.bincount(expert, minlength=len(self.up)).tolist())
        parts = []
        for mine, up, down in zip(groups, self.up, self.down, strict=True):
            gate, value = (mine @ up.flatten(1)).view(len(mine), 2, -1).unbind(1)
            parts.append((silu(gate) * value) @ down)
        return torch.cat(parts)[torch.argsort(order)]

    def reduce_gradients(self) -> None:
        """Sum them over the ranks that hold the same weights: not the same ranks for experts as for the first half."""
        over = {"into": self.copies, "out": self.copies, "gate": self.all, "up": self.expert_copies,
                "down": self.expert_copies}  # fmt: skip
        for name, weight in self.named_parameters():
            weight.grad = over[name].summed(weight.grad)  # type: ignore[arg-type]
