from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim import models
from assay.sim.models import Model, model

NEEDED = """llama-3-8b llama-3.1-8b llama-3.2-1b llama-3.2-3b llama-3-70b llama-3.1-70b llama-3.1-405b llama-2-7b
llama-2-70b qwen1.5-1.8b qwen2.5-72b qwen3-0.6b qwen3-8b qwen3-32b qwen3-30b-a3b mixtral-8x22b qwen2-57b-a14b
deepseek-v3 deepseek-v2-lite gemma-3-27b qwen3-next-80b-a3b nemotron-h-8b
kimi-k2 llama-4-scout llama-4-maverick glm-4.5 phi-3-mini""".split()
every_model = pytest.mark.parametrize("shape", models.models(), ids=lambda shape: shape.name)
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def test_the_models_that_papers_use_are_there() -> None:
    assert [shape.name for shape in models.models()] == NEEDED


@every_model
def test_parameters_are_within_two_percent_of_the_published_size(shape: Model) -> None:
    assert shape.params == pytest.approx(shape.published, rel=0.02)


@every_model
def test_active_parameters_are_about_those_published(shape: Model) -> None:
    if shape.experts is None:
        assert shape.active_params == shape.params
    else:
        assert shape.active_params < 0.3 * shape.params
    if not math.isnan(shape.published_active):  # authors differ in whether the embedding counts
        assert shape.active_params == pytest.approx(shape.published_active, rel=0.12)


def test_kv_bytes_are_those_everyone_knows() -> None:
    assert model("llama-3-8b").kv_bytes() == 131_072
    assert model("llama-3-70b").kv_bytes() == 2 * 80 * 8 * 128 * 2
    assert model("llama-2-7b").kv_bytes("fp8") == 2 * 32 * 32 * 128
    assert model("deepseek-v3").kv_bytes() == 61 * 576 * 2
    assert model("qwen3-next-80b-a3b").kv_bytes() == 12 * 2 * 2 * 256 * 2  # a quarter of the layers attends


def test_windows_and_recurrences_cost_a_constant_per_sequence() -> None:
    gemma = model("gemma-3-27b")
    assert (gemma.full_layers, gemma.window_layers) == (10, 52)
    per_token = 52 * 2 * 16 * 128 * 2
    assert gemma.state_bytes(10) == 10 * per_token
    assert gemma.state_bytes(1024) == gemma.state_bytes(10**6) == gemma.state_bytes() == 1024 * per_token
    mamba = model("nemotron-h-8b")
    assert (mamba.full_layers, mamba.linear_layers, mamba.dense_layers) == (4, 24, 24)
    assert mamba.state_bytes(1) == mamba.state_bytes(10**6) > 24 * 128 * 64 * 128 * 4
    assert model("llama-3-8b").state_bytes() == 0.0


@given(st.sampled_from(models.models()), st.integers(1, 10_000), st.integers(0, 100_000))
def test_flops_grow_with_tokens_and_context(shape: Model, n: int, ctx: int) -> None:
    assert shape.flops(2 * n, ctx) == pytest.approx(2 * shape.flops(n, ctx))
    assert shape.flops(n, ctx + 1) > shape.flops(n, ctx)  # every model here has at least one full-attention layer
    assert shape.flops(n, 0) <= 2.2 * n * shape.active_params


def test_flops_of_a_dense_model_are_two_per_parameter_plus_attention() -> None:
    shape = model("llama-3-8b")
    matrices = shape.params - 128256 * 4096
    assert shape.flops(3, 1000) == 3 * (2 * matrices + 1000 * 4 * 32 * 32 * 128)


@pytest.mark.parametrize("name", ["LLAMA-3-8B", "meta-llama/Llama-3-8B", " llama-3-8b "])
def test_names_in_any_case_and_with_their_organisation(name: str) -> None:
    assert model(name).name == "llama-3-8b"


def test_an_unknown_model_is_one_line_with_the_nearest_names() -> None:
    with pytest.raises(BadInput, match=r"^unknown model 'llama-3-9b': did you mean llama-3-8b"):
        model("llama-3-9b")


