"""HexiSeq: hand each GPU of a mixed cluster as many tokens and attention heads as its speed, memory and links can bear.

Sequence parallelism deals equal shares, so a mixed cluster is as fast as its slowest device. Here ranks form groups
that swap heads for tokens by all-to-all, groups of any size; keys and values go round between them. Tokens, and whole
heads, are dealt unequally at both levels. Groups cut their heads at different places, so the ring falls into sub-rings,
one for every interval of heads that nobody cuts. Which groups, how many tokens, which heads is searched for in three
levels, over a model of computing, links and memory.

The attention is real: on real processes, with unequal tokens and heads, outputs and gradients are those of attention in
one piece. Speeds are a model, as the paper's own are beyond 16 GPUs. What kernels and links attain of their data sheets
is drawn anew for every seed, from what is published of FlashAttention-2 and -3, so intervals say how much that matters.
Rivals are equal shares at their best cut (USP, with rings and Ulysses as its ends), shares by data sheet, equal shares
on the fast devices alone, and random moves over the same model.

arXiv:2605.07569.

>>> from assay.sim.models import model
>>> found = plan_uneven(mixed("8xh100+8xa100"), model("llama-3-8b"), 131072)
>>> int(found.split.tokens.sum()), found.pace.fits, bool(found.split.tokens[0] > 2 * found.split.tokens[-1])
(131072, True, True)
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import Measure, best, change, counted, mean, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.models import Model, model
from assay.sim.random import stream
from assay.training.hexiseq import attention_job
from assay.training.hexiseq.machines import mixed as mixed
from assay.training.hexiseq.pace import Clockwork, work
from assay.training.hexiseq.rivals import systems
from assay.training.hexiseq.scheduler import Found, schedule

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.training.hexiseq.machines import Machines

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Long sequences are trained on GPUs of several kinds, or on nodes that are joined unequally."
avoid_when = "All GPUs are alike (equal shares are as good), or weights take longer to gather than layers to compute."
trust = (
    "Speeds are a model: no mixed cluster was measured, links are without contention, and what kernels attain of a "
    "data sheet is drawn from published ranges. Trust the order more than the factors."
)
own_input = "assay compare hexiseq --cluster examples/mixed.toml --seq 131072"
references = (
    "Ring Attention: Liu, Zaharia, Abbeel, ICLR 2024. Ulysses: Jacobs et al., 2023. USP: Fang, Zhao, 2024.",
    "FlashAttention-2: Dao, ICLR 2024; FlashAttention-3: Shah et al., NeurIPS 2024: shares of peak attained.",
)

PAIR = ("8xh100+8xa100", "4xh100+4xa100", "8xh100+4xa100")
MANY = {
    32: "16xh100+16xa100",
    64: "16xh100+16xa100+16xa800+16xl40s",
    128: "32xh100+32xa100+32xa800+32xl40s",
}

# What the paper prints of the network is 25 GB/s, not whether of a GPU or of a node: both are asked.
PORTS = ("gpu", "node")
QUICK = ((32, "gpu", 131_072), (64, "gpu", 131_072), (64, "gpu", 524_288), (64, "node", 524_288), (128, "gpu", 524_288))
FULL = tuple(
    (ranks, port, seq)
    for ranks in MANY
    for port in PORTS
    for seq in (131_072, 262_144, 524_288)
    if (ranks, seq) != (32, 524_288)
)  # which does not fit with equal shares


def plan_uneven(on: Machines, shape: Model, seq: int) -> Found:
    """Groups, tokens and heads for a sequence of `seq` tokens, and what a step takes."""
    return schedule(Clockwork(on, work(shape, seq)))


def compare_at(machines: str, port: str, model_name: str, seq: int, seed: int) -> dict[str, dict[str, Any]]:
    """All systems on a cluster whose attained shares of peak are drawn."""
    random = stream(seed, "hexiseq", "machines")
    return systems(mixed(machines, random, port), work(model(model_name), seq), seed)


def alike(ranks: int, seq: int, seed: int) -> dict[str, dict[str, Any]]:
    """The same where all devices are of one kind."""
    return compare_at(f"{ranks}xh100", "gpu", "llama-3-8b", seq, seed)


def planning(ranks: int, seq: int, seed: int) -> dict[str, Any]:
    """Processor seconds of the scheduler, compiled before."""
    random = stream(seed, "hexiseq", "machines")
    on, shape = mixed(MANY[ranks], random), model("llama-3-70b")
    plan_uneven(mixed("4xh100+4xa100"), model("llama-3-8b"), 65536)
    began = time.process_time()
    found = plan_uneven(on, shape, seq)
    return {"seconds": time.process_time() - began, "looks": found.tried, "groupings": found.groupings}


def real(ranks: int, seed: int) -> dict[str, Any]:
    """Attention by unequal shares on real processes beside attention in one piece."""
    return attention_job.same(ranks, seed)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """H100 beside A100; up to four kinds and 128 GPUs; all of one kind; seconds of planning; the real thing."""
    short, long = 65_536, 262_144
    pairs = [
        {"machines": machines, "port": port, "model_name": name, "seq": seq}
        for machines in lab.pick(PAIR[:1], PAIR)
        for port in PORTS
        for name in ("llama-3-8b", "llama-2-7b")
        for seq in lab.pick((short, long), (short, 2 * short, long))
    ]
    many = [
        {"machines": MANY[ranks], "port": port, "model_name": "llama-3-70b", "seq": seq}
        for ranks, port, seq in lab.pick(QUICK, FULL)
    ]
    return {
        "pair": lab.run(compare_at, pairs, per="system"),
        "many": lab.with_seeds(quick=3, full=10).run(compare_at, many, per="system"),
        "alike": lab.with_seeds(quick=3, full=10).run(alike, [{"ranks": 16, "seq": 2 * short}], per="system"),
        "planning": lab.with_seeds(quick=3, full=10).run(planning, [{"ranks": 128, "seq": 2 * long}]),
        "real": replace(lab.with_seeds(quick=1, full=3), workers=0).run(real, [{"ranks": lab.pick(quick=3, full=4)}]),
    }


def _cases(table: pl.DataFrame, experiment: str) -> list[dict[str, Any]]:
    found = rows(table, {"experiment": experiment, "system": "hexiseq"})
    return found.select("machines", "port", "model_name", "seq").unique(maintain_order=True).to_dicts()


def _best_gain(experiment: str) -> Measure:
    """Over the best of equal shares, in the best case."""

    def measure(table: pl.DataFrame) -> Estimate:
        return best({
            f"{case['machines']}, a port a {case['port']}, {case['model_name']}, {case['seq']} tokens":
            mean("gain", experiment=experiment, system="hexiseq", **case)
            for case in _cases(table, experiment)
        })(table)  # fmt: skip

    return measure


def _over(column: str) -> Measure:
    """The mean over all cases in which the rival fits."""

    def measure(table: pl.DataFrame) -> Estimate:
        both = table.filter(pl.col("experiment").is_in(["pair", "many"]), pl.col(column).is_not_null())
        return mean(column, system="hexiseq")(both)

    return measure


def _grows(table: pl.DataFrame) -> Estimate:
    """The gain on 64 GPUs at the longest context over that at the shortest."""
    where = {"machines": MANY[64], "port": "gpu"}
    seqs = [case["seq"] for case in _cases(table, "many") if where.items() <= case.items()]
    return change("gain", new={"seq": max(seqs)}, old={"seq": min(seqs)}, experiment="many", system="hexiseq", **where)(
        table
    )


def _apart(table: pl.DataFrame) -> Estimate:
    """The largest difference in any run: arithmetic, not a sample."""
    found = rows(table, {"experiment": "real"})["apart"]
    return counted(max(found), len(found))


claims = [
    Claim("real-mean", mean("gain", experiment="pair", system="hexiseq")),
    Claim("real-best", _best_gain("pair")),
    Claim("simulated-mean", mean("gain", experiment="many", system="hexiseq")),
    Claim("simulated-best", _best_gain("many")),
    Claim("planning", mean("seconds", experiment="planning"), evidence=Evidence.REAL),
    Claim(
        "context", _grows, kind=Kind.CHANGE, toward="up",
        asks="On 64 GPUs of four kinds the gain over equal shares grows with the context.",
    ),
    Claim(
        "compute-only", _over("over_peak"), kind=Kind.RATIO, toward="up",
        asks="Throughput exceeds that of shares by data sheet, which know nothing of kernels, links and memory, on "
        "average over all clusters.",
    ),
    Claim(
        "left-out", _over("over_fast"), kind=Kind.RATIO, toward="up",
        asks="Throughput exceeds that of equal shares on the fast devices alone, on average over all clusters.",
    ),
    Claim(
        "luck", _over("over_luck"), kind=Kind.RATIO, toward="up",
        asks="Throughput exceeds that of as many random moves over the same model from the best equal shares, on "
        "average over all clusters.",
    ),
    Claim(
        "alike", mean("gain", experiment="alike", system="hexiseq"), kind=Kind.AT_MOST, value=1.01, unit="ratio",
        asks="Where all devices are alike, unequal shares bring at most 1 %.",
    ),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-4, unit="value", evidence=Evidence.REAL,
        asks="On real processes with unequal tokens and heads, outputs and all gradients are those of attention in one "
        "piece, to 0.1 thousandths.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Throughput of each system over that of the best equal shares, by cluster and context."""
    import altair as alt

    found = table.filter(pl.col("experiment").is_in(["pair", "many"]) & pl.col("tokens_s").is_not_null())
    case = ["machines", "port", "model_name", "seq"]
    means = found.group_by(*case, "system", maintain_order=True).agg(pl.col("tokens_s").mean())
    usp = means.filter(pl.col("system") == "usp").select(*case, pl.col("tokens_s").alias("equal"))
    shown = (
        means.join(usp, on=case)
        .filter(pl.col("system") != "usp")
        .with_columns(
            (pl.col("tokens_s") / pl.col("equal")).alias("gain"),
            pl.format(
                "{}, a port a {}, {}, {} K", "machines", "port", "model_name", (pl.col("seq") / 1024).cast(pl.Int64)
            ).alias("case"),
        )
    )
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("gain:Q", title="tokens a second, over equal shares at their best", scale=alt.Scale(zero=False)),
            y=alt.Y("case:N", title=None, sort=None, axis=alt.Axis(labelLimit=460)),
            color=alt.Color("system:N", title=None, sort=list(dict.fromkeys(shown["system"]))),
        )
        .properties(width=420, height=260, title="Unequal shares on mixed clusters")
    )
    return chart
