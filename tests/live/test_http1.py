"""A message is read as h11 reads it, or refused; what h11 would read and we refuse is listed here by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live import http1
from assay.live.http1 import CHUNKED, UNTIL_CLOSE, Chunks, Heads, Refused, RequestHead, request_head, response_head

h11 = pytest.importorskip("h11")

INCOMPLETE = "incomplete"
REFUSED = "refused"


@dataclass(frozen=True)
class Message:
    """What a reader made of the bytes: the first line's parts, the fields, the body, and what follows it."""

    first: tuple[bytes, ...]
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    rest: bytes


def joined(pairs: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Fields with lines of one name joined; codings are words in any case."""
    fields: dict[bytes, bytes] = {}
    for name, value in pairs:
        value = value.lower() if name == b"transfer-encoding" else value
        fields[name] = fields[name] + b", " + value if name in fields else value
    return tuple(sorted(fields.items()))


def body_of(length: int, data: bytes, closed: bool = False) -> tuple[bytes, bytes] | None:
    """The body at the beginning of `data` and what follows; None where it is not all there."""
    if length == CHUNKED:
        chunks = Chunks()
        pieces = chunks.feed(data)
        return (b"".join(pieces), chunks.rest) if chunks.done else None
    if length == UNTIL_CLOSE:
        return (data, b"") if closed else None
    return (data[:length], data[length:]) if len(data) >= length else None


def ours(data: bytes) -> Message | str:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return INCOMPLETE
    try:
        head = request_head(data[:end])
        found = body_of(head.length, data[end + 4 :])
    except Refused:
        return REFUSED
    if found is None:
        return INCOMPLETE
    first = head.method, head.target, b"1.%d" % head.minor
    return Message(first, joined(list(head.fields.items())), *found)


def theirs(data: bytes) -> Message | str:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    return read_h11(connection, data, h11.Request)


def ours_answer(data: bytes, asked: bytes, closed: bool = True) -> Message | str:
    while True:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return INCOMPLETE
        try:
            head = response_head(data[:end], asked)
            data = data[end + 4 :]
            if head.status < 200:
                continue
            found = body_of(head.length, data, closed)
        except Refused:
            return REFUSED
        if found is None:
            return INCOMPLETE
        return Message((b"%d" % head.status,), joined(list(head.fields.items())), *found)


def theirs_answer(data: bytes, asked: bytes) -> Message | str:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method=asked, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    return read_h11(connection, data, h11.Response)


def read_h11(connection: h11.Connection, data: bytes, kind: type) -> Message | str:
    head, body, closed = None, b"", False
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA and kind is h11.Response and not closed:
                closed = True
                connection.receive_data(b"")
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return INCOMPLETE
            elif isinstance(event, kind):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
    except h11.RemoteProtocolError as error:
        return INCOMPLETE if closed and "closed connection" in str(error) else REFUSED
    assert head is not None
    asked = isinstance(head, h11.Request)
    first = (head.method, head.target, head.http_version) if asked else (b"%d" % head.status_code,)
    return Message(first, joined(list(head.headers)), body, connection.trailing_data[0])


def chunked(body: bytes, sizes: list[int], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """A body in chunks of the given sizes, the last of them as long as it must be."""
    pieces, at = [], 0
    for size in [*sizes, len(body)]:
        piece = body[at : at + size]
        if piece:
            pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        at += size
    return b"".join([*pieces, b"0\r\n", trailer, b"\r\n"])


TOKEN = st.text("!#$%&'*+-.^_`|~0123456789abcdefXYZ", min_size=1, max_size=12).map(str.encode)
NAMES = TOKEN.filter(
    lambda name: (
        name.lower() not in (b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type")
    )
)
VALUES = st.binary(max_size=20).map(
    lambda raw: bytes(c for c in raw if c in b"\t " or 33 <= c < 127 or c >= 128).strip(b" \t")
)
BLANKS = st.sampled_from([b"", b" ", b"\t", b"  \t"])
TARGETS = st.sampled_from(
    [b"/", b"/v1/chat/completions", b"/v1/models?x=%2e%2e", b"/a.b/c..d", b"/a%20b", b"/~x;y=1", b"/?//..", b"/%c3%a9"]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Valid requests, with whatever follows them on the connection."""
    body = draw(st.binary(max_size=60))
    minor = draw(st.sampled_from([b"1", b"1", b"0"]))
    lines = [
        b"%b:%b%b%b" % (draw(NAMES), draw(BLANKS), draw(VALUES), draw(BLANKS)) for _ in range(draw(st.integers(0, 5)))
    ]
    lines.insert(draw(st.integers(0, len(lines))), b"hOst: a")
    if minor == b"1" and draw(st.booleans()):
        lines.append(b"Transfer-Encoding: " + draw(st.sampled_from([b"chunked", b"Chunked"])))
        trailer = draw(st.sampled_from([b"", b"x: y\r\n", b"x: y\r\nx:\r\n"]))
        sizes = draw(st.lists(st.integers(1, 20), max_size=5))
        body = chunked(body, sizes, draw(st.sampled_from([b"", b";a=b", b';a="b"'])), trailer)
    elif body or draw(st.booleans()):
        lines.append(b"content-length:%b%d" % (draw(BLANKS), len(body)))
    method = draw(st.sampled_from([b"GET", b"POST", b"DELETE", b"x-y"]))
    first = b"%b %b HTTP/1.%b" % (method, draw(TARGETS), minor)
    return b"\r\n".join([first, *lines, b"", b""]) + body + draw(st.sampled_from([b"", b"GET /next HTTP/1.1\r\n"]))


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=60))
    lines = [b"%b:%b%b" % (draw(NAMES), draw(BLANKS), draw(VALUES)) for _ in range(draw(st.integers(0, 4)))]
    framing = draw(st.sampled_from(["length", "chunks", "close"]))
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunks":
        lines.append(b"transfer-encoding: chunked")
        body = chunked(body, draw(st.lists(st.integers(1, 20), max_size=5)))
    status = draw(
        st.sampled_from([b"200 OK", b"404 Not Found", b"599", b"299 ", b"204 No Content", b"304 Not Modified"])
    )
    if status[:3] in (b"204", b"304"):
        body = b""
    before = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"])
    )
    return before + b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""]) + body


