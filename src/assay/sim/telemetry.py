"""Telemetry in columns: who, what was measured, what ran when, what happened, who waited for whom.

Every reader of a foreign format gives a :class:`Frame`, every detector and diagnosis takes one. It is five Polars
tables with fixed columns (`SCHEMA`), never changed once made.

- Times are integer nanoseconds **of the entity's own clock**. Two clocks are comparable only if a reader knew it or
  somebody aligned them: :meth:`Frame.comparable` raises otherwise, lest
  somebody subtracts two machines' times unaware.
- Missing is not zero: a gap is a row that is not there, and :meth:`Frame.block` hands out values with a mask.
- What was repaired while reading (a truncated end, doubled or disordered samples, values that are no numbers) is
  counted in `repairs`, in words.

>>> frame = Frame.of(
...     entities=[{"id": 0, "kind": "node", "name": "a"}, {"id": 1, "kind": "node", "name": "b"}],
...     samples=[
...         {"t": 0, "entity": 0, "metric": "load", "value": 1.0},
...         {"t": 10, "entity": 0, "metric": "load", "value": 2.0},
...         {"t": 10, "entity": 1, "metric": "load", "value": 5.0},
...     ],
... )
>>> block = frame.block()
>>> block.columns
[('a', 'load'), ('b', 'load')]
>>> block.values.tolist(), block.valid.tolist()
([[1.0, nan], [2.0, 5.0]], [[True, False], [True, True]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput

KINDS = (
    "cluster node gpu rank process thread stream service pod function query operator kernel commit benchmark other"
).split()
CATEGORIES = "cpu_op kernel comm memcpy stage rpc query_op io step annotation other".split()
EDGES = "calls data_dep ctrl_dep hosts member_of sends_to".split()
ONE_CLOCK = "one"

SCHEMA: dict[str, dict[str, Any]] = {
    "entities": {
        "id": pl.UInt32, "kind": pl.Enum(KINDS), "name": pl.String, "parent": pl.UInt32, "clock": pl.String,
    },
    "samples": {"t": pl.Int64, "entity": pl.UInt32, "metric": pl.Categorical, "value": pl.Float64},
    "spans": {
        "span": pl.UInt64, "parent": pl.UInt64, "entity": pl.UInt32, "name": pl.Categorical,
        "cat": pl.Enum(CATEGORIES), "start": pl.Int64, "dur": pl.Int64, "bytes": pl.Int64,
        "group": pl.Categorical, "seq": pl.Int64, "failed": pl.Boolean,
    },
    "events": {"t": pl.Int64, "entity": pl.UInt32, "name": pl.Categorical, "severity": pl.UInt8, "text": pl.String},
    "edges": {"src": pl.UInt64, "dst": pl.UInt64, "kind": pl.Enum(EDGES)},
}  # fmt: skip
_NEEDED = {
    "entities": ("id", "kind", "name"), "samples": ("t", "entity", "metric", "value"),
    "spans": ("entity", "name", "cat", "start", "dur"), "events": ("t", "entity", "name"),
    "edges": ("src", "dst", "kind"),
}  # fmt: skip
Rows = pl.DataFrame | Sequence[Mapping[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """Samples as a matrix: a row for each time, a column for each (entity, metric), and which of them are there."""

    times: NDArray[np.int64]
    columns: list[tuple[str, str]]
    values: NDArray[np.float64]  # NaN where there is none
    valid: NDArray[np.bool_]


def _table(name: str, rows: Rows | None) -> pl.DataFrame:
    """The table with all columns of its schema, those not given being null."""
    schema = SCHEMA[name]
    if rows is None or not len(rows):
        return pl.DataFrame(schema=schema)
    if not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(rows, infer_schema_length=None)
    if lacking := [column for column in _NEEDED[name] if column not in rows.columns]:
        raise BadInput(f"telemetry: table '{name}' lacks the column {', '.join(lacking)}")
    if odd := [column for column in rows.columns if column not in schema]:
        raise BadInput(f"telemetry: table '{name}' has no column {', '.join(odd)}; it has {', '.join(schema)}")
    return rows.select(
        pl.col(column).cast(kind) if column in rows.columns else pl.lit(None, dtype=kind).alias(column)
        for column, kind in schema.items()
    )


@dataclass(frozen=True)
class Frame:
    """One recording. Make it with :meth:`of`."""

    entities: pl.DataFrame
    samples: pl.DataFrame
    spans: pl.DataFrame
    events: pl.DataFrame
    edges: pl.DataFrame
    units: Mapping[str, str] = field(default_factory=dict)  # of metrics
    source: str = ""
    repairs: Mapping[str, int] = field(default_factory=dict)  # what was mended while reading, and how often

    @classmethod
    def of(
        cls,
        entities: Rows,
        samples: Rows | None = None,
        spans: Rows | None = None,
        events: Rows | None = None,
        edges: Rows | None = None,
        *,
        units: Mapping[str, str] | None = None,
        source: str = "",
        repairs: Mapping[str, int] | None = None,
    ) -> Frame:
        """From tables or rows; columns of `SCHEMA` that are not given are null. Samples are put in order.

        An entity without a `clock` shares the one clock of the recording.
        """
        made = {
            name: _table(name, rows)
            for name, rows in zip(SCHEMA, (entities, samples, spans, events, edges), strict=True)
        }
        made["entities"] = made["entities"].with_columns(pl.col("clock").fill_null(ONE_CLOCK)).sort("id")
        mended = dict(repairs or {})
        made["samples"] = _in_order(made["samples"], mended)
        known = made["entities"]["id"]
        if known.n_unique() != len(known):
            raise BadInput("telemetry: two entities have the same id")
        for name in ("samples", "spans", "events"):
            if not made[name]["entity"].is_in(known.implode()).all():
                raise BadInput(f"telemetry: table '{name}' names an entity that is not in 'entities'")
        return cls(**made, units=dict(units or {}), source=source, repairs=mended)

    # ------------------------------------------------------------------------------------------------- clocks

    @property
    def clocks(self) -> list[str]:
        """The clocks that were read.

        >>> Frame.of([{"id": 0, "kind": "rank", "name": "0", "clock": "host a"}]).clocks
        ['host a']
        """
        return self.entities["clock"].unique().sort().to_list()

    def comparable(self, why: str) -> Frame:
        """This frame, if all its times are of one clock; BadInput otherwise. `why`: who needs it.

        >>> ranks = [{"id": i, "kind": "rank", "name": str(i), "clock": str(i)} for i in range(2)]
        >>> Frame.of(ranks).comparable("the critical path")
        Traceback (most recent call last):
            ...
        assay.record.errors.BadInput: the critical path compares times of 2 clocks (0, 1): align them first
        """
        if len(self.clocks) > 1:
            some = ", ".join(self.clocks[:4]) + (", …" if len(self.clocks) > 4 else "")
            raise BadInput(f"{why} compares times of {len(self.clocks)} clocks ({some}): align them first")
        return self

    def shifted(self, offsets: Mapping[str, int]) -> Frame:
        """With `offsets[clock]` nanoseconds added to that clock's times; all are of one clock then.

        >>> ranks = [{"id": i, "kind": "rank", "name": str(i), "clock": str(i)} for i in range(2)]
        >>> events = [{"t": 5, "entity": 0, "name": "x"}, {"t": 105, "entity": 1, "name": "x"}]
        >>> Frame.of(ranks, events=events).shifted({"0": 0, "1": -100}).events["t"].to_list()
        [5, 5]
        """
        if lacking := set(self.clocks) - set(offsets):
            raise BadInput(f"telemetry: no offset is given for the clock {', '.join(sorted(lacking))}")
        shift = self.entities.select(
            entity=pl.col("id"), shift=pl.col("clock").replace_strict(dict(offsets), return_dtype=pl.Int64)
        )

        def move(table: pl.DataFrame, column: str) -> pl.DataFrame:
            moved = table.join(shift, on="entity", how="left", maintain_order="left")
            return moved.with_columns(pl.col(column) + pl.col("shift")).drop("shift")

        return replace(
            self,
            entities=self.entities.with_columns(clock=pl.lit(ONE_CLOCK)),
            samples=move(self.samples, "t").sort("t", "entity", maintain_order=True),
            spans=move(self.spans, "start"),
            events=move(self.events, "t"),
        )

    def aligned(self) -> Frame:
        """With the clocks set by collectives: what all members of a group ended together, ended at one instant.

        Spans of the category `comm` with the same (group, seq) on several clocks are matched; each clock moves by the
        median difference of its ends from those of the first clock that it shares some with.
        """
        return self.shifted(_offsets(self))

    # ------------------------------------------------------------------------------------------------- samples

    def block(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        metrics: Iterable[str] | None = None,
        every: int | None = None,
    ) -> Block:
        """Samples of `start <= t < end` as a matrix; with `every`, the last of each interval of so many nanoseconds."""
        self.comparable("a block of samples")
        rows = self.samples
        if start is not None:
            rows = rows.filter(pl.col("t") >= start)
        if end is not None:
            rows = rows.filter(pl.col("t") < end)
        if metrics is not None:
            rows = rows.filter(pl.col("metric").cast(pl.String).is_in(list(metrics)))
        if every is not None:
            rows = rows.with_columns(t=pl.col("t") // every * every)
        keys = rows.select("entity", "metric").unique().join(
            self.entities.select(entity=pl.col("id"), name=pl.col("name")), on="entity"
        ).with_columns(pl.col("metric").cast(pl.String)).sort("entity", "metric")  # fmt: skip
        keys = keys.with_row_index("column")
        placed = rows.with_columns(pl.col("metric").cast(pl.String)).join(keys, on=["entity", "metric"])
        times, at = np.unique(placed["t"].to_numpy(), return_inverse=True)
        values = np.full((len(times), len(keys)), np.nan)
        values[at, placed["column"].to_numpy()] = placed["value"].to_numpy()
        names = list(zip(keys["name"].to_list(), keys["metric"].to_list(), strict=True))
        return Block(times.astype(np.int64), names, values, ~np.isnan(values))

    def name(self, entity: int) -> str:
        """The name of an entity."""
        return str(self.entities.filter(pl.col("id") == entity)["name"][0])


def _in_order(samples: pl.DataFrame, repairs: dict[str, int]) -> pl.DataFrame:
    """Sorted by time, one value for each (time, entity, metric), none that is no number."""
    if samples.is_empty():
        return samples
    bad = samples["value"].is_null() | samples["value"].is_nan()
    if count := int(bad.sum()):
        repairs["samples without a number left out"] = repairs.get("samples without a number left out", 0) + count
        samples = samples.filter(~bad)
    steps = samples.select(pl.col("t").diff().over("entity", "metric").min()).item()
    if steps is None or steps > 0:  # every series rises: nothing to mend, and the search for twins is the dear part
        return samples.sort("t", "entity", maintain_order=True)
    late = samples.select((pl.col("t") < pl.col("t").cum_max().over("entity", "metric")).sum()).item()
    if late:
        repairs["samples out of order put in order"] = int(late)
    kept = samples.unique(["t", "entity", "metric"], keep="last", maintain_order=True)
    if doubled := len(samples) - len(kept):
        repairs["samples given twice, the last one kept"] = doubled
    return kept.sort("t", "entity", maintain_order=True)


def _offsets(frame: Frame) -> dict[str, int]:
    """How far each clock must move so that shared collectives end together."""
    ends = (
        frame.spans.filter((pl.col("cat") == "comm") & pl.col("seq").is_not_null())
        .join(frame.entities.select(entity=pl.col("id"), clock=pl.col("clock")), on="entity")
        .select("clock", pl.col("group").cast(pl.String).fill_null(""), "seq", end=pl.col("start") + pl.col("dur"))
        .group_by("clock", "group", "seq")
        .agg(pl.col("end").max())
    )
    per_clock = {str(clock): rows.drop("clock") for (clock,), rows in ends.group_by("clock")}
    clocks = frame.clocks
    offsets = {clocks[0]: 0} if clocks else {}
    while len(offsets) < len(clocks):
        step = _next_offset(clocks, offsets, per_clock)
        if step is None:
            alone = ", ".join(clock for clock in clocks if clock not in offsets)
            raise BadInput(f"telemetry: the clocks cannot be aligned: {alone} shares no collective with the others")
        offsets[step[0]] = step[1]
    return offsets


def _next_offset(
    clocks: list[str], offsets: Mapping[str, int], ends: Mapping[str, pl.DataFrame]
) -> tuple[str, int] | None:
    for clock in clocks:
        if clock in offsets or clock not in ends:
            continue
        for known, offset in offsets.items():
            if known not in ends:
                continue
            both = ends[clock].join(ends[known], on=["group", "seq"], suffix="_known")
            if len(both):
                return clock, offset + int(np.median(both["end_known"].to_numpy() - both["end"].to_numpy()))
    return None


def chunks(frame: Frame, rows: int = 65_536) -> Iterable[Frame]:
    """The samples in time order, so many at a time: what a streaming component's `update` is fed offline.

    >>> frame = Frame.of([{"id": 0, "kind": "node", "name": "a"}],
    ...     [{"t": t, "entity": 0, "metric": "m", "value": 1.0} for t in range(5)])
    >>> [len(part.samples) for part in chunks(frame, 2)]
    [2, 2, 1]
    """
    for begin in range(0, len(frame.samples), rows):
        yield replace(frame, samples=frame.samples[begin : begin + rows])


Reader = Callable[..., Frame]
