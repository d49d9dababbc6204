"""/v1/responses and /v1/messages go the way that chat goes: policy, model, keys, tokens, log."""

from __future__ import annotations

import hashlib
import json

import pytest

pytest.importorskip("uvloop")

from assay.live import api
from assay.live.serve import Running
from assay.live.tokens import ByteTokens
from tests.live.fake_engines import EVENT_STREAM, ask, balanced, engines, run, settings, until

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LONG = "the same beginning " * 60


def body_of(path: str, text: str, **more) -> bytes:
    if path == RESPONSES:
        return json.dumps({"model": "m", "instructions": LONG, "input": text, **more}).encode()
    ask = {"model": "m", "system": LONG, "max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(ask).encode()


def events_of(path: str) -> list[bytes]:
    """Two tokens, as each API streams them."""

    def event(name: str, **data) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name, **data}, separators=(',', ':'))}\n\n".encode()

    if path == RESPONSES:
        usage = {"input_tokens": 400, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 320}}
        return [
            event("response.created", response={"id": "r", "error": None}),
            event("response.output_item.added", item={}),
            *(event("response.output_text.delta", delta=text) for text in ("So", "!")),
            event("response.completed", response={"id": "r", "error": None, "usage": usage}),
        ]
    started = {"input_tokens": 80, "cache_read_input_tokens": 320, "output_tokens": 0}
    return [
        event("message_start", message={"id": "m", "usage": started}),
        event("content_block_start", index=0),
        *(event("content_block_delta", delta={"type": "text_delta", "text": text}) for text in ("So", "!")),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        event("message_stop"),
    ]


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_they_are_answered_by_the_model_that_they_name(path):
    async def test():
        async with engines("a", "b") as (a, b):
            b.models = ("other",)
            async with Running(settings([a, b])) as running:
                await until(lambda: all(e.models for e in running.gateway.fleet.engines))
                for n in range(5):
                    for model, name in (("m", "a"), ("other", "b")):
                        fields = (await ask(running.port, "POST", path, body_of(path, str(n), model=model)))[1]
                        assert fields["x-assay-engine"] == name

    run(test())


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_the_policy_sends_them_where_their_beginning_is_cached_and_others_elsewhere(path):
    async def test():
        async with engines("a", "b") as made, Running(settings(made)) as running:
            found = [
                (await ask(running.port, "POST", path, body_of(path, str(n))))[1]["x-assay-engine"] for n in range(5)
            ]
            assert len(set(found)) == 1
            other = [
                (await ask(running.port, "POST", path, body_of(path, str(n), instructions=str(n), system=str(n))))[1][
                    "x-assay-engine"
                ]
                for n in range(6)
            ]
            assert set(other) == {"a", "b"}
            assert len(running.gateway.placing.decisions) == 11

    run(test())


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_their_streams_are_metered_and_logged(path, tmp_path):
    def behave(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        for event in events_of(path):
            exchange.write(event)
        exchange.finish()

    async def test():
        log = tmp_path / "log"
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            a.behave = behave
            status, _, body = await ask(running.port, "POST", path, body_of(path, "hi", stream=True))
            assert status == 200 and body == b"".join(events_of(path)) and balanced(running)
            assert running.gateway.counters.ttft.count == 1
        line = json.loads(log.read_text())
        assert line["endpoint"] == path[4:] and line["model"] == "m" and line["stream"] and line["hash_ids"]
        assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (400, 320, 2)

    run(test())


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_stream_that_breaks_ends_in_an_event_that_their_clients_take_for_an_error(path):
    def die(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b"".join(events_of(path)[:3]))
        exchange._connection.server.outbox.flush()
        exchange._connection.transport.close()

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = die
            _, _, body = await ask(running.port, "POST", path, body_of(path, "hi", stream=True))
            last = body.split(b"\n\n")[-2].split(b"\n")
            assert last[0] == b"event: error"
            error = json.loads(last[1][6:])
            assert error["type"] == "error" and error["error"]["message"]

    run(test())


def test_x_api_key_is_a_key_and_stays_here():
    keys = [{"tenant": "acme", "sha256": hashlib.sha256(b"right").hexdigest()}]

    async def test():
        async with engines("a") as (a,), Running(settings([a], key=keys)) as running:
            body = body_of(MESSAGES, "hi")
            assert (await ask(running.port, "POST", MESSAGES, body, x_api_key="wrong"))[0] == 401
            assert (await ask(running.port, "POST", MESSAGES, body, x_api_key="right"))[0] == 200
            assert b"x-api-key" not in a.asked[0].head.fields

    run(test())


def test_a_path_that_is_passed_on_goes_to_an_engine_that_has_its_model():
    async def test():
        async with engines("a", "b") as (a, b):
            b.models = ("other",)
            async with Running(settings([a, b])) as running:
                for _ in range(4):
                    answer = await ask(running.port, "POST", "/v1/messages/count_tokens", b'{"model": "other"}')
                    assert answer[1]["x-assay-engine"] == "b"

    run(test())


def test_a_prompt_is_the_same_in_whichever_words_it_comes():
    said = [{"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]
    chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]}
    forms = {
        "chat": chat,
        "messages": {"system": "Be kind.", "messages": chat["messages"][1:]},
        "responses": {"instructions": "Be kind.", "input": "Why?"},
    }
    rows = []
    for endpoint, form in forms.items():
        read = api.read(json.dumps(form).encode(), endpoint)
        rows.append(api.tokens(read, endpoint, ByteTokens())[0].tolist())
    assert rows[0] == rows[1] == rows[2]
    read = api.read(
        json.dumps({"input": [*said, {"type": "function_call_output", "output": "1"}]}).encode(), "responses"
    )
    assert [message.role for message in read.messages] == ["user", "tool"] and read.messages[0].text == "Why?"
