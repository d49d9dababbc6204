"""Reading a Hugging Face `config.json` into the shape of a model.

Families differ in which fields they have, not in what a field means, so one reader does for all of them. A file is
never executed, and what is wrong with it is one line that names the file and the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, unreadable
from assay.sim.models import Experts, Latent, Linear, Model

DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text", "phi3")
MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "llama4", "llama4_text", "glm4_moe")
LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
HYBRID = ("qwen3_next", "nemotron_h")
KNOWN = DENSE + MOE + LATENT + HYBRID
MIXERS = ("full_attention", "sliding_attention", "linear_attention")


class _Config:
    """The fields of a config.json, with errors that name the field and the file."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        # Models that also see pictures keep their language part one level down.
        nested = fields.get("text_config")
        self.fields = {**fields, **nested} if isinstance(nested, Mapping) else fields
        self.where = where

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = 10**8) -> int:
        """The first of these fields that is there, as a whole number."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise BadInput(f"{self.where}: {name} is {value!r}, should be a whole number from {least} to {most}")
            return value
        if default is None:
            raise BadInput(f"{self.where}: no field {names[0]!r}")
        return default

    def number(self, name: str) -> float:
        """A field of our own records, NaN where it is not there."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name)
        return default if value is None else bool(value)


def load(path: Path) -> Mapping[str, Any]:
    """The fields of this file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a config.json") from error
    if not isinstance(fields, dict):
        raise BadInput(f"{path}: should be an object of fields, as a config.json is")
    return fields


def read(fields: Mapping[str, Any], name: str, where: str) -> Model:
    """The shape that these fields describe; `where` is the file that messages name.

    >>> shape = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    ...              intermediate_size=128, vocab_size=1000)
    >>> read(shape, "tiny", "config.json").head_dim
    16
    """
    config = _Config(fields, where)
    family = config.fields.get("model_type")
    if family not in KNOWN:
        raise BadInput(f"{config.where}: model_type {family!r} is not known; known are {', '.join(KNOWN)}")
    layers, heads = config.count("num_hidden_layers", most=10_000), config.count("num_attention_heads")
    hidden, keys = config.count("hidden_size"), config.count("num_key_value_heads", default=heads)
    if heads % keys:
        raise BadInput(
            f"{config.where}: num_attention_heads {heads} is no multiple of num_key_value_heads {keys}; heads share "
            "those of keys in equal groups"
        )
    kinds = _kinds(config, family, layers)
    experts = _experts(config, family)
    feeding = kinds.count("mlp") if family == "nemotron_h" else layers
    moe = _moe_layers(config, layers) if experts else 0
    return Model(
        name=name,
        hidden=hidden,
        vocab=config.count("vocab_size"),
        tied=config.flag("tie_word_embeddings", default=family.startswith("gemma")),
        full_layers=kinds.count("full_attention"),
        window_layers=kinds.count("sliding_attention"),
        linear_layers=kinds.count("linear_attention"),
        dense_layers=feeding - moe,
        moe_layers=moe,
        heads=heads,
        kv_heads=keys,
        head_dim=config.count("head_dim", default=max(1, hidden // heads)),
        ffn=config.count("intermediate_size_mlp", "intermediate_size"),
        window=config.count("sliding_window", "attention_chunk_size") if "sliding_attention" in kinds else 0,
        gated_mlp=family != "nemotron_h",
        gated_attention=family == "qwen3_next",
        latent=_latent(config) if family in LATENT else None,
        linear=_linear(config, family),
        experts=experts,
        published=config.number("published"),
        published_active=config.number("published_active"),
    )


def _kinds(config: _Config, family: str, layers: int) -> list[str]:
    """The kind of every layer's mixer, as newer files list them under `layer_types`."""
    listed = config.fields.get("layer_types")
    if isinstance(listed, list):
        listed = ["sliding_attention" if kind == "chunked_attention" else kind for kind in listed]
        allowed = MIXERS if family == "qwen3_next" else MIXERS[:2]
        if len(listed) != layers or any(kind not in allowed for kind in listed):
            raise BadInput(f"{config.where}: layer_types should be {layers} of {', '.join(allowed)}")
        return listed
    if family == "nemotron_h":
        pattern = str(config.fields.get("hybrid_override_pattern", ""))
        if len(pattern) != layers or set(pattern) - set("M-*"):
            raise BadInput(f"{config.where}: hybrid_override_pattern should be {layers} letters of M, - and *")
        return [{"M": "linear_attention", "-": "mlp", "*": "full_attention"}[letter] for letter in pattern]
    if family == "qwen3_next":
        every, others = config.count("full_attention_interval", default=4), "linear_attention"
    elif family == "gemma2":
        every, others = 2, "sliding_attention"
    elif family.startswith("gemma3"):
        every, others = config.count("sliding_window_pattern", default=6), "sliding_attention"
    elif family in ("mistral", "phi3", "gpt_oss") and config.fields.get("sliding_window"):
        every, others = (2 if family == "gpt_oss" else layers + 1), "sliding_attention"
    elif family.startswith("llama4"):  # a token sees its chunk, at most as many as a window would show it
        every, others = config.count("no_rope_layer_interval", default=4), "sliding_attention"
    elif family.startswith("qwen") and config.flag("use_sliding_window"):
        full = min(layers, config.count("max_window_layers", default=layers, least=0))
        return ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    else:
        every, others = 1, ""
    return ["full_attention" if (layer + 1) % every == 0 else others for layer in range(layers)]


