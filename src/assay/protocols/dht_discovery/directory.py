"""A directory of agents under load: who publishes what, who asks, who comes and goes, and what it cost.

The same agents, lookups, latencies and departures meet every overlay. A lookup succeeds if it returns an agent that is
there; a lookup for which no such agent exists anywhere does not count, nor one whose asker leaves before the answer.

>>> found = run("chord", 32, Scenario(warm_up=30.0, seconds=40.0, rate=0.2))
>>> found["success_ratio"] > 0.99, 1 < found["hops_mean"] < 4
(True, True)
"""

from __future__ import annotations

import csv
import gc
import io
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from assay.protocols.dht_discovery import churn
from assay.protocols.dht_discovery.flooding import Flooding, RandomWalk, Registry
from assay.protocols.dht_discovery.pastry import Pastry
from assay.protocols.interface import Node, NodeId
from assay.protocols.kernel.net import Net, Regions
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.chord import Chord
from assay.protocols.nodes.kademlia import Kademlia
from assay.protocols.nodes.overlay import Agent, Load, Overlay, Settings
from assay.record import reading
from assay.sim.random import stream

OVERLAYS: dict[str, Callable[..., Overlay]] = {"chord": Chord, "pastry": Pastry, "kademlia": Kademlia}
BASELINES: dict[str, Callable[..., Overlay]] = {"registry": Registry, "flooding": Flooding, "random-walk": RandomWalk}
NODES = (*OVERLAYS, *BASELINES, *(f"{name}-oracle" for name in OVERLAYS))
TIERS = ("cloud", "edge", "intermittent")

_LOOKUP = frozenset({"get", "get_ack", "got"})
_PUBLISH = frozenset({"put", "put_ack", "done", "placed", "copy"})


@dataclass(frozen=True)
class Scenario:
    """How long, how much is asked, and who comes and goes."""

    warm_up: float = 60.0
    """Seconds before the first lookup; 0 is a cold start."""
    seconds: float = 120.0
    """From then on; lookups stop a deadline before the end."""
    rate: float = 0.05
    """Lookups a second and node."""
    session: float | None = None
    """Mean seconds that a node stays; None: nobody leaves. Gateways always stay."""
    pause: float = 60.0
    """Mean seconds that it is away."""
    shape: float = 1.0
    """Of the Weibull distribution of sessions; 1 is memoryless."""
    tiers: bool = False
    """Sessions differ by tier: nodes of the cloud stay, those at the edge stay three times as long as the mean."""
    seed: int = 0


