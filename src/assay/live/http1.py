"""HTTP/1.1 messages, read strictly: a message is understood in one way, or refused.

Two parties that read the same bytes differently are how requests are smuggled past a proxy. So there is no leniency:
lines end in CRLF, a body's length is told once, nothing is folded or repaired. Bodies are passed on as they came.

>>> head = request_head(b"POST /v1/completions HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 2")
>>> head.method, head.path, head.length, head.keep_alive
(b'POST', b'/v1/completions', 2, True)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

HEAD_LIMIT = 32 * 1024  # bytes of a request's or response's head
FIELD_LIMIT = 100  # header lines
CHUNKED = -1  # a body in chunks
UNTIL_CLOSE = -2  # a response's body that ends with the connection

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_LINE = re.compile(rb"(" + _TOKEN + rb"+):([\t -~\x80-\xff]*)\Z")  # no blank before the colon, no CR, no LF
_REQUEST = re.compile(rb"(" + _TOKEN + rb"{1,20}) (/[!-~]*) HTTP/1\.([01])\Z")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?\Z")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:;[\t -~]*)?\Z")
_DIGITS = re.compile(rb"[0-9]{1,15}\Z")
# Another path to whoever decodes it: dots, doubled slashes, and in %xx what needs none (letters, digits, . - _ ~), what
# must not be there (controls, slashes), or what is no code at all.
_TRICK = re.compile(
    rb"\\|//|#|/\.\.?(?:/|\Z)|%(?![0-9a-f][0-9a-f])|%(?:[01]|2[def]|3[0-9]|4[1-9a-f]|5[0-9acf]|6[1-9a-f]|7[0-9aef])",
    re.IGNORECASE,
)
_SIZE_LINE_LIMIT = 256
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=[ \t]*(?:\r\n|\Z))", re.IGNORECASE)
_TRIES = 4  # heads that are remembered, one after the other: a client that sends others all the time is not worth more
_KNOWN = 2048  # bytes of one
_SIZES = {b"%x" % size: size for size in range(1, 2048)}  # of nearly all chunks: looked up faster than read
_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type"))
_NOT_SPOKEN = frozenset((b"CONNECT", b"TRACE"))  # a tunnel; an echo of what only the engine should see

# What concerns one connection only and is never passed on; `content-length` and `expect` are said anew.
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"host")
)  # fmt: skip


class Refused(Exception):  # noqa: N818 - read as a sentence
    """A message that is not answered as asked: the status says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class RequestHead:
    """What a client asks."""

    method: bytes
    target: bytes  # path and query, as they came
    path: bytes
    minor: int  # HTTP/1.minor
    fields: dict[bytes, bytes]  # lower-case names; lines of one name are joined by commas
    kept: list[bytes]  # the lines that go on to whoever answers
    length: int  # of the body; CHUNKED
    keep_alive: bool


@dataclass(slots=True)
class ResponseHead:
    """What an engine answers."""

    status: int
    line: bytes  # "200 OK"
    fields: dict[bytes, bytes]
    kept: list[bytes]
    length: int  # CHUNKED, UNTIL_CLOSE
    keep_alive: bool


def request_head(data: bytes) -> RequestHead:
    """The head of a request, without the blank line that ends it. Raises Refused."""
    first, fields, kept = _fields(data)
    method, target, path, minor = _FIRSTS.get(first) or _request_line(first)
    if b"host" not in fields and minor:
        raise Refused(400, "Host is missing")
    length = _request_length(fields, minor)
    return RequestHead(method, target, path, minor, fields, kept, length, _keeps_alive(fields, minor))


