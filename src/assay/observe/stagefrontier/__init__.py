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
four busy ranks on two cores would measure the scheduler. Where other work makes steps scatter, job and faults are
slowed down alike, and where even that does not help the machine was too busy to tell. All faults from a tenth of a step
up count, whether or not the noise of their window leaves them visible (a column says); the expert's dashboard, which
knows like the frontier in which stages ranks only wait, is among the rivals. What the recorder costs is timed in one
process, as a share of the job's step (`benchmarks/monitor.py`: in a whole job). Of the three profilers only PyTorch's
is here.

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
from typing import TYPE_CHECKING

import polars as pl

from assay.observe.frontier.diagnosis import diagnose
from assay.observe.frontier.vectors import window_of
from assay.observe.interface import Attributor, Diagnosis
from assay.observe.stagefrontier import ddp, trials
from assay.observe.stagefrontier.dashboards import DASHBOARDS
from assay.record import intervals, measures
from assay.record.errors import BadInput
from assay.record.tables import Tables
from assay.record.timing import too_busy
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
needs = ("torch",)
own_input = "assay watch run -- torchrun --nproc-per-node 2 examples/train.py"
references = (
    "Where the wait is recorded apart: PyTorch's DDP communication hooks, one call for each gradient bucket.",
)
METHODS = ["frontier", *DASHBOARDS]
COUNTED = pl.col("delta") >= 0.1  # of a step
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


