"""What a microbatch takes: a model of one expert-parallel group of a rack, where the busiest rank sets the pace.

A layer's time is a part that all ranks have alike (attention, norms, the shared expert), plus a part that goes with the
tokens of the busiest rank (expert matrices, dispatch and combine). Both come from the roofline of the model on the
device (`assay.sim.roofline`), whose figures are data sheets times assumed efficiencies. Training computes every matrix
three times and exchanges tokens twice. The weights of copies are on the critical path: once in a forward pass, once
more before the experts' backward pass; their gradients travel home while attention is computed backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim import collectives
from assay.sim.collectives import Link
from assay.sim.hardware import device
from assay.sim.layouts import ACTIVATION
from assay.sim.models import item_bytes, model
from assay.sim.roofline import LINK_EFFICIENCY, roofline

Ints = NDArray[np.int64]

PLAN = 1e-4  # seconds for finding a plan on the device, as the paper reports them: no part of our measurement
LARGEST = 4096  # tokens of a rank that are priced at once; more take as many times as long
DIRECT = 4  # copies of one expert that its main rank sends itself; above, relays pass the weights on
RELAYS = 8  # of them at most


@dataclass(frozen=True)
class Pace:
    """Seconds of a microbatch: `alike` on all ranks, `matrices` and `exchange` where the load is the mean."""

    alike: float
    matrices: float
    exchange: float
    layers: int
    expert_bytes: float
    link: Link

    def seconds(self, imbalance: float, weights: float, training: bool, planned: bool) -> float:
        """A microbatch, all layers: the busiest rank's load over the mean, seconds of one layer's weights to copies."""
        passes, ways = (3.0, 2.0) if training else (1.0, 1.0)
        forward = passes * (self.alike + imbalance * self.matrices) + ways * imbalance * self.exchange
        return forward + self.layers * (ways * weights + (PLAN if planned else 0.0))


@lru_cache(maxsize=32)
def pace(name: str, on: str, ranks: int, tokens: int, experts: int = 0, context: int = 4096) -> Pace:
    """The pace of a model with experts on one rack of so many devices, each with `tokens` tokens of sequences.

    `experts`: how many there are, if not as many as the model has. Memory is not looked at: layers that do not fit on
    one rack lie on others.

    >>> rack = pace("deepseek-v3", "b200", ranks=64, tokens=8192)
    >>> rack.seconds(2.0, 0.0, training=True, planned=False) > rack.seconds(1.0, 0.0, training=True, planned=False)
    True

    Raises:
        BadInput: a model without experts, or an unknown name.
    """
    shape, rack = model(name), replace(device(on), gpus_per_node=ranks, mem_bytes=1e18)
    if shape.experts is None:
        raise BadInput(f"{shape.name} has no experts; choose one that has, such as deepseek-v3")
    mixture = replace(shape.experts, count=experts or shape.experts.count)
    shape = replace(shape, experts=mixture)
    asked, tokens = tokens, min(tokens, LARGEST)
    total = ranks * tokens
    even, twice = (roofline(shape, rack, ep=ranks, max_tokens=total, skew=skew, overhead=0.0) for skew in (1.0, 2.0))
    attention = even.prefill_pair * total * context / 2
    follows = float(twice.tokens[total] - even.tokens[total])
    row = shape.hidden * ACTIVATION
    link = rack.nvlink.derated(LINK_EFFICIENCY)
    there = collectives.all_to_all(ranks, tokens * mixture.top_k * row, link)
    exchange = 2 * shape.moe_layers * (there - link.latency)
    each = sum(gemm.params for gemm in shape.mlp_gemms(mixture.ffn)) * item_bytes("bf16")
    alike, more = float(even.tokens[total]) + attention - follows, asked / tokens
    return Pace(more * alike, more * (follows - exchange), more * exchange, shape.moe_layers, each, link)


def copying(copies: NDArray[np.bool_], main: Ints, expert_bytes: float, link: Link, relays: bool = True) -> float:
    """Seconds until all copies have their weights; `copies[e, g]`: rank g needs those of expert e, not its own.

    The busiest port counts. A main rank sends to up to four copies itself; where there are more, it sends to about
    their square root of relays among the copies, those with the least to send, which pass the weights on as they come.

    >>> copies = np.zeros((2, 10), bool)
    >>> copies[0, 1:] = True
    >>> link = Link(latency=0.0, bandwidth=1.0)
    >>> copying(copies, np.array([0, 0]), 1.0, link), copying(copies, np.array([0, 0]), 1.0, link, relays=False)
    (3.0, 9.0)
    """
    sent = np.zeros(copies.shape[1])
    hops = 1
    counts = copies.sum(axis=1)
    if not counts.any():
        return 0.0
    for e in np.argsort(counts, kind="stable"):
        n = int(counts[e])
        if n <= DIRECT or not relays:
            sent[main[e]] += n
            continue
        hops, count = 2, min(RELAYS, max(2, round(math.sqrt(n))))
        hosts = np.flatnonzero(copies[e])
        chosen = hosts[np.argsort(sent[hosts], kind="stable")[:count]]
        sent[main[e]] += count
        sent[chosen] += np.diff(np.linspace(0, n - count, count + 1) // 1)
    busiest = max(sent.max(), copies.sum(axis=0).max())
    return float(hops * link.latency + busiest * expert_bytes / link.bandwidth)
