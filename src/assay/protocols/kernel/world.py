"""A world: which nodes there are, how they are linked, what goes wrong. It runs in four ways.

>>> from assay.protocols.nodes.bracha import Bracha
>>> world = World(n=4, f=1, node=Bracha, inputs=["hello"])
>>> world.run("timed").decided()
{0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello'}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from assay.protocols.interface import Fault, Node, NodeId
from assay.protocols.kernel import topology as shapes
from assay.protocols.kernel.faulty import Faulty
from assay.protocols.kernel.net import Net
from assay.protocols.kernel.run import Outcome

Maker = type[Node] | Callable[[NodeId], Node]
Change = tuple[float, NodeId, bool]


@dataclass(frozen=True)
class World:
    """Everything that determines a run but the way of running it."""

    n: int
    node: Maker | Sequence[Node]
    """A class (or a partial of one), made anew for every node; a function of the id; or the nodes themselves."""
    f: int = 0
    inputs: Sequence[Any] | None = None
    clients: Sequence[Node] = ()
    """Further nodes, numbered from n on, that can reach all others and do not count as participants."""
    topology: Any = "complete"
    net: Net = field(default_factory=Net)
    faults: Mapping[NodeId, Fault] = field(default_factory=dict)
    churn: Sequence[Change] = ()
    """(time, node, up): the node leaves, or comes back without memory. Who is not named first as coming up is there."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"a world of {self.n} nodes; at least 1 expected")
        for node in self.faults:
            if not 0 <= node < self.n + len(self.clients):
                raise ValueError(f"a fault at node {node}, but there are nodes 0 to {self.n - 1} only")

    def make_nodes(self) -> list[Node]:
        """The nodes and clients, fresh, inside their faults."""
        return [self.make(node) for node in range(self.n + len(self.clients))]

    def make(self, node: NodeId) -> Node:
        """One node, fresh, inside its fault."""
        if node >= self.n:
            fresh = copy.deepcopy(self.clients[node - self.n])
        elif isinstance(self.node, (type, partial)):
            fresh = self.node()
        elif callable(self.node):
            fresh = self.node(node)
        else:
            fresh = copy.deepcopy(self.node[node])
        return Faulty(fresh, copy.deepcopy(self.faults[node])) if node in self.faults else fresh

    def neighbours(self) -> list[tuple[NodeId, ...]] | None:
        """Whom each node may send to; None: everybody."""
        return shapes.neighbours(self.topology, self.n)

    def run(
        self, mode: str = "timed", *, until: Callable[[Outcome], bool] | None = None, limit: float | None = None,
        **options: Any,
    ) -> Outcome:  # fmt: skip
        """Run in "rounds", in simulated time ("timed"), under a scheduler ("async"), or over sockets ("live").

        `until` is asked after every decision and every completed operation. `limit` counts rounds, seconds or
        deliveries. Further options are those of `rounds.run`, `timed.run`, `asynchronous.run` and `tcp.run`.
        """
        from assay.protocols.kernel import asynchronous, rounds, timed

        modes: dict[str, Callable[..., Outcome]] = {
            "rounds": rounds.run, "timed": timed.run, "async": asynchronous.run, "live": _live,
        }  # fmt: skip
        if mode not in modes:
            raise ValueError(f"no mode '{mode}'; one of {', '.join(modes)} expected")
        if limit is not None:
            options["limit"] = limit
        return modes[mode](self, until=until, **options)


def _live(world: World, **options: Any) -> Outcome:
    from assay.protocols import tcp

    return tcp.run(world, **options)
