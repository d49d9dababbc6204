"""CCL-Bench: keep the evidence of a benchmark, not its summary; metrics, what-ifs and searches then come later.

A leaderboard that stores step times can rank systems but not say why one is slower. Here a row is a folder: the
profiler's traces of every rank and a workload card (YAML) that says what ran, on what, cut how. Every number is a
function of that folder: a metric thought of next year runs on this year's rows, and where a row lacks what it needs the
answer is "not applicable" and why, never 0. The same traces answer what faster links would bring, and drive a search
for a better configuration in which every trial is such a row.

What to watch for: overlap is no goal in itself. A setup that sends more has more to hide, so read the overlap beside
the step time, the volume of the collectives and the communication that is left exposed.

The study runs two real engines on this machine (torch's DDP and FSDP over gloo, two processes): it times all setups of
both to find each engine's best, and records rows; what is not done when its time is over is left out. Which engine is
called the slow one, and which two setups are compared for their overlap, was said beforehand. Two ranks that compute
all the time fill this machine's two cores, so engines are compared by the processor time of a step, in which other work
has no part. At full size a search looks for a good setup by recorded rows, too. The study reads the published table
where it is at hand, and prices links of twice the bandwidth on drawn steps.

CCL-Bench 1.0, arXiv:2605.06544. Here: `assay.observe.traces`, its `metrics`, `what_if`, `search` and `cards`.

>>> from assay.observe.traces import metrics
>>> from assay.observe.traces.cards import Card
>>> from assay.observe.traces.rows import Row
>>> from assay.sim.telemetry import Frame
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0}]
>>> old_row = Row(Card(), Frame.of(entities, spans=[
...     {"entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 80},
...     {"entity": 1, "name": "softmax", "cat": "kernel", "start": 80, "dur": 20}]))
>>> new = {"longest kernel": lambda row: row.device["dur"].max() / 1e9, "ttft": metrics.METRICS["ttft"]}
>>> metrics.measure(old_row, new)["value"].to_list()  # thought of after the row was recorded
[8e-08, None]
"""

from __future__ import annotations

from dataclasses import replace as changed
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from assay.observe.ccl_bench import trials
from assay.record import intervals, measures, traces
from assay.record.tables import Tables
from assay.record.timing import too_busy
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["claims", "plot", "study"]

evidence = Evidence.REAL  # the headline compares two engines that ran here; links are a model, the table a replay
use_when = (
    "You compare engines, libraries or machines and will be asked why one is faster: keep traces and card, and any "
    "question that comes later is computed, not run again."
)
avoid_when = (
    "Only the step time matters, or profiling changes it: the recorder costs time, and more of it the smaller the "
    "operations. Metrics of one rank's file say nothing of the others."
)
own_input = "assay trace examples/run --metrics"
replays = ("ccl-bench",)
references = (
    "Rows, cards and tools: github.com/cornell-sysphotonics/ccl-bench.",
    "Tree-structured Parzen estimator: Bergstra et al., NeurIPS 2011. Halving: Jamieson and Talwalkar, AISTATS 2016.",
    "TPU v6e, peak, memory and links: docs.cloud.google.com/tpu/docs/v6e. A hop's microsecond: Austin et al., "
    "How to Scale Your Model, 2025, part 3, jax-ml.github.io/scaling-book/sharding.",
)


def study(lab: Lab) -> Tables:
    """Rows of two engines and a search in each; pairs of the published table; links twice as fast on two machines."""
    here = changed(lab, workers=0)  # starts processes itself
    lab.cases.update(("workload", "engine", "method", "setup", "turn", "machine", "cut"))
    tables = {"doubled": here.run(trials.doubled, [{"size": size} for size in trials.SIZES], per="run")}
    if found := lab.trace_or_none(trials.PUBLISHED):
        pairs = here.with_seeds(quick=1, full=1).run(trials.published, [{"table": str(found)}], per="run")
        tables["published"] = pairs.drop("table")
    if find_spec("torch") is not None:
        launch = {
            "workloads": lab.pick(quick=["middle"], full=list(trials.WORKLOADS)),
            "rounds": lab.pick(quick=8, full=24), "budget": lab.pick(quick=0, full=10),
            "seconds": lab.pick(quick=40.0, full=400.0),
        }  # fmt: skip
        launches = here.with_seeds(quick=1, full=2)
        tables["recorded"] = launches.run(trials.recorded, [launch], per="run").drop(*launch)
    return tables


def plot(table: pl.DataFrame) -> alt.Chart:
    """Every recorded row: the share of communication beside compute, and how long its step took."""
    import altair as alt

    if "compute_comm_overlap" not in table.columns:
        raise NotMeasured("nothing was recorded here: torch is missing")
    named = {"more": "DDP, the pair's setup with more overlap", "less": "DDP, the pair's setup with less"}
    recorded = pl.col("experiment").is_in(["pair", "chosen", "trial"]) & pl.col("avg_step_time").is_not_null()
    rows = table.filter(recorded).with_columns(
        pl.when(pl.col("experiment") == "pair").then(pl.col("method").replace(named)).otherwise(
            pl.col("engine").str.to_uppercase() + pl.when(pl.col("experiment") == "trial").then(pl.lit(
                ", trials of a search")).otherwise(pl.lit(", default and best"))).alias("row"),
        pl.col("avg_step_time") * 1e3, pl.col("compute_comm_overlap") * 100,
    )  # fmt: skip
    dots = (
        alt.Chart(rows.select("row", "avg_step_time", "compute_comm_overlap"))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=alt.X("compute_comm_overlap:Q", title="communication that runs beside compute, %",
                    scale=alt.Scale(padding=12)),
            y=alt.Y("avg_step_time:Q", title="step, ms", scale=alt.Scale(type="log", nice=False, padding=12)),
            color=alt.Color("row:N", title=None, legend=alt.Legend(columns=2, labelLimit=320)),
            shape=alt.Shape("row:N", title=None),
        )
    )  # fmt: skip
    title = alt.Title("Overlap and the step", subtitle="Each point a recorded row of a real job, two ranks")
    chart: alt.Chart = dots.properties(width=460, height=340, title=title)
    return chart


