"""SuperMUC-NG's recipe: let a search find the cut of a model, instead of hands.

Tensor parallelism inside a node, enough stages to fit, more microbatches than stages: the rules are known, the numbers
differ from machine to machine. The paper lets a Bayesian search ask for them (a random forest guesses the throughput of
what was not tried, and the next trials are where the guess is good or unsure), counts what does not fit as slow, and
then scales what won over data parallelism.

Here the trials are steps of the engine. What of a tile's peak programs attain is calibrated on one published point, the
175B model on 16 stages of 8 tiles with 100 microbatches of 3 sequences; every other figure is a prediction. What is not
known of the machine (the attainable share of link and memory bandwidth) is drawn anew for every seed, and the point is
met again each time, so the intervals say how much those guesses matter. The paper does not print the batch of its
scaling runs: weak scaling keeps 100 microbatches a copy, strong scaling keeps the batch at which 128 nodes have them.

Navilarekal Rajgopal and Solmsdorf, 2026, arXiv:2605.07726.

>>> from assay.sim.models import model
>>> from assay.training import Job, best_plans, read_cluster
>>> best_plans(model("llama-3-8b"), read_cluster("8xh200"), Job(64, 4096), search="bayes").fastest.fits
True
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import measures
from assay.record.types import Claim, Evidence, Kind
from assay.sim.hardware import device
from assay.sim.models import Model
from assay.sim.random import stream
from assay.training.engine import search
from assay.training.engine.bayes import bayes
from assay.training.engine.cluster import Cluster, Efficiency
from assay.training.engine.step import Outcome, simulate, simulate_many
from assay.training.interface import Job, Layout, Plan

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = "A model, a cluster and a batch are given, trials cost real steps, and nobody has tuned that machine before."
avoid_when = "All plans can be asked of a model in seconds: then ask all of them (--search exhaustive)."
trust = (
    "One efficiency is calibrated on one published point of this machine; link and memory shares are guesses, drawn "
    "for every seed. No step was measured here."
)
own_input = "assay plan training --model examples/config.json --cluster examples/cluster.toml --search bayes"
references = (
    "Bayesian search with forests: Balaprakash et al., DeepHyper.",
    "Activations: Korthikanti et al., MLSys 2023.",
)

SEQ, VOCAB = 2048, 51_200
SIZES = {"3.6B": (30, 3072, 32), "20B": (44, 6144, 64), "175B": (96, 12_288, 96)}  # layers, width, heads
# Megatron-DeepSpeed reduces gradients when a pipeline has drained, and gathers weights before the next step.
RECIPE = Plan(Layout(tp=8, pp=16), mbs=3, recompute="full", zero=1, overlap=False)
GAS = 100  # microbatches of a copy
PUBLISHED = 57e12  # FLOP/s of a tile at the recipe: the one point that is calibrated on
NODE = 8  # tiles
MOST = 128  # nodes
DRAWS = 40  # random searches, whose mean a random search is expected to find


def gpt(size: str) -> Model:
    """A GPT of the paper's sizes; widths and depths are those customary for these sizes.

    >>> round(gpt("175B").params / 1e9)
    175
    """
    layers, hidden, heads = SIZES[size]
    return Model(f"gpt-{size}", hidden, VOCAB, True, layers, 0, 0, layers, 0, heads, heads, hidden // heads, 4 * hidden,
                 gated_mlp=False)  # fmt: skip


def flops(shape: Model, job: Job) -> float:
    """FLOPs of a step as the paper counts them: a forward pass again in the backward pass, every pair of tokens."""
    layers, h = shape.layers, shape.hidden
    return 96.0 * job.tokens * layers * h**2 * (1 + job.seq / (6 * h) + shape.vocab / (16 * layers * h))


def machine(nodes: int, efficiency: Efficiency) -> Cluster:
    """Nodes of SuperMUC-NG Phase 2: eight tiles, two 200 Gb/s ports."""
    tile = device("max1550")
    return Cluster(tile, nodes * NODE, NODE, tile.nvlink, tile.nic, efficiency, f"supermuc-{nodes}")


def per_tile(shape: Model, plan: Plan, batch: int, nodes: int, efficiency: Efficiency) -> float:
    """FLOP/s of a tile."""
    job = Job(batch, SEQ)
    outcome = simulate(shape, machine(nodes, efficiency), plan, job)
    return flops(shape, job) / (outcome.step * nodes * NODE)


@lru_cache(maxsize=64)
def calibrated(seed: int) -> Efficiency:
    """Guesses of what nobody published, and the share of peak that then meets the published point; by bisection."""
    random = stream(seed, "supermuc", "machine")
    guess = Efficiency(links=float(random.uniform(0.6, 0.9)), memory=float(random.uniform(0.7, 0.95)))
    low, high = 0.02, 1.0
    for _ in range(26):
        middle = (low + high) / 2
        at = replace(guess, matrix=middle, attention=0.65 * middle)
        slow = per_tile(gpt("175B"), RECIPE, RECIPE.mbs * GAS, 16, at) < PUBLISHED
        low, high = (middle, high) if slow else (low, middle)
    return replace(guess, matrix=high, attention=0.65 * high)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Scaling the recipe to 128 nodes; tensor parallelism beyond a node; stages over microbatches; searches."""
    few = lab.with_seeds(quick=3, full=10)
    sizes = [{"model": "175B", "nodes": nodes} for nodes in lab.pick((32,), (16, 32, 64))]
    return {
        "scaling": lab.run(scaling, [{"nodes": nodes} for nodes in (16, 32, 64, MOST)], per="kind"),
        "tensor": lab.run(tensor, [{"nodes": 32}], per="layout"),
        "stages": lab.run(stages, [{"ratio": ratio} for ratio in (1.0, 0.5, 0.16)]),
        "search": few.run(searches, [*sizes, *lab.pick([], [{"model": "20B", "nodes": 8}])], per="method"),
    }


