"""`make test` is the same twice: what Hypothesis tries does not depend on what ran before in the process."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PROFILE


@pytest.mark.skipif(PROFILE != "ci", reason="other profiles are to try something new every time")
def test_the_same_examples_are_tried_whatever_was_loaded_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    @settings(max_examples=200)
    @given(st.integers(0, 10**6))
    def collect(number: int) -> None:
        tried.append(number)

    collect()
    before, tried[:] = list(tried), []
    (tmp_path / "full_of_numbers.py").write_text("\n".join(f"N{n} = {n * 7919 + 5}" for n in range(120)))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    collect()
    assert tried == before
