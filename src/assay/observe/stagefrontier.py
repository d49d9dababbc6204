"""StageFrontier: follow the slowest rank's running total through a step; each jump names the stage that cost it.

In data-parallel training all ranks wait for the slowest, so a stall on one rank shows up as a long backward pass on
all the others, and a dashboard of per-stage means or maxima blames the waiting. Ranks here report nothing but how
long each stage took, by their own clocks: a few bytes a step. The largest running total over ranks at each stage
boundary is the frontier. Its advances add up to the group's step exactly; ranks that only wait do not advance it. The
stage whose advance grew, and the rank that led meanwhile, are where to send a profiler. A label says how sure that is.

One thing had to be added for real jobs: a rank that is late *after* the gradients are reduced (optimizer, checkpoint)
makes the others wait in the next step. So rows are cut where all ranks leave the reduction together, and not where
the loop begins. And where the wait is recorded apart from the backward pass (a hook on the last gradient bucket), a
slow backward pass names its rank too; without that, no durations can, and the label says so.

The thresholds of the labels are ours (the paper prints none). The study launches a real DistributedDataParallel job
over gloo, four ranks, and injects faults on ranks that only the schedule knows; healthy compute is mostly sleep, as
four busy ranks on two cores would measure the scheduler. Most claims count faults that are visible at all: those that
cost a step more than the noise of its window leaves in doubt; at quick size, six steps a window, that is about half of
them, and one claim counts all from a tenth of a step up. What the recorder costs is timed in one process, as a share of
a 50 ms step (`benchmarks/monitor.py`: in a whole job). Of the three profilers only PyTorch's is here.

StageFrontier, arXiv:2606.06751.

>>> import numpy as np
>>> from assay.observe.frontier.collector import STAGES, Vectors, frame
>>> usual = np.tile(np.array([4, 8, 12, 3, 3, 0]) * 10**6, (20, 1))
>>> late, waiting = usual.copy(), usual.copy()
>>> late[:, 0] += 9 * 10**6       # rank 1 waits for its data,
>>> waiting[:, 2] += 9 * 10**6    # rank 0 for rank 1
>>> healthy = frame([Vectors(r, 0, STAGES, usual) for r in range(2)])
>>> found = StageFrontier(healthy).explain(frame([Vectors(0, 0, STAGES, waiting), Vectors(1, 0, STAGES, late)]))
>>> found.label, found.suspects[0].entity, found.suspects[0].indicator
('confirmed', '1', 'data')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.observe.frontier import trials
from assay.observe.frontier.dashboards import DASHBOARDS
from assay.observe.frontier.diagnosis import diagnose
from assay.observe.frontier.vectors import window_of
from assay.observe.interface import Attributor, Diagnosis
from assay.record import intervals, measures
from assay.record.errors import BadInput
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.telemetry import Frame

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # processes, sockets, gradients; the rows with hundreds of ranks are modelled and say so
use_when = (
    "A synchronous data-parallel job (DDP, FSDP, ZeRO) got slower and nobody knows on which rank to run a profiler: "
    "always on, a few bytes a step, no synchronised clocks."
)
avoid_when = (
    "Ranks do not wait for each other in every step, stages overlap on a device without its own timing, or the job "
    "hangs (see ccl-d). It routes a profiler; it names no cause."
)
own_input = "assay watch"
references = (
    "Where the wait is recorded apart: PyTorch's DDP communication hooks, one call for each gradient bucket.",
)
METHODS = ["frontier", *DASHBOARDS]
OUTCOMES = ["right rank and stage", "right stage, another rank", "another stage"]


class StageFrontier(Attributor):
    """Blames a slow window on a (rank, stage), beside a healthy window of the same job if there is one.

    Frames hold spans of the category `stage` with the step as `seq`. Only durations are read: each rank may keep a
    clock of its own. `synchronising` and `roles` are those of :func:`assay.observe.frontier.diagnosis.diagnose`.
    """

    key = "stagefrontier"

    def __init__(
        self,
        reference: Frame | None = None,
        synchronising: Sequence[str] | None = None,
        roles: Sequence[str] | None = None,
    ) -> None:
        self.reference = None if reference is None else window_of(reference)
        self.synchronising, self.roles = synchronising, roles

    def explain(self, frame: Frame) -> Diagnosis:
        """Who to profile, and in which stage."""
        window, usual = window_of(frame), self.reference
        if usual is not None and (usual.stages, usual.ranks) != (window.stages, window.ranks):
            raise BadInput("stagefrontier: the reference has other ranks or stages than the window")
        return diagnose(
            window.durations, window.stages, None if usual is None else usual.durations, self.synchronising,
            self.roles, valid=window.valid, reference_valid=None if usual is None else usual.valid, ranks=window.ranks,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> pl.DataFrame:
    """Hidden faults in a real job beside five dashboards and a profiler; modelled clusters; the recorder's cost."""
    launches = replace(lab, seeds=lab.pick(quick=1, full=3), workers=0)  # each starts four processes itself
    traced = lab.pick(quick=("data", "optimizer"), full=("data", "forward", "backward", "optimizer"))
    runs = [{"runs": lab.pick(quick=25, full=100), "steps": lab.pick(quick=6, full=20), "profiled": traced}]
    scale = [{"ranks": 32, "steps": 143}, {"ranks": 128, "steps": 100}, {"ranks": 1000, "steps": lab.pick(50, 1000)}]
    scale += lab.pick(quick=[], full=[{"ranks": 4000, "steps": 100}])
    tables = [
        launches.run(trials.hidden_faults, runs, per="run").drop("runs", "profiled"),
        launches.run(trials.many_ranks, scale, per="run"),
        launches.run(trials.recorder_cost, [{"steps": 20, "step": 0.05}], per="run").drop("step"),
    ]
    whole = pl.concat([table.drop("steps") for table in tables], how="diagonal_relaxed")
    first = ["experiment", "recording", "method", "stage", "rank", "delta", "run", "seed"]
    return whole.select(*first, pl.exclude(first))


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Where each method's first suspect leads: to the fault, to its stage on another rank, or elsewhere."""
    import altair as alt

    outcome = (
        pl.when("top1")
        .then(pl.lit(OUTCOMES[0]))
        .when("stage_top1")
        .then(pl.lit(OUTCOMES[1]))
        .otherwise(pl.lit(OUTCOMES[2]))
    )
    hits = table.filter((pl.col("experiment") == "faults") & pl.col("visible")).with_columns(outcome=outcome)
    shares = hits.group_by("recording", "method", "outcome").len("windows").sort("recording", "method", "outcome")
    order = pl.col("outcome").replace_strict({name: i for i, name in enumerate(OUTCOMES)}, return_dtype=pl.Int64)
    bars = (
        alt.Chart(shares.with_columns(order=order))
        .mark_bar()
        .encode(
            x=alt.X("windows:Q", stack="normalize", title="share of visible faults", axis=alt.Axis(format="%")),
            y=alt.Y("method:N", sort=METHODS, title=None),
            color=alt.Color("outcome:N", scale=alt.Scale(domain=OUTCOMES), title="first suspect"),
            order=alt.Order("order:Q"),
        )
        .properties(width=270, height=170)
    )
    title = alt.Title("Which rank, which stage", subtitle="A real DDP job of four ranks, a fault on one of them")
    chart: alt.FacetChart = bars.facet(alt.Facet("recording:N", title=None)).properties(title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def share_of(column: str, **where: Any) -> measures.Measure:
    """The share of windows in which a test held, with the exact binomial interval."""

    def measure(table: pl.DataFrame) -> Estimate:
        held = measures.rows(table, where)[column].cast(pl.Boolean)
        return intervals.clopper_pearson(int(held.sum()), len(held))

    return measure


def misrouted(method: str, recording: str) -> measures.Measure:
    """The share of visible faults whose first suspect of this method is in another stage."""

    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "faults", "method": method, "recording": recording, "visible": True}
        right = measures.rows(table, where)["stage_top1"]
        return intervals.clopper_pearson(len(right) - int(right.sum()), len(right))

    return measure


