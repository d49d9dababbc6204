"""A block with a mixture of experts, one token after the other: no permutation, no exchange, no capacity by sorting."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import silu


def losses(
    weights: dict[str, Any], inputs: Any, targets: Any, *, slices: int, top_k: int, auxiliary: float,
    capacity: float | None, whole_sequence: bool,
) -> tuple[list[Any], Any]:  # fmt: skip
    """The loss of every slice of tokens, `slices` of which make a sequence, and all outputs."""
    experts = weights["gate"].shape[1]
    tokens = [[x + silu(x @ weights["into"]) @ weights["out"] for x in part] for part in inputs]
    scores = [[(x @ weights["gate"]).softmax(0) for x in part] for part in tokens]
    picks = [[torch.topk(s, top_k) for s in part] for part in scores]
    outputs, found = [], []
    for at in range(len(tokens)):
        first = at // slices * slices
        sequence = range(first, first + slices)
        rivals = [(i, t) for i in (sequence if whole_sequence else [at]) for t in range(len(tokens[i]))]
        part = []
        for t, x in enumerate(tokens[at]):
            y = x
            for value, expert in zip(picks[at][t].values, picks[at][t].indices.tolist(), strict=True):
                if capacity is not None:
                    room = math.ceil(capacity * top_k * len(rivals) / experts)
                    if _before_me(picks, rivals, (at, t), expert) >= room:
                        continue
                gate, up = x @ weights["up"][expert, :, 0], x @ weights["up"][expert, :, 1]
                y = y + value * ((silu(gate) * up) @ weights["down"][expert])
            part.append(y)
        outputs.append(torch.stack(part))
        counts = torch.zeros(experts)
        for i in sequence:
            for pick in picks[i]:
                counts[pick.indices] += 1
        mean = torch.stack(scores[at]).mean(0)
        found.append(((outputs[-1] - targets[at]) ** 2).mean()
                     + auxiliary * experts * (counts / counts.sum() * mean).sum())  # fmt: skip
    return found, torch.stack(outputs)


def _before_me(picks: Any, rivals: list[tuple[int, int]], me: tuple[int, int], expert: int) -> int:
    """How many want the same expert more than I do, or as much and came first."""

    def wish(who: tuple[int, int]) -> float | None:
        pick = picks[who[0]][who[1]]
        at = (pick.indices == expert).nonzero()
        return pick.values[at[0, 0]].item() if len(at) else None

    mine = wish(me)
    assert mine is not None
    better = 0
    for who in rivals:
        theirs = wish(who)
        if who != me and theirs is not None and (theirs > mine or (theirs == mine and who < me)):
            better += 1
    return better
