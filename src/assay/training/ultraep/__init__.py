"""UltraEP: after the gate has spoken, copy the busiest experts of this very microbatch and divide their tokens.

A mixture of experts waits for its busiest rank. Balancers that look at the past place copies for loads that are gone.
Here every rank learns the counts of the microbatch at hand and solves the same small problem: the lowest load that
every rank can be brought down to, if overloaded ranks hand tokens of their largest experts to the ranks with the most
room, each of which has a few slots for copies. Tokens stay on their own rank where it hosts the expert. A copy lives
for one microbatch: it gets the weights, computes its quota, and sends the gradients home; optimizers never see it.

Loads are generated: Zipf popularity whose order drifts, 64 ranks with 256 experts, from hardly to badly uneven. EPLB
and LPLB get the window of history that suits them best on other draws, and move their experts for free; EPLB+ sees what
UltraEP sees, and "all moved" is what it would do if experts and their optimizers could be anywhere at once. Throughput
is a model of a rack of 64 B200 training DeepSeek-V3, of which no part was measured; that the layer computes the same as
without balancing is measured, in torch on real processes.

arXiv:2606.04101.

>>> from assay.training.interface import Hosts
>>> load = np.array([[9000, 100, 200, 300], [8000, 200, 100, 300]])  # [source rank, expert]
>>> hosts = Hosts.dealt(experts=4, ranks=2, slots=1)
>>> UltraEP().rebalance(load, hosts).load().tolist()
[9163, 9037]
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, change, counted, mean, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.trust import sentence
from assay.training.interface import ExpertBalancer, Hosts, Ints, Shares
from assay.training.ultraep import layer_job
from assay.training.ultraep.rivals import Eplb, EplbPlus, Ideal, Lplb, Nobody
from assay.training.ultraep.solver import solve, split
from assay.training.ultraep.step_time import Pace, copying, pace
from assay.workloads.routing import drifting, uneven

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab


@dataclass(frozen=True)
class Plan:
    """Who gives what to whom: `exports` are rows of (expert, rank, tokens), and no rank has more than `threshold`.

    `relaxed`: the threshold took exports below the least size, of an equal share of what a rank had to give.
    """

    threshold: int
    exports: Ints
    relaxed: bool


@dataclass
class UltraEP:
    """Exact loads, greedy exports, the lowest threshold that they reach.

    Args:
        least: tokens that a copy should get, if it can be done so; never more than a 64th of a rank's mean load.
        precision: relative, of the search for the threshold.
        keep: tokens that an expert's main rank keeps; 0 lets it give away all.
    """

    key = "ultraep"
    least: int = 1024
    precision: float = 0.01
    keep: int = 1

    def plan(self, load: Ints, hosts: Hosts) -> Plan:
        """The exports of this microbatch; the same for the same counts, wherever it is called.

        >>> hosts = Hosts.dealt(experts=4, ranks=2, slots=1)
        >>> UltraEP(least=1).plan(np.array([[60, 0, 20, 20], [60, 0, 20, 20]]), hosts).exports.tolist()
        [[0, 1, 19]]
        """
        total = load.sum(axis=0, dtype=np.int64)
        least = min(self.least, max(1, int(total.sum()) // (64 * hosts.ranks)))
        threshold, relaxed, exports = solve(
            total, hosts.main, hosts.ranks, hosts.slots, least, self.precision, self.keep
        )
        return Plan(threshold, exports, relaxed)

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """The plan, and which tokens of which source go where.

        Raises:
            ValueError: counts of other experts than the hosts have, or that are no counts.
        """
        counts = np.ascontiguousarray(load, np.int64)
        if counts.ndim != 2 or counts.shape[1] != len(hosts.main) or counts.min(initial=0) < 0:
            raise ValueError(f"counts {counts.shape}; [source, {len(hosts.main)} experts] from 0 expected")
        return Shares(split(counts, hosts.main, hosts.ranks, self.plan(counts, hosts).exports))


def balanced_experts(hidden: int, ffn: int, experts: int, top_k: int, slots: int = 2) -> Any:
    """A torch module: a mixture of experts over the ranks of the default process group, balanced in every forward pass.

    Every rank calls it with its own tokens `[token, hidden]`; parameters are the gate, alike on all ranks if you make
    it so, and the experts that live here. Needs the extra `torch`.

    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun does it for you
    >>> balanced_experts(hidden=8, ffn=16, experts=4, top_k=2)(torch.randn(10, 8)).shape
    torch.Size([10, 8])
    >>> dist.destroy_process_group()
    """
    from assay.training.ultraep.layer import Experts

    return Experts(hidden, ffn, experts, top_k, UltraEP(), slots)


offers = {"balancer": UltraEP}
evidence = Evidence.MODEL
needs = ("torch",)
use_when = (
    "Experts lie on the ranks of one fast domain (a node, a rack), microbatches are large, and their hottest experts "
    "change faster than copies can be placed by hand."
)
avoid_when = (
    "Loads are even already, microbatches are so small that a copy's weights take longer than the tokens it saves, or "
    "ranks are connected by a network on which weights travel for milliseconds."
)
trust = (
    "Throughput is a model of a rack: no group of GPUs was measured, and a plan takes as long as the paper reports. "
    + sentence("roofline")
)
own_input = "assay compare ultraep --input examples/routing.npy"
references = (
    "EPLB and LPLB: DeepSeek's open-source balancers.",
    "FLAME-MoE's routing traces: per token the experts it used, which `assay compare ultraep` reads.",
)

RANKS, EXPERTS, TOP_K, TOKENS, SLOTS = 64, 256, 8, 8192, 2
MODEL, DEVICE = "deepseek-v3", "b200"
WINDOWS = (1, 4, 16)  # microbatches of history; the best on another draw is taken
UNEVEN = (1.3, 1.5, 2.0, 3.0, 4.0)  # the busiest rank over the mean, in a case's first microbatch
MOST_UNEVEN = {8: 1.5, 16: 2.0, 32: 3.0}  # where a rank has many experts, no popularity makes ranks more uneven
PHASES = ("training", "prefill")


def policies(history: int, looking_back: int) -> dict[str, ExpertBalancer]:
    """UltraEP and its rivals, those that look back with this window and as many microbatches seen before."""
    window = min(looking_back, history)
    return {
        "ultraep": UltraEP(), "none": Nobody(), "eplb": Eplb(window), "eplb+": EplbPlus(),
        "eplb+, all moved": EplbPlus(moves=True), "lplb": Lplb(window), "ideal": Ideal(),
    }  # fmt: skip


def follow(balancer: ExpertBalancer, loads: Ints, hosts: Hosts, history: int, rack: Pace) -> pl.DataFrame:
    """One row for every microbatch after the first `history`: how even, how many copies, what a step would take."""
    found = []
    for number, load in enumerate(loads):
        shares = balancer.rebalance(load, hosts)
        if number < history:
            continue
        per_rank, where = shares.load(), shares.tokens.sum(axis=0) > 0
        copies = where.copy()
        copies[np.arange(len(hosts.main)), hosts.main] = False
        weights = 0.0
        if isinstance(balancer, UltraEP):
            weights = copying(copies, hosts.main, rack.expert_bytes, rack.link)
        elif isinstance(balancer, EplbPlus):  # all slots anew; where from is not held against it
            weights = rack.link.latency + hosts.slots * rack.expert_bytes / rack.link.bandwidth
        imbalance = float(per_rank.max() / per_rank.mean())
        planned = isinstance(balancer, UltraEP | Lplb) or weights > 0
        steps = {phase: rack.seconds(imbalance, weights, phase == "training", planned) for phase in PHASES}
        extra = int(where.sum()) - len(where)
        found.append({"before": uneven(load, hosts.ranks), "after": imbalance, "copies": extra, **steps})
    return pl.DataFrame(found)


def balance(ranks: int, uneven_by: float, history: int, judged: int, seed: int) -> dict[str, dict[str, Any]]:
    """All policies on the same drifting loads."""
    loads = drifting(ranks, EXPERTS, TOP_K, TOKENS, uneven_by, history + judged, seed)
    hosts, rack = Hosts.dealt(EXPERTS, ranks, SLOTS), pace(MODEL, DEVICE, ranks, TOKENS)
    contenders = policies(history, tuned(ranks, uneven_by, history))
    steps = {name: follow(policy, loads, hosts, history, rack) for name, policy in contenders.items()}
    worse = (steps["ultraep"]["after"] > steps["eplb+"]["after"]).sum()
    return {
        name: {
            "before": found["before"].mean(), "after_mean": found["after"].mean(), "after_max": found["after"].max(),
            "copies_mean": found["copies"].mean(), "worse": worse if name == "ultraep" else None, "judged": judged,
            **{f"{phase}_tokens_per_second": ranks * TOKENS / _mean(found[phase]) for phase in PHASES},
        }
        for name, found in steps.items()
    }  # fmt: skip


def _mean(column: pl.Series) -> float:
    return float(column.to_numpy().mean())


@lru_cache(maxsize=32)
def tuned(ranks: int, uneven_by: float, history: int) -> int:
    """The window of history after which EPLB's copies are most even, on loads that nobody is judged on."""
    loads = drifting(ranks, EXPERTS, TOP_K, TOKENS, uneven_by, history + 4, seed=10**6)
    hosts, rack = Hosts.dealt(EXPERTS, ranks, SLOTS), pace(MODEL, DEVICE, ranks, TOKENS)
    found = {w: _mean(follow(Eplb(w), loads, hosts, history, rack)["after"]) for w in WINDOWS if w <= history}
    return min(found, key=lambda window: found[window])


