"""PBFT: one order for all correct replicas, whatever f others and the primary do; clients see one store."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Chaos, Crash, Equivocate, Lie, Replayed, Silence
from assay.protocols.faults.two_faced import twins
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.judges.safety import agreement, all_of, asked, linearizable
from assay.protocols.kernel.net import parse
from assay.protocols.kernel.world import World
from assay.protocols.nodes import pbft_proofs as proofs
from assay.protocols.nodes.kv import finished
from assay.protocols.nodes.pbft import Pbft, PbftClient
from tests.protocols.nodes.test_raft import clients as raft_clients

judge = all_of(agreement, asked, linearizable)
FAULTS = [Silence(), Equivocate(), Lie(), Chaos(), Replayed(), Crash(at=0.1), Equivocate(kinds=("pre-prepare",))]


def clients(count: int, each: int) -> list[PbftClient]:
    return [PbftClient(client.operations) for client in raft_clients(count, each)]


@pytest.mark.parametrize(("n", "f"), [(4, 1), (7, 2), (1, 0)])
def test_clients_are_served_and_all_orders_agree(n: int, f: int) -> None:
    world = World(n=n, f=f, node=Pbft, clients=clients(3, 8))
    outcome = world.run("timed", until=finished, limit=30)
    assert outcome.stopped == "until" and len(outcome.operations) == 24 and judge(world, outcome) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("where", [0, 2])
def test_one_faulty_replica_costs_time_only(fault: Fault, where: NodeId) -> None:
    for seed in range(3):
        world = World(n=4, f=1, node=Pbft, clients=clients(2, 5), faults={where: fault}, seed=seed)
        outcome = world.run("timed", until=finished, limit=120, metered=False)
        assert outcome.stopped == "until" and judge(world, outcome) is None


def test_a_primary_with_two_faces_is_replaced() -> None:
    world = twins(World(n=4, f=1, node=Pbft, clients=clients(2, 4)), {0: (None, None)}, half={2, 3, 5})
    outcome = world.run("timed", until=finished, limit=60)
    assert outcome.stopped == "until" and judge(world, outcome) is None


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_a_lossy_network_costs_time_only(seed: int) -> None:
    net = parse("lognormal:0.005:0.6,drop=0.05,duplicate=0.05")
    node = partial(Pbft, interval=4)
    world = World(n=4, f=1, node=node, clients=clients(2, 6), net=net, faults={seed % 4: Crash(0.2, 1.5)}, seed=seed)
    outcome = world.run("timed", until=finished, limit=300, metered=False)
    assert outcome.stopped == "until" and judge(world, outcome) is None


def test_checkpoints_keep_the_log_short() -> None:
    world = World(n=4, f=1, node=partial(Pbft, interval=4), clients=clients(2, 30))
    outcome = world.run("timed", until=finished, limit=60)
    for node in outcome.nodes[:4]:
        assert node.low >= 56 and len(node.places) <= 8 and len(node.states) <= 2  # type: ignore[attr-defined]


def test_who_has_fallen_behind_fetches_the_state() -> None:
    cut_off: Any = {3: Crash(at=0.0, recover=0.2)}  # it misses the beginning and comes back empty
    world = World(n=4, f=1, node=partial(Pbft, interval=4), clients=clients(2, 150), faults=cut_off)
    outcome = world.run("timed", until=finished, limit=60)
    late = outcome.nodes[3]
    assert outcome.stopped == "until" and late.low > 250  # type: ignore[attr-defined]
    assert 1 not in outcome.decisions[3] and judge(world, outcome) is None


@pytest.mark.parametrize("interval", [0, 33])
def test_an_interval_that_does_not_fit_the_window_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match="1 to 32 expected"):
        Pbft(interval=interval)


def test_it_runs_in_rounds_and_under_an_adversary() -> None:
    world = World(n=4, f=1, node=partial(Pbft, patience=20), clients=[PbftClient([("write", "x", 1)], patience=20)])
    assert world.run("rounds", until=finished, limit=500).stopped == "until"
    assert world.run("async", until=finished, limit=5_000).stopped == "until"


class Hostile(Node):
    """Says everything that is wrong, to everybody."""

    def start(self, ctx: Ctx) -> None:
        mark, huge = ctx.sign(b"?"), 10**15
        change = (ctx.id, 0, b"", (), (), mark)
        lines: list[Message] = [
            ("request",), ("request", ()), ("request", (1, 2)), ("request", ((4, 1, "read", "x", None), mark)),
            ("request", ((1, 1, "read", "x", None), mark)), ("pre-prepare", 0, 1, (), mark), ("pre-prepare", 0, 1),
            ("pre-prepare", 0, huge, (), mark), ("pre-prepare", -1, 1, (), mark), ("prepare", 0, 1, b"", b""),
            ("prepare", 0, 1, "x", mark), ("commit", 0, 1, b"x"), ("commit", huge, 1, b"x"), ("commit", 0, 1, None),
            ("checkpoint", 16, b"x", mark), ("checkpoint", huge, b"x", mark), ("fetch", 16), ("fetch", -1),
            ("fetch", 0), ("state", 16, (), ()), ("state", 16, ((), ()), (16, b"x", ())), ("view-change", 1, ()),
            ("?", 1), ("view-change", 1, change), ("view-change", huge, change), ("view-change", 1, (ctx.id, 0)),
            ("view-change", 1, (ctx.id, "0", 5, 7, (1, (2,)), mark)), ("new-view", 1, (), (), mark),
            ("new-view", 1, (change,) * 3, (mark,), mark), ("new-view", huge, (), (), b""), ("view-change", 0, ()),
        ]  # fmt: skip
        for line in lines:
            ctx.broadcast(line, to=ctx.peers)


def test_malformed_messages_are_ignored() -> None:
    def make(node: NodeId) -> Node:
        return Hostile() if node == 1 else Pbft()

    world = World(n=4, f=1, node=make, clients=clients(1, 4), faults={1: Fault()})
    outcome = world.run("timed", until=finished, limit=60)
    assert outcome.stopped == "until" and judge(world, outcome) is None


def test_of_two_certificates_for_a_place_the_later_view_counts() -> None:
    one, two = (("a",), b""), (("b",), b"")
    changes = [
        (0, 4, b"s", (), ((1, 5, one, b"", ()), (1, 7, one, b"", ())), b""),
        (1, 2, b"r", (), ((2, 5, two, b"", ()), (0, 3, one, b"", ())), b""),
    ]
    assert proofs.carried_over(changes) == (4, (two, (), one))
