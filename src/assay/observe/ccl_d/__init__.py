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
under a second (full size: four). So its six minutes cannot be measured here: five of them are that setting, and adding
it to what is measured gives them back by construction. What is measured is what comes after the time-out.
Who is sooner is timed from the symptom to the name; tools that look at the same records have them no sooner, and those
that end the job pay for no restart, which is what takes hours at size. Other work on the machine is noise to the ranks
and can look like a fault; `queued` says how long they waited for a processor.

arXiv:2605.04478, PPoPP 2026.

>>> from assay.observe.ccl.locate import locate
>>> from assay.observe.ccl_d.model import modelled
>>> records, symptom, _ = modelled(ranks=512, fault="S2", seed=3)
>>> diagnosis = locate(records, symptom)
>>> diagnosis.label, diagnosis.suspects[0].indicator
('S2', 'send to 169')
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from assay.observe.ccl_d import baselines, trials
from assay.observe.ccl_d.trials import OURS
from assay.record import intervals, measures
from assay.record.tables import Tables
from assay.record.timing import too_busy
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
own_input = "assay hang examples/dumps"
references = (
    "Flight Recorder: torch's ring buffer of collective calls, and its analyzer.",
    "NCCL RAS: a state poll of all ranks; C4 (Dong et al.): connection statistics; Greyhound: fail-slow validation.",
)

# -------------------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> Tables:
    """Six kinds of fault on real ranks, beside six tools; then jobs without a fault; then the decision at size."""
    launches = replace(lab.with_seeds(quick=1, full=10), workers=0)  # each starts processes of its own
    case = {
        "ranks": 4, "teams": 2, "hang_after": lab.pick(quick=0.6, full=4.0), "watched": lab.pick(quick=40, full=200),
    }  # fmt: skip
    table = launches.run(trials.launch, [case], per="row")
    first = ["experiment", "fault", "method", "turn"]
    parts = pl.col("row").str.split_exact("/", 3).struct
    named = table.with_columns(parts[place].alias(name) for place, name in enumerate(first))
    lab.cases.update(first)
    return named.drop("row", "teams", "hang_after", "watched").sort(*first, "ranks", "seed")


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


ONE = ["fault", "turn", "seed"]  # what makes an incident
WAITS = 300.0  # seconds before the paper calls an operation hung


def incidents(table: pl.DataFrame) -> pl.DataFrame:
    """Incidents with what every tool made of them, unless other work made ranks wait as much as the faults did."""
    rows = measures.rows(table, {"experiment": "incident"})
    queued = float(rows["queued"].drop_nulls().mean() or 0.0)  # type: ignore[arg-type]
    if queued > trials.TOGETHER:
        raise too_busy(f"ranks waited {queued:.0%} of the time for a processor, as long as for some of the faults")
    return rows


def right(table: pl.DataFrame) -> Estimate:
    """The share of incidents with the right class and exactly the right ranks."""
    rows = incidents(table).filter(pl.col("method") == OURS)
    return intervals.clopper_pearson(int(rows["right"].sum()), len(rows))


def after_timeout(table: pl.DataFrame) -> Estimate:
    """Seconds from the end of a hang's time-out to the right name."""
    waits = measures.rows(table, {"experiment": "incident", "method": OURS})["after_timeout"].drop_nulls()
    if waits.is_empty():
        raise NotMeasured("no hang was named: other work on this machine hides them; run it again when it is idle")
    return intervals.bootstrap(waits.to_list())


def total(table: pl.DataFrame) -> Estimate:
    """The same after the paper's own five minutes."""
    found = after_timeout(table)
    return replace(found, value=WAITS + found.value, low=WAITS + found.low, high=WAITS + found.high)


