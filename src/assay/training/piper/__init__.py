"""Piper: count what each mesh of a mixture of experts needs, and add pipeline stages until all-to-alls are near.

Expert parallelism over all ranks sends every token's copies across the machine, four times a layer. Piper counts the
memory, compute and traffic of every PP x EP mesh: with more stages each rank holds fewer layers, so more experts of
each, and its all-to-all stays in a node or a few. Where it leaves the node, HALO sends one message for a pair of nodes
instead of one for a pair of ranks: dies collect within a node what goes to the nodes they are in charge of, exchange
it, and hand it out. Flat or HALO is chosen by cost. Experts of busy ranks change places with those of idle ones.

The machine is a model of Frontier: eight dies and four cards a node, dragonfly groups with tapered cables between them,
every message played event by event over the links it shares (:mod:`assay.training.piper.machine`); steps are the
engine's, with these all-to-alls. What nobody published (shares of peak, taper, what a message takes to start, messages
under way) is drawn for every seed. Shapes of the 55B, 201B and 545B models are customary ones (inferred), batches four
sequences of 4,096 tokens a rank. X-MoE may choose its expert parallelism, which makes it a stronger rival than in the
paper, where it spans all ranks; that one is here as "flat ep", over at most 128 ranks (256 at full size). Real are
HALO's exchanges, by processes over slowed links, and the bytes of a torch model that the memory model is held against.

Dash and Wang, 2026, arXiv:2605.05049.

>>> from assay.training.piper.exchanges import flat, halo
>>> machine, sizes = Machine(nodes=8), np.full((64, 64), 1000.0)
>>> flat(machine, [range(64)]).seconds(machine, sizes) > 3 * halo(machine, [range(64)]).seconds(machine, sizes)
True
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, change, counted, mean, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.models import Experts, Model
from assay.sim.random import stream
from assay.sim.ranks import prepare
from assay.training.engine.cluster import Efficiency
from assay.training.engine.costs import stage_costs
from assay.training.engine.step import Outcome, simulate_many
from assay.training.interface import Job, Layout, Plan
from assay.training.piper import exchange_job
from assay.training.piper.exchanges import SCHEDULES, planned
from assay.training.piper.machine import Machine
from assay.training.piper.migration import Rule, follow
from assay.training.piper.network import HALO, Network, frontier
from assay.training.piper.resources import METHODS, fitting, mixture, possible, widest
from assay.workloads.routing import drifting

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "A mixture of experts outgrows a node, and the network between nodes is far slower than that within."
avoid_when = "The job fits a node, or the batch is too small to fill a pipeline: then expert parallelism alone does."
trust = (
    "Utilisation and all-to-alls are a model of a machine; no group of its dies was measured, and shares of peak, "
    "taper and start-up times are drawn. HALO's exchanges and the memory of a torch model are real, at small sizes."
)
own_input = "assay compare piper --model examples/moe.json --cluster examples/cluster.toml --batch 64"
references = (
    "X-MoE: Yuan et al., 2025. DeepSpeed-TED: Singh et al., ICS 2023. Two-level all-to-all: Hwang et al., Tutel, 2023.",
    "Frontier: OLCF's user guide. Dragonflies: Kim et al., ISCA 2008. Start-up times: NCCL, src/graph/tuning.cc.",
)

SEQ, A_RANK = 4096, 4  # tokens of a sequence, sequences a rank
MIDDLE = Efficiency(matrix=0.6, attention=0.35, memory=0.8, links=0.8, half=160.0)
SHORT = 12  # plans of each method that are asked for again with every seed's efficiencies
SMALL = (1e3, 16e3)  # bytes for a peer: small and medium messages
TINY = Model("tiny", 128, 512, False, 4, 0, 0, 0, 4, 2, 2, 64, 512, experts=Experts(8, 2, 128))
EXACT = (Layout(), Layout(pp=2, dp=4, ep=4), Layout(pp=4, dp=2, ep=2))


@lru_cache(maxsize=64)
def shortlist(size: str, ranks: int, most: int) -> tuple[Plan, ...]:
    """The best plans of each method in the middle of all guesses; the same number for each."""
    shape, cluster, job = mixture(size), frontier(ranks, MIDDLE), Job(A_RANK * ranks, SEQ)
    found = fitting(shape, cluster, job, possible(shape, cluster, job, most, micro=2), _networks(ranks), most)
    return tuple(dict.fromkeys(one.plan for fits in found.values() for one in fits[:SHORT]))


def _networks(ranks: int) -> dict[bool, Network]:
    """Played once, with the links of the middle."""
    return {halo: Network.of(frontier(ranks, MIDDLE), halo) for halo in (True, False)}


def plans(size: str, ranks: int, most: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every method's best plan on so many dies, experts over at most so many of them."""
    random = stream(seed, "piper", "machine")
    share = float(random.uniform(0.5, 0.7))
    at = replace(MIDDLE, matrix=share, attention=0.6 * share, memory=float(random.uniform(0.7, 0.9)))
    shape, job, asked = mixture(size), Job(A_RANK * ranks, SEQ), shortlist(size, ranks, most)
    networks, found = _networks(ranks), {}
    for name, (halo, may) in METHODS.items():
        mine = [plan for plan in asked if may(plan.layout, widest(shape, ranks, most))]
        on = replace(frontier(ranks, at), collectives=networks[halo])
        fits = [one for one in simulate_many(shape, on, mine, job) if one.fits]
        one = min(fits, key=lambda outcome: outcome.step, default=None)
        found[name] = _row(one)
    return found


