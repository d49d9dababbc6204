"""The mock engine in two other languages: /v1/responses (OpenAI) and /v1/messages (Anthropic).

A request is read as its own API writes it, answered as the chat that it amounts to, and written as its own API writes
answers. Its prompt is the row of tokens that the gateway makes of it.

>>> asked = read_messages(b'{"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}')
>>> asked.chat.limit, asked.chat.messages[0].content
(8, 'hi')
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from assay.live import api as gateway_api
from assay.live import mock_api as api
from assay.live.mock_api import Count, Invalid, Table
from assay.live.mock_text import Answer
from assay.live.mock_wire import CREATED, Usage, encoded
from assay.live.tokens import ByteTokens, Message, Tokens

_Share = Annotated[float, Meta(ge=0, le=1)]
_Heat = Annotated[float, Meta(ge=0, le=2)]


@dataclass(frozen=True)
class Asked:
    """What a request amounts to."""

    chat: api.Chat
    prompt: Tokens


# ------------------------------------------------------------------------------------------------ what is asked


class _Said(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: str | list[Table]


class _MessagesTool(msgspec.Struct):
    name: api.Name
    input_schema: Table
    description: str | None = None


class _MessagesChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _Messages(msgspec.Struct, kw_only=True):
    """POST /v1/messages."""

    model: str
    max_tokens: Count
    messages: Annotated[list[_Said], Meta(min_length=1)]
    system: str | list[Table] | None = None
    tools: list[_MessagesTool] | None = None
    tool_choice: _MessagesChoice | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: _Share | None = None
    top_p: _Share | None = None


class _ResponsesTool(msgspec.Struct):
    type: Literal["function"]
    name: api.Name
    parameters: Table | None = None
    description: str | None = None


class _ResponsesChoice(msgspec.Struct):
    type: Literal["function"]
    name: str


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: Table | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Responses(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    model: str
    input: str | Annotated[list[Table], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[_ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ResponsesChoice | None = None
    text: _Text | None = None
    stream: bool | None = None
    temperature: _Heat | None = None
    top_p: _Share | None = None
    previous_response_id: str | None = None


def _choice(name: str) -> api.ToolChoice:
    return api.ToolChoice(api.FunctionName(name))


def _tools(tools: list[_MessagesTool] | list[_ResponsesTool] | None) -> msgspec.Raw:
    """As a chat has them."""
    listed = [
        {"name": t.name, "parameters": t.input_schema if isinstance(t, _MessagesTool) else t.parameters}
        for t in tools or ()
    ]
    return msgspec.Raw(encoded([{"type": "function", "function": f} for f in listed]) if listed else b"")


def _prompt(body: bytes, endpoint: str) -> tuple[list[Message], Tokens]:
    ask = gateway_api.read(body, endpoint)
    if ask is None:
        raise Invalid("the messages cannot be read", "messages" if endpoint == "messages" else "input")
    return ask.messages, gateway_api.tokens(ask, endpoint, ByteTokens())[0]


def _known(chat: api.Chat) -> api.Chat:
    choice = chat.tool_choice
    if choice not in (None, "none", "auto") and not chat.tools:
        raise Invalid("tool_choice needs tools", "tool_choice")
    if isinstance(choice, api.ToolChoice) and choice.function.name not in (t.name for t in api.functions(chat)):
        raise Invalid("tool_choice names a function that is not among the tools", "tool_choice")
    return chat


def read_messages(body: bytes) -> Asked:
    """What is asked at /v1/messages. Raises Invalid."""
    asked = api.read(body, _Messages)
    said, prompt = _prompt(body, "messages")
    wish = asked.tool_choice
    choice: Any = None
    if wish is not None:
        choice = _choice(wish.name or "") if wish.type == "tool" else "required" if wish.type == "any" else wish.type
    chat = api.Chat(
        model=asked.model, messages=said, max_tokens=asked.max_tokens, tools=_tools(asked.tools), tool_choice=choice,  # type: ignore[arg-type]
        stream=asked.stream, stop=asked.stop_sequences,
    )  # fmt: skip
    return Asked(_known(chat), prompt)


def read_responses(body: bytes) -> Asked:
    """What is asked at /v1/responses. Raises Invalid."""
    asked = api.read(body, _Responses)
    if asked.previous_response_id:
        raise Invalid("earlier responses are not kept: send the conversation", "previous_response_id", 404)
    said, prompt = _prompt(body, "responses")
    wish, form = asked.tool_choice, asked.text.format if asked.text else None
    schema = api.JsonSchema(form.name, form.schema) if form and form.type == "json_schema" else None
    chat = api.Chat(
        model=asked.model, messages=said, max_tokens=asked.max_output_tokens, tools=_tools(asked.tools),  # type: ignore[arg-type]
        tool_choice=_choice(wish.name) if isinstance(wish, _ResponsesChoice) else wish, stream=asked.stream,
        response_format=api.ResponseFormat(form.type, schema) if form else None,
    )  # fmt: skip
    return Asked(_known(chat), prompt)


# --------------------------------------------------------------------------------------------- what is answered


def event(name: str, /, **data: Any) -> bytes:
    """One event with a name, as both APIs write them."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded({"type": name, **data}))


