"""Raft: one order for all, through crashes and lost messages; clients see one store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Crash
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.judges.safety import agreement, all_of, asked, linearizable
from assay.protocols.kernel.net import parse
from assay.protocols.kernel.world import World
from assay.protocols.nodes.kv import finished
from assay.protocols.nodes.raft import Raft, RaftClient

judge = all_of(agreement, asked, linearizable)


def clients(count: int, each: int) -> list[RaftClient]:
    kinds: Sequence[Any] = (("write", "x"), ("read", "x"), ("cas", "x"), ("write", "y"))
    return [
        RaftClient([
            (f, key, (100 * who + at - 1, 100 * who + at) if f == "cas" else None if f == "read" else 100 * who + at)
            for at in range(each) for f, key in [kinds[(at + who) % 4]]
        ])
        for who in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_clients_are_served_and_all_logs_agree(n: int) -> None:
    world = World(n=n, f=(n - 1) // 2, node=Raft, clients=clients(3, 8))
    outcome = world.run("timed", until=finished, limit=30)
    assert outcome.stopped == "until" and len(outcome.operations) == 24 and judge(world, outcome) is None


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 2.0), st.floats(0.1, 2.0))
def test_a_crash_and_a_lossy_network_cost_time_only(seed: int, at: float, down: float) -> None:
    faults = {seed % 3: Crash(at=at, recover=at + down)}
    net = parse("lognormal:0.005:0.6,drop=0.1,duplicate=0.1")
    world = World(n=3, f=1, node=Raft, clients=clients(2, 6), net=net, faults=faults, seed=seed)
    outcome = world.run("timed", until=finished, limit=120, metered=False)
    assert outcome.stopped == "until" and judge(world, outcome) is None


def test_a_leader_that_is_cut_off_is_replaced_and_catches_up() -> None:
    world = World(n=3, f=1, node=Raft, clients=clients(1, 30), faults={node: Crash(0.3, 0.9) for node in (0,)}, seed=4)
    outcome = world.run("timed", until=finished, limit=60)
    logs = [node.log for node in outcome.nodes[:3]]  # type: ignore[attr-defined]
    assert outcome.stopped == "until" and sum(log[: len(logs[0])] == logs[0] for log in logs) >= 2


def test_a_majority_down_stalls_and_goes_on_when_one_is_back() -> None:
    down = World(n=3, f=1, node=Raft, clients=clients(1, 200), faults={0: Crash(0.7), 1: Crash(0.7)})
    stalled = down.run("timed", until=finished, limit=20)
    done = sum(operation.status == "ok" for operation in stalled.operations)
    assert stalled.stopped == "limit" and 0 < done < 200 and judge(down, stalled) is None
    back = World(n=3, f=1, node=Raft, clients=clients(1, 200), faults={0: Crash(0.7), 1: Crash(0.7, recover=5)})
    assert back.run("timed", until=finished, limit=60).stopped == "until"


def test_what_must_survive_a_crash_does() -> None:
    world = World(n=3, f=1, node=Raft, clients=clients(1, 4), faults={0: Crash(at=math.inf, recover=2.0)}, seed=1)
    outcome = world.run("timed", until=lambda outcome: outcome.time > 3, limit=3)
    node = outcome.nodes[0]
    assert node.boots == 2 and len(node.log) >= 4 and node.term >= 1  # type: ignore[attr-defined]


def test_it_runs_in_rounds() -> None:
    world = World(n=3, f=1, node=lambda _: Raft(election=10, heartbeat=3), clients=clients(1, 5))
    assert world.run("rounds", until=finished, limit=500).stopped == "until"


class Noise(Node):
    """A client that sends what no client should."""

    def start(self, ctx: Ctx) -> None:
        entry = (1, (9, 9, "write", "x", 1))
        lines: list[Message] = [
            ("request",), ("request", 1, "drop", "x", None), ("request", "1", "read", "x", None), ("ask", 99, 0, 0),
            ("append", 99, 0, 0, (entry,), 5), ("?",), ("vote", 1, True),
        ]  # fmt: skip
        for line in lines:
            ctx.broadcast(line)


def test_a_hostile_client_changes_nothing() -> None:
    world = World(n=3, f=1, node=Raft, clients=[*clients(1, 4), Noise()])
    outcome = world.run("timed", until=finished, limit=10)
    assert outcome.stopped == "until" and judge(world, outcome) is None
    assert max(node.term for node in outcome.nodes[:3]) < 99  # type: ignore[attr-defined]


class Garbled(Node):
    """A server that sends malformed messages of every kind."""

    def start(self, ctx: Ctx) -> None:
        lines: list[Message] = [
            ("ask",), ("ask", 1, 0), ("ask", "1", 0, 0), ("vote", 1, 1), ("append", 0, 0, 0, (1,), 0),
            ("append", 0, 0, 0, ((1, 2, 3),), 0), ("append", 0, -5, 0, (), 9), ("appended", 0, True, 10**9),
            ("append", 0, 10**9, 0, (), 9), ("append", 0, 0, 0, ((0, (1,)),), 0), ("ask", 2**64 - 1, 0, 0),
            ("appended",), (),
        ]  # fmt: skip
        for line in lines[:-1]:
            ctx.broadcast(line, to=ctx.peers)


def test_malformed_messages_are_ignored() -> None:
    def make(node: NodeId) -> Node:
        return Garbled() if node == 2 else Raft()

    world = World(n=3, f=1, node=make, clients=clients(1, 4), faults={2: Fault()})
    assert world.run("timed", until=finished, limit=10).stopped == "until"