PIECES = [b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"\x0b", b":", b"0", b"-1", b"\xff", b"0x", b";", b",", b"_", b"+",
          b"HTTP/1.1", b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"\r\n\r\n", b"Host: b\r\n",
          b"chunked, identity", b"connection: close\r\n", b"0\r\n\r\n", b"\x85", b"\xa0",
          b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    data = draw(messages)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.sampled_from([0, 0, 1, 2, 5]))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=2)))
        data = data[:at] + piece + data[at + gone :]
    return data


@given(requests())
@settings(max_examples=150, deadline=None)
def test_a_valid_request_is_read_as_h11_reads_it(data: bytes) -> None:
    message = ours(data)
    assert isinstance(message, Message)
    assert message == theirs(data)


@given(mutated(requests()))
@settings(max_examples=600, deadline=None)
def test_a_spoilt_request_is_refused_or_read_as_h11_reads_it(data: bytes) -> None:
    """Never is there a message for us where h11 sees none, or another one."""
    message = ours(data)
    if isinstance(message, Message):
        assert message == theirs(data)


@given(responses(), st.sampled_from([b"GET", b"POST", b"HEAD"]))
@settings(max_examples=150, deadline=None)
def test_a_valid_answer_is_read_as_h11_reads_it(data: bytes, asked: bytes) -> None:
    message = ours_answer(data, asked)
    assert isinstance(message, Message)
    assert message == theirs_answer(data, asked)


@given(mutated(responses()), st.sampled_from([b"GET", b"POST", b"HEAD"]))
@settings(max_examples=400, deadline=None)
def test_a_spoilt_answer_is_refused_or_read_as_h11_reads_it(data: bytes, asked: bytes) -> None:
    message = ours_answer(data, asked)
    if isinstance(message, Message):
        assert message == theirs_answer(data, asked)