def solver_time(uneven_by: float, rounds: int, seed: int) -> dict[str, float]:
    """Seconds of one plan and of its split, compiled beforehand: medians of rounds."""
    load = drifting(RANKS, EXPERTS, TOP_K, TOKENS, uneven_by, 1, seed)[0]
    hosts, balancer = Hosts.dealt(EXPERTS, RANKS, SLOTS), UltraEP()
    exports = balancer.plan(load, hosts).exports
    split(load, hosts.main, RANKS, exports)
    plans, splits = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        balancer.plan(load, hosts)
        between = time.perf_counter()
        split(load, hosts.main, RANKS, exports)
        plans.append(between - begun)
        splits.append(time.perf_counter() - between)
    return {"plan": float(np.median(plans)), "split": float(np.median(splits)), "exports": len(exports)}


def torch_step(ranks: int, experts: int, tokens: int, seed: int) -> dict[str, float]:
    """A training step of the torch layer on real processes, with and without balancing."""
    return layer_job.same(ranks, experts, tokens, seed)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Drifting Zipf loads beside EPLB, EPLB+, LPLB; how long a plan takes; a torch layer that must not notice."""
    sizes = lab.pick(quick={"history": 6, "judged": 4}, full={"history": 16, "judged": 32})
    cases = [
        {"ranks": ranks, "uneven_by": uneven_by, **sizes}
        for ranks in lab.pick(quick=(RANKS,), full=(8, 16, 32, RANKS))
        for uneven_by in UNEVEN
        if uneven_by <= MOST_UNEVEN.get(ranks, 4.0)
    ]
    torch = [{"ranks": lab.pick(quick=2, full=4), "experts": 8, "tokens": lab.pick(quick=256, full=2048)}]
    return {
        "balance": lab.run(balance, cases, per="policy"),
        "solver": lab.run(solver_time, [{"uneven_by": x, "rounds": 20} for x in UNEVEN], alone=True),
        "layer": replace(lab.with_seeds(quick=2, full=3), workers=0).run(torch_step, torch),
    }


def _throughput(policy: str, phases: tuple[str, ...]) -> Measure:
    """UltraEP's tokens a second over another's: the geometric mean over cases and phases, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        logs = pl.mean_horizontal(pl.col(f"{phase}_tokens_per_second").log() for phase in phases)
        found = rows(table, {"experiment": "balance", "ranks": RANKS}).with_columns(speed=logs)
        pooled = found.group_by("policy", "seed").agg(pl.col("speed").mean().exp()).sort("seed")
        ours, theirs = (pooled.filter(policy=name)["speed"].to_list() for name in ("ultraep", policy))
        return intervals.ratio(ours, theirs)

    return measure


