"""CCL-Bench: keep the evidence of a benchmark, not its summary; metrics, what-ifs and searches then come later.

A leaderboard that stores step times can rank systems but not say why one is slower. Here a row is a folder: the
profiler's traces of every rank and a workload card (YAML) that says what ran, on what, cut how. Every number is a
function of that folder: a metric thought of next year runs on this year's rows, and where a row lacks what it needs the
answer is "not applicable" and why, never 0. The same traces answer what faster links would bring, and drive a search
for a better configuration in which every trial is such a row.

What to watch for: overlap is no goal in itself. A setup that sends more has more to hide, so read the overlap beside
the step time, the volume of the collectives and the communication that is left exposed.

The study records rows of two real engines on this machine (torch's DDP and FSDP over gloo, two processes) and searches
both; it reads the published table where it is at hand; and it prices links of twice the bandwidth on generated steps.

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

from contextlib import suppress
from dataclasses import replace as changed
from importlib.util import find_spec
from typing import TYPE_CHECKING

import polars as pl

from assay.observe.traces import trials
from assay.record import intervals, measures
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
own_input = "assay trace my_run --metrics   # a folder with rank-*.json and card.yaml"
references = (
    "Rows, cards and tools: github.com/cornell-sysphotonics/ccl-bench.",
    "Tree-structured Parzen estimator: Bergstra et al., NeurIPS 2011. Halving: Jamieson and Talwalkar, AISTATS 2016.",
    "TPU v6e, peak, memory and links: docs.cloud.google.com/tpu/docs/v6e. A hop's microsecond: Austin et al., "
    "How to Scale Your Model, 2025, part 3, jax-ml.github.io/scaling-book/sharding.",
)


def study(lab: Lab) -> pl.DataFrame:
    """Rows of two engines and a search in each; pairs of the published table; links twice as fast on two machines."""
    alone = changed(lab, seeds=1, workers=0)  # starts processes itself
    sizes = [{"size": size, "seq": seq} for size in trials.SIZES for seq in lab.pick(quick=(512,), full=(512, 2048))]
    tables = [alone.run(trials.doubled, sizes, per="run")]
    with suppress(NotMeasured):  # without the published table its claims say so
        tables.append(
            alone.run(trials.published, [{"table": str(lab.trace(trials.PUBLISHED))}], per="run").drop("table")
        )
    if find_spec("torch") is not None:
        launch = {
            "windows": lab.pick(quick=4, full=30), "budget": lab.pick(quick=6, full=15),
            "rounds": lab.pick(quick=5, full=30), "proposers": lab.pick(quick="tpe", full="tpe halving random"),
        }  # fmt: skip
        launches = changed(alone, seeds=lab.pick(quick=1, full=3))
        tables.append(launches.run(trials.recorded, [launch], per="run").drop(*launch))
    whole = pl.concat([table for table in tables if len(table)], how="diagonal_relaxed")
    first = ["experiment", "engine", "method", "setup", "window", "machine", "size", "cut", "run", "seed"]
    kept = [column for column in first if column in whole.columns]
    return whole.select(*kept, pl.exclude(kept))


NAMED = {
    "one all-reduce": "DDP, gradients reduced once", "eager": "DDP, reduced four times, small buckets",
}  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Every recorded row: the share of communication beside compute, and how long its step took."""
    import altair as alt

    if "compute_comm_overlap" not in table.columns:
        raise NotMeasured("nothing was recorded here: torch is missing")
    rows = table.filter(pl.col("experiment").is_in(["pair", "trial"])).with_columns(
        pl.when(pl.col("experiment") == "pair").then(pl.col("setup").replace(NAMED)).otherwise(
            pl.lit("trials of a search, ") + pl.col("engine").str.to_uppercase()).alias("row"),
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
    title = alt.Title(
        "More overlap is not a shorter step", subtitle="Each point a recorded row of a real job, two ranks"
    )
    chart: alt.Chart = dots.properties(width=460, height=340, title=title)
    return chart


# ------------------------------------------------------------------------------------------------- the claims


def _some(table: pl.DataFrame, experiment: str, without: str) -> pl.DataFrame:
    rows = table.filter(pl.col("experiment") == experiment)
    if rows.is_empty():
        raise NotMeasured(without)
    return rows


NO_TORCH = "nothing was recorded here: install the extra torch"
NO_TABLE = (
    "the published table is not at hand: put website/benchmark_data.json of github.com/cornell-sysphotonics/ccl-bench "
    "into a folder ccl-bench below $ASSAY_TRACES"
)


def _final(table: pl.DataFrame, engine: str, method: str) -> list[float]:
    rows = _some(table, "final", NO_TORCH).filter((pl.col("engine") == engine) & (pl.col("method") == method))
    return rows.sort("seed", "window")["step"].to_list()


def best_to_best(table: pl.DataFrame) -> Estimate:
    """The slower engine's best setup over the faster's, turn by turn."""
    slow, fast = _final(table, "fsdp", "tpe"), _final(table, "ddp", "tpe")
    if sum(slow) < sum(fast):
        slow, fast = fast, slow
    return intervals.ratio(slow, fast)


def gained(engine: str) -> measures.Measure:
    """The default's step over that of the setup which the search found."""
    return lambda table: intervals.ratio(_final(table, engine, "default"), _final(table, engine, "tpe"))


def _pairs(table: pl.DataFrame) -> pl.DataFrame:
    rows = _some(table, "pair", NO_TORCH)
    columns = ["seed", "window", "avg_step_time", "compute_comm_overlap", "collective_volume"]
    lean = rows.filter(pl.col("setup") == "one all-reduce").select(columns)
    eager = rows.filter(pl.col("setup") == "eager").select(columns)
    return eager.join(lean, on=["seed", "window"], suffix="_lean").sort("seed", "window")


def more_and_longer(table: pl.DataFrame) -> Estimate:
    """The share of windows in which the setup that overlaps more takes the longer step."""
    pairs = _pairs(table)
    more = pl.col("compute_comm_overlap") > pl.col("compute_comm_overlap_lean")
    longer = pl.col("avg_step_time") > pl.col("avg_step_time_lean")
    return intervals.clopper_pearson(int(pairs.select((more == longer).sum()).item()), len(pairs))


def times_the_step(table: pl.DataFrame) -> Estimate:
    """The step of the setup that overlaps more over that of the other, window by window."""
    pairs = _pairs(table)
    gap = intervals.bootstrap((pairs["compute_comm_overlap"] - pairs["compute_comm_overlap_lean"]).to_list())
    if gap.low <= 0 <= gap.high:
        raise NotMeasured("the two setups overlap alike here: on fewer than two idle cores nothing runs beside compute")
    eager, lean = pairs["avg_step_time"].to_list(), pairs["avg_step_time_lean"].to_list()
    return intervals.ratio(eager, lean) if gap.value > 0 else intervals.ratio(lean, eager)


def of_published(column: str, among: str, experts: bool = False) -> measures.Measure:
    """The share of published pairs in which something holds, among those in which it could."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = _some(table, "published", NO_TABLE).filter(among)
        rows = rows.filter("experts") if experts else rows
        if rows.is_empty():
            raise NotMeasured("the published table has no such pair")
        return intervals.clopper_pearson(int(rows[column].sum()), len(rows))

    return measure


def tpu_to_gpu(machine: str) -> measures.Measure:
    """How many times the share saved on GPUs that on TPUs is, over the generated steps."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = _some(table, "doubled", "no step was generated").sort("size", "seq", "cut")
        tpu, gpu = (rows.filter(pl.col("machine") == name)["gain"].to_list() for name in (machine, "a100 nvlink"))
        return intervals.ratio(tpu, gpu)

    return measure


claims = [
    Claim("frameworks", best_to_best),
    Claim("overlap", times_the_step),
    Claim("bandwidth", tpu_to_gpu("v6e torus"), evidence=Evidence.MODEL),
    Claim(
        "question-1",
        tpu_to_gpu("v6e torus, all links"),
        asks="the same, if collectives use all four links of the torus at once.",
        kind=Kind.RATIO,
        toward="up",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "question-2",
        more_and_longer,
        asks="the share of single recordings of these two setups in which the one with more overlap has the longer step.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-3",
        gained("ddp"),
        asks="the default's step over that of the setup a search of few trials found: DDP.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "question-4",
        gained("fsdp"),
        asks="the default's step over that of the setup a search of few trials found: FSDP.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "question-5",
        of_published("against", "judged", experts=True),
        asks="published pairs, experts over 4 ranks and over 8: the share in which more overlap has the longer step.",
        kind=Kind.DIFFERENCE,
        toward="up",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "question-6",
        of_published("against", "judged"),
        asks="published pairs of one model on equal machines: the share in which more overlap has the longer step.",
        kind=Kind.DIFFERENCE,
        toward="up",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "question-7",
        of_published("hides", "alike"),
        asks="published pairs with steps within 5 %: the share whose traces differ at least twofold in some metric.",
        kind=Kind.DIFFERENCE,
        toward="up",
        evidence=Evidence.REPLAY,
    ),
]
