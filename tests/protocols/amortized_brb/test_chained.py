"""Chained broadcast: votes along a chain, and a stream that survives what Byzantine nodes do."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.amortized_brb import Divide, Forked, forked, kept
from assay.protocols.amortized_brb.chained import GENESIS, Chained, Links, Votes, digest
from assay.protocols.faults import Chaos, Crash, Silence
from assay.protocols.interface import Ctx, Fault, Message, NodeId
from assay.protocols.kernel.asynchronous import Fifo, QuorumStarver, Random, Scheduler, SplitBrain
from assay.protocols.kernel.rounds import Rounds
from assay.protocols.kernel.world import World

STREAM = [b"one", b"two", b"three", b"four"]


def world(
    n: int, faults: dict[NodeId, Fault] | None = None, seed: int = 0, spread: float = 1.0, **options: int
) -> World:
    node = partial(Chained, spread=spread, **options)
    return World(n=n, f=(n - 1) // 3, node=node, inputs=[STREAM], faults=faults or {}, seed=seed)


class TestVotes:
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60), st.integers(1, 6))
    def test_counts_are_those_of_sets_of_voters(self, moves: list[tuple[int, int]], fork: int) -> None:
        """Two branches of one tree; the oracle keeps for each link the set of those who vouch for it."""
        links = Links()
        trunk = [GENESIS]
        for place in range(6):
            trunk.append(links.add(trunk[-1], digest(bytes([place]))))
        branch = trunk[: fork + 1]
        for place in range(fork, 6):
            branch.append(links.add(branch[-1], digest(bytes([place, 1]))))
        tips = [*trunk, *branch[1:]]
        votes = Votes()
        tip_of: dict[int, bytes] = {}
        for who, where in moves:
            tip = tips[where]
            if links.path(tip_of.get(who, GENESIS), tip) is not None:
                tip_of[who] = tip
            votes.move(who, tip, links)
        for link in links.known:
            voters = [who for who, tip in tip_of.items() if links.path(link, tip) is not None]
            assert link == GENESIS or votes.count(link) == len(voters)

    def test_a_path_needs_both_ends_and_the_right_order(self) -> None:
        links = Links()
        first = links.add(GENESIS, digest(b"a"))
        other = links.add(GENESIS, digest(b"b"))
        assert links.path(GENESIS, first) == [first]
        assert links.path(first, first) == []
        assert links.path(first, other) is None
        assert links.path(first, GENESIS) is None
        assert links.path(b"?" * 32, first) is None


class TestAnHonestSender:
    @pytest.mark.parametrize("mode", ["rounds", "timed", "async"])
    def test_everybody_delivers_the_stream_in_order(self, mode: str) -> None:
        outcome = world(13).run(mode)
        assert outcome.stopped == "quiet"
        assert kept(outcome, STREAM)
        for node in outcome.correct:
            assert [entry.slot for entry in outcome.log if entry.node == node] == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        "scheduler", [Fifo(), SplitBrain(range(5)), QuorumStarver(), Divide([range(5), range(5, 10)])]
    )
    def test_no_schedule_stops_it_for_good(self, scheduler: Scheduler) -> None:
        outcome = world(10).run("async", scheduler=scheduler)
        assert outcome.stopped == "quiet"
        assert kept(outcome, STREAM)

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 2**32), st.integers(0, 3))
    def test_a_third_of_silent_or_mad_nodes_changes_nothing(self, seed: int, mad: int) -> None:
        faults: dict[NodeId, Fault] = {9 - place: Chaos() if place < mad else Crash() for place in range(3)}
        outcome = world(10, faults, seed).run("async", limit=300_000)
        assert kept(outcome, STREAM)

    def test_those_the_sender_left_out_pull_what_they_miss(self) -> None:
        for seed in range(5):
            outcome = world(10, {0: Silence(to=(4, 7), kinds=("send",))}, seed).run("async")
            assert kept(outcome, None)
            assert outcome.decisions[4] == dict(enumerate(STREAM, 1))
            assert outcome.meter.by_kind["links"][0] > 0
            assert outcome.meter.by_kind["body"][0] >= 2 * len(STREAM)

    def test_an_echo_goes_to_a_sample_and_only_the_summary_to_all(self) -> None:
        n, spread = 64, 1.0
        outcome = world(n, spread=spread).run("rounds", traced=True)
        by_round: dict[tuple[NodeId, float], int] = {}
        for entry in outcome.trace:
            if entry.msg[0] == "vouch":
                by_round[entry.src, entry.time] = by_round.get((entry.src, entry.time), 0) + 1
        assert set(by_round.values()) <= {5, n - 1, 5 + n - 1}  # ceil(ln 64) = 5
        summaries = sum(count >= n - 1 for count in by_round.values())
        assert summaries <= 2 * n


class Helpful(Forked):
    """Votes for the camp's chain, but towards one node only."""

    chosen: NodeId = 4

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> tuple[tuple[NodeId, Message], ...]:
        """Silent towards everyone else."""
        return tuple(super().on_send(ctx, to, msg)) if msg[0] == "send" or to == self.chosen else ()


