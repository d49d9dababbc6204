"""Charts on a page: the reader's letters may be wider than those of the layout, and must still fit."""

from __future__ import annotations

import re

import altair as alt
import polars as pl
import vl_convert

from assay.record import charts

NAMES = ["connection statistics", "threshold of 10 %"]
CHART = (
    alt.Chart(pl.DataFrame({"tool": NAMES, "share": [1, 2], "kind": NAMES}))
    .mark_bar()
    .encode(x="share:Q", y=alt.Y("tool:N", title=None), color="kind:N")
    .properties(width=100)
)


def beside(drawing: str) -> float:
    """How much room there is beside the plot's own hundred points."""
    found = re.search(r'viewBox="0 0 ([\d.]+)', drawing)
    assert found
    return float(found[1]) - 100


def letters(drawing: str) -> set[float]:
    return {float(size) for size in re.findall(r'font-size="([\d.]+)px"', drawing)}


def test_names_beside_a_chart_have_room_for_letters_a_sixth_wider() -> None:
    tight = vl_convert.vegalite_to_svg(charts._spec(CHART, "black", "white"))
    assert beside(charts.svg(CHART)) > 1.15 * beside(tight)
    assert letters(charts.svg(CHART)) == letters(tight) == {11.0, 12.0}


def test_many_names_above_a_chart_take_several_lines() -> None:
    names = [f"a scheme with a long name, number {number}" for number in range(15)]
    points = alt.Chart(pl.DataFrame({"x": range(15), "name": names})).mark_point().encode(x="x:Q")
    one, two = points.encode(color="name:N"), points.encode(color="name:N", shape="name:N")
    for chart in (one, one + one, (one | one).resolve_scale(color="shared"), two):
        assert beside(charts.svg(chart)) < 1000
    wide = alt.Chart(pl.DataFrame({"x": [1, 2], "name": ["a", "b"]})).mark_point().encode(x="x:Q", color="name:N")
    assert charts._columns(wide.to_dict()) > 2
