"""Cloud performance decomposition: take a long latency record apart, forecast from its parts, scale ahead of time.

A year of measurements of one function is a trend, a few cycles (a day, a week, a quarter, some that come and go) and
noise. Taken apart, each says something: the trend what has changed for good, the cycles when it will be slow again.
The paper does it in two ways, guided by an analyst or wholly automatic, forecasts from the parts, and scales ahead of
the cycles.

Only the abstract of the paper is public: the mechanism here is reconstructed from it. Cycles are peaks of the spectrum
that the autocorrelation confirms (:mod:`assay.observe.series.seasons`), each with the stretches in which it runs
(:mod:`assay.observe.series.cycles`); robust backfitting gives the parts (:mod:`assay.observe.series.decompose`);
earlier origins choose what to carry on (:mod:`assay.observe.series.forecast`). The study forecasts months of real
benchmark results on cloud machines that were held out (which machine and which month is drawn), finds planted cycles in
records whose parts are known, and scales a real function on this machine against other work that comes and goes: a day
lasts a second or less, and the workers are threads. The network and the slower of the simple models run at full size
only. The paper's own subject, serverless functions on AWS, is not here.

arXiv:2605.09787.

>>> from assay.observe.series import decompose
>>> from assay.workloads.planted_cycles import plant
>>> made = decompose.automatic(plant(seed=3, days=120, kinds=("daily", "weekly")).grid)
>>> made.names
['day', 'week']
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.observe.series.trials import BENCHMARKS, FOLDER, deep, held_out, planted, scaled
from assay.record import intervals, measures
from assay.record.tables import Tables
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
own_input = "assay decompose examples/latency.csv --forecast 30d --plot parts.svg"
replays = ("azure-vm-noise",)
references = (
    "STL: Cleveland, Cleveland, McRae and Terpenning, Journal of Official Statistics 1990.",
    "MSTL: Bandara, Hyndman and Bergmeir, arXiv:2107.13462.",
    "Periods by peaks and hills: Vlachos, Yu and Castelli, SDM 2005.",
)

STEP = 6 * 3600.0  # of the held-out months: the machines were measured every hour or two
# The first three alone at quick size: the others' libraries take seconds to import.
SIMPLE = ("seasonal-naive", "recent-median", "classical", "stl", "mstl", "holt-winters", "auto-arima", "prophet")


# ------------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> Tables:
    """Held-out months of real machines, planted cycles, and a real function that is scaled ahead."""
    simple = lab.pick(quick=SIMPLE[:3], full=SIMPLE)
    tables = {"scaling": _scaled_table(lab)}  # timed: before anything else is under way
    few = lab.with_seeds(quick=5, full=6)
    tables["planted"] = _rows(few, planted, [{"days": 420, "step": 7200.0}], simple)
    if lab.trace_or_none(FOLDER) is None:
        return tables
    months = [{"month": month, "step": STEP} for month in range(2)]
    cases = [{"benchmark": one, **month} for one in BENCHMARKS for month in months]
    held = [_rows(few, held_out, cases, simple)]
    if lab.size == "full" and find_spec("torch") is not None:
        made = few.run(deep, [m | {"rounds": 600} for m in months], per="benchmark")
        held.append(made.drop("rounds").with_columns(method=pl.lit("lstm")))
    tables["held-out months"] = pl.concat(held, how="diagonal_relaxed")
    return tables


def _rows(lab: Lab, function: Any, cases: Sequence[dict[str, Any]], methods: Sequence[str]) -> pl.DataFrame:
    """One row for each case, seed and method; what only steers the trial is left out of the table."""
    return lab.run(function, [case | {"methods": list(methods)} for case in cases], per="method").drop("methods")


def _scaled_table(lab: Lab) -> pl.DataFrame:
    """Timed, so alone; each cycle is an observation."""
    cycle, learn, rounds = lab.pick(quick=(0.3, 5, 3), full=(0.8, 6, 12))
    case = {"cycle": cycle, "learn": learn, "rounds": rounds}
    made = lab.with_seeds(quick=1, full=2).run(scaled, [case], per="run", alone=True)
    return made.drop("cycle", "learn", "rounds", "run")


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """The error of each method on held-out months beside the seasonal naive forecast."""
    import altair as alt

    name = "held-out months" if "held-out months" in table["experiment"].to_list() else "planted"
    chosen = table.filter((pl.col("experiment") == name) & pl.col("mase").is_not_null())
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


def month_mean(column: str, method: str) -> measures.Measure:
    """The mean over the benchmarks of each drawn month, then over months.

    Where a record holds no cycle there is nothing to decompose: an error is the record's own noise, and any method's.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        cycles = measures.rows(table, {"experiment": "held-out months", "method": "automatic"})["cycles"]
        without = int((cycles == 0).sum())
        if 2 * without > len(cycles):
            raise NotMeasured(
                f"{without} of {len(cycles)} held-out months hold no cycle: an error there is the record's own noise, "
                "whatever forecasts it; it takes records with cycles, as the paper's functions have"
            )
        rows = measures.rows(table, {"experiment": "held-out months", "method": method})
        months = rows.drop_nans(column).group_by("seed", "month").agg(pl.col(column).mean()).sort("seed", "month")
        return intervals.bootstrap(months[column].to_list())

    return measure


