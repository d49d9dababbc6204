"""Attention over sequences whose blocks lie on several ranks: real tensors, real messages, forwards and backwards.

Every rank holds queries, keys and values of its blocks. Round by round it sends the keys and values of one block and
receives those of another (who to and from is the plan's), attends to what it has, and merges what each part gives by
the running maximum and sum of the softmax. Backwards it pulls the same blocks again, and sends the gradients of keys
and values to their holder. Needs the extra `torch` and a process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from assay.sim.row_exchange import exchange
from assay.training.engine.attention import Span, accumulate, differentiate
from assay.training.fcp.blocks import Ints, Plan


def spans(plan: Plan, blocks: Ints) -> list[Span]:
    """The spans of some blocks, laid one after the other."""
    found, row = [], 0
    cut = plan.blocks
    for block in blocks:
        for k in np.flatnonzero(cut.block == block):
            start, stop = int(cut.start[k]), int(cut.stop[k])
            found.append(Span(int(cut.sequence[k]), start, stop, row))
            row += stop - start
    return found


def held(plan: Plan) -> list[Span]:
    """This rank's own spans."""
    return spans(plan, np.flatnonzero(plan.owner == dist.get_rank()))


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attention of this rank's queries `[token, head, width]` to all that they may see, wherever it lies.

    Rows are those of the rank's blocks in their order.
    """
    plan.check_rounds()  # on all ranks alike, before anything is sent
    found: Tensor = _Attention.apply(q, k, v, plan)
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        mine = held(plan)
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
        accumulate(out, lse, q, mine, k, v, mine, plan.blocks.causal)
        for message, got in _pulled(plan, k, v):
            theirs = spans(plan, plan.block[message : message + 1])
            accumulate(out, lse, q, mine, got[0], got[1], theirs, plan.blocks.causal)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: Plan = ctx.plan
        mine = held(plan)
        dq, dkv = torch.zeros_like(q), torch.zeros_like(torch.stack([k, v]))
        state = q, lse, gradient, (gradient * out).sum(-1)
        differentiate(state, dq, mine, torch.stack([k, v]), dkv, mine, plan.blocks.causal)
        owed: dict[int, Tensor] = {}
        for message, got in _pulled(plan, k, v):
            owed[message] = torch.zeros_like(got)
            theirs = spans(plan, plan.block[message : message + 1])
            differentiate(state, dq, mine, got, owed[message], theirs, plan.blocks.causal)
        _push(plan, owed, dkv)
        return dq, dkv[0], dkv[1], None


def _pulled(plan: Plan, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Round by round: send a block's keys and values if it is wanted, and give what comes, with its message."""
    rows = _rows(plan)
    for when in range(plan.rounds):
        out, into = _messages(plan, when)
        works: list[Any] = []
        got = k.new_empty(0)
        if out >= 0:
            kept = rows[int(plan.block[out])]
            works.append(dist.isend(torch.stack([k[kept], v[kept]]), int(plan.receiver[out])))
        if into >= 0:
            got = k.new_empty((2, int(plan.blocks.tokens[plan.block[into]]), *k.shape[1:]))
            works.append(dist.irecv(got, int(plan.sender[into])))
        for work in works:
            work.wait()
        if into >= 0:
            yield into, got


def _push(plan: Plan, owed: dict[int, Tensor], dkv: Tensor) -> None:
    """The same rounds the other way round: gradients of what was pulled go to its holder, and are added there."""
    rows = _rows(plan)
    for when in range(plan.rounds):
        out, into = _messages(plan, when)
        works: list[Any] = []
        got = dkv.new_empty(0)
        if into >= 0:
            works.append(dist.isend(owed[into], int(plan.sender[into])))
        if out >= 0:
            got = dkv.new_empty((2, int(plan.blocks.tokens[plan.block[out]]), *dkv.shape[2:]))
            works.append(dist.irecv(got, int(plan.receiver[out])))
        for work in works:
            work.wait()
        if out >= 0:
            dkv[:, rows[int(plan.block[out])]] += got


def _messages(plan: Plan, when: int) -> tuple[int, int]:
    """What this rank sends in a round and what it receives, -1 for nothing; a plan of matchings has one of each."""
    now, me = np.flatnonzero(plan.round == when), dist.get_rank()
    out, into = now[plan.sender[now] == me], now[plan.receiver[now] == me]
    return int(out[0]) if len(out) else -1, int(into[0]) if len(into) else -1


def _rows(plan: Plan) -> dict[int, slice]:
    """Where each block of this rank lies."""
    mine = np.flatnonzero(plan.owner == dist.get_rank())
    ends = np.cumsum(plan.blocks.tokens[mine])
    return {int(b): slice(int(end - plan.blocks.tokens[b]), int(end)) for b, end in zip(mine, ends, strict=True)}


def reshuffled(rows: Tensor, plan: Plan, *, back: bool = False) -> Tensor:
    """Rows from the user's layout (the sequences one after the other, equal stretches on the ranks) to the plan's.

    `back`: from the plan's to the user's. Gradients go the other way.
    """
    me, ranks = dist.get_rank(), plan.ranks
    there, here = places(plan)
    first, second = (here, there) if back else (there, here)
    mine, later = np.flatnonzero(first[0] == me), np.flatnonzero(second[0] == me)
    # Rows leave in the order of (who gets them, where they go); so they arrive by sender, and in the order they go.
    leave = mine[np.lexsort((second[1][mine], second[0][mine]))]
    arrive = later[np.lexsort((second[1][later], first[0][later]))]
    out = np.bincount(second[0][leave], minlength=ranks).tolist()
    into = np.bincount(first[0][arrive], minlength=ranks).tolist()
    (got,) = exchange([(out, into)], rows[torch.from_numpy(first[1][leave])])
    return got[torch.from_numpy(np.argsort(second[1][arrive]))]


def places(plan: Plan) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Of every token of the batch its rank and row in the user's layout, then in the plan's."""
    cut, total = plan.blocks, int(plan.blocks.lengths.sum())
    each = -(-total // plan.ranks)
    token = np.arange(total)
    rank, row = np.empty(total, np.int64), np.empty(total, np.int64)
    begin = np.cumsum(cut.lengths) - cut.lengths
    filled = np.zeros(plan.ranks, np.int64)
    for k in np.argsort(cut.block, kind="stable"):
        owner = plan.owner[cut.block[k]]
        tokens = slice(int(begin[cut.sequence[k]] + cut.start[k]), int(begin[cut.sequence[k]] + cut.stop[k]))
        count = tokens.stop - tokens.start
        rank[tokens], row[tokens] = owner, filled[owner] + np.arange(count)
        filled[owner] += count
    return (token // each, token % each), (rank, row)
