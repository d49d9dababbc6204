"""Cloud performance decomposition: take a long latency record apart, forecast from its parts, scale ahead of time.

A year of measurements of one function is a trend, a few cycles (a day, a week, a quarter, some that come and go) and
noise. Taken apart, each says something: the trend what has changed for good, the cycles when it will be slow again.
The paper does it in two ways, guided by an analyst or wholly automatic, forecasts from the parts, and scales ahead of
the cycles.

Only the abstract of the paper is public: the mechanism here is reconstructed from it. Cycles are peaks of the spectrum
that the autocorrelation confirms (:mod:`assay.observe.series.seasons`), each with the stretches in which it runs
(:mod:`assay.observe.series.cycles`); robust backfitting gives the parts (:mod:`assay.observe.series.decompose`);
earlier origins choose what to carry on (:mod:`assay.observe.series.forecast`). The study forecasts months of real
benchmark results on cloud machines that were held out, finds planted cycles in records whose parts are known, and
scales a real function on this machine against a load that comes and goes: a day lasts a second or less, and the workers
are threads. The deep network and the slower of the simple models run at full size only. The paper's own subject,
serverless functions on AWS, is not here.

arXiv:2605.09787.

>>> from assay.observe.series import decompose
>>> from assay.workloads.planted_cycles import plant
>>> made = decompose.automatic(plant(seed=3, days=120, kinds=("daily", "weekly")).grid)
>>> made.names
['day', 'week']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.observe.series.trials import BENCHMARKS, FOLDER, deep, held_out, planted, scaled
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REPLAY  # months of real benchmark results on real cloud machines, held out
use_when = (
    "You have months of one measurement and want to know what changed for good, which cycles it has and when they ran, "
    "and what the next weeks will bring; or to scale ahead of a load that keeps a calendar."
)
avoid_when = (
    "The series has no cycle worth the name: then the median of the last weeks forecasts as well (the public cloud "
    "benchmarks here are such). It needs two full periods of a cycle, and it knows no cause."
)
own_input = "assay decompose latency.csv --forecast 30d --plot parts.svg"
references = (
    "STL: Cleveland, Cleveland, McRae and Terpenning, Journal of Official Statistics 1990.",
    "MSTL: Bandara, Hyndman and Bergmeir, arXiv:2107.13462.",
    "Periods by peaks and hills: Vlachos, Yu and Castelli, SDM 2005.",
)

SIMPLE = ("seasonal-naive", "recent-median", "classical", "stl", "mstl", "holt-winters", "auto-arima", "prophet")


# ------------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> pl.DataFrame:
    """Held-out months of real machines, planted cycles, and a real function that is scaled ahead."""
    step = lab.pick(quick=6 * 3600.0, full=7200.0)
    machines = lab.pick(quick=("1",), full=("0", "1", "2"))
    simple = lab.pick(quick=("seasonal-naive", "recent-median", "classical", "mstl"), full=SIMPLE)
    tables = [_scaled_table(lab)]  # timed: before anything else is under way
    lab = lab.with_seeds(quick=2, full=10)  # each is a month, or a planted trace
    days, grid = lab.pick(quick=(420, 10_800.0), full=(480, 7200.0))
    planted_cases = [
        {"experiment": "planted", "variant": v, "days": days, "step": grid} for v in range(lab.pick(quick=1, full=6))
    ]
    tables.append(_rows(lab, planted, planted_cases, simple))
    try:
        lab.trace(FOLDER)
    except NotMeasured:
        return _together(tables)
    cases = [
        {"experiment": "held-out months", "benchmark": b, "machine": m, "step": step}
        for b in BENCHMARKS
        for m in machines
    ]
    tables.append(_rows(lab, held_out, cases, simple))
    if lab.size == "full" and find_spec("torch") is not None:  # trained for seconds it would be no rival
        networks = [{"machine": m, "step": step, "rounds": 600} for m in machines]
        made = lab.run(deep, networks, per="benchmark").drop("rounds")
        tables.append(made.with_columns(experiment=pl.lit("held-out months"), method=pl.lit("lstm")))
    return _together(tables)


def _together(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One table; what tells the cases apart stands before the seed, what was measured behind it."""
    table = pl.concat(tables, how="diagonal_relaxed")
    case = ("experiment", "benchmark", "machine", "variant", "days", "step", "method")
    first = [name for name in (*case, "seed") if name in table.columns]
    return table.select(*first, *(name for name in table.columns if name not in first))


def _rows(lab: Lab, function: Any, cases: Sequence[dict[str, Any]], methods: Sequence[str]) -> pl.DataFrame:
    """One row for each case, seed and method; what only steers the trial is left out of the table."""
    plain = [{k: v for k, v in case.items() if k != "experiment"} | {"methods": list(methods)} for case in cases]
    made = lab.run(function, plain, per="method").drop("methods")
    return made.with_columns(experiment=pl.lit(cases[0]["experiment"]))