def error_ratio(other: str, experiment: str) -> measures.Measure:
    """How many times another's scaled error the automatic method has, over the same months or records."""
    unit = ["seed", "month"] if experiment == "held-out months" else ["seed"]

    def measure(table: pl.DataFrame) -> Estimate:
        rows = table.filter(pl.col("experiment") == experiment).drop_nans("mase")
        means = rows.group_by(*unit, "method").agg(pl.col("mase").mean())
        ours, theirs = (means.filter(pl.col("method") == name).drop("method") for name in ("automatic", other))
        both = ours.join(theirs, on=unit, suffix="_other").sort(unit)
        if both.is_empty():
            raise NotMeasured(f"{other} was not run at this size; --full does where assay[observe,torch] is installed")
        return intervals.ratio(both["mase"].to_list(), both["mase_other"].to_list())

    return measure


def to_the_best(experiment: str) -> measures.Measure:
    """The automatic method's error over that of the best of the simple ones, whichever that is."""
    return measures.best({name: error_ratio(name, experiment) for name in SIMPLE})


def found_better(table: pl.DataFrame) -> Estimate:
    """The F1 of the periods found in planted records, less that of the peaks of one spectrum."""
    rows = measures.rows(table, {"experiment": "planted"})
    f1 = {method: rows.filter(pl.col("method") == method)["f1"] for method in ("automatic", "spectrum")}
    return intervals.bootstrap((f1["automatic"] - f1["spectrum"]).to_list())


def steadier(table: pl.DataFrame) -> Estimate:
    """By which share the latency varies less over the phases of a cycle, turn by turn, than with fixed workers."""
    rows = measures.rows(table, {"experiment": "scaling"}).sort("seed", "turn")
    varies = {way: rows.filter(pl.col("method") == way)["latency_cv"].to_list() for way in ("pre-scaled", "fixed")}
    times = intervals.ratio(varies["pre-scaled"], varies["fixed"])
    return Estimate(times.value - 1, times.low - 1, times.high - 1, times.n)


claims = [
    Claim("analyst", month_mean("mape", "hybrid")),
    Claim("automatic", month_mean("mape", "automatic")),
    Claim("variability", steadier, evidence=Evidence.REAL),
    Claim(
        "maximum",
        measures.not_here(
            "it takes AWS: on this machine the longest call of a cycle is the scheduler's, and differs from cycle to "
            "cycle by more than scaling could change it (column latency_max)"
        ),
    ),
    Claim("simple", to_the_best("held-out months")),
    Claim("deep", error_ratio("lstm", "held-out months")),
    Claim(
        "planted-forecast",
        to_the_best("planted"),
        asks="The automatic forecast of planted cycles has a smaller error than the best of the simple methods.",
        kind=Kind.RATIO,
        toward="down",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "periods",
        found_better,
        asks="Planted periods are found, to within 2 %, with a higher F1 than by the highest peaks of one spectrum.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="F1",
        evidence=Evidence.MODEL,
    ),
]
