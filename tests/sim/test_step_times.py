"""Step times are the best that is known of a layout: measured, scaled from what was measured, or from data sheets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim import profiles
from assay.sim.layouts import read_layout
from assay.sim.llm_cost import COEFFICIENTS, StepCost
from assay.sim.roofline import layout
from assay.sim.step_times import blend, profile_of, scaled, step_time


@given(st.integers(1, 99), st.floats(0.2, 5.0))
def test_a_blend_is_the_profile_inside_and_continuous_at_the_border(covered: int, factor: float) -> None:
    roofline = StepCost(tokens=0.01 + 1e-4 * np.arange(500), decode_kv=1e-8)
    profile = StepCost(tokens=factor * roofline.tokens[:100] * (1 + 0.01 * np.arange(100)), decode_kv=3e-8)
    both = blend(profile, roofline, covered)
    assert both.tokens[: covered + 1].tolist() == profile.tokens[: covered + 1].tolist()
    assert len(both.tokens) == 500
    step = both.tokens[covered + 1] / both.tokens[covered]
    assert step == pytest.approx(roofline.tokens[covered + 1] / roofline.tokens[covered])
    assert both.decode_kv == profile.decode_kv


def test_a_profile_cannot_cover_more_than_it_has() -> None:
    with pytest.raises(BadInput, match="cannot cover"):
        blend(StepCost(tokens=np.ones(10)), StepCost(tokens=np.ones(20)), covered=10)


def test_whatever_was_measured_is_used_unless_data_sheets_are_asked_for() -> None:
    assert profiles.names()
    for name in profiles.names():
        found, sheet = step_time(name), layout(name)
        assert found.source == "measured"
        assert not np.array_equal(found.cost.tokens, sheet.tokens)
        assert np.array_equal(step_time(name, "roofline").cost.tokens, sheet.tokens)
        assert (found.cost.kv_tokens, found.cost.kv_bytes) == (sheet.kv_tokens, sheet.kv_bytes)
        assert found.cost.energy is not None and sheet.energy is not None
        assert np.array_equal(found.cost.energy.joules, sheet.energy.joules)
    assert step_time("h100:qwen3-32b").source == step_time("h200:qwen3-8b").source == "roofline"


def test_inside_it_is_the_fit_and_beyond_it_the_roofline_meets_it() -> None:
    for name in profiles.names():
        seen, cost, sheet = profiles.profile(*name.split(":")), step_time(name).cost, layout(name)
        assert seen is not None
        inside = [(1, 500, ()), (64, 64_000, ()), (8, 9000, ((700, 100),)), (0, 0, ((seen.tokens, 0),))]
        for b, context, chunks in inside:
            assert cost.seconds(b, context, chunks) == seen.cost.seconds(b, context, chunks)
        beyond = cost.tokens[seen.tokens :] / sheet.tokens[seen.tokens :]
        assert beyond == pytest.approx(beyond[0])
        assert len(cost.tokens) == len(sheet.tokens)
        assert (np.diff(cost.tokens) >= 0).all()


def test_another_cut_is_as_much_slower_than_its_data_sheet_as_the_whole_model_is() -> None:
    whole, cut = step_time("h200:qwen3-32b").cost, step_time("h200:qwen3-32b:tp2")
    assert cut.source == "scaled"
    ratio = whole.tokens / layout("h200:qwen3-32b").tokens
    assert cut.cost.tokens / layout("h200:qwen3-32b:tp2").tokens == pytest.approx(ratio)
    assert cut.cost.decode_kv == pytest.approx(whole.decode_kv / 2)  # half of the heads on each
    assert (cut.cost.launch, cut.cost.launch_mixed) == (whole.launch, whole.launch_mixed)  # the host is not cut
    assert cut.cost.kv_tokens == layout("h200:qwen3-32b:tp2").kv_tokens


@given(st.sampled_from(["h200:qwen3-32b", "h200:llama-3-8b"]))
def test_scaling_by_nothing_changes_nothing(name: str) -> None:
    known, sheet = step_time(name).cost, layout(name)
    again = scaled(known, sheet, sheet)
    assert again.tokens == pytest.approx(known.tokens)
    for term in COEFFICIENTS:
        assert getattr(again, term) == pytest.approx(getattr(known, term))


def test_other_weights_and_shapes_of_ones_own_were_not_measured(tmp_path: Path) -> None:
    assert step_time("h200:qwen3-32b:fp8").source == "roofline"
    mine = dataclasses.replace(read_layout("h200:qwen3-32b").model, vocab=1000)
    assert profile_of(dataclasses.replace(read_layout("h200:qwen3-32b"), model=mine)) is None
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 2048, "vocab_size": 3000, "_name_or_path": "qwen3-32b",
    }  # fmt: skip
    (tmp_path / "qwen3-32b.json").write_text(json.dumps(config))
    assert step_time(f"h200:{tmp_path}/qwen3-32b.json").source == "roofline"


def test_what_cannot_be_asked_for_is_said() -> None:
    with pytest.raises(BadInput, match="there are measured and roofline"):
        step_time("h200:qwen3-32b", "guessed")
