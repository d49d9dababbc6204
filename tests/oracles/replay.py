"""Replay by the book: plain Python over dictionaries, a step at a time, for traces given as lists of dictionaries.

A node is {"id", "lane", "seconds", "deps", "turn", "meet"}: `meet` is the key of a collective or None, `lane` None for
no lane. Each rank first fixes an order of its nodes (dependencies first, otherwise by turn), then everything runs: one
starts when its dependencies and the one before it in its lane are done; a collective when that holds for all members.
"""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]


def order(nodes: list[Node]) -> list[int] | None:
    """Places in a possible order; None where there is a cycle."""
    place = {node["id"]: i for i, node in enumerate(nodes)}
    done: list[int] = []
    while len(done) < len(nodes):
        free = [
            i for i, node in enumerate(nodes)
            if i not in done and all(place[dep] in done for dep in node["deps"] if dep in place)
        ]  # fmt: skip
        if not free:
            return None
        done.append(min(free, key=lambda i: (nodes[i]["turn"], i)))
    return done


def run(ranks: list[list[Node]], price: dict[Any, float | None]) -> tuple[dict[tuple[int, int], float], ...] | str:
    """Starts and ends by (rank, id); or "cycle" or "deadlock"."""
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {}
    meetings: dict[Any, list[tuple[int, int]]] = {}
    seconds = {(rank, node["id"]): node["seconds"] for rank, nodes in enumerate(ranks) for node in nodes}
    for rank, nodes in enumerate(ranks):
        turn = order(nodes)
        if turn is None:
            return "cycle"
        known = {node["id"] for node in nodes}
        last: dict[Any, tuple[int, int]] = {}
        count: dict[Any, int] = {}
        for i in turn:
            node, key = nodes[i], (rank, nodes[i]["id"])
            waits[key] = {(rank, dep) for dep in node["deps"] if dep in known}
            if node["lane"] is not None:
                waits[key] |= {last[node["lane"]]} if node["lane"] in last else set()
                last[node["lane"]] = key
            if node["meet"] is not None:
                number = count[node["meet"]] = count.get(node["meet"], -1) + 1
                meetings.setdefault((node["meet"], number), []).append(key)
    together = {key: members for members in meetings.values() for key in members}
    begun: dict[tuple[int, int], float] = {}
    ended: dict[tuple[int, int], float] = {}
    names = {key: meeting[0] for meeting, members in meetings.items() for key in members}
    while len(ended) < len(waits):
        ready = [
            key for key in waits
            if key not in ended and all(dep in ended for member in together.get(key, [key]) for dep in waits[member])
        ]  # fmt: skip
        if not ready:
            return "deadlock"
        for key in ready:
            members = together.get(key, [key])
            start = max((ended[dep] for member in members for dep in waits[member]), default=0.0)
            length = min(seconds[member] for member in members)
            priced = price.get(names.get(key))
            length = length if priced is None else priced
            begun[key], ended[key] = start, start + length
    return begun, ended
