"""Answers of the mock engine as bytes, in the shape that vLLM gives them.

What does not change within an answer is written once; a token then costs the joining of a few pieces.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.live.mock_text import Answer, digest
from assay.live.server import error_body
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


def failure(message: str) -> bytes:
    """How a stream ends that went wrong, as vLLM ends it: an error among the events, and the end as always."""
    return b"data: %b\n\n%b" % (error_body(message, "x", 500), DONE)


class Events(Protocol):
    """The events of one sequence."""

    def chunk(self, i: int) -> bytes:
        """The event of a token, with whatever goes before the first."""


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


_MARK = b"\0"  # stands where a token's text or its log probabilities will; no JSON has it


def _finish(answer: Answer) -> bytes:
    return b'"finish_reason":%b,"stop_reason":%b' % (encoded(answer.finish), encoded(answer.stopped_by))


def chat_framing(heading: Heading, index: int, answer: Answer) -> Framing:
    """Events of a chat: the role first, then a piece of the content or of a call's arguments each."""

    def event(delta: bytes, finish: bytes = b'"finish_reason":null') -> list[bytes]:
        choice = b'{"index":%d,"delta":{%b},"logprobs":%b,%b}' % (index, delta, _MARK, finish)
        return heading.event(choice).split(_MARK)

    role = _NULL.join(event(b'"role":"assistant","content":""'))
    first = delta = b'"content":"%b"' % _MARK
    if answer.function:
        arguments = b'"arguments":"%b"}}]' % _MARK
        told = encoded(call_id(heading.identity, index)), encoded(answer.function), arguments
        first = b'"tool_calls":[{"id":%b,"type":"function","index":0,"function":{"name":%b,%b' % told
        delta = b'"tool_calls":[{"index":0,"function":{%b' % arguments
    opening = role + event(first)[0]
    before, close, after = event(delta)
    return Framing(answer, opening, before, close, after, event(delta, _finish(answer))[2])


def completion_framing(heading: Heading, index: int, answer: Answer) -> Framing:
    """Events of a completion."""

    def event(finish: bytes) -> list[bytes]:
        choice = b'{"index":%d,"text":"%b","logprobs":%b,%b}' % (index, _MARK, _MARK, finish)
        return heading.event(choice).split(_MARK)

    before, close, after = event(b'"finish_reason":null,"stop_reason":null')
    return Framing(answer, before, before, close, after, event(_finish(answer))[2])


def call_id(identity: str, index: int) -> str:
    """The id of a function's call."""
    return f"chatcmpl-tool-{identity.removeprefix('chatcmpl-')}{index}"


def chat_answer(heading: Heading, answers: list[Answer], usage: Usage, logprobs: list[list[bytes] | None]) -> bytes:
    """A chat's whole answer."""
    choices = []
    for index, answer in enumerate(answers):
        text = msgspec.Raw(b'"%b"' % answer.text)
        calls = []
        if answer.function:
            function = {"name": answer.function, "arguments": text}
            calls = [{"id": call_id(heading.identity, index), "type": "function", "function": function}]
        message = {
            "role": "assistant", "content": None if calls else text, "refusal": None, "annotations": None,
            "audio": None, "function_call": None, "tool_calls": calls, "reasoning_content": None,
        }  # fmt: skip
        told = {"content": [entry for row in rows for entry in _content(row)]} if (rows := logprobs[index]) else None
        choices.append({"index": index, "message": message, "logprobs": told} | _end(answer))
    more = {"service_tier": None, "system_fingerprint": None, "usage": usage.table(), "prompt_logprobs": None}
    return encoded(heading.whole() | {"choices": choices} | more)


def completion_answer(
    heading: Heading, answers: list[Answer], usage: Usage, logprobs: list[list[bytes] | None]
) -> bytes:
    """A completion's whole answer."""
    choices = [
        {"index": index, "text": msgspec.Raw(b'"%b"' % answer.text), "logprobs": _joined(rows)}
        | _end(answer)
        | {"prompt_logprobs": None}
        for index, (answer, rows) in enumerate(zip(answers, logprobs, strict=True))
    ]
    return encoded(heading.whole() | {"choices": choices, "usage": usage.table()})


def _end(answer: Answer) -> dict[str, Any]:
    return {"finish_reason": answer.finish, "stop_reason": answer.stopped_by}


# --------------------------------------------------------------------------------------------- log probabilities


def _logprob(token: int, rank: int) -> float:
    """What the model thought of a token: the chosen one is the likeliest, the others follow."""
    return -round(0.05 + (token % 997) / 997.0 + rank, 6)


def _candidates(token: int, count: int) -> list[tuple[str, float]]:
    texts = [token.to_bytes(4, "little"), *(b"%c%c%c " % (97 + r, 97 + r, 97 + r) for r in range(max(count - 1, 0)))]
    return [
        (text.decode("utf-8", "replace"), _logprob(token, rank)) for rank, text in enumerate(texts[: max(count, 1)])
    ]


def chat_logprobs(answer: Answer, top: int) -> list[bytes]:
    """What stands under `logprobs` in the event of each token of a chat."""
    rows = []
    for token in answer.tokens.tolist():
        found = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in _candidates(token, top)]
        rows.append(encoded({"content": [found[0] | {"top_logprobs": found[:top]}]}))
    return rows


def completion_logprobs(answer: Answer, top: int) -> list[bytes]:
    """What stands under `logprobs` in the event of each token of a completion."""
    rows = []
    for at, token in enumerate(answer.tokens.tolist()):
        found = _candidates(token, top)
        text, value = found[0]
        told = {"text_offset": [4 * at], "token_logprobs": [value], "tokens": [text], "top_logprobs": [dict(found)]}
        rows.append(encoded(told))
    return rows


def _content(row: bytes) -> list[Any]:
    content: list[Any] = msgspec.json.decode(row)["content"]
    return content


def _joined(rows: list[bytes] | None) -> dict[str, list[Any]] | None:
    if rows is None:
        return None
    tables = [msgspec.json.decode(row) for row in rows]
    return {name: [entry for table in tables for entry in table[name]] for name in tables[0]}


# ----------------------------------------------------------------------------------------------------- embeddings


def unit_vector(seed: int, tokens: Tokens, dimensions: int) -> NDArray[np.float32]:
    """A direction that stands for a text.

    >>> vector = unit_vector(0, np.arange(3, dtype=np.uint32), 64)
    >>> len(vector), round(float(np.linalg.norm(vector)), 6)
    (64, 1.0)
    """
    normal = np.random.Generator(np.random.Philox(digest(seed, tokens))).standard_normal(dimensions)
    return (normal / np.linalg.norm(normal)).astype("<f4")


def embedding_answer(
    identity: str, model: str, vectors: Iterable[NDArray[np.float32]], prompt: int, in_base64: bool
) -> bytes:
    """Vectors, as numbers or as base64 of their bytes."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": base64.b64encode(vector.tobytes()).decode() if in_base64 else vector.tolist(),
        }
        for index, vector in enumerate(vectors)
    ]
    whole = {"id": identity, "object": "list", "created": CREATED, "model": model, "data": data}
    return encoded(whole | {"usage": Usage(prompt, 0).table()})
