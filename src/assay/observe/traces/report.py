"""All that `assay trace` says of a recording, as one value: breakdown, overlap, stragglers, path, what-ifs.

Times are seconds here. What cannot be said (one rank has no stragglers, a clock that cannot be aligned no common path)
is said in `notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.observe.traces import breakdown
from assay.observe.traces.host_time import host_time
from assay.observe.traces.kernel_path import Links, critical_path, links
from assay.observe.traces.path_sums import summed
from assay.observe.traces.what_if import Answer, what_if
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads.kineto_names import point_to_point

if TYPE_CHECKING:
    from assay.observe.traces.chakra_runs import Replayed

WHAT_IFS = ("bandwidth=2", "no-stragglers")


def changes(text: str) -> dict[str, Any]:
    """What a what-if changes, from its words.

    >>> changes("bandwidth=2"), changes("no-stragglers")
    ({'bandwidth': 2.0}, {'stragglers': False})
    >>> changes("bandwidth=fast")
    Traceback (most recent call last):
        ...
    assay.record.errors.BadInput: --what-if bandwidth=fast: 'bandwidth=2' or 'no-stragglers' would be right
    """
    name, _, value = text.partition("=")
    if name == "no-stragglers" and not value:
        return {"stragglers": False}
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if name != "bandwidth" or not 0.0 < factor < 1e6:
        raise BadInput(f"--what-if {text}: 'bandwidth=2' or 'no-stragglers' would be right")
    return {"bandwidth": factor}


def only_step(frame: Frame, step: int) -> Frame:
    """What touches one step, rank by rank; the other steps are left out."""
    begun = breakdown.steps(frame)
    own = begun.filter(pl.col("step") == step)
    if own.is_empty():
        there = begun["step"].unique().sort().to_list()
        raise BadInput(f"no step {step}; " + (f"there are {there[0]} to {there[-1]}" if there else "none is marked"))
    placed = breakdown.ranks(frame).join(own.select("rank", first="start", last="end"), on="rank")
    spans = frame.spans.join(placed.select("entity", "first", "last"), on="entity", maintain_order="left")
    touching = (pl.col("start") < pl.col("last")) & (pl.col("start") + pl.col("dur") > pl.col("first"))
    other = (pl.col("cat") == "step") & (pl.col("seq").fill_null(0) != step)
    return replace(frame, spans=spans.filter(touching & ~other).drop("first", "last"))


def report(frame: Frame, what_ifs: Sequence[str] = WHAT_IFS, replayed: Replayed | None = None) -> dict[str, Any]:
    """Everything, ready for JSON. Of traces that were replayed, path and what-ifs are the replay's."""
    asked = {text: changes(text) for text in what_ifs}
    device = breakdown.device_spans(frame)
    split = breakdown.split(frame, device)
    notes: list[str] = []
    gpus = set(frame.entities.filter(pl.col("kind") == "stream")["id"].to_list())
    on_gpu = bool(device["entity"].is_in(list(gpus)).any())
    if not on_gpu:
        notes.append("no GPU work in it: the operators of the host count as compute")
    found = {
        "source": frame.source, "repairs": dict(frame.repairs), "device": "gpu" if on_gpu else "cpu",
        "spans": len(frame.spans), "breakdown": _breakdown(split), "overlap": _overlaps(frame, device, split),
        "stragglers": _stragglers(device, notes), "kernels": _kernels(device),
    }  # fmt: skip
    if replayed is not None:
        return found | _of_replay(replayed, asked) | {"notes": [*notes, *replayed.removed]}
    _say_unmatched(device, notes)
    joined = _joined(frame, notes)
    found["critical_path"] = None if joined is None else _path(joined)
    found["what_if"] = (
        [] if joined is None else [_answer(what_if(joined, **change), text) for text, change in asked.items()]
    )
    return found | {"notes": notes}


def _say_unmatched(device: pl.DataFrame, notes: list[str]) -> None:
    """A profiler does not number sends and receives: who waited for whom is not followed."""
    names = device.filter(pl.col("cat") == "comm")["name"].cast(pl.String).unique().to_list()
    if device["rank"].n_unique() > 1 and any(map(point_to_point, names)):
        notes.append("sends and receives are not matched: waiting for the other side counts as communication")


def _joined(frame: Frame, notes: list[str]) -> Links | None:
    try:
        return links(frame)
    except BadInput as error:
        notes.append(f"no critical path and no what-ifs: {error}")
        return None


def _breakdown(split: pl.DataFrame) -> list[dict[str, Any]]:
    seconds = ("start", "end", "total", *breakdown.PARTS, "comm", "overlapped")
    return split.with_columns(pl.col(seconds) / 1e9).to_dicts()


def _overlaps(frame: Frame, device: pl.DataFrame, split: pl.DataFrame) -> list[dict[str, Any]]:
    """The share of communication that ran beside compute, of each rank."""
    ratio = pl.when(pl.col("comm") > 0).then(pl.col("overlapped") / pl.col("comm"))
    whole = split.filter(pl.col("step").is_null()).select("rank", overlap=ratio)
    early = breakdown.before_last_step(frame, device)
    if early.is_empty():
        return whole.with_columns(before_last_step=pl.lit(None, pl.Float64)).to_dicts()
    part = breakdown.split(frame, early).filter(pl.col("step").is_null()).select("rank", before_last_step=ratio)
    return whole.join(part, on="rank", how="left", maintain_order="left").to_dicts()


def _stragglers(device: pl.DataFrame, notes: list[str]) -> list[dict[str, Any]]:
    rows = breakdown.stragglers(device)
    if rows.is_empty():
        one = device["rank"].n_unique() == 1
        notes.append(
            "stragglers need the files of several ranks" if one else "no collective is on two ranks: no stragglers"
        )
    return rows.with_columns(pl.col("cost", "waited") / 1e9).to_dicts()


def _kernels(device: pl.DataFrame) -> list[dict[str, Any]]:
    return breakdown.top_kernels(device).with_columns(pl.col("total", "mean", "longest") / 1e9).to_dicts()


def _path(joined: Links) -> dict[str, Any]:
    pieces = critical_path(joined).with_columns(seconds=(pl.col("end") - pl.col("start")) / 1e9)
    host = host_time(joined.frame, pieces).with_columns(seconds=pl.col("dur") / 1e9)
    named = pieces.filter((pl.col("name") != "") & (pl.col("kind") != "host")).group_by("name", "kind").agg(
        pieces=pl.len().cast(pl.Int64), seconds=pl.col("seconds").sum()
    )  # fmt: skip
    of_host = host.filter(pl.col("name") != "").select("name", "pieces", "seconds", kind=pl.lit("host"))
    return summed(pieces, pl.concat([named, of_host.select(named.columns)]), (joined.last - joined.first) / 1e9) | {
        "host": host.select("name", "seconds").head(10).to_dicts()
    }


def _of_replay(replayed: Replayed, asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from assay.observe.traces import chakra_runs

    answers = [_answer(chakra_runs.what_if(replayed, **change), text) for text, change in asked.items()]
    return {"critical_path": chakra_runs.path(replayed.outcome), "what_if": answers}


def _answer(answer: Answer, text: str) -> dict[str, Any]:
    changed = answer.changed if answer.recorded else None
    return {
        "what_if": text, "recorded": answer.recorded / 1e9, "changed": None if changed is None else changed / 1e9,
        "ratio": None if changed is None else changed / answer.recorded, "note": answer.note,
    }  # fmt: skip