def failure(message: str) -> bytes:
    """The event that ends a stream in an error."""
    return event("error", error={"type": "api_error", "message": message, "code": 500})


_MARK = "\0"  # stands where a token's text will
_ESCAPED = b"\\u0000"
_NUMBER = b"-1"  # stands where its number will


class Script:
    """The events of an answer: some before its first token, one a token, some after the last."""

    __slots__ = ("_after", "_before", "_first", "_numbers", "_pieces")

    def __init__(self, answer: Answer, first: bytes, token: bytes, numbers: int | None = None) -> None:
        self._pieces, self._first, self._numbers = answer.pieces, first, numbers
        before, self._after = token.split(_ESCAPED)
        self._before = before.split(_NUMBER)

    def chunk(self, i: int) -> bytes:
        """The event of a token, with whatever goes before the first."""
        number = b"" if self._numbers is None else b"%d" % (self._numbers + i)
        return b"".join((b"" if i else self._first, number.join(self._before), self._pieces[i], self._after))


@dataclass(frozen=True)
class MessagesAnswer:
    """An answer of /v1/messages."""

    identity: str
    model: str
    answer: Answer
    prompt: int

    def _block(self, text: Any, table: Any) -> dict[str, Any]:
        if not self.answer.function:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": f"toolu_{self.identity[4:]}", "name": self.answer.function, "input": table}

    def _whole(self, content: list[Any], reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self.identity, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": self.answer.stopped_by if reason else None, "usage": usage,
        }  # fmt: skip

    @property
    def _reason(self) -> str:
        if self.answer.stopped_by is not None:
            return "stop_sequence"
        return {"length": "max_tokens", "tool_calls": "tool_use"}.get(self.answer.finish, "end_turn")

    @staticmethod
    def _usage(usage: Usage) -> dict[str, int]:
        cached = {} if usage.cached is None else {"cache_read_input_tokens": usage.cached}
        return {"input_tokens": usage.prompt - (usage.cached or 0), **cached, "output_tokens": usage.completion}

    def whole(self, usage: Usage) -> bytes:
        """All of it at once."""
        text = msgspec.Raw(b'"%b"' % self.answer.text)
        return encoded(self._whole([self._block(text, _parsed(self.answer))], self._reason, self._usage(usage)))

    def script(self) -> Script:
        """It as a stream."""
        begun = self._whole([], None, {"input_tokens": self.prompt, "output_tokens": 0})
        first = event("message_start", message=begun)
        first += event("content_block_start", index=0, content_block=self._block("", {}))
        delta = {"type": "text_delta", "text": _MARK}
        if self.answer.function:
            delta = {"type": "input_json_delta", "partial_json": _MARK}
        return Script(self.answer, first, event("content_block_delta", index=0, delta=delta))

    def farewell(self, usage: Usage) -> bytes:
        """What a stream ends with."""
        delta = {"stop_reason": self._reason, "stop_sequence": self.answer.stopped_by}
        ends = [event("content_block_stop", index=0), event("message_delta", delta=delta, usage=self._usage(usage))]
        return b"".join((*ends, event("message_stop")))


