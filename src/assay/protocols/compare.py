"""`assay compare protocols`: the room's mechanisms on the user's own graph, churn, ballots, language or links.

What is given decides what is compared; every other option belongs to one kind of input, and says so when it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


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
@click.option("--max-steps", type=click.IntRange(1), default=10**9, show_default=True, help="Give up after so many.")
@click.option("--nodes", help="Directories of agents: among chord, pastry, kademlia, registry, flooding, random-walk.")
@click.option("--n", type=click.IntRange(2, 20_000), help="Nodes.  [as many as agents, else 256]")
@click.option(
    "--agents", type=click.Path(path_type=Path),
    help="CSV with the columns did,capabilities,endpoint (capabilities: translate;plan).  [two for each node, drawn]",
)  # fmt: skip
@click.option(
    "--churn", default="none", show_default=True,
    help="Mean seconds that a node stays, or a CSV with the columns node,up,down; several: none,300.",
)  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Mean seconds away.")
@click.option("--rate", type=click.FloatRange(1e-6), default=0.05, show_default=True, help="Lookups a second and node.")
@click.option("--warm-up", type=click.FloatRange(0), help="Seconds before lookups.  [log2 n rounds of maintenance]")
@click.option("--seconds", type=click.FloatRange(15), default=60.0, show_default=True, help="Seconds from then on.")
@click.option("--ballots", type=click.Path(path_type=Path), help="Finding a winner by polls: a PrefLib file.")
@click.option("--rule", default="chb", show_default=True, help="How a poll is counted.")
@click.option("--sample", type=click.IntRange(1), default=21, show_default=True, help="Voters in a poll.")
@click.option("--language", help="Which words ordered agents tell apart: a regular expression.")
@click.option("--words", default="", help="Words to run the agents on, separated by commas.")
@click.option("--alphabet", default="", help="Letters beyond those of the expression and the words.")
@click.option("--digraph", type=click.Path(path_type=Path), help="Agreement over one-way links: lines 'from to'.")
@click.option("--f", type=click.IntRange(0, 8), default=1, show_default=True, help="Traitors.")
@click.option("--replicas", type=click.IntRange(1), default=100, show_default=True, help="Of voting, polls and words.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(seed: int, **options: Any) -> dict[str, Any]:
    """Your own input: --graph (voting), --nodes (directories), --ballots (polls), --language (agents in a row) or
    --digraph (agreement over one-way links); exactly one of them.
    """
    given = [name for name in INPUTS if options[name] is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(f'--{name}' for name in INPUTS)}")
    (name,) = given
    kind, own = INPUTS[name]
    context = click.get_current_context()
    for option in options:
        if option in (name, *own) or context.get_parameter_source(option) is not ParameterSource.COMMANDLINE:
            continue
        owners = " or ".join(f"--{other}" for other, (_, theirs) in INPUTS.items() if option in theirs)
        raise ValueError(f"--{option.replace('_', '-')} goes with {owners}")
    return kind(options[name], seed, **{option: options[option] for option in own})


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


def _overlays(names: str, seed: int, **options: Any) -> dict[str, Any]:
    from assay.protocols import compare_overlays

    return compare_overlays.compare(_listed(names), seed=seed, progress=click.get_current_context().obj, **options)


def _ballots(path: Path, seed: int, rule: str, sample: int, replicas: int) -> dict[str, Any]:
    from assay.protocols import snowveil

    return snowveil.answer(path, rule=rule, sample=sample, replicas=replicas, seed=seed)


def _language(expression: str, seed: int, words: str, alphabet: str, replicas: int) -> dict[str, Any]:
    from assay.protocols import ordered_pp

    return ordered_pp.answer(expression, _listed(words), alphabet=alphabet, replicas=replicas, seed=seed)


def _digraph(path: Path, seed: int, f: int) -> dict[str, Any]:
    from assay.protocols import digraph_auth, digraphs

    return digraph_auth.answer(digraphs.read(path), f)


INPUTS: dict[str, tuple[Callable[..., dict[str, Any]], tuple[str, ...]]] = {
    "graph": (_rules, ("opinions", "span", "rules", "replicas", "max_steps")),
    "nodes": (_overlays, ("n", "agents", "churn", "pause", "rate", "warm_up", "seconds")),
    "ballots": (_ballots, ("rule", "sample", "replicas")),
    "language": (_language, ("words", "alphabet", "replicas")),
    "digraph": (_digraph, ("f",)),
}
"""What may be given: who answers, and the options that belong to it."""
