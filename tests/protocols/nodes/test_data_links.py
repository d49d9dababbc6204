"""Links over links that lose, double, delay and reorder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.interface import Ctx, Fault
from assay.protocols.kernel.net import Net, Uniform
from assay.protocols.kernel.world import World
from assay.protocols.nodes.data_links import AlternatingBit, Link, NumberedLink, StabilisingLink, faithful

ROOM = 3
ALL = (AlternatingBit, NumberedLink, StabilisingLink)
CHANCES = st.sampled_from([0.0, 0.1, 0.4])


def delivered(kind: type[Link], net: Net, seed: int, rounds: int = 600) -> list[Any]:
    outcome = World(n=2, node=kind, net=net, seed=seed).run("rounds", limit=rounds, metered=False)
    return outcome.nodes[1].delivered  # type: ignore[attr-defined,no-any-return]


class Rubbish(Fault):
    """Puts packets on the link that nobody sent."""

    def __init__(self, packets: list[Any]) -> None:
        self.packets = packets

    def on_start(self, ctx: Ctx) -> None:
        for packet in self.packets:
            ctx.send(1 - ctx.id, packet)


@settings(max_examples=40, deadline=None)
@given(CHANCES, CHANCES, st.integers(0, 10**6), st.integers(1, 4))
def test_in_order_links_are_made_reliable_by_all_of_them(drop: float, double: float, seed: int, slow: int) -> None:
    net = Net(Uniform(0.5, slow + 0.5), drop=drop, duplicate=double, fifo=True, room=ROOM)
    for kind in ALL:
        got = delivered(kind, net, seed)
        assert faithful(got, range(len(got)))
        assert len(got) >= 5


def test_the_alternating_bit_is_deceived_by_packets_that_overtake_and_the_others_are_not() -> None:
    net = Net(Uniform(0.5, 4.5), duplicate=0.3, reorder=0.5, room=ROOM)
    right = dict.fromkeys(ALL, 0)
    for seed in range(20):
        for kind in ALL:
            got = delivered(kind, net, seed)
            right[kind] += faithful(got, range(len(got)))
    assert right == {AlternatingBit: 0, NumberedLink: 20, StabilisingLink: 20}


DATA = st.tuples(st.just("data"), st.integers(0, 1), st.integers(-5, -1))
ACKS = st.tuples(st.just("ack"), st.integers(0, 1))
STATES = st.fixed_dictionaries(
    {
        "label": st.integers(0, 1), "acks": st.integers(0, ROOM), "last": st.integers(0, 1),
        "copies": st.dictionaries(st.tuples(st.integers(0, 1), st.integers(-5, 5)), st.integers(1, ROOM), max_size=4),
    }
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    STATES, STATES, st.lists(DATA, max_size=ROOM), st.lists(ACKS, max_size=ROOM), st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_from_any_state_two_messages_may_be_wrong_and_two_lost_and_then_all_is_right(
    sender: dict[str, Any], receiver: dict[str, Any], data: list[Any], acks: list[Any], seed: int, drop: float,
    reorder: float,
) -> None:  # fmt: skip
    nodes = [StabilisingLink(capacity=ROOM), StabilisingLink(capacity=ROOM)]
    for node, state in zip(nodes, (sender, receiver), strict=True):
        vars(node).update(state)
    net = Net(Uniform(0.5, 3.5), drop=drop, duplicate=0.2, reorder=reorder, room=ROOM)
    faults = {0: Rubbish(data), 1: Rubbish(acks)}
    outcome = World(n=2, node=nodes, net=net, faults=faults, seed=seed).run("rounds", limit=700, metered=False)
    got = outcome.nodes[1].delivered  # type: ignore[attr-defined]
    assert len(got) > 5
    assert got[2:] == list(range(got[2], got[2] + len(got) - 2))
    assert got[2] <= 4


def test_a_wrong_number_stays_wrong() -> None:
    nodes = [NumberedLink(), NumberedLink()]
    nodes[1].label = 1000
    outcome = World(n=2, node=nodes).run("rounds", limit=300)
    assert outcome.nodes[1].delivered == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ALL)
def test_a_finite_sequence_ends_in_silence(kind: type[Link]) -> None:
    outcome = World(n=2, node=kind, inputs=[("a", "b")], net=Net(drop=0.3, fifo=True, room=ROOM)).run("rounds")
    assert outcome.stopped == "quiet"
    assert outcome.nodes[1].delivered == ["a", "b"]  # type: ignore[attr-defined]
    assert outcome.decisions[1] == {0: "a", 1: "b"}


@pytest.mark.parametrize("kind", ALL)
@given(body=st.lists(st.one_of(st.integers(-(2**63), 2**63), st.text(), st.none(), st.booleans()), max_size=4))
@settings(max_examples=20, deadline=None)
def test_rubbish_of_any_shape_is_ignored(kind: type[Link], body: list[Any]) -> None:
    net = Net(fifo=True, room=ROOM)
    faults = {0: Rubbish([("ack", *body), ("what", *body)]), 1: Rubbish([("data", *body)])}
    outcome = World(n=2, node=kind, net=net, faults=faults).run("rounds", limit=60)
    assert len(outcome.nodes[1].delivered) >= 3  # type: ignore[attr-defined]


def test_robustness_costs_packets() -> None:
    used = {}
    for kind in ALL:
        outcome = World(n=2, node=kind, inputs=[tuple(range(20))], net=Net(fifo=True, room=ROOM)).run("rounds")
        used[kind] = outcome.meter.messages / 20
    assert used[AlternatingBit] == used[NumberedLink] == 2
    assert used[StabilisingLink] >= 2 * (ROOM + 1)


@pytest.mark.parametrize(("kind", "bad"), [(AlternatingBit, {"patience": 0}), (StabilisingLink, {"capacity": 0})])
def test_senseless_settings_are_refused(kind: type[Link], bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        kind(**bad)
