"""Graph layers on one block of a graph: rows of its own nodes from those rows and their neighbours'.

Aggregations are compiled and know their own derivative, so no array of messages (a row an edge) ever exists. Weights
have PyTorch Geometric's names: a trained model's `state_dict()` loads there, and `assay data gnn infer` takes it.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from assay.sim.compiled import njit

KINDS = ("gcn", "sage", "gat")
SLOPE = 0.2  # of the attention's leaky rectifier, as in PyTorch Geometric

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the graph: `n` own nodes, their in-edges, and whom they hear from.

    `columns` number the block's inputs: own nodes first, then those of other parts (`outside`, ascending).
    """

    part: int
    first: int  # the first own node
    indptr: Int64s
    columns: Int32s
    outside: Int32s
    degree: Floats  # in-edges of every input, over the whole graph

    @property
    def n(self) -> int:
        """Own nodes."""
        return len(self.indptr) - 1

    @property
    def inputs(self) -> int:
        """Own nodes and those outside."""
        return self.n + len(self.outside)


class _Sum(torch.autograd.Function):
    """out[i] = left[i] * sum of right[c] * x[c] over i's columns c."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, left: Floats, right: Floats) -> Tensor:
        ctx.block, ctx.left, ctx.right, ctx.rows = block, left, right, len(x)
        out = np.zeros((block.n, x.shape[1]), np.float32)
        _sum(block.indptr, block.columns, left, right, x.detach().numpy(), out)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        out = np.zeros((ctx.rows, grad.shape[1]), np.float32)
        _spread(ctx.block.indptr, ctx.block.columns, ctx.left, ctx.right, grad.contiguous().numpy(), out)
        return torch.from_numpy(out), None, None, None


class _Attend(torch.autograd.Function):
    """out[i, h] = sum of softmax(leaky(there[c, h] + here[i, h])) * z[c, h] over i's columns c."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, there: Tensor, here: Tensor, block: Block) -> Tensor:
        arrays = [part.detach().contiguous().numpy() for part in (z, there, here)]
        share = np.empty((len(block.columns), z.shape[1]), np.float32)
        out = np.zeros((block.n, *z.shape[1:]), np.float32)
        _attend(block.indptr, block.columns, *arrays, share, out)
        ctx.block, ctx.share, ctx.arrays = block, share, arrays
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        back = [np.zeros_like(array) for array in ctx.arrays]
        _attend_back(
            ctx.block.indptr, ctx.block.columns, *ctx.arrays, ctx.share, grad.contiguous().numpy(), *back
        )  # fmt: skip
        z, there, here = (torch.from_numpy(array) for array in back)
        return z, there, here, None


class GCN(nn.Module):
    """Kipf and Welling's layer: neighbours and oneself, weighted by both ends' degrees."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(into, out, bias=False)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """Rows of the block's own nodes; degrees count the own loop."""
        root = (block.degree**-0.5).astype(np.float32)
        return _narrower(self.lin.weight, x, block, root[: block.n], root) + self.bias


class SAGE(nn.Module):
    """Hamilton, Ying and Leskovec's layer: the neighbours' mean beside one's own row."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(into, out)
        self.lin_r = nn.Linear(into, out, bias=False)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """Rows of the block's own nodes; who hears from nobody has a mean of nothing."""
        left = (1 / np.maximum(block.degree[: block.n], 1)).astype(np.float32)
        heard = _narrower(self.lin_l.weight, x, block, left, np.ones(block.inputs, np.float32))
        own: Tensor = self.lin_r(x[: block.n])
        return heard + self.lin_l.bias + own


class GAT(nn.Module):
    """Veličković et al.'s layer: neighbours and oneself, weighted by attention; heads side by side, or averaged."""

    def __init__(self, into: int, out: int, heads: int, last: bool) -> None:
        super().__init__()
        if not last and out % heads:
            raise ValueError(f"{out} columns do not divide among {heads} heads")
        columns = out if last else out // heads
        self.heads, self.last = heads, last
        self.lin = nn.Linear(into, heads * columns, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, columns))
        self.att_dst = nn.Parameter(torch.empty(1, heads, columns))
        self.bias = nn.Parameter(torch.zeros(out))
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """Rows of the block's own nodes."""
        z = self.lin(x).view(len(x), *self.att_src.shape[1:])
        there, here = (z * self.att_src).sum(-1), (z[: block.n] * self.att_dst).sum(-1)
        out: Tensor = _Attend.apply(z, there, here, block)
        return (out.mean(1) if self.last else out.flatten(1)) + self.bias


