"""QUANTAS experiment files, unchanged: read, turned into worlds of our nodes, run in rounds or over sockets.

The file is JSON with `experiments`, each with a `distribution` (delays, losses), a `topology` (shape, peers and their
type), `parameters` of the peer type, `tests` and `rounds`. Peer types are those of
:mod:`assay.protocols.quantas.peers`, with or without `Concrete` behind the name, and those that the caller brings.
Defaults are those of the program, not of its manual: a link that is not told otherwise delivers one message a round.
Links keep their order.

Differences. A duplicate is made at most once, and a queue is shuffled when a message enters it, not when one leaves.
Over sockets a round has a length, delays and losses apply at the sender, and caps on a link do not apply.

>>> text = '''{"experiments": [{"logFile": "PBFT4.txt", "tests": 1, "rounds": 50,
...     "topology": {"type": "complete", "initialPeers": 4, "initialPeerType": "PBFTPeer"}}]}'''
>>> (experiment,) = parse(text)
>>> experiment.run()["answered"]
10.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.protocols.kernel.net import Floats, Latency, Net, Poisson, lattice
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import Maker, World
from assay.protocols.quantas.peers import PEERS, Cast, Figures, Scene
from assay.record.errors import BadInput, unreadable
from assay.sim.streams import stream

Casting = Callable[[Scene], Cast]
LARGEST = 100_000
"""Peers and rounds beyond which a file is taken for a mistake."""


class Distribution(msgspec.Struct, frozen=True, rename="camel"):
    """How links behave; a field of the file."""

    type: str = "UNIFORM"
    min_delay: int = 1
    max_delay: int = 1
    avg_delay: int = 1
    drop_probability: float = 0.0
    duplicate_probability: float = 0.0
    reorder_probability: float = 0.0
    max_msgs_rec: int = 1
    size: int | None = None


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """Who there is and who is linked to whom; a field of the file."""

    initial_peers: int
    initial_peer_type: str
    type: str = "complete"
    height: int = 1
    width: int = 1
    list: dict[str, tuple[int, ...]] = {}
    identifiers: str = ""


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    topology: Shape
    rounds: int
    tests: int = 1
    log_file: str = "cout"
    distribution: Distribution = Distribution()
    parameters: dict[str, Any] | None = None


class _File(msgspec.Struct, frozen=True):
    experiments: list[_Entry]


@dataclass(frozen=True)
class Whole:
    """A whole number of rounds from low to high, each as likely; a round has this length."""

    low: int
    high: int
    length: float = 1.0

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return rng.integers(self.low, self.high + 1, count).astype(np.float64) * self.length


@dataclass(frozen=True)
class Scaled:
    """Another model's rounds, each of this length."""

    model: Latency
    length: float

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return self.model.draw(rng, count) * self.length


@dataclass(frozen=True)
class Experiment:
    """One experiment of a file."""

    name: str
    casting: Casting
    shape: Shape
    distribution: Distribution
    rounds: int
    tests: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)

    def scene(self, test: int = 0, unit: float = 1.0) -> Scene:
        """What the peer type is told."""
        return Scene(self.shape.initial_peers, self.rounds, self.parameters, unit, test)

    def world(self, test: int = 0, unit: float = 1.0) -> World:
        """The world of one test; `unit` is the length of a round in seconds, for runs that are not in rounds."""
        cast = self.casting(self.scene(test, unit))
        return World(
            n=self.shape.initial_peers, node=cast.nodes, f=cast.f, inputs=cast.inputs, clients=cast.clients,
            topology=_topology(self.shape, test), net=_net(self.distribution, unit), faults=cast.faults, seed=test,
        )  # fmt: skip

    def run(self, test: int = 0, *, live: bool = False, unit: float = 0.02, processes: int | None = None) -> Figures:
        """Run one test, in rounds or over sockets with rounds of `unit` seconds, and measure it."""
        if live:
            outcome = self.world(test, unit).run("live", limit=self.rounds * unit, processes=processes)
        else:
            outcome = self.world(test).run("rounds", limit=self.rounds)
        return self.measure(outcome, test, unit if live else 1.0)

    def measure(self, outcome: Outcome, test: int = 0, unit: float = 1.0) -> Figures:
        """What the peer type makes of a run, and what it cost."""
        scene = self.scene(test, unit)
        figures = self.casting(scene).measure(outcome, scene)
        return {**figures, "messages": float(outcome.meter.messages), "bits": float(outcome.meter.bits)}


