"""Claims in a terminal: every mark where it belongs, no line wider than the screen, ASCII where nothing else works."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.dots import ASCII, UNICODE, lines, signs
from assay.record.types import Answer, Evidence, Kind, Verdict

ANSWER = Answer(
    "Mean time to first token falls against a router that looks at load alone.", -0.5, -0.4, -0.45, -0.3, 5,
    Verdict.REPRODUCED, Evidence.MODEL, id="ttft", kind=Kind.CHANGE, unit="change",
)  # fmt: skip


def test_marks_stand_in_the_order_of_their_values() -> None:
    line = lines([ANSWER], 120)[0]
    places = [line.index(sign) for sign in ("◆", "├", "●", "┤", "│")]
    assert places == sorted(places)
    assert line.startswith("Mean time to first token falls against")
    assert line.split()[-1] == "0"


def test_the_legend_explains_the_signs_that_occur() -> None:
    assert lines([ANSWER], 120)[-1] == "● measured  ├─┤ 95 % interval  ◆ paper  ░ reproduced  │ no effect"
    bare = replace(ANSWER, paper=None, low=None, high=None, toward="down")
    assert lines([bare], 120)[-1] == "● measured  ░ reproduced  │ no effect"


def test_what_was_not_measured_is_not_drawn() -> None:
    assert lines([replace(ANSWER, measured=None)], 80) == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", None, "no-such-encoding"])
def test_a_terminal_without_unicode_gets_ascii(encoding: str | None) -> None:
    drawn = signs(encoding)
    assert drawn is ASCII
    assert "\n".join(lines([replace(ANSWER, text="Γ grows – or not.")], 70, drawn)).isascii()


def test_unicode_where_it_can_be_shown() -> None:
    assert signs("utf-8") is UNICODE


value = st.floats(-1e6, 1e6)


@given(value, value, value, st.none() | value, st.sampled_from(list(Kind)), st.integers(60, 200))
def test_no_line_is_wider_than_the_screen(
    a: float, b: float, c: float, paper: float | None, kind: Kind, wide: int
) -> None:
    low, middle, high = sorted((a, b, c))
    answer = replace(ANSWER, measured=middle, low=low, high=high, paper=paper, kind=kind, toward="up", unit="s")
    for drawn in (UNICODE, ASCII):
        assert all(len(line) <= wide for line in lines([answer, ANSWER], wide, drawn))
