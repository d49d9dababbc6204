"""The store with knobs: what each promise gives, what each fault takes, and what a hostile peer may say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.judges import causal, linearizable, sequential, specifications
from assay.protocols.kernel import net as nets
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.lcc import sites
from assay.protocols.nodes.stores import (
    PRESETS,
    Bridge,
    Burst,
    Design,
    Forget,
    Replica,
    Session,
    Split,
    Write,
    script,
)  # fmt: skip

SLOW = nets.parse("lognormal:0.01:1.0")
NEAR = sites([0, 1, 2] * 3)  # sessions sit beside their copies and see what happens between two messages of these


def run(design: Design, seed: int = 0, *, net: nets.Net = SLOW, limit: float = 30.0, **more: Any) -> Outcome:
    replicas = [Replica(design, skew=skew) for skew in (0.0, 0.05, -0.05)]
    sessions = [Session(who % 3, script(seed, who, 20, keys=2), think=0.01, settle=1.0) for who in range(6)]
    return World(3, replicas, clients=sessions, net=net, seed=seed, **more).run("timed", limit=limit, metered=False)


def last_reads(outcome: Outcome) -> set[tuple[Any, Any]]:
    """What the sessions read when all was quiet."""
    found = set()
    for process in {operation.process for operation in outcome.operations}:
        own = [operation for operation in outcome.operations if operation.process == process]
        found |= {(operation.key, operation.result) for operation in own[-2:]}
    return found


class TestThePromises:
    @pytest.mark.parametrize("seed", range(4))
    def test_ordered_reads_are_linearizable(self, seed: int) -> None:
        history = run(PRESETS["linearizable"], seed).operations
        assert linearizable.verdict(history, specifications.guess(history)) == "holds"

    @pytest.mark.parametrize("seed", range(4))
    def test_a_leader_with_local_reads_is_sequential(self, seed: int) -> None:
        assert sequential.judge(run(PRESETS["sequential"], seed).operations, prefix=False).holds

    @pytest.mark.parametrize("seed", range(4))
    def test_waiting_for_causes_is_causal_memory_and_with_lamport_clocks_convergent(self, seed: int) -> None:
        assert causal.verdict(run(PRESETS["causal"], seed).operations, "causal-memory") == "holds"
        assert causal.verdict(run(PRESETS["causal+"], seed).operations, "causal-convergent") == "holds"

    def test_waiting_for_the_writer_alone_is_pram_and_not_causal(self) -> None:
        histories = [run(PRESETS["pram"], seed, net=NEAR).operations for seed in range(8)]
        assert all(causal.verdict(history, "pram") == "holds" for history in histories)
        assert any(causal.verdict(history, "causal") == "violated" for history in histories)

    @pytest.mark.parametrize("order", ["wall", "lamport", "leader"])
    def test_copies_that_order_alike_end_alike(self, order: str) -> None:
        assert len(last_reads(run(Design("causes", order)))) == 2  # one value for each of two keys

    def test_copies_that_order_by_arrival_may_end_apart(self) -> None:
        assert any(len(last_reads(run(Design("causes"), seed))) > 2 for seed in range(6))

    def test_wrong_clocks_invert_causality_and_logical_ones_do_not(self) -> None:
        walls = [run(Design("causes", "wall"), seed, net=NEAR).operations for seed in range(4)]
        clocks = [run(Design("causes", "lamport"), seed, net=NEAR).operations for seed in range(4)]
        assert any(causal.verdict(history, "causal") == "violated" for history in walls)
        assert all(causal.verdict(history, "causal") == "holds" for history in clocks)

    def test_every_copy_shows_a_beginning_of_the_leaders_sequence(self) -> None:
        assert not run(PRESETS["sequential"]).conflicts
        assert run(PRESETS["causal+"]).conflicts

    def test_a_run_is_the_same_each_time(self) -> None:
        assert run(PRESETS["causal+"]).operations == run(PRESETS["causal+"]).operations


class TestWhatReadsReturn:
    def replica(self, returns: str, *writes: Write) -> Replica:
        world = World(2, [Replica(Design(returns=returns))] * 2)
        from assay.protocols.kernel.timed import Timed

        going = Timed(world)
        node = going.nodes[0]
        assert isinstance(node, Replica)
        node.start(going.ctxs[0])
        for write in writes:
            node.recv(
                going.ctxs[0], 1, ("put", write.id, write.key, write.value, write.deps, write.lamport, write.wall)
            )
        return node

    FIRST = Write((1, 1), "x", 10, (0, 0), 1, 1.0)
    SECOND = Write((1, 2), "x", 20, (0, 1), 2, 2.0)  # had seen the first
    BESIDE = Write((0, 1), "x", 15, (0, 1), 2, 1.5)  # had seen the first, not the second
    OTHER = Write((1, 3), "y", 7, (0, 2), 3, 3.0)

    def test_the_last(self) -> None:
        assert self.replica("last", self.FIRST, self.SECOND).answer("x") == 20
        assert self.replica("last").answer("x") is None

    def test_all_that_nobody_has_replaced(self) -> None:
        assert self.replica("multi", self.FIRST, self.SECOND, self.BESIDE).answer("x") == (15, 20)
        assert self.replica("multi", self.SECOND, self.FIRST).answer("x") == (20,)  # the replaced one comes late

    def test_all_that_was_ever_written(self) -> None:
        assert self.replica("merge", self.SECOND, self.FIRST, self.OTHER).answer("x") == (10, 20)

    def test_every_key_at_once(self) -> None:
        assert self.replica("snapshot", self.FIRST, self.OTHER).answer("x") == (("x", 10), ("y", 7))


class TestFaults:
    def test_across_a_partition_nothing_passes_until_it_ends(self) -> None:
        cut = {node: Split((2,), 0.0, 0.5) for node in range(3)}
        replicas = [Replica(Design(), repair=0.05) for _ in range(3)]
        sessions = [Session(0, (("write", "x"),)), Session(2, (("read", "x"),) * 40, think=0.05)]
        outcome = World(3, replicas, clients=sessions, faults=cut).run("timed", limit=3.0)
        reads = [operation for operation in outcome.operations if operation.f == "read"]
        assert {read.result for read in reads if read.complete < 0.5} == {None}
        assert reads[-1].result is not None

    def test_lost_writes_come_back_by_repair_and_else_never(self) -> None:
        lossy = {node: Burst(1.0) for node in range(2)}
        for repair, shown in ((0.0, 0), (0.05, 1)):
            replicas = [Replica(Design(), repair=repair) for _ in range(2)]
            session = Session(0, (("write", "x"),))
            after = World(2, replicas, clients=[session], faults=lossy).run("timed", limit=0.5)
            assert not after.nodes[1].shown  # type: ignore[attr-defined] # what repair brings is a put, and lost too
            healed = {0: Burst(1.0, until=0.1)}
            after = World(2, replicas, clients=[session], faults=healed).run("timed", limit=2.0)
            assert len(after.nodes[1].shown) == shown  # type: ignore[attr-defined]

    def test_who_waits_for_causes_shows_nothing_whose_causes_were_forgotten(self) -> None:
        forgetful = {node: Forget() for node in range(3)}
        patient = run(Design("causes"), faults=forgetful)
        hasty = run(Design("nothing"), faults=forgetful)
        assert {write.id[0] for write in patient.nodes[1].shown} == {1}  # type: ignore[attr-defined]
        assert {write.id[0] for write in hasty.nodes[1].shown} == {0, 1, 2}  # type: ignore[attr-defined]

    def test_a_deadline_answers_what_would_else_wait(self) -> None:
        for deadline, answered in ((math.inf, 0), (0.2, 20)):
            replicas = [Replica(Design("causes", "leader", deadline)) for _ in range(3)]
            session = Session(1, (("write", "x"),) * 20)
            crashed = {0: Split((0,))}
            outcome = World(3, replicas, clients=[session], faults=crashed | {1: Split((0,))}).run("timed", limit=10.0)
            done = [operation for operation in outcome.operations if operation.status == "ok"]
            assert len(done) == answered
            assert all(0.2 <= operation.complete - operation.invoke < 0.25 for operation in done)


class TestBridges:
    def test_everything_arrives_in_order_at_the_place_it_came_from(self) -> None:
        groups = [(0, 1, 2), (3, 4, 5)]
        replicas: list[Node] = [Replica(PRESETS["causal"], members=group) for group in groups for _ in group]
        sessions = [Session(home, script(1, home, 10, keys=2, writes=1.0), members=3) for home in groups[0]]
        world = World(6, replicas, clients=[*sessions, Bridge(2, groups[1])], net=SLOW)
        nodes = world.run("timed", limit=5.0).nodes
        source, target = nodes[2].shown, nodes[4].shown  # type: ignore[attr-defined]
        assert sorted((w.id[0], w.value) for w in source) == sorted((w.id[0], w.value) for w in target)
        assert len(source) == 30


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
kinds = st.sampled_from(["ask", "put", "forward", "log", "have", "tail", "answer", "next"])


class TestHostilePeers:
    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 5), kinds, st.lists(plain, max_size=7)), max_size=6), st.booleans())
    def test_nothing_that_a_peer_says_makes_a_copy_fall_over(self, said: list[Any], led: bool) -> None:
        from assay.protocols.kernel.timed import Timed

        design = PRESETS["sequential" if led else "causal+"]
        world = World(3, [Replica(design) for _ in range(3)], clients=[Session(0, (("read", "x"),))] * 3)
        going = Timed(world)
        for node, ctx in zip(going.nodes, going.ctxs, strict=True):
            node.start(ctx)
        for src, kind, rest in said:
            message: Message = (kind, *rest)
            for target in (0, 1, 3):
                going.nodes[target].recv(going.ctxs[target], src, message)

    def test_a_design_that_is_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="order 'luck'; one of arrival"):
            Design(order="luck")
        with pytest.raises(ValueError, match="wait 'all'; one of nothing"):
            Design(wait="all")
        with pytest.raises(ValueError, match="reads can be ordered only where a leader orders"):
            Design(reads_ordered=True)


def test_an_answer_with_a_malformed_clock_is_an_answer_without_one() -> None:
    class Garbled(Node):
        def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
            ctx.send(src, ("answer", msg[1], None, ("many",)))

    outcome = World(1, [Garbled()], clients=[Session(0, (("read", "x"),))]).run("timed", limit=1.0)
    assert [operation.status for operation in outcome.operations] == ["ok"]
