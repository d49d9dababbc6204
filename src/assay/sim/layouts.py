"""How a model lies on devices: its cut, what each rank holds, and how much KV cache is left.

>>> cut = read_layout("h100:llama-3-70b:tp4")
>>> cut.ranks, round(Memory(cut).weights / 1e9, 1)
(4, 35.3)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from assay.record.errors import BadInput
from assay.sim.hardware import Device, device
from assay.sim.models import Gemm, Model, item_bytes, model

ACTIVATION = 2.0  # bytes of one activation
WIDEST = 64  # the largest tp that an error message proposes


@dataclass(frozen=True)
class Layout:
    """A model on devices: how it is cut, and in which dtype its weights lie.

    >>> read_layout("h200:deepseek-v3:tp2:ep8:fp8").ranks
    8
    """

    model: Model
    device: Device
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}{getattr(self, name)}: should be at least 1")
        if self.model.heads % self.tp:
            raise BadInput(f"{self.model.name} has {self.model.heads} heads: tp{self.tp} does not divide them")
        if self.pp > self.model.layers:
            raise BadInput(f"{self.model.name} has {self.model.layers} layers: too few for pp{self.pp}")
        experts = self.model.experts.count if self.model.experts else 1
        if self.ep > 1 and experts % self.ep:
            raise BadInput(f"{self.model.name} has {experts} experts: ep{self.ep} does not divide them")
        if self.ep % self.tp and self.tp % self.ep:
            raise BadInput(f"ep{self.ep} with tp{self.tp}: one should divide the other")
        item_bytes(self.dtype)

    @property
    def copies(self) -> int:
        """How often attention is replicated, each copy with its share of the batch."""
        return max(1, self.ep // self.tp)

    @property
    def shards(self) -> int:
        """Into how many parts the experts are cut."""
        return max(self.tp, self.ep)

    @property
    def ranks(self) -> int:
        """Devices."""
        return self.shards * self.pp

    @property
    def usd_per_hour(self) -> float:
        """What its devices cost."""
        return self.ranks * self.device.usd_per_hour

    @property
    def name(self) -> str:
        """The layout as one would write it."""
        cuts = [f"{name}{getattr(self, name)}" for name in ("tp", "pp", "ep") if getattr(self, name) > 1]
        dtype = [] if self.dtype == "bf16" else [self.dtype]
        return ":".join([self.device.name, self.model.name, *cuts, *dtype])


def read_layout(text: str) -> Layout:
    """`device:model[:tpN][:ppN][:epN][:dtype]`, in any case; the model may be the path of a config.json.

    >>> read_layout("H200:Qwen3-32B:TP2").name
    'h200:qwen3-32b:tp2'

    Raises:
        BadInput: a part that is not understood.
    """
    on, _, rest = text.partition(":")
    what, *options = rest.split(":")
    if not on or not what:
        raise BadInput(f"layout {text!r} should be device:model, such as h200:qwen3-32b:tp2")
    found: dict[str, Any] = {}
    for option in options:
        cut = re.fullmatch(r"(tp|pp|ep)(\d{1,4})", option.lower())
        key, value = (cut[1], int(cut[2])) if cut else ("dtype", option.lower())
        if not cut and not re.fullmatch(r"(bf|fp|int)\d+", option.lower()):
            raise BadInput(f"layout {text!r}: {option!r} should be tpN, ppN, epN or a dtype such as fp8")
        if key in found:
            raise BadInput(f"layout {text!r}: {key} is given twice")
        found[key] = value
    return Layout(model(what), device(on), **found)


def layer_kv(shape: Model, tp: int) -> float:
    """Elements one rank keeps per token and attention layer: heads are cut, but not below one; latents are copied.

    >>> layer_kv(model("llama-3-8b"), 4), layer_kv(model("llama-3-8b"), 16), layer_kv(model("deepseek-v3"), 8)
    (512.0, 256.0, 576.0)
    """
    if shape.latent is not None:
        return float(shape.latent.kv_rank + shape.latent.rope)
    return 2.0 * max(1.0, shape.kv_heads / tp) * shape.head_dim


@dataclass(frozen=True)
class Memory:
    """Where a rank's memory goes, and how much KV is left."""

    cut: Layout
    kv_dtype: str = "bf16"
    util: float = 0.9
    block: int = 16
    context: int = 4096
    batch_tokens: int = 8192
    max_seqs: int = 256

    @property
    def weights(self) -> float:
        """Bytes of weights on a rank: what is not cut is on all of them."""
        cut, shape = self.cut, self.cut.model
        own = shape.vocab * shape.hidden * (1 if shape.tied else 2) / cut.tp
        own += shape.attention_layers * self._held(shape.attention_gemms())
        own += shape.linear_layers * self._held(shape.linear_gemms())
        own += shape.dense_layers * self._held(shape.mlp_gemms(shape.ffn))
        if shape.experts is not None:
            each = sum(gemm.params for gemm in shape.mlp_gemms(shape.experts.ffn))
            own += shape.moe_layers * self._held(shape.mlp_gemms(shape.experts.shared_ffn))
            own += shape.moe_layers * (shape.experts.count * each / cut.shards + shape.hidden * shape.experts.count)
        return own / cut.pp * item_bytes(cut.dtype)

    def _held(self, gemms: list[Gemm]) -> float:
        return sum(gemm.params / (1 if gemm.cut == "none" else self.cut.tp) for gemm in gemms)

    @property
    def activations(self) -> float:
        """Bytes reserved for the largest iteration: the residual, what is widest in a layer, the logits."""
        cut, shape = self.cut, self.cut.model
        wide = 3.0 * shape.ffn / cut.tp if shape.dense_layers else 0.0
        if shape.experts is not None:
            wide = max(wide, shape.experts.top_k * (3.0 * shape.experts.ffn + shape.hidden) / cut.shards * cut.copies)
        own = self.batch_tokens / cut.copies
        return own * (4 * shape.hidden + wide) * ACTIVATION + self.max_seqs * shape.vocab / cut.tp * 4.0

    @property
    def token_bytes(self) -> float:
        """Bytes of one token's KV on a rank, its share of the sequence's constant state included."""
        cut, shape = self.cut, self.cut.model
        kept = layer_kv(shape, cut.tp) * item_bytes(self.kv_dtype)
        window = shape.window_layers * kept * min(self.context, shape.window) / self.context
        recurrent = shape.recurrent_bytes(self.kv_dtype) / cut.tp / self.context
        return (shape.full_layers * kept + window + recurrent) / cut.pp

    @property
    def tokens(self) -> int:
        """Tokens of KV the instance has room for, in whole blocks; negative where not even the weights fit."""
        room = self.cut.device.mem_bytes * self.util - self.weights - self.activations
        return self.cut.copies * int(room / self.token_bytes // self.block) * self.block

    def tokens_or_raise(self) -> int:
        """`tokens`, or one line that says what would fit."""
        if self.tokens >= self.block:
            return self.tokens
        cut = self.cut
        has = f"one {cut.device.name} has" if cut.ranks == 1 else f"{cut.ranks} {cut.device.name} have"
        needs = f"{cut.model.name} in {cut.dtype} needs {_gb(cut.model.param_bytes(cut.dtype))} GB"
        enough = self._enough()
        advice = f"use tp{enough}" if enough else f"no tp up to {WIDEST} is enough; try pp, ep or a smaller dtype"
        raise BadInput(f"{needs}; {has} {_gb(cut.ranks * cut.device.mem_bytes)}: {advice}")

    def _enough(self) -> int:
        """The smallest tp with room for a block, 0 where there is none."""
        tp = self.cut.tp
        while (tp := 2 * tp) <= WIDEST:
            try:
                wider = replace(self, cut=replace(self.cut, tp=tp))
            except BadInput:  # heads or experts that this tp does not divide
                continue
            if wider.tokens >= self.block:
                return tp
        return 0


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.0f}"