# ------------------------------------------------------------------------------------------------- the claims


LEAST = 5  # turns of a launch that was stopped: from fewer no interval is worth its name


def _some(table: pl.DataFrame, experiment: str, without: str) -> pl.DataFrame:
    rows = table.filter(pl.col("experiment") == experiment)
    if rows.is_empty():
        raise NotMeasured(without)
    return rows


def _turns(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """What the ranks did in turns, unless the time was over after a few of them."""
    for stopped in table.filter(pl.col("experiment") == "stopped").iter_rows(named=True):
        done = table.filter((pl.col("experiment") == experiment) & (pl.col("seed") == stopped["seed"]))
        turns = done["turn"].n_unique() if "turn" in done.columns else 0
        if turns < LEAST:
            raise too_busy(f"{turns} turns, the others {stopped['why']}")
    return _some(table, experiment, NO_TORCH)


NO_TORCH = "nothing was recorded here: install the extra torch"
NO_TABLE = traces.lacking([trials.PUBLISHED])


def _final(table: pl.DataFrame, engine: str, method: str, workload: str | None = None) -> list[float]:
    """Processor seconds of steps without the profiler, turn by turn: what else the machine does is not in them."""
    rows = _turns(table, "final").filter((pl.col("engine") == engine) & (pl.col("method") == method))
    rows = rows if workload is None else rows.filter(pl.col("workload") == workload)
    if rows.is_empty():
        raise NotMeasured(f"the workload {workload} was not run at this size")
    return rows.sort("seed", "workload", "turn")["processor"].to_list()


def slow_to_fast(workload: str) -> measures.Measure:
    """The best setup of the engine that was named slow over that of the one named fast, turn by turn."""
    return lambda table: intervals.ratio(
        _final(table, trials.SLOW, "best", workload), _final(table, trials.FAST, "best", workload)
    )


def gained(engine: str) -> measures.Measure:
    """The default's step over that of the engine's best setup, over all workloads."""
    return lambda table: intervals.ratio(_final(table, engine, "default"), _final(table, engine, "best"))


WIDE = 2.0  # a factor: from the low to the high end of a ratio that tells nothing


def times_the_step(table: pl.DataFrame) -> Estimate:
    """The step of the setup that was named for more overlap over that of the other, the median of the turns.

    By the clock: what overlaps hides waiting, which costs no processor time. Both see the same machine in a turn, and
    where turns differ too much it did too much else, whatever they say.
    """
    rows = _turns(table, "pair")
    more, less = (rows.filter(pl.col("method") == name).sort("seed", "turn") for name in ("more", "less"))
    gap = intervals.bootstrap((more["compute_comm_overlap"] - less["compute_comm_overlap"]).drop_nulls().to_list())
    if gap.low <= 0:
        raise NotMeasured("the two setups overlap alike here: on fewer than two idle cores little runs beside compute")
    found = intervals.bootstrap((more["step"] / less["step"]).to_list(), np.median)
    if found.high > WIDE * found.low:
        raise too_busy(f"from turn to turn the ratio is anything from {found.low:.2f} to {found.high:.2f}")
    return found


def shorter(table: pl.DataFrame) -> Estimate:
    """The share of published pairs in which the setup with more overlap has the shorter step, less one half."""
    rows = _some(table, "published", NO_TABLE).filter("judged")
    if rows.is_empty():
        raise NotMeasured("the published table has no such pair")
    found = intervals.clopper_pearson(int(rows["shorter"].sum()), len(rows))
    return Estimate(found.value - 0.5, found.low - 0.5, found.high - 0.5, found.n)


def tpu_to_gpu(machine: str) -> measures.Measure:
    """How many times the share saved on GPUs that on TPUs is, over the steps that each seed drew."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = _some(table, "doubled", "no step was generated").group_by("machine", "seed").agg(pl.col("gain").mean())
        saved = (rows.filter(pl.col("machine") == name).sort("seed")["gain"] for name in (machine, "a100 nvlink"))
        return intervals.ratio(*(gain.to_list() for gain in saved))

    return measure


claims = [
    Claim("frameworks", measures.best({name: slow_to_fast(name) for name in trials.WORKLOADS})),
    Claim("overlap", times_the_step),
    Claim("bandwidth", tpu_to_gpu("v6e torus"), evidence=Evidence.MODEL),
    Claim(
        "all-links",
        tpu_to_gpu("v6e torus, all links"),
        asks="Twice the bandwidth saves more on TPUs than on GPUs even if collectives use all four links of the torus.",
        kind=Kind.RATIO,
        toward="up",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "tuned-fsdp",
        gained("fsdp"),
        asks="FSDP's default setup takes longer for a step than the best of all its setups.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "published-pairs",
        shorter,
        asks="In published pairs of one model on equal machines more overlap has the shorter step more often than not.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
        evidence=Evidence.REPLAY,
    ),
]