def _narrower(weight: Tensor, x: Tensor, block: Block, left: Floats, right: Floats) -> Tensor:
    """Aggregate and project, in the order in which fewer columns are aggregated; the result is the same."""
    if weight.shape[0] < weight.shape[1]:
        summed: Tensor = _Sum.apply(x @ weight.T, block, left, right)
        return summed
    summed = _Sum.apply(x, block, left, right)
    return summed @ weight.T


_PLAIN = {"gcn": GCN, "sage": SAGE}


class Network(nn.Module):
    """Layers in a row with rectifiers between them; `widths` from the features' columns to the classes.

    >>> sorted(Network("gcn", (8, 4, 2)).state_dict())
    ['convs.0.bias', 'convs.0.lin.weight', 'convs.1.bias', 'convs.1.lin.weight']
    """

    def __init__(self, kind: str, widths: Sequence[int], heads: int = 4, seed: int = 0) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"no layer '{kind}'; one of {', '.join(KINDS)} expected")
        if len(widths) < 2:
            raise ValueError(f"widths {tuple(widths)} make no layer; columns in and classes out expected")
        self.kind, self.widths, self.heads = kind, tuple(widths), heads if kind == "gat" else 1
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.convs = nn.ModuleList()
            for i, (into, out) in enumerate(pairwise(widths)):
                last = i == len(widths) - 2
                self.convs.append(GAT(into, out, heads, last) if kind == "gat" else _PLAIN[kind](into, out))

    @property
    def own_loops(self) -> bool:
        """Whether every node hears from itself once, and the graph's own loops are dropped (GCN, GAT)."""
        return self.kind != "sage"

    def layer(self, i: int, x: Tensor, block: Block) -> Tensor:
        """Layer i on a block, rectified unless it is the last."""
        out: Tensor = self.convs[i](x, block)
        return out if i == len(self.convs) - 1 else out.relu_()


@njit(cache=True, nogil=True)
def _sum(indptr, columns, left, right, x, out):
    for i in range(len(out)):
        for e in range(indptr[i], indptr[i + 1]):
            c = np.uintp(columns[e])  # without a sign there is no test for negative ones, and the loop uses vectors
            weight = left[i] * right[c]
            for k in range(x.shape[1]):
                out[i, k] += weight * x[c, k]


@njit(cache=True, nogil=True)
def _spread(indptr, columns, left, right, grad, out):
    for i in range(len(grad)):
        for e in range(indptr[i], indptr[i + 1]):
            c = np.uintp(columns[e])
            weight = left[i] * right[c]
            for k in range(grad.shape[1]):
                out[c, k] += weight * grad[i, k]


@njit(cache=True, nogil=True)
def _attend(indptr, columns, z, there, here, share, out):
    heads, width = z.shape[1], z.shape[2]
    for i in range(len(out)):
        a, b = indptr[i], indptr[i + 1]
        for h in range(heads):
            most = np.float32(-np.inf)
            for e in range(a, b):
                logit = there[columns[e], h] + here[i, h]
                share[e, h] = logit if logit > 0 else np.float32(SLOPE) * logit
                most = max(most, share[e, h])
            total = np.float32(0)
            for e in range(a, b):
                share[e, h] = np.exp(share[e, h] - most)
                total += share[e, h]
            for e in range(a, b):
                share[e, h] /= total
                c = columns[e]
                for k in range(width):
                    out[i, h, k] += share[e, h] * z[c, h, k]


@njit(cache=True, nogil=True)
def _attend_back(indptr, columns, z, there, here, share, grad, z_back, there_back, here_back):
    heads, width = z.shape[1], z.shape[2]
    for i in range(len(grad)):
        a, b = indptr[i], indptr[i + 1]
        for h in range(heads):
            mean = np.float32(0)  # of the shares' derivatives, by the shares: the softmax takes it off
            for e in range(a, b):
                c, pull = columns[e], np.float32(0)
                for k in range(width):
                    pull += grad[i, h, k] * z[c, h, k]
                mean += share[e, h] * pull
            for e in range(a, b):
                c, pull = columns[e], np.float32(0)
                for k in range(width):
                    pull += grad[i, h, k] * z[c, h, k]
                    z_back[c, h, k] += share[e, h] * grad[i, h, k]
                slope = np.float32(1) if there[c, h] + here[i, h] > 0 else np.float32(SLOPE)
                back = share[e, h] * (pull - mean) * slope
                there_back[c, h] += back
                here_back[i, h] += back
