"""What the gateway reads of a request's body: enough to choose an engine. The body itself goes on as it came.

>>> ask = read(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true, "seed": 7}')
>>> ask.model, ask.stream, ask.messages[0].content
('m', True, 'hi')
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.live.tokens import ByteTokens, Message, TokenizerTokens

ENDPOINTS = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "completion",
    b"/v1/embeddings": "embedding",
    b"/v1/responses": "responses",
    b"/v1/messages": "messages",
}


# What concerns only whoever asks, by method and path: a list of models, speech and its text, answers, batches and files
# that an engine keeps. Lists of the latter are everybody's; and some engines load and unload models below /v1/models.
OPEN = re.compile(
    rb"(?:GET|HEAD) /v1/models(?:/[^/]+)*|POST /v1/(?:audio/\w+|batches|files)"
    rb"|(?:GET|HEAD|POST|DELETE) /v1/(?:responses|batches|files)/[^/]+(?:/\w+)?"
)

CONVERSATIONS = frozenset(("chat", "messages", "responses"))
NAMED_EVENTS = frozenset(("messages", "responses"))  # an error in their streams wants to be called one


class Ask(msgspec.Struct, gc=False):
    """The fields that matter here; all others are passed over."""

    model: str = ""
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    user: str | None = None
    messages: list[Message] = []
    tools: msgspec.Raw = msgspec.Raw()  # absent where empty
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: str | None = None  # of /v1/responses: what comes before the input
    system: str | list[msgspec.Raw] | None = None  # of /v1/messages
    previous_response_id: str | None = None  # of /v1/responses: the answer that it goes on from

    @property
    def limit(self) -> int | None:
        """Tokens that the answer may have."""
        return self.max_completion_tokens or self.max_output_tokens or self.max_tokens


class Outline(msgspec.Struct, gc=False):
    """What is read of a request that is not read as a whole."""

    model: str = ""
    stream: bool | None = False


class PromptDetails(msgspec.Struct, gc=False):
    """What an engine says of a prompt."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """What an answer took, as any of the APIs says it."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    input_tokens: int = 0  # /v1/responses; in /v1/messages without those that were cached
    output_tokens: int | None = None
    input_tokens_details: PromptDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        if self.prompt_tokens:
            return self.prompt_tokens
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)

    @property
    def output(self) -> int | None:
        """Tokens of the answer, where it says so."""
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the engine found in its cache, where it says so."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return details.cached_tokens if details else self.cache_read_input_tokens

    def after(self, earlier: Usage | None) -> Usage:
        """With what an earlier event has told: /v1/messages says first what went in, then what came out."""
        if earlier is None or self.prompt:
            return self
        return msgspec.structs.replace(earlier, output_tokens=self.output)


class _Nested(msgspec.Struct, gc=False):
    usage: Usage | None = None


class _Answer(msgspec.Struct, gc=False):
    usage: Usage | None = None
    message: _Nested | str | None = None  # where /v1/messages begins
    response: _Nested | None = None  # where /v1/responses ends


class _Handed(msgspec.Struct, gc=False):
    kv_transfer_params: dict[str, Any] | None = None


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


_ASK = msgspec.json.Decoder(Ask)
_OUTLINE = msgspec.json.Decoder(Outline)
_ANSWER = msgspec.json.Decoder(_Answer)
_CHUNK = msgspec.json.Decoder(_Chunk)
_HANDED = msgspec.json.Decoder(_Handed)
_MESSAGE = msgspec.json.Decoder(Message)
_MARK = b'"usage":'


_LONG, MANY = 1 << 16, 1 << 18  # bytes; values, an object being about four
PARTS = 1 << 13  # of messages, and rows of a prompt: each of them takes as long as many values


