"""Four decoder layers that differ only in how tokens look at each other: their weights, caches, bytes and FLOPs.

Grouped-query attention, multi-head latent attention, Gated DeltaNet and Mamba2, all of one width and with one SwiGLU
block, in the shape of an 8B model. `benchmarks/h200_power.py` runs them; the power model prices them. Needs nothing
but the standard library, so that the measuring script may carry it to a bare machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FAMILIES = ("gqa", "mla", "gdn", "mamba2")
CHUNK = 64  # tokens of a scan's chunk


@dataclass(frozen=True)
class Shape:
    """Widths of a layer; the default is an 8B model's.

    >>> shape = Shape()
    >>> [round(shape.cache_bytes(family, context=4096) / 1e6, 1) for family in FAMILIES]
    [16.8, 4.7, 2.1, 4.2]
    """

    d: int = 4096
    ffn: int = 12288
    heads: int = 32
    kv_heads: int = 8
    hd: int = 128
    latent: int = 512  # MLA: rank of the cache, and its rotary part
    rope: int = 64
    gdn_qk: int = 16  # Gated DeltaNet: key heads; value heads are `heads`
    ssd_heads: int = 128  # Mamba2: heads of `ssd_hd`, state of `hd`, groups share keys
    ssd_hd: int = 64
    ssd_groups: int = 8
    model_layers: int = 36

    def mixer_weights(self, family: str) -> dict[str, tuple[int, ...]]:
        """The mixer's weight matrices."""
        d, h, hd = self.d, self.heads, self.hd
        inner = self.ssd_heads * self.ssd_hd
        weights: dict[str, dict[str, tuple[int, ...]]] = {
            "gqa": {"qkv": (d, (h + 2 * self.kv_heads) * hd), "o": (h * hd, d)},
            "mla": {
                "q": (d, h * (hd + self.rope)), "kv": (d, self.latent + self.rope),
                "uk": (h, hd, self.latent), "uv": (h, self.latent, hd), "o": (h * hd, d),
            },
            "gdn": {"in": (d, 2 * self.gdn_qk * hd + 2 * h * hd + 2 * h), "o": (h * hd, d)},
            "mamba2": {"in": (d, 2 * inner + 2 * self.ssd_groups * hd + self.ssd_heads), "o": (inner, d)},
        }  # fmt: skip
        return weights[family]

    def weight_elements(self, family: str) -> int:
        """All weights of a layer."""
        return sum(math.prod(s) for s in self.mixer_weights(family).values()) + 3 * self.d * self.ffn

    def cache_bytes(self, family: str, context: int) -> int:
        """Bytes of cache or state that one sequence holds in one layer."""
        return {
            "gqa": 2 * 2 * self.kv_heads * self.hd * context,
            "mla": 2 * (self.latent + self.rope) * context,
            "gdn": 4 * self.heads * self.hd * self.hd,
            "mamba2": 4 * self.ssd_heads * self.ssd_hd * self.hd,
        }[family]

    def work(self, family: str, phase: str, batch: int, context: int) -> tuple[float, float]:
        """(flops, least HBM bytes) of one layer for a whole batch: a decode step, or the prefill of all prompts."""
        weights, hd = self.weight_elements(family), self.hd
        cache = self.cache_bytes(family, context)
        if phase == "decode":
            tokens = batch
            mixing = {
                "gqa": 4.0 * self.heads * self.hd * context,
                "mla": 2.0 * self.heads * (2 * self.latent + self.rope) * context,
                "gdn": 8.0 * self.heads * self.hd**2, "mamba2": 6.0 * self.ssd_heads * self.ssd_hd * self.hd,
            }[family] * batch  # fmt: skip
            traffic = cache * batch * (2 if family in ("gdn", "mamba2") else 1)  # a state is read and written
        else:
            tokens = batch * context
            pairs = 0.5 * context * tokens
            mixing = {
                "gqa": 4.0 * self.heads * self.hd * pairs, "mla": 2.0 * self.heads * (2 * self.hd + self.rope) * pairs,
                "gdn": tokens * self.heads * (6.0 * self.hd**2 + 6.0 * CHUNK * self.hd),
                "mamba2": tokens * self.ssd_heads * (4.0 * self.ssd_hd * self.hd + 2.0 * CHUNK * (self.ssd_hd + hd)),
            }[family]  # fmt: skip
            activations = {"gqa": 12, "mla": 18, "gdn": 16, "mamba2": 20}[family] * self.d + 4 * self.ffn
            traffic = cache * batch + 2 * activations * tokens
        return 2.0 * weights * tokens + mixing, 2.0 * weights + traffic


TINY = Shape(d=64, ffn=128, heads=4, kv_heads=2, hd=16, latent=32, rope=16, gdn_qk=2, ssd_heads=4, ssd_hd=16,
             ssd_groups=2, model_layers=4)  # fmt: skip
