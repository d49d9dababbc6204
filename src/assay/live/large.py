"""Large requests, read piece by piece, so that nobody else waits while a prompt of megabytes is understood.

What makes a request large is nearly always a few long texts or images. A first pass finds where they are and leaves a
small request behind, in which each is abbreviated; that one is read as any other. A second pass brings back as much of
the texts as the prefix index looks at, and counts the rest. Both give way after every piece. What cannot, a model's own
tokenizer, is handed out to be called elsewhere. The small request is kept: where an engine is asked something else than
the client asked, it is the one that is edited.

>>> body = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}' % (b"so it goes\\\\n" * 20_000)
>>> steps = read(body, "chat", ByteTokens(), 1 << 18)
>>> given_way = sum(1 for _ in steps)
>>> given_way >= 2 * len(body) // PIECE
True
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from assay.live import api
from assay.live.tokens import TEXTS, ByteTokens, Message, TokenizerTokens

PIECE = 1 << 16  # bytes after which others have their turn
LARGE = 2 * PIECE  # bytes of a request that is read so
_LONG = 1 << 13  # bytes of a text that is abbreviated,
_KEPT = 1 << 12  # and of its beginning, which stays
_HUGE = 1 << 21  # bytes of a request of which even texts of 512 bytes are abbreviated, to 64
_SMALL = 1 << 22  # bytes of what is left that may be read at once
_INSIDE = re.compile(rb'[^"\\]*+(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*+)*+', re.DOTALL)  # of a string, up to its end
_HIGH = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # half of a pair
_SALT = os.urandom(6).hex()
_MARK = re.compile(rf"\[{_SALT}:([0-9]+):[0-9a-f]{{32}}\]\Z")
_MARKED = re.compile(_MARK.pattern.removesuffix(r"\Z").encode())

Elsewhere = Callable[[], Any]  # what is to be called where nobody waits for it


class Asked(msgspec.Struct):
    """What a large request asks, the tokens of its prompt's beginning, and how many there are in all."""

    ask: api.Ask
    row: Any
    count: int


@dataclass(frozen=True)
class Short:
    """A request without its long texts, and where those are: from where to where, and how much of each is kept."""

    small: bytes
    places: list[tuple[int, int, int]]
    many: bool = False  # so many values, or bytes, that nobody looks at all of them

    def edited(self, body: bytes | bytearray, edit: Callable[[bytes], bytes]) -> list[bytes | memoryview]:
        """The request after an edit of what is small, in pieces; the long texts are not looked at."""
        small, whole, at = edit(self.small), memoryview(body), 0
        pieces: list[bytes | memoryview] = []
        for mark in _MARKED.finditer(small):
            if (n := int(mark[1])) < len(self.places):
                _, kept, end = self.places[n]
                pieces += (small[at : mark.start()], whole[kept:end])
                at = mark.end()
        return [*pieces, small[at:]]


class _UnreadableError(Exception):
    """A text that is none."""


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


