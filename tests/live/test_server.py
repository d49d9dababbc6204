"""A connection of a client, without a network: what comes is read, what is answered goes out, within bounds."""

from __future__ import annotations

import re
import resource
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live import server
from assay.live.server import Connection, Exchange, Limits, Server

HIGH, LOW = 64 * 1024, 16 * 1024  # bytes: when a transport says that it has enough, and when that it wants more


class Loop:
    """Calls wait until `run`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.errors: list[dict[str, Any]] = []

    def call_soon(self, do: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((do, arguments))

    def call_later(self, seconds: float, do: Callable[..., None]) -> None:
        """The sweep; tests call it themselves."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run(self) -> None:
        for _ in range(1000):
            if not self.calls:
                return
            do, arguments = self.calls.pop(0)
            do(*arguments)
        raise AssertionError("it never comes to rest")


class Wire:
    """A transport: `sent` has reached the client, `unsent` waits until the client reads."""

    def __init__(self, reads: bool = True) -> None:
        self.protocol: Any = None
        self.reads = reads
        self.sent = self.unsent = b""
        self.eof = self.closed = self.aborted = self.full = False
        self.reading = True

    def write(self, data: bytes) -> None:
        if self.eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        assert not self.is_closing()
        self.unsent += data
        if self.reads:
            self.take(len(self.unsent))
        elif len(self.unsent) > HIGH and not self.full:
            self.full = True
            self.protocol.pause_writing()

    def take(self, size: int) -> None:
        """The client reads."""
        self.sent, self.unsent = self.sent + self.unsent[:size], self.unsent[size:]
        if self.full and len(self.unsent) < LOW:
            self.full = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.protocol.server.loop.call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)


class House:
    """A server, its clock, and what it was asked."""

    def __init__(self, answer: Callable[[Exchange], None] | None = None, **limits: Any) -> None:
        self.asked: list[Exchange] = []
        self.refused: list[int] = []
        self.server = Server(answer or self.asked.append, Limits(**limits), self.refused.append)
        self.server.loop = self.loop = Loop()
        self.now = 0.0
        self.server.time = lambda: self.now

    def client(self, reads: bool = True) -> tuple[Connection, Wire]:
        connection, wire = Connection(self.server), Wire(reads)
        wire.protocol = connection
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.server._look()
        self.loop.run()


def echo(exchange: Exchange) -> None:
    exchange.reply(200, [b"x-path: " + exchange.head.path], exchange.body)


GET = b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n"


def post(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"host: a", b"content-length: %d" % len(body), *lines, b"", body])


def statuses(wire: Wire) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3})", wire.sent)]


