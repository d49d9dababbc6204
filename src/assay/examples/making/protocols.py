"""Protocols: graphs, agents, ballots, histories, automata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from making.formats import Rows, lines, makes, table


def neighbours(random: Random, nodes: int = 60) -> list[tuple[int, int]]:
    """A ring with chords: connected, and far from complete."""
    edges = {(i, (i + 1) % nodes) for i in range(nodes)}
    while len(edges) < 3 * nodes:
        a, b = random.sample(range(nodes), 2)
        edges.add((min(a, b), max(a, b)))
    return sorted(edges)


@makes("edges.txt")
def edges(random: Random) -> str:
    """An edge list."""
    return "".join(f"{a} {b}\n" for a, b in neighbours(random))


@makes("opinions.csv")
def opinions(random: Random) -> str:
    """What each node thinks at first."""
    return table([["node", "opinion"], *([node, random.randrange(9)] for node in range(60))])


@makes("agents.csv")
def agents(random: Random) -> str:
    """Agents, what they can do and where they are."""
    able = ("translate", "plan", "search", "draw", "code", "book")
    rows = [[f"did:example:{k:03d}", ";".join(sorted(random.sample(able, 2))), f"10.0.0.{k}:7000"] for k in range(48)]
    return table([["did", "capabilities", "endpoint"], *rows])


@makes("sessions.csv")
def sessions(random: Random) -> str:
    """When nodes come and go, in seconds."""
    rows: Rows = []
    for node in range(48):
        up = 0.0
        while up < 400:
            down = up + 60 + random.expovariate(1 / 200)
            rows.append([node, round(up, 1), round(down, 1)])
            up = down + 5 + random.expovariate(1 / 30)
    return table([["node", "up", "down"], *rows])


@makes("election.soc")
def election(random: Random) -> str:
    """Ballots in PrefLib's format: five candidates, the first two close."""
    names = ("Ada", "Bela", "Chen", "Dora", "Emil")
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(400):
        liking = {k: -0.5 * k + random.gauss(0, 1.2) for k in range(5)}
        order = tuple(sorted(range(1, 6), key=lambda k: -liking[k - 1]))
        counts[order] = counts.get(order, 0) + 1
    head = [
        "# FILE NAME: election.soc", "# TITLE: A made-up election", "# DATA TYPE: soc", "# NUMBER ALTERNATIVES: 5",
        f"# NUMBER VOTERS: {sum(counts.values())}", f"# NUMBER UNIQUE ORDERS: {len(counts)}",
        *(f"# ALTERNATIVE NAME {k}: {name}" for k, name in enumerate(names, 1)),
    ]  # fmt: skip
    body = [
        f"{n}: {','.join(map(str, order))}" for order, n in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]
    return "\n".join([*head, *body]) + "\n"


@makes("links.txt")
def links(_: Random) -> str:
    """One-way links of seven nodes: everyone hears from the three before it."""
    return "".join(f"{(node - back) % 7} {node}\n" for node in range(7) for back in (1, 2, 3))


def register(random: Random) -> Iterator[dict[str, Any]]:
    """Three clients of one register that is right until, near the end, somebody reads what was overwritten."""
    clock, value, last = 0, 0, 0
    for number in range(120):
        process, write = random.randrange(3), random.random() < 0.4 or number == 0
        clock += 1000 + random.randrange(3000)
        said = number + 1 if write else None
        yield {"process": process, "type": "invoke", "f": "write" if write else "read", "value": said, "time": clock}
        clock += 500 + random.randrange(2000)
        if write:
            last, value = value, number + 1
        read = last if number > 110 and not write else value
        yield {
            "process": process, "type": "ok", "f": "write" if write else "read", "value": said if write else read,
            "time": clock,
        }  # fmt: skip


@makes("history.edn")
def history_edn(random: Random) -> str:
    """A history as Jepsen writes it."""

    def event(row: dict[str, Any]) -> str:
        value = "nil" if row["value"] is None else row["value"]
        return (
            f"{{:process {row['process']}, :type :{row['type']}, :f :{row['f']}, :value {value}, :time {row['time']}}}"
        )

    return "\n".join(event(row) for row in register(random)) + "\n"


@makes("history.jsonl")
def history_lines(random: Random) -> str:
    """The like as JSON lines."""
    return lines(register(random))


@makes("broadcast.ta")
def broadcast(_: Random) -> bytes:
    """A threshold automaton: one of those that come with assay."""
    library = Path(__file__).resolve().parents[2] / "protocols" / "taco" / "library"
    return (library / "broadcast.ta").read_bytes()


@makes("pbft.json")
def pbft(_: Random) -> str:
    """A QUANTAS experiment: PBFT in two sizes, with delays."""
    kinds = [
        {
            "logFile": f"PBFT{n}.txt", "tests": 3, "rounds": 60,
            "distribution": {"type": "UNIFORM", "minDelay": 1, "maxDelay": 3, "maxMsgsRec": 100},
            "topology": {"type": "complete", "initialPeers": n, "initialPeerType": "PBFTPeer"},
        }
        for n in (4, 7)
    ]  # fmt: skip
    return json.dumps({"algorithms": ["PBFTPeer/PBFTPeer.cpp"], "experiments": kinds}, indent=1) + "\n"
