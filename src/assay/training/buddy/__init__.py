"""Buddy: hand small messages to an agent on another core that gathers, routes and delivers them, and go on computing.

An application with many small, one-sided messages spends its own core on sorting them by destination, filling buffers
and calling the network. Here a send puts rows into a ring in shared memory and returns. The node's agent, a process on
a spare core (in the paper also on the network card), gathers rows by destination node, sends a packet when a buffer is
full, when nothing came for a while, or at a barrier, and deals out what arrives. Handlers take batches. A barrier ends
when two successive sums over all ranks agree that as many rows were handled as sent.

It pays where the host is the bottleneck, and costs where the agent is: the ratio of memory traffic to bytes that are
communicated is meant to tell. Five applications really compute and communicate: histogram, sparse transpose, Monte
Carlo transport, connected components, index gather. Beside the proxy: the same router inside the application (inline),
buffers that leave only at barriers (bulk), and inline with the spare core given to the application. There is no DPU
here: what its cores or its missing cache access do is not measured.

arXiv:2605.04842.

>>> (ran,) = run("proxy", [Task("histogram", scale=1)], Machine(nodes=2), seed=0)
>>> bool((ran.result == histogram_alone(2, 1, 0)).all()), ran.rows
(True, 16384)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from assay.record.measures import Measure, best, clocked, counted, mean, not_here, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.training.buddy import trials
from assay.training.buddy.apps import APPS
from assay.training.buddy.apps import histogram_alone as histogram_alone
from assay.training.buddy.client import Comm as Comm
from assay.training.buddy.launch import Machine as Machine
from assay.training.buddy.launch import Ran as Ran
from assay.training.buddy.launch import Task as Task
from assay.training.buddy.launch import run as run

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
use_when = "Messages are many, small and one-sided, a core is idle or the network card has some, and the host is busy."
avoid_when = (
    "The spare core could run the application itself, or messages are already sent in large batches: gathering them is "
    "then too cheap to be worth a copy through a ring."
)
own_input = "assay compare buddy --app examples/messages.py:count_words --words 1"
references = (
    "Termination: Mattern, Distributed Computing 1987 (four counters).",
    "Aggregation: YGM, Priest et al., LLNL; conveyors, Maley and DeVinney, 2019.",
)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Applications with and without a proxy, and rows counted under drawn delays."""
    here = replace(lab, workers=0)
    size = lab.pick(quick={"scale": 6, "repeats": 4}, full={"scale": 64, "repeats": 8})
    late = [{"nodes": 2, "per_node": 2, "mode": "proxy"}, {"nodes": 3, "per_node": 1, "mode": "inline"}]
    return {
        "applications": here.with_seeds(quick=2, full=5).run(trials.applied, [size], per="case"),
        "delays": here.with_seeds(quick=2, full=10).run(trials.fuzzed, late),
    }


def _cell(app: str, mode: str, passes: int = 0) -> dict[str, object]:
    return {"app": app, "mode": mode, "passes": passes}


def _times(column: str, slow: str, fast: str, app: str, passes: int = 0) -> Measure:
    """How many times as long one way takes as another."""
    of, to = _cell(app, slow, passes), _cell(app, fast, passes)
    return ratio(column, of=of, to=to, experiment="applications")


def _best(column: str, slow: str, fast: str) -> Measure:
    return best({app: _times(column, slow, fast, app) for app in APPS})


def _saves(table: pl.DataFrame, app: str, passes: int = 0) -> float:
    """Processor seconds of the bottleneck, host or agent, inline over proxy: above 1 the proxy pays."""
    return _times("bottleneck", "inline", "proxy", app, passes)(table).value


def _predicted(table: pl.DataFrame) -> Estimate:
    """The share of applications on whose side of a threshold the measured sign lies; the threshold is the sweep's.

    It is the ratio of memory to communication above which the histogram that reads more and more begins to pay.
    """
    sweep = [(_ratio(table, "histogram", passes), _saves(table, "histogram", passes) > 1) for passes in trials.PASSES]
    paying = [at for at, pays in sweep if pays]
    bound = min(paying, default=float("inf"))
    held = [(_saves(table, app) > 1) == (_ratio(table, app) >= bound) for app in APPS]
    return counted(sum(held) / len(held), len(held))


def _ratio(table: pl.DataFrame, app: str, passes: int = 0) -> float:
    return mean("memory_to_communication", experiment="applications", **_cell(app, "inline", passes))(table).value


def _fewest(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "applications", "mode": "proxy"})["aggregation"]
    return counted(float(found.to_numpy().min()), len(found))


_ON_TIME = {"experiment": "applications"}
claims = [
    Claim("speed", clocked(_best("seconds", "inline", "proxy"), **_ON_TIME)),
    Claim(
        "dram", not_here("needs a BlueField-3 DPU and counters of the memory controllers (perf stat -e uncore_imc/*, "
                         "amd_df/*), which this machine does not have"),
    ),
    Claim("predicts", clocked(_predicted, **_ON_TIME)),
    Claim(
        "right", share("right", experiment="applications"), kind=Kind.EVERY,
        asks="Every application finds what one process finds, however its messages travel.",
    ),
    Claim(
        "once", share("once", experiment="delays"), kind=Kind.EVERY,
        asks="Under drawn delays every row is handled exactly once, and before the barrier behind it ends.",
    ),
    Claim(
        "packets", _fewest, kind=Kind.AT_LEAST, value=10.0, unit="ratio",
        asks="Aggregation sends at least 10 times fewer packets than messages, in every application.",
    ),
    Claim(
        "host", clocked(_best("host", "inline", "proxy"), **_ON_TIME), kind=Kind.RATIO, toward="up",
        asks="Ranks spend less processor time with a proxy than inline, in the best application.",
    ),
    Claim(
        "high", clocked(_times("seconds", "inline", "proxy", "histogram", trials.PASSES[-1]), **_ON_TIME),
        kind=Kind.AT_LEAST, value=1.2, unit="ratio",
        asks=f"A histogram with {trials.PASSES[-1]} passes over memory a batch is at least 1.2 times as fast by proxy.",
    ),
    Claim(
        "spare", clocked(best({app: _times("seconds", "inline on both", "proxy", app) for app in APPS}), **_ON_TIME),
        kind=Kind.RATIO, toward="up",
        asks="In the best application the spare core serves better as a proxy than as a second core for the ranks.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """What the bottleneck's processor time falls by, over the ratio of memory to communication."""
    import altair as alt

    cases = [(app, 0) for app in APPS] + [("histogram", passes) for passes in trials.PASSES[1:]]
    found = pl.DataFrame({
        "case": [app if not passes else f"{app}, {passes} passes" for app, passes in cases],
        "ratio": [_ratio(table, app, passes) for app, passes in cases],
        "saves": [_saves(table, app, passes) for app, passes in cases],
    })  # fmt: skip
    points = (
        alt.Chart(found)
        .mark_point(filled=True, size=80)
        .encode(
            x=alt.X("ratio:Q", title="bytes of memory touched for a byte communicated", scale=alt.Scale(type="log")),
            y=alt.Y("saves:Q", title="time of the bottleneck, inline over proxy", scale=alt.Scale(zero=False)),
            color=alt.Color("case:N", title=None),
        )
    )
    even = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(strokeDash=[4, 4]).encode(y="y:Q")
    chart: alt.Chart = (points + even).properties(width=380, height=260, title="Does a proxy pay?")
    return chart
