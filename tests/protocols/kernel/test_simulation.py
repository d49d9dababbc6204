"""The three ways to simulate a world."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Crash
from assay.protocols.interface import Node
from assay.protocols.judges.safety import agreement
from assay.protocols.kernel import net as networks
from assay.protocols.kernel.asynchronous import DelayVictim, Fifo, QuorumStarver, Random, Replay, SplitBrain
from assay.protocols.kernel.net import Constant, Exponential, Lognormal, Net, Poisson, Regions, Uniform
from assay.protocols.kernel.run import all_decided
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import Bracha
from tests.oracles.naive_kernel import NaiveTimed
from tests.protocols.kernel.nodes import Counter, Gossip, Memory, Signer, Soliloquist, TwoBroadcasts

LATENCIES = st.one_of(
    st.builds(Constant, st.floats(0, 0.01)),
    st.builds(Uniform, st.just(0.001), st.floats(0.001, 0.02)),
    st.builds(Exponential, st.floats(0.0001, 0.01)),
    st.builds(Lognormal, st.just(0.004), st.floats(0, 1)),
)
NETS = st.builds(
    Net, LATENCIES, drop=st.sampled_from([0.0, 0.0, 0.3]), duplicate=st.sampled_from([0.0, 0.2])
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 7), NETS, st.integers(0, 10**6), st.sampled_from(["complete", "ring", "star", "chain"]))
def test_time_goes_as_in_a_plain_scan_of_all_that_is_under_way(n, net, seed, topology):
    world = World(n=n, node=Gossip, net=net, seed=seed, topology=topology)
    fast = world.run("timed", traced=True)
    slow = NaiveTimed(world).run()
    assert [tuple(entry) for entry in fast.trace] == slow.delivered
    assert [tuple(entry) for entry in fast.log] == slow.log
    assert fast.meter.messages == slow.sent and fast.meter.deliveries == len(slow.delivered)


@pytest.mark.parametrize("mode", ["rounds", "timed", "async"])
def test_a_run_has_one_digest_in_every_process_and_for_every_hash_seed(mode):
    script = (
        "from assay.protocols.kernel.world import World\n"
        "from assay.protocols.kernel.net import parse\n"
        "from tests.protocols.kernel.nodes import Gossip\n"
        f"print(World(n=6, node=Gossip, net=parse('uniform:1:5'), seed=5).run({mode!r}).digest)"
    )

    def digest(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True,
            text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout.strip()

    own = World(n=6, node=Gossip, net=networks.parse("uniform:1:5"), seed=5).run(mode).digest
    assert {digest("0"), digest("77")} == {own}
    assert World(n=6, node=Gossip, net=networks.parse("uniform:1:5"), seed=6).run(mode).digest != own


def test_rounds_bring_every_message_of_the_last_one_sorted_by_sender():
    outcome = World(n=3, node=Counter).run("rounds", limit=6)
    for node in outcome.nodes:
        for now, inbox in node.seen[:5]:
            assert inbox == [(src, int(now) - 1) for src in range(3)]
    assert outcome.meter.messages == 3 * 2 * 5 and outcome.decisions[0] == {0: 5}


def test_rounds_in_which_nothing_happens_are_jumped_over():
    class Sleeper(Node):
        def start(self, ctx):
            ctx.timer(3_000_000, "late")

        def timeout(self, ctx, tag):
            ctx.decide(ctx.now)

    outcome = World(n=2, node=Sleeper).run("rounds", limit=10**7)
    assert outcome.decided() == {0: 3_000_000.0, 1: 3_000_000.0} and outcome.stopped == "quiet"


def test_delays_in_rounds_are_whole_and_a_link_delivers_only_so_many_a_round():
    class Burst(Node):
        def __init__(self):
            self.got = []

        def start(self, ctx):
            if ctx.id == 0:
                for number in range(6):
                    ctx.send(1, ("n", number))

        def recv(self, ctx, src, msg):
            self.got.append((ctx.now, msg[1]))

    slow = World(n=2, node=Burst, net=Net(Constant(3), per_round=2)).run("rounds")
    assert slow.nodes[1].got == [(3.0, 0), (3.0, 1), (4.0, 2), (4.0, 3), (5.0, 4), (5.0, 5)]
    drawn = World(n=2, node=Burst, net=Net(Poisson(2.0, 1, 4)), seed=1).run("rounds")
    assert sorted(number for _, number in drawn.nodes[1].got) == list(range(6))
    assert all(1 <= now <= 4 and now == int(now) for now, _ in drawn.nodes[1].got)
    shuffled = World(n=2, node=Burst, net=Net(Constant(2), reorder=1.0), seed=3).run("rounds").nodes[1].got
    assert [n for _, n in shuffled] != list(range(6)) and sorted(n for _, n in shuffled) == list(range(6))


def test_losses_and_doubles_have_the_probabilities_that_were_asked_for():
    class Stream(Node):
        def start(self, ctx):
            if ctx.id == 0:
                for number in range(20_000):
                    ctx.send(1, ("n", number))

    outcome = World(n=2, node=Stream, net=Net(drop=0.2, duplicate=0.1)).run("timed")
    assert abs(outcome.meter.deliveries / 20_000 - 0.8 * 1.1) < 0.01


def test_a_rate_makes_messages_of_one_link_wait_and_fifo_keeps_their_order():
    class Pair(Node):
        def __init__(self):
            self.got = []

        def start(self, ctx):
            if ctx.id == 0:
                for number in range(50):
                    ctx.send(1, ("n", number, b"x" * 1000))

        def recv(self, ctx, src, msg):
            self.got.append((ctx.now, msg[1]))

    narrow = World(n=2, node=Pair, net=Net(Constant(0.001), bandwidth=1e6)).run("timed").nodes[1].got
    gaps = [b[0] - a[0] for a, b in pairwise(narrow)]
    assert all(0.00101 < gap < 0.00104 for gap in gaps)  # 1,000 bytes and a header at a megabyte a second
    ordered = World(n=2, node=Pair, net=Net(Exponential(0.01), fifo=True)).run("timed").nodes[1].got
    assert [number for _, number in ordered] == list(range(50))


def test_who_comes_back_knows_nothing_and_old_timers_do_not_ring():
    class Alarm(Node):
        def __init__(self):
            self.rang = []

        def start(self, ctx):
            ctx.timer(2.0, f"set at {ctx.now:g}")

        def timeout(self, ctx, tag):
            ctx.decide(tag, slot=ctx.now)

    churn = [(1.0, 0, False), (1.5, 0, True), (5.0, 1, True)]
    for mode in ("timed", "rounds"):
        outcome = World(n=3, node=Alarm, churn=churn).run(mode, limit=20)
        assert list(outcome.decisions[0].values()) == [f"set at {1.5 if mode == 'timed' else 2:g}"]
        assert list(outcome.decisions[1].values()) == ["set at 5"] and list(outcome.decisions[2].values()) == [
            "set at 0"
        ]


def test_a_message_to_somebody_who_is_down_is_lost():
    class Shout(Node):
        def start(self, ctx):
            ctx.timer(1.0, "now")

        def timeout(self, ctx, tag):
            ctx.broadcast(("hey",))

    outcome = World(n=3, node=Shout, churn=[(0.5, 2, False)]).run("timed")
    assert outcome.meter.messages == 4 and outcome.meter.dropped == 2 and outcome.meter.deliveries == 2


@pytest.mark.parametrize("amnesia", [False, True])
def test_a_crash_keeps_what_is_on_disk_unless_that_is_lost_too(amnesia):
    fault = Crash(at=2.0, recover=6.0, amnesia=amnesia)
    node = World(n=2, node=Memory, faults={1: fault}).run("timed").nodes[1]
    assert node.kept == (4 if amnesia else 2 + 4) and node.lost == 4


SCHEDULERS = {
    "fifo": lambda seed: Fifo(),
    "random": Random,
    "victim": lambda seed: DelayVictim({2}, seed),
    "split": lambda seed: SplitBrain({0, 1}, seed),
    "starver": QuorumStarver,
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_scheduler_keeps_correct_nodes_from_delivering_one_value(name):
    for seed in range(20):
        outcome = World(n=4, f=1, node=Bracha, inputs=["v"]).run("async", scheduler=SCHEDULERS[name](seed))
        assert outcome.decided() == dict.fromkeys(range(4), "v") and outcome.stopped == "quiet"


def test_a_run_is_replayed_by_what_was_delivered():
    world = World(n=5, node=Gossip, seed=3)
    first = world.run("async", scheduler=Random(9), traced=True)
    again = world.run("async", scheduler=Replay([(e.src, e.dst, e.msg) for e in first.trace]), traced=True)
    assert again.trace == first.trace and again.log == first.log


def test_sub_protocols_do_not_hear_each_other():
    for mode in ("rounds", "timed", "async"):
        outcome = World(n=4, f=1, node=TwoBroadcasts, inputs=["a", "b"]).run(mode)
        assert outcome.decided() == dict.fromkeys(range(4), ("a", "b"))


def test_nobody_signs_for_another():
    outcome = World(n=4, node=Signer).run("timed", until=all_decided)
    assert outcome.decided() == dict.fromkeys(range(4), (0, 1, 2, 3))
    assert outcome.meter.signatures == 4 and outcome.meter.checks >= 16


def test_asynchronous_time_is_the_longest_chain_of_messages():
    class Chain(Node):
        def start(self, ctx):
            if ctx.id == 0:
                ctx.send(1, ("go", 1))

        def recv(self, ctx, src, msg):
            if ctx.id + 1 < ctx.n:
                ctx.send(ctx.id + 1, ("go", 1))

    for mode in ("timed", "async"):
        assert World(n=9, node=Chain).run(mode).meter.depth == 8


def test_what_would_not_survive_the_wire_is_refused_in_a_simulation_too():
    class Sloppy(Node):
        def start(self, ctx):
            ctx.broadcast(("list", [1, 2]))

    with pytest.raises(ValueError, match="does not survive the wire"):
        World(n=2, node=Sloppy).run("timed")


@pytest.mark.parametrize("worse", [[1], {1}, {"a": 1}, (1, (2, [3])), 1 << 80, math.nan, (2, (-math.nan,))])
def test_a_later_message_of_a_kind_is_looked_at_as_the_first_one_is(worse):
    class Later(Node):
        def start(self, ctx):
            ctx.broadcast(("kind", 1))
            ctx.broadcast(("kind", worse))

    with pytest.raises(ValueError, match="does not survive the wire"):
        World(n=2, node=Later).run("timed")


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1.7e308, b"\xcb\x7f\xf8", "\u02ff", -1e308])
def test_what_only_looks_like_nan_on_the_wire_travels(value):
    class Extreme(Node):
        def start(self, ctx):
            ctx.broadcast(("kind", value))

        def recv(self, ctx, src, msg):
            ctx.decide(msg[1])

    assert World(n=2, node=Extreme).run("timed").decided() == {0: value, 1: value}


@pytest.mark.parametrize("mode", ["timed", "async"])
def test_a_node_that_answers_itself_for_ever_is_stopped(mode):
    with pytest.raises(ValueError, match="node 0 sends itself one message after the other"):
        World(n=2, node=Soliloquist).run(mode)


def test_nan_does_not_contradict_nan_but_a_number_does():
    class Mean(Node):
        def start(self, ctx):
            ctx.decide((1, ctx.input))

    world = World(n=3, node=Mean, inputs=[float("nan"), float("nan"), 2.0])
    outcome = world.run("timed")
    assert [entry.node for entry in outcome.conflicts] == [2]
    assert agreement(world, outcome) == "nodes 0 and 2 decided (1, nan) and (1, 2.0)"


def test_decisions_that_cannot_be_compared_are_told():
    class Arrays(Node):
        def start(self, ctx):
            ctx.decide(np.arange(3))

    with pytest.raises(ValueError, match=r"decisions cannot be compared: .* plain values expected"):
        _ = World(n=2, node=Arrays).run("timed").conflicts


@pytest.mark.parametrize(
    "text", ["constant:nan", "constant:-1", "uniform:5:1", "constant,per_round=0", "constant,bandwidth=nan"]
)
def test_a_network_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        networks.parse(text)


def test_nobody_sends_to_a_node_that_is_not_there_or_not_linked():
    class Far(Node):
        def start(self, ctx):
            ctx.send(self.to, ("hi",))

    for to, topology, why in ((9, "complete", "nodes 0 to 3 only"), (2, "chain", "no neighbour")):
        far = type("Far", (Far,), {"to": to})
        for mode in ("rounds", "timed", "async"):
            with pytest.raises(ValueError, match=why):
                World(n=4, node=far, topology=topology).run(mode)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("warp", "no latency model 'warp'"),
        ("uniform:a:b", "could not convert"),
        ("constant:1,drop=2", "drop is 2.0"),
        ("constant:1,speed=2", "no option 'speed'"),
        ("constant:1:2:3", "positional"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused_in_one_line(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        networks.parse(text)
    assert "\n" not in str(caught.value)


def test_messages_and_timers_of_one_moment_come_in_the_order_in_which_they_were_set():
    class Mixed(Node):
        def __init__(self):
            self.seen = []

        def start(self, ctx):
            if ctx.id == 0:
                for number in range(40):
                    if number % 3:
                        ctx.send(1, ("message", number))
            else:
                for number in range(40, 60):
                    ctx.timer(0.001 if number % 2 else 0.002, number)

        def recv(self, ctx, src, msg):
            self.seen.append((ctx.now, msg[1]))
            if msg[1] == 1:
                ctx.timer(0.001, 60)  # set after all of the second millisecond's timers

        def timeout(self, ctx, tag):
            self.seen.append((ctx.now, tag))

    seen = World(n=2, node=Mixed, net=Net(Constant(0.001))).run("timed").nodes[1].seen
    first = [number for number in range(40) if number % 3] + list(range(41, 60, 2))
    assert seen == [(0.001, number) for number in first] + [(0.002, number) for number in (*range(40, 60, 2), 60)]


@pytest.mark.parametrize(
    "latency", [Exponential(0.01), Regions(np.array([[0.01, 0.02], [0.03, 0.04]]), np.arange(8) % 2)]
)
def test_a_senders_latencies_do_not_depend_on_who_sends_in_between(latency):
    alone, mixed = networks.latencies(Net(latency), 3), networks.latencies(Net(latency), 3)
    wanted = [alone(2, number % 8) for number in range(2500)]  # more than are drawn at once
    found = []
    for number in range(2500):
        for other in range(number % 3):
            mixed(5 + other, number % 8)
        found.append(mixed(2, number % 8))
    assert found == wanted and len(set(found)) > 1000
