"""CCL-D: count Sends and Recvs inside every collective on every rank, and read from the counts who hangs or drags.

When a training job hangs or slows down, all ranks look alike: they wait in the same collective. CCL-D keeps a probe
in the collective library that writes, for each rank, which operation it is in and how many Send and Recv primitives
are complete: 1,184 bytes, whatever the size of the job. Each rank watches its own record; only when one of them sees
a hang or a lasting slow-down does an analyzer pull all records and decide, first which of six kinds of trouble it
is (not entered, inconsistent, stuck inside; late, slow wire, both), then which rank. Clocks are never compared.

The mechanism is in small files of one job each, in `assay.observe.ccl`: `probe` (the record), `detect` (a rank's own
watch) and `locate` (the decision). The paper's text was not at hand: thresholds (1.5 times the usual duration, three
rounds in a row, 0.2 and 0.8 for the share of lateness) and the walk along the ring are reconstructed.

The study runs a ring of real processes and sockets and injects real faults on a hidden rank: a rank that does not
call, one that calls something else, SIGSTOP and SIGKILL inside a collective, a late rank, a capped sender. Computing is
a sleep, because this machine has two cores. Time-outs are scaled: the paper waits five minutes for a hang, the lab
under a second (full size: four). The first claim puts the paper's five minutes back, for hangs that were named rightly.
Who is sooner is timed from the symptom to the name; bisection, its rival there, pays for no restart of the job, which
is what takes hours. Other work on the machine is noise to the ranks and can look like a fault; `queued` says how long
they waited for a processor.

arXiv:2605.04478, PPoPP 2026.

>>> from assay.observe.ccl.locate import locate
>>> from assay.observe.ccl.model import modelled
>>> records, symptom, _ = modelled(ranks=512, fault="S2", seed=3)
>>> diagnosis = locate(records, symptom)
>>> diagnosis.label, diagnosis.suspects[0].indicator
('S2', 'send to 169')
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from assay.observe.ccl import baselines, trials
from assay.observe.ccl.trials import OURS
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
use_when = (
    "Jobs of many ranks lose hours to hangs and stragglers, and you can put counters into the collective library (or "
    "have Flight Recorder dumps, which answer half of the questions)."
)
avoid_when = (
    "Ranks do not work in step (then durations do not say who waits for whom), or a fault lasts less than a few rounds."
)
own_input = "assay hang DIR    (a folder with the Flight Recorder dumps of all ranks)"
references = (
    "Flight Recorder: torch's ring buffer of collective calls, and its analyzer.",
    "NCCL RAS: a state poll of all ranks; C4 (Dong et al.): connection statistics; Greyhound: fail-slow validation.",
)

# -------------------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> pl.DataFrame:
    """Six kinds of fault on real ranks, beside six tools; then jobs without a fault; then the decision at size."""
    launches = replace(lab, seeds=lab.pick(quick=2, full=10), workers=0)  # each starts processes of its own
    case = {
        "ranks": lab.pick(quick=4, full=8), "hang_after": lab.pick(quick=0.8, full=4.0),
        "watched": lab.pick(quick=40, full=1_200),
    }  # fmt: skip
    table = launches.run(trials.launch, [case], per="row")
    parts = pl.col("row").str.splitn("/", 3).struct
    named = table.with_columns(parts[0].alias("experiment"), parts[1].alias("fault"), parts[2].alias("method"))
    first = ["experiment", "fault", "method", "ranks", "seed"]
    return named.select(*first, pl.exclude(*first, "row", "hang_after", "watched")).sort(first)


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Who names the culprit of which fault: the share of incidents, a row a tool, a column a class."""
    import altair as alt

    cells = (
        table.filter(pl.col("experiment") == "incident")
        .group_by("method", "fault")
        .agg(pl.col("named").cast(pl.Float64).mean().alias("share"), pl.len().alias("incidents"))
    )
    words = ("H1 not entered", "H2 inconsistent", "H3 stuck inside", "S1 late", "S2 slow wire", "S3 both")
    cells = cells.with_columns(what=pl.col("fault").replace_strict({word[:2]: word for word in words}))
    base = alt.Chart(cells).encode(
        x=alt.X("what:N", title=None, axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)),
        y=alt.Y("method:N", title=None, sort=[OURS, *baselines.TOOLS], axis=alt.Axis(ticks=False, domain=False)),
    )
    squares = base.mark_rect(stroke="white").encode(
        color=alt.Color("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], scheme="blues"))
    )
    figures = base.mark_text(fontSize=12).encode(
        text=alt.Text("share:Q", format=".0%"),
        color=alt.condition("datum.share > 0.5", alt.value("white"), alt.value("#333333")),
    )
    title = alt.Title(
        "Who names the culprit", subtitle="Share of injected incidents in which exactly the faulty ranks are named"
    )
    chart: alt.LayerChart = (squares + figures).properties(width=560, height=260, title=title)
    return chart


# ------------------------------------------------------------------------------------------------------- the claims


def covered(method: str, table: pl.DataFrame) -> Estimate:
    """In how many of the six classes the tool named the culprits in at least nine incidents of ten."""
    rows = measures.rows(table, {"experiment": "incident", "method": method})
    shares = rows.group_by("fault").agg(pl.col("named").mean())["named"].to_list()
    count = float(sum(share >= 0.9 for share in shares))
    return Estimate(count, count, count, len(rows))


def best_tool(table: pl.DataFrame) -> Estimate:
    """The same for the best of the other tools."""
    return max((covered(name, table) for name in baselines.TOOLS), key=lambda estimate: estimate.value)


def total(table: pl.DataFrame) -> Estimate:
    """Seconds to the right name in hangs: the paper's five minutes for the lab's, and the decision for 4,000 ranks."""
    waits = measures.rows(table, {"experiment": "incident", "method": OURS})["total"].drop_nulls()
    if waits.is_empty():
        raise NotMeasured("no hang was named: other work on this machine hides them; run it again when it is idle")
    decision = measures.rows(table, {"experiment": "decision"})["decision_seconds"].max()
    return intervals.bootstrap((waits + float(decision)).to_list())  # type: ignore[arg-type]


def right(table: pl.DataFrame) -> Estimate:
    """The share of incidents with the right class and exactly the right ranks."""
    rows = measures.rows(table, {"experiment": "incident", "method": OURS})
    return intervals.clopper_pearson(int(rows["right"].sum()), len(rows))


def sooner(table: pl.DataFrame) -> Estimate:
    """How many times longer a bisection by micro-benchmarks took from the symptom to the rank, where both named it."""
    ours = measures.rows(table, {"experiment": "incident", "method": OURS, "named": True})
    theirs = measures.rows(table, {"experiment": "incident", "method": "bisection", "named": True})
    both = ours.join(theirs, on=["fault", "seed"], suffix="_theirs")
    if both.is_empty():
        raise NotMeasured("no incident was named by both CCL-D and bisection")
    return intervals.ratio(both["seconds_theirs"].to_list(), both["seconds"].to_list())


def false_alarms(fault: str, repeats: int) -> measures.Measure:
    """Rounds without a fault that raised an alarm, counted over all jobs; n is the rounds watched."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "quiet", "fault": fault, "method": f"{repeats} in a row"})
        count = float(rows["false_alarms"].sum())
        return Estimate(count, count, count, int(rows["rounds"].sum()))

    return measure


claims = [
    Claim("seconds", total, evidence=Evidence.MODEL),
    Claim("coverage", right),
    Claim("sooner", sooner),
    Claim(
        "question-1",
        lambda t: covered(OURS, t),
        asks="classes of the six in which the culprits are named.",
        kind=Kind.AT_LEAST,
        value=6.0,
        unit="?",
    ),
    Claim(
        "question-2",
        best_tool,
        asks="classes of the six in which the best other tool names the culprits.",
        kind=Kind.AT_MOST,
        value=5.0,
        unit="?",
    ),
    Claim(
        "question-3",
        measures.mean("share_error", experiment="split"),
        asks="the share of lateness is off by this much of what was injected, when both are.",
        kind=Kind.AT_MOST,
        value=0.05,
        unit="?",
    ),
    Claim(
        "question-4",
        false_alarms("healthy", 3),
        asks="false alarms in all rounds of healthy jobs.",
        kind=Kind.AT_MOST,
        value=0.0,
        unit="?",
    ),
    Claim(
        "question-5",
        false_alarms("jitter", 3),
        asks="false alarms in all rounds with jitter, three in a row asked for.",
        kind=Kind.AT_MOST,
        value=0.0,
        unit="?",
    ),
    Claim(
        "question-6",
        false_alarms("jitter", 1),
        asks="false alarms in all rounds with jitter, one slow round being enough.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-7",
        measures.mean("decision_seconds", experiment="decision"),
        asks="seconds to decide over the records of 4,000 ranks.",
        kind=Kind.AT_MOST,
        value=0.15,
        unit="?",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-8",
        measures.mean("probe_share", experiment="probe"),
        asks="share of a 1 MiB all-reduce that the probe's writes take.",
        kind=Kind.AT_MOST,
        value=0.01,
        unit="?",
    ),
]
