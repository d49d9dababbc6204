"""`assay compare rcllm`: ways to cache ranking prompts, on requests that retrieval makes from the user's own log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.store import write_whole
from assay.serving import rcllm
from assay.serving.engine.standings import Measure, add_leads, why
from assay.serving.rcllm import block_cluster as cluster
from assay.serving.rcllm.item_placement import by_hash
from assay.workloads.recommendations import Interactions, read_interactions

TTFT = Measure("ttft_mean", "s mean time to first token", "stretches of requests")
CLOSE = "Reused blocks give answers that are close to full computation, not equal: assay show rcllm has how close."
UNITS = {
    "ttft_mean": "s", "ttft_p99": "s", "waiting_mean": "s", "reused_mean": "share", "local_mean": "share",
    "fetched_mean": "bytes",
}  # fmt: skip


@click.command(
    epilog="Example:  assay compare rcllm --log examples/clicks.csv --nodes 8 --candidates 30 --out places.csv"
)
@click.option("--log", "path", required=True, type=click.Path(path_type=Path), help="CSV of user,item,time.")
@click.option("--nodes", type=click.IntRange(2, 1024), default=rcllm.NODES, show_default=True)
@click.option("--node", default=rcllm.NODE, show_default=True, help="GPU:MODEL[:tpN] of each.")
@click.option("--candidates", type=click.IntRange(2), default=30, show_default=True, help="Items of a request.")
@click.option("--item-tokens", type=click.IntRange(8), default=100, show_default=True, help="Tokens of a description.")
@click.option("--history", type=click.IntRange(1), default=1000, show_default=True, help="Tokens of a user's history.")
@click.option(
    "--store", type=click.FloatRange(0.01), default=1.3, show_default=True, help="Catalogues all nodes have room for."
)
@click.option("--rate", type=click.FloatRange(1e-6), help="Requests a second.  [half of what nodes do uncached]")
@click.option("--network", type=click.FloatRange(1e6), default=12.5e9, show_default=True, help="Bytes a second.")
@click.option("--requests", type=click.IntRange(60), default=900, show_default=True, help="How many to serve.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write where items should lie: a CSV of item,nodes,asked.")
def command(path: Path, out: Path | None, **options: Any) -> dict[str, Any]:
    """Ways to cache ranking prompts, on your own log of who took what: prefixes, or items placed by what is asked."""
    log = read_interactions(path)
    answer, given = compare(log, progress=click.get_current_context().obj, **options)
    if out is not None:
        import polars as pl

        table = rcllm.where(log, given.near, given.past)
        nodes = pl.col("nodes").cast(pl.List(pl.String)).list.join(" ")
        write_whole(out, table.with_columns(nodes).write_csv().encode())
    return answer


def compare(
    log: Interactions, *, nodes: int = rcllm.NODES, node: str = rcllm.NODE, candidates: int = 30,
    item_tokens: int = 100, history: int = 1000, store: float = 1.3, rate: float | None = None,
    network: float = 12.5e9, requests: int = 900, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], rcllm.Traffic]:  # fmt: skip
    """Every way of caching at equal memory, on the requests of one day with items placed by those of another.

    Two thirds of the requests fill the caches, the last third is judged.

    >>> from assay.workloads.recommendations import catalogue, interactions
    >>> log = interactions(catalogue(200, clusters=10, seed=0), users=80, each=15, seed=0)
    >>> answer, _ = compare(log, candidates=20, requests=300)
    >>> times = {row["method"]: row["ttft_mean"] for row in answer["table"]}
    >>> times["rcllm"] < times["prefix"] < times["no cache"]
    True
    """
    tokens = np.full(len(log.items), item_tokens, np.int32)
    histories = np.full(len(log.users), history, np.int32)
    given = rcllm.asked_of(log, tokens, histories, candidates, store, requests, seed, nodes, node)
    fleet = cluster.Cluster.of(node, nodes, given.room + rcllm.HISTORIES, network)
    rate = rate or 0.5 * nodes / fleet.prefill(history + candidates * item_tokens)
    prompts, warm = given.at(rate), 2 * requests // 3
    # Without repair answers are not those of the model: no way to serve that one could choose.
    compared = {name: way for name, way in rcllm.ways(fleet, prompts, given).items() if name != "rcllm, no repair"}
    table, samples = [], {}
    for done, (name, (caching, beta)) in enumerate(compared.items()):
        progress(done, len(compared))
        routing = "random" if beta is None else "score"
        found = cluster.simulate(caching, fleet, prompts, beta=beta or 0.0, routing=routing, seed=seed)
        samples[name] = found.ttft[warm:]
        table.append({"method": name} | rcllm.summary(found, warm))
    add_leads(table, samples, TTFT)
    asked = prompts.requests.items
    popular = by_hash(given.past, given.near.size, nodes, given.room, head=rcllm.HEAD)
    return {
        "log": {"interactions": len(log), "users": len(log.users), "items": len(log.items)},
        "nodes": {"count": nodes, "layout": node, "requests_per_second": rate, "judged": requests - warm},
        "placement": {  # the share of a request's items that its best node has
            "at_hand": given.near.local_share(asked), "at_hand_by_hash": given.spread.local_share(asked),
            "at_hand_by_hash_with_popular_ones_everywhere": popular.local_share(asked),
        },
        "table": table, "units": UNITS,
        "why": f"{why(table, TTFT, 'rcllm')} {CLOSE}", "trust": rcllm.trust,
        "shown": ["method", "ttft_mean", "ttft_p99", "waiting_mean", "reused_mean", "local_mean"],
    }, given  # fmt: skip
