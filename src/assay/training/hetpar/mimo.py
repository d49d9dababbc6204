"""A small vision encoder and a small language model, each on a grid of its own, that train as one.

Layers are cut as Megatron cuts them: heads and inner widths over tensor parallelism, with sums on the way forward or
back; sequences over context parallelism, whose keys and values all ranks of a group see. A step has three phases: all
microbatches through the encoder, all through the language model with the gradients at the boundary kept, all back
through the encoder. Losses are sums over the tokens of all ranks divided by how many there are. Needs the extra
`torch` and a process group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from assay.training.hetpar.boundary import CUT, Batch, Boundary, Side, between, dealt, pieces
from assay.training.hetpar.communicator import Communicator, group_of

PATCH, WIDTH, HEADS, INNER, VOCAB = 6, 16, 4, 32, 13


class _Sum(torch.autograd.Function):
    """Sums over a group: on the way forward, on the way back, or both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, there: bool, back: bool) -> Tensor:
        ctx.group, ctx.back = group, back
        return _summed(x, group) if there else x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _summed(gradient, ctx.group) if ctx.back else gradient, None, None, None


def _summed(x: Tensor, group: Any) -> Tensor:
    total = x.detach().clone().contiguous()
    if group is not None:
        dist.all_reduce(total, group=group)
    return total


def summed(x: Tensor, group: Any, there: bool = True, back: bool = False) -> Tensor:
    """The sum over a group; its gradient the same for all, or the sum of theirs."""
    found: Tensor = _Sum.apply(x, group, there, back)
    return found


def weights(seed: int) -> dict[str, dict[str, Tensor]]:
    """Of both modules, whole."""
    random = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Tensor:
        found: Tensor = torch.randn(rows, columns, generator=random) / rows**0.5
        return found

    def block() -> dict[str, Tensor]:
        qkv = normal(WIDTH, 3 * WIDTH).view(WIDTH, HEADS, -1)  # by heads, so that a cut has whole ones
        return {"qkv": qkv, "out": normal(WIDTH, WIDTH).view(HEADS, -1, WIDTH), "up": normal(WIDTH, INNER),
                "down": normal(INNER, WIDTH)}  # fmt: skip

    encoder = {"patch": normal(PATCH, WIDTH), **block(), "project": normal(WIDTH, WIDTH)}
    return {"encoder": encoder, "llm": {"table": normal(VOCAB, WIDTH), **block(), "head": normal(WIDTH, VOCAB)}}


@dataclass
class Module:
    """This rank's part of a module: its slices of the weights, its groups, its place."""

    side: Side
    groups: dict[str, Any]
    at: dict[str, int]
    weights: dict[str, Tensor] = field(default_factory=dict)

    def load(self, whole: dict[str, Tensor]) -> None:
        """Cut this rank's slices out."""
        self.weights = {
            name: _slice(value, CUT.get(name), self.side.layout.tp, self.at["tp"]).clone().requires_grad_()
            for name, value in whole.items()
        }

    def entered(self, x: Tensor, mine: Tensor, length: int) -> Tensor:
        """All rows of this context-parallel part, where tensor parallelism has cut them; else the same, summed back."""
        if self.side.tp == "tokens":
            return summed(x.new_zeros(length, x.shape[1]).index_copy(0, mine, x), self.groups["tp"], back=True)
        return summed(x, self.groups["tp"], there=False, back=True)

    def left(self, x: Tensor, mine: Tensor) -> Tensor:
        """What the ranks of a group computed parts of, added up; a rank's own rows where rows are cut."""
        if self.side.tp == "tokens":
            return summed(x, self.groups["tp"], back=True)[mine]
        return summed(x, self.groups["tp"])

    def block(self, x: Tensor, rows: Rows, causal: bool) -> Tensor:
        """Attention and a feed-forward part over one sequence."""
        w = self.weights
        part = self.entered(functional.rms_norm(x, (WIDTH,)), rows.mine, len(rows.local))
        q, k, v = torch.einsum("tw,whd->htd", part, w["qkv"]).chunk(3, dim=-1)
        k, v = (self._whole(each, rows) for each in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.arange(rows.length) > rows.local[:, None], -torch.inf)
        seen = torch.einsum("htd,hdw->tw", scores.softmax(-1) @ v, w["out"])
        x = x + self.left(seen, rows.mine)
        part = self.entered(functional.rms_norm(x, (WIDTH,)), rows.mine, len(rows.local))
        return x + self.left(functional.gelu(part @ w["up"]) @ w["down"], rows.mine)

    def _whole(self, part: Tensor, rows: Rows) -> Tensor:
        """Keys or values of a whole sequence, of which this rank has some."""
        if self.groups["cp"] is None:
            return part
        empty = part.new_zeros(part.shape[0], rows.length, part.shape[2])
        return summed(empty.index_copy(1, rows.local, part), self.groups["cp"], back=True)


@dataclass(frozen=True)
class Rows:
    """Of one sequence: its length, the tokens of this context-parallel part, and which of those are this rank's own."""

    length: int
    local: Tensor
    mine: Tensor


def rows(length: int, module: Module) -> Rows:
    """This rank's."""
    side, at = module.side, module.at
    wide = Side(side.layout, side.first, "copied", side.zigzag)
    local = [t for low, high in pieces(length, wide, at["cp"], 0) for t in range(low, high)]
    own = {t for low, high in pieces(length, side, at["cp"], at["tp"]) for t in range(low, high)}
    mine = [place for place, t in enumerate(local) if t in own]
    return Rows(length, torch.tensor(local, dtype=torch.long), torch.tensor(mine, dtype=torch.long))