def read(body: bytes, endpoint: str = "chat") -> Ask | None:
    """The request, or None where it is none that an engine will take: that is for the engine to say.

    Also None where there are so many values in it that everybody else would wait while they are read: a prompt of
    millions of token ids, a million messages. Long texts and images are not many values.
    """
    if len(body) > _LONG and body.count(b",") + 4 * body.count(b"{") > MANY:
        return None
    try:
        ask = _ASK.decode(body)
        if endpoint == "messages" and ask.system:
            ask.messages = [Message("system", ask.system), *ask.messages]
        elif endpoint == "responses":
            said = _said(ask)
            if said is None:
                return None
            ask.messages = said
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(body) > 2 * PARTS and sum(len(m.content) for m in ask.messages if isinstance(m.content, list)) > PARTS:
        return None
    return ask


def _said(ask: Ask) -> list[Message] | None:
    """The input of /v1/responses as messages: a text, or items, some of which (calls, their results) have no role.

    None where there are too many of them.
    """
    messages = [Message("system", ask.instructions)] if ask.instructions else []
    if not ask.input:
        return messages
    given = msgspec.json.decode(ask.input, type=str | list[msgspec.Raw])
    if isinstance(given, str):
        return [*messages, Message("user", given)]
    if len(given) > PARTS:
        return None
    for item in given:
        try:
            messages.append(_MESSAGE.decode(item))
        except msgspec.ValidationError:
            messages.append(Message("tool", [item]))
    return messages


def outline(body: bytes) -> Outline:
    """As much as is needed to send on a request that was not read."""
    try:
        return _OUTLINE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Outline()


_MODEL = re.compile(rb'"model"\s*:\s*("[^"\\]{1,256}")')
_STREAM = re.compile(rb'"stream"\s*:\s*true')


def ends_outline(body: bytes) -> Outline:
    """The outline of a request with very many values, from what stands before and after them."""
    ends = body[:_LONG] + b" " + body[-_LONG:]
    found = _MODEL.search(ends)
    return Outline(msgspec.json.decode(found[1], type=str) if found else "", _STREAM.search(ends) is not None)


def renamed(body: bytes | bytearray, name: str) -> list[bytes | memoryview]:
    """The request with another model, in pieces, where that is named before or after very many values.

    >>> b"".join(renamed(b'{"model": "big", "prompt": [1, 2]}', "small"))
    b'{"model": "small", "prompt": [1, 2]}'
    """
    whole = memoryview(body)
    for start in (0, max(len(body) - _LONG, 0)):
        if (found := _MODEL.search(body, start, start + _LONG)) is not None:
            return [whole[: found.start(1)], msgspec.json.encode(name), whole[found.end(1) :]]
    return [whole]


