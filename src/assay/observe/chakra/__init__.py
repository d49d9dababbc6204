"""Chakra: record a job once as a graph of compute, memory and communication; then analyse, replay or simulate it.

A trace of times says what happened; it cannot say what would have happened with a faster network or a healthier rank,
because it does not say who waited for whom. An execution trace does: its nodes are operations, its edges what each of
them needs. One file a rank, in one format, then serves every tool: what one site records, another can analyse, a third
can scale up or blur before it hands it on, and a simulator can run on hardware that does not exist.

Here: the published format is read and written without loss (:mod:`assay.workloads.chakra`); PyTorch's recordings are
linked into it, with the edges whose lack makes collectives start at time 0 (:mod:`assay.observe.graphs.link`); traces
are generated for any TP/DP/PP/EP cut (:mod:`assay.observe.graphs.generate`) or resampled from real ones; and all of
them run in one replayer (:mod:`assay.observe.graphs.replay`), in which a collective starts when all its ranks have
come.

The paper names adopters and case studies but no figures, so the study asks what a trace must be good for: does its
replay take the time that was measured, and that of a run in which something was different? The job recorded here
trains for real over gloo, but 30 ms of its step are slept in place of compute (busy ranks on two cores would measure
the scheduler), and in some windows a rank of each step sleeps 20 to 80 ms more: errors are shares of a step that is
mostly sleep.

Sridharan et al., MLSys 2026, arXiv:2605.11333; the format is that of arXiv:2305.14516.

>>> from assay.observe.graphs.generate import Job, device, generate
>>> ranks = generate(Job(layers=4, hidden=1024, heads=16, seq=512, batch=4, dp=8), device("h100"))
>>> net = replay.Network(replay.Link(2e-6, 20e9))
>>> step, twice = replay.replay(ranks, net).makespan, replay.replay(ranks, net.scaled(bandwidth=2)).makespan
>>> f"{1 - twice / step:.0%} faster with twice the bandwidth"
'44% faster with twice the bandwidth'
"""

from __future__ import annotations

import math
from dataclasses import replace as changed
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.observe.chakra import trials
from assay.observe.graphs import replay
from assay.record import intervals, measures, traces
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["claims", "plot", "replay", "study"]

evidence = Evidence.REPLAY  # the headline is about published traces; what was recorded here is marked as real
use_when = (
    "You want to know what a change (links, a straggler, a group's layout) would do to a job that was recorded once, "
    "or to hand a workload to somebody without its code, or to move traces between tools."
)
avoid_when = (
    "The change alters which operations run (another batch size, another cut of the model): the graph is then another "
    "one. Also where recordings lack dependencies: a replay is only as right as its edges."
)
own_input = "assay trace examples/job.0.et examples/job.1.et --json"
replays = ("chakra",)
references = (
    "The format and its tools: github.com/mlcommons/chakra, schema 1.0.",
    "The collectives' closed forms: Thakur, Rabenseifner and Gropp, IJHPCA 2005.",
)


