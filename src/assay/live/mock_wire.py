"""Answers of the mock engine as bytes, in the shape that vLLM gives them.

What does not change within an answer is written once; a token then costs the joining of a few pieces.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.live.mock_text import Answer, digest
from assay.live.tokens import Tokens

CREATED = 1_700_000_000  # a constant, so that asking twice gives the same bytes
DONE = b"data: [DONE]\n\n"
EVENTS = [b"content-type: text/event-stream; charset=utf-8"]
_NULL = b"null"


def encoded(value: Any) -> bytes:
    """JSON."""
    return msgspec.json.encode(value)


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took, in tokens; `cached` of the prompt, where it is told."""

    prompt: int
    completion: int
    cached: int | None = None

    def table(self) -> dict[str, Any]:
        """As it is written, in vLLM's order.

        >>> Usage(3, 2).table()
        {'prompt_tokens': 3, 'total_tokens': 5, 'completion_tokens': 2, 'prompt_tokens_details': None}
        """
        details = None if self.cached is None else {"cached_tokens": self.cached}
        return {
            "prompt_tokens": self.prompt, "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion, "prompt_tokens_details": details,
        }  # fmt: skip

    def streamed(self) -> dict[str, Any]:
        """As a stream says it: without what is not told."""
        return {name: value for name, value in self.table().items() if value is not None}


@dataclass(frozen=True, slots=True)
class Heading:
    """What all events and the whole answer begin with."""

    identity: str
    kind: str  # chat.completion, text_completion
    model: str

    def whole(self) -> dict[str, Any]:
        """Of an answer that comes at once."""
        return {"id": self.identity, "object": self.kind, "created": CREATED, "model": self.model}

    def event(self, choices: bytes, more: bytes = b"") -> bytes:
        """One event of a stream."""
        kind = f"{self.kind}.chunk" if self.kind == "chat.completion" else self.kind
        table = encoded({"id": self.identity, "object": kind, "created": CREATED, "model": self.model})
        return b"data: %b,%b%b}\n\n" % (table[:-1], b'"choices":[%b]' % choices, more)

    def usage(self, usage: Usage) -> bytes:
        """The last event of a stream whose client wants to know."""
        return self.event(b"", b',"usage":' + encoded(usage.streamed()))


class Framing:
    """The events of one sequence: `chunk(i)` is the one of its token i, with whatever goes before the first."""

    __slots__ = ("_after", "_before", "_close", "_end", "_first", "_last", "_logprobs", "_pieces")

    def __init__(self, answer: Answer, first: bytes, before: bytes, close: bytes, after: bytes, end: bytes) -> None:
        self._pieces, self._last = answer.pieces, len(answer.pieces) - 1
        self._first, self._before, self._close, self._after, self._end = first, before, close, after, end
        self._logprobs: list[bytes] | None = None

    def with_logprobs(self, logprobs: list[bytes] | None) -> Framing:
        """The same, with log probabilities of each token."""
        self._logprobs = logprobs
        return self

    def chunk(self, i: int) -> bytes:
        """The event of a token."""
        logprobs = self._logprobs[i] if self._logprobs else _NULL
        before = self._before if i else self._first
        return b"".join((before, self._pieces[i], self._close, logprobs, self._end if i == self._last else self._after))


_MARK = b"\0"  # stands where a token's text or its log probabilities will


def _split(event: bytes) -> list[bytes]:
    return event.split(_MARK)


def chat_framing(heading: Heading, index: int, answer: Answer) -> Framing:
    """Events of a chat: the role first, then a piece of the content or of a call's arguments each."""

    def event(delta: bytes, finish: bytes) -> list[bytes]:
        return _split(heading.event(b'{"index":%d,"delta":{%b},"logprobs":%b,%b}' % (index, delta, _MARK, finish)))

    going, finish = b'"finish_reason":null', _finish(answer)
    role = b"null".join(event(b'"role":"assistant","content":""', going))
    delta = first = b'"content":"%b"' % _MARK
    if answer.function:
        arguments = b'"arguments":"%b"' % _MARK
        name = b'"function":{"name":%b,%b}' % (encoded(answer.function), arguments)
        call = encoded(call_id(heading.identity, index))
        first = b'"tool_calls":[{"id":%b,"type":"function","index":0,%b}]' % (call, name)
        delta = b'"tool_calls":[{"index":0,"function":{%b}}]' % arguments
    opening, close, after = event(first, going)
    before, close, after = event(delta, going)
    *_, end = event(delta, finish)
    framing = Framing(answer, role + opening, before, close, after, end)
    if answer.function:
        _, close_first, _ = event(first, going)
        framing = _CallFraming(framing, close_first)
    return framing


class _CallFraming(Framing):
    """Of a call: the first event closes more brackets than the others."""

    __slots__ = ("_close_first",)

    def __init__(self, framing: Framing, close_first: bytes) -> None:
        super().__init__(
            _Pieces(framing._pieces), framing._first, framing._before, framing._close, framing._after, framing._end
        )
        self._close_first = close_first
