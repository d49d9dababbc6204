"""What goes wrong with a node, without a word of it in the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols import faults
from assay.protocols.faults import Coalition, Crash, Delay, Eclipse, Equivocate, Lie, Omit, Silence, When, compose, flip
from assay.protocols.interface import Node
from assay.protocols.kernel import wire
from assay.protocols.kernel.world import World

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


class Talk(Node):
    """Says its number to all in seconds 0 to 4, and writes down what it hears."""

    def __init__(self):
        self.heard = []

    def start(self, ctx):
        for second in range(5):
            ctx.timer(second + 0.001, second)

    def timeout(self, ctx, tag):
        ctx.broadcast(("say", tag, ctx.id), to=ctx.peers)

    def recv(self, ctx, src, msg):
        self.heard.append((src, *msg[1:]))


def heard(fault, at=0, by=1, n=4, **more):
    nodes = World(n=n, node=Talk, faults={at: fault}, **more).run("timed").nodes
    return [(second, word) for src, second, word in nodes[by].heard if src == at]


def test_a_crashed_node_is_silent_from_then_on_and_back_when_it_recovers():
    assert [second for second, _ in heard(Crash(at=2.0))] == [0, 1]
    assert [second for second, _ in heard(Crash(at=1.0, recover=1.5))] == [0, 0, 1, 2, 3, 4]  # it starts over


def test_silence_concerns_only_those_named():
    assert heard(Silence(to=(1,))) == [] and len(heard(Silence(to=(1,)), by=2)) == 5
    assert heard(Silence(kinds=("other",))) != [] and heard(Silence()) == []


def test_an_equivocator_says_one_thing_to_some_and_another_to_the_rest():
    assert {word for _, word in heard(Equivocate(), by=1)} == {0}
    assert {word for _, word in heard(Equivocate(), by=3)} == {1}
    assert {word for _, word in heard(Equivocate(half=(1,)), by=1)} == {1}
    assert {word for _, word in heard(Equivocate(kinds=("other",)), by=3)} == {0}


def test_a_liar_says_the_same_wrong_thing_to_all():
    assert {word for by in (1, 2, 3) for _, word in heard(Lie(), by=by)} == {1}


def test_omission_loses_the_share_that_was_asked_for():
    class Many(Node):
        got = 0

        def start(self, ctx):
            if ctx.id == 0:
                for number in range(4000):
                    ctx.send(1, ("n", number))

        def recv(self, ctx, src, msg):
            self.got += 1

    lossy = World(n=2, node=Many, faults={0: Omit(send=0.3), 1: Omit(send=0.0, receive=0.5)}).run("timed").nodes[1]
    assert abs(lossy.got / 4000 - 0.35) < 0.03


def test_delayed_messages_come_late_but_all_of_them():
    late = World(n=2, node=Talk, faults={0: Delay(seconds=10.0)}).run("timed", traced=True)
    times = [entry.time for entry in late.trace if entry.src == 0]
    assert len(times) == 5 and min(times) > 10


def test_an_eclipsed_node_hears_only_its_friends():
    nodes = World(n=4, node=Talk, faults={1: Eclipse(friends=(3,))}).run("timed").nodes
    assert {src for src, *_ in nodes[1].heard} == {3}


def test_faults_can_be_limited_and_composed():
    late_liar = When(lambda ctx: ctx.now > 2, Lie())
    assert [word for _, word in heard(late_liar)] == [0, 0, 1, 1, 1]
    both = compose(Lie(), Crash(at=3.0))
    assert heard(both) == [(0, 1), (1, 1), (2, 1)]
    twice = compose(Delay(seconds=1.0), Delay(seconds=2.0))
    times = [e.time for e in World(n=2, node=Talk, faults={0: twice}).run("timed", traced=True).trace if e.src == 0]
    assert min(times) > 3.0 and len(times) == 5
    back = compose(Crash(at=1.0, recover=2.0), Silence(to=(2,)))
    assert heard(back, by=2) == [] and [second for second, _ in heard(back)] == [0, 0, 1, 2, 3, 4]


def test_in_rounds_a_coalition_sees_what_correct_nodes_send_before_it_acts():
    class Copycat(Coalition):
        def on_send(self, ctx, to, msg):
            return ()

        def on_peek(self, ctx, traffic):
            super().on_peek(ctx, traffic)
            for src, dst, msg in traffic:
                if dst == ctx.id:
                    ctx.send(src, ("bit", msg[1]))

    class Round(Node):
        every_round = True

        def __init__(self):
            self.said = self.echoed = None

        def tick(self, ctx, inbox):
            if ctx.now == 1:
                self.said = int(ctx.rng.integers(1000))
                ctx.broadcast(("bit", self.said))
            elif ctx.now == 2:
                self.echoed = [msg[1] for src, msg in inbox if src == 3]

    nodes = World(n=4, node=Round, faults={3: Copycat()}).run("rounds", limit=3).nodes
    assert all(node.echoed == [node.said] for node in nodes[:3])  # in the very round in which it was said


@given(st.lists(PLAIN, max_size=3))
def test_a_flipped_message_is_another_one_of_the_same_shape_that_travels(fields):
    msg = ("kind", *fields)
    other = flip(msg)
    assert len(other) == len(msg) and other[:-1] == msg[:-1]
    assert wire.decode(wire.encode(other)) == other
    if fields:
        assert other != msg


@pytest.mark.parametrize(
    ("text", "why"),
    [("warp", "no fault 'warp'"), ("crash:when=3", "no option 'when'"), ("crash:at=soon", "at cannot be 'soon'")],
)
def test_a_fault_that_makes_no_sense_is_refused_in_one_line(text, why):
    with pytest.raises(ValueError, match=why) as caught:
        faults.parse(text)
    assert "\n" not in str(caught.value)
