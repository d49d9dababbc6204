"""What the gateway reads of a request's body: enough to choose an engine. The body itself goes on as it came.

>>> ask = read(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true, "seed": 7}')
>>> ask.model, ask.stream, ask.messages[0].content
('m', True, 'hi')
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.live.tokens import ByteTokens, Message, TokenizerTokens

CHAT, COMPLETION, EMBEDDING = b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"
ENDPOINTS = {CHAT: "chat", COMPLETION: "completion", EMBEDDING: "embedding"}


class Ask(msgspec.Struct, gc=False):
    """The fields that matter here; all others are passed over."""

    model: str = ""
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: str | None = None
    messages: list[Message] = []
    tools: msgspec.Raw = msgspec.Raw()  # absent where empty
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class Outline(msgspec.Struct, gc=False):
    """What is read of a request that is not read as a whole."""

    model: str = ""
    stream: bool | None = False


class PromptDetails(msgspec.Struct, gc=False):
    """What an engine says of a prompt."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """What an answer took."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the engine found in its cache, where it says so."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Answer(msgspec.Struct, gc=False):
    usage: Usage | None = None


_ASK = msgspec.json.Decoder(Ask)
_OUTLINE = msgspec.json.Decoder(Outline)
_ANSWER = msgspec.json.Decoder(_Answer)
_MARK = b'"usage":'


_LONG, _MANY = 1 << 16, 1 << 18  # bytes; values, an object being about four


def read(body: bytes) -> Ask | None:
    """The request, or None where it is none that an engine will take: that is for the engine to say.

    Also None where there are so many values in it that everybody else would wait while they are read: a prompt of
    millions of token ids, a million messages. Long texts and images are not many values.
    """
    if len(body) > _LONG and body.count(b",") + 4 * body.count(b"{") > _MANY:
        return None
    try:
        return _ASK.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def outline(body: bytes) -> Outline:
    """As much as is needed to send on a request that was not read."""
    try:
        return _OUTLINE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Outline()


def usage(body: bytes) -> Usage | None:
    """The usage that an answer, or one event of a stream, ends with."""
    if _MARK not in body:
        return None
    try:
        return _ANSWER.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def streamed_usage(data: bytes) -> Usage | None:
    """The usage in one of the events of `data`, where some event has one."""
    if _MARK not in data:
        return None
    for event in reversed(data.split(b"\n")):
        if event.startswith(b"data:") and _MARK in event and (found := usage(event[5:])):
            return found
    return None


def tokens(ask: Ask, endpoint: str, tokenizer: ByteTokens | TokenizerTokens) -> tuple[NDArray[np.uint32], int]:
    """The prompt's token ids, for its prefix, and how many tokens there are in all (a batch of prompts has more)."""
    if endpoint == "chat":
        row = tokenizer.chat(ask.messages, ask.tools)
        return row, len(row)
    raw = ask.prompt if endpoint == "completion" else ask.input
    try:
        prompt = msgspec.json.decode(raw) if raw else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what was passed over until now was not checked
        prompt = ""
    return tokenizer.prompt(prompt)
