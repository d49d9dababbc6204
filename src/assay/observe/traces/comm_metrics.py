"""The metrics of communication: how much, how fast, how well hidden, and who waited for whom.

Each is a function of a row that gives a number or raises :class:`~assay.observe.traces.rows.NotApplicable`; the rest of
them, and the table of all, are in :mod:`assay.observe.traces.metrics`.
"""

from __future__ import annotations

import math

import polars as pl

from assay.observe.traces import breakdown
from assay.observe.traces.kernel_path import links
from assay.observe.traces.rows import Metric, NotApplicable, Row, operation
from assay.observe.traces.what_if import what_if
from assay.record.errors import BadInput

BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}  # times (n-1)/n of the vector


def mean(values: pl.Series, without: str) -> float:
    """The mean of what is there; not applicable, for this reason, where nothing is.

    >>> mean(pl.Series([1.0, 3.0]), "no step")
    2.0
    """
    if not len(values.drop_nulls()):
        raise NotApplicable(without)
    return float(values.mean())  # type: ignore[arg-type]


def _comm(row: Row) -> pl.DataFrame:
    found = row.device.filter((pl.col("cat") == "comm") & (pl.col("dur") > 0))
    if found.is_empty():
        raise NotApplicable("no communication in it")
    return found


def communication_fraction(row: Row) -> float:
    """The share of a device's busy time in which it communicates, beside compute or not."""
    _comm(row)
    steps = row.steps.filter(pl.col("total") > pl.col("idle"))
    return mean(steps["comm"] / (steps["total"] - steps["idle"]), "the device is idle in every step")


def exposed_comm_time(row: Row) -> float:
    """Seconds of a step in which a rank communicates and computes nothing."""
    _comm(row)
    return mean(row.steps["exposed"], "no step") / 1e9


def compute_comm_overlap(row: Row) -> float:
    """The share of communication that runs beside compute: of each step, then their mean."""
    _comm(row)
    steps = row.steps.filter(pl.col("comm") > 0)
    return mean(steps["overlapped"] / steps["comm"], "no communication within a step")


def collective_volume(kind: str | None = None) -> Metric:
    """Bytes that one rank hands to collectives (of one kind) in a step: the mean over ranks and steps."""

    def metric(row: Row) -> float:
        chosen = _of(row, kind)
        if chosen["bytes"].null_count():
            raise NotApplicable("the traces do not tell the sizes of collectives")
        steps = breakdown.steps(row.frame).group_by("rank").len()
        count = int(steps["len"].sum()) if len(steps) else row.split["rank"].n_unique()
        return int(chosen["bytes"].sum()) / count

    return metric


def bus_bandwidth(kind: str) -> Metric:
    """The median bytes a second that a collective of one kind drives over a rank's link: size times bus factor."""

    def metric(row: Row) -> float:
        chosen = _of(row, kind).filter(pl.col("bytes") > 0)
        if chosen.is_empty():
            raise NotApplicable("the traces do not tell the sizes of collectives")
        members = chosen.group_by("group").agg(pl.col("rank").n_unique())
        ranks = members["rank"].max()
        if ranks == 1:  # one rank's file only
            ranks = row.card.workload.hardware.xpu_spec.total_count
        if not isinstance(ranks, int) or ranks < 2:
            raise NotApplicable("how many ranks take part is told by neither the traces nor the card")
        factor = BUS[kind] * (ranks - 1) / ranks
        return float((chosen["bytes"] * factor / (chosen["dur"] / 1e9)).median())  # type: ignore[arg-type]

    return metric


def _of(row: Row, kind: str | None) -> pl.DataFrame:
    every = _comm(row)
    names = every["name"].cast(pl.String)
    kinds = {name: operation(name) for name in names.unique().to_list()}
    wanted = [name for name, found in kinds.items() if (found == kind if kind else found in BUS)]
    chosen = every.filter(names.is_in(wanted))
    if chosen.is_empty():
        raise NotApplicable(f"no {kind or 'collective'} in it")
    return chosen


# ------------------------------------------------------------------------------------------------- between ranks


def _by_rank(row: Row, column: str) -> pl.Series:
    whole = row.split.filter(pl.col("step").is_null())
    if len(whole) < 2:
        raise NotApplicable("needs the traces of two ranks or more")
    return whole["total"] - whole["idle"] if column == "busy" else whole[column]


def load_imbalance(row: Row) -> float:
    """The busiest rank's busy time over the mean; 1: all alike."""
    busy = _by_rank(row, "busy").to_numpy()
    return float(busy.max() / busy.mean()) if busy.mean() else math.nan


def straggler_delay(row: Row) -> float:
    """How much less the last to come communicates than who waits most: (most - least) / most of the ranks' time."""
    _comm(row)
    comm = _by_rank(row, "comm").to_numpy()
    return float((comm.max() - comm.min()) / comm.max()) if comm.max() else math.nan


def scale_up_bw_utility(row: Row) -> float:
    """By which share the run gets shorter when links carry twice as much: replayed, compute as recorded."""
    _comm(row)
    try:
        answer = what_if(links(row.frame), bandwidth=2.0)
    except BadInput as error:
        raise NotApplicable(f"no what-if: {error}") from None
    if not answer.recorded:
        raise NotApplicable("nothing took any time")
    if answer.changed is None:
        raise NotApplicable(f"no what-if: {answer.note}")
    return 1.0 - answer.changed / answer.recorded
