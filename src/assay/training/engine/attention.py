"""Attention piece by piece: queries meet some keys and values after others, and the parts are merged exactly.

What queries see in a stretch of keys is an average and the logarithm of its weight (the softmax's sum). Two such parts
merge into one, in any order, so keys and values may lie anywhere and come whenever they come. The backward pass needs
the merged weight only, and adds up the same way. Heads of queries may share those of keys in groups.

:func:`in_one_piece` is the same by torch's own attention, to hold anything distributed against. Needs the extra
`torch`.

- Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., FlashAttention, NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """Tokens of one sequence, and at which row of a rank's tensors they begin."""

    sequence: int
    start: int
    stop: int
    row: int

    @property
    def rows(self) -> slice:
        """Where they lie."""
        return slice(self.row, self.row + self.stop - self.start)


def _grouped(q: Tensor, heads: int) -> Tensor:
    """Queries `[token, head, width]` by the head of keys they look at: `[token, key head, of its group, width]`."""
    return q.reshape(q.shape[0], heads, q.shape[1] // heads, q.shape[2])


def _scores(q: Tensor, k: Tensor, queries: Span, keys: Span, causal: bool) -> Tensor:
    """Scaled products [head, query, key], minus infinity where a query may not look."""
    asking = _grouped(q[queries.rows], k.shape[1])
    found: Tensor = torch.einsum("qhgd,khd->hgqk", asking, k[keys.rows]).flatten(0, 1) * q.shape[-1] ** -0.5
    if causal and keys.stop > queries.start + 1:
        hidden = torch.arange(keys.start, keys.stop) > torch.arange(queries.start, queries.stop)[:, None]
        found = found.masked_fill(hidden, -torch.inf)
    return found


def _meetings(mine: Sequence[Span], theirs: Sequence[Span], causal: bool) -> Iterator[tuple[Span, Span]]:
    """Spans of queries and of keys that see one another."""
    for queries in mine:
        for keys in theirs:
            if queries.sequence == keys.sequence and not (causal and keys.start >= queries.stop):
                yield queries, keys


def accumulate(
    out: Tensor, lse: Tensor, q: Tensor, mine: Sequence[Span], k: Tensor, v: Tensor, theirs: Sequence[Span],
    causal: bool,
) -> None:  # fmt: skip
    """Merge what the queries see in some keys and values into what they have seen so far.

    `out` begins with zeros and `lse` `[token, head]` with minus infinity.
    """
    for queries, keys in _meetings(mine, theirs, causal):
        scores = _scores(q, k, queries, keys, causal)
        part = scores.logsumexp(-1)  # [head, query]
        weight = (scores - part[..., None]).exp().nan_to_num().unflatten(0, (k.shape[1], -1))
        seen = torch.einsum("hgqk,khd->qhgd", weight, v[keys.rows]).flatten(1, 2)
        before, here = lse[queries.rows], part.T
        both = torch.logaddexp(before, here)
        old, new = ((x - both).exp().nan_to_num()[..., None] for x in (before, here))
        out[queries.rows] = old * out[queries.rows] + new * seen
        lse[queries.rows] = both


def differentiate(
    state: tuple[Tensor, Tensor, Tensor, Tensor], dq: Tensor, mine: Sequence[Span], kv: Tensor, dkv: Tensor,
    theirs: Sequence[Span], causal: bool,
) -> None:  # fmt: skip
    """Add the gradients of queries, and of some keys and values, from what these queries saw in them.

    `state`: queries, the merged `lse`, the gradient that comes back, and its product with the output, summed by head.
    """
    q, lse, gradient, inner = state
    heads = kv.shape[2]
    for queries, keys in _meetings(mine, theirs, causal):
        at, to = queries.rows, keys.rows
        weight = (_scores(q, kv[0], queries, keys, causal) - lse[at].T[..., None]).exp().unflatten(0, (heads, -1))
        back, asked = _grouped(gradient[at], heads), _grouped(q[at], heads)
        dkv[1, to] += torch.einsum("hgqk,qhgd->khd", weight, back)
        shift = inner[at].T[..., None].unflatten(0, (heads, -1))
        through = torch.einsum("qhgd,khd->hgqk", back, kv[1][to]) - shift
        change = weight * through * q.shape[-1] ** -0.5
        dq[at] += torch.einsum("hgqk,khd->qhgd", change, kv[0][to]).flatten(1, 2)
        dkv[0, to] += torch.einsum("hgqk,qhgd->khd", change, asked)


def in_one_piece(tensors: Sequence[Tensor], lengths: Sequence[int], causal: bool) -> dict[str, Any]:
    """Output and gradients as arrays, by torch's own attention, a sequence at a time.

    `tensors`: queries, keys and values `[token, head, width]` of all sequences, one after the other, and the gradient
    that comes back.
    """
    *inputs, gradient = (part.detach().clone() for part in tensors)
    for part in inputs:
        part.requires_grad_()
    outs = []
    for q, k, v in zip(*(part.split(list(lengths)) for part in inputs), strict=True):
        shared = q.shape[1] // k.shape[1]
        a, b, c = (x.transpose(0, 1)[None] for x in (q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)))
        outs.append(torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=causal)[0].transpose(0, 1))
    whole = torch.cat(outs)
    whole.backward(gradient)
    names = dict(zip(("q", "k", "v"), inputs, strict=True))
    gradients = {name: part.grad.numpy() for name, part in names.items() if part.grad is not None}
    return {"out": whole.detach().numpy()} | gradients