def _latent(config: _Config) -> Latent:
    return Latent(
        q_rank=config.count("q_lora_rank", default=0),
        kv_rank=config.count("kv_lora_rank"),
        nope=config.count("qk_nope_head_dim"),
        rope=config.count("qk_rope_head_dim"),
        v=config.count("v_head_dim"),
    )


def _linear(config: _Config, family: str) -> Linear | None:
    if family == "qwen3_next":  # Gated DeltaNet: queries, keys, values and gates, two scalars per value head
        key = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
        heads = config.count("linear_num_value_heads")
        value = heads * config.count("linear_value_head_dim")
        return Linear(
            projected=2 * key + 2 * value + 2 * heads,
            inner=value,
            channels=2 * key + value,
            kernel=config.count("linear_conv_kernel_dim"),
            state=value * config.count("linear_key_head_dim"),
        )
    if family == "nemotron_h":  # Mamba2: input and gate, B and C per group, a step per head
        heads, state = config.count("mamba_num_heads"), config.count("ssm_state_size")
        inner, groups = heads * config.count("mamba_head_dim"), config.count("n_groups")
        return Linear(
            projected=2 * inner + 2 * groups * state + heads,
            inner=inner,
            channels=inner + 2 * groups * state,
            kernel=config.count("conv_kernel"),
            state=inner * state,
        )
    return None


def _experts(config: _Config, family: str) -> Experts | None:
    if family not in (*MOE, *LATENT, "qwen3_next"):
        return None
    count = config.count("num_experts", "num_local_experts", "n_routed_experts")
    top_k = config.count("num_experts_per_tok", "experts_per_token")
    ffn = config.count("moe_intermediate_size", "intermediate_size")
    if top_k > count:
        raise BadInput(f"{config.where}: num_experts_per_tok is {top_k}, more than the {count} experts")
    shared = config.count("shared_expert_intermediate_size", default=ffn if family.startswith("llama4") else 0, least=0)
    return Experts(count, top_k, ffn, shared or ffn * config.count("n_shared_experts", default=0, least=0))


def _moe_layers(config: _Config, layers: int) -> int:
    """How many layers have experts: those past the first dense ones, every `decoder_sparse_step`-th."""
    first = config.count("first_k_dense_replace", default=0, least=0)
    step = config.count("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", default=1)
    listed = config.fields.get("mlp_only_layers")
    dense = listed if isinstance(listed, list) else []
    return sum(layer >= first and (layer + 1) % step == 0 and layer not in dense for layer in range(layers))