class Heads:
    """The heads of one client's requests: most have the same lines over and over, but for the Content-Length.

    Equal bytes are read in one way, so what was found good once need not be read again. What is remembered, keys too,
    goes with the connection.

    >>> heads = Heads()
    >>> asked = b"POST /v1/completions HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: %d"
    >>> [heads.read(asked % length).length for length in (2, 300)]
    [2, 300]
    """

    __slots__ = ("_after", "_before", "_known", "_tries")

    def __init__(self) -> None:
        self._before = self._after = b""  # the digits of the length
        self._known: RequestHead | None = None
        self._tries = _TRIES

    def read(self, data: bytes) -> RequestHead:
        """As `request_head`."""
        known = self._known
        if known is not None and data.startswith(self._before) and data.endswith(self._after):
            said = data[len(self._before) : len(data) - len(self._after)]
            if _DIGITS.match(said):
                fields = known.fields.copy()
                fields[b"content-length"] = said
                return RequestHead(
                    known.method, known.target, known.path, known.minor, fields, known.kept, int(said), known.keep_alive
                )
        head = request_head(data)
        if self._tries and len(data) <= _KNOWN:
            self._remember(data, head)
        return head

    def _remember(self, data: bytes, head: RequestHead) -> None:
        found = _LENGTH.search(data)
        if found is not None:
            self._tries -= 1
            self._known = replace(head)  # whoever has the other may change it
            self._before, self._after = data[: found.start(1)], data[found.end(1) :]


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Method, target, path, HTTP/1.minor."""
    found = _REQUEST.match(line)
    if not found:
        raise _no_request_line(line)
    method, target, version = found.groups()
    path, asked, query = target.partition(b"?")
    if _TRICK.search(path) or b"#" in query:
        raise Refused(400, "the path is not in its plain form")
    if method in _NOT_SPOKEN:
        raise Refused(405, f"{method.decode()} is not answered here")
    parts = method, target, path, version[0] - 48
    if not asked:
        _remember(_FIRSTS, line, parts)
    return parts


def _no_request_line(line: bytes) -> Refused:
    """Why a line asks for nothing."""
    parts = line.split(b" ")
    if len(parts) != 3:
        return Refused(400, "the request line is not 'METHOD path HTTP/1.1'")
    method, target, version = parts
    if re.fullmatch(rb"HTTP/[0-9](\.[0-9])?", version) and version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return Refused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if not re.fullmatch(_TOKEN + rb"{1,20}", method):
        return Refused(400, "the method is not a word")
    if not re.fullmatch(rb"/[!-~]*", target):
        return Refused(400, "the target is not a path that begins with /")
    return Refused(400, "the request line does not end in HTTP/1.1")


_HEADS: dict[tuple[bytes, bytes], ResponseHead] = {}  # of engines, which answer alike over and over


def response_head(data: bytes, asked: bytes) -> ResponseHead:
    """The head of the response to a request with method `asked`, without the blank line. Raises Refused (502).

    Heads that are equal give one and the same object: it is for reading only.
    """
    known = _HEADS.get((data, asked))
    if known is None:
        known = _response_head(data, asked)
        if len(data) <= 2 * _LONGEST and not _SECRET.search(data):
            if len(_HEADS) >= _REMEMBERED:
                _HEADS.clear()
            _HEADS[data, asked] = known
    return known


def _response_head(data: bytes, asked: bytes) -> ResponseHead:
    try:
        first, fields, kept = _fields(data)
    except Refused as error:
        raise Refused(502, f"the engine's answer: {error}") from None
    found = _STATUS.match(first)
    if not found:
        raise Refused(502, "the engine's answer has no HTTP/1.x status line")
    minor, status = int(found[1]), int(found[2])
    coding, said = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if status == 101:
        raise Refused(502, "the engine wants to speak another protocol")
    if coding is not None and (said is not None or not minor or coding.lower() != b"chunked"):
        raise Refused(502, "the engine's answer has a length that can be read in two ways")
    if said is not None and not _DIGITS.match(said):
        raise Refused(502, "the engine's answer has a Content-Length that is not a number")
    if asked == b"HEAD" or status < 200 or status in (204, 304):
        length = 0
    elif coding is not None:
        length = CHUNKED
    else:
        length = UNTIL_CLOSE if said is None else int(said)
    alive = _keeps_alive(fields, minor) and length != UNTIL_CLOSE
    return ResponseHead(status, first[9:], fields, kept, length, alive)


# Clients send the same lines over and over: those were read and found good before. Bounded, and never a secret one.
_FIRSTS: dict[bytes, tuple[bytes, bytes, bytes, int]] = {}
_LINES: dict[bytes, tuple[bytes, bytes, bool]] = {}
_REMEMBERED = 1024  # lines
_LONGEST = 256  # bytes of one
_SECRET = re.compile(rb"auth|cookie|key|token|secret|session", re.IGNORECASE)


def _remember(where: dict[bytes, Any], line: bytes, parts: tuple[Any, ...]) -> None:
    if len(line) <= _LONGEST:
        if len(where) >= _REMEMBERED:
            where.clear()
        where[line] = parts


def _fields(data: bytes) -> tuple[bytes, dict[bytes, bytes], list[bytes]]:
    """The first line, the fields by name, and the lines that may be passed on."""
    lines = data.split(b"\r\n")
    if len(lines) > FIELD_LIMIT + 1:
        raise Refused(431, f"more than {FIELD_LIMIT} header lines")
    fields: dict[bytes, bytes] = {}
    kept: list[bytes] = []
    known = _LINES.get
    rest = iter(lines)
    first = next(rest)
    for line in rest:
        name, value, passed_on = known(line) or _line(line)
        if name in fields:
            if name in _ONCE:
                raise Refused(400, f"{name.decode()} is said twice")
            value = fields[name] + b", " + value
        fields[name] = value
        if passed_on:
            kept.append(line)
    named = fields.get(b"connection")
    if named is not None and named not in (b"keep-alive", b"close"):
        kept = _without(kept, named)
    return first, fields, kept


def _line(line: bytes) -> tuple[bytes, bytes, bool]:
    """A field's name, its value, and whether it goes on to whoever answers."""
    found = _LINE.match(line)
    if not found:
        raise Refused(400, "a header line is not 'name: value', or has a control character")
    name = found[1].lower()
    parts = name, found[2].strip(b" \t"), name not in HOP_BY_HOP
    if not _SECRET.search(name):
        _remember(_LINES, line, parts)
    return parts


