"""`assay compare helm`: splits of a node's memory between embeddings and user KV, on the user's own traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.serving import helm
from assay.serving.engine.standings import Measure, add_leads, why
from assay.serving.helm.policy import WARMUP
from assay.serving.helm.recommender_node import Node
from assay.workloads import recommender_traffic
from assay.workloads.recommender_traffic import Traffic

DEFAULT = (*helm.names(helm.SPLITS), *helm.names(helm.SPLITS[1:6:2], "kv-affinity"), "unified-lru", "hill-climb",
           "helm", "helm, kv-affinity")  # fmt: skip
TAIL = Measure("latency_p99", "s P99 latency", "stretches of requests", tail=0.99)
UNITS = {
    "latency_p99": "s", "latency_mean": "s", "in_time_ratio": "share", "ratio_mean": "share of the pool",
    "ratio_last": "share of the pool", "travel_mean": "pools",
}  # fmt: skip


@click.command(epilog="Example:  assay compare helm --traffic examples/recommender.csv --nodes 1 --pool 2")
@click.option(
    "--traffic", "path", required=True, type=click.Path(path_type=Path),
    help="CSV of time (s), user, history (tokens), groups (names of groups of items, apart by spaces).",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--pool", type=click.FloatRange(0.01), default=40.0, show_default=True, help="GB of a node's two caches.")
@click.option("--target", type=click.FloatRange(1e-6), default=Node.target, show_default=True, help="Seconds.")
@click.option("--warmup", type=click.FloatRange(0), default=WARMUP, show_default=True, help="Seconds not judged.")
@click.option("--policies", help=f"Apart by semicolons, among {'; '.join(helm.POLICIES)}.  [16 of them]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(path: Path, policies: str | None, nodes: int, pool: float, target: float, **options: Any) -> dict[str, Any]:
    """Splits between embeddings and user KV on your own traffic: fixed ones, and borders that move."""
    names = [name.strip() for name in (policies or "").split(";") if name.strip()]
    # One node leaves a router nothing to choose.
    names = names or [name for name in DEFAULT if nodes > 1 or "," not in name]
    node = replace(Node(), pool=int(pool * 1e9), target=target)
    progress = click.get_current_context().obj
    return compare(recommender_traffic.read(path), names, nodes=nodes, node=node, progress=progress, **options)


def compare(
    traffic: Traffic, policies: Sequence[str] = DEFAULT, *, nodes: int = 4, node: Node | None = None,
    warmup: float = WARMUP, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every policy on the same requests: tails, who is in time, and where the border stood.

    >>> traffic = recommender_traffic.generate("steady", nodes=1, duration=60.0, seed=3)
    >>> answer = compare(traffic, ["static 0.3", "static 0.9", "helm"], nodes=1)
    >>> tails = {row["policy"]: row["latency_p99"] for row in answer["table"]}
    >>> tails["static 0.3"] < tails["static 0.9"]
    True
    """
    for name in policies:
        if name not in helm.POLICIES:
            raise BadInput(f"no policy '{name}'; there are {'; '.join(helm.POLICIES)}")
    judged = traffic.arrival >= warmup
    if not judged.any() or not policies:
        raise BadInput(f"nothing to judge: the traffic ends after {traffic.duration:.0f} s, --warmup is {warmup:g} s")
    where, table, samples = node or Node(), [], {}
    for done, name in enumerate(policies):
        progress(done, len(policies))
        found = helm.replay(traffic, name, nodes=nodes, seed=seed, node=where)
        samples[name] = latency = found.latency[judged]
        table.append({
            "policy": name, "latency_p99": float(np.quantile(latency, 0.99)), "latency_mean": float(latency.mean()),
            "in_time_ratio": float((latency <= where.target).mean()), **border(found, warmup),
        })  # fmt: skip
    add_leads(table, samples, TAIL)
    return {
        "traffic": {
            "requests": len(traffic), "judged": int(judged.sum()), "seconds": traffic.duration,
            "users": traffic.users, "groups": traffic.catalogue, "history_mean": float(traffic.history.mean()),
        },
        "nodes": {"count": nodes, "pool": f"{where.pool / 1e9:g} GB", "target": f"{where.target:g} s"},
        "table": table, "units": UNITS, "why": why(table, TAIL, "helm"), "trust": helm.trust,
        "shown": ["policy", "latency_p99", "latency_mean", "in_time_ratio", "ratio_mean", "travel_mean"],
    }  # fmt: skip


def border(found: helm.Outcome, warmup: float) -> dict[str, Any]:
    """Where the border stood: the share of the pool for embeddings, and how far it went; none without a border."""
    if np.isnan(found.ratios).any():
        return dict.fromkeys(("ratio_mean", "ratio_last", "travel_mean"))
    course = found.ratios[int(warmup) if len(found.ratios) > int(warmup) else 0 :]
    travel = float(np.abs(np.diff(found.ratios, axis=0)).sum(0).mean())
    return {"ratio_mean": float(course.mean()), "ratio_last": float(course[-1].mean()), "travel_mean": travel}
