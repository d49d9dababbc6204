"""Products of language models' layers: the grid of shapes that decisions are tried on.

Widths and depths are those of public model descriptions (DeepSeek-R1's projections, dense layers and experts; Qwen3's
8B, 32B and 30B-A3B; HunyuanVideo's blocks); tokens go from 512 to 20,480 by 512: forty times 24 layers are 960 shapes.
"""

from __future__ import annotations

from typing import NamedTuple


class Layer(NamedTuple):
    """A linear layer: y = x W, W is `deep` by `wide`."""

    model: str
    name: str
    deep: int
    wide: int


LAYERS = (
    Layer("deepseek-r1", "q down", 7168, 1536),
    Layer("deepseek-r1", "q up", 1536, 24576),
    Layer("deepseek-r1", "kv up", 512, 32768),
    Layer("deepseek-r1", "attention out", 16384, 7168),
    Layer("deepseek-r1", "gate and up", 7168, 36864),
    Layer("deepseek-r1", "down", 18432, 7168),
    Layer("deepseek-r1", "expert gate and up", 7168, 4096),
    Layer("deepseek-r1", "expert down", 2048, 7168),
    Layer("qwen3-8b", "qkv", 4096, 6144),
    Layer("qwen3-8b", "attention out", 4096, 4096),
    Layer("qwen3-8b", "gate and up", 4096, 24576),
    Layer("qwen3-8b", "down", 12288, 4096),
    Layer("qwen3-32b", "qkv", 5120, 10240),
    Layer("qwen3-32b", "attention out", 8192, 5120),
    Layer("qwen3-32b", "gate and up", 5120, 51200),
    Layer("qwen3-32b", "down", 25600, 5120),
    Layer("hunyuan-video", "qkv", 3072, 9216),
    Layer("hunyuan-video", "attention out", 3072, 3072),
    Layer("hunyuan-video", "mlp up", 3072, 12288),
    Layer("hunyuan-video", "mlp down", 12288, 3072),
    Layer("hunyuan-video", "single in", 3072, 21504),
    Layer("hunyuan-video", "single out", 15360, 3072),
    Layer("qwen3-30b-a3b", "qkv", 2048, 5120),
    Layer("qwen3-30b-a3b", "attention out", 4096, 2048),
)
TOKENS = tuple(range(512, 20481, 512))


def shapes() -> list[tuple[int, int, int]]:
    """All (m, k, n): tokens by layers.

    >>> len(shapes())
    960
    """
    return [(tokens, layer.deep, layer.wide) for layer in LAYERS for tokens in TOKENS]
