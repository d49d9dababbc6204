"""Two-faced nodes: Byzantine, and made of nothing but correct code."""

from __future__ import annotations

from assay.protocols.faults.two_faced import twins
from assay.protocols.kernel.trace import byzantine
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import Bracha


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