def found_of_all(table: pl.DataFrame) -> Estimate:
    """The share of faults from a tenth of a step up, visible or not, that are among the first two suspects."""
    rows = measures.rows(table, {"experiment": "faults", "method": "frontier", "recording": trials.APART})
    found = rows.filter(pl.col("delta") >= 0.1)["top2"]
    return intervals.clopper_pearson(int(found.sum()), len(found))


def unconfirmed(recording: str) -> measures.Measure:
    """The share of windows with two equally late ranks in which nobody is confirmed."""

    def measure(table: pl.DataFrame) -> Estimate:
        labels = measures.rows(table, {"experiment": "co-critical", "recording": recording})["label"]
        value = int((labels != "confirmed").sum()) / len(labels)
        return Estimate(value, value, value, len(labels))

    return measure


def silent(table: pl.DataFrame) -> Estimate:
    """The share of healthy windows in which nobody is a confirmed suspect."""
    labels = measures.rows(table, {"experiment": "healthy"})["label"]
    return intervals.clopper_pearson(int((labels != "confirmed").sum()), len(labels))


def fewer_bytes(table: pl.DataFrame) -> Estimate:
    """How many times the summary goes into the profiler's traces of the same steps."""
    rows = measures.rows(table, {"experiment": "profiler"})
    return intervals.ratio(rows["trace_bytes"].to_list(), rows["summary_bytes"].to_list())


