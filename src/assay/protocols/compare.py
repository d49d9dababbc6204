"""`assay compare protocols`: voting rules on the user's graph, or directories under the user's agents and churn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

RULES = {"opinions", "span", "rules", "replicas", "max_steps"}
OVERLAYS = {"n", "agents", "churn", "pause", "rate", "warm_up", "seconds"}


@click.command(
    epilog="Examples:  assay compare protocols --graph edges.txt --span 8 --rules div,pull,median;  "
    "assay compare protocols --nodes chord,pastry,kademlia --n 512 --churn 300"
)
@click.option(
    "--graph", type=click.Path(path_type=Path),
    help="Voting rules on this graph: edge list, MatrixMarket .mtx or SciPy .npz; .gz is fine.",
)  # fmt: skip
@click.option("--opinions", type=click.Path(path_type=Path), help="CSV with the columns node,opinion.")
@click.option("--span", type=click.IntRange(1, 10**6), help="Without --opinions: draw them from 0 to SPAN.  [8]")
@click.option("--rules", default="div,pull,median", show_default=True, help="Voting rules, separated by commas.")
@click.option("--replicas", type=click.IntRange(1), default=100, show_default=True)
@click.option("--max-steps", type=click.IntRange(1), default=10**9, show_default=True, help="Give up after so many.")
@click.option("--nodes", help="Directories of agents: among chord, pastry, kademlia, registry, flooding, random-walk.")
@click.option("--n", type=click.IntRange(2, 20_000), help="Nodes.  [as many as agents, else 256]")
@click.option(
    "--agents", type=click.Path(path_type=Path),
    help="CSV with the columns did,capabilities,endpoint (capabilities: translate;plan).  [two for each node, drawn]",
)  # fmt: skip
@click.option(
    "--churn", default="none", show_default=True,
    help="Mean seconds that a node stays, or a CSV with the columns node,up,down.",
)  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Mean seconds away.")
@click.option("--rate", type=click.FloatRange(1e-6), default=0.05, show_default=True, help="Lookups a second and node.")
@click.option("--warm-up", type=click.FloatRange(0), help="Seconds before lookups.  [log2 n rounds of maintenance]")
@click.option("--seconds", type=click.FloatRange(15), default=120.0, show_default=True, help="Seconds from then on.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(graph: Path | None, nodes: str | None, seed: int, **options: Any) -> dict[str, Any]:
    """Voting rules on your own graph (--graph), or directories of agents under your own churn (--nodes)."""
    if (graph is None) == (nodes is None):
        raise ValueError("give --graph FILE for voting rules or --nodes chord,pastry,… for directories of agents")
    mine, other = (RULES, OVERLAYS) if graph is not None else (OVERLAYS, RULES)
    context = click.get_current_context()
    for name in sorted(other):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ValueError(f"--{name.replace('_', '-')} goes with {'--nodes' if graph is not None else '--graph'}")
    chosen = {name: options[name] for name in mine}
    return _rules(graph, seed, **chosen) if graph is not None else _overlays(_listed(nodes or ""), seed, **chosen)


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _rules(
    graph: Path, seed: int, opinions: Path | None, span: int | None, rules: str, replicas: int, max_steps: int
) -> dict[str, Any]:
    from assay.protocols import compare_rules

    network, start = compare_rules.read_input(graph, opinions, span, seed)
    progress = click.get_current_context().obj
    return compare_rules.compare(
        network.graph, start, _listed(rules), replicas=replicas, seed=seed, max_steps=max_steps, progress=progress
    )


def _overlays(names: list[str], seed: int, **options: Any) -> dict[str, Any]:
    from assay.protocols import compare_overlays

    return compare_overlays.compare(names, seed=seed, progress=click.get_current_context().obj, **options)
