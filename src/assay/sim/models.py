"""The shape of a language model: what its `config.json` says about bytes and FLOPs.

    >>> llama = model("Llama-3-8B")
    >>> round(llama.params / 1e9, 2), llama.kv_bytes()
    (8.03, 131072.0)
    >>> model("DeepSeek-V3").kv_bytes() == 61 * 576 * 2  # a latent and a rope key per layer, not heads
    True

A layer is a mixer (full attention, attention with a sliding window, or a linear recurrence such as Mamba2 or Gated
DeltaNet) and a feed-forward part (dense or experts); only how many there are of each kind matters here, not their
order. Counted are matrices; norms and biases are thousandths.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from assay.record.errors import BadInput
from assay.sim.hardware import nearest

RECORDS = Path(__file__).with_name("models.toml")
ITEM_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
STATE_BYTES = 4.0  # recurrent states accumulate over the whole sequence: fp32 (assumed)


class Gemm(NamedTuple):
    """A weight matrix, and the side that tensor parallelism cuts (`none`: every rank holds it whole)."""

    inputs: int
    outputs: int
    cut: Literal["inputs", "outputs", "none"]

    @property
    def params(self) -> int:
        """Its parameters."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: keys and values are kept as one low-rank vector per token."""

    q_rank: int  # 0: queries are projected directly
    kv_rank: int
    nope: int
    rope: int
    v: int