def _slice(value: Tensor, dim: int | None, tp: int, at: int) -> Tensor:
    return value if dim is None else value.chunk(tp, dim)[at]


class Mimo:
    """Both modules on this rank, which may have a part in either or in both."""

    def __init__(self, encoder: Side, llm: Side, seed: int) -> None:
        self.encoder_side, self.llm_side = encoder, llm
        self.encoder, self.llm = (self._module(on) for on in (encoder, llm))
        for name, module in (("encoder", self.encoder), ("llm", self.llm)):
            if module:
                module.load(weights(seed)[name])
        self.cross = Communicator([tuple(group) for group in encoder.grid.groups("tp").tolist()])

    def _module(self, on: Side) -> Module | None:
        """All ranks make all groups, in the same order; a group of one is none."""
        me, found = dist.get_rank(), {}
        for key, names in (("tp", ("tp",)), ("cp", ("cp",)), ("copies", ("cp", "dp")), ("every", ("tp", "cp", "dp"))):
            for group in on.grid.groups(*names).tolist():
                made = group_of(group)
                if me in group:
                    found[key] = made
        inside = on.first <= me < on.first + on.grid.ranks
        return Module(on, found, on.grid.coordinates(me)) if inside else None

    def step(self, batches: Sequence[tuple[Batch, Tensor, Tensor]], rate: float) -> float:
        """One step over some microbatches (what it is, patches of all images, text of all samples): the mean loss."""
        tokens = sum(text for batch, _, _ in batches for _, text in batch.samples)
        borders = [between(self.encoder_side, self.llm_side, batch, WIDTH) for batch, _, _ in batches]
        sent = [self._encoded(batch, patches) for batch, patches, _ in batches]
        crossed = [self.cross(x, border) for x, border in zip(sent, borders, strict=True)]
        leaves = [x.detach().requires_grad_() for x in crossed]
        total = torch.zeros(())
        for (batch, _, text), leaf, border in zip(batches, leaves, borders, strict=True):
            loss = self._loss(batch, text, leaf, border) / tokens
            if loss.requires_grad:
                loss.backward()
            total += loss.detach()
        for x, leaf in zip(reversed(crossed), reversed(leaves), strict=True):
            x.backward(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
        self._update(rate)
        copied = self.llm is not None and self.llm.side.tp == "copied"
        mine = total / (self.llm_side.layout.tp if copied else 1)  # copies of a loss count once
        dist.all_reduce(mine)
        return float(mine)

    def _encoded(self, batch: Batch, patches: Tensor) -> Tensor:
        """The rows of this rank's images."""
        if self.encoder is None:
            return torch.empty(0, WIDTH, requires_grad=True)
        found = [torch.empty(0, WIDTH, requires_grad=True)]
        for image in dealt(len(batch.images), self.encoder.side.layout.dp, self.encoder.at["dp"]):
            first, where = batch.first_row(image), rows(batch.images[image], self.encoder)
            x = patches[first : first + where.length][where.local[where.mine]] @ self.encoder.weights["patch"]
            found.append(self.encoder.block(x, where, causal=False) @ self.encoder.weights["project"])
        return torch.cat(found)

    def _loss(self, batch: Batch, text: Tensor, images: Tensor, border: Boundary) -> Tensor:
        """Summed over the words of this rank's part of its samples: each is predicted from what comes before it."""
        total = 0 * images.sum()
        if self.llm is None:
            return total
        places = {r: at for at, r in enumerate(_numbers(border.need.get(dist.get_rank(), [])))}
        begins = [sum(words for _, words in batch.samples[:k]) for k in range(len(batch.samples))]
        for sample in dealt(len(batch.samples), self.llm.side.layout.dp, self.llm.at["dp"]):
            low, high = batch.image_of(sample)
            size, words = high - low, text[begins[sample] : begins[sample] + batch.samples[sample][1]]
            where = rows(batch.length(sample), self.llm)
            own = where.local[where.mine].tolist()
            picked = images[[places[low + t] for t in own if t < size]]
            x = torch.cat([picked, self.llm.weights["table"][words[[t - size for t in own if t >= size]]]])
            logits = self.llm.block(x, where, causal=True) @ self.llm.weights["head"]
            ahead = [(at, t + 1 - size) for at, t in enumerate(own) if 0 <= t + 1 - size < len(words)]
            at, target = [at for at, _ in ahead], [t for _, t in ahead]
            # Also of no rows: a rank with nothing to predict takes part in its group's sums on the way back.
            total = total + functional.cross_entropy(logits[at], words[target], reduction="sum")
        return total

    def _update(self, rate: float) -> None:
        """Gradients of copies are added up; of whole weights also over tensor parallelism, where it cut the rows."""
        for module in (self.encoder, self.llm):
            if module is None:
                continue
            for name, weight in module.weights.items():
                partial = name not in CUT and module.side.tp == "tokens"
                gradient = _summed(
                    torch.zeros_like(weight) if weight.grad is None else weight.grad,
                    module.groups["every" if partial else "copies"],
                )
                with torch.no_grad():
                    weight -= rate * gradient
                weight.grad = None


def _numbers(boxes: Sequence[Any]) -> list[int]:
    return [row for (low, high), _ in boxes for row in range(low, high)]
