"""The torch engine: paging, chunking and batching change when a token is computed, never which token it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.serving.dooly.torch_engine import (
    PAGE,
    Engine,
    Request,
    Running,
    Scheduler,
    VirtualClock,
    WorkClock,
    compose,
    replay,
    serve,
    shape_of_step,
    some_tokens,
)  # fmt: skip
from assay.serving.dooly.torch_model import CONFIGS, Shape, shape_of

BASE = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=500)
VARIANTS = {
    "grouped": {},
    "qk-norm": {"qk_norm": True},
    "window": {"window": 20},
    "experts": {"experts": 8, "top_k": 2, "expert_ffn": 32},
    "latent": {
        "kv_heads": 1, "kv_rank": 24, "rope_dim": 8, "value_dim": 16, "experts": 4, "top_k": 2, "expert_ffn": 32,
        "shared_ffn": 32, "dense_layers": 1,
    },
}  # fmt: skip
REQUESTS = [Request(0.0, 1 + 37 * i % 149, 1 + 7 * i % 19) for i in range(10)]


def variant(name: str) -> Shape:
    import dataclasses

    return dataclasses.replace(BASE, **VARIANTS[name])


@pytest.mark.parametrize("backend", ["sdpa", "paged"])
@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_equal_those_of_one_plain_pass(name: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    from assay.serving.dooly.torch_model import plain_logits

    torch.set_num_threads(1)
    # 30 pages for up to 170 tokens a request and 40 tokens an iteration: chunks, scattered pages and preemptions.
    engine = Engine(variant(name), backend=backend, kv_tokens=30 * PAGE, max_batched_tokens=40, max_context=512)
    outcome = engine.run(REQUESTS, WorkClock())
    assert any(len(step.chunks) > 1 or (step.b and step.chunks) for step in outcome.steps)
    for number, request in enumerate(REQUESTS):
        said = outcome.tokens[number]
        tokens = some_tokens(number, request.prompt, BASE.vocab) + list(said)
        expected = plain_logits(engine.model, tokens[:-1])[request.prompt - 1 :].argmax(-1).tolist()
        assert list(said) == expected, f"request {number}"


def test_a_preempted_sequence_goes_on_with_the_same_tokens() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    requests = [Request(0.0, 30, 40), Request(0.0, 30, 40), Request(0.0, 30, 40)]
    roomy, tight = (Engine(BASE, kv_tokens=pages * PAGE, max_context=256) for pages in (30, 10))
    first, second = roomy.run(requests, WorkClock()), tight.run(requests, WorkClock())
    assert first.tokens == second.tokens
    assert len(second.steps) > len(first.steps)  # it had to compute some prompts again


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=14),
    st.integers(8, 20),
    st.integers(1, 64),
    st.integers(1, 6),
)
def test_every_request_is_served_within_the_limits(
    rows: list[tuple[float, int, int]], pages: int, budget: int, seqs: int
) -> None:
    requests = [Request(*row) for row in rows]
    scheduler, clock = Scheduler(pages, budget, seqs), VirtualClock()

    def execute(work: list[tuple[Running, int]]) -> float:
        assert sum(count for _, count in work) <= max(budget, 1)
        assert len(scheduler.running) <= seqs
        held = [page for seq in scheduler.running for page in seq.pages]
        assert len(held) == len(set(held))  # no page has two owners
        assert len(held) + len(scheduler.free) == pages
        assert all(len(seq.pages) * PAGE >= seq.computed + count for seq, count in work)
        counts = [count for seq, count in work if seq.known - seq.computed == 1 and seq.emitted]
        assert all(count == 1 for count in counts)
        clock.sleep(0.01)
        return 0.0

    outcome = serve(requests, scheduler, execute, clock)
    assert len(scheduler.free) == pages
    assert np.all(outcome.ttft > 0)
    assert np.all(outcome.finish >= outcome.first)


def test_decodes_go_first_and_a_prompt_is_chunked_to_the_rest() -> None:
    scheduler = Scheduler(pages=40, max_batched_tokens=32)
    short, long = Running(0, Request(0.0, 10, 5)), Running(1, Request(0.0, 100, 5))
    scheduler.add(short)
    scheduler.advance(scheduler.plan(), 0.1)
    scheduler.add(long)
    assert [(seq.number, count) for seq, count in scheduler.plan()] == [(0, 1), (1, 31)]


def test_a_replay_of_constant_steps_is_arithmetic() -> None:
    outcome = replay([Request(0.0, 40, 3), Request(0.25, 8, 2)], lambda **_: 0.1, pages=20, max_batched_tokens=16)
    assert outcome.ttft.round(9).tolist() == [0.3, 0.15]  # three chunks; the second waits for the boundary at 0.3
    assert outcome.tpot.round(9).tolist() == [0.1, 0.1]


def test_a_composition_is_what_was_asked_for() -> None:
    work, known = compose(3, 100, [(20, 5)], pages=30, vocab=50)
    assert shape_of_step(work) == (3, 100, ((20, 5),))
    assert len(known) == 4
    with pytest.raises(ValueError, match="pages"):
        compose(3, 1000, [], pages=10, vocab=50)


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="more KV cache"):
        replay([Request(0.0, 1000, 1)], lambda **_: 0.1, pages=4)
    with pytest.raises(ValueError, match="num_attention_heads"):
        Shape.from_hf({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10})


def test_the_twelve_models_have_their_published_sizes() -> None:
    published = {
        "llama-3-8b": 8.03, "llama-3-70b": 70.6, "qwen3-8b": 8.19, "qwen3-14b": 14.8, "qwen3-32b": 32.8,
        "mistral-7b": 7.24, "mixtral-8x7b": 46.7, "qwen3-30b-a3b": 30.5, "deepseek-v2-lite": 15.7,
    }  # fmt: skip
    assert len(CONFIGS) == 12
    for name, billions in published.items():
        assert shape_of(name).parameters / 1e9 == pytest.approx(billions, rel=0.01), name


def test_a_shard_has_its_share() -> None:
    whole, part = shape_of("llama-3-70b"), shape_of("llama-3-70b").shard(8)
    assert (part.heads, part.kv_heads, part.ffn, part.hidden) == (8, 1, 3584, whole.hidden)
    assert whole.parameters / 8 == pytest.approx(part.parameters, rel=0.02)


@pytest.mark.slow
def test_the_fused_kernels_equal_plain_torch() -> None:
    """In Triton's interpreter, which needs no GPU but the package."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    code = (
        "from assay.serving import torch_ops; from assay.serving.dooly.torch_engine import *; "
        "from assay.serving.dooly.torch_model import Shape\n"
        "def said(fused, **more):\n"
        "    torch_ops.fused = lambda x: fused and not x.is_meta\n"
        "    shape = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=500, **more)\n"
        "    engine = Engine(shape, backend='paged', kv_tokens=640, max_batched_tokens=40, max_context=256)\n"
        "    return engine.run([Request(0.0, 5, 4), Request(0.0, 70, 6), Request(0.0, 33, 5)]).tokens\n"
        "for more in ({}, {'qk_norm': True}, {'window': 20}):\n"
        "    assert said(True, **more) == said(False, **more), more\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def test_the_gpu_script_runs_shrunk_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).parents[2] / "benchmarks" / "h200_engine.py"
    command = [sys.executable, script, "--tiny", "--out", tmp_path, "--parts", "check,llama-3-8b"]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    rows = (tmp_path / "requests.csv").read_text().splitlines()
    assert rows[0] == "model,backend,workload,arrival,prompt,output,first,finish"
    assert len(rows) == 1 + 3 * 6
    assert '"paged"' in (tmp_path / "meta.json").read_text()


def test_copies_of_an_operation_are_as_large_as_asked_and_not_more() -> None:
    torch = pytest.importorskip("torch")
    from assay.serving.dooly import op_timing
    from assay.serving.dooly.dim_labels import Signature

    lookup = Signature("index", ((1000, 64), ("T",)), dtype="float32")
    product = Signature("mm", (("T", 64), (64, 128)), dtype="float32", orders=((), (1, 0)))
    with torch.inference_mode():
        assert len(op_timing.build(lookup, {"T": 4}, "cpu", cold_bytes=500_000)) == 2  # the table counts, too
        calls = op_timing.build(product, {"T": 4}, "cpu", cold_bytes=100_000)
        assert len(calls) == 3
        assert calls[0]().shape == (4, 128)
    assert op_timing.seconds(product, {"T": 4}) > 0
