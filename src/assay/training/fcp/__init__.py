"""FCP: cut sequences into blocks, put each on any rank with time and room, and let keys and values travel in rounds.

Context parallelism by rings cuts every sequence into as many pieces as there are ranks: short ones fall into crumbs,
and all keys pass everybody. Groups that fit the lengths balance tokens, though attention costs their square. Here a
block of a few thousand tokens is the unit. Blocks go, dearest first, to the rank with the least to compute that has
room for them. Which blocks' keys and values must travel where is then a bipartite graph, and an edge colouring of it is
a timetable in which no rank ever sends or receives two at a time, in as many rounds as the busiest rank has messages.

The plan is real, and so is the attention: on real processes, with real tensors, it gives the outputs and gradients of
attention in one piece. How fast it would be on 8 to 256 H200 is a model; so are its rivals: zig-zag rings, rings with
heads cut (USP, Ulysses) at their best cut, groups by length (as ByteScale), the better of rings and groups for each
batch (as WLB-LLM), and blocks balanced by computation alone without a timetable (as MagiAttention). Cutting heads helps
whatever travels between the groups, so FCP is shown with it, too, at its best cut.

arXiv:2605.08524, MLSys 2026.

>>> found = plan([40_000, 6_000, 3_000, 900], ranks=4)
>>> found.imbalance() < 0.2, found.rounds
(True, 8)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, counted, mean, ratio, rows, slope
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.trust import sentence
from assay.training.fcp import attention_job
from assay.training.fcp.blocks import Ints
from assay.training.fcp.blocks import Plan as Plan
from assay.training.fcp.blocks import plan as plan
from assay.training.fcp.pace import Cluster, Times, best_blocks, best_ring, cluster, proportional, ring, travelling
from assay.workloads.lengths import lognormal

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Long contexts are trained on batches whose sequences differ in length by orders of magnitude."
avoid_when = (
    "All sequences are equally long (a zig-zag ring is as good and simpler), or ranks are joined as a torus, on which "
    "messages between any two ranks share links that this timetable takes for separate."
)
trust = (
    "Speeds are a model: no context-parallel group of GPUs was measured, and kernels are assumed to run whole tiles at "
    "one rate. " + sentence("roofline")
)
own_input = "assay compare fcp --lengths examples/lengths.jsonl --ranks 16"
references = (
    "Ring Attention: Liu, Zaharia, Abbeel, ICLR 2024; zig-zag order: Brandon et al., 2023.",
    "USP: Fang, Zhao, 2024. Ulysses: Jacobs et al., 2023. ByteScale: Ge et al., 2025. WLB-LLM: Wang et al., OSDI 2025.",
)

PER_RANK = 32 * 1024  # tokens
SIZE = 4096
MEMORY = 1.2  # tokens that a rank may hold, over the mean (assumed)
RIVALS = ("ring", "groups", "ring or groups", "compute only")  # those of the paper; cutting heads is a question of ours


def systems(lengths: Ints, on: Cluster, size: int = SIZE, causal: bool = True) -> dict[str, dict[str, Any]]:
    """FCP and its rivals on one batch: utilisation, seconds, how uneven the ranks are."""
    ours = plan(lengths, on.ranks, size, causal=causal, memory=MEMORY)
    alone = plan(lengths, on.ranks, size, causal=causal, memory=np.inf, matched=False)
    usp, cut = best_ring(lengths, on, causal)
    one, groups = ring(lengths, on, 1, causal), proportional(lengths, on, MEMORY, causal)
    either = min(one, groups, key=lambda found: found.forward + found.backward)
    headed, parts = best_blocks(lengths, on, size, MEMORY, causal)
    found = {
        "fcp": travelling(ours, on), "fcp, heads cut": headed, "ring": one, "usp": usp, "groups": groups,
        "ring or groups": either, "compute only": travelling(alone, on),
    }  # fmt: skip
    pairs = float(ours.blocks.pairs.sum())
    table = {name: _row(times, pairs, on) for name, times in found.items()}
    table["fcp"] |= {"memory": ours.memory(), "rounds": ours.rounds}
    table["compute only"] |= {"memory": alone.memory(), "rounds": alone.rounds}
    table["usp"] |= {"heads_cut": cut}
    table["fcp, heads cut"] |= {"heads_cut": parts}
    return table


def _row(times: Times, pairs: float, on: Cluster) -> dict[str, Any]:
    share = times.mfu(pairs, on)
    both = times.forward + times.backward
    return {
        "mfu": share, "seconds": both, "flops": share * on.ranks * on.peak, "imbalance": times.imbalance,
        "memory": None, "rounds": None, "heads_cut": None,
    }  # fmt: skip


def compare_at(ranks: int, seed: int) -> dict[str, dict[str, Any]]:
    """All systems on a batch of 32 K tokens a rank."""
    return systems(lognormal(ranks * PER_RANK, seed), cluster(ranks))


def block_size(ranks: int, size: int, seed: int) -> dict[str, Any]:
    """FCP with blocks of another size."""
    lengths, on = lognormal(ranks * PER_RANK, seed), cluster(ranks)
    found = plan(lengths, ranks, size, memory=MEMORY)
    return {"mfu": travelling(found, on).mfu(float(found.blocks.pairs.sum()), on), "rounds": found.rounds}


def ablation(ranks: int, seed: int) -> dict[str, dict[str, Any]]:
    """What each part brings: overlap, timetable, one kernel for several blocks, reshuffling behind local blocks."""
    lengths, on = lognormal(ranks * PER_RANK, seed), cluster(ranks)
    loose, matched = (plan(lengths, ranks, SIZE, memory=MEMORY, matched=m) for m in (False, True))
    runs = {
        "blocks alone": travelling(loose, on, coalesced=1, overlapped=False, reshuffled=False),
        "and overlap": travelling(loose, on, coalesced=1, reshuffled=False),
        "and timetable": travelling(matched, on, coalesced=1, reshuffled=False),
        "and coalescing": travelling(matched, on, reshuffled=False),
        "and reshuffle": travelling(matched, on),
    }
    pairs = float(matched.blocks.pairs.sum())
    return {name: {"mfu": times.mfu(pairs, on)} for name, times in runs.items()}


def real(ranks: int, causal: bool, seed: int) -> dict[str, Any]:
    """Attention on real processes beside attention in one piece."""
    return attention_job.same(ranks, causal, seed)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Lognormal lengths on 8 to 256 ranks beside five rivals; block sizes; what each part brings; the real thing."""
    some = lab.pick(quick=(8, 64, 256), full=(8, 16, 32, 64, 128, 256))
    sizes = [{"ranks": 64, "size": size} for size in (512, 2048, SIZE, 6144)]
    return {
        "pace": lab.run(compare_at, [{"ranks": ranks} for ranks in some], per="system"),
        "blocks": lab.run(block_size, sizes),
        "parts": lab.run(ablation, [{"ranks": 128}], per="parts"),
        "real": replace(lab.with_seeds(quick=1, full=3), workers=0).run(
            real, [{"ranks": lab.pick(quick=2, full=4), "causal": causal} for causal in (True, False)]
        ),
    }


