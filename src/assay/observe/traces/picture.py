"""A run as a picture: what every rank's device did, moment by moment, above where its time went.

Drawn is one step (the one of middle length unless a frame of one step is given), for a whole run would be a grey bar.
Pieces closer together than a pixel are drawn as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.observe.traces import breakdown
from assay.observe.traces.kernel_path import critical_path, links
from assay.record.errors import BadInput
from assay.sim import timeline
from assay.sim.telemetry import Frame

if TYPE_CHECKING:
    import altair as alt

_WIDTH, _LANE = 760, 13
_SHOWN = 16  # ranks
_LANES = {"kernel": "compute", "comm": "communication", "memcpy": "copy"}
_COLOURS = {"compute": "#0072B2", "communication": "#D55E00", "copy": "#009E73", "idle": "#BBBBBB",
            "exposed communication": "#D55E00", "host": "#CC79A7", "waiting": "#E69F00"}  # fmt: skip
_PATH = {"kernel": "compute", "comm": "communication", "memcpy": "copy", "host": "host", "launch": "host",
         "sync": "host", "gap": "waiting"}  # fmt: skip


def plot(frame: Frame) -> alt.VConcatChart:
    """The timeline of one step above the breakdown of all ranks.

    >>> from assay.sim.telemetry import Frame
    >>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0}]
    >>> spans = [{"span": 1, "entity": 1, "name": "a", "cat": "kernel", "start": 0, "dur": 60}]
    >>> len(plot(Frame.of(entities, spans=spans)).vconcat)
    2
    """
    import altair as alt

    if len(frame.clocks) > 1:
        try:
            frame = frame.aligned()
        except BadInput:
            frame = frame.shifted(dict.fromkeys(frame.clocks, 0))  # no common instant is known: each by its own clock
    device = breakdown.device_spans(frame)
    split = breakdown.split(frame, device)
    first, last, title = _window(split)
    ranks = split["rank"].unique(maintain_order=True).to_list()
    rows = _pieces(device, ranks[:_SHOWN], first, last) + _path_pieces(frame, first, last)
    scale, unit = (1e6, "milliseconds") if last - first > 2_000_000 else (1e3, "microseconds")
    drawn = pl.DataFrame(rows, schema=["lane", "what", "from", "to"], orient="row").with_columns(
        pl.col("from", "to") / scale
    )
    lanes = list(dict.fromkeys(row[0] for row in rows))
    present = [what for what in _COLOURS if what in set(drawn["what"])]
    above = alt.Chart(drawn).mark_rect(height=_LANE - 3).encode(
        x=alt.X("from:Q", title=f"{unit} ({title})", scale=alt.Scale(domain=[0, (last - first) / scale], nice=False)),
        x2="to:Q",
        y=alt.Y("lane:N", sort=lanes, title=None, axis=alt.Axis(labelLimit=200, grid=False)),
        color=alt.Color("what:N", scale=_colours(present), legend=alt.Legend(title=None)),
    ).properties(width=_WIDTH, height=_LANE * len(lanes))  # fmt: skip
    chart: alt.VConcatChart = alt.vconcat(above, _shares(split)).resolve_scale(color="independent")
    more = f", the first {_SHOWN} shown above" if len(ranks) > _SHOWN else ""
    return chart.properties(title=alt.Title("Where the time went", subtitle=f"{len(ranks)} ranks{more}"))


def _colours(names: list[str]) -> Any:
    import altair as alt

    return alt.Scale(domain=names, range=[_COLOURS[name] for name in names])


def _window(split: pl.DataFrame) -> tuple[int, int, str]:
    """The step of middle length, over all ranks; the whole run where no step is marked."""
    begun = split.filter(pl.col("step").is_not_null())
    if begun.is_empty():
        return int(split["start"].min()), int(split["end"].max()), "the whole run"  # type: ignore[arg-type]
    over = begun.group_by("step").agg(pl.col("start").min(), pl.col("end").max()).sort(pl.col("end") - pl.col("start"))
    step, first, last = over.row(len(over) // 2)
    return int(first), int(last), f"step {step}"


def _pieces(device: pl.DataFrame, ranks: list[str], first: int, last: int) -> list[tuple[str, str, int, int]]:
    found = []
    for rank in ranks:
        for cat, what in _LANES.items():
            some = device.filter((pl.col("rank") == rank) & (pl.col("cat") == cat))
            for start, end in _visible(some["start"].to_numpy(), some["end"].to_numpy(), first, last):
                found.append((f"rank {rank} {what}", what, start, end))
    return found


def _visible(starts: Any, ends: Any, first: int, last: int) -> list[tuple[int, int]]:
    """What lies in the window, from its start; gaps below a pixel closed, and nothing thinner than half of one."""
    pixel = max(1, (last - first) // _WIDTH)
    inside = timeline.clip(timeline.union(starts, ends), first, last)
    closed = timeline.union(inside[0], inside[1] + pixel // 2)
    begins, stops = closed[0] - first, np.minimum(closed[1] - first, last - first)
    return list(zip(begins.tolist(), stops.tolist(), strict=True))


def _path_pieces(frame: Frame, first: int, last: int) -> list[tuple[str, str, int, int]]:
    if len(frame.clocks) > 1:
        return []
    try:
        path = critical_path(links(frame), first, last).with_columns(what=pl.col("kind").replace_strict(_PATH))
    except BadInput:
        return []  # what waited for what is not known
    found = []
    for (what,), rows in path.group_by("what", maintain_order=True):
        for start, end in _visible(rows["start"].to_numpy(), rows["end"].to_numpy(), first, last):
            found.append(("critical path", str(what), start, end))
    return found


def _shares(split: pl.DataFrame) -> Any:
    """A bar for each rank: its whole time in four parts."""
    import altair as alt

    names = {"compute": "compute", "exposed": "exposed communication", "memcpy": "copy", "idle": "idle"}
    whole = split.filter(pl.col("step").is_null())
    rows = whole.unpivot(breakdown.PARTS, index=["rank", "total"], variable_name="part", value_name="time")
    order = list(names)
    rows = rows.with_columns(
        share=pl.col("time") / pl.col("total"), what=pl.col("part").replace_strict(names),
        place=pl.col("part").replace_strict({part: i for i, part in enumerate(order)}),
    )  # fmt: skip
    return alt.Chart(rows).mark_bar().encode(
        x=alt.X("share:Q", title="of the whole run", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("rank:N", sort=whole["rank"].to_list(), title="rank"),
        color=alt.Color("what:N", scale=_colours(list(names.values())), legend=alt.Legend(title=None)),
        order="place:O",
    ).properties(width=_WIDTH, height=max(24, 18 * len(whole)))  # fmt: skip
