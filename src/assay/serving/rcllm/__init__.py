"""RcLLM: cache a ranking prompt block by block, send it to where its items lie, compute again what goes wrong.

A recommender that asks an LLM to rank items writes prompts of an instruction, the user's history, and many item
descriptions in ever new order. A prefix cache sees a new prompt at the first item. But the items themselves come again
and again. So each description's keys and values are computed once, on its own, and kept. Where a prompt needs it, its
keys are turned to their new positions (rotary positions make that exact) and its values are taken as they are. What the
item's tokens would have seen of the history is then missing, so about one token in seven is computed again: those that
the first layer shows to be farthest off, and the last of every block. Items do not fit on every node; they are placed
so that what is asked for together lies together, the most popular everywhere, and a request goes to the node that has
most of its items, unless that one is busy. What is missing there is fetched from peers meanwhile.

The study has three parts. A transformer trained here ranks items, and its accuracy with reused blocks is measured
against full computation. A cluster of nodes, in a model, serves the same kind of traffic with prefix caches and with
blocks, at equal memory and with caches equally warm, over a grid that no result has shaped: every combination of a
low and a high value of six things (`GRID`). The full size also times the mechanism for real, on this machine's CPU.

RcLLM, ICDCS 2026, arXiv:2605.07443. Not in the abstract, so assumed: the share of tokens that is repaired, the layer
that chooses them, the partitioning and the score of the scheduler.

Your own log of who took what tells where its items should lie:

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     log = Path(folder, "log.csv")
...     rows = (f"u{u},{'tea' if u % 2 else 'nut'}-{(u * 7 + i) % 20},{i}" for u in range(60) for i in range(10))
...     _ = log.write_text("user,item,time\\n" + "\\n".join(rows))
...     plan = place(log, nodes=4, candidates=8)
>>> len(plan.table), plan.local_share > plan.local_share_hash
(40, True)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures, timing
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.serving.rcllm import block_cluster as cluster
from assay.serving.rcllm import block_reuse, ranking_lm
from assay.serving.rcllm.item_placement import Placement, by_co_occurrence, by_hash
from assay.sim import tiny_lm
from assay.sim.random import stream
from assay.sim.roofline import layout
from assay.sim.trust import sentence
from assay.workloads import recommendations

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # the times are a cluster's in a model; accuracy is real, see the claims
use_when = (
    "Prompts are put together from known pieces in changing order (items to rank, documents to read), the pieces are "
    "longer than what joins them, and they are asked for again more often than a store can be filled."
)
avoid_when = (
    "Prompts continue one another (a prefix cache is exact and free then), pieces are new each time, answers must be "
    "those of full computation to the last bit, or the network is slower than computing again."
)
needs = ("torch",)
trust = sentence("roofline")
own_input = "assay compare rcllm --log examples/clicks.csv --nodes 4 --candidates 20"
references = (
    "Selective recomputation of reused blocks: Yao et al., CacheBlend, EuroSys 2025, arXiv:2405.16444.",
    "Rotary positions: Su et al., RoFormer, arXiv:2104.09864.",
    "Greedy balanced partitioning: Stanton and Kliot, KDD 2012.",
)

REPAIRED = 0.15  # share of reused item tokens that is computed again
HEAD = 0.2  # share of a node's item store that replicated items may take
HISTORIES = 16e9  # bytes a node has for histories, beside the items
NODES, NODE = 4, "a100:llama-3.1-8b"
PREFIX = ("prefix", "prefix-sorted", "prefix-items-first")
# The weight of the queue in routing: of 0.05, 0.2, 0.5, 1 and 2 the one that serves each way of caching best over the
# grid (geometric mean), tuned with a seed of its own.
PREFIX_BETA, BLOCK_BETA, TUNED_WITH = 1.0, 2.0, 987
GRID: dict[str, tuple[float, float]] = {
    "candidates": (10, 80),  # items a request
    "history": (300, 3000),  # tokens
    "users": (40, 600),
    "store": (0.1, 1.5),  # catalogues that all nodes together have room for
    "load": (0.2, 0.8),  # of what the cluster could do without a cache
    "network": (1.25e9, 12.5e9),  # bytes/s
}
CORNERS = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


@dataclass(frozen=True)
class Plan:
    """Where items should lie: `table` has a row per item with its nodes, and how often retrieval asked for it.

    `local_share` is the part of a request's items that its best node has, on requests the plan was not made from;
    `local_share_hash` the same with items spread by hash.
    """

    table: pl.DataFrame
    local_share: float
    local_share_hash: float


def place(
    interactions_csv: str | PathLike[str], nodes: int, *, store: float = 1.3, candidates: int = 30, head: float = HEAD,
    requests: int = 2000, seed: int = 0,
) -> Plan:  # fmt: skip
    """Place the items of your own log, a CSV of user,item,time, on nodes that have room for `store` catalogues in all.

    Candidates are retrieved from the log by co-visitation, so many a request; the placement is made from one set of
    requests and judged on another. All items count as equally long. Raises ValueError for a log it cannot read, or one
    with fewer items than candidates.

    >>> place("no-such-file.csv", nodes=4)
    Traceback (most recent call last):
    ValueError: cannot read no-such-file.csv: No such file or directory; a CSV of user,item,time expected
    """
    log = recommendations.read_interactions(interactions_csv)
    seeds = (2 * seed, 2 * seed + 1)
    past, new = (recommendations.ranking_requests(log, requests, candidates, 1.0, part).items for part in seeds)
    size = np.ones(len(log.items))
    capacity = store * len(log.items) / nodes
    placement = by_co_occurrence(past, size, nodes, capacity, head=head)
    hashed = by_hash(past, size, nodes, capacity, head=0.0)
    return Plan(where(log, placement, past), placement.local_share(new), hashed.local_share(new))


def where(log: recommendations.Interactions, placement: Placement, past: Any) -> pl.DataFrame:
    """A row per item with its nodes, and how often the requests of the past asked for it; the most asked for first."""
    nodes = [np.flatnonzero(column).tolist() for column in placement.stored.T]
    asked = np.bincount(past.ravel(), minlength=len(log.items))
    return pl.DataFrame({"item": log.items, "nodes": nodes, "asked": asked}).sort("asked", descending=True)


# --------------------------------------------------------------------------------- accuracy, for real


def accuracy(prompts: int, ablations: int, candidates: int, seed: int) -> dict[str, dict[str, Any]]:
    """The trained recommender with reused blocks; without its parts, or with more repair, on the first prompts only."""
    import torch

    torch.set_num_threads(1)
    params = tiny_lm.load(ranking_lm.WEIGHTS)[0]["recommender"]
    asked = ranking_lm.prompts(prompts, candidates, seed)
    first, blocks = rows(params, asked)
    cached = block_reuse.assemble(first, blocks)
    unturned = block_reuse.assemble(first, [block_reuse.pick(block, slice(ablations)) for block in blocks], turn=False)
    logits, off = block_reuse.whole(params, asked.ids, cached)
    whole = ranking_lm.scores(logits, asked)

    def quality(
        reused: tiny_lm.Cache, share: float, how: str = "deviation+boundary", n: int = prompts
    ) -> dict[str, Any]:
        some = asked.head(n)
        chosen = block_reuse.choose(off[:n], asked.blocks[1:], share, how, seed)
        repaired = block_reuse.answer(params, some.ids, block_reuse.pick(reused, slice(n)), chosen)
        return _quality(ranking_lm.scores(repaired, some), whole[:n], some)

    return {
        "full": _quality(whole, whole, asked),
        "rcllm": quality(cached, REPAIRED),
        "full reuse": quality(cached, 0.0),
        "full reuse, keys not turned": quality(unturned, 0.0, n=ablations),
        "repair 0.30": quality(cached, 0.30, n=ablations),
        "by deviation alone": quality(cached, REPAIRED, "deviation", n=ablations),
        "at random": quality(cached, REPAIRED, "random", n=ablations),
    }


def rows(params: tiny_lm.Params, asked: ranking_lm.Prompts) -> tuple[tiny_lm.Cache, list[tiny_lm.Cache]]:
    """The instruction's rows, and slot by slot those of the prompts' histories and items, each computed on its own."""
    instruction = asked.ids[0, : ranking_lm.INSTRUCTION]
    first, histories = block_reuse.prepare(params, instruction, asked.ids[:, asked.blocks[0]])
    _, items = block_reuse.prepare(params, instruction, ranking_lm.shop().blocks)
    slots = [block_reuse.pick(items, asked.items[:, slot]) for slot in range(asked.items.shape[1])]
    return first, [histories, *slots]


def _quality(scores: Any, whole: Any, asked: ranking_lm.Prompts) -> dict[str, Any]:
    hits = ranking_lm.hits(scores, asked)
    gap = (whole.log_softmax(1) - scores.log_softmax(1)) * whole.softmax(1)
    same = scores.argmax(1) == whole.argmax(1)
    return {
        "hit10": float(hits.mean()), "hits": int(hits.sum()), "trials": len(hits),
        "top1_agreement": float(same.float().mean()), "kl_mean": float(gap.sum(1).mean()),
    }  # fmt: skip


# ------------------------------------------------------------------------------ the cluster, in a model


@dataclass(frozen=True)
class Traffic:
    """Requests at one a second, where the items lie, and what is a prefix of what in each prompt layout."""

    prompts: cluster.Prompts
    room: float  # bytes a node has for items
    near: Placement
    spread: Placement
    chains: dict[str, cluster.Chains]
    past: Any  # the items of the requests that items were placed by

    def at(self, rate: float) -> cluster.Prompts:
        """The prompts, arriving at another rate."""
        asked = self.prompts.requests
        return replace(self.prompts, requests=replace(asked, arrival=asked.arrival / rate))


def traffic(candidates: int, history: int, users: int, store: float, requests: int, seed: int) -> Traffic:
    """A shop's traffic; items are placed by requests of the day before."""
    shop = recommendations.catalogue(2000, clusters=40, seed=seed)
    log = recommendations.interactions(shop, users, each=30, seed=seed)
    lengths = stream(seed, "rcllm", "histories").integers(history // 2, history + history // 2 + 1, users)
    return asked_of(log, shop.tokens, lengths.astype(np.int32), candidates, store, requests, seed)


def asked_of(
    log: recommendations.Interactions, item_tokens: Any, histories: Any, candidates: int, store: float, requests: int,
    seed: int, nodes: int = NODES, node: str = NODE,
) -> Traffic:  # fmt: skip
    """The traffic that retrieval over a log gives, and items placed by requests of the day before."""
    size = np.asarray(item_tokens * layout(node).kv_bytes, np.float64)
    room = store * float(size.sum()) / nodes
    past = recommendations.ranking_requests(log, requests, candidates, 1.0, seed + 1000).items
    now = recommendations.ranking_requests(log, requests, candidates, 1.0, seed)
    prompts = cluster.Prompts(now, item_tokens, histories)
    popularity = np.bincount(past.ravel(), minlength=len(item_tokens))
    chains = {order: cluster.prefix_chains(prompts, order, popularity) for order in ("asked", "sorted", "items-first")}
    near, spread = by_co_occurrence(past, size, nodes, room, head=HEAD), by_hash(past, size, nodes, room, head=0.0)
    return Traffic(prompts, room, near, spread, chains, past)


def serving(
    candidates: int, history: int, users: int, store: float, requests: int, ablations: bool, seed: int
) -> dict[str, dict[str, Any]]:
    """One traffic at both loads and networks of the grid, all ways of caching at equal memory."""
    given = traffic(candidates, history, users, store, requests, seed)
    outcomes = {}
    for load, network in itertools.product(GRID["load"], GRID["network"]):
        fleet = cluster.Cluster.of(NODE, NODES, given.room + HISTORIES, network)
        rate = load * NODES / fleet.prefill(history + candidates * float(given.prompts.item_tokens.mean()))
        prompts = given.at(rate)
        for name, (caching, beta) in ways(fleet, prompts, given).items():
            if ablations or name in (*PREFIX, "rcllm"):
                routing = "random" if beta is None else "score"
                found = cluster.simulate(caching, fleet, prompts, beta=beta or 0.0, routing=routing, seed=seed)
                where = {"method": name, "load": load, "network": network}
                outcomes[f"{name}, {load}, {network}"] = where | summary(found, 2 * requests // 3)
    return outcomes


def ways(
    fleet: cluster.Cluster, prompts: cluster.Prompts, given: Traffic
) -> dict[str, tuple[cluster.Caching, float | None]]:
    """RcLLM, what it is compared with, and itself without one of its parts; each with its weight of the queue."""

    def block(where: Placement, share: float = REPAIRED) -> cluster.Caching:
        return cluster.BlockCache(fleet, prompts, where, share)

    def prefix(order: str) -> cluster.Caching:
        return cluster.PrefixCache(fleet, prompts, given.chains[order])

    return {
        "no cache": (cluster.NoCache(fleet, prompts), PREFIX_BETA),
        "prefix": (prefix("asked"), PREFIX_BETA),
        "prefix-sorted": (prefix("sorted"), PREFIX_BETA),
        "prefix-items-first": (prefix("items-first"), PREFIX_BETA),
        "rcllm": (block(given.near), BLOCK_BETA),
        "rcllm, no repair": (block(given.near, 0.0), BLOCK_BETA),
        "rcllm, hashed items": (block(given.spread), BLOCK_BETA),
        "rcllm, random routing": (block(given.near), None),
    }


def summary(outcome: cluster.Outcome, warm: int) -> dict[str, Any]:
    """What the requests saw that came after those which only fill the caches."""
    return {
        "ttft_mean": float(outcome.ttft[warm:].mean()),
        "ttft_p99": float(np.quantile(outcome.ttft[warm:], 0.99)),
        "waiting_mean": float(outcome.waiting[warm:].mean()),
        "reused_mean": float(outcome.reused[warm:].mean()),
        "local_mean": float(outcome.local[warm:].mean()),
        "fetched_mean": float(outcome.fetched[warm:].mean()),
    }


# -------------------------------------------------------------------------------- this machine's clock


def clock(layers: int, candidates: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Real seconds to the first token of one long prompt on the CPU; weights do not matter to time, so fresh ones.

    The contenders take turns, but other cases run beside them: no claim rests on it, and only the full size asks.
    """
    import torch

    torch.set_num_threads(1)
    shape = tiny_lm.Shape(
        vocab=ranking_lm.VOCAB, layers=layers, width=128, heads=4, head=32, kv_heads=4, hidden=384, attn="gqa"
    )
    params = tiny_lm.init(shape, seed)
    asked = ranking_lm.prompts(1, candidates, seed)
    first, blocks = rows(params, asked)

    def reuse(share: float) -> Any:
        cached = block_reuse.assemble(first, blocks)
        chosen = torch.empty(1, 0)
        if share:
            off = block_reuse.deviation(params, asked.ids, cached)
            chosen = block_reuse.choose(off, asked.blocks[1:], share)
        return block_reuse.answer(params, asked.ids, cached, chosen)

    def full() -> Any:
        with torch.no_grad():
            return tiny_lm.forward(params, asked.ids)

    contenders = {"full": full, "rcllm": lambda: reuse(REPAIRED), "full reuse": lambda: reuse(0.0)}
    timing.interleave(contenders, 1)
    seconds = timing.interleave(contenders, rounds)
    return {name: {"ttft_mean": timing.median(times)} for name, times in seconds.items()}


# ------------------------------------------------------------------------------------------- the study


def trial(experiment: str, seed: int, **case: Any) -> dict[str, dict[str, Any]]:
    """One case of one part of the study."""
    parts: dict[str, Callable[..., dict[str, dict[str, Any]]]] = {
        "accuracy": accuracy, "cluster": serving, "clock": clock,
    }  # fmt: skip
    return parts[experiment](**case, seed=seed)


def study(lab: Lab) -> Tables:
    """Accuracy of the trained recommender, time to first token of a modelled cluster, and of this machine."""
    lists = {"prompts": lab.pick(quick=200, full=1000), "ablations": lab.pick(quick=20, full=300), "candidates": 24}
    size = {"requests": lab.pick(quick=180, full=900), "ablations": lab.size == "full"}
    part = ("candidates", "history", "users", "store")  # the rest of the grid is gone through inside
    shops = [dict(zip(part, values, strict=True)) for values in itertools.product(*(GRID[name] for name in part))]
    served = lab.with_seeds(quick=3, full=5).run(
        trial, [{"experiment": "cluster", **shop, **size} for shop in shops], per="run"
    )
    ranked = lab.with_seeds(quick=4, full=10).run(trial, [{"experiment": "accuracy", **lists}], per="method")
    tables = {"accuracy": ranked.drop("ablations"), "cluster": served.drop("run", "ablations")}
    if lab.size == "full":
        clock = {"experiment": "clock", "layers": 8, "candidates": 40, "rounds": 25}
        tables["clock"] = lab.run(trial, [clock], per="method")
    return tables


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """Time to first token by traffic and way of caching, and accuracy by the share that is repaired."""
    import altair as alt

    served = table.filter(pl.col("experiment") == "cluster").group_by(*GRID, "method", maintain_order=True)
    times = served.agg(pl.col("ttft_mean").mean()).pivot("method", index=list(GRID), values="ttft_mean")
    gains = times.select(
        items=pl.col("candidates").cast(str), store=pl.col("store").cast(str),
        gain=pl.min_horizontal(PREFIX) / pl.col("rcllm"),
    )  # fmt: skip
    left = (
        alt.Chart(gains)
        .mark_tick(thickness=2)
        .encode(
            x=alt.X("gain:Q", scale=alt.Scale(type="log"), title="best prefix cache over RcLLM, time to first token"),
            y=alt.Y("items:N", title="items a request"),
            color=alt.Color("store:N", title="catalogues in store"),
        )
        .properties(width=380, height=260, title=alt.Title("A modelled cluster", subtitle="All corners of the grid"))
    )
    ranked = table.filter(pl.col("experiment") == "accuracy").group_by("method", maintain_order=True)
    quality = ranked.agg(pl.col("hit10").mean())
    right = (
        alt.Chart(quality)
        .mark_bar(size=12)
        .encode(
            x=alt.X("hit10:Q", title="chosen item among the first 10 of 24"),
            y=alt.Y("method:N", sort=quality["method"].to_list(), title=None),
        )
        .properties(width=240, height=260, title=alt.Title("A trained recommender", subtitle="Real, on this CPU"))
    )
    chart: alt.HConcatChart = alt.hconcat(left, right)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def over_prefix(corner: Mapping[str, float]) -> measures.Measure:
    """Prefix caching's mean time to first token over RcLLM's, with the prompt layout that is fastest there."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "cluster", **corner})
        layouts = rows.filter(pl.col("method").is_in(PREFIX)).group_by("method").agg(pl.col("ttft_mean").mean())
        best = layouts.sort("ttft_mean")["method"][0]
        return measures.ratio("ttft_mean", of={"method": best}, to={"method": "rcllm"})(rows)

    return measure


def named(corner: Mapping[str, float]) -> str:
    """A corner in words.

    >>> named(CORNERS[0])
    '10 items, histories of 300 tokens, 40 users, store for 0.1 catalogues, load 0.2, 10 Gb/s'
    """
    return (
        f"{corner['candidates']:g} items, histories of {corner['history']:g} tokens, {corner['users']:g} users, "
        f"store for {corner['store']:g} catalogues, load {corner['load']:g}, {corner['network'] * 8e-9:g} Gb/s"
    )


GAINS = {named(corner): over_prefix(corner) for corner in CORNERS}


def hits_lost(method: str) -> measures.Measure:
    """hit@10 of full computation less that of a method on the same prompts, by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        full, ours = (
            measures.rows(table, {"experiment": "accuracy", "method": name})["hit10"] for name in ("full", method)
        )
        return intervals.bootstrap((full - ours).to_list())

    return measure


claims = [
    Claim("ttft-best", measures.best(GAINS, max)),
    Claim("ttft-worst", measures.best(GAINS, min)),
    Claim("accuracy", hits_lost("rcllm"), evidence=Evidence.REAL),
    Claim(
        "no-repair",
        hits_lost("full reuse"),
        evidence=Evidence.REAL,
        asks="The chosen item is less often among the first ten if RcLLM repairs no token than with full computation.",
        kind=Kind.DIFFERENCE,
        unit="share",
        toward="up",
    ),
]
