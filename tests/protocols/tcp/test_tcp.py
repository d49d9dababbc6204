"""The same nodes over real sockets, in real processes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import subprocess
import sys
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
from assay.protocols.nodes.broadcast import Bracha
from assay.protocols.tcp import conduct
from assay.protocols.tcp.links import STRANGERS, Incoming, greeting
from tests.protocols.kernel import nodes

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
    world = World(n=7, f=2, node=Bracha, inputs=["hello"])
    victims = range(5, 7)
    killed = tcp.run(world, until=all_decided, kill=dict.fromkeys(victims, 0.0))
    crashed = World(n=7, f=2, node=Bracha, inputs=["hello"], faults={v: Crash() for v in victims}).run("timed")
    assert killed.correct == crashed.correct == tuple(range(5))
    assert killed.decided() == crashed.decided() == dict.fromkeys(range(5), "hello")


def test_who_is_killed_at_the_start_says_no_more_than_who_crashes_at_the_start():
    world = World(n=4, f=1, node=Bracha, inputs=["hello"])
    killed = tcp.run(world, until=all_decided, kill={0: 0.0})  # the sender
    crashed = World(n=4, f=1, node=Bracha, inputs=["hello"], faults={0: Crash()}).run("timed")
    assert killed.decisions == crashed.decisions == {0: {}, 1: {}, 2: {}, 3: {}}
    assert killed.stopped == crashed.stopped == "quiet"


def test_a_run_does_not_end_before_those_are_killed_who_are_to_be():
    outcome = tcp.run(World(n=2, node=nodes.Leaver), until=all_decided, kill={1: 0.5})
    assert outcome.decided() == {0: 1} and outcome.time >= 0.5


def test_what_a_process_sent_before_it_was_killed_is_counted():
    killed = tcp.run(World(n=3, node=nodes.Leaver), until=all_decided, kill={1: 1.0})
    whole = World(n=3, node=nodes.Leaver).run("timed")
    assert killed.meter.by_node == whole.meter.by_node and killed.meter.by_kind == whole.meter.by_kind
    assert killed.meter.deliveries == whole.meter.deliveries


@pytest.mark.parametrize("kill", [{9: 0.1}, {0: -1.0}, {0: float("nan")}, {0: 60.0}])
def test_a_kill_that_cannot_be_is_refused(kill):
    with pytest.raises(ValueError, match="is to be killed after"):
        tcp.run(World(n=2, node=nodes.Memory), kill=kill)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_no_node_hears_anything_before_its_start(seed):
    """With this many processes on few cores some always start when the others have spoken already."""
    outcome = tcp.run(World(n=12, node=nodes.Lazybones, seed=seed), until=all_decided)
    assert outcome.decided() == {node: tuple(range(12)) for node in range(12)}


def test_a_node_that_is_busy_is_waited_for(monkeypatch):
    monkeypatch.setattr(conduct, "CALM", 0.05)
    monkeypatch.setattr(conduct, "IDLE", 0.2)
    outcome = tcp.run(World(n=2, node=nodes.Busy))
    assert outcome.decided() == {1: "done"} and outcome.stopped == "quiet"


def test_a_message_under_way_is_waited_for_however_slow_the_network(monkeypatch):
    monkeypatch.setattr(conduct, "CALM", 0.05)
    monkeypatch.setattr(conduct, "IDLE", 0.2)
    outcome = tcp.run(World(n=2, f=0, node=Bracha, inputs=["x"], net=Net(Constant(0.8))), until=all_decided)
    assert outcome.decided() == {0: "x", 1: "x"}


def test_a_process_that_ends_by_itself_is_an_error_and_one_that_is_killed_a_crash():
    with pytest.raises(tcp.Death, match=r"process 1 \(nodes 1\) ended in the middle of the run, exit code 3"):
        tcp.run(World(n=3, node=nodes.Leaver, inputs=["", "exit", ""]), until=all_decided)
    outcome = tcp.run(World(n=3, node=nodes.Leaver, inputs=["", "kill", ""]), until=all_decided)
    assert outcome.correct == (0, 2) and outcome.decided() == {0: 1, 2: 1} and outcome.stopped == "until"


def test_what_a_node_cannot_put_out_over_sockets_is_told():
    with pytest.raises(tcp.Death, match=r"cannot be sent .* plain values expected"):
        tcp.run(World(n=2, node=nodes.Secretive), until=all_decided)
    with pytest.raises(tcp.Death, match="sends itself one message after the other"):
        tcp.run(World(n=2, node=nodes.Soliloquist), until=all_decided)


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
        World(n=4, f=1, node=nodes.TwoBroadcasts, inputs=["a", "b"]), until=all_decided, processes=2
    ).decided() == (dict.fromkeys(range(4), ("a", "b")))
    assert tcp.run(World(n=3, node=nodes.Signer), until=all_decided, processes=3).decided() == (
        dict.fromkeys(range(3), (0, 1, 2))
    )


def test_a_node_that_fails_ends_the_run_and_is_named():
    with pytest.raises(tcp.Death, match=r"process \d failed: KeyError: 'what now'"):
        tcp.run(World(n=3, node=nodes.Broken), processes=3)


def test_a_world_that_cannot_run_over_sockets_is_refused():
    with pytest.raises(ValueError, match="at the top level of a module"):
        tcp.run(World(n=2, node=lambda node: nodes.Memory()))
    with pytest.raises(ValueError, match="churn is for simulated runs"):
        tcp.run(World(n=2, node=nodes.Memory, churn=[(1.0, 0, False)]))


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


def test_callers_that_say_nothing_keep_nobody_out():
    """More of them than a process bears are there before the one that speaks; and it is heard."""

    async def listen():
        house = Listening()
        callers = [Incoming(house) for _ in range(2 * STRANGERS + 1)]
        wires = [Wire() for _ in callers]
        for incoming, line in zip(callers, wires, strict=True):
            incoming.connection_made(line)
        friend = callers[-50]
        friend.data_received(greeting(TOKEN, 0) + wire.frame(0, 2, wire.encode(("hello",))))
        assert len(house.strangers) == STRANGERS - 1
        assert sum(line.closed for line in wires) == len(house.reasons) > STRANGERS
        for incoming in callers:
            incoming.connection_lost(None)
        return house

    house = asyncio.run(listen())
    assert house.got == [(0, 2, ("hello",))] and not house.strangers
    assert set(house.reasons) == {"too many callers that do not say who they are"}


# ------------------------------------------------------------------------------------- one connection, byte by byte


class Listening:
    """A process with nodes 2 and 3, called by process 0, which has nodes 0 and 1."""

    token, homes, index = TOKEN, [0, 0, 1, 1], 1

    def __init__(self) -> None:
        self.strangers = {}
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
        assert not house.strangers
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
        (wire.frame(0, 2, wire.encode(("k", (1, float("nan"))))), "holds NaN"),
    ],
)
def test_a_frame_that_is_not_right_ends_the_connection_with_a_reason(frame, why):
    house = hear([greeting(TOKEN, 0) + frame])
    assert len(house.reasons) == 1 and re.search(why, house.reasons[0]) and house.got == []


UNGUARDED = """
from assay.protocols.kernel.world import World
from assay.protocols.nodes.broadcast import Bracha

world = World(n=4, f=1, node=Bracha, inputs=["hello"])
"""


def test_a_script_that_every_process_would_run_again_is_told_so_in_one_line(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(UNGUARDED + 'print(world.run("live").decided())\n')
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 2 and told.stdout == ""
    (line,) = told.stderr.splitlines()
    assert str(script) in line and 'if __name__ == "__main__":' in line
    script.write_text(UNGUARDED + 'if __name__ == "__main__":\n    print(world.run("live", processes=2).decided())\n')
    right = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert right.stdout == "{0: 'hello', 1: 'hello', 2: 'hello', 3: 'hello'}\n"