def sooner(tool: str) -> measures.Measure:
    """How many times longer a tool took from the symptom to the culprits, over incidents in which both named them."""

    def measure(table: pl.DataFrame) -> Estimate:
        ours = measures.rows(table, {"experiment": "incident", "method": OURS, "named": True})
        theirs = measures.rows(table, {"experiment": "incident", "method": tool, "named": True})
        both = ours.join(theirs, on=ONE, suffix="_theirs").sort(ONE)
        if both.is_empty():
            raise NotMeasured(f"no incident was named by both CCL-D and {tool}")
        return intervals.ratio(both["seconds_theirs"].to_list(), both["seconds"].to_list())

    return measure


def beyond_tools(table: pl.DataFrame) -> Estimate:
    """The share of incidents whose culprits are named, less that of the other tool that names most."""
    rows = incidents(table)
    ours = rows.filter(pl.col("method") == OURS)
    count = {name: int(rows.filter(pl.col("method") == name)["named"].sum()) for name in baselines.TOOLS}
    rival = max(count, key=lambda name: count[name])
    both = ours.join(rows.filter(pl.col("method") == rival), on=ONE, suffix="_theirs").sort(ONE)
    gained = both["named"].cast(pl.Int8) - both["named_theirs"].cast(pl.Int8)
    return replace(intervals.bootstrap(gained.to_list()), cases=f"{rival}, of {len(count)} tools")


def off_by(table: pl.DataFrame) -> Estimate:
    """By how much the share of lateness is off, where rounds are steady enough to tell."""
    rows = measures.rows(table, {"experiment": "split"})
    if (noise := float(rows["noise"].max())) > trials.STEADY:  # type: ignore[arg-type]
        raise too_busy(f"rounds scatter by {noise:.0%} of what was injected")
    return intervals.bootstrap(rows["share_error"].to_list())


def without_alarm(table: pl.DataFrame) -> Estimate:
    """The share of rounds without a fault, steady or with jitter, in which nobody raised an alarm."""
    rows = measures.rows(table, {"experiment": "quiet", "method": "3 in a row"})
    if (queued := float(rows["queued"].max())) > trials.CROWDED:  # type: ignore[arg-type]
        raise too_busy(f"ranks waited {queued:.0%} of the time for a processor, which is a slow-down and no jitter")
    rounds, alarms = int(rows["rounds"].sum()), int(rows["false_alarms"].sum())
    found = intervals.clopper_pearson(rounds - alarms, rounds)
    return replace(found, cases=f"{alarms} alarms in {rounds} rounds") if alarms else found


claims = [
    Claim(
        "seconds", total,
        construction="five of the six minutes are the paper's own time-out, added to what comes after one here",
    ),
    Claim("coverage", right),
    Claim("sooner", measures.best({name: sooner(name) for name in baselines.TOOLS}, min)),
    Claim(
        "after-timeout", after_timeout, kind=Kind.AT_MOST, value=60.0, unit="s",
        asks="What follows a hang's time-out until its rank is named takes at most 60 s: what the paper's six minutes "
        "leave after a time-out of five (the paper: 4,000 GPUs; here: 4 ranks).",
    ),
    Claim(
        "beyond-tools", beyond_tools, kind=Kind.DIFFERENCE, toward="up", unit="share",
        asks="CCL-D names exactly the faulty ranks in a larger share of incidents than the best of six other tools.",
    ),
    Claim(
        "split", off_by, kind=Kind.AT_MOST, value=0.05, unit="share",
        asks="Where a rank is late and its sending is slow, the share of lateness is off by at most 5 % of what was "
        "injected.",
    ),
    Claim(
        "quiet", without_alarm, kind=Kind.EVERY,
        asks="No round of a job without a fault raises an alarm, be it steady or one round in twenty delayed.",
    ),
    Claim(
        "decision", measures.mean("decision_seconds", experiment="decision"), evidence=Evidence.MODEL,
        kind=Kind.AT_MOST, value=0.15, unit="s",
        asks="A decision over the records of 4,000 modelled ranks takes at most 0.15 s.",
    ),
    Claim(
        "probe", measures.mean("probe_share", experiment="probe"), kind=Kind.AT_MOST, value=0.01, unit="share",
        asks="The probe's writes take at most 1 % of an all-reduce of 1 MiB.",
    ),
]  # fmt: skip
