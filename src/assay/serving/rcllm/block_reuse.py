"""Reuse of cached blocks out of order: assemble, find what went wrong, compute that again.

A block (an item's description, a user's history) is computed once, right behind the instruction, as if nothing else
were in the prompt. Where a prompt needs it, its keys are turned to their new positions and its values are taken as
they are. In the first layer that is exact. Deeper rows are not: their tokens never saw the blocks in front of them.
So the first layer runs over the whole prompt, its output tells the second layer's true rows, and the tokens whose
cached rows are farthest off, with the last token of every block (which sums it up for all that follows), are computed
again through all layers, looking at the repaired and the cached rows alike. The question is always computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.sim import tiny_lm
from assay.sim.tiny_lm import Cache, Layer, Params

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 16  # prompts computed at a time
CHOICES = ("deviation+boundary", "deviation", "boundary", "random")


def prepare(params: Params, instruction: Any, blocks: Any) -> tuple[Cache, Cache]:
    """The rows of the instruction, and those of blocks [block, tokens], each computed alone behind the instruction.

    >>> params = tiny_lm.init(tiny_lm.Shape(vocab=64, layers=2, width=32, attn="gqa"), seed=0)
    >>> first, rows = prepare(params, [1, 2], [[3, 4, 5], [6, 7, 8]])
    >>> len(first), rows.positions.tolist(), rows.layers[0].free.shape[0]
    (2, [2, 3, 4], 2)
    """
    import torch

    ids = torch.as_tensor(blocks, dtype=torch.int64)
    with torch.no_grad():
        _, first = tiny_lm.forward(params, instruction)
        _, both = tiny_lm.forward(params, ids, cache=_repeated(first, len(ids)))
    return first, both[len(first) :]


def pick(rows: Cache, which: Any) -> Cache:
    """Some of the batch: the rows of blocks or prompts `which` (indices, with repeats where wanted)."""
    return replace(rows, layers=tuple(Layer(x.rotary[which], x.free[which]) for x in rows.layers))


def assemble(instruction: Cache, blocks: Sequence[Cache], *, turn: bool = True) -> Cache:
    """The instruction's rows and the blocks' behind it, one after the other, each turned to where it now lies.

    All blocks have the same batch size: slot by slot, the blocks of a batch of prompts. `turn=False` leaves the keys
    as they were computed, which is wrong and here to show it.

    >>> params = tiny_lm.init(tiny_lm.Shape(vocab=64, layers=2, width=32, attn="gqa"), seed=0)
    >>> first, rows = prepare(params, [1, 2], [[3, 4, 5], [6, 7, 8]])
    >>> assemble(first, [pick(rows, [1]), pick(rows, [0])]).positions.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    import torch

    joined = Cache.join([_repeated(instruction, blocks[0].layers[0].free.shape[0]), *blocks])
    shift = torch.arange(len(joined)) - joined.positions  # nothing for the instruction, which begins the prompt
    return joined.moved(shift) if turn else joined.relabelled(shift)


def _repeated(rows: Cache, times: int) -> Cache:
    layers = tuple(
        Layer(x.rotary.expand(times, -1, -1, -1), x.free.expand(times, -1, -1, -1)) for x in rows.layers
    )  # fmt: skip
    return replace(rows, layers=layers)


def deviation(params: Params, ids: Any, cached: Cache) -> Tensor:
    """How far each cached token's second-layer rows are from the true ones [prompt, token], keys and values together.

    The first layer runs over all tokens for this; nothing deeper than the second layer's rows is looked at.
    """
    import torch

    with torch.no_grad():
        _, true = tiny_lm.forward(params, torch.as_tensor(ids)[:, : len(cached)], layers=2)
    return apart(true, cached)


def apart(true: Cache, cached: Cache) -> Tensor:
    """`deviation`, where the true rows are at hand."""
    a, b = true.layers[1], cached.layers[1]
    keys = (a.rotary[:, : len(cached)] - b.rotary).square().sum((2, 3))
    values = (a.free[:, : len(cached)] - b.free).square().sum((2, 3))
    return (keys + values).sqrt()


