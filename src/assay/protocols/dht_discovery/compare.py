"""`assay compare dht-discovery`: what finding an agent costs in each directory, under the user's agents and churn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from assay.protocols.dht_discovery import churn as churning
from assay.protocols.dht_discovery import directory
from assay.protocols.nodes.overlay import Agent, Settings
from assay.record import machine, pool
from assay.record.wording import listed

SHOWN = (
    "nodes", "success_ratio", "hops_mean", "latency_p50", "latency_p99", "messages_per_lookup", "messages_rate",
    "bytes_rate", "control_rate",
)  # fmt: skip
LONGEST_FIRST = ("flooding", "kademlia", "chord", "pastry")
"""Whose runs take longest, so that no process is left with one when the others are through."""
WORTHWHILE = 50_000.0
"""Simulated seconds of all nodes together: below, starting a process takes longer than the run."""


@click.command(
    epilog="Example:  assay compare dht-discovery --nodes chord,kademlia --agents examples/agents.csv --churn 300"
)
@click.option(
    "--nodes", default="chord,pastry,kademlia", show_default=True,
    help="Directories: among chord, pastry, kademlia, registry, flooding, random-walk.",
)  # fmt: skip
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
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(nodes: str, **options: Any) -> dict[str, Any]:
    """Directories of agents under your own agents and churn: what is found, how soon, at what cost."""
    return compare(listed(nodes), progress=click.get_current_context().obj, **options)


def compare(
    nodes: Sequence[str], *, n: int | None = None, agents: Path | None = None, churn: str = "none",
    pause: float = 60.0, rate: float = 0.05, warm_up: float | None = None, seconds: float = 60.0, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """The directories under one load and the same churn: a table, and who wins in a sentence or two.

    `churn` is "none", mean seconds that a node stays, a CSV file, or several of these separated by commas.

    Large ones run in processes of their own, one for each core; a script has to call this under
    ``if __name__ == "__main__"`` then.

    >>> answer = compare(["chord", "registry"], n=16, seconds=30.0, warm_up=20.0, rate=0.2)
    >>> [row["success_ratio"] for row in answer["table"]]
    [1.0, 1.0]
    """
    if not nodes:
        raise ValueError(f"no node given; choose among {', '.join(directory.NODES)}")
    for name in nodes:
        directory.maker(name, Settings(), 0)
    for option, value in (("pause", pause), ("rate", rate), ("warm-up", warm_up or 0.0), ("seconds", seconds)):
        if not math.isfinite(value):
            raise ValueError(f"--{option} is {value:g}; a finite number expected")
    listed = directory.read_agents(agents) if agents is not None else None
    size = _size(n, listed)
    warm = warm_up if warm_up is not None else math.ceil(math.log2(size)) * Settings.period
    regimes: dict[str, directory.Scenario] = {}
    departures: dict[str, list[churning.Change]] = {}
    for text in dict.fromkeys(part.strip() for part in churn.split(",")):
        session, changes = _churn(text, size)
        regimes[text] = directory.Scenario(warm, seconds, rate, session, pause, seed=seed)
        departures[text] = directory.departures(regimes[text], size) if changes is None else changes
    cases: list[dict[str, Any]] = [
        {"name": name, "regime": text, "n": size, "scenario": scenario, "agents": listed, "changes": departures[text]}
        for text, scenario in regimes.items()
        for name in nodes
    ]
    workers = machine.facts()["cores"] if len(cases) > 1 and size * (warm + seconds) >= WORTHWHILE else 0
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    progress(0, len(cases))
    for row in _rows(cases, workers):
        rows[row["churn"], row["nodes"]] = row
        progress(len(rows), len(cases))
    table = [rows[case["regime"], case["name"]] for case in cases]
    facts = {"nodes": size, "agents": len(listed) if listed else size, "warm_up": warm, "seconds": seconds}
    span = warm + seconds
    gone = {text: sum(not up for _, _, up in changes) for text, changes in departures.items()}
    there = {
        text: directory.Presence(size, changes).seconds(span) / (size * span) for text, changes in departures.items()
    }
    if len(regimes) == 1:
        return {
            "directory": facts, "churn": {"departures": gone[churn], "present_ratio": there[churn]}, "table": table,
            "shown": list(SHOWN), "why": _why(table),
        }  # fmt: skip
    whys = [f"Churn {text}: {_why([row for row in table if row['churn'] == text])}" for text in regimes]
    return {
        "directory": facts, "departures": gone, "present_ratio": there, "table": table, "shown": ["churn", *SHOWN],
        "why": " ".join(whys),
    }  # fmt: skip


def timed(name: str, regime: str, n: int, **case: Any) -> dict[str, Any]:
    """One directory, and how long its run took."""
    begun = time.perf_counter()
    found = directory.run(name, n, **case)
    return {"churn": regime, "nodes": name, **found, "sim_seconds": time.perf_counter() - begun}


def _rows(cases: Sequence[dict[str, Any]], workers: int) -> Iterator[dict[str, Any]]:
    """The row of each case, as they get ready."""
    last = len(LONGEST_FIRST)
    order = sorted(cases, key=lambda case: LONGEST_FIRST.index(case["name"]) if case["name"] in LONGEST_FIRST else last)
    tasks = [pool.Task(f"{__name__}:timed", case) for case in order]
    for position, outcome in pool.local(tasks, workers):
        if isinstance(outcome, pool.Failure):
            case = order[position]
            pool.raise_failure(outcome, case["name"], pool.Task(tasks[position].function, {"n": case["n"]}))
        yield outcome


def _size(n: int | None, listed: list[Agent] | None) -> int:
    if listed is None:
        return n or 256
    if n is not None and n < len(listed):
        raise ValueError(f"--n is {n}, but there are {len(listed)} agents; a node for each of them is needed")
    return n or max(2, len(listed))


def _churn(text: str, n: int) -> tuple[float | None, list[churning.Change] | None]:
    """A mean session, or a list of changes; neither for "none"."""
    if text == "none":
        return None, []
    try:
        session = float(text)
    except ValueError:
        changes = churning.read(text)
        for _, node, _ in changes:
            if node >= n:
                raise ValueError(f"{text}: node {node}, but there are nodes 0 to {n - 1}") from None
        founder = next((change for change in changes if change[1] == 0), None)
        if founder is not None and founder[2]:
            cure = "it founds the directory, so a node that is there from 0 on expected in its place"
            raise ValueError(f"{text}: node 0 comes up at {founder[0]:g} s; {cure}") from None
        return None, changes
    if not 0 < session < math.inf:
        raise ValueError(f"--churn is {text}; seconds above 0, a CSV file, or none expected")
    return session, None


def _why(table: list[dict[str, Any]]) -> str:
    answered = [row for row in table if row["lookups"]]
    if not answered:
        return "Nobody looked anything up in that time; give more --seconds or a higher --rate."
    best = max(answered, key=lambda row: (row["success_ratio"], -row["messages_rate"]))
    cheap = min(answered, key=lambda row: row["messages_rate"])
    quick = min(answered, key=lambda row: row["latency_p99"])
    equal = [row["nodes"] for row in answered if row["success_ratio"] == best["success_ratio"]]
    return (
        f"Of what there is to find, most is found with {', '.join(equal)}: {best['success_ratio']:.2%}. Cheapest is "
        f"{cheap['nodes']} with {cheap['messages_rate']:.3g} messages a second and node. The shortest tail has "
        f"{quick['nodes']}: 99 % of its lookups take at most {quick['latency_p99']:.3g} s."
    )
