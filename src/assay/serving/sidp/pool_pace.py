"""The pace of a replica whose weights are at hand, shared with its group, cut into a pipeline, or kept in host memory.

All are priced by one roofline, so that they differ in what they move and hold, and in nothing else. `Pool` is the group
that shares its layers' weights; the functions turn it into a `Pace`, which `assay.serving.sidp.offline` runs.

>>> pool = Pool("h200", "qwen3-32b", group=4)
>>> shared(pool).kv_tokens > replicated(Pool("h200", "qwen3-32b")).kv_tokens
True
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from assay.serving.sidp.offline import Pace
from assay.sim.hardware import device
from assay.sim.layouts import ACTIVATION, Layout, Memory
from assay.sim.llm_cost import StepCost
from assay.sim.models import item_bytes, model
from assay.sim.roofline import LINK_EFFICIENCY, MEMORY_EFFICIENCY, OVERHEAD, roofline

MAX_SEQS, MAX_TOKENS, TABLE = 2048, 8192, 16384  # of a batch, of an iteration, of the table of step times


@dataclass(frozen=True)
class Pool:
    """A group of replicas that share their layers' weights; `group=1` is plain data parallelism.

    `cache` layers are buffered beside the GPU's own; each replica may itself be tensor-parallel.
    """

    device: str
    model: str
    tp: int = 1
    group: int = 1
    cache: int = 2

    @cached_property
    def cost(self) -> StepCost:
        """The step of a replica whose weights are at hand."""
        return _cost(self.model, self.device, self.tp)

    @cached_property
    def memory(self) -> Memory:
        """The memory of a replica that holds all its weights."""
        return Memory(Layout(model(self.model), device(self.device), self.tp), max_seqs=MAX_SEQS)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return model(self.model).layers

    @property
    def layer_bytes(self) -> float:
        """Bytes of one layer's weights on a rank; embedding and head stay where they are."""
        shape = model(self.model)
        ends = shape.vocab * shape.hidden * (1 if shape.tied else 2) * item_bytes("bf16") / self.tp
        return (self.memory.weights - ends) / self.layers

    @property
    def freed(self) -> float:
        """Bytes a GPU gains for KV: all layers but its own, less the buffers. The busiest owner counts."""
        if self.group == 1:
            return 0.0
        own = -(-self.layers // self.group)
        return self.layer_bytes * (self.layers - own - self.cache)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV a replica has room for, in whole blocks; 0 where the weights alone do not fit."""
        m = self.memory
        room = m.cut.device.mem_bytes * m.util - m.weights - m.activations + self.freed
        return max(0, int(room / m.token_bytes // m.block) * m.block)

    @property
    def fetch(self) -> float:
        """Seconds to pull the others' layers once, at the port's full rate.

        Owners differ from GPU to GPU at any time, because each starts at its own layer: no port serves two at once.
        """
        link = device(self.device).nvlink.derated(LINK_EFFICIENCY)
        remote = self.layers * (self.group - 1) / self.group
        return remote * link.seconds(self.layer_bytes)

    @property
    def hidden_from(self) -> int:
        """The least number of tokens in a step that hides the fetch, attention aside.

        >>> Pool("h200", "qwen3-32b", group=8).hidden_from > 4 * Pool("h20", "qwen3-32b", group=8).hidden_from
        True
        """
        return int(np.searchsorted(_layers(self), self.fetch))


@lru_cache(maxsize=64)
def _cost(name: str, on: str, tp: int) -> StepCost:
    # The cost wants room for KV; the pool brings its own, so the cost is taken on a device with room enough.
    roomy = replace(device(on), mem_bytes=4e12)
    return roofline(name, roomy, tp, max_tokens=TABLE, max_seqs=MAX_SEQS)


def _ends(pool: Pool) -> float:
    """Seconds of a step outside the layers: the scheduler, and the head's weights."""
    shape, on = model(pool.model), device(pool.device)
    return OVERHEAD + shape.vocab * shape.hidden * item_bytes("bf16") / pool.tp / (on.mem_bw * MEMORY_EFFICIENCY)


def _layers(pool: Pool) -> Any:
    """Seconds of all layers for n tokens, attention aside."""
    return np.maximum(pool.cost.tokens - _ends(pool), 0.0)


def replicated(pool: Pool) -> Pace:
    """The pace of a replica with all weights at hand."""
    cost = pool.cost
    return Pace(_layers(pool), cost.decode_kv, cost.prefill_pair, pool.kv_tokens, _ends(pool), cost.decode_seq)


def shared(pool: Pool, *, sends: bool = True) -> Pace:
    """The pace of a replica in the group: it streams weights, or sends activations where that is faster.

    Sending takes two round trips a layer, since the KV cache stays: in for the projections, back for attention, in for
    the rest, back with the result. The owner's port takes in what the G − 1 others send; its matrices see all tokens.
    """
    on, base = device(pool.device), replicated(pool)
    remote = pool.layers * pool.layer_bytes * (pool.group - 1) / pool.group
    bandwidth = on.mem_bw * MEMORY_EFFICIENCY
    streamed = replace(
        base,
        fetch=pool.fetch,
        # What arrives is written, and what the others pull is read: HBM sees the weights three times.
        memory=(pool.layers * pool.layer_bytes + 2 * remote) / bandwidth,
        kv_memory=pool.memory.token_bytes / bandwidth,
    )
    if not sends or pool.group == 1:
        return streamed
    shape, link = model(pool.model), on.nvlink.derated(LINK_EFFICIENCY)
    n = np.arange(TABLE + 1)
    width = 2 * shape.hidden + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim / pool.tp
    travel = 4 * link.latency + (pool.group - 1) * n * (width * ACTIVATION) / link.bandwidth
    together = np.where(n * pool.group <= TABLE, base.layers[np.minimum(n * pool.group, TABLE)], np.inf)
    return replace(streamed, union=together + pool.layers * travel)


def pipelined(pool: Pool, stages: int) -> Pace:
    """One of the `stages` batches that fill a pipeline: its KV is a stage's room, its pace that of all layers.

    A pipeline with one batch in each stage never drains; every stage waits for the last, which also has the head.
    """
    cut = replace(pool.memory, cut=replace(pool.memory.cut, pp=stages))
    base, link = replicated(pool), device(pool.device).nvlink.derated(LINK_EFFICIENCY)
    n = np.arange(TABLE + 1.0)
    hops: Any = stages * link.seconds(n * (model(pool.model).hidden * ACTIVATION / pool.tp))
    ends = OVERHEAD + stages * (_ends(pool) - OVERHEAD)
    return replace(base, layers=base.layers + hops, ends=ends, kv_tokens=max(0, cut.tokens // stages))


def offloaded(pool: Pool, share: float) -> Pace:
    """A replica that keeps this share of its layers in host memory and fetches them over PCIe."""
    link = device(pool.device).pcie
    away = share * pool.layers * pool.layer_bytes
    gained = int(max(0.0, away - pool.cache * pool.layer_bytes) / pool.memory.token_bytes)
    return replace(replicated(pool), fetch=link.seconds(away), kv_tokens=pool.kv_tokens + gained)