def ask(*lines: bytes, first: bytes = b"POST /x HTTP/1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join([first, b"Host: a", *lines, b"", b""]) + body


# What h11 reads and we do not: each is read differently by somebody, or is of no use before an engine.
STRICTER = {
    "lines that end in LF alone": b"GET / HTTP/1.1\nHost: a\n\n",
    "one line that ends in LF alone": b"GET / HTTP/1.1\r\nHost: a\nx: y\r\n\r\n",
    "a folded line": ask(b"x: y\r\n z"),
    "a whole address as the target": ask(first=b"GET http://a/x HTTP/1.1"),
    "host and port as the target": ask(first=b"CONNECT a:80 HTTP/1.1"),
    "a star as the target": ask(first=b"OPTIONS * HTTP/1.1"),
    "a tunnel to a path": ask(first=b"CONNECT /x HTTP/1.1"),
    "an echo": ask(first=b"TRACE /x HTTP/1.1"),
    "a fragment": ask(first=b"GET /x#y HTTP/1.1"),
    "a path that goes up": ask(first=b"GET /a/../b HTTP/1.1"),
    "a path that goes up, encoded": ask(first=b"GET /a/%2e%2e/b HTTP/1.1"),
    "a letter encoded": ask(first=b"GET /%65ngines HTTP/1.1"),
    "half a code": ask(first=b"GET /%6 HTTP/1.1"),
    "a method of 21 letters": ask(first=b"A" * 21 + b" / HTTP/1.1"),
    "one length said in two lines": ask(b"Content-Length: 1", b"Content-Length: 1", body=b"x"),
    "one length said twice in a line": ask(b"Content-Length: 1, 1", body=b"x"),
    "a length and chunks": ask(b"Content-Length: 1", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": ask(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0", body=b"0\r\n\r\n"),
    "a length of 16 digits": ask(b"Content-Length: 0000000000000001", body=b"x"),
    "a control character in a value": ask(b"x: a\x01b"),
    "two types of content": ask(b"Content-Type: a/b", b"Content-Type: c/d"),
    "two credentials": ask(b"Authorization: a", b"Authorization: b"),
    "more than a hundred lines": ask(*[b"x: y"] * 100),
    "a chunk's size of 13 digits": ask(b"Transfer-Encoding: chunked", body=b"0000000000001\r\nx\r\n0\r\n\r\n"),
    "a blank after a chunk's size": ask(b"Transfer-Encoding: chunked", body=b"1 \r\nx\r\n0\r\n\r\n"),
    "a trailer that tells the length": ask(b"Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 3\r\n\r\n"),
    "a control character in a chunk's extension": ask(b"Transfer-Encoding: chunked", body=b"1;\x01\r\nx\r\n0\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRICTER)
def test_h11_would_read_it_and_we_do_not(name: str) -> None:
    assert isinstance(theirs(STRICTER[name]), Message)
    assert ours(STRICTER[name]) in (REFUSED, INCOMPLETE)


CL, TE = b"Content-Length: ", b"Transfer-Encoding: "
BOTH_REFUSE = {
    "two lengths": ask(CL + b"1", CL + b"2", body=b"xx"),
    "a list of two lengths": ask(CL + b"1, 2", body=b"xx"),
    "a length with a plus": ask(CL + b"+1", body=b"x"),
    "a negative length": ask(CL + b"-1", body=b"x"),
    "a length with a blank in it": ask(CL + b"1 1", body=b"x" * 11),
    "a length in hexadecimal": ask(CL + b"0x1", body=b"x"),
    "a length with an underscore": ask(CL + b"1_0", body=b"x" * 10),
    "a length in other digits": ask(CL + "１".encode(), body=b"x"),
    "no length": ask(CL, body=b"x"),
    "a length too long to be one": ask(CL + b"9" * 30),
    "chunked, then identity": ask(TE + b"chunked, identity", body=b"0\r\n\r\n"),
    "identity, then chunked": ask(TE + b"identity, chunked", body=b"0\r\n\r\n"),
    "a vertical tab before chunked": ask(TE + b"\x0bchunked", body=b"0\r\n\r\n"),
    "xchunked": ask(TE + b"xchunked", body=b"0\r\n\r\n"),
    "chunked in quotes": ask(TE + b'"chunked"', body=b"0\r\n\r\n"),
    "chunked twice": ask(TE + b"chunked", TE + b"chunked", body=b"0\r\n\r\n"),
    "chunked and gzip in two lines": ask(TE + b"chunked", TE + b"gzip", body=b"0\r\n\r\n"),
    "an empty coding": ask(TE, body=b"0\r\n\r\n"),
    "a blank before the colon": ask(b"Content-Length : 1", body=b"x"),
    "a tab before the colon": ask(b"Transfer-Encoding\t: chunked", body=b"0\r\n\r\n"),
    "a line without a colon": ask(b"Content-Length 1", body=b"x"),
    "a line without a name": ask(b": x"),
    "NUL in a value": ask(b"x: a\0b"),
    "NUL in a name": ask(b"x\0: a"),
    "a bare CR in a value": ask(b"x: a\rContent-Length: 1"),
    "a first line that is folded": b"GET / HTTP/1.1\r\n x: y\r\nHost: a\r\n\r\n",
    "two blanks in the request line": ask(first=b"GET  / HTTP/1.1"),
    "a blank after the version": ask(first=b"GET / HTTP/1.1 "),
    "a tab in the request line": ask(first=b"GET\t/ HTTP/1.1"),
    "a blank in the target": ask(first=b"GET /a b HTTP/1.1"),
    "bytes above ASCII in the target": ask(first=b"GET /\xc3\xa9 HTTP/1.1"),
    "no version": ask(first=b"GET /"),
    "HTTP/2": ask(first=b"GET / HTTP/2"),
    "a lower-case protocol": ask(first=b"GET / http/1.1"),
    "no Host in HTTP/1.1": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": ask(b"Host: b"),
    "a negative chunk": ask(TE + b"chunked", body=b"-1\r\nx\r\n0\r\n\r\n"),
    "a chunk with a plus": ask(TE + b"chunked", body=b"+1\r\nx\r\n0\r\n\r\n"),
    "a chunk with 0x": ask(TE + b"chunked", body=b"0x1\r\nx\r\n0\r\n\r\n"),
    "a chunk with an underscore": ask(TE + b"chunked", body=b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"),
    "a chunk larger than any": ask(TE + b"chunked", body=b"f" * 21 + b"\r\nx\r\n0\r\n\r\n"),
    "a chunk without a size": ask(TE + b"chunked", body=b"\r\nx\r\n0\r\n\r\n"),
    "a blank before a chunk's size": ask(TE + b"chunked", body=b" 1\r\nx\r\n0\r\n\r\n"),
    "a chunk longer than it says": ask(TE + b"chunked", body=b"1\r\nxy\r\n0\r\n\r\n"),
    "a chunk that ends in LF": ask(TE + b"chunked", body=b"1\r\nx\n0\r\n\r\n"),
    "a chunk that ends in CR": ask(TE + b"chunked", body=b"1\r\nx\r0\r\n\r\n"),
    "a blank before an extension": ask(TE + b"chunked", body=b"1 ;a=b\r\nx\r\n0\r\n\r\n"),
    "a trailer without a name": ask(TE + b"chunked", body=b"0\r\n: x\r\n\r\n"),
    "a trailer with a blank before its colon": ask(TE + b"chunked", body=b"0\r\nx : y\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH_REFUSE)
def test_both_refuse(name: str) -> None:
    assert ours(BOTH_REFUSE[name]) == REFUSED
    assert theirs(BOTH_REFUSE[name]) == REFUSED


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/2.0\r\nHost: a", 505),
        (b"GET / HTTP/1.2\r\nHost: a", 505),
        (b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"x: y"] * 101), 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip", 501),
        (b"TRACE / HTTP/1.1\r\nHost: a", 405),
        (b"", 400),
        (b"\x16\x03\x01\x02", 400),
    ],
)
def test_the_status_says_why(data: bytes, status: int) -> None:
    with pytest.raises(Refused) as refused:
        request_head(data)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: a\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_an_engines_answer_that_can_be_read_in_two_ways_is_not_read_at_all(answer: bytes) -> None:
    assert ours_answer(answer, b"GET") == REFUSED


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=20), st.lists(st.integers(1, 40), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_chunking_in_any_pieces_gives_the_same_body(body: bytes, sizes: list[int], cuts: list[int]) -> None:
    data = chunked(body, sizes, b";x=y", b"trailer: 1\r\n") + b"NEXT"
    chunks, found, at = Chunks(), [], 0
    for cut in [*cuts, len(data)]:
        piece = data[at : at + cut]
        at += cut
        if chunks.done:
            chunks.rest += piece
        elif piece:
            found += chunks.feed(piece)
    assert chunks.done
    assert (b"".join(found), chunks.rest) == (body, b"NEXT")


@given(st.binary(max_size=80), st.lists(st.integers(1, 30), max_size=60))
@settings(max_examples=150, deadline=None)
def test_chunks_read_byte_by_byte_end_as_those_read_at_once(data: bytes, cuts: list[int]) -> None:
    def read(pieces: list[bytes]) -> tuple[bytes, bool] | str:
        chunks, found, after = Chunks(), b"", b""
        try:
            for piece in pieces:
                if chunks.done:
                    after += piece
                else:
                    found += b"".join(chunks.feed(piece))
        except Refused:
            return REFUSED
        return found, chunks.done

    whole = b"3\r\nabc\r\n" + data
    pieces, at = [], 0
    for cut in [*cuts, len(whole)]:
        pieces.append(whole[at : at + cut])
        at += cut
    assert read([p for p in pieces if p]) == read([whole])


def test_a_size_line_that_never_ends_is_refused_before_it_is_long() -> None:
    chunks = Chunks()
    with pytest.raises(Refused):
        for _ in range(1000):
            chunks.feed(b"0")


def test_trailers_that_never_end_are_refused() -> None:
    for piece in (b"x", b"x: y\r\n"):
        chunks = Chunks()
        chunks.feed(b"0\r\n")
        with pytest.raises(Refused):
            for _ in range(http1.HEAD_LIMIT + 1):
                chunks.feed(piece)


def test_what_concerns_one_connection_is_not_passed_on() -> None:
    lines = [b"Host: a", b"Connection: close, X-Mine", b"Keep-Alive: 5", b"TE: trailers", b"Upgrade: h2c", b"X-Mine: 1",
             b"Proxy-Authorization: Basic x", b"Expect: 100-continue", b"Content-Length: 0", b"X-Other: 2"]  # fmt: skip
    head = request_head(b"\r\n".join([b"GET / HTTP/1.1", *lines]))
    assert head.kept == [b"X-Other: 2"]
    assert not head.keep_alive


def test_a_line_seen_before_is_read_as_the_first_time_and_secrets_are_not_remembered() -> None:
    data = b"GET /seen HTTP/1.1\r\nHost: a\r\nX-Seen: b\r\nAuthorization: Bearer s3cret\r\nX-Api-Key: s3cret"
    assert request_head(data) == request_head(data)
    assert b"X-Seen: b" in http1._LINES
    assert not any(b"s3cret" in line for line in http1._LINES)
    for i in range(5000):
        request_head(b"GET /seen/%d HTTP/1.1\r\nHost: a\r\nX-Seen: %d" % (i, i))
    assert max(len(http1._LINES), len(http1._FIRSTS)) <= 1024
    with pytest.raises(Refused):
        request_head(data + b"\r\nHost: a")


# ------------------------------------------------------------------------------------- heads that a client sends again

LINES = st.sampled_from(
    [b"Host: a", b"Content-Length: 7", b"content-length:\t12 ", b"Content-Length: 007", b"Content-Length: 7x",
     b"Content-Length: " + b"9" * 16, b"Content-Length:", b"x-content-length: 5", b"Transfer-Encoding: chunked",
     b"Authorization: Bearer k", b"Content-Type: 7", b"Connection: close", b"Connection: x-content-length"]
)  # fmt: skip
HEADS = st.lists(LINES, max_size=5).map(lambda lines: b"\r\n".join([b"POST /v1/completions HTTP/1.1", *lines]))
DIGITS = st.sampled_from(
    [b"7", b"12", b"007", b"", b"-1", b"+7", b"1_0", b"9" * 15, b"9" * 16, "७".encode(), b"7\r\n7"]
)


def read(reader: Heads | None, data: bytes) -> RequestHead | tuple[int, str]:
    try:
        return request_head(data) if reader is None else reader.read(data)
    except Refused as error:
        return error.status, str(error)


@given(st.lists(HEADS, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0, 2), DIGITS), max_size=8))
def test_a_head_that_comes_again_is_read_as_if_it_were_the_first(
    heads: list[bytes], again: list[tuple[int, bytes]]
) -> None:
    reader = Heads()
    for number, digits in again:
        for data in (heads[number % len(heads)], heads[number % len(heads)].replace(b"7", digits)):
            assert read(reader, data) == read(None, data)


def test_what_is_changed_in_one_head_is_not_in_the_next() -> None:
    reader, data = Heads(), b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nx-a: b"
    for _ in range(3):
        head = reader.read(data)
        assert (head.kept, head.fields[b"content-length"]) == ([b"x-a: b"], b"7")
        head.kept = [b"traceparent: of another request"]
        head.fields[b"content-length"] = b"8"
