"""Prompts have text that can be classified and counted, and answers whose length nobody is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads.prompts import (
    CATEGORIES,
    HEAVY,
    LEVELS,
    LIMITS,
    PASSAGES,
    PEOPLE,
    TENANTS,
    TIERS,
    _words_after,
    generate,
    natural,
    sample,
    tokens,
    words,
)


def test_a_seed_gives_the_same_prompts() -> None:
    one, two, other = generate(50, 3), generate(50, 3), generate(50, 4)
    assert one.texts == two.texts and one.requests.output.tolist() == two.requests.output.tolist()
    assert one.texts != other.texts


def test_answers_end_at_the_limit_or_before_and_mostly_close_to_it() -> None:
    trace = generate(3000, 0).requests
    assert trace.category is not None
    for number, category in enumerate(CATEGORIES):
        lengths = trace.output[trace.category == number]
        assert lengths.max() <= LIMITS[category]
        assert 0.85 < lengths.mean() / LIMITS[category] <= 1.0
    free = generate(3000, 0, limits={}).requests
    assert free.output.max() > max(LIMITS.values())


def test_columns_say_who_asks_for_what() -> None:
    trace = generate(2000, 0, mix=HEAVY).requests
    assert trace.tiers == TIERS and trace.tenants == TENANTS and trace.categories == CATEGORIES
    assert trace.category is not None and trace.tier is not None and trace.tenant is not None
    assert np.bincount(trace.category) / 2000 == pytest.approx(HEAVY, abs=0.04)
    assert (trace.tier == trace.tenant).all()


def test_the_label_is_written_into_the_prompt() -> None:
    assert all("Job type" in text for text in generate(20, 0, labelled=True).texts)
    assert not any("Job type" in text for text in generate(20, 0).texts)


def test_prose_has_few_tokens_a_word_and_code_many() -> None:
    rates = {category: tokens(text) / words(text) for category, text in PASSAGES.items()}
    assert 1.1 < rates["short_qa"] < 1.4 and 1.1 < rates["summary"] < 1.4  # English prose is near 1.3
    assert rates["technical"] > 1.4 and rates["report"] > 1.4
    assert tokens("for i in range(10): x[i] += 1") > 2 * words("for i in range(10): x[i] += 1")


@given(st.text(max_size=200))
@settings(deadline=None)
def test_counting_takes_any_text(text: str) -> None:
    assert tokens(text) >= 0 and words(text) >= 0
    assert words(text) == len(text.split())


def test_words_of_an_answer_grow_with_its_tokens() -> None:
    for category in CATEGORIES:
        counts = _words_after(category)
        assert len(counts) == 4097 and (np.diff(counts) >= 0).all() and counts[-1] < 4096
    prompts = generate(500, 0)
    assert (prompts.answer_words <= prompts.requests.output).all()


def test_natural_prompts_name_a_kind_as_seldom_as_peoples_and_their_answers_are_as_long() -> None:
    prompts = natural(6000, 5)
    trace, total = prompts.requests, sum(count for count, _ in PEOPLE.values())
    assert trace.category is not None
    assert 1 - (trace.category == 0).mean() == pytest.approx(1 - PEOPLE["short_qa"][0] / total, abs=0.015)
    found = np.quantile(trace.output[trace.category == 0], LEVELS[1:7])
    assert found == pytest.approx(PEOPLE["short_qa"][1][1:7], rel=0.15)
    assert natural(20, 5).texts != natural(20, 6).texts


def test_prompts_are_cut_into_parts_that_begin_at_zero() -> None:
    whole = natural(90, 0)
    parts = whole.parts(3)
    assert sum((part.texts for part in parts), ()) == whole.texts
    assert all(part.requests.arrival[0] == 0.0 for part in parts)
    assert np.concatenate([part.requests.output for part in parts]).tolist() == whole.requests.output.tolist()


@pytest.mark.parametrize("content", ["", "{}", "[]", '[{"instruction": "Why?"}]', '[{"instruction": 3, "output": ""}]'])
def test_a_file_that_holds_no_prompts_with_answers_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "outputs.json"
    path.write_text(content)
    with pytest.raises(BadInput, match="outputs"):
        sample(path, 3)
