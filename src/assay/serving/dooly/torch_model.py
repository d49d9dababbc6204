"""A decoder-only transformer with random weights in the shape of a real model, made to be timed.

What an iteration costs depends on the shape and hardly on the values, so random weights are as good as trained ones.
Grouped-query attention, rotary embedding and a gated MLP; by the configuration also per-head norms (Qwen3), a sliding
window (Mistral), experts (Mixtral, Qwen3-MoE) and multi-head latent attention (DeepSeek), which is computed in its
absorbed form: keys stay compressed in the cache and queries are projected to them.
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.serving.dooly import torch_ops
from assay.serving.dooly.torch_ops import Batch

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, read from a Hugging Face `config.json`.

    >>> llama = Shape.from_hf({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...     "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})
    >>> llama.head_dim, round(llama.parameters / 1e9, 2)
    (128, 8.03)
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # of the experts that every token takes
    dense_layers: int = 0  # the first layers have a plain MLP
    window: int = 0
    qk_norm: bool = False
    kv_rank: int = 0  # > 0: multi-head latent attention
    rope_dim: int = 0
    value_dim: int = 0
    theta: float = 10_000.0
    tp: int = 1
    name: str = ""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], name: str = "") -> Shape:
        """Read the fields of `config.json` that say how large a model is."""
        get = config.get
        missing = [f for f in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size") if not get(f)]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}: not a decoder-only transformer's configuration")
        heads, experts = int(config["num_attention_heads"]), get("num_local_experts") or get("num_experts")
        experts = int(experts or get("n_routed_experts") or 0)
        expert_ffn = int(get("moe_intermediate_size") or (get("intermediate_size", 0) if experts else 0))
        rank = int(get("kv_lora_rank") or 0)
        return cls(
            layers=int(config["num_hidden_layers"]), hidden=int(config["hidden_size"]), heads=heads,
            kv_heads=1 if rank else int(get("num_key_value_heads") or heads),
            head_dim=int(get("qk_nope_head_dim") or get("head_dim") or config["hidden_size"] // heads),
            ffn=int(get("intermediate_size") or 4 * config["hidden_size"]), vocab=int(config["vocab_size"]),
            experts=experts, top_k=int(get("num_experts_per_tok") or 0), expert_ffn=expert_ffn,
            shared_ffn=int(get("n_shared_experts") or 0) * expert_ffn,
            dense_layers=int(get("first_k_dense_replace") or 0), window=int(get("sliding_window") or 0),
            qk_norm="qwen3" in str(get("model_type", "")), kv_rank=rank, rope_dim=int(get("qk_rope_head_dim") or 0),
            value_dim=int(get("v_head_dim") or 0), theta=float(get("rope_theta") or 10_000.0),
            name=name or str(get("_name_or_path", "")),
        )  # fmt: skip

    @property
    def qk_dim(self) -> int:
        """Width of a cached key."""
        return self.kv_rank + self.rope_dim if self.kv_rank else self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of a cached value."""
        return self.kv_rank or self.head_dim

    @property
    def parameters(self) -> int:
        """How many weights the model has, on this rank."""
        return sum(math.prod(size) for size in self.weight_sizes().values())

    def kv_values(self) -> int:
        """Numbers cached per token."""
        return self.layers * self.kv_heads * (self.qk_dim + self.v_dim)

    def weight_sizes(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name and size."""
        sizes: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.hidden), "head": (self.vocab, self.hidden)}
        sizes["norm"] = (self.hidden,)
        for i in range(self.layers):
            sizes |= {f"{i}.{name}": size for name, size in self.layer_sizes(i).items()}
        return sizes

    def layer_sizes(self, i: int) -> dict[str, tuple[int, ...]]:
        """The weights of layer `i`."""
        d, h, hd = self.hidden, self.heads, self.head_dim
        sizes: dict[str, tuple[int, ...]] = {"norm1": (d,), "norm2": (d,)}
        if self.kv_rank:
            sizes |= {"q": (h * (hd + self.rope_dim), d), "kv": (self.kv_rank + self.rope_dim, d)}
            sizes |= {"kv_norm": (self.kv_rank,), "absorb": (h, hd, self.kv_rank)}
            sizes |= {"expand": (h, self.kv_rank, self.value_dim), "o": (d, h * self.value_dim)}
        else:
            sizes |= {"qkv": ((h + 2 * self.kv_heads) * hd, d), "o": (d, h * hd)}
        if self.qk_norm:
            sizes |= {"q_norm": (hd,), "k_norm": (hd,)}
        if self.experts and i >= self.dense_layers:
            sizes |= {"router": (self.experts, d), "experts_up": (self.experts, 2 * self.expert_ffn, d)}
            sizes["experts_down"] = (self.experts, d, self.expert_ffn)
            if self.shared_ffn:
                sizes |= {"gate_up": (2 * self.shared_ffn, d), "down": (d, self.shared_ffn)}
        else:
            sizes |= {"gate_up": (2 * self.ffn, d), "down": (d, self.ffn)}
        return sizes

    def to_hf(self) -> dict[str, Any]:
        """The fields of a `config.json` that say the same, for other readers of it."""
        more: dict[str, Any] = {"model_type": "qwen3" if self.qk_norm else "llama"}
        if self.experts:
            more = {"model_type": "mixtral", "num_local_experts": self.experts, "num_experts_per_tok": self.top_k}
        return more | {
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "vocab_size": self.vocab,
            "intermediate_size": self.expert_ffn if self.experts else self.ffn, "tie_word_embeddings": False,
        }  # fmt: skip

    def shard(self, tp: int) -> Shape:
        """One rank's share under tensor parallelism: the shapes are those of a real rank, the collectives absent."""
        if self.heads % tp or self.ffn % tp:
            raise ValueError(f"{self.heads} heads and an MLP of {self.ffn} do not divide among {tp} ranks")
        return dataclasses.replace(
            self, heads=self.heads // tp, kv_heads=max(1, self.kv_heads // tp), ffn=self.ffn // tp,
            expert_ffn=self.expert_ffn // tp, shared_ffn=self.shared_ffn // tp, vocab=self.vocab // tp, tp=self.tp * tp,
        )  # fmt: skip

    def shrunk(self, factor: int, layers: int) -> Shape:
        """The same structure with widths divided by `factor` and fewer layers, for a machine without a GPU.

        Head counts stay, so that models which share an operation at full size still share it.
        """

        def cut(size: int) -> int:
            return max(8, size // factor) if size else 0

        return dataclasses.replace(
            self, layers=layers, hidden=cut(self.hidden), head_dim=cut(self.head_dim), ffn=cut(self.ffn),
            vocab=cut(self.vocab), experts=min(self.experts, 8), top_k=min(self.top_k, 2),
            expert_ffn=cut(self.expert_ffn), shared_ffn=cut(self.shared_ffn), window=self.window and cut(self.window),
            kv_rank=cut(self.kv_rank), rope_dim=cut(self.rope_dim), value_dim=cut(self.value_dim),
        )  # fmt: skip


class Transformer:
    """The model on one device, with the paged KV cache it writes to."""

    def __init__(
        self, shape: Shape, device: str = "cpu", dtype: torch.dtype | None = None, backend: str = "sdpa",
        kv_tokens: int = 4096, max_context: int = 8192, seed: int = 0,
    ) -> None:  # fmt: skip
        import torch

        self.shape, self.device, self.backend = shape, device, backend
        self.dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
        generator = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        self.weights = {name: self._random(size, generator) for name, size in shape.weight_sizes().items()}
        self.layers = [
            {name: self.weights[f"{i}.{name}"] for name in shape.layer_sizes(i)} for i in range(shape.layers)
        ]
        slots = kv_tokens // torch_ops.PAGE * torch_ops.PAGE
        sizes = [(slots, shape.kv_heads, width) for width in (shape.qk_dim, shape.v_dim)]
        self.caches = [
            [torch.zeros(size, dtype=self.dtype, device=device) for size in sizes] for _ in range(shape.layers)
        ]
        self.rope = torch_ops.rope_table(max_context, shape.rope_dim or shape.head_dim, shape.theta, device)

    def _random(self, size: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        import torch

        weight = torch.empty(size, dtype=self.dtype, device=self.device)
        if weight.is_meta:
            return weight  # without content there is nothing to draw, and torch would load its compiler for it
        if len(size) == 1:
            return weight.fill_(1.0)
        return weight.normal_(0.0, size[-1] ** -0.5, generator=generator)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the rows asked for."""
        x, stream = self.weights["embed"][batch.tokens], None
        for layer, caches in zip(self.layers, self.caches, strict=True):
            x, stream = torch_ops.add_rms_norm(x, stream, layer["norm1"])
            x = self._latent(x, batch, layer, caches) if self.shape.kv_rank else self._grouped(x, batch, layer, caches)
            x, stream = torch_ops.add_rms_norm(x, stream, layer["norm2"])
            x = self._mlp(x, layer)
        x, _ = torch_ops.add_rms_norm(x, stream, self.weights["norm"])
        return x[batch.rows] @ self.weights["head"].t()

    def _grouped(self, x: Tensor, batch: Batch, layer: dict[str, Tensor], caches: list[Tensor]) -> Tensor:
        qkv = x @ layer["qkv"].t()
        norms = (layer["q_norm"], layer["k_norm"]) if self.shape.qk_norm else None
        q = torch_ops.rope_write(qkv, batch, self.rope, caches[0], caches[1], norms)
        scale = self.shape.head_dim**-0.5
        y = torch_ops.attend(q, caches[0], caches[1], batch, scale, self.shape.window, self.backend)
        return y.reshape(y.shape[0], y.shape[1] * y.shape[2]) @ layer["o"].t()

    def _latent(self, x: Tensor, batch: Batch, layer: dict[str, Tensor], caches: list[Tensor]) -> Tensor:
        import torch

        s, n = self.shape, x.shape[0]
        q = (x @ layer["q"].t()).view(n, s.heads, s.head_dim + s.rope_dim)
        plain, turning = q.split([s.head_dim, s.rope_dim], -1)
        latent, key = (x @ layer["kv"].t()).split([s.kv_rank, s.rope_dim], -1)
        latent, _ = torch_ops.add_rms_norm(latent.contiguous(), None, layer["kv_norm"])
        table = self.rope[batch.positions]
        key = torch_ops.rotate(key[:, None], table)
        caches[0][batch.slots] = torch.cat([latent[:, None], key], -1)
        caches[1][batch.slots] = latent[:, None]
        absorbed = torch.bmm(plain.transpose(0, 1), layer["absorb"]).transpose(0, 1)
        q = torch.cat([absorbed, torch_ops.rotate(turning, table)], -1)
        scale = (s.head_dim + s.rope_dim) ** -0.5
        y = torch_ops.attend(q, caches[0], caches[1], batch, scale, s.window, self.backend)
        y = torch.bmm(y.transpose(0, 1), layer["expand"]).transpose(0, 1)
        return y.reshape(n, s.heads * s.value_dim) @ layer["o"].t()

    def _mlp(self, x: Tensor, layer: dict[str, Tensor]) -> Tensor:
        y = torch_ops.silu_mul(x @ layer["gate_up"].t()) @ layer["down"].t() if "gate_up" in layer else None
        if "router" not in layer:
            assert y is not None
            return y
        chosen = torch_ops.experts(x, layer["router"], layer["experts_up"], layer["experts_down"], self.shape.top_k)
        return chosen if y is None else y + chosen


def plain_logits(model: Transformer, tokens: list[int]) -> Tensor:
    """Logits after every token of one sequence, from one pass over all of it and no cache: the slow, plain twin."""
    import torch

    n = len(tokens)
    pages = -(-n // torch_ops.PAGE)
    fresh = Transformer(
        dataclasses.replace(model.shape, layers=0), model.device, model.dtype, kv_tokens=0, max_context=len(model.rope)
    )
    fresh.shape, fresh.weights, fresh.layers, fresh.rope = model.shape, model.weights, model.layers, model.rope
    fresh.caches = [
        [torch.zeros(pages * torch_ops.PAGE, *cache.shape[1:], dtype=model.dtype) for cache in pair]
        for pair in model.caches
    ]
    every = torch.arange(n)
    batch = Batch(torch.tensor(tokens), every, every, every, chunks=[(n, 0)], packed=every)
    return fresh.forward(batch)


# ----------------------------------------------------------------------------------- the twelve models


def _dense(d: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": 128, "intermediate_size": ffn, "vocab_size": vocab, **more,
    }  # fmt: skip


_QWEN3: dict[str, Any] = {"model_type": "qwen3", "rope_theta": 1e6}
_QWEN3_MOE = _QWEN3 | {"model_type": "qwen3_moe"}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3-8b": _dense(4096, 32, 32, 8, 14336, 128256, rope_theta=5e5, model_type="llama"),
    "llama-3-70b": _dense(8192, 80, 64, 8, 28672, 128256, rope_theta=5e5, model_type="llama"),
    "qwen3-0.6b": _dense(1024, 28, 16, 8, 3072, 151936, **_QWEN3),
    "qwen3-1.7b": _dense(2048, 28, 16, 8, 6144, 151936, **_QWEN3),
    "qwen3-4b": _dense(2560, 36, 32, 8, 9728, 151936, **_QWEN3),
    "qwen3-8b": _dense(4096, 36, 32, 8, 12288, 151936, **_QWEN3),
    "qwen3-14b": _dense(5120, 40, 40, 8, 17408, 151936, **_QWEN3),
    "qwen3-32b": _dense(5120, 64, 64, 8, 25600, 151936, **_QWEN3),
    "mistral-7b": _dense(4096, 32, 32, 8, 14336, 32000, sliding_window=4096, model_type="mistral"),
    "mixtral-8x7b": _dense(
        4096, 32, 32, 8, 14336, 32000,
        num_local_experts=8, num_experts_per_tok=2, rope_theta=1e6, model_type="mixtral",
    ),
    "qwen3-30b-a3b": _dense(
        2048, 48, 32, 4, 6144, 151936,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, **_QWEN3_MOE,
    ),
    "deepseek-v2-lite": _dense(
        2048, 27, 16, 16, 10944, 102400,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64,
        num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1,
        model_type="deepseek_v2",
    ),
}  # fmt: skip


def shape_of(name: str) -> Shape:
    """One of the twelve configurations by name.

    >>> shape_of("qwen3-32b").heads
    64
    """
    if name not in CONFIGS:
        raise ValueError(f"no configuration '{name}'; there are {', '.join(CONFIGS)}")
    return Shape.from_hf(CONFIGS[name], name)