MESSAGES = [
    (b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n", b"/a", b""),
    (b"POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello", b"/b", b"hello"),
    (b"POST /c HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", b"/c", b""),
    (b"POST /d HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\n",
     b"/d", b"abcde"),
    (b"PUT /e HTTP/1.1\r\nhost: a\r\ncontent-length: 37\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n0\r\n\r", b"/e",
     b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n0\r\n\r"),
    (b"POST /f HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"/f", b""),
]  # fmt: skip


@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=5),
    st.lists(st.integers(1, 60), max_size=40),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_requests_are_the_same_in_whatever_pieces_they_come(
    messages: list[tuple[bytes, bytes, bytes]], cuts: list[int], at_once: bool
) -> None:
    """Also where each is answered only after all have come."""
    house = House()
    connection, wire = house.client()
    data, at, seen = b"".join(message for message, _, _ in messages), 0, []

    def answer() -> None:
        while house.asked:
            exchange = house.asked.pop(0)
            seen.append((exchange.head.path, exchange.body))
            echo(exchange)
            house.loop.run()

    for cut in [*cuts, len(data)]:
        if data[at : at + cut]:
            connection.data_received(data[at : at + cut])
        at += cut
        if at_once:
            answer()
    answer()
    assert seen == [(path, body) for _, path, body in messages]
    assert statuses(wire) == [200] * len(messages)
    assert house.server.held == 0


@pytest.mark.parametrize("way", ["reply", "begin", "begin, no piece", "reply, no body"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content", b"304 Not Modified", b"404 Not Found"])
@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize("connection_line", ["", "close", "keep-alive"])
def test_h11_reads_every_kind_of_answer_and_knows_where_it_ends(
    way: str, method: str, status: bytes, minor: int, connection_line: str
) -> None:
    h11 = pytest.importorskip("h11")

    def answer(exchange: Exchange) -> None:
        body = b"" if "no" in way or status[:3] in (b"204", b"304") else b"hello"
        if way.startswith("reply"):
            exchange.reply(int(status[:3]), [b"x: y"], body, status)
        else:
            exchange.begin(status, [b"x: y"])
            if method != "HEAD":  # an engine has no body for it either
                exchange.write(body[:2])
                exchange.finish(body[2:])
            else:
                exchange.finish()

    house = House(answer)
    connection, wire = house.client()
    head = f"{method} / HTTP/1.{minor}\r\nhost: a\r\n" + (
        f"connection: {connection_line}\r\n" if connection_line else ""
    )
    connection.data_received(head.encode() + b"\r\n")
    house.loop.run()

    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(wire.sent)
    if wire.closed:
        client.receive_data(b"")
    events = [client.next_event()]
    while type(events[-1]) is not h11.EndOfMessage:
        events.append(client.next_event())
        assert events[-1] is not h11.NEED_DATA
    assert events[0].status_code == int(status[:3])
    empty = method == "HEAD" or "no" in way or status[:3] in (b"204", b"304")
    assert b"".join(bytes(e.data) for e in events if type(e) is h11.Data) == (b"" if empty else b"hello")
    assert client.trailing_data[0] == b""
    assert wire.closed or minor == 1 or connection_line == "keep-alive"
    assert client.their_state is (h11.DONE if not wire.closed else client.their_state)


def test_three_requests_at_once_are_answered_in_order() -> None:
    house = House(echo)
    connection, wire = house.client()
    connection.data_received(GET % 1 + GET % 2 + GET % 3)
    house.loop.run()
    assert re.findall(rb"x-path: (/\d)", wire.sent) == [b"/1", b"/2", b"/3"]
    assert statuses(wire) == [200, 200, 200]


def test_the_next_request_waits_for_the_answer_to_this_one() -> None:
    house = House()
    connection, _ = house.client()
    connection.data_received(GET % 1)
    connection.data_received(GET % 2)
    house.loop.run()
    assert [exchange.head.path for exchange in house.asked] == [b"/1"]
    echo(house.asked[0])
    house.loop.run()
    assert [exchange.head.path for exchange in house.asked] == [b"/1", b"/2"]


def test_who_sends_far_ahead_is_not_read_until_answered() -> None:
    house = House()
    connection, wire = house.client()
    connection.data_received(GET % 1)
    for _ in range(70):
        if wire.reading:
            connection.data_received(b"x" * 1024)
    assert not wire.reading
    echo(house.asked[0])
    house.loop.run()
    assert statuses(wire) == [200, 431]
    assert wire.reading, "what comes after a refusal is read and dropped"


def test_who_does_not_read_its_answers_gets_no_more_of_them() -> None:
    """Otherwise one read of requests would fill the memory with answers."""
    house = House(lambda exchange: exchange.reply(200, [], bytes(100_000)))
    connection, wire = house.client(reads=False)
    connection.data_received(GET % 1 * 50)
    house.loop.run()
    connection.data_received(GET % 2)
    house.loop.run()
    assert len(wire.unsent) < 200_000
    for _ in range(60):
        wire.take(1 << 30)
        house.loop.run()
    assert statuses(wire) == [200] * 51


def test_a_slow_reader_has_its_time_and_one_that_takes_nothing_is_dropped() -> None:
    house = House(lambda exchange: exchange.reply(200, [], bytes(1 << 20)), stall_time=10.0, idle_time=10.0)
    connection, wire = house.client(reads=False)
    connection.data_received(GET % 1)
    for _ in range(20):
        wire.take(8 * 1024)
        house.later(11.0)
        assert not wire.aborted
    house.later(11.0)
    assert wire.aborted
    assert connection not in house.server.connections


def test_a_stream_that_nobody_reads_pauses_its_source_and_ends_at_the_stall_time() -> None:
    house = House(stall_time=10.0)
    connection, wire = house.client(reads=False)
    connection.data_received(GET % 1)
    exchange, told, left = house.asked[0], [], []
    exchange.resume, exchange.left = told.append, lambda: left.append(True)
    exchange.begin(b"200 OK", [])
    while not told:
        exchange.write(bytes(4096))
    assert told == [False]
    wire.take(len(wire.unsent))
    assert told == [False, True]
    house.later(100.0)
    assert not wire.aborted, "a client that has read all is waited for"
    while len(told) < 3:
        exchange.write(bytes(4096))
    house.later(11.0)
    assert wire.aborted
    assert left == [True]


@pytest.mark.parametrize(
    "sent",
    [
        b"G",
        b"GET / HTTP/1.1\r\nhost: a\r\n",
        post(b"x" * 10)[:-1],
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
    ],
)
def test_a_request_that_never_ends_gets_408_once_and_the_connection_goes(sent: bytes) -> None:
    house = House(head_time=5.0, body_time=5.0)
    connection, wire = house.client()
    for byte in sent:
        connection.data_received(bytes([byte]))
        house.later(4.0 / len(sent))
    assert not wire.sent
    house.later(6.0)
    house.later(1.0)
    assert statuses(wire) == [408]
    house.later(3.0)
    assert wire.aborted
    assert (len(house.server.connections), house.server.held) == (0, 0)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 200-ok\r\ncontent-length: 5\r\n\r\n", 417),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_a_refused_client_reads_why_once_whatever_it_goes_on_to_send(sent: bytes, status: int) -> None:
    house = House(body=1000)
    connection, wire = house.client()
    connection.data_received(sent)
    for _ in range(10):
        connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
        house.loop.run()
    assert (statuses(wire), wire.eof, wire.closed, house.asked) == ([status], True, False, [])
    for _ in range(3):
        house.later(2.1)
    assert (statuses(wire), house.refused, wire.aborted) == ([status], [status], True)
    assert (len(house.server.connections), house.server.held) == (0, 0)


def test_a_body_in_crumbs_takes_no_more_memory_than_its_size() -> None:
    house = House(body=1 << 20)
    connection, _ = house.client()
    connection.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n")
    tracemalloc.start()
    try:
        for n in range(50_000):
            connection.data_received(n.to_bytes(2, "big"))  # each an object of its own, as from a socket
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    assert house.asked[0].body == b"".join(n.to_bytes(2, "big") for n in range(50_000))


def test_a_body_in_very_many_tiny_chunks_is_refused() -> None:
    house = House()
    connection, wire = house.client()
    connection.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        connection.data_received(b"1\r\nx\r\n" * 100)
    assert statuses(wire) == [413]


def test_bodies_count_until_they_are_answered_and_all_together_are_bounded() -> None:
    house = House(body=1000, bodies=2500)
    clients = [house.client() for _ in range(3)]
    for connection, _ in clients:
        connection.data_received(post(b"x" * 1000))
    assert house.server.held == 2000
    assert [statuses(wire) for _, wire in clients] == [[], [], [503]]
    echo(house.asked[0])
    clients[1][0].connection_lost(None)
    assert house.server.held == 0


@pytest.mark.parametrize("minor", [0, 1])
def test_who_expects_100_gets_it_before_the_body(minor: int) -> None:
    house = House(echo)
    connection, wire = house.client()
    connection.data_received(
        b"POST / HTTP/1.%d\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % minor
    )
    assert wire.sent == (b"HTTP/1.1 100 Continue\r\n\r\n" if minor else b"")
    connection.data_received(b"ok")
    assert statuses(wire)[-1] == 200


def test_who_sends_the_body_at_once_needs_no_100() -> None:
    house = House(echo)
    connection, wire = house.client()
    connection.data_received(post(b"ok", b"expect: 100-continue"))
    assert statuses(wire) == [200]


def test_idle_clients_make_room_for_one_that_comes() -> None:
    house = House(connections=4)
    old = [house.client() for _ in range(4)]
    old[0][0].data_received(GET % 1)  # has work here
    house.now = 1.0
    old[1][0].data_received(b"GET / HT")  # is slow; its time is shorter than that of idle ones
    connection, wire = house.client()
    house.loop.run()
    assert [w.aborted for _, w in old] == [False, True, False, False]
    connection.data_received(GET % 2)
    assert [exchange.head.path for exchange in house.asked] == [b"/1", b"/2"]
    assert not wire.closed


def test_where_all_clients_have_work_one_more_is_told_and_a_flood_is_dropped() -> None:
    house = House(connections=4)
    for n in range(4):
        house.client()[0].data_received(GET % n)
    told = [house.client()[1] for _ in range(300)]
    house.loop.run()
    assert [statuses(wire) for wire in told[:4]] == [[503]] * 4
    assert told[-1].aborted
    assert len(house.server.connections) <= 4 + 256 + 1


@pytest.mark.parametrize(
    ("soft", "hard", "affordable", "raised"),
    [
        (1024, 1024, 448, 1024),
        (1024, 4096, 1984, 4096),
        (1024, 1 << 20, 4096, 2 * 4096 + 128),
        (1 << 20, 1 << 20, 4096, 1 << 20),
        (1024, resource.RLIM_INFINITY, 4096, 2 * 4096 + 128),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, resource.RLIM_INFINITY),
        (64, 64, 1, 64),
    ],
)
def test_there_are_no_more_connections_than_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, affordable: int, raised: int
) -> None:
    now = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: now.append(limits))
    assert server.Server.affordable(4096) == affordable
    assert now[-1] == (raised, hard)


def test_a_client_that_leaves_is_told_to_whoever_answers_and_only_once() -> None:
    house = House()
    connection, _ = house.client()
    connection.data_received(GET % 1)
    left: list[bool] = []
    house.asked[0].left = lambda: left.append(True)
    assert connection.eof_received() is False
    connection.connection_lost(None)
    house.asked[0].write(b"late")
    house.asked[0].finish()
    house.asked[0].reply(200, [], b"later")
    assert left == [True]


def test_what_a_client_that_left_had_sent_ahead_is_not_asked() -> None:
    house = House()
    connection, _ = house.client()
    connection.data_received(GET % 1 + GET % 2)
    echo(house.asked[0])
    connection.connection_lost(None)
    house.loop.run()
    assert [exchange.head.path for exchange in house.asked] == [b"/1"]


def test_a_failure_to_answer_is_told_to_the_client_and_to_the_log_and_the_connection_goes_on() -> None:
    left: list[bool] = []

    def fail(exchange: Exchange) -> None:
        exchange.left = lambda: left.append(True)
        raise ValueError("a defect")

    house = House(fail)
    connection, wire = house.client()
    connection.data_received(GET % 1)
    connection.data_received(GET % 2)
    assert statuses(wire) == [500, 500]
    assert len(house.loop.errors) == len(left) == 2
    assert b"a defect" not in wire.sent


def test_one_that_asks_to_close_after_its_answer_and_goes_on_sending_can_read_it() -> None:
    house = House()
    connection, wire = house.client()
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\nand more")
    echo(house.asked[0])
    connection.data_received(b"and more")
    house.loop.run()
    assert (statuses(wire), wire.eof, wire.closed) == ([200], True, False)


def test_a_draining_server_answers_what_it_has_and_says_close() -> None:
    house = House()
    connection, wire = house.client()
    connection.data_received(GET % 1)
    house.server.draining = True
    echo(house.asked[0])
    assert b"connection: close" in wire.sent
    assert wire.closed
