"""Run a protocol by name, once or over many seeds, and say how it went.

>>> plan = Plan(own("assay.protocols.nodes:Bracha"), n=7, f=2, inputs=("a",), faults=("equivocate:1",))
>>> answer = plan.repeat(20)
>>> answer["runs"], answer["conflicts"]
(20, 0)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from assay.protocols import faults as strategies
from assay.protocols.interface import Fault, Node, NodeId
from assay.protocols.kernel import net as networks
from assay.protocols.kernel.run import Outcome, all_decided
from assay.protocols.kernel.world import World
from assay.record import intervals
from assay.record.errors import BadInput
from assay.sim import own_code

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Own:
    """A node class by name. It can be sent to another process, which loads it from where it stands."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, node: NodeId) -> Node:
        """A fresh node; all are alike."""
        made: Node = _class(self.name)(**dict(self.options))
        return made


_class = cache(own_code.load)
"""A file is run once in a process, not for every node: its nodes are of one class."""


def own(name: str, options: dict[str, Any] | None = None) -> Own:
    """The maker of a node class, `package.module:Class` or `file.py:Class`, tried out once."""
    _class.cache_clear()  # the file may have changed
    kind = _class(name)
    if not (inspect.isclass(kind) and issubclass(kind, Node)):
        raise BadInput(f"'{name}' is no node; a class that derives from assay.protocols.interface.Node expected")
    maker = Own(name, tuple(sorted((options or {}).items())))
    try:
        maker(0)
    except Exception as error:
        raise BadInput(f"cannot make '{name}': {type(error).__name__}: {error}") from error
    return maker


@dataclass(frozen=True)
class Plan:
    """What to run: a world in words."""

    node: Own
    n: int = 4
    f: int | None = None
    mode: str = "timed"
    inputs: tuple[Any, ...] = ()
    faults: tuple[str, ...] = ()
    """`kind:count` strikes the first nodes, `kind@3+5` those named; options follow: `crash:1:at=2`."""
    net: str = "constant"
    topology: str = "complete"
    limit: float | None = None
    processes: int | None = None
    kill: tuple[tuple[NodeId, float], ...] = ()

    def world(self, seed: int) -> World:
        """The world of this seed."""
        try:
            world = World(
                n=self.n, node=self.node, f=(self.n - 1) // 3 if self.f is None else self.f, inputs=self.inputs or None,
                topology=self.topology, net=networks.parse(self.net), faults=assign(self.faults, self.n), seed=seed,
            )  # fmt: skip
        except ValueError as error:
            raise BadInput(str(error)) from None
        self._check(world)
        return world

    def _check(self, world: World) -> None:
        """Refuses what would have no effect, and a world in which there is nobody to judge."""
        if len(self.inputs) > self.n:
            raise BadInput(f"{len(self.inputs)} inputs for {self.n} nodes; at most one for each expected")
        if self.mode == "async" and replace(world.net, fifo=False) != networks.Net():
            raise BadInput(f"network '{self.net}': in async the scheduler delivers; rounds, timed or live expected")
        for option, modes in _HEEDED.items():
            if getattr(world.net, option) and self.mode not in modes:
                raise BadInput(f"network '{self.net}': {option} goes with {' and '.join(modes)}, not with {self.mode}")
        if len({*world.faults, *(node for node, _ in self.kill)}) == self.n:
            raise BadInput(f"all {self.n} nodes are faulty, so nothing can be judged; fewer expected")

    def run(self, seed: int = 0, traced: bool = False) -> Outcome:
        """One run; it ends when every correct node has put out something, or nothing moves, or time is up."""
        options: dict[str, Any] = {"until": all_decided}
        if self.limit is not None:
            options["limit"] = self.limit
        if self.mode == "live":
            options |= {"processes": self.processes, "kill": dict(self.kill)}
        else:
            options["traced"] = traced
        return self.world(seed).run(self.mode, **options)

    def repeat(self, seeds: int, progress: Progress = lambda done, total: None, *, first: int = 0) -> dict[str, Any]:
        """Runs over so many seeds from the first on: how many ended, what contradicted, what it cost."""
        outcomes = []
        for done in range(seeds):
            progress(done, seeds)
            outcomes.append(self.run(first + done))
        ended = [all_decided(outcome) for outcome in outcomes]
        torn = [seed for seed, outcome in enumerate(outcomes, first) if outcome.conflicts]
        share = intervals.clopper_pearson(sum(ended), seeds)
        costs = {
            "messages": [float(outcome.meter.messages) for outcome in outcomes],
            "bits": [float(outcome.meter.bits) for outcome in outcomes],
            TIMES[self.mode]: [outcome.time for outcome in outcomes],
        }
        return {
            "runs": seeds,
            "decided": {"value": share.value, "low": share.low, "high": share.high},
            "conflicts": len(torn),
            "first_conflict": torn[0] if torn else None,
            "costs": {name: _spread(values) for name, values in costs.items()},
        }


_HEEDED = {
    "reorder": ("rounds",),
    "per_round": ("rounds",),
    "bandwidth": ("timed",),
    "fifo": ("rounds", "timed", "async"),
}
"""Which ways to run heed these options of a network."""
TIMES = {"rounds": "rounds", "timed": "sim_seconds", "async": "deliveries", "live": "seconds"}


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}


def assign(texts: tuple[str, ...], n: int) -> dict[NodeId, Fault]:
    """Who suffers what; a node that is struck twice suffers both.

    >>> sorted(assign(("equivocate:2", "crash@1+3:at=5"), 4))
    [0, 1, 3]
    """
    struck: dict[NodeId, list[Fault]] = {}
    for text in texts:
        first, *options = text.split(":")
        kind, at, named = first.partition("@")
        try:
            if at:
                victims = [int(part) for part in named.split("+")]
            else:
                victims = list(range(int(options.pop(0)) if options and options[0].isdigit() else 1))
        except ValueError:
            raise ValueError(f"fault '{text}': nodes '{named}'; numbers like 0+3 expected") from None
        if not victims or not all(0 <= victim < n for victim in victims):
            raise ValueError(f"fault '{text}' strikes nodes {victims}, but there are nodes 0 to {n - 1}")
        for victim in victims:
            struck.setdefault(victim, []).append(strategies.parse(":".join([kind, *options])))
    return {victim: strategies.compose(*parts) for victim, parts in struck.items()}
