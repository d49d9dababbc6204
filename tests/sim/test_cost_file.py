"""A step time goes through a file unharmed, and a file that is none is one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.cost_file import read, text
from assay.sim.llm_cost import COEFFICIENTS, StepCost

SECONDS = st.floats(0, 1, allow_subnormal=False)


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=6), st.dictionaries(st.sampled_from(COEFFICIENTS), SECONDS))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, corners: list[float], more: dict[str, float]
) -> None:
    tokens = np.interp(np.arange(1001), np.linspace(0, 1000, len(corners)).round(), corners)
    cost = StepCost(tokens=tokens, kv_tokens=1600, notes=('it says "so"', "größer"), **more)  # type: ignore[arg-type]
    path = tmp_path_factory.mktemp("cost") / "cost.toml"
    path.write_text(text(cost), encoding="utf-8")
    back = read(path)
    np.testing.assert_allclose(back.tokens, cost.tokens, rtol=1e-9)
    assert (back.kv_tokens, back.notes) == (1600, cost.notes)
    for name in COEFFICIENTS:
        if name != "window" or more.get("window"):
            assert getattr(back, name) == getattr(cost, name)


def test_a_line_takes_two_corners() -> None:
    cost = StepCost(tokens=0.0123 + 4.56e-5 * np.arange(8193.0))
    assert text(cost).splitlines()[1] == "tokens = [[0, 0.0123], [8192, 0.3858552]]"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("decode_kv = 1e-8", "tokens needs pairs"),
        ("tokens = [[0, 0.1]]", "tokens needs pairs"),
        ("tokens = [[0, 0.1], [5, -1]]", "tokens needs pairs"),
        ("tokens = [[0, 0.1], [9, 0.1], [8, 0.1]]", "must rise"),
        ("tokens = [[0, 0.1], [99999999999, 0.1]]", "tokens needs pairs"),
        ("tokens = [[0, 0.1], [8, 0.2]]\nspeed = 3", "unknown field 'speed'"),
        ("tokens = [[0, 0.1], [8, 0.2]]\ndecode_kv = nan", "decode_kv is nan"),
        ("tokens = [[0, 0.1], [8, 0.2]]\ndecode_kv = true", "decode_kv is True"),
        ("tokens = ", "Invalid value"),
    ],
)
def test_a_file_that_is_no_cost_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "cost.toml"
    path.write_text(content)
    with pytest.raises(BadInput, match=complaint) as caught:
        read(path)
    assert "cost.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read(tmp_path / "none.toml")