REAL = {"experiment": "faults", "method": "frontier", "recording": trials.APART, "visible": True}

claims = [
    Claim("top-two", measures.share("top2", **REAL)),
    Claim("overhead", measures.mean("share", experiment="cost")),
    Claim(
        "bytes", measures.mean("summary_bytes", experiment="scale", ranks=32, stage_top1=True), evidence=Evidence.MODEL
    ),
    Claim("profilers", measures.share("agrees", experiment="profiler")),
    Claim("accounting", measures.share("exact", method="frontier", experiment="faults")),
    Claim(
        "question-1",
        share_of("top1", **REAL),
        asks="the first suspect is the right rank and stage, where the wait is recorded apart, in this share of faults.",
        kind=Kind.AT_LEAST,
        value=0.8,
        unit="?",
    ),
    Claim(
        "question-2",
        found_of_all,
        asks="of all faults from a tenth of a step up, visible or not, this share lands in the top two suspects.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-3",
        misrouted("mean", trials.WITHIN),
        asks="with the wait inside backward, per-stage means send the profiler to a wrong stage in this share of faults.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-4",
        misrouted("max", trials.WITHIN),
        asks="with the wait inside backward, per-stage maxima send the profiler to a wrong stage in this share of faults.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-5",
        misrouted("frontier", trials.WITHIN),
        asks="with the wait inside backward, the frontier sends it to a wrong stage in at most this share of faults.",
        kind=Kind.DIFFERENCE,
        toward="down",
    ),
    Claim(
        "question-6",
        unconfirmed(trials.APART),
        asks="two ranks that are equally late in different stages are never confirmed, share of windows.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-7",
        unconfirmed(trials.WITHIN),
        asks="the same with the wait inside backward, where one of them is late in it, share of windows.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-8",
        silent,
        asks="no rank is confirmed in this share of healthy windows.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-9",
        measures.mean("maxima", method="frontier", experiment="faults", recording=trials.APART),
        asks="per-stage maxima add up to this many times the group's step time.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "question-10",
        fewer_bytes,
        asks="profiler traces of the same steps take this many times the bytes.",
        kind=Kind.AT_LEAST,
        value=100.0,
        unit="?",
    ),
    Claim(
        "question-11",
        measures.share("top2", experiment="scale", ranks=1000),
        asks="the fault is among the top two at 1,000 modelled ranks, share of faults.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="?",
        evidence=Evidence.MODEL,
    ),
]