def edited(body: bytes, changes: dict[str, Any], without: tuple[str, ...] = ()) -> bytes:
    """The request with other values in some fields; all else as it was written.

    >>> edited(b'{"model": "big",  "x": 1e400}', {"model": "small"})
    b'{"model":"small","x":1e400}'
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in without:
        fields.pop(name, None)
    for name, value in changes.items():
        fields[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields)


_TO_DECODE = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip


def prefill(body: bytes, changes: dict[str, Any]) -> bytes:
    """The request that computes the prompt only, and keeps it for an engine that will ask for it (vLLM's hand-over)."""
    one = {"max_tokens": 1, "stream": False, "kv_transfer_params": _TO_DECODE}
    if b'"max_completion_tokens"' in body:
        one["max_completion_tokens"] = 1
    return edited(body, {**changes, **one}, ("stream_options", "min_tokens", "n"))


def handed_over(body: bytes) -> Any:
    """What an engine says of a prompt that it keeps; None where it keeps none."""
    try:
        return _HANDED.decode(body).kv_transfer_params
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def usage(body: bytes) -> Usage | None:
    """The usage that an answer, or one event of a stream, ends with."""
    if _MARK not in body:
        return None
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    nested = answer.response or (answer.message if isinstance(answer.message, _Nested) else None)
    return answer.usage or (nested.usage if nested else None)


def streamed_usage(data: bytes, known: Usage | None = None) -> Usage | None:
    """The usage that events tell, the last word on it, after what is known from earlier ones."""
    for event in data.split(b"\n"):
        if event.startswith(b"data:") and _MARK in event and (found := usage(event[5:])):
            known = found.after(known)
    return known


def named_tokens(data: bytes) -> int:
    """Tokens in whole events of the APIs whose events have names: the names tell which carry a piece of the answer.

    >>> named_tokens(b'event: content_block_delta\\ndata: {"delta": {"text": "So"}}\\n\\n')
    1
    """
    return data.count(b"event: content_block_delta") + data.count(b".delta\n")


_END = re.compile(rb'^data: ?\[DONE\]|"finish_reason": ?"', re.MULTILINE)
_NAMED_ENDS = {
    "messages": re.compile(rb'^event: ?message_stop|"type": ?"message_stop"|"stop_reason": ?"', re.MULTILINE),
    "responses": re.compile(
        rb'"type": ?"response\.(?:completed|incomplete|failed|cancelled)"|^data: ?\[DONE\]', re.MULTILINE
    ),
}


def ends(endpoint: str, piece: bytes) -> bool:
    """Whether a stream says of itself that it is whole, in a piece of it.

    >>> ends("chat", b'data: {"choices": [{"finish_reason": "stop"}]}\\n\\n')
    True
    >>> ends("chat", b'data: {"choices": [{"delta": {"content": "So"}, "finish_reason": null}]}\\n\\n')
    False
    """
    if endpoint == "other" or piece.endswith(b"data: [DONE]\n\n"):
        return True
    return _NAMED_ENDS.get(endpoint, _END).search(piece) is not None


def begins_with_role(data: bytes) -> bool:
    """Whether the first event of a chat only names the role, and carries no token.

    >>> begins_with_role(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\\n\\n')
    True
    """
    return b'"role":' in data and data.startswith(b"data:") and _only_role(data[5:].partition(b"\n")[0])


def _only_role(event: bytes) -> bool:
    if b'"content":""' in event or b'"content":null' in event:  # as vLLM and llama.cpp write it: no time to lose
        return b'"reasoning' not in event and b'"tool_calls":[' not in event
    try:
        chunk = _CHUNK.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    said = (choice.delta for choice in chunk.choices)
    return not any(d.content or d.reasoning or d.reasoning_content or d.tool_calls for d in said)


def streamed_error(data: bytes) -> tuple[int, str] | None:
    """Status and message of an error that an engine reports in the middle of its events.

    >>> streamed_error(b'data: {"error": {"message": "out of memory", "code": 500}}\\n\\ndata: [DONE]\\n\\n')
    (500, 'out of memory')
    """
    for line in data.split(b"\n"):
        if not line.startswith(b"data:") or b'"error":' not in line:
            continue
        try:
            event = msgspec.json.decode(line[5:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        fault = event.get("error") if isinstance(event, dict) else None
        if isinstance(event, dict) and not fault and isinstance(event.get("response"), dict):
            fault = event["response"].get("error")  # response.failed
        if fault:
            return _fault(fault)
    return None


def _fault(fault: Any) -> tuple[int, str]:
    """What is known of an error: some say a code, some only a kind."""
    if not isinstance(fault, dict):
        return 500, str(fault)
    code, kind = fault.get("code"), str(fault.get("type", "")).lower()
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if not isinstance(code, int) or not 400 <= code <= 599:
        code = 400 if "invalid" in kind or "badrequest" in kind else 500
    return code, str(fault.get("message", ""))


def tokens(ask: Ask, endpoint: str, tokenizer: ByteTokens | TokenizerTokens) -> tuple[NDArray[np.uint32], int]:
    """The prompt's token ids, for its prefix, and how many tokens there are in all (a batch of prompts has more)."""
    if endpoint in CONVERSATIONS:
        row = tokenizer.chat(ask.messages, ask.tools)
        return row, len(row)
    raw = ask.prompt if endpoint == "completion" else ask.input
    try:
        prompt = msgspec.json.decode(raw) if raw else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what was passed over until now was not checked
        prompt = ""
    return tokenizer.prompt(prompt)