def _every(column: str, cases: tuple[float, ...] = UNEVEN) -> Measure:
    where = {"experiment": "balance", "ranks": RANKS, "policy": "ultraep"}
    return best({f"{x:g} before": mean(column, uneven_by=x, **where) for x in cases}, every=True)


def _never_worse(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "balance", "policy": "ultraep"})
    tried, worse = int(found["judged"].sum()), int(found["worse"].sum())
    return intervals.clopper_pearson(tried - worse, tried)


def _slots(table: pl.DataFrame) -> Estimate:
    where = {"experiment": "balance", "ranks": RANKS, "uneven_by": 2.0}
    return change("copies_mean", new={"policy": "ultraep"}, old={"policy": "eplb+"}, **where)(table)


def _apart(table: pl.DataFrame) -> Estimate:
    """The largest difference in any run: arithmetic, not a sample."""
    found = rows(table, {"experiment": "layer"})
    return counted(max([*found["loss_apart"], *found["gradients_apart"]]), len(found))


claims = [
    Claim("overall", _throughput("none", PHASES)),
    Claim("of-uniform", _throughput("ideal", PHASES)),
    Claim("imbalance", _every("after_max")),
    Claim("training", _throughput("none", ("training",))),
    Claim("prefill", _throughput("none", ("prefill",))),
    Claim(
        "zipf", _every("after_max", (1.5, 2.0, 3.0)), kind=Kind.AT_MOST, value=1.02, unit="ratio",
        asks="On 64 ranks with 256 experts, the busiest rank 1.5, 2 or 3 times the mean before, it is at most 1.02 "
        "times the mean in every microbatch.",
    ),
    Claim(
        "never-worse", _never_worse, kind=Kind.EVERY,
        asks="In no microbatch is the busiest rank busier than with EPLB fed the same exact counts.",
    ),
    Claim(
        "slots", _slots, kind=Kind.CHANGE, toward="down",
        asks="It needs fewer copies than EPLB fed the same exact counts, where the busiest rank was twice the mean.",
    ),
    Claim(
        "eplb-plus", _throughput("eplb+", PHASES), kind=Kind.RATIO, toward="up",
        asks="Its throughput is above that of EPLB fed the same exact counts, averaged over training and prefill.",
    ),
    Claim(
        "solver", best({f"{x:g}": mean("plan", experiment="solver", uneven_by=x) for x in UNEVEN}, every=True),
        kind=Kind.AT_MOST, value=2e-3, unit="s", evidence=Evidence.REAL,
        asks="One core finds the plan of 256 experts on 64 ranks within 2 ms.",
    ),
    Claim(
        "gradients", _apart, kind=Kind.AT_MOST, value=1e-5, unit="value", evidence=Evidence.REAL,
        asks="In a torch layer on real processes loss and gradients are those of the unbalanced layer, to 0.01 "
        "thousandths, in all runs.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """How uneven ranks are before and after, policy by policy."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "balance", pl.col("ranks") == RANKS, pl.col("policy") != "ideal")
    means = found.group_by("policy", "uneven_by", maintain_order=True).agg(pl.col("after_mean").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            x=alt.X("uneven_by:Q", title="busiest rank over the mean, before", scale=alt.Scale(zero=False)),
            y=alt.Y("after_mean:Q", title="after", scale=alt.Scale(type="log")),
            color=alt.Color("policy:N", title=None, sort=list(dict.fromkeys(means["policy"]))),
        )
        .properties(width=420, height=280, title="Experts on 64 ranks: how busy the busiest rank is")
    )
    return chart
