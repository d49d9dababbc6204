"""Twins and scripts: Byzantine nodes made of correct code, or of nothing but lines."""

from __future__ import annotations

from assay.protocols.judges.safety import agreement, conspire, signed_world
from assay.protocols.kernel import lockstep
from assay.protocols.kernel.trace import byzantine
from assay.protocols.kernel.twins import twins
from assay.protocols.kernel.world import World
from assay.protocols.nodes.bracha import Bracha


def test_each_side_hears_its_own_copy() -> None:
    world = twins(World(n=4, f=1, node=Bracha), {0: ("a", "b")}, half={3})
    outcome = world.run("async", traced=True)
    heard = {(dst, msg[1]) for _, src, dst, msg in outcome.trace if src == 0 and msg[0] == "send"}
    assert heard == {(1, "a"), (2, "a"), (3, "b")}


def test_twins_are_byzantine_and_their_decisions_do_not_count() -> None:
    world = twins(World(n=4, f=1, node=Bracha), {0: ("a", "a")}, half={3})
    outcome = world.run("async")
    assert byzantine(world) == {0} and outcome.decided() == {1: "a", 2: "a", 3: "a"} and outcome.decisions[0] == {}


def test_copies_on_one_side_work_together_across_nodes() -> None:
    world = twins(World(n=4, f=1, node=Bracha), {0: ("a", "b"), 1: (None, None)}, half={3})
    assert world.run("async").decided() == {2: "a", 3: "b"}


def test_twins_run_in_timed_and_rounds_too() -> None:
    world = twins(World(n=4, f=1, node=Bracha), {0: ("a", "b")}, half={2, 3})
    assert world.run("timed").decided() == world.run("rounds").decided() == {1: "b", 2: "b", 3: "b"}


def test_reciting_all_lies_repeats_the_run() -> None:
    for seed in range(20):
        world = conspire(signed_world(seed), 2, seed)
        outcome = world.run("rounds", traced=True)
        assert lockstep.recite(world, lockstep.lies(world, outcome)).decided() == outcome.decided()


def test_signed_broadcast_bears_f_conspirators_and_breaks_with_one_more() -> None:
    def search(n: int, f: int, faulty: int, runs: int) -> lockstep.Searched:
        return lockstep.search(lambda seed: conspire(signed_world(seed, n, f), faulty, seed), agreement, runs)

    assert search(4, 1, 1, 300).said is None
    assert search(5, 2, 2, 300).said is None
    broken = search(5, 2, 3, 1000)
    assert broken.said is not None and "round 2" in str(broken)  # the last moment: nobody can pass it on any more
    for place in range(len(broken.said)):
        world = conspire(signed_world(broken.seed, 5, 2), 3, broken.seed)
        fewer = broken.said[:place] + broken.said[place + 1 :]
        assert agreement(world, lockstep.recite(world, fewer)) is None
