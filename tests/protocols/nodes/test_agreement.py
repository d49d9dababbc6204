"""Binary agreement: what is promised for any f < n/3 with a common coin, and what a local one breaks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Chaos, Crash, Silence
from assay.protocols.faults.two_faced import twins
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.judges.safety import agreement, corrupt, proposed
from assay.protocols.kernel.asynchronous import Random
from assay.protocols.kernel.world import World
from assay.protocols.nodes.agreement import ABA, IdealCoin

COMMON = partial(IdealCoin, 3)
NODE = partial(ABA, COMMON)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=4, max_size=4), st.integers(0, 10**6))
def test_all_decide_one_input_and_stop(inputs: list[int], seed: int) -> None:
    world = corrupt(World(n=4, f=1, node=NODE, inputs=inputs, seed=seed), 1, seed)
    outcome = world.run("async", scheduler=Random(seed), metered=False)
    assert outcome.stopped == "quiet" and len(outcome.decided()) == 3
    assert agreement(world, outcome) is None and proposed(world, outcome) is None


@pytest.mark.parametrize("mode", ["rounds", "timed", "async"])
def test_it_runs_in_every_mode(mode: str) -> None:
    world = World(n=7, f=2, node=NODE, inputs=[0, 1, 0, 1, 0, 1, 0], faults={5: Silence(), 6: Crash()})
    assert len(set(world.run(mode).decided().values())) == 1


def test_equal_inputs_are_decided_whatever_the_coins_show() -> None:
    for seed in range(20):
        world = World(n=4, f=1, node=partial(ABA, LocalCoin), inputs=[1, 1, 1, 0], faults={3: Chaos()}, seed=seed)
        assert set(world.run("async", metered=False).decided().values()) == {1}


class LocalCoin(Node):
    """Each node tosses for itself."""

    def __init__(self, round: int) -> None:
        self.round = round

    def start(self, ctx: Ctx) -> None:
        ctx.decide(int(ctx.rng.integers(2)))


def test_a_local_coin_breaks_the_protocol_that_needs_a_common_one() -> None:
    found = []
    for seed in range(400):
        world = World(n=4, f=1, node=partial(ABA, LocalCoin), inputs=[0, 1, 1, 0], seed=seed)
        found.append(agreement(world, world.run("async", metered=False)))
    assert any(found)


def test_nobody_asks_for_the_coin_before_it_has_settled_what_to_conclude() -> None:
    node = partial(ABA, partial(IdealCoin, 0))
    world = World(n=4, f=1, node=node, inputs=[0, 1, 0, 1])
    run = world.run("async", scheduler=WithoutConfs(), traced=True)
    kinds = {msg[0] for _, _, _, msg in run.trace}
    assert kinds == {"bval", "aux"}  # everybody has sent its conf by now, and nobody its share of the coin


class WithoutConfs(Random):
    """Never delivers a conf."""

    def pick(self, pending: Any, view: Any) -> int:
        rest = [place for place, event in enumerate(pending) if event.msg[0] != "conf"]
        return rest[0] if rest else -1


HOSTILE: list[Message] = [
    ("bval",), ("bval", 1), ("bval", "1", 0), ("bval", 1, 3), ("bval", 1, 5, 0), ("bval", -1, 0),
    ("bval", 10**12, 0), ("aux", None, 0), ("aux", 1, 2),
    ("conf", 1, 7), ("conf", 1, (1,)), ("done", 2), ("done",), ("?",),
    ("/",), ("/", "coin", ("ask",)), ("/", ("coin", 1), ()), ("/", ("coin", "x"), ("ask",)),
    ("/", ("coin", 1), ("?", 1)), ("/", ("coin", 10**9), ("ask",)), ("/", ("other", 1), ("ask",)),
]  # fmt: skip


class Hostile(Node):
    """Says everything that is wrong, to everybody."""

    def __init__(self, lines: list[Message]) -> None:
        self.lines = lines

    def start(self, ctx: Ctx) -> None:
        for line in self.lines:
            ctx.broadcast(line, to=ctx.peers)


def test_malformed_messages_are_ignored() -> None:
    def make(node: NodeId) -> Node:
        return Hostile(HOSTILE) if node == 3 else ABA()

    for seed in range(20):
        world = World(n=4, f=1, node=make, inputs=[0, 1, 0, None], faults={3: Fault()}, seed=seed)
        assert len(world.run("async", metered=False).decided()) == 3


def test_the_ideal_coin_needs_more_than_f_who_ask() -> None:
    alone = World(n=4, f=1, node=partial(IdealCoin, 5, 1), faults={1: Crash(), 2: Crash(), 3: Crash()})
    assert alone.run("async").decided() == {}
    both = World(n=4, f=1, node=partial(IdealCoin, 5, 1), faults={2: Crash(), 3: Crash()})
    assert len(set(both.run("async").decided().values())) == 1


def test_ideal_coins_are_fair_and_differ_from_round_to_round() -> None:
    tosses = [
        World(n=1, f=0, node=partial(IdealCoin, 1, round)).run("async").decided()[0] for round in range(200)
    ]  # fmt: skip
    assert 70 < sum(tosses) < 130


def test_twins_do_not_break_it() -> None:
    for seed in range(30):
        plain = World(n=4, f=1, node=partial(ABA, partial(IdealCoin, seed)), inputs=[0, 1, 1, 0], seed=seed)
        world = twins(plain, {0: (0, 1)}, half={2})
        assert agreement(world, world.run("async", metered=False)) is None
