"""The mock engine: the simulator's own instance on the wall clock, behind the API of a real engine.

Requests come over HTTP as vLLM takes them. What is said depends on the prompt alone (`mock_text`): asking twice gives
the same bytes. When it is said is the simulator's word (`mock_board`). An embedding counts as a prompt with one token
of answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any

from assay import __version__
from assay.live import mock_api as api
from assay.live import mock_dialects as dialects
from assay.live import mock_text as text
from assay.live import mock_wire as wire
from assay.live.mock_api import Invalid
from assay.live.mock_board import Board, Call, Sequence, Settings
from assay.live.mock_dialects import Asked, MessagesAnswer, ResponsesAnswer
from assay.live.mock_text import Answer
from assay.live.mock_wire import Framing, Heading, Usage
from assay.live.server import JSON, Exchange, error_body
from assay.live.tokens import ByteTokens, Tokens
from assay.record.errors import BadInput

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError"}
_DIMENSIONS = 64


class Engine:
    """Answers requests. Needs a running loop; `close` when done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.board = Board(settings)
        self.draining = False
        self.max_model_len = self.board.instance.longest if self.board.instance else settings.max_model_len
        self._tokenizer = ByteTokens()
        self._crash: asyncio.TimerHandle | None = None
        self._set_crash()

    def close(self) -> None:
        """Stop the clock."""
        if self._crash is not None:
            self._crash.cancel()
        self.board.close()

    # ------------------------------------------------------------------------------------------------ requests

    def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        self.board.arrived = self.board.clock.now()
        methods = _ROUTES.get(exchange.head.path)
        try:
            if methods is None:
                raise Invalid("there is nothing at this path", None, 404)
            route = methods.get(exchange.head.method)
            if route is None:
                allow = b"allow: " + b", ".join(methods)
                body = error_body("the method is not for this path", _TYPES[405], 405)
                exchange.reply(405, [JSON, allow], body)
                return
            route(self, exchange)
        except Invalid as error:
            kind = _TYPES.get(error.status, "ServiceUnavailableError")
            more = [b"retry-after: 1"] if error.status == 503 else []
            exchange.reply(error.status, [JSON, *more], error_body(str(error), kind, error.code, error.param))

    def _reply(self, exchange: Exchange, table: Any) -> None:
        exchange.reply(200, [JSON], wire.encoded(table))

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.settings.model:
            raise Invalid(f"the model '{name[:200]}' does not exist", "model", 404, "model_not_found")

    def _limit(self, prompt: int, asked: int | None, field: str) -> int:
        """The most tokens an answer may have."""
        room = self.max_model_len - prompt
        if room < 1 or (asked or 1) > room:
            raise Invalid(
                f"the model's context is {self.max_model_len} tokens; {prompt} of prompt and {asked or 1} of answer "
                "do not fit",
                field,
            )
        return asked or room

    def _identity(self, exchange: Exchange, prefix: str, rows: list[Tokens]) -> str:
        given = exchange.head.fields.get(b"x-request-id", b"")
        hashed = hashlib.blake2b(given, digest_size=16, key=b"%d" % self.settings.seed)
        for row in rows:
            hashed.update(row.tobytes())
        return prefix + hashed.hexdigest()

    def _chat(self, exchange: Exchange) -> None:
        chat = api.read_chat(exchange.body)
        self._check_model(chat.model)
        prompt = self._tokenizer.chat(chat.messages, chat.tools)
        limit = self._limit(len(prompt), chat.limit, "messages")
        heading = Heading(self._identity(exchange, "chatcmpl-", [prompt]), "chat.completion", self.settings.model)
        answers = [
            self._chat_answer(chat, text.digest(self.settings.seed, prompt, number), limit)
            for number in range(chat.n or 1)
        ]
        logprobs = [wire.chat_logprobs(answer, chat.top_logprobs or 0) if chat.logprobs else None for answer in answers]
        call = Call(exchange, [prompt], lambda usage: wire.chat_answer(heading, answers, usage, logprobs))
        self._begin(call, chat, heading, answers, logprobs, wire.chat_framing)

    def _chat_answer(self, chat: api.Chat, start: int, limit: int) -> Answer:
        function = _called(chat)
        if function is not None:
            return text.written(text.value_json(function.parameters or {"type": "object"}, start), limit, function.name)
        form = chat.response_format
        if form is not None and form.type == "json_object":
            return text.written(f'{{"answer": "{text.answer_text(start, 4).strip()}"}}', limit)
        if form is not None and form.json_schema is not None:
            return text.written(text.value_json(form.json_schema.schema or {"type": "object"}, start), limit)
        return self._spoken(chat, start, limit)

    @staticmethod
    def _spoken(asked: api.Sampling, start: int, limit: int) -> Answer:
        least = limit if asked.ignore_eos else asked.min_tokens or 0
        return text.spoken(start, limit, least, asked.stops, bool(asked.include_stop_str_in_output))

    def _completion(self, exchange: Exchange) -> None:
        asked = api.read_completion(exchange.body)
        self._check_model(asked.model)
        rows = api.token_rows(asked.prompt, "prompt", self._tokenizer)
        heading = Heading(self._identity(exchange, "cmpl-", rows), "text_completion", self.settings.model)
        answers = []
        for row in rows:
            limit = self._limit(len(row), asked.limit, "prompt")
            for number in range(asked.n or 1):
                answer = self._spoken(asked, text.digest(self.settings.seed, row, number), limit)
                answers.append(text.echoed(row, answer) if asked.echo else answer)
        top = asked.logprobs
        logprobs = [None if top is None else wire.completion_logprobs(answer, top) for answer in answers]
        call = Call(exchange, rows, lambda usage: wire.completion_answer(heading, answers, usage, logprobs))
        self._begin(call, asked, heading, answers, logprobs, wire.completion_framing)

    def _begin(
        self, call: Call, asked: api.Sampling, heading: Heading, answers: list[Answer],
        logprobs: list[list[bytes] | None], frame: Callable[[Heading, int, Answer], Framing],
    ) -> None:  # fmt: skip
        call.stream = bool(asked.stream)
        if asked.usage_wanted:
            call.farewell = lambda usage: heading.usage(usage) + wire.DONE
        for index, (answer, rows) in enumerate(zip(answers, logprobs, strict=True)):
            framing = frame(heading, index, answer).with_logprobs(rows) if call.stream else None
            call.sequences.append(Sequence(call, answer, framing))
        self.board.submit(call)

    def _messages(self, exchange: Exchange) -> None:
        asked = dialects.read_messages(exchange.body)
        identity, answer = self._told(exchange, "msg_", asked, "messages")
        self._tell(exchange, asked, answer, MessagesAnswer(identity, self.settings.model, answer, len(asked.prompt)))

    def _responses(self, exchange: Exchange) -> None:
        asked = dialects.read_responses(exchange.body)
        identity, answer = self._told(exchange, "resp_", asked, "input")
        self._tell(exchange, asked, answer, ResponsesAnswer(identity, self.settings.model, answer))

    def _told(self, exchange: Exchange, prefix: str, asked: Asked, field: str) -> tuple[str, Answer]:
        self._check_model(asked.chat.model)
        limit = self._limit(len(asked.prompt), asked.chat.limit, field)
        identity = self._identity(exchange, prefix, [asked.prompt])
        return identity, self._chat_answer(asked.chat, text.digest(self.settings.seed, asked.prompt), limit)

    def _tell(self, exchange: Exchange, asked: Asked, answer: Answer, said: MessagesAnswer | ResponsesAnswer) -> None:
        call = Call(exchange, [asked.prompt], said.whole, bool(asked.chat.stream))
        call.farewell, call.failure = said.farewell, dialects.failure
        call.sequences = [Sequence(call, answer, said.script() if call.stream else None)]
        self.board.submit(call)

    def _embedding(self, exchange: Exchange) -> None:
        asked = api.read(exchange.body, api.Embedding)
        self._check_model(asked.model)
        rows = api.token_rows(asked.input, "input", self._tokenizer)
        for row in rows:
            self._limit(len(row), 1, "input")
        identity, model, seed = self._identity(exchange, "embd-", rows), self.settings.model, self.settings.seed
        size, in_base64 = asked.dimensions or _DIMENSIONS, asked.encoding_format == "base64"

        def whole(usage: Usage) -> bytes:
            vectors = (wire.unit_vector(seed, row, size) for row in rows)
            return wire.embedding_answer(identity, model, vectors, usage.prompt, in_base64)

        call = Call(exchange, rows, whole)
        call.sequences = [Sequence(call, Answer([b""], text.words(0, 1), "stop")) for _ in rows]
        self.board.submit(call)

    # --------------------------------------------------------------------------------------------- other paths

    def _models(self, exchange: Exchange) -> None:
        card = {
            "id": self.settings.model, "object": "model", "created": wire.CREATED, "owned_by": "assay",
            "root": self.settings.model, "parent": None, "max_model_len": self.max_model_len,
        }  # fmt: skip
        self._reply(exchange, {"object": "list", "data": [card]})

    def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self.draining else 200, [], b"")

    def _version(self, exchange: Exchange) -> None:
        self._reply(exchange, {"version": __version__})

    def _metrics(self, exchange: Exchange) -> None:
        exchange.reply(200, [b"content-type: text/plain; version=0.0.4; charset=utf-8"], self.board.page())

    def _tokenize(self, exchange: Exchange) -> None:
        asked = api.read(exchange.body, api.Tokenize)
        self._check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise Invalid("give either prompt or messages", "prompt")
        if asked.messages is not None:
            tokens = self._tokenizer.chat(asked.messages, asked.tools)
        else:
            tokens = self._tokenizer.text(asked.prompt or "")
        told = {
            "count": len(tokens),
            "max_model_len": self.max_model_len,
            "tokens": tokens.tolist(),
            "token_strs": None,
        }
        self._reply(exchange, told)

    def _reset(self, exchange: Exchange) -> None:
        self.board.reset_cache()
        exchange.reply(200, [], b"")

    def _faults(self, exchange: Exchange) -> None:
        self._reply(exchange, {"faults": self.board.faults.texts})

    def _set_faults(self, exchange: Exchange) -> None:
        asked = api.read(exchange.body, api.FaultList)
        try:
            self.board.faults.set(asked.faults)
        except BadInput as error:
            raise Invalid(str(error), "faults") from None
        self._set_crash()
        self._faults(exchange)

    def _set_crash(self) -> None:
        if self._crash is not None:
            self._crash.cancel()
        after = self.board.faults.crash_after
        self._crash = None if after is None else asyncio.get_running_loop().call_later(after, os._exit, 1)