def test_an_unknown_dtype_names_the_known() -> None:
    with pytest.raises(BadInput, match="unknown dtype 'fp7'; there are fp32"):
        model("llama-3-8b").param_bytes("fp7")


def test_a_config_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    shape = Model.from_hf(folder)
    assert shape == model(str(folder / "config.json")) == model(str(folder))
    assert shape.name == "my-model"
    attention, mlp = 64 * (4 + 2 * 2) * 16 + 64 * 64, 3 * 64 * 128
    assert shape.params == 2 * 1000 * 64 + 2 * (attention + mlp)


def test_the_language_part_of_a_model_that_sees() -> None:
    assert Model.from_hf({"model_type": "gemma3", "text_config": {**TINY, "model_type": "llama"}}).hidden == 64


@pytest.mark.parametrize(
    ("extra", "full", "window"),
    [
        ({"model_type": "gemma2", "num_hidden_layers": 42, "sliding_window": 4096}, 21, 21),
        ({"model_type": "gemma3_text", "num_hidden_layers": 62, "sliding_window": 1024}, 10, 52),
        ({"model_type": "mistral", "num_hidden_layers": 32, "sliding_window": 4096}, 0, 32),
        ({"model_type": "mistral", "num_hidden_layers": 32, "sliding_window": None}, 32, 0),
        ({"model_type": "qwen2", "sliding_window": 32768, "use_sliding_window": False}, 2, 0),
        ({"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 1, 1),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, 1, 1),
    ],
)
def test_which_layers_have_a_window(extra: dict[str, Any], full: int, window: int) -> None:
    shape = Model.from_hf({**TINY, **extra})
    assert (shape.full_layers, shape.window_layers) == (full, window)


def test_dense_layers_between_experts() -> None:
    moe = {**TINY, "model_type": "qwen3_moe", "num_hidden_layers": 8, "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 32}  # fmt: skip
    assert Model.from_hf(moe).moe_layers == 8
    assert Model.from_hf({**moe, "decoder_sparse_step": 2}).moe_layers == 4
    assert Model.from_hf({**moe, "mlp_only_layers": [0, 7]}).dense_layers == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ({"model_type": "t5"}, "model_type 't5' is not known; known are llama"),
        ({"model_type": None}, "model_type None is not known"),
        ({"model_type": ["llama"]}, "is not known"),
        ({"hidden_size": None}, "no field 'hidden_size'"),
        ({"hidden_size": "64"}, "hidden_size is '64', should be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, should be a whole number from 1 to 10000"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"layer_types": ["full_attention"]}, "layer_types should be 2 of full_attention, sliding_attention"),
        ({"layer_types": [["full_attention"], {}]}, "layer_types should be 2 of full_attention, sliding_attention"),
        ({"model_type": "deepseek_v3"}, "no field"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern should be 2 letters"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "more than the 2 experts"),
    ],
)
def test_a_bad_config_is_one_line_that_names_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Model.from_hf({**TINY, **change}, name="mine")
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff", '{"model_type": }', "[" * 100_000])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(BadInput, match=r"config\.json"):
        model(str(path))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="No such file"):
        model("nowhere/config.json")


FIELDS = [*TINY, "head_dim", "layer_types", "sliding_window", "use_sliding_window", "mlp_only_layers", "text_config"]
values = st.one_of(st.none(), st.booleans(), st.integers(-3, 64), st.text(max_size=3), st.lists(st.integers(0, 3)))


@given(st.dictionaries(st.sampled_from(FIELDS), values), st.data())
def test_any_fields_are_a_model_or_bad_input(change: dict[str, Any], data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(["llama", "gemma2", "mixtral", "deepseek_v3", "qwen3_next", "nemotron_h"]))
    try:
        shape = Model.from_hf({**TINY, **change, "model_type": family})
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert shape.params > 0


def test_records_are_read_once() -> None:
    assert model("llama-3-8b") is model("Llama-3-8B")


@pytest.mark.timed
def test_records_are_read_quickly() -> None:
    best = 1.0
    for _ in range(5):
        models._models.cache_clear()
        start = time.process_time()
        model("llama-3-8b")
        best = min(best, time.process_time() - start)
    assert best < 0.010
