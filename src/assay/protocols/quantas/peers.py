"""QUANTAS' peer types as nodes of ours: who takes part in an experiment, who is faulty, and what is measured.

A peer type's parameters keep their names. Where our node does more than the peer, the difference is said at its
function. Durations count rounds; `unit` is the length of one, so that the same cast plays over sockets.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from assay.protocols.interface import Ctx, Fault, Node, NodeId, Tag
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import Maker
from assay.protocols.nodes import chain, data_links
from assay.protocols.nodes.chord import Chord
from assay.protocols.nodes.kademlia import Kademlia
from assay.protocols.nodes.overlay import Agent, Load, Settings
from assay.protocols.nodes.pbft import Pbft, PbftClient
from assay.protocols.nodes.pbft_proofs import equivocators
from assay.protocols.nodes.raft import Raft, RaftClient
from assay.protocols.quantas.parasite import coalition
from assay.sim.streams import stream

Figures = dict[str, float]


@dataclass(frozen=True)
class Scene:
    """What a peer type is told: how many, for how long, with which parameters."""

    n: int
    rounds: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: float = 1.0
    """Seconds of a round over sockets; 1 in simulated rounds."""
    seed: int = 0

    def number(self, name: str, default: float) -> float:
        """A parameter that is a number, not below 0."""
        value = self.parameters.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"parameters.{name} is {value!r}; a number from 0 expected")
        return value

    def numbers(self, name: str, values: Any) -> list[int]:
        """A parameter that is a list of whole numbers, not below 0."""
        if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
            raise ValueError(f"parameters.{name} is {values!r}; a list of whole numbers from 0 expected")
        return values


@dataclass(frozen=True)
class Cast:
    """Who takes part, and what to make of the outcome."""

    nodes: Sequence[Node] | Maker
    measure: Callable[[Outcome, Scene], Figures]
    f: int = 0
    clients: Sequence[Node] = ()
    inputs: Sequence[Any] | None = None
    faults: Mapping[NodeId, Fault] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------- proof of work


def miners(rule: type[chain.LongestChain], scene: Scene) -> Cast:
    """BitcoinPeer and EthereumPeer. Our miners also make empty blocks, and GHOST weighs whole subtrees."""
    rates = [int(scene.number("mineRate", 1))] * scene.n
    given = scene.numbers("mineRates", scene.parameters.get("mineRates", []))[: scene.n]
    rates[: len(given)] = given
    scaler = max(1, scene.number("mineScaler", 1))
    chances = [min(1.0, rate / max(1, scaler * (sum(rates) - rate))) for rate in rates]
    if not scene.parameters:
        chances = [0.01] * scene.n
    submits = scene.number("submitRate", 20)
    asks = chain.rate_of_chance(min(1 / submits, 1 - 1e-9)) if submits else 0.0
    nodes = [
        chain.Miner(chain.rate_of_chance(min(chance, 1 - 1e-9)) / scene.unit, rule, asks / scene.unit, capacity=1)
        for chance in chances
    ]
    members, lead = _parasites(scene)
    return Cast(nodes, partial(_chain_figures, members), faults=coalition(members, lead))


def _parasites(scene: Scene) -> tuple[tuple[NodeId, ...], int]:
    given = scene.parameters.get("parasiteFault", {})
    if not isinstance(given, dict):
        raise ValueError(f"parameters.parasiteFault is {given!r}; an object like {{'leadThreshold': 1}} expected")
    inner = Scene(scene.n, scene.rounds, given)
    count = range(int(inner.number("count", 0)))
    members = inner.numbers("peerIndices", given.get("peerIndices", list(count)))
    lead = max(1, int(inner.number("leadThreshold", 1)))
    return tuple(member for member in dict.fromkeys(members) if member < scene.n), lead


def _chain_figures(members: Iterable[NodeId], outcome: Outcome, scene: Scene) -> Figures:
    decided = [chain.settled(outcome, node) for node in outcome.correct] or [[]]
    return {
        "blocks": float(len(chain.common(decided))),
        "parasite_ratio": chain.share(outcome, members) if outcome.correct else math.nan,
        "taken_back": float(len(outcome.conflicts)),
    }


# ---------------------------------------------------------------------------------------------- replicated logs


def pbft(scene: Scene) -> Cast:
    """PBFTPeer. Requests come from a client that asks again once it is answered; theirs from the leader itself."""
    liars = range(min(scene.n, int(scene.number("byzantine_count", 0))))
    nodes = [Pbft(patience=10 * scene.unit) for _ in range(scene.n)]
    client = PbftClient([("write", "x", number) for number in range(scene.rounds)], patience=20 * scene.unit)
    honest = range(len(liars), scene.n)
    return Cast(nodes, partial(_log_figures, honest), (scene.n - 1) // 3, [client], faults=equivocators(liars, scene.n))


def raft(scene: Scene) -> Cast:
    """RaftPeer. A client for every server asks without a pause; `submit_rate` 0 stops them."""
    spacing = scene.number("timeout_spacing", 100) * scene.unit
    nodes = [Raft(election=max(spacing, 4 * scene.unit), heartbeat=2 * scene.unit) for _ in range(scene.n)]
    asks = [("write", "x", number) for number in range(scene.rounds if scene.number("submit_rate", 20) else 0)]
    clients = [RaftClient(asks, patience=10 * scene.unit) for _ in range(scene.n)]
    figures = partial(_log_figures, range(scene.n))
    return Cast(nodes, figures, (scene.n - 1) // 2, clients, faults=_outages(scene))


@dataclass
class Outages(Fault):
    """Down from the first to the second time of each span, then back with what is on the disk."""

    spans: tuple[tuple[float, float], ...]

    def on_start(self, ctx: Ctx) -> None:
        """Sets the clocks for the returns."""
        for number, (_, back) in enumerate(self.spans):
            if ctx.now < back < math.inf:
                ctx.timer(back - ctx.now, ("fault", number))

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """Back again."""
        return "recover"

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """Only while it is up."""
        place = bisect_right(self.spans, (ctx.now, math.inf)) - 1
        if place < 0 or ctx.now >= self.spans[place][1]:
            step()


def _outages(scene: Scene) -> dict[NodeId, Fault]:
    """The first `crash_count` servers are down until `crash_recovery_round`; any may go down in any round."""
    first = int(scene.number("crash_count", 0))
    until = scene.number("crash_recovery_round", scene.rounds + 1)
    odds, away = scene.number("crash_odds", 0.0), scene.number("crash_recovery_delay", 0)
    faults: dict[NodeId, Fault] = {}
    for node in range(scene.n):
        spans = [(0.0, until * scene.unit)] if node < first else []
        random = stream(scene.seed, "outages", node)
        now = until if node < first else 0.0
        while odds and away:
            now += float(random.geometric(min(1.0, odds)))
            if now >= scene.rounds:
                break
            spans.append((now * scene.unit, (now + away) * scene.unit))
            now += away
        if spans:
            faults[node] = Outages(tuple(spans))
    return faults


def _log_figures(honest: Sequence[NodeId], outcome: Outcome, scene: Scene) -> Figures:
    """`throughput`: requests a round in the logs of those who do not lie, on average."""
    done = [operation for operation in outcome.operations if operation.status == "ok"]
    waits = [(operation.complete - operation.invoke) / scene.unit for operation in done]
    held = sum(len(commands(outcome, node)) for node in honest)
    return {
        "answered": float(len(done)),
        "throughput": held / len(honest) / scene.rounds if honest else math.nan,
        "latency_mean": sum(waits) / len(waits) if waits else math.nan,
        "conflicts": float(len(outcome.conflicts)),
    }


def commands(outcome: Outcome, node: NodeId) -> list[Any]:
    """What a replica has decided, in order, without terms and without what asks for nothing."""
    decided = outcome.decisions[node]
    entries = [decided[slot] for slot in sorted(decided)]  # type: ignore[type-var]
    bare = [entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry for entry in entries]
    return [command for command in bare if command is not None]


# ----------------------------------------------------------------------------------------- overlays and data links


@dataclass(frozen=True)
class Member:
    """Makes the nodes of an overlay when they are needed, each with the tables that it would have in the long run."""

    kind: type[Chord] | type[Kademlia]
    settings: Settings
    n: int

    def __call__(self, node: NodeId) -> Node:
        """A fresh node."""
        return self.kind(self.settings).perfect(node, range(self.n))


def overlay(kind: type[Chord] | type[Kademlia], scene: Scene) -> Cast:
    """LinearChordPeer and KademliaPeer: one lookup a round, somewhere, after time to publish. Tables are perfect at
    the start, as theirs; but nodes are found by name, and ours keep copies and mend their tables."""
    unit, n = scene.unit, scene.n
    agents = [Agent(f"peer:{node}", (), str(node)) for node in range(n)]
    names = tuple(agent.did for agent in agents)
    load = Load(
        names, tuple(accumulate([1.0] * n)), 1 / (n * unit), min(40, scene.rounds / 2) * unit, scene.rounds * unit
    )
    settings = Settings(
        period=30 * unit, timeout=8 * unit, deadline=40 * unit, republish=300 * unit, ttl=1000 * unit, replicas=2,
        load=load,
    )  # fmt: skip
    return Cast(Member(kind, settings, n), _lookup_figures, inputs=agents)


def _lookup_figures(outcome: Outcome, scene: Scene) -> Figures:
    ended = [operation for operation in outcome.operations if operation.complete < math.inf]
    found = [operation for operation in ended if operation.status == "ok"]
    hops = [operation.result[0] for operation in found]
    return {
        "lookups": float(len(ended)),
        "found_ratio": len(found) / len(ended) if ended else math.nan,
        "hops_mean": sum(hops) / len(hops) if hops else math.nan,
    }


def link(kind: type[data_links.Link], scene: Scene) -> Cast:
    """AltBitPeer and StableDataLinkPeer: the first sends to the second for ever."""
    patience = scene.number("timeOutRate", scene.rounds if kind is data_links.AlternatingBit else 4)
    nodes = [kind(max(patience, 1) * scene.unit) for _ in range(scene.n)]
    return Cast(nodes, _link_figures)


def _link_figures(outcome: Outcome, scene: Scene) -> Figures:
    delivered = commands(outcome, data_links.RECEIVER)
    return {
        "delivered": float(len(delivered)),
        "utility_ratio": len(delivered) / outcome.meter.messages if outcome.meter.messages else math.nan,
        "faithful": float(data_links.faithful(delivered, range(len(delivered)))),
    }


PEERS: dict[str, Callable[[Scene], Cast]] = {
    "BitcoinPeer": partial(miners, chain.LongestChain),
    "EthereumPeer": partial(miners, chain.Ghost),
    "PBFTPeer": pbft,
    "RaftPeer": raft,
    "LinearChordPeer": partial(overlay, Chord),
    "KademliaPeer": partial(overlay, Kademlia),
    "AltBitPeer": partial(link, data_links.AlternatingBit),
    "StableDataLinkPeer": partial(link, data_links.NumberedLink),
}