@dataclass(frozen=True)
class ResponsesAnswer:
    """An answer of /v1/responses."""

    identity: str
    model: str
    answer: Answer

    @property
    def _item_id(self) -> str:
        return f"{'fc' if self.answer.function else 'msg'}_{self.identity[5:]}"

    def _part(self, text: Any) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _item(self, text: Any, status: str) -> dict[str, Any]:
        if self.answer.function:
            called = {"call_id": f"call_{self.identity[5:]}", "name": self.answer.function, "arguments": text}
            return {"type": "function_call", "id": self._item_id, "status": status, **called}
        content = [self._part(text)] if text else []
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": content}

    def _whole(self, output: list[Any], status: str, usage: Any = None) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.identity, "object": "response", "created_at": CREATED, "status": status, "model": self.model,
            "output": output, "error": None, "incomplete_details": cut, "instructions": None, "metadata": {},
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0,
            "usage": usage,
        }  # fmt: skip

    @property
    def _text(self) -> msgspec.Raw:
        return msgspec.Raw(b'"%b"' % self.answer.text)

    def _ended(self, usage: Usage) -> dict[str, Any]:
        status = "incomplete" if self.answer.finish == "length" else "completed"
        told = {
            "input_tokens": usage.prompt, "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": usage.completion, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }  # fmt: skip
        return self._whole([self._item(self._text, status)], status, told)

    def whole(self, usage: Usage) -> bytes:
        """All of it at once."""
        return encoded(self._ended(usage))

    def script(self) -> Script:
        """It as a stream. All its events are numbered."""
        begun, at = self._whole([], "in_progress"), {"item_id": self._item_id, "output_index": 0}
        first = [
            event("response.created", sequence_number=0, response=begun),
            event("response.in_progress", sequence_number=1, response=begun),
            event("response.output_item.added", sequence_number=2, output_index=0, item=self._item("", "in_progress")),
        ]
        if self.answer.function:
            name, place = "response.function_call_arguments.delta", at
        else:
            name, place = "response.output_text.delta", {**at, "content_index": 0, "logprobs": []}
            part = {**at, "content_index": 0, "part": self._part("")}
            first.append(event("response.content_part.added", sequence_number=3, **part))
        return Script(self.answer, b"".join(first), event(name, sequence_number=-1, **place, delta=_MARK), len(first))

    def farewell(self, usage: Usage) -> bytes:
        """What a stream ends with."""
        return b"".join(self._last(self._ended(usage)))

    def _last(self, ended: dict[str, Any]) -> Iterator[bytes]:
        at: dict[str, Any] = {"item_id": self._item_id, "output_index": 0}
        numbers = count((3 if self.answer.function else 4) + len(self.answer.pieces))

        def numbered(name: str, /, **data: Any) -> bytes:
            return event(name, sequence_number=next(numbers), **data)

        if self.answer.function:
            named = {"name": self.answer.function, "arguments": self._text}
            yield numbered("response.function_call_arguments.done", **at, **named)
        else:
            at["content_index"] = 0
            yield numbered("response.output_text.done", **at, text=self._text, logprobs=[])
            yield numbered("response.content_part.done", **at, part=self._part(self._text))
        yield numbered("response.output_item.done", output_index=0, item=ended["output"][0])
        yield numbered(f"response.{ended['status']}", response=ended)


def _parsed(answer: Answer) -> Any:
    """A call's arguments as a table; where they were cut off, none."""
    try:
        return msgspec.json.decode(msgspec.json.decode(b'"%b"' % answer.text, type=str))
    except msgspec.DecodeError:
        return {}