_Route = Callable[[Engine, Exchange], None]
_ROUTES: dict[bytes, dict[bytes, _Route]] = {
    b"/v1/chat/completions": {b"POST": Engine._chat},
    b"/v1/completions": {b"POST": Engine._completion},
    b"/v1/embeddings": {b"POST": Engine._embedding},
    b"/v1/responses": {b"POST": Engine._responses},
    b"/v1/messages": {b"POST": Engine._messages},
    b"/v1/models": {b"GET": Engine._models},
    b"/health": {b"GET": Engine._health},
    b"/version": {b"GET": Engine._version},
    b"/metrics": {b"GET": Engine._metrics},
    b"/tokenize": {b"POST": Engine._tokenize},
    b"/reset_prefix_cache": {b"POST": Engine._reset},
    b"/faults": {b"GET": Engine._faults, b"POST": Engine._set_faults},
}


def _called(chat: api.Chat) -> api.Function | None:
    """The function that the answer calls, if it calls one."""
    tools, choice = api.functions(chat), chat.tool_choice
    if not tools or choice == "none":
        return None
    if isinstance(choice, api.ToolChoice):
        return next(tool for tool in tools if tool.name == choice.function.name)
    if choice == "required":
        return tools[0]
    said = next((message.text for message in reversed(chat.messages) if message.role == "user"), "")
    return next((tool for tool in tools if tool.name in said), None)
