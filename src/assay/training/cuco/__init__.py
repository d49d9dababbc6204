"""CUCo: let a search place communication inside computation: a safe version first, then evolution, all of it verified.

A program that computes, communicates and computes again leaves the link idle while it computes and the processor idle
while it communicates. How to interleave the two is a choice of many knobs: by which transport, where transfers sit,
what waits for what, in which chunks, how deep, who issues them. Each candidate declares its choice, its directive. The
fast path reads from the stages' reads and writes what must wait for what, and gives a conservative version that is
right. The slow path evolves it on islands: it explores for 40 % of the generations, then exploits; candidates are
built, verified on three random inputs with either rank dawdling, and only then timed; what passed is kept on disk; a
summary of what did well biases mutations. A directive that lacks a wait is a candidate like any other, and is caught.

Four programs of two processes over gloo and a shaped link: a product with an all-gather, context-parallel attention, a
mixture of experts, KV transfer. The mutator draws knobs, or asks a language model behind an OpenAI-compatible endpoint
for a directive; models write no code here. Times are real; searches are compared by replaying them over one space that
was measured as a whole. Device-initiated communication between GPUs is not at hand: on one H200, copy engines stand in
for the link (`benchmarks/h200_cuco.py`). Watch for races that three inputs do not show, and for gains that are the
timer's noise: race what was found against what you have.

UT Austin, arXiv:2603.02376.

>>> from assay.training.cuco.targets import Gemm
>>> fast = safe(Gemm())
>>> fast["placement"], fast["scope"], hazards(Gemm(), fast), hazards(Gemm(), fast | {"scope": "none"})
('inside', 'all', [], ['place reads rest before it has arrived', 'gather overwrites rest before place has read it'])
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, change, clocked, counted, mean, not_here, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.ranks import prepare
from assay.training.cuco import trials
from assay.training.cuco.bench import IMPORTS
from assay.training.cuco.bench import Bench as Bench
from assay.training.cuco.bench import Database as Database
from assay.training.cuco.bench import again as again
from assay.training.cuco.bench import pursue as pursue
from assay.training.cuco.program import Stage as Stage
from assay.training.cuco.program import hazards as hazards
from assay.training.cuco.program import host as host
from assay.training.cuco.program import knobs as knobs
from assay.training.cuco.program import safe as safe
from assay.training.cuco.targets import TARGETS

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
needs = ("torch",)
use_when = "The same exchange runs often, computing and moving take about as long, and its result can be checked."
avoid_when = "One of the two takes nearly all the time, or a plain overlap in a few chunks already hides the other."
own_input = "assay compare cuco --program examples/halo.py:Halo --budget 13"
references = ("Islands: Romera-Paredes et al., Nature 2024 (FunSearch). Overlap by tiles: Chang et al., 2024 (FLUX).",)
STORED = Path(__file__).with_name("h200.json")


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Four programs searched and raced; the space of one judged as a whole, and kinds of searches replayed over it.

    Where all of a space is judged, tries cost nothing: there a search has as many as `assay compare cuco` gives it.
    """
    prepare(IMPORTS)
    here = replace(lab, workers=0, seeds=lab.seeds[:1])
    wide = lab.pick(quick=False, full=True)
    size = {"wide": wide, "rounds": lab.pick(quick=16, full=63), "seeds": list(lab.seeds)}
    cases = [
        {"target": name, "sizes": lab.pick(quick=QUICK, full=FULL)[name], "whole": name == WHOLE,
         "budget": lab.pick(quick=41 if name == WHOLE else 17, full=61)} | size
        for name in TARGETS
    ]  # fmt: skip
    unused = ("sizes", "seeds", "wide", "whole", "budget", "rounds", "row")
    found = here.run(trials.searched, cases, per="row").drop(unused)
    space, raced = (_part(found, name) for name in ("space", "targets"))
    measured, budget = space.to_dicts(), lab.pick(quick=21, full=41)
    replays = [row for seed in lab.seeds for row in trials.replayed(measured, TARGETS[WHOLE](), wide, budget, seed)]
    lab.used.update(lab.seeds)
    lab.cases.update(("search", "version"))
    lab.cases.difference_update(unused)
    return {"space": space.drop("shots"), "searches": pl.DataFrame(replays), "targets": raced}


