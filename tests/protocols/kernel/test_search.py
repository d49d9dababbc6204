"""The search on protocols whose correctness depends on what may go wrong: links in order, crashes, no lies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.judges import safety
from assay.protocols.kernel.asynchronous import Asynchronous, Partitioned, Random
from assay.protocols.kernel.net import Net
from assay.protocols.kernel.trace import Searched, replay
from assay.protocols.kernel.world import World
from assay.workloads.histories import Operation
from tests.protocols.kernel.classics import Forgetful, Hasty, Lamport, Paxos, Stubborn


def searched(
    node: type[Node], judge: safety.Judge, faults: str = "crash", faulty: int = 0, *, fifo: bool = False,
    schedules: int = 150, inputs: list[str] | None = None,
) -> Searched:  # fmt: skip
    def world(seed: int) -> World:
        return World(n=3, f=1, node=node, inputs=inputs, net=Net(fifo=fifo), seed=seed)

    return safety.Hunt(safety.own_scenario(world, judge, faults=faults), faulty, schedules).run()


mutex = partial(searched, judge=safety.mutual_exclusion)
consensus = partial(searched, judge=safety.agreement, inputs=["a", "b", "c"])


class TestOrder:
    def test_lamport_s_mutual_exclusion_needs_links_that_keep_the_order(self) -> None:
        assert mutex(Lamport, fifo=True).trace is None
        overtaken = mutex(Lamport)
        assert overtaken.trace is not None
        assert "both inside" in overtaken.trace.why

    def test_a_hasty_twin_is_found_though_links_keep_the_order(self) -> None:
        assert mutex(Hasty, fifo=True).trace is not None

    def test_a_shrunk_run_keeps_the_order_too(self) -> None:
        found = mutex(Hasty, fifo=True)
        assert found.trace is not None
        world = World(n=3, f=1, node=Hasty, net=Net(fifo=True), seed=found.seed)
        again = replay(world, found.trace.events)
        assert safety.mutual_exclusion(world, again) == found.trace.why
        assert len(again.trace) == len(found.trace.events)

    def test_nothing_overtakes_on_a_link_whatever_the_scheduler_picks(self) -> None:
        class Counting(Node):
            def start(self, ctx: Ctx) -> None:
                for number in range(20):
                    ctx.broadcast(("n", number), to=ctx.peers)

            def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
                if src < 3 and msg[1] < 5:
                    ctx.send(src, ("n", msg[1] + 100))

        for seed in range(5):
            world = World(n=3, node=Counting, net=Net(fifo=True), seed=seed)
            outcome = world.run("async", traced=True)
            assert len(outcome.trace) == 3 * 2 * 25
            for link in ((0, 1), (2, 0), (1, 2)):
                numbers = [msg[1] for _, src, dst, msg in outcome.trace if (src, dst) == link]
                first = [number for number in numbers if number < 100]
                assert first == sorted(first)
            free = replace(world, net=Net()).run("async", traced=True)
            sent = [msg[1] for _, src, dst, msg in free.trace if (src, dst) == (0, 1)]
            assert sent != sorted(sent)

    def test_a_saved_state_knows_what_waits_behind(self) -> None:
        run = Asynchronous(World(n=2, node=Lamport, net=Net(fifo=True)))
        run.begin()
        kept = run.save()
        run.deliver(0)
        run.load(kept)
        assert run.behind == {(0, 1): run.behind[0, 1], (1, 0): run.behind[1, 0]}  # type: ignore[index]


class TestFaults:
    @pytest.mark.parametrize("faults", ["crash", "recover"])
    def test_paxos_bears_crashes(self, faults: str) -> None:
        found = consensus(Paxos, faults=faults, faulty=1)
        assert found.trace is None
        assert found.decided > 100

    def test_paxos_does_not_bear_lies(self) -> None:
        assert consensus(Paxos, faults="byzantine", faulty=1).trace is not None

    def test_a_stubborn_twin_is_found_without_any_fault(self) -> None:
        found = consensus(Stubborn)
        assert found.trace is not None
        assert "decided" in found.trace.why

    def test_a_twin_that_forgets_its_promises_is_found_only_if_nodes_reboot(self) -> None:
        assert consensus(Forgetful, faults="crash", faulty=1).trace is None
        assert consensus(Forgetful, faults="recover", faulty=1, schedules=4000).trace is not None

    def test_a_halt_may_cut_a_broadcast(self) -> None:
        outcome = World(n=4, node=Paxos, inputs=["a"], faults={0: safety.Halt(after=2)}).run("async", traced=True)
        assert sum(src == 0 for _, src, _, _ in outcome.trace) == 2
        assert not any(outcome.decisions[node] for node in range(4))


class TestPartition:
    def test_groups_do_not_hear_each_other_until_it_ends(self) -> None:
        world = World(n=4, node=Paxos, inputs=["a", "b", "c", "d"])
        for stop in (10, 1_000_000):
            split = Partitioned(Random(1), [[0, 1], [2, 3]], start=0, stop=stop)
            outcome = world.run("async", scheduler=split, traced=True)
            early = [(src // 2, dst // 2) for time, src, dst, _ in outcome.trace if time < min(stop, 10) and src >= 0]
            assert all(one == other for one, other in early)
            assert any(src >= 0 and src // 2 != dst // 2 for _, src, dst, _ in outcome.trace)

    def test_one_that_never_ends_leaves_no_majority(self) -> None:
        world = World(n=4, node=Paxos, inputs=["a", "b", "c", "d"])
        outcome = world.run("async", scheduler=Partitioned(Random(1), [[0, 1], [2, 3]]), traced=True)
        assert outcome.stopped == "scheduler"
        assert not outcome.log
        assert all(src < 0 or src // 2 == dst // 2 for _, src, dst, _ in outcome.trace)


class TestMutualExclusion:
    def judged(self, *operations: Operation) -> str | None:
        world = World(n=3, node=Lamport)
        outcome = world.run("async", limit=0)
        outcome.operations[:] = operations
        return safety.mutual_exclusion(world, outcome)

    def act(self, process: int, f: str, invoke: float, complete: float, status: str = "ok") -> Operation:
        return Operation(process, f, "lock", None, None, invoke, complete, status)

    def test_two_inside_at_once_are_named(self) -> None:
        first = self.act(0, "acquire", 0, 1), self.act(0, "release", 5, 6)
        assert self.judged(*first, self.act(1, "acquire", 2, 3)) == "nodes 0 and 1 were both inside at 3"
        assert self.judged(*first, self.act(1, "acquire", 2, 3), self.act(1, "release", 3, 3)) is not None

    def test_one_after_the_other_is_fine(self) -> None:
        first = self.act(0, "acquire", 0, 1), self.act(0, "release", 5, 9)
        assert self.judged(*first, self.act(1, "acquire", 2, 5)) is None
        assert self.judged(*first, self.act(1, "acquire", 2, 3, "fail")) is None
        assert self.judged(*first, self.act(0, "acquire", 9, 10), self.act(1, "acquire", 2, 6)) is not None