def scaling(nodes: int, seed: int) -> dict[str, dict[str, float]]:
    """FLOP/s of a tile on so many nodes, and as a share of those on 16."""
    shape, at, copies = gpt("175B"), calibrated(seed), nodes // 16
    plan = replace(RECIPE, layout=replace(RECIPE.layout, dp=copies))
    one = RECIPE.mbs * GAS
    weak, strong = per_tile(shape, plan, one * copies, nodes, at), per_tile(shape, plan, one * MOST // 16, nodes, at)
    first = {"weak": per_tile(shape, RECIPE, one, 16, at), "strong": per_tile(shape, RECIPE, one * MOST // 16, 16, at)}
    peak = device("max1550").flops("bf16")
    return {
        kind: {"flops": rate, "of_peak": rate / peak, "efficiency": rate / first[kind]}
        for kind, rate in (("weak", weak), ("strong", strong))
    }


def tensor(nodes: int, seed: int) -> dict[str, dict[str, float]]:
    """The 175B model on equally many tiles with equally many sequences, cut over ever more tiles a layer."""
    shape, at, batch = gpt("175B"), calibrated(seed), 2 * RECIPE.mbs * GAS
    cuts = {f"tp{tp}": Layout(tp=tp, pp=16, dp=nodes * NODE // 16 // tp) for tp in (4, 8, 16)}
    cuts["tp16 pp8"] = Layout(tp=16, pp=8, dp=nodes * NODE // 128)
    cuts["zero3"] = Layout(dp=nodes * NODE)  # no cut at all: everything sharded over data parallelism
    rows = {}
    for name, cut in cuts.items():
        alone = name == "zero3"
        plan = Plan(cut, mbs=1 if alone else RECIPE.mbs, recompute="full", zero=3 if alone else 1, overlap=False)
        job = Job(batch if not alone else cut.dp * (batch // cut.dp), SEQ)
        outcome = simulate(shape, machine(nodes, at), plan, job)
        rows[name] = {
            "flops": flops(shape, job) / (outcome.step * nodes * NODE), "exchange": outcome.exchange,
            "memory": float(outcome.memory.max()), "fits": float(outcome.fits),
        }  # fmt: skip
    return rows


def stages(ratio: float, seed: int) -> dict[str, float]:
    """How far FLOP/s differ among pipelines of 4 to 16 stages with the same stages per microbatch."""
    shape, at = gpt("175B"), calibrated(seed)
    rates = []
    for pp in (4, 8, 16):
        m = round(pp / ratio)
        rates.append(per_tile(shape, replace(RECIPE, layout=Layout(tp=8, pp=pp)), RECIPE.mbs * m, pp, at))
    return {"spread": 1 - min(rates) / max(rates), "flops": sum(rates) / len(rates)}


def searches(model: str, nodes: int, seed: int) -> dict[str, dict[str, float]]:
    """The Bayesian search beside a random one of the same budget, a rule of thumb, and all plans."""
    shape, cluster = gpt(model), machine(nodes, calibrated(seed))
    job = Job(12 * nodes * NODE // 4, SEQ)
    plans = search.plans(shape, cluster, job, zero=(1, 0, 3))
    every = dict(zip(plans, simulate_many(shape, cluster, plans, job), strict=True))
    best = min(one.step for one in every.values() if one.fits)

    def row(asked: list[Outcome]) -> dict[str, float]:
        fitting = [one.step for one in asked if one.fits]
        found = min(fitting) if fitting else float("inf")
        return {
            "slower": found / best - 1, "asked": len(asked), "plans": len(plans), "share": len(asked) / len(plans),
            "out_of_memory": len(asked) - len(fitting),
        }  # fmt: skip

    asked = bayes(plans, lambda some: [every[plan] for plan in some], lambda done, total: None, seed=seed)
    random = stream(seed, "supermuc", "random")
    draws = [row([every[plans[i]] for i in random.permutation(len(plans))[: len(asked)]]) for _ in range(DRAWS)]
    learned, luck = row(asked), {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
    return {
        "bayes": learned | {"ahead": luck["slower"] - learned["slower"]},
        "random": luck,
        "by hand": row([every[plan] for plan in by_hand(plans)]),
        "exhaustive": row(list(every.values())),
    }


def by_hand(plans: list[Plan]) -> list[Plan]:
    """What a careful engineer tries: a node of tensor parallelism, 1F1B, whole layers recomputed, stages one by one."""
    return [
        plan
        for plan in plans
        if plan.layout.tp == NODE and plan.schedule == "1f1b" and plan.recompute == "full" and plan.mbs in (1, 2)
    ]


def plot(table: pl.DataFrame) -> alt.Chart:
    """Efficiency over nodes, weak and strong."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "scaling")
    means = found.group_by("nodes", "kind", maintain_order=True).agg(pl.col("efficiency").mean())
    line = alt.Chart(means).encode(
        alt.X("nodes:Q", title="nodes of eight tiles").scale(type="log", base=2),
        alt.Y("efficiency:Q", title="FLOP/s of a tile, over those on 16 nodes").scale(zero=False), alt.Color("kind:N"),
    )  # fmt: skip
    chart: alt.Chart = line.mark_line(point=True)
    return chart


def _calibrated(column: str) -> Any:
    return measures.mean(column, experiment="scaling", kind="weak", nodes=16)


claims = [
    Claim("peak-share", _calibrated("of_peak"), construction="calibrated on the same published point"),
    Claim("flops", _calibrated("flops"), construction="calibrated on this very point"),
    Claim("weak", measures.mean("efficiency", experiment="scaling", kind="weak", nodes=MOST)),
    Claim("strong", measures.mean("efficiency", experiment="scaling", kind="strong", nodes=MOST)),
    Claim(
        "spanning",
        measures.change("flops", new={"layout": "tp16"}, old={"layout": "tp8"}, experiment="tensor", nodes=32),
    ),
    Claim(
        "constant", measures.mean("spread", experiment="stages", ratio=0.16), kind=Kind.AT_MOST, value=0.05,
        unit="share",
        asks="At the recipe's 0.16 stages a microbatch, FLOP/s of a tile differ by at most 0.05 among 4 to 16 stages.",
    ),
    Claim(
        "bayes", measures.mean("slower", experiment="search", method="bayes", model="175B", nodes=32),
        kind=Kind.AT_MOST, value=0.03, unit="share",
        asks="Asking for 15 % of the plans, the search's best step is at most 0.03 longer than the best of all.",
    ),
    Claim(
        "random", measures.mean("ahead", experiment="search", method="bayes", model="175B", nodes=32),
        kind=Kind.DIFFERENCE, toward="up", unit="share",
        asks="The search's best step is shorter than that of a random search with the same budget.",
    ),
]  # fmt: skip
