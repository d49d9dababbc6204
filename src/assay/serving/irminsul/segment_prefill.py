"""Prefill a prompt from a plan: rows of the prefix, rows of moved segments, and the rest computed among them.

The mechanism of `irminsul` on a real model, what it is compared with (CacheBlend's choice of the tokens that deserve
to be computed again), and two ways to do it wrong that a test of consistency must catch: rows put at their new place
without turning them, and rows of another segment.

- Yao et al., CacheBlend, EuroSys 2025, arXiv:2405.16444.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from assay.serving.irminsul.segment_store import Ids, Plan, PrefixCache, SegmentStore, plan, remember
from assay.sim.tiny_lm import Cache, Params, forward

if TYPE_CHECKING:
    from torch import Tensor


def reused_rows(given: Plan, prefix: Cache | None, *, turn: bool = True, astray: bool = False) -> Cache | None:
    """The rows that need not be computed, at their new positions: one rotation for all segments together.

    `astray` takes each row from another place among the reused ones, as a wrong key in the store would, and turns it
    rightly to where it now lies.
    """
    import torch

    parts = [r.segment.rows[r.offset : r.offset + r.stop - r.start] for r in given.reuses]
    rows = None
    if parts:
        lengths = torch.tensor([r.stop - r.start for r in given.reuses])
        by = torch.tensor([r.by for r in given.reuses]).repeat_interleave(lengths)
        rows = Cache.join(parts)
        if astray:
            wanted, rows = rows.positions + by, rows[torch.arange(len(rows)).roll(len(rows) // 2)]
            by = wanted - rows.positions
        rows = rows.moved(by) if turn else rows.relabelled(by)
    if given.prefix and prefix is not None:
        first = prefix[: given.prefix]
        return first if rows is None else Cache.join([first, rows])
    return rows


def compute(params: Params, ids: Ids, where: npt.NDArray[np.bool_], have: Cache | None) -> tuple[Tensor, Cache]:
    """Compute the tokens at `where` in one pass among the rows there are; the last token's logits, and all rows."""
    at = np.flatnonzero(where)
    logits, rows = forward(params, ids[at], at, have)
    return logits[0, -1], rows.in_order()


def blended(
    params: Params, given: Plan, prefix: Cache | None, *, share: float = 0.15, depth: int = 2
) -> tuple[Tensor, Cache, int]:
    """CacheBlend: run the first layers for all reused tokens, and compute to the end those whose rows differ most.

    The choice is made once, at layer `depth`, where the original narrows it layer by layer. Also says how many of the
    reused tokens were computed again.
    """
    import torch

    have = reused_rows(given, prefix)
    moved = have[given.prefix :] if have is not None else None
    if moved is None or not len(moved):
        return *compute(params, given.ids, given.computed, have), 0
    rest = np.arange(given.prefix, len(given.ids))
    shallow = None
    if given.prefix and prefix is not None:
        shallow = replace(prefix, layers=prefix.layers[:depth])[: given.prefix]
    _, now = forward(params, given.ids[rest], rest, shallow, layers=depth)
    new, old = now.in_order()[moved.positions].layers[-1], moved.layers[depth - 1]
    off = sum(
        (now_ - then).flatten(2).norm(dim=-1)[0] / then.norm()
        for now_, then in ((new.free, old.free), (new.rotary, old.rotary))
    )
    count = int(np.ceil(share * len(moved)))
    again = moved.positions[torch.topk(off, count).indices]
    where = given.computed
    where[again.numpy()] = True
    kept = torch.ones(len(given.ids), dtype=torch.bool)
    kept[again] = False
    assert have is not None
    return *compute(params, given.ids, where, have[kept[have.positions]]), count


@dataclass(frozen=True, slots=True)
class Method:
    """A way to prefill: what it looks up, and how it treats what it finds.

    >>> METHODS["irminsul"].carve, METHODS["no-rotation"].turn
    (16, False)
    """

    prefix: bool = True
    segments: bool = True
    carve: int = 16
    turn: bool = True
    astray: bool = False
    blend: float = 0.0


METHODS = {
    "recompute": Method(prefix=False, segments=False),
    "exact-prefix": Method(segments=False),
    "irminsul": Method(),
    "segment-first": Method(prefix=False),
    "no-carve-out": Method(carve=0),
    "no-rotation": Method(turn=False),
    "wrong-segment": Method(astray=True),
    "cacheblend": Method(carve=0, blend=0.15),
}


class Prefiller:
    """A model with the caches of one method, fed with prompts one after the other.

    >>> from assay.sim.tiny_lm import Shape, init
    >>> ids = np.arange(300) ** 2 % 61
    >>> server = Prefiller(init(Shape(vocab=64, layers=1, width=32), seed=0), METHODS["irminsul"])
    >>> _ = server(ids)
    >>> _ = server(np.concatenate([[63], ids]))
    >>> server.last.prefix, server.last.reused > 150
    (0, True)
    """

    def __init__(self, params: Params, method: Method) -> None:
        self.params, self.method = params, method
        self.prefixes = PrefixCache() if method.prefix else None
        self.segments = SegmentStore() if method.segments else None
        self._before: list[tuple[Ids, Cache]] = []  # the rows behind the prefix cache
        self.last: Plan
        self.again = 0  # reused tokens that were computed after all

    def __call__(self, ids: Ids) -> tuple[Tensor, Cache]:
        """The last token's logits and all rows; the caches learn the prompt."""
        logits, rows = self.prefill(ids)
        self._learn(rows)
        return logits, rows

    def learn(self, ids: Ids, rows: Cache) -> None:
        """Take over the rows of a prompt that was prefilled elsewhere."""
        self.last = plan(ids, self.prefixes, self.segments, carve=self.method.carve)
        self._learn(rows)

    def _learn(self, rows: Cache) -> None:
        remember(self.last, self.prefixes, self.segments, lambda start, stop: rows[start:stop])
        if self.prefixes is not None:
            self._before.append((self.last.ids, rows))

    def prefill(self, ids: Ids) -> tuple[Tensor, Cache]:
        """The same, but the caches stay as they are, and what was looked up is held."""
        import torch

        with torch.no_grad():
            given = self.last = plan(ids, self.prefixes, self.segments, carve=self.method.carve)
            prefix = self._prefix(given)
            self.again = 0
            if self.method.blend:
                logits, rows, self.again = blended(self.params, given, prefix, share=self.method.blend)
            else:
                have = reused_rows(given, prefix, turn=self.method.turn, astray=self.method.astray)
                logits, rows = compute(self.params, ids, given.computed, have)
        return logits, rows

    def _prefix(self, given: Plan) -> Cache | None:
        for ids, rows in reversed(self._before):
            if given.prefix and np.array_equal(ids[: given.prefix], given.ids[: given.prefix]):
                return rows
        return None


# ------------------------------------------------------------------------------- what is said afterwards


def predictions(params: Params, logits: Tensor, rows: Cache, ids: Ids) -> Tensor:
    """The logits that predict each of the ids after a prefilled prompt, given those before it."""
    import torch

    with torch.no_grad():
        rest, _ = forward(params, ids[:-1], np.arange(len(rows), len(rows) + len(ids) - 1), rows)
    return torch.cat([logits[None], rest[0]])


def divergence(reference: Tensor, other: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the other predictions from the reference's, in nats.

    >>> import torch
    >>> divergence(torch.zeros(3, 4), torch.ones(3, 4))
    0.0
    """
    true = reference.log_softmax(-1)
    return float((true.exp() * (true - other.log_softmax(-1))).sum(-1).mean())