def _ranks(table: pl.DataFrame) -> list[int]:
    return sorted(int(n) for n in rows(table, {"experiment": "pace"})["ranks"].unique())


def _gain(rival: str, ranks: int) -> Measure:
    where = {"experiment": "pace", "ranks": ranks}
    return ratio("mfu", of={"system": "fcp"}, to={"system": rival}, **where)


def _gains(choose: Any, rivals: tuple[str, ...] = RIVALS) -> Measure:
    """FCP over the best rival on so many ranks, where that is most or least."""

    def measure(table: pl.DataFrame) -> Estimate:
        cases = {}
        for ranks in _ranks(table):
            means = {r: mean("mfu", experiment="pace", ranks=ranks, system=r)(table).value for r in rivals}
            rival = max(means, key=lambda name: means[name])
            cases[f"{ranks} ranks, beside {rival}"] = _gain(rival, ranks)
        return best(cases, choose)(table)

    return measure


def _against_usp(system: str) -> Measure:
    return ratio("mfu", of={"system": system}, to={"system": "usp"}, experiment="pace", ranks=256)


def _largest(column: str, system: str, choose: Any = max) -> Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        cases = {f"{n} ranks": mean(column, experiment="pace", ranks=n, system=system) for n in _ranks(table)}
        return best(cases, choose, every=True)(table)

    return measure


def _apart(table: pl.DataFrame) -> Estimate:
    """The largest difference in any run: arithmetic, not a sample."""
    found = rows(table, {"experiment": "real"})["apart"]
    return counted(max(found), len(found))


claims = [
    Claim("best", _gains(max)),
    Claim("least", _gains(min)),
    Claim("imbalance", _largest("imbalance", "fcp")),
    Claim("scaling", slope("ranks", "flops", experiment="pace", system="fcp")),
    Claim(
        "heads", _against_usp("fcp"), kind=Kind.RATIO, toward="up",
        asks="On 256 ranks FCP uses more of the peak than USP, a zig-zag ring with heads cut at its best.",
    ),
    Claim(
        "heads-both", _against_usp("fcp, heads cut"), kind=Kind.RATIO, toward="up",
        asks="On 256 ranks, with heads cut at the best of each, FCP uses more of the peak than USP.",
    ),
    Claim(
        "groups", _largest("imbalance", "groups", min), kind=Kind.AT_LEAST, value=0.3, unit="share",
        asks="Groups of ranks in proportion to lengths leave the busiest rank at least 30 % more to compute than the "
        "mean, however many ranks there are.",
    ),
    Claim(
        "memory", _largest("memory", "fcp"), kind=Kind.AT_MOST, value=1.2, unit="ratio",
        asks="No rank holds more than 1.2 times the mean number of tokens.",
    ),
    Claim(
        "small-blocks", ratio("mfu", of={"size": 512}, to={"size": SIZE}, experiment="blocks"), kind=Kind.RATIO,
        toward="down", asks="Blocks of 512 tokens use less of the peak than blocks of 4,096.",
    ),
    Claim(
        "timetable",
        ratio("mfu", of={"parts": "and timetable"}, to={"parts": "and overlap"}, experiment="parts"),
        kind=Kind.RATIO, toward="up", asks="The timetable raises utilisation over pulling blocks in their order.",
    ),
    Claim(
        "same", _apart,
        kind=Kind.AT_MOST, value=1e-4, unit="value", evidence=Evidence.REAL,
        asks="On real processes outputs and all gradients are those of attention in one piece, to 0.1 thousandths.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Utilisation over the number of ranks."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "pace")
    means = found.group_by("system", "ranks", maintain_order=True).agg(pl.col("mfu").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            x=alt.X("ranks:Q", title="GPUs, 32 K tokens each", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("mfu:Q", title="of the peak, used for attention"),
            color=alt.Color("system:N", title=None, sort=list(dict.fromkeys(means["system"]))),
        )
        .properties(width=420, height=280, title="Attention over sequences of very different lengths")
    )
    return chart