@dataclass(frozen=True)
class Linear:
    """A recurrent mixer: projections in and out, a short convolution, a state that does not grow."""

    projected: int  # outputs of the input projection
    inner: int  # inputs of the output projection
    channels: int  # of the convolution
    kernel: int
    state: int  # elements per layer and sequence


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: how many, how many a token uses, how wide each is, how wide what all tokens share."""

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0


@dataclass(frozen=True)
class Model:
    """A decoder-only language model, by the numbers that its cost depends on."""

    name: str
    hidden: int
    vocab: int
    tied: bool  # one matrix for embedding and head
    full_layers: int
    window_layers: int
    linear_layers: int
    dense_layers: int
    moe_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    window: int = 0
    gated_mlp: bool = True
    gated_attention: bool = False
    latent: Latent | None = None
    linear: Linear | None = None
    experts: Experts | None = None
    published: float = math.nan  # parameters, as its authors state them
    published_active: float = math.nan

    @classmethod
    def from_hf(cls, config: Mapping[str, Any] | str | Path, name: str = "") -> Model:
        """Read a Hugging Face `config.json`: its fields, its path, or the folder it lies in.

        >>> shape = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        ...              intermediate_size=128, vocab_size=1000)
        >>> Model.from_hf(shape, name="tiny").params
        209920

        Raises:
            BadInput: not readable, an unknown architecture, or a field that is missing or makes no sense.
        """
        from assay.sim import hf_config  # which builds a Model

        if isinstance(config, Mapping):
            return hf_config.read(config, name, where=name or "config")
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        return hf_config.read(hf_config.load(path), name or path.resolve().parent.name, where=str(path))

    @property
    def layers(self) -> int:
        """Layers; where mixers and feed-forward parts are layers of their own, the more numerous of them."""
        return max(self.attention_layers + self.linear_layers, self.dense_layers + self.moe_layers)

    @property
    def attention_layers(self) -> int:
        """Layers that attend, with a window or without."""
        return self.full_layers + self.window_layers

    def attention_gemms(self) -> list[Gemm]:
        """The projections of one attention layer."""
        h, latent = self.hidden, self.latent
        if latent is None:
            queries = self.heads * (2 if self.gated_attention else 1)
            width = (queries + 2 * self.kv_heads) * self.head_dim
            return [Gemm(h, width, "outputs"), Gemm(self.heads * self.head_dim, h, "inputs")]
        queries = self.heads * (latent.nope + latent.rope)
        q = (
            [Gemm(h, latent.q_rank, "none"), Gemm(latent.q_rank, queries, "outputs")]
            if latent.q_rank
            else [Gemm(h, queries, "outputs")]
        )
        return [
            *q,
            Gemm(h, latent.kv_rank + latent.rope, "none"),
            Gemm(latent.kv_rank, self.heads * (latent.nope + latent.v), "outputs"),
            Gemm(self.heads * latent.v, h, "inputs"),
        ]

    def linear_gemms(self) -> list[Gemm]:
        """The projections of one recurrent layer."""
        if self.linear is None:
            return []
        return [Gemm(self.hidden, self.linear.projected, "outputs"), Gemm(self.linear.inner, self.hidden, "inputs")]

    def mlp_gemms(self, ffn: int) -> list[Gemm]:
        """The matrices of a feed-forward part of this width."""
        first = 2 * ffn if self.gated_mlp else ffn
        return [Gemm(self.hidden, first, "outputs"), Gemm(ffn, self.hidden, "inputs")]

    def _params(self, experts: int) -> int:
        """Parameters when `experts` of each mixture count; the embedding counts once where it is the head too."""
        total = self.vocab * self.hidden * (1 if self.tied else 2)
        total += self.attention_layers * _sum(self.attention_gemms())
        if self.linear is not None:
            convolution = self.linear.channels * self.linear.kernel
            total += self.linear_layers * (_sum(self.linear_gemms()) + convolution)
        total += self.dense_layers * _sum(self.mlp_gemms(self.ffn))
        if self.experts is not None:
            each, shared = _sum(self.mlp_gemms(self.experts.ffn)), _sum(self.mlp_gemms(self.experts.shared_ffn))
            total += self.moe_layers * (experts * each + shared + self.hidden * self.experts.count)
        return total

    @property
    def params(self) -> int:
        """All parameters.

        >>> round(model("deepseek-v3").params / 1e9)
        671
        """
        return self._params(self.experts.count if self.experts else 0)

    @property
    def active_params(self) -> int:
        """The parameters one token uses.

        >>> round(model("mixtral-8x22b").active_params / 1e9)
        39
        """
        return self._params(self.experts.top_k if self.experts else 0)

    def param_bytes(self, dtype: str = "bf16") -> float:
        """Bytes of the weights.

        >>> round(model("llama-3-70b").param_bytes("bf16") / 1e9)
        141
        """
        return self.params * item_bytes(dtype)

    def active_param_bytes(self, dtype: str = "bf16") -> float:
        """Bytes of the weights one token uses."""
        return self.active_params * item_bytes(dtype)

    def _layer_kv(self) -> int:
        """Elements one attention layer keeps per token."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes(self, dtype: str = "bf16") -> float:
        """KV cache that each token adds for good: that of the layers without a window."""
        return self.full_layers * self._layer_kv() * item_bytes(dtype)

    def window_kv_bytes(self, dtype: str = "bf16") -> float:
        """KV cache of one token in the layers with a window, kept for `window` tokens."""
        return self.window_layers * self._layer_kv() * item_bytes(dtype)

    def recurrent_bytes(self, dtype: str = "bf16") -> float:
        """The states of a sequence's recurrent layers (fp32) and their convolutions' last inputs."""
        if self.linear is None:
            return 0.0
        tail = self.linear.channels * (self.linear.kernel - 1) * item_bytes(dtype)
        return self.linear_layers * (self.linear.state * STATE_BYTES + tail)

    def state_bytes(self, context: float = math.inf, dtype: str = "bf16") -> float:
        """What a sequence keeps beside `kv_bytes` per token: window layers up to their window, recurrent states.

        >>> model("llama-3-8b").state_bytes()
        0.0
        >>> gemma = model("gemma-3-27b")
        >>> gemma.state_bytes(100) < gemma.state_bytes(2000) == gemma.state_bytes()
        True
        """
        kept = min(context, self.window) if self.window_layers else 0
        return self.window_kv_bytes(dtype) * kept + self.recurrent_bytes(dtype)

    def pair_flops(self) -> float:
        """FLOPs of one query-key pair in one attention layer, all heads, scores and values."""
        if self.latent is not None:
            return 2.0 * self.heads * (self.latent.nope + self.latent.rope + self.latent.v)
        return 4.0 * self.heads * self.head_dim

    def read_flops(self) -> float:
        """FLOPs a decoding token spends on one cached token in one layer; latents are used as they lie (absorbed)."""
        if self.latent is not None:
            return 2.0 * self.heads * (2 * self.latent.kv_rank + self.latent.rope)
        return self.pair_flops()

    def recurrent_flops(self) -> float:
        """FLOPs of one token in one recurrent layer beside its projections: decay, update and read of the state."""
        return 8.0 * self.linear.state if self.linear else 0.0

    def flops(self, n: float, ctx: float = 0.0) -> float:
        """FLOPs of `n` tokens that see `ctx` tokens each (on average), logits for all of them.

        >>> llama = model("llama-3-8b")
        >>> round(llama.flops(1) / llama.params, 2)  # two per parameter, but the embedding is a lookup
        1.87
        """
        matrices = self.active_params - (0 if self.tied else self.vocab * self.hidden)
        window = min(ctx, self.window)
        attention = self.pair_flops() * (self.full_layers * ctx + self.window_layers * window)
        return n * (2.0 * matrices + attention + self.linear_layers * self.recurrent_flops())


def model(name: str) -> Model:
    """The shape of this name in any case, with or without its organisation; or the path of a `config.json`.

    >>> model("Qwen/Qwen3-32B").name
    'qwen3-32b'

    Raises:
        BadInput: no such model; the message names the nearest.
    """
    path = Path(name)
    if path.suffix == ".json" or (path / "config.json").is_file():
        return Model.from_hf(path)
    found = _models().get(name.strip().lower().rsplit("/", 1)[-1])
    if found is None:
        raise BadInput(f"unknown model {name!r}{nearest(name.rsplit('/', 1)[-1], _models())} (or give a config.json)")
    return found


def models() -> list[Model]:
    """All shapes of `models.toml`, in the file's order.

    >>> models()[0].name
    'llama-3-8b'
    """
    return list(_models().values())


def item_bytes(dtype: str) -> float:
    """Bytes of one value.

    >>> item_bytes("int4")
    0.5
    """
    if dtype not in ITEM_BYTES:
        raise BadInput(f"unknown dtype {dtype!r}; there are {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


@cache
def _models() -> dict[str, Model]:
    records = tomllib.loads(RECORDS.read_text(encoding="utf-8"))
    return {name: Model.from_hf(record, name) for name, record in records.items()}


def _sum(gemms: list[Gemm]) -> int:
    return sum(gemm.params for gemm in gemms)
