"""Signed broadcast: f + 1 rounds, any f < n, and no way to forge a chain."""

from __future__ import annotations

import pytest

from assay.protocols.faults import Chaos, Crash, Equivocate, Silence
from assay.protocols.faults.two_faced import twins
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.judges.safety import agreement, sent_by
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import NOTHING, SignedBroadcast


@pytest.mark.parametrize(("n", "f"), [(2, 1), (4, 1), (4, 3), (7, 5)])
def test_a_correct_sender_is_heard_whatever_f_others_do(n: int, f: int) -> None:
    kinds = [Chaos(), Silence(), Crash(), Equivocate()]
    for seed in range(20):
        faults = {n - 1 - liar: kinds[(seed + liar) % 4] for liar in range(f)}
        world = World(n=n, f=f, node=SignedBroadcast, inputs=["a"], faults=faults, seed=seed)
        outcome = world.run("rounds")
        assert len(outcome.decided()) == n - f and sent_by(0)(world, outcome) is None


def test_a_sender_with_two_faces_is_caught_by_all() -> None:
    world = twins(World(n=4, f=1, node=SignedBroadcast), {0: ("a", "b")}, half={2, 3})
    assert world.run("rounds").decided() == {1: NOTHING, 2: NOTHING, 3: NOTHING}


def test_a_silent_sender_leads_to_nothing() -> None:
    world = World(n=4, f=1, node=SignedBroadcast, inputs=["a"], faults={0: Crash()})
    assert world.run("rounds").decided() == {1: NOTHING, 2: NOTHING, 3: NOTHING}


def test_messages_are_quadratic() -> None:
    outcome = World(n=8, f=2, node=SignedBroadcast, inputs=["a"]).run("rounds")
    assert outcome.meter.messages == 7 + 7 * 6  # each node passes one value on, to those who have not signed it


class Forger(Node):
    """Sends chains that are not what they should be."""

    def start(self, ctx: Ctx) -> None:
        own = ctx.sign(b"anything")
        lines: list[Message] = [
            ("chain",), ("chain", "b"), ("chain", "b", ()), ("chain", "b", "chain"), ("chain", "b", (0, own)),
            ("chain", "b", ((0, own),)), ("chain", "b", ((3, own),)), ("chain", "b", (("0", own),)),
            ("chain", "b", ((0, "x"),)), ("chain", "b", ((99, own),)), ("chain", "b", ((-1, own),)),
            ("chain", "b", ((0, own), (0, own))), ("other",),
        ]  # fmt: skip
        for line in lines:
            ctx.broadcast(line, to=ctx.peers)


def test_forged_and_malformed_chains_are_ignored() -> None:
    def make(node: NodeId) -> Node:
        return Forger() if node == 3 else SignedBroadcast()

    world = World(n=4, f=1, node=make, inputs=["a"], faults={3: Fault()})
    outcome = world.run("rounds")
    assert outcome.decided() == {0: "a", 1: "a", 2: "a"} and agreement(world, outcome) is None