class TestALyingSender:
    @pytest.mark.parametrize("n", [4, 7, 10, 13])
    def test_two_faces_and_all_their_friends_break_nothing(self, n: int) -> None:
        for seed in range(6):
            outcome = world(n, forked(n, (n - 1) // 3), seed).run("async", limit=300_000)
            assert outcome.stopped == "quiet"
            assert kept(outcome, None)

    def test_with_one_friend_too_many_two_chains_are_delivered(self) -> None:
        broken = [bool(world(10, forked(10, 4), seed).run("async", limit=100_000).conflicts) for seed in range(8)]
        assert any(broken)

    def test_a_quorum_completed_for_one_node_alone_is_no_delivery(self) -> None:
        """Liars echo to node 4 only: its echoes are a quorum, nobody else has one; they alone must not be enough."""
        for seed in range(6):
            faults: dict[NodeId, Fault] = {node: Helpful(frozenset({8, 9})) for node in range(3)}
            outcome = world(10, faults, seed).run("async", limit=300_000)
            first = outcome.nodes[4].chain[1]  # type: ignore[attr-defined]
            echoes = {node: outcome.nodes[node].votes["echo"].count(first) for node in range(3, 8)}  # type: ignore[attr-defined]
            assert {node for node, count in echoes.items() if count > (10 + 3) // 2} == {4}
            assert outcome.decided(1) == {}

    def test_a_node_that_saw_a_fork_echoes_no_further(self) -> None:
        node = Chained()
        ctx = Rounds(World(n=4, f=1, node=Chained)).ctxs[1]
        node.recv(ctx, 0, ("send", 1, b"one", GENESIS))
        assert len(node.chain) == 2
        node.recv(ctx, 0, ("send", 1, b"uno", GENESIS))
        node.recv(ctx, 0, ("send", 2, b"two", node.chain[1]))
        assert node.forked
        assert len(node.chain) == 2


class TestTheOptimisticPath:
    def test_it_is_faster_than_the_quorum_path_and_delivers_the_same(self) -> None:
        slow = world(64, spread=4.0).run("rounds", metered=False)
        fast = world(64, spread=4.0, optimistic=3).run("rounds", metered=False)
        assert kept(fast, STREAM)
        first = [min(entry.time for entry in one.log if entry.slot == 1) for one in (slow, fast)]
        mean = [sum(entry.time for entry in one.log) / len(one.log) for one in (slow, fast)]
        assert first[1] < first[0]
        assert mean[1] < mean[0]

    def test_a_dividing_schedule_makes_it_deliver_two_chains(self) -> None:
        """What the third version proves: decisions by samples do not survive full asynchrony with f < n/3."""
        violated = 0
        for seed in range(5):
            camps = [set(range(5, 16, 2)), set(range(6, 16, 2))]
            lying = world(16, forked(16, 5), seed, spread=4.0, optimistic=3)
            violated += bool(lying.run("async", scheduler=Divide(camps, seed), metered=False, limit=8_000).conflicts)
        assert violated >= 2

    def test_random_asynchrony_does_not(self) -> None:
        for seed in range(5):
            lying = world(16, forked(16, 5), seed, spread=4.0, optimistic=3)
            assert not lying.run("async", scheduler=Random(seed), metered=False, limit=8_000).conflicts


class TestTheDividingScheduler:
    def test_camps_hear_each_other_only_when_nothing_else_can_happen(self) -> None:
        divided = World(n=8, f=2, node=partial(Chained, summaries=False), inputs=[STREAM])
        camps = [range(4), range(4, 8)]
        outcome = divided.run("async", scheduler=Divide(camps), limit=3_000, traced=True)
        crossing = [entry for entry in outcome.trace if entry.src >= 0 and (entry.src < 4) != (entry.dst < 4)]
        assert crossing == []
        assert outcome.stopped == "limit"
        assert outcome.decided(1) == {}

    def test_every_message_arrives_in_the_end(self) -> None:
        outcome = world(10).run("async", scheduler=Divide([range(5), range(5, 10)]))
        assert outcome.stopped == "quiet"
        assert outcome.meter.deliveries == outcome.meter.messages
