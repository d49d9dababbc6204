"""Requests to the mock engine, read as strictly as a real engine reads them; fields unknown here are passed over.

>>> asked = read_chat(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "top_k": 5}')
>>> asked.max_tokens, asked.messages[0].content
(8, 'hi')
>>> read_chat(b'{"model": "m", "messages": []}')
Traceback (most recent call last):
assay.live.mock_api.Invalid: Expected `array` of length >= 1 - at `$.messages`
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from assay.live.tokens import ByteTokens, Message, Tokens

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_PARTS = frozenset(
    ("text", "refusal", "image_url", "input_audio", "audio_url", "video_url", "file", "thinking", "input_text",
     "output_text", "input_image", "image_pil", "image_embeds", "tool_reference")
)  # fmt: skip


class Invalid(Exception):  # noqa: N818 - read as a sentence
    """A request that is not answered as asked."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code or status


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Table = dict[str, Any]


class ChatMessage(Message):
    """A message whose role is one of OpenAI's."""

    role: Role


class StreamOptions(msgspec.Struct):
    """What a stream tells beside its tokens."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Function(msgspec.Struct):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: Table | None = None


class Tool(msgspec.Struct):
    """A tool; all of them are functions."""

    function: Function
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct):
    """Which function."""

    name: str


class ToolChoice(msgspec.Struct):
    """The one tool that must be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct):
    """What an answer must look like."""

    name: str
    schema: Table | None = None


class ResponseFormat(msgspec.Struct):
    """Text, or JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """What chats and completions have in common. Where null is said, nothing is said."""

    model: str
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    user: str | None = None

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class Chat(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: msgspec.Raw = msgspec.Raw()  # as they were sent: they count as part of the prompt
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens that the answer may have."""
        return self.max_completion_tokens or self.max_tokens


Id = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Rows = str | Annotated[list[str | Id | list[Id]], Meta(min_length=1)]


class Completion(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: Rows
    echo: bool | None = None
    suffix: str | None = None
    best_of: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens that the answer may have; 16 where nothing is said, as OpenAI has it."""
        return self.max_tokens or 16


class Embedding(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings."""

    input: Rows
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=16384)] | None = None
    user: str | None = None


class Tokenize(msgspec.Struct, kw_only=True):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: msgspec.Raw = msgspec.Raw()


class FaultList(msgspec.Struct):
    """POST /faults."""

    faults: list[str]


T = TypeVar("T")
_TOOLS = msgspec.json.Decoder(list[Tool] | None)
_PART = msgspec.json.Decoder(Table)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FLOAT = re.compile(rb"-?[0-9.]+([eE][+-]?[0-9]{1,2})?")  # not so large that its digits would fill a page


def read(body: bytes, kind: type[T]) -> T:
    """A request of this kind. Raises Invalid."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            return msgspec.json.decode(_whole_numbers(body), type=kind)
    except msgspec.ValidationError as error:
        found = _PATH.search(str(error))
        raise Invalid(str(error), found[1] if found else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from None


def _whole_numbers(body: bytes) -> bytes:
    """The same request, where a count or a token that was written as 5.0 is 5: to JSON they are one number."""
    fields = _FIELDS.decode(body)
    for name, raw in fields.items():
        if name in ("prompt", "input") or _FLOAT.fullmatch(raw):
            fields[name] = msgspec.Raw(msgspec.json.encode(_whole(msgspec.json.decode(raw))))
    return msgspec.json.encode(fields)


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_chat(body: bytes) -> Chat:
    """A chat. Raises Invalid."""
    chat = read(body, Chat)
    _check_sampling(chat)
    if chat.top_logprobs and not chat.logprobs:
        raise Invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    for number, message in enumerate(chat.messages):
        if isinstance(message.content, list):
            for position, part in enumerate(message.content):
                _check_part(part, f"messages[{number}].content[{position}]")
    choice, tools = chat.tool_choice, functions(chat)
    if choice is not None and choice != "none" and not tools:
        raise Invalid("tool_choice needs tools", "tool_choice")
    if isinstance(choice, ToolChoice) and choice.function.name not in (tool.name for tool in tools):
        raise Invalid("tool_choice names a function that is not among the tools", "tool_choice")
    form = chat.response_format
    if form is not None and form.type == "json_schema" and form.json_schema is None:
        raise Invalid("response_format of type json_schema needs json_schema", "response_format")
    return chat


def read_completion(body: bytes) -> Completion:
    """A completion. Raises Invalid."""
    completion = read(body, Completion)
    _check_sampling(completion)
    if completion.suffix:
        raise Invalid("suffix is not supported", "suffix")
    return completion


def _check_sampling(asked: Chat | Completion) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise Invalid("stream_options needs stream to be true", "stream_options")
    if asked.min_tokens and asked.limit and asked.min_tokens > asked.limit:
        raise Invalid("min_tokens is larger than max_tokens", "min_tokens")


def _check_part(raw: msgspec.Raw, where: str) -> None:
    """A part of a message's content is an object with a type that engines know."""
    try:
        part = _PART.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"Expected `object` - at `$.{where}`", where) from None
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _PARTS:
        raise Invalid(f"Expected the type of a part, such as 'text' or 'image_url' - at `$.{where}.type`", where)
    if kind == "text" and not isinstance(part.get("text"), str):
        raise Invalid(f"Expected `str` - at `$.{where}.text`", where)


def functions(chat: Chat) -> list[Function]:
    """The functions a chat may call. Raises Invalid."""
    if not chat.tools:
        return []
    try:
        tools = _TOOLS.decode(chat.tools)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$", "`$.tools") if "`$" in str(error) else f"{error} - at `$.tools`"
        raise Invalid(text, "tools") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"tools are not JSON: {error}", "tools") from None
    if tools is not None and not tools:
        raise Invalid("Expected `array` of length >= 1 - at `$.tools`", "tools")
    return [tool.function for tool in tools or ()]


def token_rows(rows: Any, field: str, tokenizer: ByteTokens) -> list[Tokens]:
    """The tokens of each of the prompts in a field. Raises Invalid.

    >>> [len(row) for row in token_rows(["abcdefgh", "ij"], "prompt", ByteTokens())]
    [2, 1]
    """
    if isinstance(rows, str):
        found = [tokenizer.text(rows)]
    elif all(isinstance(row, int) for row in rows):
        found = [np.array(rows, np.uint32)]
    elif all(isinstance(row, str) for row in rows):
        found = [tokenizer.text(row) for row in rows]
    elif all(isinstance(row, list) for row in rows):
        found = [np.array(row, np.uint32) for row in rows]
    else:
        raise Invalid(f"{field} should be a text, a row of token ids, or a list of either", field)
    if not all(map(len, found)):
        raise Invalid(f"{field} is empty", field)
    return found
