"""Buddy: hand small messages to an agent on another core that gathers, routes and delivers them, and go on computing.

An application with many small, one-sided messages spends its own core on sorting them by destination, filling buffers
and calling the network. Here a send puts rows into a ring in shared memory and returns. The node's agent, a process on
a spare core (in the paper also on the network card), gathers rows by destination node, sends a packet when a buffer is
full, when nothing came for a while, or at a barrier, and deals out what arrives. Handlers take batches. A barrier ends
when two successive sums over all ranks agree that as many rows were handled as sent.

It pays where the host is the bottleneck, and costs where the agent is: the ratio of memory traffic to bytes that are
communicated is meant to tell. It can only take off what there is to communicate, so beyond some ratio what it gains
falls again, towards nothing. Five applications really compute and communicate: histogram, sparse transpose, Monte Carlo
transport, connected components, index gather; the histogram reads more and more memory for the same messages, and the
domains of the transport shrink. Beside the proxy: the same router inside the application (inline), buffers that leave
only at barriers (bulk), and inline with the spare core given to the application. There is no DPU here: what its cores
or its missing cache access do is not measured.

arXiv:2605.04842.

>>> (ran,) = run("proxy", [Task("histogram", scale=1)], Machine(nodes=2), seed=0)
>>> bool((ran.result == histogram_alone(2, 1, 0)).all()), ran.rows
(True, 16384)
"""

from __future__ import annotations

from collections.abc import Sequence
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
    size = lab.pick(quick={"scale": 6, "repeats": 6}, full={"scale": 64, "repeats": 8})
    late = [{"nodes": 2, "per_node": 2, "mode": "proxy"}, {"nodes": 3, "per_node": 1, "mode": "inline"}]
    return {
        "applications": here.with_seeds(quick=2, full=5).run(trials.applied, [size], per="case"),
        "delays": here.with_seeds(quick=2, full=10).run(trials.fuzzed, late),
    }


_CASES = [(app, setting) for app in APPS for setting in trials.SWEEPS.get(app, (0,))]


def _cell(app: str, mode: str, setting: int = 0) -> dict[str, object]:
    return {"app": app, "mode": mode, "setting": setting}


def _times(column: str, slow: str, fast: str, app: str, setting: int = 0) -> Measure:
    """How many times as long one way takes as another."""
    of, to = _cell(app, slow, setting), _cell(app, fast, setting)
    return ratio(column, of=of, to=to, experiment="applications")


def _best(column: str, slow: str, fast: str) -> Measure:
    return best({app: _times(column, slow, fast, app) for app in APPS})


def _gains(table: pl.DataFrame, app: str, setting: int = 0) -> float:
    """Seconds inline over seconds by proxy: above 1 the proxy pays."""
    return _times("seconds", "inline", "proxy", app, setting)(table).value


def _predicted(table: pl.DataFrame) -> Estimate:
    """The share of applications whose side of a threshold tells whether a proxy pays; set on the *other* applications.

    One that was set on an application's own runs would read back what they showed.
    """
    seen = {case: (_ratio(table, *case), _gains(table, *case) > 1) for case in _CASES}
    missed = []
    for app in APPS:
        bound = threshold([point for (name, _), point in seen.items() if name != app])
        ratio_of, pays = seen[app, trials.SWEEPS.get(app, (0,))[0]]
        missed += [app] * (pays != (ratio_of >= bound))
    found = counted(1 - len(missed) / len(APPS), len(APPS))
    return replace(found, cases=f"not of {', '.join(missed)}" if missed else "")


def threshold(points: Sequence[tuple[float, bool]]) -> float:
    """The ratio from which a proxy is said to pay that is right of most points; of several the highest.

    >>> threshold([(2.0, False), (4.0, True), (6.0, False), (8.0, True), (9.0, True)])
    8.0
    """
    bounds = sorted((ratio_of for ratio_of, _ in points), reverse=True)
    return max([float("inf"), *bounds], key=lambda bound: sum((at >= bound) == pays for at, pays in points))


def _ratio(table: pl.DataFrame, app: str, setting: int = 0) -> float:
    return mean("memory_to_communication", experiment="applications", **_cell(app, "inline", setting))(table).value


def _highest(table: pl.DataFrame) -> Estimate:
    """How many times as fast a proxy makes the application, and the setting of it, with the highest ratio of all."""
    app, setting = max(_CASES, key=lambda case: _ratio(table, *case))
    return replace(_times("seconds", "inline", "proxy", app, setting)(table), cases=f"{app}, setting {setting}")


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
        "high", clocked(_highest, **_ON_TIME), kind=Kind.RATIO, toward="up",
        asks="Where most memory is touched for a byte communicated, a proxy makes it faster.",
    ),
    Claim(
        "highest", clocked(_highest, **_ON_TIME), kind=Kind.AT_LEAST, value=1.2, unit="ratio",
        asks="There it makes it at least 1.2 times as fast.",
    ),
    Claim(
        "upper", clocked(_times("seconds", "inline", "proxy", "histogram", 16), **_ON_TIME),
        kind=Kind.AT_LEAST, value=1.2, unit="ratio",
        asks="A histogram that touches 70 bytes of memory for a byte communicated is 1.2 times as fast by proxy.",
    ),
    Claim(
        "spare", clocked(_best("seconds", "inline on both", "proxy"), **_ON_TIME),
        kind=Kind.RATIO, toward="up",
        asks="In the best application the spare core serves better as a proxy than as a second core for the ranks.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """How many times as fast a proxy makes it, over the ratio of memory to communication; swept settings are joined."""
    import altair as alt

    found = pl.DataFrame({
        "application": [app for app, _ in _CASES],
        "ratio": [_ratio(table, *case) for case in _CASES],
        "gain": [_gains(table, *case) for case in _CASES],
    })  # fmt: skip
    drawn = alt.Chart(found).encode(
        x=alt.X("ratio:Q", title="bytes of memory touched for a byte communicated", scale=alt.Scale(type="log")),
        y=alt.Y("gain:Q", title="seconds inline over seconds by proxy", scale=alt.Scale(zero=False)),
        color=alt.Color("application:N", title=None),
    )
    even = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(strokeDash=[4, 4]).encode(y="y:Q")
    chart: alt.Chart = (drawn.mark_line() + drawn.mark_point(filled=True, size=80) + even).properties(
        width=380, height=260, title="Does a proxy pay?"
    )
    return chart