def _row(one: Outcome | None) -> dict[str, Any]:
    if one is None:
        return dict.fromkeys(("mfu", "exchange", "bubble", "pp", "ep")) | {"plan": "none fits"}
    layout = one.plan.layout
    return {"mfu": one.mfu, "exchange": one.exchange, "bubble": one.bubble, "pp": layout.pp, "ep": layout.ep,
            "plan": one.plan.name}  # fmt: skip


def drawn(nodes: int, seed: int) -> Machine:
    """A machine of so many nodes, with what is not known of it drawn."""
    random = stream(seed, "piper", "network")
    return Machine(
        nodes, taper=float(random.uniform(0.35, 0.7)), start_outside=float(random.uniform(10e-6, 20e-6)),
        inside=float(random.uniform(40e9, 60e9)), window=int(random.choice([4, 8])),
    )  # fmt: skip


def all_to_alls(nodes: int, per_peer: float, seed: int) -> dict[str, dict[str, float]]:
    """Every algorithm on one machine; Piper takes flat or HALO, whichever is quicker."""
    machine = drawn(nodes, seed)
    sizes = np.full((machine.ranks, machine.ranks), per_peer)
    ways = {name: planned(name, machine.shape, (range(machine.ranks),)) for name in SCHEDULES}
    took = {name: way.seconds(machine, sizes) for name, way in ways.items()}
    chosen = min(("flat", *HALO), key=lambda name: took[name])
    moved = per_peer * (machine.ranks - 1)
    return {
        name: {"seconds": seconds, "bytes_per_second": moved / seconds, "is_halo": float(used in HALO)}
        for name, seconds, used in [*((n, s, n) for n, s in took.items()), ("piper", took[chosen], chosen)]
    }


def swapping(steps: int, uneven_by: float, seed: int) -> dict[str, dict[str, float]]:
    """One layer of the 201B model on 16 ranks: places fixed, experts swapped, all experts packed anew.

    A step is as many microbatches of one sequence as the plans have, all routed alike.
    """
    ranks, shape, cluster = 16, mixture("201B"), frontier(16, MIDDLE)
    assert shape.experts is not None
    mixed = shape.experts
    loads = A_RANK * drifting(ranks, mixed.count, mixed.top_k, SEQ, uneven_by, steps, seed, half_life=256.0).sum(axis=1)
    params = 3 * shape.hidden * shape.experts.ffn
    second_of = 6 * params / (cluster.device.flops("bf16") * MIDDLE.matrix)
    keeps = cluster.precision
    move = 2 * params * (keeps.item + keeps.optimizer) / (cluster.outside.bandwidth * MIDDLE.links)
    rule, found = Rule(), {}
    for policy in ("fixed", "migration", "packed"):
        one = follow(loads, ranks, rule, second_of, move, policy)
        judged = one.load[rule.period :]
        found[policy] = {
            "spread": float(judged.std(axis=1).mean()),
            "busiest": float((judged.max(axis=1) / judged.mean(axis=1)).mean()),
            "swaps": one.swaps, "moving": one.moving / (one.moving + one.computing),
            "seconds": one.moving + one.computing,
        }  # fmt: skip
    return found