def whole(params: Params, ids: Any, cached: Cache) -> tuple[Tensor, Tensor]:
    """Full computation: logits [prompt, vocab] after the last token, and `deviation` of what is cached.

    Some prompts at a time: what a layer makes of all of them at once would be fetched from the system, page by page.

    >>> params = tiny_lm.init(tiny_lm.Shape(vocab=64, layers=2, width=32, attn="gqa"), seed=0)
    >>> first, rows = prepare(params, [1, 2], [[3, 4, 5], [6, 7, 8]])
    >>> logits, off = whole(params, [[1, 2, 6, 7, 8, 9]], assemble(first, [pick(rows, [1])]))
    >>> logits.shape, bool(off.max() < 1e-5)  # one block behind the instruction: nothing is missing in it
    (torch.Size([1, 64]), True)
    """
    import torch

    said, off = [], []
    with torch.no_grad():
        for first in range(0, len(ids), BATCH):
            some = slice(first, first + BATCH)
            logits, true = tiny_lm.forward(params, ids[some])
            said.append(logits[:, -1])
            off.append(apart(true, pick(cached, some)))
    return torch.cat(said), torch.cat(off)


def choose(
    deviations: Tensor, blocks: Sequence[slice], share: float, how: str = "deviation+boundary", seed: int = 0
) -> Tensor:
    """Which tokens to compute again [prompt, chosen], rising: a share of all block tokens, rounded.

    ``deviation+boundary``: a block's last token first, the rest by deviation; where even the last tokens are too many,
    those that deviate most. ``boundary``: the last token of every block, then the last but one, and so on.

    >>> import torch
    >>> off = torch.tensor([[0.0, 1.0, 9.0, 2.0, 3.0, 8.0, 1.0]])
    >>> choose(off, [slice(1, 4), slice(4, 7)], share=0.5).tolist()
    [[2, 3, 6]]
    """
    import torch

    if how not in CHOICES:
        raise ValueError(f"no way to choose '{how}'; there are {', '.join(CHOICES)}")
    inside = torch.cat([torch.arange(block.start, block.stop) for block in blocks])
    budget = round(share * len(inside))
    rank = torch.full_like(deviations, -1.0)
    rank[:, inside] = deviations[:, inside]
    if how == "random":
        generator = torch.Generator().manual_seed(seed)
        rank[:, inside] = torch.rand((len(rank), len(inside)), generator=generator)
    elif how == "boundary":
        rank[:, inside] = 1 / torch.cat([torch.arange(block.stop - block.start, 0, -1) for block in blocks])
    elif how == "deviation+boundary":
        rank[:, [block.stop - 1 for block in blocks]] += rank.max() + 1.0
    return rank.topk(budget, dim=1).indices.sort(dim=1).values


def answer(params: Params, ids: Any, cached: Cache, chosen: Tensor) -> Tensor:
    """Logits [prompt, vocab] after the last token: the chosen tokens and those behind the cache are computed.

    A chosen token's cached rows are left out and its new ones take their place, in every layer.

    >>> params = tiny_lm.init(tiny_lm.Shape(vocab=64, layers=2, width=32, attn="gqa"), seed=0)
    >>> first, rows = prepare(params, [1, 2], [[3, 4, 5], [6, 7, 8]])
    >>> import torch
    >>> cached = assemble(first, [pick(rows, [1]), pick(rows, [0])])
    >>> prompt = [[1, 2, 6, 7, 8, 3, 4, 5, 9]]
    >>> repaired = answer(params, prompt, cached, torch.arange(2, 8)[None])  # all of them: a full computation
    >>> bool((repaired - tiny_lm.forward(params, prompt)[0][:, -1]).abs().max() < 1e-5)
    True
    """
    import torch

    ids = torch.as_tensor(ids, dtype=torch.int64)
    behind = torch.arange(len(cached), ids.shape[1])
    again = torch.zeros(len(ids), len(cached), dtype=torch.bool)
    again[torch.arange(len(ids))[:, None], chosen.long()] = True
    kept = again.logical_not().nonzero()[:, 1].view(len(ids), -1)  # every prompt keeps as many
    at = torch.cat([chosen.long(), behind.expand(len(ids), -1)], 1)
    outcomes = []
    with torch.no_grad():
        for first in range(0, len(ids), BATCH):
            some = slice(first, first + BATCH)
            if chosen.shape[1]:
                rows, where = _rows(pick(cached, some), kept[some]), at[some]
            else:  # nothing is taken out: no need to copy
                rows, where = pick(cached, some), behind
            logits, _ = tiny_lm.forward(params, ids[some].gather(1, at[some]), where, rows)
            outcomes.append(logits[:, -1])
    return torch.cat(outcomes)


def _rows(cached: Cache, which: Tensor) -> Cache:
    """Other rows for each of the batch: `which` is [prompt, row]."""
    import torch

    prompt = torch.arange(len(which))[:, None]
    layers = tuple(Layer(x.rotary[prompt, which], x.free[prompt, which]) for x in cached.layers)
    return replace(cached, layers=layers, positions=cached.positions[which])