def study(lab: Lab) -> Tables:
    """A recorded job with and without late ranks, published samples, and generated jobs of up to a thousand ranks."""
    here = changed(lab, workers=0)  # recordings start processes themselves, and what is timed runs alone
    launches = here.with_seeds(quick=1, full=8)
    sizes = [{"ranks": ranks} for ranks in lab.pick(quick=(128,), full=(128, 1024))]
    few = here.with_seeds(quick=1, full=5)
    lab.cases.update(("method", "source"))
    tables = {
        "samples": few.run(trials.samples, [{}], per="run"),
        "small": few.run(trials.generated, [{"ranks": 16}], per="run"),
        "large": here.with_seeds(quick=3, full=5).run(trials.generated, sizes, per="run"),
    }
    if find_spec("torch") is not None:
        windows = {"windows": 6, "steps": 4}
        tables["recorded"] = launches.run(trials.recorded, [windows], per="run").drop("windows", "steps")
    return tables


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Predicted against measured seconds of a step; on the line the prediction is right."""
    import altair as alt

    if "predicted" not in table.columns or "measured" not in table.columns:
        raise NotMeasured("nothing was recorded here: torch is missing")
    points = table.filter(pl.col("experiment") == "step").with_columns(
        pl.when("late").then(pl.lit("a rank late")).otherwise(pl.lit("as recorded")).alias("run as")
    )
    low, high = points.select(pl.min_horizontal("predicted", "measured").min()).item(), points["measured"].max()
    ends = pl.DataFrame({"x": [low, high], "y": [low, high]})
    axis = alt.Axis(format=".0f")
    line = alt.Chart(ends).mark_line(strokeDash=[4, 4], opacity=0.6, color="#7F7F7F").encode(x="x:Q", y="y:Q")
    dots = (
        alt.Chart(points.with_columns(pl.col("predicted", "measured") * 1e3))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=alt.X("measured:Q", title="measured step, ms", axis=axis, scale=alt.Scale(zero=False)),
            y=alt.Y("predicted:Q", title="predicted step, ms", axis=axis, scale=alt.Scale(zero=False)),
            color=alt.Color("method:N"), shape=alt.Shape("run as:N"),
        )
    )  # fmt: skip
    line = line.transform_calculate(x="datum.x * 1000", y="datum.y * 1000")
    title = alt.Title("A replayed step beside the measured one", subtitle="A real job of two ranks; dashed: equal")
    chart: alt.LayerChart = (line + dots).properties(width=460, height=340, title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


SOURCES = ("torch job", "sample chakra.0.et", "generated")


def _served(uses: pl.DataFrame) -> Estimate:
    """The share of (source, use) pairs that work whatever the seed, with the first that does not."""
    tried = uses.group_by("source", "method", maintain_order=True).agg(pl.col("works").all())
    failed = tried.filter(~pl.col("works"))
    found = intervals.clopper_pearson(len(tried) - len(failed), len(tried))
    cases = "" if failed.is_empty() else f"{failed['source'][0]} does not serve to {failed['method'][0]}"
    return changed(found, cases=cases)


def serves(table: pl.DataFrame) -> Estimate:
    """Over a recorded job, the published trace and a generated job."""
    uses = measures.rows(table, {"experiment": "use", "layout": "protobuf"})
    if lacking := [source for source in SOURCES if source not in uses["source"].to_list()]:
        cures = {"torch job": "install the extra torch", "sample chakra.0.et": traces.lacking(["chakra"])}
        raise NotMeasured("; ".join(cures[source] for source in lacking))
    return _served(uses)


def vendors(table: pl.DataFrame) -> Estimate:
    """Over the traces of accelerators at hand, if they are of several vendors."""
    uses = measures.rows(table, {"experiment": "use", "layout": "protobuf"}).filter(pl.col("vendor").is_not_null())
    if (makers := uses["vendor"].unique()).len() < 2:
        told = f"those at hand are of {makers[0]} alone" if len(makers) else "none is at hand"
        raise NotMeasured(f"it takes traces of several vendors' accelerators, in a folder chakra of the traces; {told}")
    return _served(uses)


def mean_error(**where: Any) -> measures.Measure:
    """The mean relative error over windows, with its interval."""

    def measure(table: pl.DataFrame) -> Estimate:
        if "error" not in table.columns:
            raise NotMeasured("nothing was recorded here: install the extra torch")
        return intervals.bootstrap(measures.rows(table, {"experiment": "step", **where})["error"].to_list())

    return measure


def times_the_error(method: str) -> measures.Measure:
    """How many times the replay's error that of another method is where ranks are late: the geometric mean of windows.

    Other work on the machine spoils a window for all methods: each is judged within its window.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        if "error" not in table.columns:
            raise NotMeasured("nothing was recorded here: install the extra torch")
        steps = measures.rows(table, {"experiment": "step", "late": True}).sort("seed", "run")
        other, own = (steps.filter(pl.col("method") == one)["error"].clip(LEAST) for one in (method, "replay"))
        times = intervals.bootstrap((other / own).log().to_list())
        return Estimate(math.exp(times.value), math.exp(times.low), math.exp(times.high), times.n)

    return measure


LEAST = 1e-3  # an error below a thousandth of a step is as good as none
JOB = "(a torch job of two ranks over gloo, most of its step slept)"

claims = [
    Claim("one-format", serves),
    Claim("vendors", vendors),
    Claim(
        "production",
        measures.not_here("needs traces of a production cluster; the public samples are one rank's step each"),
    ),
    Claim(
        "replay-error",
        mean_error(method="replay", late=False),
        asks=f"The replay of a recorded job is off the measured step by at most 10 % {JOB}.",
        kind=Kind.AT_MOST,
        value=0.10,
        unit="share",
        evidence=Evidence.REAL,
    ),
    Claim(
        "end-to-end",
        times_the_error("end-to-end"),
        asks="Where ranks are late in turn, the healthy step foretells the step worse than the healthy trace replayed.",
        kind=Kind.RATIO,
        toward="up",
        evidence=Evidence.REAL,
    ),
    Claim(
        "timeline",
        times_the_error("timeline"),
        asks="There a timeline that knows no dependencies, told of the same delays, is farther off than the replay.",
        kind=Kind.RATIO,
        toward="up",
        evidence=Evidence.REAL,
    ),
    Claim(
        "json",
        lambda table: _served(measures.rows(table, {"experiment": "use", "layout": "json"})),
        asks="Published traces in the JSON layout serve the same uses as those in protobuf.",
        kind=Kind.EVERY,
    ),
    Claim(
        "speed",
        measures.mean("nodes_per_second", experiment="speed", ranks=128),
        asks="At least a million nodes are replayed in a second on one core, the plan made (generated, 128 ranks).",
        kind=Kind.AT_LEAST,
        value=1e6,
        unit="nodes/s",
        evidence=Evidence.MODEL,
    ),
]