def synthetic(n: int, seed: int = 0) -> list[Agent]:
    """An agent for each node, with two of n/4 capabilities, some of them much more common than others.

    >>> synthetic(8)[3].did
    'did:assay:3'
    """
    random = stream(seed, "directory", "agents")
    names = [f"capability-{number}" for number in range(max(4, n // 4))]
    weights = 1 / np.arange(1, len(names) + 1) ** 0.8
    agents = []
    for node in range(n):
        drawn = random.choice(len(names), 2, replace=False, p=weights / weights.sum())
        chosen = tuple(names[int(number)] for number in drawn)
        agents.append(Agent(f"did:assay:{node}", chosen, f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}:8443"))
    return agents


def read_agents(path: str | Path) -> list[Agent]:
    """Agents from a CSV file with the columns did,capabilities,endpoint; capabilities are separated by semicolons."""
    agents: list[Agent] = []
    seen: set[str] = set()
    right = "a CSV with the columns did,capabilities,endpoint expected"
    with io.StringIO(reading.text(Path(path), right), newline="") as file:
        rows = csv.DictReader(file)
        wanted = {"did", "capabilities", "endpoint"}
        if not wanted <= set(rows.fieldnames or ()):
            raise ValueError(f"{path}:1: columns {', '.join(rows.fieldnames or ()) or 'none'}; {right}")
        for row in rows:
            did, listed, endpoint = ((row[name] or "").strip() for name in ("did", "capabilities", "endpoint"))
            capabilities = tuple(dict.fromkeys(name.strip() for name in listed.split(";") if name.strip()))
            if not did or did in seen or not capabilities:
                wanted_row = "a new did and capabilities like translate;plan expected"
                raise ValueError(f"{path}:{rows.line_num}: did '{did}', capabilities '{listed}'; {wanted_row}")
            seen.add(did)
            agents.append(Agent(did, capabilities, endpoint))
    if not agents:
        raise ValueError(f"{path}: no agent in it; a line like did:web:a,translate;plan,10.0.0.1:8443 expected")
    return agents


def tiers(n: int, seed: int = 0) -> list[int]:
    """The tier of each node: one in five in the cloud, half at the edge, the rest intermittent; gateways in the cloud.

    >>> tiers(100)[:8]
    [0, 0, 0, 0, 0, 0, 0, 0]
    """
    drawn: list[int] = stream(seed, "directory", "tiers").choice(3, n, p=(0.2, 0.5, 0.3)).tolist()
    return [0] * min(n, Settings.gateways) + drawn[Settings.gateways :]


def continuum(n: int, seed: int = 0) -> Net:
    """Eight sites up to 40 ms apart, one way, and a last mile that depends on the tier: 1, 5 or 20 ms."""
    random = stream(seed, "directory", "sites")
    sites = random.random((8, 2))
    apart = 0.002 + 0.04 / math.sqrt(2) * np.linalg.norm(sites[:, None] - sites[None, :], axis=2)
    mile = np.array([0.001, 0.005, 0.020])
    seconds = apart[:, None, :, None] + mile[None, :, None, None] + mile[None, None, None, :]
    regions = np.asarray(tiers(n, seed)) + 3 * random.integers(0, 8, n)
    return Net(Regions(seconds.reshape(24, 24), regions))


def departures(scenario: Scenario, n: int) -> list[churn.Change]:
    """Who leaves and comes back when, from the end of the joining on."""
    if scenario.session is None:
        return []
    settings, total = Settings(), scenario.warm_up + scenario.seconds
    of = tiers(n, scenario.seed) if scenario.tiers else [2] * n
    changes: list[churn.Change] = []
    for tier, stay in ((1, 3 * scenario.session), (2, scenario.session)):
        nodes = [node for node in range(settings.gateways, n) if of[node] == tier]
        changes += churn.sessions(
            nodes, total, stay, scenario.pause, seed=scenario.seed, shape=scenario.shape, start=settings.joining
        )
    return sorted(changes)


def loaded(settings: Settings, agents: Sequence[Agent], scenario: Scenario) -> Settings:
    """The settings with the scenario's lookups: of every capability as often as agents have it."""
    count: dict[str, int] = {}
    for agent in agents:
        for name in agent.capabilities:
            count[name] = count.get(name, 0) + 1
    end = scenario.warm_up + scenario.seconds - settings.deadline
    load = Load(tuple(count), tuple(accumulate(map(float, count.values()))), scenario.rate, scenario.warm_up, end)
    return replace(settings, load=load)


@dataclass(frozen=True)
class Maker:
    """Makes the nodes of a world; with `oracle`, each is given the tables it would have if it knew so many nodes."""

    kind: Callable[..., Overlay]
    settings: Settings
    oracle: int = 0

    def __call__(self, node: NodeId) -> Node:
        """A fresh node."""
        made: Any = self.kind(self.settings)
        if self.oracle:
            made.perfect(node, range(self.oracle))
        return made  # type: ignore[no-any-return]


def maker(name: str, settings: Settings, n: int) -> Maker:
    """For an overlay, a baseline, or (`-oracle`) an overlay with perfect tables."""
    if name not in NODES:
        raise ValueError(f"no node '{name}'; choose among {', '.join(NODES)}")
    base = name.removesuffix("-oracle")
    return Maker((OVERLAYS | BASELINES)[base], settings, n if name != base else 0)


def run(
    name: str, n: int, scenario: Scenario, *, agents: Sequence[Agent] | None = None,
    changes: Sequence[churn.Change] | None = None, settings: Settings | None = None, net: Net | None = None,
    mode: str = "timed", **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Run one kind of node through a scenario, and what came of it."""
    agents = list(agents) if agents is not None else synthetic(n, scenario.seed)
    changes = departures(scenario, n) if changes is None else changes
    settings = loaded(settings or Settings(), agents, scenario)
    make = maker(name, settings, n)
    net = continuum(n, scenario.seed) if net is None else net
    world = World(n=n, node=make, inputs=agents, net=net, churn=changes, seed=scenario.seed)
    total = scenario.warm_up + scenario.seconds
    with _uncollected():
        return figures(world.run(mode, limit=total, **options), agents, changes, total, settings.deadline)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cyclic garbage: messages are none, and millions of them under way are gone through in vain."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Presence:
    """Who is there when."""

    def __init__(self, n: int, changes: Sequence[churn.Change]) -> None:
        self.times: list[list[float]] = [[] for _ in range(n)]
        self.first = [True] * n
        for time, node, up in changes:
            if not self.times[node]:
                self.first[node] = not up
            self.times[node].append(time)

    def __call__(self, node: NodeId, time: float) -> bool:
        """Whether the node is there at that time."""
        return self.first[node] ^ bool(bisect_right(self.times[node], time) & 1)

    def seconds(self, total: float) -> float:
        """Of all nodes together."""
        spent = 0.0
        for first, times in zip(self.first, self.times, strict=True):
            up, since = first, 0.0
            for time in (*(t for t in times if t < total), total):
                spent += (time - since) * up
                up, since = not up, time
        return spent


def figures(
    outcome: Outcome, agents: Sequence[Agent], changes: Sequence[churn.Change], total: float, deadline: float
) -> dict[str, float]:
    """Success, hops, latency and cost of a run."""
    present = Presence(outcome.n, changes)
    home = {agent.did: node for node, agent in enumerate(agents)}
    providers: dict[str, list[NodeId]] = {}
    for node, agent in enumerate(agents):
        for name in agent.names:
            providers.setdefault(name, []).append(node)
    hops, latencies, moments, asked = [], [], [], 0
    for operation in outcome.operations:
        asked += 1
        if operation.status == "info" or not any(present(node, operation.invoke) for node in providers[operation.key]):
            continue
        travelled, found = operation.result
        good = any(present(home[did], operation.complete) for did in found if did in home)
        took = min(operation.complete - operation.invoke, deadline)
        moments.append((operation.invoke, good))
        latencies.append(took)
        if good:
            hops.append(travelled)
    return {
        "lookups": len(latencies),
        "successes": len(hops),
        "success_ratio": len(hops) / len(latencies) if latencies else math.nan,
        "hops_mean": float(np.mean(hops)) if hops else math.nan,
        "latency_mean": float(np.mean(latencies)) if latencies else math.nan,
        **_quantiles(latencies),
        "settled": settled(moments),
        **_costs(outcome, present.seconds(total), asked),
    }


def _quantiles(latencies: list[float]) -> dict[str, float]:
    if not latencies:
        return dict.fromkeys(("latency_p50", "latency_p95", "latency_p99"), math.nan)
    values = np.quantile(latencies, (0.5, 0.95, 0.99))
    return {f"latency_p{part}": float(value) for part, value in zip((50, 95, 99), values, strict=True)}


def _costs(outcome: Outcome, node_seconds: float, asked: int) -> dict[str, float]:
    """Messages and bytes a node and second, and where they come from."""
    messages = {"lookup": 0, "publish": 0, "control": 0}
    for kind, (count, _) in outcome.meter.by_kind.items():
        messages["lookup" if kind in _LOOKUP else "publish" if kind in _PUBLISH else "control"] += count
    return {
        "messages_per_lookup": messages["lookup"] / asked if asked else math.nan,
        "messages_rate": outcome.meter.messages / node_seconds,
        "bytes_rate": outcome.meter.bits / 8 / node_seconds,
        "control_rate": messages["control"] / node_seconds,
        "publish_rate": messages["publish"] / node_seconds,
        "lookup_rate": messages["lookup"] / node_seconds,
    }


def settled(moments: list[tuple[float, bool]], window: float = 5.0, share: float = 0.99) -> float:
    """From when on at least 99 % of the lookups of every window succeed; infinite if the last window does not.

    >>> settled([(1.0, False), (6.0, True), (11.0, True)])
    5.0
    """
    count: dict[int, list[int]] = {}
    for time, good in moments:
        entry = count.setdefault(int(time // window), [0, 0])
        entry[0] += good
        entry[1] += 1
    since = math.inf
    for part in sorted(count, reverse=True):
        if count[part][0] < share * count[part][1]:
            break
        since = part * window
    return since