def _part(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of one part, with the columns that it has."""
    rows = table.filter(pl.col("part") == name).drop("part")
    return rows.select(column for column in rows if column.null_count() < len(rows))


WHOLE = "gemm"
QUICK: dict[str, dict[str, int]] = {
    "gemm": {}, "attention": {"keys": 20}, "moe": {"tokens": 16}, "kv": {"prompt": 40},
}  # fmt: skip
FULL: dict[str, dict[str, int]] = {
    "gemm": {"rows": 96, "width": 1024}, "attention": {"keys": 96, "queries": 512},
    "moe": {"tokens": 96, "width": 384}, "kv": {"prompt": 256, "width": 320},
}  # fmt: skip


def _case(target: str, version: str) -> dict[str, Any]:
    return {"experiment": "targets", "target": target, "version": version}


def _faster(target: str, than: str = "host") -> Measure:
    """How many times as long another version takes as the one that was found."""
    return ratio("seconds", of=_case(target, than), to=_case(target, "found"))


def _falls(target: str) -> Measure:
    return _timed(change("seconds", new=_case(target, "found"), old=_case(target, "host")), target)


def _timed(measure: Measure, target: str) -> Measure:
    return clocked(measure, experiment="targets", target=target)


def _searches(column: str, of: str, to: str) -> Measure:
    """A search beside another, over measured times: only where the times are worth it."""
    return clocked_space(ratio(column, of={"search": of}, to={"search": to}, experiment="searches"))


def clocked_space(measure: Measure) -> Measure:
    """Not measured where others had the processors while the space was."""
    return clocked(measure, experiment="space")


def _caught(table: pl.DataFrame) -> Estimate:
    """Of directives that leave a dependence to luck, the share that verification refused."""
    found = rows(table, {"experiment": "space", "hazard": True})["passed"]
    return counted(1 - float(found.sum()) / len(found), len(found))


def _accepted(table: pl.DataFrame) -> Estimate:
    """Of directives that compile and keep every dependence, the share that passed."""
    found = rows(table, {"experiment": "space", "hazard": False}).filter(pl.col("stage") != "compile")["passed"]
    return counted(float(found.sum()) / len(found), len(found))


def _kept(table: pl.DataFrame) -> Estimate:
    """Of candidates in the databases, the share with three verifications that is right on another input."""
    found = rows(table, {"experiment": "targets", "version": "found"}).unique("target")
    enough = bool((found["least_checks"] >= 3).all())
    total = int(found["entries"].sum())
    return counted(float(found["verified_again"].sum()) / total if enough else 0.0, total)


def _on_gpu(than: str) -> Measure:
    """On an H200, by stored rows: how many times as long as what was found, in the better of two programs."""

    def measure(table: pl.DataFrame) -> Estimate:
        if not STORED.exists():
            raise NotMeasured("measured on an H200 only, and no rows of one are stored")
        found = {(row["kind"], row["version"]): row for row in json.loads(STORED.read_text())["race"]}
        kinds = sorted({kind for kind, _ in found})
        if not all(row["right"] for row in found.values()):
            raise NotMeasured("a version on the H200 was not right")
        pairs = {kind: (found[kind, than]["seconds"], found[kind, "found"]["seconds"]) for kind in kinds}
        return best({kind: partial(lambda two, _: intervals.ratio(*two), pair) for kind, pair in pairs.items()})(table)

    return measure


claims = [
    Claim("latency", best({name: _timed(_faster(name), name) for name in TARGETS})),
    Claim("attention", _falls("attention")),
    Claim("kv", best({"8 stretches of a prompt": _falls("kv")}, min)),
    Claim("moe", best({"2 experts": _falls("moe")}, min)),
    Claim("generation", not_here(
        "is about programs that a language model wrote: ask one by assay compare cuco --endpoint URL --model NAME"
    )),
    Claim(
        "gemm", _timed(_faster("gemm"), "gemm"), kind=Kind.AT_LEAST, value=1.2, unit="ratio",
        asks="Host-driven communication takes at least 1.2 times as long as what was found, on a product with an "
        "all-gather over 1 Gb/s.",
    ),
    Claim(
        "stream", best({name: _timed(_faster(name, "stream"), name) for name in TARGETS}), kind=Kind.RATIO, toward="up",
        asks="In the best program, overlap as one writes it by hand, with its best chunk, takes longer than what was "
        "found.",
    ),
    Claim(
        "caught", _caught, kind=Kind.EVERY,
        asks="Every directive of the measured space that leaves a dependence to luck fails verification.",
    ),
    Claim("accepted", _accepted, kind=Kind.EVERY, asks="Every other directive that compiles passes verification."),
    Claim(
        "kept", _kept, kind=Kind.EVERY,
        asks="Every candidate in a database passed three verifications, and is right on an input no search has seen.",
    ),
    Claim(
        "half", clocked_space(mean("needed", experiment="searches", search="two-phase")), kind=Kind.AT_MOST, value=0.5,
        unit="share", evidence=Evidence.REPLAY,
        asks="From the safe version in two phases, a search comes within 2 % of the best of so many random tries in at "
        "most half as many.",
    ),
    Claim(
        "random", _searches("best", "two-phase", "random"), kind=Kind.RATIO, toward="up", evidence=Evidence.REPLAY,
        asks="After equally many tries the best of the two-phase search is faster than that of random search.",
    ),
    Claim(
        "fast-path", _searches("best", "two-phase", "no fast path"), kind=Kind.RATIO, toward="up",
        evidence=Evidence.REPLAY,
        asks="After equally many tries it is faster than that of the same search without a safe start.",
    ),
    Claim(
        "phases", _searches("best", "two-phase", "single phase"), kind=Kind.RATIO, toward="up",
        evidence=Evidence.REPLAY, asks="After equally many tries it is faster than that of a search in a single phase.",
    ),
    Claim(
        "first", mean("first_right", experiment="searches", search="no fast path"), kind=Kind.AT_LEAST, value=1.0,
        unit="generations", evidence=Evidence.REPLAY,
        asks="Without the safe version, which is right in generation 0, no search has a right program before "
        "generation 1.", construction="A search without a start has no generation 0.",
    ),
    Claim(
        "gpu", _on_gpu("host"), kind=Kind.RATIO, toward="up",
        asks="On one H200, with copy engines for a link, host-driven transfers take longer than what was found.",
    ),
    Claim(
        "gpu-stream", _on_gpu("stream"), kind=Kind.RATIO, toward="up",
        asks="On one H200, stream-level overlap with its best chunk takes longer than what was found.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Times of the three versions of each program."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "targets")
    means = found.group_by("target", "version", maintain_order=True).agg((1e3 * pl.col("seconds").mean()).alias("ms"))
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_bar()
        .encode(
            x=alt.X("version:N", title=None, sort=["host", "stream", "found"]),
            y=alt.Y("ms:Q", title="milliseconds"),
            color=alt.Color("version:N", legend=None, sort=["host", "stream", "found"]),
            column=alt.Column("target:N", title=None),
        )
        .properties(width=110, height=220, title="Two processes, 1 Gb/s")
    )
    return chart
