"""Workload cards: read with patience for what is left out, strictly where a mistake would pass unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.traces import cards
from assay.record.errors import BadInput

pytest.importorskip("yaml")

WHOLE = """
version: 1
description: >
  Eight layers
  over two lines
hf_url: https://example.org/model
trace_url:
contributor: somebody
workload:
  model:
    phase: training
    moe: true
    granularity: model_fwd_bwd_pass
    model_family: tiny
    precision: bf16
    epochs: 1
    iteration: 5
    model_arch:
      num_params: 16380544000   # counted
      num_params_embedding: 2.048e8
      num_layers: 28
      num_heads: 16
      head_dim: 128
  data: {batch_size: 8, seq_len: 1024, input_len: "", output_len: N/A, dataset: c4}
  hardware:
    network_topo:
      topology: slingshot
      bandwidth_gbps:
        -
        - 2400
    xpu_spec: {type: GPU, model: nvidia_a100, total_count: 8, count_per_node: 4}
    driver_version: 12.8
Model-executor:
  framework: {name: torchtitan-0.1.0, compiler_tool_selection: triton}
  model_plan_parallelization: {dp_replicate: 1, dp_shard: 2, tp: 4, pp: 1, cp: 1, ep: 4, pp_mb: 2}
  communication_library: {name: NCCL, version: 2.28.3, env: {NCCL_IB_QPS_PER_CONNECTION: 8}}
  protocol_selection: [rocev2, nvlink]
metric_source:
  traces: [json]
  metrics_specific_trace:
    -
something_new: {whatever: 1}
"""


def test_every_key_of_a_card_is_read() -> None:
    card = cards.parse(WHOLE)
    assert card.workload.model.moe
    assert card.workload.model.model_arch.num_params == 16380544000
    assert card.workload.model.model_arch.num_params_embedding == 204.8e6
    assert card.workload.hardware.network_topo.bandwidth_gbps == (None, 2400.0)
    assert card.workload.hardware.driver_version == "12.8"
    assert (card.executor.plan.ep, card.executor.plan.pp_mb) == (4, 2)
    assert card.executor.library.env == {"NCCL_IB_QPS_PER_CONNECTION": "8"}
    assert card.metric_source.traces == ("json",)
    assert card.metric_source.metrics_specific_trace == ()


def test_what_is_left_out_or_empty_is_none_and_never_zero() -> None:
    data = cards.parse(WHOLE).workload.data
    assert data.input_len is None
    assert data.output_len is None
    assert cards.parse("workload: {}").workload.hardware.xpu_spec.total_count is None


def test_a_written_card_is_read_again_as_it_was() -> None:
    card = cards.parse(WHOLE)
    assert cards.parse(cards.text(card)) == card
    assert cards.parse(cards.text(cards.Card())) == cards.Card()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("workload: {model: {phase: training}}\nworkload: {}", "card:2: 'workload' is given twice"),
        ("a: &x 1\nworkload: {model: {model_family: *x}}", "card:2: an alias"),
        ("workload: {data: {batch_size: many}}", r"workload\.data\.batch_size"),
        ("workload: {model: {phase: dreaming}}", "phase is 'dreaming'; training, inference, serving"),
        ("workload: [1, 2", "workload card is YAML"),
        ("just words", "it would have the key 'workload'"),
        ("", "it would have the key 'workload'"),
        ("workload: " + "[" * 30 + "]" * 30, "nested deeper than 20"),
        ("workload: {hardware: {xpu_spec: {total_count: 2.5}}}", r"xpu_spec\.total_count"),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_says_where(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        cards.parse(words)
    assert "\n" not in str(refused.value)


def test_nothing_in_a_card_is_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    words = f"description: !!python/object/apply:os.mkdir ['{made}']\nworkload: {{}}\n"
    with pytest.raises(BadInput):
        cards.parse(words)
    assert not made.exists()


def test_a_file_that_is_no_text_or_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    with pytest.raises(BadInput, match="cannot read"):
        cards.read(path)
    path.write_bytes(b"workload: \xff\xfe")
    with pytest.raises(BadInput, match="byte 10 is no UTF-8"):
        cards.read(path)
    path.write_bytes(b"#" * (cards.LARGEST + 1))
    with pytest.raises(BadInput, match="larger than"):
        cards.read(path)


def test_the_card_of_a_folder_is_the_named_one_or_the_only_one(tmp_path: Path) -> None:
    assert cards.find(tmp_path) is None
    (tmp_path / "mine.yaml").write_text("workload: {}")
    assert cards.find(tmp_path) == tmp_path / "mine.yaml"
    (tmp_path / "other.yml").write_text("workload: {}")
    assert cards.find(tmp_path) is None
    (tmp_path / "card.yaml").write_text("workload: {}")
    assert cards.find(tmp_path) == tmp_path / "card.yaml"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_card_gives_a_card_or_one_line(data: st.DataObject) -> None:
    held = bytearray(WHOLE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(0, 255))
    words = bytes(held[: data.draw(st.integers(0, len(held)))]).decode("utf-8", errors="replace")
    try:
        assert isinstance(cards.parse(words), cards.Card)
    except BadInput as error:
        assert "\n" not in str(error)