def read(path: str | Path, own: Mapping[str, Maker] | None = None) -> list[Experiment]:
    """The experiments of a file; `own` makes the nodes of peer types that are not ours.

    BadInput, in one line, for what cannot be run.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        return parse(text, own)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None


def answer(path: str | Path, *, live: bool = False, own: Mapping[str, Maker] | None = None) -> dict[str, Any]:
    """All tests of all experiments of a file, measured: what a command prints."""
    rows = [
        {"experiment": one.name, "peer": one.shape.initial_peer_type, "n": one.shape.initial_peers, "test": test,
         "rounds": one.rounds, **one.run(test, live=live)}
        for one in read(path, own) for test in range(one.tests)
    ]  # fmt: skip
    return {"file": str(path), "mode": "live" if live else "rounds", "table": rows}


def parse(text: str | bytes, own: Mapping[str, Maker] | None = None) -> list[Experiment]:
    """The experiments of a file's text; ValueError for what cannot be run."""
    try:
        found = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{error}; a QUANTAS experiment file expected") from None
    if not found.experiments:
        raise ValueError("no experiment in it")
    castings = PEERS | {name: _every(maker) for name, maker in (own or {}).items()}
    return [_checked(entry, castings) for entry in found.experiments]


def _checked(entry: _Entry, castings: Mapping[str, Casting]) -> Experiment:
    """An experiment that can be run: tried out as far as making its world."""
    shape, known = entry.topology, entry.topology.initial_peer_type.removesuffix("Concrete")
    for name, value in (("rounds", entry.rounds), ("tests", entry.tests), ("initialPeers", shape.initial_peers)):
        if not 1 <= value <= LARGEST:
            raise ValueError(f"{entry.log_file}: {name} is {value}; 1 to {LARGEST} expected")
    if known not in castings:
        raise ValueError(f"{entry.log_file}: no peer type '{known}'; one of {', '.join(castings)} expected")
    experiment = Experiment(
        entry.log_file, castings[known], shape, entry.distribution, entry.rounds, entry.tests, entry.parameters or {}
    )
    try:
        experiment.world().neighbours()
    except ValueError as error:
        raise ValueError(f"{entry.log_file}: {error}") from None
    return experiment


def _every(maker: Maker) -> Casting:
    return lambda scene: Cast(maker, _decisions)


def _decisions(outcome: Outcome, scene: Scene) -> Figures:
    return {"decisions": float(len(outcome.log)), "conflicts": float(len(outcome.conflicts))}


def _net(given: Distribution, unit: float) -> Net:
    """The network of a distribution."""
    low, high = max(1, given.min_delay), given.max_delay
    kind = given.type.upper()
    if kind not in ("UNIFORM", "POISSON", "ONE"):
        raise ValueError(f"distribution.type is '{given.type}'; UNIFORM, POISSON or ONE expected")
    if kind != "ONE" and high < low:
        raise ValueError(f"distribution.maxDelay is {high}; at least minDelay, {low}, expected")
    if given.max_msgs_rec < 1 or (given.size is not None and given.size < 1):
        raise ValueError("distribution.maxMsgsRec and size must be at least 1")
    latency: Latency = Whole(1, 1, unit) if kind == "ONE" else Whole(low, high, unit)
    if kind == "POISSON":
        latency = Scaled(Poisson(given.avg_delay, low, high), unit)
    return Net(
        latency, given.drop_probability, given.duplicate_probability, given.reorder_probability, fifo=True,
        per_round=given.max_msgs_rec, room=given.size,
    )  # fmt: skip


def _topology(shape: Shape, seed: int) -> Any:
    """The out-neighbours; shuffled over the peers where identifiers are random."""
    n, kind = shape.initial_peers, shape.type
    same = {"complete": "complete", "star": "star", "chain": "chain", "ring": "ring"}
    if kind in ("grid", "torus"):
        if shape.height < 1 or shape.width < 1 or shape.height * shape.width != n:
            raise ValueError(f"topology.height × width is {shape.height} × {shape.width}; {n} peers expected")
        rows: Any = lattice(shape.height, shape.width, wrap=kind == "torus")
    elif kind == "userList":
        rows = [shape.list.get(str(node), ()) for node in range(n)]
    elif kind == "unidirectionalRing":
        rows = "one-way-ring"
    elif kind in same:
        rows = same[kind]
    else:
        known = ", ".join((*same, "grid", "torus", "unidirectionalRing", "userList"))
        raise ValueError(f"topology.type is '{kind}'; one of {known} expected")
    if shape.identifiers != "random" or kind == "complete":
        return rows
    if isinstance(rows, str):
        from assay.protocols.kernel.net import neighbours

        rows = neighbours(rows, n) or []
    place = stream(seed, "identifiers").permutation(n).tolist()
    moved: list[tuple[int, ...]] = [()] * n
    for node, row in enumerate(rows):
        moved[place[node]] = tuple(sorted(place[other] for other in row))
    return moved
