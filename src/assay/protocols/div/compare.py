"""`assay compare div`: voting rules on the user's own graph, from one start: how long until all agree, and on what."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.protocols.div import swarm
from assay.record.wording import listed
from assay.sim import graphs
from assay.sim.random import stream
from assay.workloads.graphs import GraphFile, read_graph, read_opinions


@click.command(epilog="Example:  assay compare div --graph examples/edges.txt --span 8 --rules div,pull,median")
@click.option(
    "--graph", required=True, type=click.Path(path_type=Path),
    help="Edge list, MatrixMarket .mtx or SciPy .npz; .gz is fine.",
)  # fmt: skip
@click.option("--opinions", type=click.Path(path_type=Path), help="CSV with the columns node,opinion.")
@click.option("--span", type=click.IntRange(1, 10**6), help="Without --opinions: draw them from 0 to SPAN.  [8]")
@click.option("--rules", default="div,pull,median", show_default=True, help="Voting rules, separated by commas.")
@click.option("--max-steps", type=click.IntRange(1), default=10**9, show_default=True, help="Give up after so many.")
@click.option("--replicas", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(
    graph: Path, opinions: Path | None, span: int | None, rules: str, max_steps: int, replicas: int, seed: int
) -> dict[str, Any]:
    """Voting rules on your own graph: how soon all agree, and how near to the average."""
    network, start = read_input(graph, opinions, span, seed)
    return compare(
        network.graph, start, listed(rules), replicas=replicas, seed=seed, max_steps=max_steps,
        progress=click.get_current_context().obj,
    )  # fmt: skip


def read_input(path: Path, opinions: Path | None, span: int | None, seed: int) -> tuple[GraphFile, Any]:
    """The user's graph, and the opinions given for it or drawn."""
    if opinions is not None and span is not None:
        raise ValueError("give --opinions or --span, not both")
    network = read_graph(path)
    if opinions is not None:
        return network, read_opinions(opinions, network.labels)
    n = network.graph.n
    return network, stream(seed, "compare", "opinions").integers(0, (span or 8) + 1, n)


def compare(
    graph: graphs.Graph, opinions: Any, rules: list[str], *, replicas: int = 100, seed: int = 0,
    max_steps: int | None = None, progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """The rules on one graph from one start: a table, and who wins in two sentences.

    >>> answer = compare(graphs.complete(300), [0, 3] * 150, ["div", "pull"], replicas=20)
    >>> [row["rule"] for row in answer["table"]], answer["table"][0]["on_average_ratio"]
    (['div', 'pull'], 1.0)
    """
    if not rules:
        raise ValueError(f"no rule given; choose among {', '.join(swarm.RULES)}")
    if not graph.is_connected:
        raise ValueError("the graph falls into several parts, which never agree; give one connected part")
    table = []
    for done, rule in enumerate(rules):
        progress(done, len(rules))
        table.append(_row(graph, opinions, rule, replicas, seed, max_steps))
    conductance = graphs.conductance(graph)
    values = np.asarray(opinions)
    return {
        "graph": {
            "nodes": graph.n,
            "edges": graph.m,
            "gamma": graph.gamma,
            "conductance_low": conductance.low,
            "conductance_high": conductance.high,
        },
        "opinions": {
            "min": int(values.min()),
            "max": int(values.max()),
            "average": float(values.mean()),
            "weighted_average": float(values @ graph.degrees / max(2 * graph.m, 1)),
        },
        "table": table,
        "why": _why(table),
    }


def _row(
    graph: graphs.Graph, opinions: Any, rule: str, replicas: int, seed: int, max_steps: int | None
) -> dict[str, Any]:
    begun = time.perf_counter()
    outcome = swarm.run(graph, opinions, rule, seed, replicas, max_steps)
    seconds = time.perf_counter() - begun
    ended = ~outcome.censored
    final, aim = outcome.final[ended], float(outcome.average[0])
    near = (final == math.floor(aim)) | (final == math.ceil(aim))
    return {
        "rule": rule,
        "replicas": replicas,
        "agreed": int(ended.sum()),
        "steps_mean": float(outcome.steps[ended].mean()) if ended.any() else None,
        "steps_p99": float(np.quantile(outcome.steps[ended], 0.99)) if ended.any() else None,
        "final_mean": float(final.mean()) if ended.any() else None,
        "on_average_ratio": float(near.mean()) if ended.any() else None,
        "error_mean": float(np.abs(final - aim).mean()) if ended.any() else None,
        "sim_seconds": seconds,
    }


def _why(table: list[dict[str, Any]]) -> str:
    ended = [row for row in table if row["agreed"]]
    if not ended:
        return "No rule reached agreement within the given number of steps."
    fair = min(ended, key=lambda row: (row["error_mean"], row["steps_mean"]))
    quick = min(ended, key=lambda row: row["steps_mean"])
    first = (
        f"{fair['rule']} ends closest to the initial average: {fair['error_mean']:.3g} opinions away on average, "
        f"at its rounded value in {fair['on_average_ratio']:.0%} of {fair['agreed']} replicas."
    )
    if quick is fair:
        return f"{first} It also needs the fewest steps, {quick['steps_mean']:,.0f}."
    times = fair["steps_mean"] / quick["steps_mean"] if quick["steps_mean"] else math.inf
    return f"{first} {quick['rule']} agrees {times:.3g} times sooner, {quick['error_mean']:.3g} opinions away from it."