def read(
    body: bytes | bytearray, endpoint: str, tokenizer: ByteTokens | TokenizerTokens, tokens: int
) -> Generator[Elsewhere | None, Any, tuple[Asked | api.Outline, Short | None]]:
    """As `api.read` and `api.tokens`, of which the first `tokens`; an outline where it is none that can be read.

    What it yields, where that is not None, is to be called, and its value sent back.
    """
    short = yield from _abbreviated(body)
    if short is None:
        return api.Outline(), None
    if short.many:
        return api.ends_outline(short.small), short
    ask = api.read(short.small, endpoint) if endpoint != "other" else None
    if ask is None:
        return api.outline(short.small), short
    yield None
    try:
        more = yield from _Texts(body, short.places, 4 * tokens).restore(ask, endpoint)
        yield None
    except (_UnreadableError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return api.outline(short.small), short
    if isinstance(tokenizer, ByteTokens):
        row, count = api.tokens(ask, endpoint, tokenizer)
    else:
        row, count = yield partial(api.tokens, ask, endpoint, tokenizer)
    return Asked(ask, row[:tokens], count + more // 4), short


def _abbreviated(body: bytes | bytearray) -> Generator[None, None, Short | None]:
    """The request with long texts abbreviated, and where those are; None where a text has no end."""
    long, most = (_LONG, _KEPT) if len(body) < _HUGE else (_LONG >> 4, _KEPT >> 6)
    kept: list[bytes | memoryview] = []
    places: list[tuple[int, int, int]] = []
    at = done = copied = digested = 0
    while at < len(body):
        stop = min(at + PIECE, len(body))
        start = body.find(b'"', at, stop) + 1
        if not start:
            at = done = stop
            yield
            continue
        end = start
        while end >= len(body) or body[end] != 34:  # its quote
            if end - done >= PIECE:
                done = end
                yield
            found = _INSIDE.match(body, end, min(end + PIECE, len(body)))
            assert found is not None
            if found.end() == end:  # neither a letter nor an escape, and not the end
                return None
            end = found.end()
        if end - start > long:
            digest = hashlib.blake2b(digest_size=16)
            for n in range(start, end, PIECE):
                stop = min(n + PIECE, end)
                digest.update(body[n:stop])
                digested += stop - n
                if digested >= PIECE:
                    digested = 0
                    yield
            cut = _whole(body, start, start + most)
            kept += bytes(body[copied:cut]), f"[{_SALT}:{len(places)}:{digest.hexdigest()}]".encode()
            places.append((start, cut, end))
            copied = end
        at = end + 1
        if at - done >= PIECE:
            done = at
            yield
    kept.append(memoryview(body)[copied:])
    small, values = b"".join(kept), 0
    for at in range(0, len(small), PIECE):
        values += small.count(b",", at, at + PIECE) + 4 * small.count(b"{", at, at + PIECE)
        yield
    return Short(small, places, values > api.MANY or len(small) > _SMALL)


def _whole(body: bytes | bytearray, start: int, stop: int) -> int:
    """As far as a piece of a text can be read by itself: no letter, no escape and no pair of them is cut."""
    found = _INSIDE.match(body, start, stop)
    assert found is not None
    end = found.end()
    while end > start and body[end] & 0xC0 == 0x80:
        end -= 1
    if _HIGH.search(body, max(end - 6, start), end):
        end -= 6
    return end if end > start else found.end()


class _Texts:
    """The texts that were abbreviated: as much of them as is looked at, and how long the rest is."""

    def __init__(self, body: bytes | bytearray, places: list[tuple[int, int, int]], room: int) -> None:
        self._body, self._places, self._room = body, places, room
        self._rest = self._done = 0

    def restore(self, ask: api.Ask, endpoint: str) -> Generator[None, None, int]:
        """Put them where they belong; the bytes that are missing."""
        for message in ask.messages:
            if isinstance(message.content, str):
                message.content = yield from self._text(message.content)
            elif message.content is not None:
                yield from self._parts(message)
        if endpoint in ("completion", "embedding"):
            name = "prompt" if endpoint == "completion" else "input"
            raw = bytes(getattr(ask, name))
            if raw.count(b"[") > api.PARTS or raw.count(b'"') > 8 * api.PARTS:
                raise _UnreadableError
            prompt = msgspec.json.decode(raw) if raw else ""
            if isinstance(prompt, str):
                prompt = yield from self._text(prompt)
            elif isinstance(prompt, list):
                for n, text in enumerate(prompt):
                    if isinstance(text, str):
                        prompt[n] = yield from self._text(text)
            setattr(ask, name, msgspec.Raw(msgspec.json.encode(prompt)))
        return self._rest

    def _parts(self, message: Message) -> Generator[None, None, None]:
        assert isinstance(message.content, list)
        for n, raw in enumerate(message.content):
            try:
                part = msgspec.json.decode(raw, type=_Part)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if part.type in TEXTS and _MARK.search(part.text):
                text = yield from self._text(part.text)
                message.content[n] = msgspec.Raw(msgspec.json.encode(_Part(part.type, text)))

    def _text(self, short: str) -> Generator[None, None, str]:
        found = _MARK.search(short)
        if found is None or int(found[1]) >= len(self._places):
            return short
        start, _, end = self._places[int(found[1])]
        pieces: list[str] = []
        while start < end:
            stop = _whole(self._body, start, start + PIECE) if end - start > PIECE else end
            try:
                text = msgspec.json.decode(b'"' + self._body[start:stop] + b'"', type=str)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _UnreadableError from error
            size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            if self._room > 0:
                pieces.append(text)
                self._room -= size
            else:
                self._rest += size
            self._done += stop - start
            start = stop
            if self._done >= PIECE:
                self._done = 0
                yield
        return "".join(pieces)
