"""Exhaustive exploration: as thorough as trying everything, and honest about where it stopped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Crash
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag
from assay.protocols.judges.safety import agreement
from assay.protocols.kernel.explore import Explored, arsenal, canonical, explore
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.trace import replay
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import Bracha
from assay.sim.random import stream
from tests.oracles.schedules import Decided, reachable

LIES = [(kind, value) for kind in ("send", "echo", "ready") for value in "ab"]

Rule = tuple[int, tuple[tuple[int, int], ...], int | None]
"""The next state, (to, kind) to send, what to decide."""


class Table(Node):
    """A node that does what a table says; it sends at most `budget` messages."""

    def __init__(self, rules: dict[tuple[int, int], Rule], first: tuple[tuple[int, int], ...], budget: int = 3) -> None:
        self.rules, self.first, self.budget = rules, first, budget
        self.state = 0
        self.got: list[int] = []

    def start(self, ctx: Ctx) -> None:
        self._send(ctx, self.first)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        state, sends, decision = self.rules.get((self.state, msg[1]), (self.state, (), None))
        self.state = state
        if decision is not None:
            ctx.decide(decision, (self.state, msg[1]))
        self._send(ctx, sends)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        self.recv(ctx, -1, ("timer", 0))

    def _send(self, ctx: Ctx, sends: tuple[tuple[int, int], ...]) -> None:
        for to, kind in sends:
            if self.budget:
                self.budget -= 1
                ctx.send((ctx.id + to) % ctx.n, ("m", kind))


def drawn(seed: int) -> tuple[World, list[tuple[NodeId, NodeId, Message]]]:
    """Two or three nodes with full tables, in which most steps are silent, and what a liar says to them."""
    rng = stream(seed, "tables")

    def some_sends(chance: float) -> tuple[tuple[int, int], ...]:
        return ((int(rng.integers(1, 3)), int(rng.integers(3))),) if rng.random() < chance else ()

    def some_table() -> Table:
        rules: dict[tuple[int, int], Rule] = {}
        for state in range(4):
            for kind in range(3):
                decision = int(rng.integers(2)) if rng.random() < 0.3 else None
                rules[state, kind] = (int(rng.integers(4)), some_sends(0.3), decision)
        return Table(rules, some_sends(0.5), budget=1)

    nodes = [some_table() for _ in range(3)]
    said = [(0, int(rng.integers(1, 3)), ("m", int(rng.integers(3)))) for _ in range(int(rng.integers(2, 5)))]
    return World(n=3, node=nodes, faults={0: Crash()}), said


def explored(world: World, injected: list[tuple[NodeId, NodeId, Message]]) -> set[Decided]:
    found: set[Decided] = set()

    def note(_: World, outcome: Outcome) -> str | None:
        found.add(frozenset((entry.node, entry.slot, entry.value) for entry in outcome.log))
        return None

    assert explore(world, note, injected).complete
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_the_same_decisions_are_reached_as_by_trying_every_schedule(seed: int) -> None:
    world, said = drawn(seed)
    assert explored(world, said) == reachable(world, said)


def test_bracha_is_safe_whatever_a_byzantine_sender_says() -> None:
    world = World(n=4, f=1, node=Bracha, faults={0: Fault()})
    found = explore(world, agreement, arsenal(world, LIES))
    assert found.complete and found.violation is None and found.states > 1_000


def test_two_liars_among_four_break_bracha_and_the_schedule_replays() -> None:
    world = World(n=4, f=1, node=Bracha, faults={0: Fault(), 1: Fault()})
    found = explore(world, agreement, arsenal(world, LIES))
    assert found.violation is not None and not found.complete
    assert agreement(world, replay(world, found.violation)) == found.why


class Eager(Bracha):
    """Delivers what more than f have echoed: a mistake."""

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        super().recv(ctx, src, msg)
        for value, voters in self.echoes.items():
            if len(voters) > ctx.f and not self.delivered:
                self.delivered = True
                ctx.decide(value)


def test_a_quorum_that_is_too_small_is_found_out_with_one_liar() -> None:
    world = World(n=4, f=1, node=Eager, faults={0: Fault()})
    assert explore(world, agreement, arsenal(world, LIES)).violation is not None


@pytest.mark.parametrize(("bound", "word"), [({"states": 50}, "states"), ({"depth": 2}, "steps")])
def test_a_search_that_stops_early_does_not_claim_to_be_complete(bound: dict[str, int], word: str) -> None:
    world = World(n=4, f=1, node=Bracha, inputs=["a"])
    found = explore(world, agreement, **bound)  # type: ignore[arg-type]
    assert not found.complete and word in found.why and found.violation is None


class Alarmed(Node):
    """Decides how often its alarm went off."""

    count = 0

    def start(self, ctx: Ctx) -> None:
        ctx.timer(1.0, "again")

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        self.count += 1
        ctx.decide(self.count, self.count)
        ctx.timer(1.0, "again")


def test_timers_fire_as_often_as_allowed_and_no_more() -> None:
    def fired(times: int) -> Explored:
        return explore(World(n=1, node=Alarmed), lambda _, outcome: None, timers=times)

    assert [fired(times).decisions for times in (0, 1, 3)] == [0, 1, 3]


def test_what_only_refuses_never_arrives() -> None:
    world = World(n=4, f=1, node=Bracha, inputs=["a"])
    found = explore(world, lambda _, outcome: "delivered" if outcome.log else None, only=lambda event: event[1] != 3)
    assert found.violation is not None and all(event[1] != 3 for event in found.violation)
    never = explore(world, lambda _, outcome: "delivered" if outcome.log else None, only=lambda event: event[1] == 3)
    assert never.complete and never.violation is None


def test_states_that_differ_only_in_the_order_of_sets_are_one() -> None:
    one, other = Bracha(), Bracha()
    for voter in range(20):
        one.echoes["a"].add(voter)
        other.echoes["a"].add(19 - voter)
    assert canonical(one) == canonical(other) != canonical(replace_sender(one))


def replace_sender(node: Bracha) -> Bracha:
    other = Bracha(sender=1)
    other.echoes = node.echoes
    return other


class Tossing(Node):
    """Decides a number a message."""

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        ctx.decide(int(ctx.rng.integers(1000)), msg[1])


def test_randomness_is_part_of_the_state() -> None:
    world = World(n=2, node=Tossing, faults={0: Fault()}, seed=3)
    injected = [(0, 1, ("toss", 0)), (0, 1, ("toss", 1))]
    tosses = explored_values(world, injected)
    assert len(tosses) == 2  # the first toss shows one number, the second another, whichever message brings it


def explored_values(world: World, injected: list[tuple[NodeId, NodeId, Message]]) -> set[int]:
    found: set[int] = set()

    def note(_: World, outcome: Outcome) -> str | None:
        found.update(entry.value for entry in outcome.log)
        return None

    explore(world, note, injected)
    return found