def _without(lines: list[bytes], named: bytes) -> list[bytes]:
    """The lines but those that a Connection field names."""
    words = _words(named)
    return [line for line in lines if line.partition(b":")[0].lower() not in words]


def _words(named: bytes) -> set[bytes]:
    return {word.strip(b" \t") for word in named.lower().split(b",")}


def _request_length(fields: dict[bytes, bytes], minor: int) -> int:
    coding, said = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if said is not None:
            raise Refused(400, "both Content-Length and Transfer-Encoding")
        if not minor or coding.lower() != b"chunked":
            raise Refused(501 if minor else 400, "the only transfer coding here is chunked, in HTTP/1.1")
        return CHUNKED
    if said is None:
        return 0
    if not _DIGITS.match(said):
        raise Refused(400, "Content-Length is not a number")
    return int(said)


def _keeps_alive(fields: dict[bytes, bytes], minor: int) -> bool:
    named = fields.get(b"connection")
    if named is None:
        return minor == 1
    words = _words(named)
    return b"close" not in words and (minor == 1 or b"keep-alive" in words)


class Chunks:
    """Takes a chunked body apart as it arrives.

    >>> chunks = Chunks()
    >>> chunks.feed(b"3\\r\\nabc\\r\\n2;x=y\\r\\nd"), chunks.feed(b"e\\r\\n0\\r\\n\\r\\nGET")
    ([b'abc', b'd'], [b'e'])
    >>> chunks.done, chunks.rest
    (True, b'GET')
    """

    __slots__ = ("_before", "_left", "_trailer", "done", "rest")

    def __init__(self) -> None:
        self._left = 0  # bytes of the present chunk to come; -2, -1: its CRLF
        self._before = b""
        self._trailer = -1  # bytes of trailer lines so far; -1: not there yet
        self.done = False
        self.rest = b""  # what follows the body

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in `data`. Raises Refused where the framing is broken."""
        if self._before:
            data, self._before = self._before + data, b""
        found: list[bytes] = []
        at, size, left = 0, len(data), self._left
        while at < size and not self.done:
            if left > 0:
                piece = data[at : at + left]
                found.append(piece)
                at += len(piece)
                left = left - len(piece) or -2
            elif left < 0:
                if data[at] != (13 if left == -2 else 10):
                    raise Refused(400, "a chunk does not end where it says")
                left += 1
                at += 1
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._before, at = self._incomplete(data[at:]), size
                    break
                line, at = data[at:end], end + 2
                left = _SIZES.get(line, 0) if self._trailer < 0 else 0
                if not left:
                    left = self._line(line)
                stop = at + left
                if left and data[stop : stop + 2] == b"\r\n":  # nearly always: it is whole
                    found.append(data[at:stop])
                    at, left = stop + 2, 0
        self._left = left
        self.rest = data[at:] if at < size else b""
        return found

    def _incomplete(self, line: bytes) -> bytes:
        if self._trailer >= 0:
            if self._trailer + len(line) > HEAD_LIMIT:
                raise Refused(400, "the trailers do not end")
        elif len(line) > _SIZE_LINE_LIMIT:
            raise Refused(400, "a chunk's size does not end")
        return line

    def _line(self, line: bytes) -> int:
        """A chunk's size; or a line after the last chunk, read and dropped: then 0."""
        if self._trailer >= 0:
            self._trailer += len(line) + 2
            if not line:
                self.done = True
            elif self._trailer > HEAD_LIMIT or _line(line)[0] in _ONCE:
                raise Refused(400, "a trailer says what only a head may say, or too much")
            return 0
        found = _SIZE_LINE.match(line) if len(line) <= _SIZE_LINE_LIMIT else None
        if not found:
            raise Refused(400, "a chunk's size is not a number")
        left = int(found[1], 16)
        if left == 0:
            self._trailer = 0
        return left
