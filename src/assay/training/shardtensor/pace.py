"""What inference of a large vision transformer would take on many GPUs: a model, no group of GPUs was at hand.

Products run at the roofline's rates (`assay.sim.roofline`: data sheets times assumed efficiencies). Attention is a
ring: at every step a block of keys and values is computed with while the next comes over the slowest link of the
ring. Torch calls cost the host some microseconds each, more where shards are dispatched in Python; a GPU that is
faster than its host waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.sim.hardware import device
from assay.sim.roofline import COMPUTE_EFFICIENCY, LINK_EFFICIENCY, MEMORY_EFFICIENCY

PLAIN, DISPATCHED = 8e-6, 40e-6  # seconds of the host for a torch call, and for one on shards (assumed)
CALLS, MERGE = 20, 6  # torch calls of a layer, and of one more block of the ring
TEMPORARY = 12.0  # activations of a layer in memory at once, in units of tokens times width
WORD = 2.0  # bytes of bf16


@dataclass(frozen=True)
class Shape:
    """A vision transformer of ViT-L's size."""

    width: int = 1024
    layers: int = 24

    def fits(self, tokens: int, on: str = "h100") -> bool:
        """Whether inference has room on one device."""
        weights = 12 * self.width**2 * self.layers
        return WORD * (weights + TEMPORARY * tokens * self.width) < 0.94 * device(on).mem_bytes


def seconds(shape: Shape, tokens: int, gpus: int, on: str = "h100") -> dict[str, float]:
    """Of one forward pass: all of it, its attention alone, and what of that waits for the wires.

    >>> one, many = (seconds(Shape(), 2**20, n)["seconds"] for n in (1, 8))
    >>> 6 < one / many <= 8
    True
    """
    gpu = device(on)
    rate, memory = gpu.flops("bf16") * COMPUTE_EFFICIENCY, gpu.mem_bw * MEMORY_EFFICIENCY
    link = (gpu.nvlink if gpus <= gpu.gpus_per_node else gpu.nic).derated(LINK_EFFICIENCY)
    own = tokens / gpus
    products = max(24 * own * shape.width**2 / rate, WORD * 12 * shape.width**2 / memory)
    others = 30 * WORD * own * shape.width / memory  # norms, activations, residual sums
    block = 4 * own * own * shape.width / rate + gpu.launch
    wire = link.latency + 2 * WORD * own * shape.width / link.bandwidth if gpus > 1 else 0.0
    attention = block + (gpus - 1) * max(block, wire)
    host = CALLS * PLAIN if gpus == 1 else (CALLS + MERGE * gpus) * DISPATCHED
    layer = max(products + others + CALLS * gpu.launch + attention, host)
    waits = (gpus - 1) * max(0.0, wire - block)
    return {"seconds": shape.layers * layer, "attention": shape.layers * attention, "waits": shape.layers * waits}
