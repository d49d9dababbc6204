"""Protocols over ordered agents, slowly: dictionaries of configurations, and components found by NetworkX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from assay.protocols.ordered_pp.swarm_ordered import Rule


def place(a: int, b: int) -> int:
    return {-1: -1, 1: 1}.get(b - a, 2 if b > a else -2)


def after(rule: Rule, row: tuple[Any, ...], a: int, b: int) -> tuple[Any, ...]:
    found = rule(row[a], row[b], place(a, b))
    if found is None:
        return row
    changed = list(row)
    changed[a], changed[b] = found
    return tuple(changed)


def decided(rule: Rule, row: Sequence[Any], output: Callable[[Any], Any]) -> Any:
    """What every bottom component says; None if they differ, or one does not agree."""
    graph = nx.DiGraph()
    todo = [tuple(row)]
    graph.add_node(todo[0])
    while todo:
        now = todo.pop()
        for a in range(len(now)):
            for b in range(len(now)):
                if a != b:
                    then = after(rule, now, a, b)
                    if then not in graph:
                        todo.append(then)
                    graph.add_edge(now, then)
    parts = nx.condensation(graph)
    ends = [parts.nodes[part]["members"] for part in parts if parts.out_degree(part) == 0]
    said = {output(state) for end in ends for config in end for state in config}
    return said.pop() if len(said) == 1 else None


def run(rule: Rule, row: Sequence[Any], meetings: int, random: np.random.Generator) -> tuple[Any, ...]:
    """So many meetings of random pairs."""
    now = tuple(row)
    for _ in range(meetings):
        a, b = random.choice(len(now), 2, replace=False)
        now = after(rule, now, int(a), int(b))
    return now
