"""Snowveil as a node: polls are requests over the network, answers may be late, lost, or lies.

A node's input is its ranking, best first. It asks k peers for their ballots, waits for the answers (and asks others in
place of those that do not come), applies the rule, and decides once enough polls in a row named the same candidate. It
answers all along, after its decision with that candidate on top.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> rankings = [(0, 1, 2)] * 20 + [(1, 0, 2)] * 10
>>> outcome = World(n=30, node=partial(Voter, sample=7), inputs=rankings, seed=1).run("timed", limit=60.0)
>>> len(outcome.decided()), max(set(outcome.decided().values()), key=list(outcome.decided().values()).count)
(30, 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag
from assay.protocols.snowveil.preference_swarm import STANDARD, Patience
from assay.protocols.snowveil.voting_rules import DEFAULT, Weights, winner


class Voter(Node):
    """One voter. `wait` is how long, in seconds, it gives a poll before it asks others instead."""

    def __init__(
        self, sample: int = 21, rule: str = "chb", weights: Weights = DEFAULT, patience: Patience = STANDARD,
        wait: float = 1.0,
    ) -> None:  # fmt: skip
        self.sample, self.rule, self.weights, self.patience, self.wait = sample, rule, weights, patience, wait
        self.polls = 0
        self.last, self.streak = -1, 0
        self.settled: int | None = None
        self.answers: dict[NodeId, Sequence[int]] = {}
        self.asked: set[NodeId] = set()

    def start(self, ctx: Ctx) -> None:
        """The first poll."""
        if not 1 <= self.sample <= len(ctx.peers):
            raise ValueError(f"a sample of {self.sample} among {len(ctx.peers)} peers; at least 1 and at most all")
        self._poll(ctx)

    def _poll(self, ctx: Ctx) -> None:
        self.answers, self.asked = {}, set()
        self._ask(ctx, self.sample)
        ctx.timer(self.wait, ("late", self.polls))

    def _ask(self, ctx: Ctx, count: int) -> None:
        """Ask so many peers that this poll has not asked yet; none is asked twice in a poll."""
        others = [peer for peer in ctx.peers if peer not in self.asked]
        chosen = ctx.rng.choice(len(others), min(count, len(others)), replace=False)
        for index in chosen.tolist():
            self.asked.add(others[index])
            ctx.send(others[index], ("ask", self.polls))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A question is answered at once; an answer counts if it is to the present poll and a ranking at all."""
        match msg:
            case ("ask", int(poll)):
                ctx.send(src, ("ballot", poll, self._ballot(ctx)))
            case ("ballot", self.polls, tuple(order)) if self.settled is None and src in self.asked:
                if sorted(order) == sorted(ctx.input):
                    self.answers[src] = order
                if len(self.answers) == self.sample:
                    self._count(ctx)

    def _ballot(self, ctx: Ctx) -> tuple[int, ...]:
        order = tuple(ctx.input)
        if self.settled is None:
            return order
        return (self.settled, *(candidate for candidate in order if candidate != self.settled))

    def _count(self, ctx: Ctx) -> None:
        orders = np.array([self.answers[src] for src in sorted(self.answers)])
        found = winner(self.rule, np.argsort(orders, axis=1), self.weights)
        self.streak = self.streak + 1 if found == self.last else 1
        self.last = found
        needed = self.patience.needed(self.polls)
        self.polls += 1
        if self.streak >= needed:
            self.settled = found
            ctx.decide(found)
        else:
            self._poll(ctx)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Those who did not answer are replaced; if nobody is left to ask, the poll begins anew."""
        if self.settled is None and tag == ("late", self.polls):
            missing = self.sample - len(self.answers)
            if len(self.asked) + missing > len(ctx.peers):
                self._poll(ctx)
            else:
                self._ask(ctx, missing)
                ctx.timer(self.wait, ("late", self.polls))


@dataclass
class Lie(Fault):
    """Answers every poll with `target` on top and the rest of the true ranking upside down."""

    target: int = 0

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """Ballots are forged, all else passes."""
        if msg[0] == "ballot":
            rest = [candidate for candidate in reversed(tuple(ctx.input)) if candidate != self.target]
            return ((to, ("ballot", msg[1], (self.target, *rest))),)
        return ((to, msg),)
