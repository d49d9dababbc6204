"""The same nodes over real sockets, in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols import tcp
from assay.protocols.faults import Crash, Equivocate
from assay.protocols.kernel import wire
from assay.protocols.kernel.net import Constant, Net
from assay.protocols.kernel.run import all_decided
from assay.protocols.kernel.world import World
from assay.protocols.nodes.bracha import Bracha
from assay.protocols.tcp import conduct
from assay.protocols.tcp.links import Incoming, greeting
from tests.protocols.kernel.nodes import Broken, Memory, Signer, TwoBroadcasts

TOKEN = b"0123456789abcdef"


def test_sixteen_processes_decide_count_and_send_what_the_simulation_does():
    world = World(n=16, f=5, node=Bracha, inputs=["hello"])
    simulated = world.run("timed", until=None)
    live = world.run("live", until=all_decided)
    assert live.decided() == simulated.decided() == dict.fromkeys(range(16), "hello")
    full = tcp.run(World(n=6, f=1, node=Bracha, inputs=["hello"]), processes=3)  # to the last message
    again = World(n=6, f=1, node=Bracha, inputs=["hello"]).run("timed")
    assert (full.meter.messages, full.meter.bits) == (again.meter.messages, again.meter.bits)
    assert full.meter.by_kind == again.meter.by_kind and full.meter.by_node == again.meter.by_node
    assert full.stopped == again.stopped == "quiet"


def test_a_third_killed_for_good_is_what_the_crash_fault_says():
    world = World(n=16, f=5, node=Bracha, inputs=["hello"])
    victims = range(11, 16)
    killed = tcp.run(world, until=all_decided, kill=dict.fromkeys(victims, 0.0))
    crashed = World(n=16, f=5, node=Bracha, inputs=["hello"], faults={v: Crash() for v in victims}).run("timed")
    assert killed.correct == crashed.correct == tuple(range(11))
    assert killed.decided() == crashed.decided() == dict.fromkeys(range(11), "hello")


def test_one_more_than_a_third_killed_and_nobody_delivers():
    world = World(n=4, f=1, node=Bracha, inputs=["hello"], net=Net(Constant(0.2)))
    killed = tcp.run(world, until=all_decided, kill={2: 0.0, 3: 0.0}, limit=5.0)
    crashed = World(n=4, f=1, node=Bracha, inputs=["hello"], faults={2: Crash(), 3: Crash()}).run("timed")
    assert killed.decided() == crashed.decided() == {} and killed.stopped == crashed.stopped == "quiet"


def test_faults_and_networks_are_the_same_objects_as_in_simulation():
    faults = {0: Equivocate(kinds=("send",), half=(2,))}
    world = World(n=4, f=1, node=Bracha, inputs=["a"], faults=faults, net=Net(Constant(0.05)))
    live, simulated = tcp.run(world, until=all_decided, processes=2), world.run("timed")
    assert live.decided() == simulated.decided() == {1: "a", 2: "a", 3: "a"}
    assert live.time > 0.14  # three messages one after the other


def test_sub_protocols_and_real_signatures_travel():
    pytest.importorskip("cryptography")
    assert tcp.run(
        World(n=4, f=1, node=TwoBroadcasts, inputs=["a", "b"]), until=all_decided, processes=2
    ).decided() == (dict.fromkeys(range(4), ("a", "b")))
    assert tcp.run(World(n=3, node=Signer), until=all_decided, processes=3).decided() == (
        dict.fromkeys(range(3), (0, 1, 2))
    )


def test_a_node_that_fails_ends_the_run_and_is_named():
    with pytest.raises(tcp.Death, match=r"process \d failed: KeyError: 'what now'"):
        tcp.run(World(n=3, node=Broken), processes=3)


def test_a_world_that_cannot_run_over_sockets_is_refused():
    with pytest.raises(ValueError, match="at the top level of a module"):
        tcp.run(World(n=2, node=lambda node: Memory()))
    with pytest.raises(ValueError, match="churn is for simulated runs"):
        tcp.run(World(n=2, node=Memory, churn=[(1.0, 0, False)]))


def test_strangers_are_cut_off_and_the_run_goes_on(monkeypatch):
    """While it runs, somebody sends rubbish, an enormous frame, another's name, and nothing at all."""
    ports: list[int] = []
    expect = conduct.Conductor._expect

    def spy(self, index, what, deadline):
        told = expect(self, index, what, deadline)
        if what == "listening":
            ports.append(told[1])
        return told

    monkeypatch.setattr(conduct.Conductor, "_expect", spy)
    replies: list[bytes] = []

    def pester() -> None:
        while len(ports) < 2:
            time.sleep(0.01)
        for bytes_ in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, greeting(b"x" * 16, 0) + b"\0" * 64, b""):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", ports[0]), timeout=10) as stranger,
            ):
                stranger.sendall(bytes_)
                if bytes_:
                    replies.append(stranger.recv(10))

    thread = threading.Thread(target=pester)
    thread.start()
    world = World(n=4, f=1, node=Bracha, inputs=["hello"], net=Net(Constant(0.3)))
    outcome = tcp.run(world, until=all_decided, processes=2)
    thread.join()
    assert outcome.decided() == dict.fromkeys(range(4), "hello")
    assert replies == [b""] * 3
    assert sorted(outcome.refused) == [
        "a caller that does not speak this protocol", "a caller that does not speak this protocol",
        "a caller with a wrong token",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- one connection, byte by byte


class Listening:
    """A process with nodes 2 and 3, called by process 0, which has nodes 0 and 1."""

    token, homes, index = TOKEN, [0, 0, 1, 1], 1

    def __init__(self) -> None:
        self.strangers = 0
        self.got, self.reasons = [], []

    def arrived(self, src, dst, msg):
        self.got.append((src, dst, msg))

    def refuse(self, why):
        self.reasons.append(why)


class Wire:
    closed = False

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def hear(pieces):
    """What a process hears of these pieces, and why it hung up."""

    async def listen():
        house, line = Listening(), Wire()
        incoming = Incoming(house)
        incoming.connection_made(line)
        for piece in pieces:
            incoming.data_received(piece)
        incoming.connection_lost(None)
        assert house.strangers == 0
        return house

    return asyncio.run(listen())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(2, 3), st.binary(max_size=40)), max_size=6), st.integers(1, 30)
)
def test_frames_arrive_whole_however_they_are_cut(frames, size):
    data = greeting(TOKEN, 0) + b"".join(wire.frame(s, d, wire.encode(("m", b))) for s, d, b in frames)
    house = hear([data[place : place + size] for place in range(0, len(data), size)])
    assert house.got == [(src, dst, ("m", body)) for src, dst, body in frames] and house.reasons == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_do_more_than_end_the_connection(rubbish, known):
    house = hear([greeting(TOKEN, 0) + rubbish if known else rubbish])
    assert len(house.reasons) <= 1
    assert all(homes == 0 for homes in (Listening.homes[src] for src, _, _ in house.got))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (wire.frame(2, 3, wire.encode(("m",))), "from node 2, which does not live there"),
        (wire.frame(0, 1, wire.encode(("m",))), "for node 1, which does not live here"),
        (wire.frame(0, 99, wire.encode(("m",))), "for node 99"),
        (struct.pack(">III", 2**31, 0, 2), "a frame of 2147483648 bytes"),
        (wire.frame(0, 2, b"\xc1"), "not MessagePack"),
        (wire.frame(0, 2, wire.encode({"a": 1})), "begins with its kind"),
        (wire.frame(0, 2, wire.encode([])), "begins with its kind"),
        (wire.frame(0, 2, wire.encode(["k", {"a": 1}])), "holds a dict"),
        (wire.frame(0, 2, wire.encode(["k"]) + b"x"), "not MessagePack"),
        (wire.frame(0, 2, b"\x92\xa1k" + b"\x91" * 400 + b"\xc0"), "nested deeper"),
        (wire.frame(0, 2, b"\x92\xa1k" + b"\x91" * 100_000 + b"\xc0"), "not MessagePack|nested deeper"),
        (wire.frame(0, 2, b"\xdd\xff\xff\xff\xff"), "not MessagePack"),
        (wire.frame(0, 2, b"\x92\xa1k\xc7\x01\x05\x00"), "holds a Ext"),
    ],
)
def test_a_frame_that_is_not_right_ends_the_connection_with_a_reason(frame, why):
    house = hear([greeting(TOKEN, 0) + frame])
    assert len(house.reasons) == 1 and re.search(why, house.reasons[0]) and house.got == []