def over_slowed_links(nodes: int, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Real processes, two a node: seconds of every round, those predicted, and blocks that came out wrong."""
    return exchange_job.measured(exchange_job.smaller(nodes), 2000.0, rounds, seed)


def memory_exactly(seed: int) -> dict[str, dict[str, float]]:
    """The memory model beside a count of what a torch model has and keeps, stage by stage of three meshes."""
    try:
        from assay.training.piper.exact import counted as count
    except ModuleNotFoundError as error:
        raise NotMeasured("counting a torch model needs the extra torch") from error
    found, (mbs, seq) = {}, (1 + seed % 2, 256)
    for layout in EXACT:
        costs = stage_costs(TINY, frontier(layout.ranks), Plan(layout, mbs=mbs), Job(4 * mbs * layout.dp, seq))
        keeps = frontier(1).precision
        for stage in range(layout.pp):
            params, kept = count(TINY, layout, stage, mbs, seq)
            modelled = costs.gradient_bytes[stage] / keeps.gradient
            both = [(keeps.item + keeps.gradient) * p + a for p, a in ((modelled, costs.kept[stage]), (params, kept))]
            found[f"{layout.name}, stage {stage}"] = {
                "parameters": modelled / params - 1, "activations": float(costs.kept[stage] / kept - 1),
                "off": abs(both[0] / both[1] - 1),
            }  # fmt: skip
    return found


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Meshes and rivals on 8 to 1,024 dies; all-to-alls on 4 to 16 (32) nodes; migration; real exchanges; memory."""
    here = replace(lab, workers=0)  # what was played is kept within a process; and workers may not start ranks
    sizes = lab.pick(
        quick=[("10B", 8), ("55B", 64), ("55B", 1024), ("201B", 512), ("545B", 1024)],
        full=[("10B", 8), *(("55B", n) for n in (64, 128, 256, 512, 1024)), ("201B", 256), ("201B", 512),
              ("545B", 512), ("545B", 1024)],
    )  # fmt: skip
    most = lab.pick(quick=128, full=256)  # a flat all-to-all of 256 takes a core a minute to play
    per_peer = lab.pick(quick=SMALL, full=(*SMALL, 256e3))
    nodes = lab.pick(quick=(4, 16), full=(2, 4, 8, 16))
    messages = [{"nodes": n, "per_peer": b} for n in nodes for b in per_peer]
    messages.append({"nodes": 4, "per_peer": 1e6})
    if lab.pick(quick=False, full=True):
        messages.append({"nodes": 32, "per_peer": 1e3})
    few = replace(lab.with_seeds(quick=3, full=5), workers=0)
    loads = [{"steps": lab.pick(quick=64, full=256), "uneven_by": x} for x in (1.3, 1.6, 2.0)]
    prepare(exchange_job.IMPORTS)
    return {
        "plans": few.run(plans, [{"size": s, "ranks": n, "most": most} for s, n in sizes], per="method"),
        "exchanges": few.run(all_to_alls, messages, per="algorithm"),
        "migration": here.run(swapping, loads, per="policy"),
        "real": replace(lab.with_seeds(quick=1, full=3), workers=0).run(
            over_slowed_links, [{"nodes": 4, "rounds": lab.pick(quick=5, full=15)}], per="round"
        ),
        "memory": replace(lab.with_seeds(quick=1, full=2), workers=0).run(memory_exactly, [{}], per="share"),
    }


CASES = [("55B", 64), ("55B", 1024), ("201B", 512), ("545B", 1024)]
LARGE = [("201B", 512), ("545B", 1024)]


def _over(method: str, cases: list[tuple[str, int]]) -> dict[str, Measure]:
    where = {"of": {"method": "piper"}, "to": {"method": method}}
    return {f"{s} on {n}": ratio("mfu", **where, experiment="plans", size=s, ranks=n) for s, n in cases}


def _quicker(than: str, algorithm: str, nodes: int, per_peer: float) -> Measure:
    to = {"algorithm": algorithm}
    return ratio("seconds", of={"algorithm": than}, to=to, experiment="exchanges", nodes=nodes, per_peer=per_peer)


def _real(table: pl.DataFrame) -> Estimate:
    """Round by round, in which the algorithms took turns."""
    found = rows(table, {"experiment": "real"})
    return intervals.ratio(found["flat"].to_list(), found["halo"].to_list())


def _counted(experiment: str, column: str) -> Measure:
    """The largest of any row: counted, not a sample."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, {"experiment": experiment})
        return counted(float(found[column].max()), len(found))  # type: ignore[arg-type]

    return measure


claims = [
    Claim("mfu-best", best(_over("x-moe", CASES))),
    Claim("mfu-least", best(_over("x-moe", CASES), min)),
    Claim("all-to-all", best({
        f"{n} nodes, {b:g} bytes": _quicker("flat", "piper", n, b) for n in (4, 16) for b in SMALL
    })),
    Claim(
        "weak-scaling",
        ratio("mfu", of={"ranks": 1024}, to={"ranks": 64}, experiment="plans", size="55B", method="piper"),
    ),
    Claim("migration", best({f"{x:g} before": change(
        "spread", new={"policy": "migration"}, old={"policy": "fixed"}, experiment="migration", uneven_by=x
    ) for x in (1.3, 1.6, 2.0)}, every=True)),
    Claim(
        "flat-ep", best(_over("flat ep", LARGE), min), kind=Kind.AT_LEAST, value=2.0, unit="ratio",
        asks="On 512 and 1,024 dies the chosen mesh has at least 2 times the utilisation of expert parallelism as wide "
        "as it is played.",
    ),
    Claim(
        "one-node", best(_over("flat ep", [("10B", 8)])), kind=Kind.AT_MOST, value=1.1, unit="ratio",
        asks="On the eight dies of a node the chosen mesh is at most 1.1 times as good as expert parallelism over all.",
    ),
    Claim(
        "halo", best({f"{b:g} bytes": _quicker("flat", "halo", 16, b) for b in SMALL}, min), kind=Kind.AT_LEAST,
        value=1.5, unit="ratio",
        asks="On 16 nodes HALO is at least 1.5 times as quick as a flat all-to-all, for 1 and for 16 kB to each peer.",
    ),
    Claim(
        "two-level", best({f"{n} nodes, {b:g} bytes": _quicker("two-level", "halo", n, b)
                           for n in (4, 16) for b in SMALL}, min, every=True),
        kind=Kind.RATIO, toward="up",
        asks="On 4 and on 16 nodes, for 1 and for 16 kB to each peer, HALO is quicker than a two-level all-to-all.",
    ),
    Claim(
        "migrating", best({f"{x:g} before": mean("moving", experiment="migration", policy="migration", uneven_by=x)
                           for x in (1.3, 1.6, 2.0)}, every=True),
        kind=Kind.AT_MOST, value=0.05, unit="share", asks="Moving experts takes at most 0.05 of the time.",
    ),
    Claim(
        "real", _real,
        kind=Kind.RATIO, toward="up", evidence=Evidence.REAL,
        asks="Eight processes as four nodes, with links between nodes ten times slower, exchange ragged blocks quicker "
        "by HALO than flat.",
    ),
    Claim(
        "blocks", _counted("real", "wrong"), kind=Kind.AT_MOST, value=0.0, unit="count", evidence=Evidence.REAL,
        asks="Of all ragged blocks 0 arrive wrong or elsewhere, byte by byte, by every algorithm.",
    ),
    Claim(
        "memory", _counted("memory", "off"), kind=Kind.AT_MOST, value=0.1, unit="share", evidence=Evidence.REAL,
        asks="Weights, gradients and activations of every stage are within 0.1 of those counted in a torch model.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Utilisation of every method on every size."""
    import altair as alt

    label = pl.format("{} on {}", pl.col("size"), pl.col("ranks"))
    found = table.filter(pl.col("experiment") == "plans").with_columns(case=label).drop_nulls("mfu")
    means = found.group_by("case", "method", maintain_order=True).agg(pl.col("mfu").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_bar()
        .encode(
            x=alt.X("mfu:Q", title="model FLOP utilisation, predicted"),
            y=alt.Y("method:N", title=None, sort=list(METHODS)),
            color=alt.Color("method:N", legend=None),
            row=alt.Row("case:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left"),
                        sort=list(dict.fromkeys(means["case"]))),
        )
        .properties(width=340, height=90)
    )  # fmt: skip
    return chart