def _scaled_table(lab: Lab) -> pl.DataFrame:
    """Timed, so alone and once; each cycle is an observation."""
    cycle, learn, rounds = lab.pick(quick=(0.3, 5, 3), full=(1.0, 6, 20))
    case = {"cycle": cycle, "learn": learn, "rounds": rounds}
    made = replace(lab, seeds=1).run(scaled, [case], per="turn", alone=True)
    return made.with_columns(seed=pl.col("turn").str.split("/").list.last().cast(pl.Int64)).select(
        "method", "seed", "workers", "latency_cv", "latency_max", "latency_mean", "requests",
        experiment=pl.lit("scaling"),
    )  # fmt: skip


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """The error of each method on held-out months beside the seasonal naive forecast."""
    import altair as alt

    name = "held-out months" if "held-out months" in table["experiment"].to_list() else "planted"
    chosen = table.filter(pl.col("experiment") == name)
    order = chosen.group_by("method").agg(pl.col("mase").mean()).sort("mase")["method"].to_list()
    bounds = []
    for method in order:
        estimate = intervals.bootstrap(chosen.filter(pl.col("method") == method)["mase"].drop_nans().to_list())
        kind = "from parts" if method in ("automatic", "hybrid") else "baseline"
        bounds.append(
            {"method": method, "kind": kind, "mase": estimate.value, "low": estimate.low, "high": estimate.high}
        )
    base = alt.Chart(pl.DataFrame(bounds)).encode(y=alt.Y("method:N", sort=order, title=None))
    rule = base.mark_rule(strokeWidth=2, opacity=0.5).encode(
        x=alt.X("low:Q", title="mean absolute scaled error, 95 % interval"), x2="high:Q", color=alt.Color("kind:N")
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("mase:Q", scale=alt.Scale(zero=False)), color=alt.Color("kind:N")
    )
    title = alt.Title(
        f"Forecasts of {'a month of cloud benchmarks' if name == 'held-out months' else 'planted cycles'}",
        subtitle="Less is better; 1 is what repeating yesterday costs one day ahead",
    )
    chart: alt.LayerChart = (rule + points).properties(width=520, height=26 * len(order), title=title)
    return chart


# ------------------------------------------------------------------------------------------------ the claims


def beside_the_best(experiment: str, others: Sequence[str]) -> measures.Measure:
    """The automatic method's error over that of the best of the others, over the same months."""

    def measure(table: pl.DataFrame) -> Estimate:
        there = [
            name for name in others if name in table.filter(pl.col("experiment") == experiment)["method"].to_list()
        ]
        if not there:
            raise NotMeasured("none of the methods to compare with could run here; install assay[observe,torch]")
        ratios = [_error_ratio(name, experiment)(table) for name in there]
        return max(ratios, key=lambda ratio: ratio.value)

    return measure


def _error_ratio(other: str, experiment: str, of: str = "automatic") -> measures.Measure:
    """How many times the other's error one has, paired by series and month."""
    keys = ["benchmark", "machine", "variant", "seed"]

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = table.filter(pl.col("experiment") == experiment)
        present = [key for key in keys if key in chosen.columns and chosen[key].null_count() < len(chosen)]
        ours, theirs = (chosen.filter(pl.col("method") == name).select(*present, "mase") for name in (of, other))
        both = ours.join(theirs, on=present, suffix="_other").drop_nulls().drop_nans()
        if both.is_empty():
            raise NotMeasured(f"{of} and {other} were not measured on the same months")
        return intervals.ratio(both["mase"].to_list(), both["mase_other"].to_list())

    return measure


claims = [
    Claim("analyst", measures.mean("mape", experiment="held-out months", method="hybrid")),
    Claim("automatic", measures.mean("mape", experiment="held-out months", method="automatic")),
    Claim(
        "variability",
        measures.change("latency_cv", {"method": "pre-scaled"}, {"method": "fixed"}, experiment="scaling"),
        evidence=Evidence.REAL,
    ),
    Claim(
        "maximum",
        measures.change("latency_max", {"method": "pre-scaled"}, {"method": "fixed"}, experiment="scaling"),
        evidence=Evidence.REAL,
    ),
    Claim("rivals", beside_the_best("held-out months", ("lstm", *SIMPLE))),
    Claim(
        "question-1",
        _error_ratio("seasonal-naive", "held-out months"),
        asks="on held-out months the automatic forecast's error is this share of the seasonal naive one's.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "question-2",
        _error_ratio("mstl", "held-out months"),
        asks="on held-out months the automatic forecast's error is this share of MSTL's.",
        kind=Kind.RATIO,
        toward="down",
    ),
    Claim(
        "question-3",
        beside_the_best("planted", SIMPLE),
        asks="on planted cycles the automatic forecast's error is this share of the best baseline's.",
        kind=Kind.RATIO,
        toward="down",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-4",
        _error_ratio("hybrid", "planted"),
        asks="on planted cycles the automatic forecast's error is at most this many times that of an analyst who knows them.",
        kind=Kind.AT_MOST,
        value=1.3,
        unit="?",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-5",
        measures.probability("recovered", "planted", experiment="planted", method="automatic"),
        asks="planted periods are found within 2 % of their length, with probability.",
        kind=Kind.DIFFERENCE,
        toward="up",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-6",
        measures.probability("passing_recovered", "passing", experiment="planted", method="automatic"),
        asks="planted periods that come and go are found within 2 % of their length, with probability.",
        kind=Kind.DIFFERENCE,
        toward="up",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-7",
        measures.share("sums", experiment="planted", method="automatic"),
        asks="the parts add up to the series, in this share of the records.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-8",
        measures.mean("covered", experiment="held-out months", method="automatic"),
        asks="nine in ten values of a held-out month lie within the forecast's 5 % and 95 % quantiles, measured.",
        kind=Kind.LEVEL,
        value=(0.8 + 0.98) / 2,
        unit="?",
    ),
]