def study(lab: Lab) -> Tables:
    """Hidden faults in a real job beside five dashboards and a profiler; modelled clusters; the recorder's cost."""
    here = replace(lab, workers=0)  # a launch starts four processes itself
    runs = {
        "rounds": lab.pick(quick=1, full=2), "deltas": lab.pick(quick=trials.DELTAS[1:4], full=trials.DELTAS),
        "steps": lab.pick(quick=7, full=20), "profiled": lab.pick(quick=ddp.SLOW[:3:2], full=ddp.SLOW),
    }  # fmt: skip
    scale = [{"ranks": 128, "steps": 100}, {"ranks": 1000, "steps": lab.pick(quick=50, full=200)}]
    launches = here.with_seeds(quick=1, full=3).run(trials.hidden_faults, [runs], per="run")
    lab.cases.update(("recording", "method", "stage", "rank", "delta", "window"))
    return {
        "faults": launches.drop("rounds", "deltas", "profiled", "steps"),
        "many ranks": here.with_seeds(quick=2, full=3).run(trials.many_ranks, scale, per="run").drop("steps"),
        "cost": here.with_seeds(quick=3, full=10).run(trials.recorder_cost, [{"steps": 40}], per="run").drop("steps"),
    }


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
    hits = table.filter((pl.col("experiment") == "faults") & COUNTED).with_columns(outcome=outcome)
    shares = hits.group_by("recording", "method", "outcome").len("windows").sort("recording", "method", "outcome")
    order = pl.col("outcome").replace_strict({name: i for i, name in enumerate(OUTCOMES)}, return_dtype=pl.Int64)
    bars = (
        alt.Chart(shares.with_columns(order=order))
        .mark_bar()
        .encode(
            x=alt.X("windows:Q", stack="normalize", title="share of faults", axis=alt.Axis(format="%")),
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


def launched(table: pl.DataFrame, **where: str) -> pl.DataFrame:
    """Windows of the real job, unless other work on the machine hides what was injected.

    By how much the steps of a launch scatter decides, not what was found in them.
    """
    rows = measures.rows(table, where)
    for _, launch in table.filter(pl.col("noise").is_not_null()).group_by("seed"):
        if (noise := trials.noise_of(launch["noise"].to_list())) > trials.NOISY:
            raise too_busy(f"noise of {noise:.0%} of a step, {launch['pace'][0]} times as long as on an idle one")
    return rows


def faults(table: pl.DataFrame, method: str, recording: str) -> pl.DataFrame:
    """What a method made of all faults that count, in order."""
    rows = launched(table, experiment="faults", method=method, recording=recording)
    return rows.filter(COUNTED).sort("seed", "window")


def found(table: pl.DataFrame) -> Estimate:
    """The share of faults that are among the frontier's first two suspects."""
    top = faults(table, "frontier", trials.APART)["top2"]
    return intervals.clopper_pearson(int(top.sum()), len(top))


def better(column: str, recording: str, *dashboards: str) -> measures.Measure:
    """By how much more often a test holds for the frontier than for the best of some dashboards, on the same faults."""

    def measure(table: pl.DataFrame) -> Estimate:
        held = {name: faults(table, name, recording)[column].cast(pl.Int8) for name in ("frontier", *dashboards)}
        rival = max(dashboards, key=lambda name: int(held[name].sum()))
        gained = intervals.bootstrap((held["frontier"] - held[rival]).to_list())
        return replace(gained, cases=f"{rival}, of {len(dashboards)}" if len(dashboards) > 1 else "")

    return measure


def unconfirmed(recording: str) -> measures.Measure:
    """The share of windows with two equally late ranks in which nobody is confirmed."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = launched(table, experiment="co-critical", recording=recording)
        against = rows.filter(pl.col("label") == "confirmed")["stage"]
        held = intervals.clopper_pearson(len(rows) - len(against), len(rows))
        return replace(held, cases=f"confirmed: {', '.join(against.unique().sort())}" if len(against) else "")

    return measure


def silent(table: pl.DataFrame) -> Estimate:
    """The share of healthy windows in which nobody is a confirmed suspect."""
    labels = launched(table, experiment="healthy", recording=trials.APART)["label"]
    return intervals.clopper_pearson(int((labels != "confirmed").sum()), len(labels))


def fewer_bytes(table: pl.DataFrame) -> Estimate:
    """How many times the summary goes into the profiler's traces of the same steps, where both lead to one stage."""
    rows = measures.rows(table, {"experiment": "profiler", "agrees": True})
    return intervals.ratio(rows["trace_bytes"].to_list(), rows["summary_bytes"].to_list())


claims = [
    Claim("top-two", found),
    Claim("overhead", measures.mean("share", experiment="cost")),
    Claim("trace-bytes", fewer_bytes),
    Claim("profilers", measures.share("agrees", experiment="profiler")),
    Claim(
        "accounting", measures.share("exact", method="frontier", experiment="faults"),
        construction="advances telescope: the frontier's definition makes them add up to the slowest rank's total",
    ),
    Claim(
        "best-dashboard", better("top1", trials.APART, *DASHBOARDS), kind=Kind.DIFFERENCE, toward="up", unit="share",
        asks="StageFrontier's first suspect is the right rank and stage more often than that of the best of five "
        "dashboards, where the wait for gradients is recorded apart.",
    ),
    Claim(
        "means", better("stage_top1", trials.WITHIN, "mean"), kind=Kind.DIFFERENCE, toward="up", unit="share",
        asks="With the wait inside the backward pass, the frontier's first suspect is in the right stage more often "
        "than that of per-stage means.",
    ),
    Claim(
        "co-critical", unconfirmed(trials.APART), kind=Kind.EVERY,
        asks="Of two ranks that are equally late in different stages none is confirmed, where the wait for gradients "
        "is recorded apart.",
    ),
    Claim(
        "co-critical-within", unconfirmed(trials.WITHIN), kind=Kind.EVERY,
        asks="Of two ranks that are equally late in different stages none is confirmed with the wait inside the "
        "backward pass, in which one of them may be late.",
    ),
    Claim(
        "healthy", silent, kind=Kind.PROPORTION, value=1.0, toward="up",
        asks="In 100 % of healthy windows, to within 5 %, StageFrontier confirms nobody.",
    ),
    Claim(
        "sum-of-maxima", measures.mean("maxima", method="frontier", experiment="faults", recording=trials.APART),
        kind=Kind.RATIO, toward="up", asks="Per-stage maxima add up to more than the group's step time.",
    ),
    Claim(
        "scale", measures.share("top2", experiment="scale", ranks=1000), kind=Kind.EVERY, evidence=Evidence.MODEL,
        asks="Every fault from a tenth to half of a step on one of 1,000 modelled ranks is among StageFrontier's top "
        "two suspects.",
    ),
]  # fmt: skip
