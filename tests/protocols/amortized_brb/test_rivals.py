"""Broadcasts that papers compare with: by digest, by fragments, by samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.amortized_brb import reed_solomon
from assay.protocols.amortized_brb.chained import Chained
from assay.protocols.amortized_brb.rivals import Avid, HashedBracha, SampledBroadcast
from assay.protocols.faults import Chaos, Crash, Equivocate, Silence
from assay.protocols.interface import Fault, Message, Node
from assay.protocols.kernel import signatures
from assay.protocols.kernel.asynchronous import Asynchronous, Random
from assay.protocols.kernel.world import World
from assay.protocols.subcubic_coin.strong_coin import Avss

EXACT = (HashedBracha, Avid)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
KINDS = (
    "send", "echo", "ready", "want", "body", "vouch", "ask", "links", "gossip", "subscribe", "delivery", "deal",
    "reveal",
)  # fmt: skip


def forge(msg: Message) -> Message:
    """Another message of the sender, whole and sound, for those who are to be lied to."""
    if msg[0] != "send":
        return msg
    if len(msg) == 2:
        return ("send", b"another")
    fragments = reed_solomon.encode(b"another", 7, 3)
    root, proofs = signatures.tree(fragments)
    place = reed_solomon.encode(b"hello", 7, 3).index(msg[2])
    return ("send", root, fragments[place], proofs[place])


class TestWithTheLastThird:
    @pytest.mark.parametrize("node", EXACT)
    @pytest.mark.parametrize("seed", range(6))
    def test_a_silent_third_stops_nobody(self, node: type[Node], seed: int) -> None:
        world = World(n=7, f=2, node=node, inputs=[b"hello"], faults={5: Crash(), 6: Crash()}, seed=seed)
        assert world.run("async").decided() == dict.fromkeys(range(5), b"hello")

    @pytest.mark.parametrize("node", EXACT)
    @pytest.mark.parametrize("half", [(1, 2, 3), (1,), (1, 2, 3, 4, 5)])
    def test_a_lying_sender_makes_all_deliver_one_message_or_none(
        self, node: type[Node], half: tuple[int, ...]
    ) -> None:
        for seed in range(20):
            faults: dict[int, Fault] = {0: Equivocate(kinds=("send",), half=half, forge=forge), 6: Chaos()}
            outcome = World(n=7, f=2, node=node, inputs=[b"hello"], faults=faults, seed=seed).run("async")
            assert not outcome.conflicts
            assert len(outcome.decided()) in (0, 5)
            assert set(outcome.decided().values()) <= {b"hello", b"another"}

    def test_whoever_the_sender_left_out_asks_for_the_message(self) -> None:
        world = World(n=7, f=2, node=HashedBracha, inputs=[b"hello"], faults={0: Silence(to=(3,))})
        outcome = world.run("async")
        assert outcome.decided()[3] == b"hello"
        assert outcome.meter.by_kind["want"][0] <= 3

    def test_fragments_of_no_message_are_delivered_by_nobody(self) -> None:
        rubbish = [bytes([place]) * 4 for place in range(7)]
        root, proofs = signatures.tree(rubbish)

        def deal(msg: Message) -> Message:
            place = reed_solomon.encode(b"hello", 7, 3).index(msg[2]) if msg[0] == "send" else 0
            return ("send", root, rubbish[place], proofs[place]) if msg[0] == "send" else msg

        faults: dict[int, Fault] = {0: Equivocate(half=range(1, 7), forge=deal)}
        outcome = World(n=7, f=2, node=Avid, inputs=[b"hello"], faults=faults).run("async")
        assert outcome.decided() == {}


class TestCosts:
    def test_digests_make_the_message_travel_once(self) -> None:
        large = bytes(50_000)
        outcome = World(n=16, f=5, node=HashedBracha, inputs=[large]).run("rounds")
        assert outcome.meter.by_kind["send"][1] < 8 * 15 * (len(large) + 100)
        assert outcome.meter.by_kind["echo"][1] < 8 * 16 * 15 * 100

    def test_fragments_make_three_times_the_message_travel(self) -> None:
        large = bytes(200_000)
        outcome = World(n=16, f=5, node=Avid, inputs=[large]).run("rounds")
        assert 2.5 < outcome.meter.bits / (8 * 16 * len(large)) < 3.2

    def test_samples_send_far_fewer_messages_than_everybody_to_everybody(self) -> None:
        outcome = World(n=200, f=10, node=SampledBroadcast, inputs=[b"hello"], seed=3).run("rounds", metered=True)
        assert len(outcome.decided()) == 200
        assert outcome.meter.messages < 200 * 200


def test_samples_survive_a_tenth_of_silent_nodes() -> None:
    whole = 0
    for seed in range(10):
        faults: dict[int, Fault] = {node: Crash() for node in range(58, 64)}
        world = World(n=64, f=6, node=SampledBroadcast, inputs=[b"hello"], faults=faults, seed=seed)
        whole += len(world.run("rounds", metered=False).decided()) == 58
    assert whole == 10


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(PLAIN, max_size=4)), max_size=30), st.integers(0, 3))
def test_nobody_stumbles_over_what_a_hostile_peer_sends(rubbish: list[tuple[str, list[Any]]], seed: int) -> None:
    makers: tuple[Callable[[], Node], ...] = (HashedBracha, Avid, Chained, SampledBroadcast, partial(Avss, dealer=0))
    for maker in makers:
        given_ = {Chained: [b"hello", b"there"]}.get(maker, 5 if isinstance(maker, partial) else b"hello")  # type: ignore[call-overload]
        world = World(n=4, f=1, node=maker, inputs=[given_], faults={3: Crash()}, seed=seed)  # type: ignore[arg-type]
        run = Asynchronous(world)
        for place, (kind, fields) in enumerate(rubbish):
            run.inject(3, place % 3, (kind, *fields))
        outcome = run.go(Random(seed), None, 20_000)
        assert outcome.stopped == "quiet"
        assert not outcome.conflicts
