"""Errors that an engine reports within a stream that began well: `200`, then an event that says what went wrong."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.fake_engines import EVENT_STREAM, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"So"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def fault(code: int | str = 500, message: str = "EngineCore died") -> bytes:
    return b"data: " + json.dumps({"error": {"message": message, "type": "x", "code": code}}).encode() + b"\n\n"


def streams(*pieces: bytes):
    def behave(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        for piece in pieces:
            exchange.write(piece)
        exchange.finish()

    return behave


@pytest.mark.parametrize("before", [(), (ROLE,)], ids=["at once", "after the role"])
@pytest.mark.parametrize("code", [500, "500", 503, 429])
def test_an_error_before_the_first_token_is_tried_elsewhere(before, code):
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b], failures=100)) as running:
            a.behave = streams(*before, fault(code), DONE)
            b.behave = streams(ROLE, TOKEN, DONE)
            for n in range(4):
                status, fields, body = await ask(running.port, "POST", CHAT, chat(str(n), stream=True))
                assert (status, fields["x-assay-engine"], body) == (200, "b", ROLE + TOKEN + DONE)
            assert a.asked and running.gateway.counters.retries == len(a.asked)
            assert running.gateway.counters.requests == {("chat", 200): 4} and balanced(running)

    run(test())


def test_an_error_that_the_request_itself_made_is_passed_on():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            a.behave = b.behave = streams(fault(400, "prompt too long"), DONE)
            _, _, body = await ask(running.port, "POST", CHAT, chat(stream=True))
            assert body == fault(400, "prompt too long") + DONE and len(a.asked) + len(b.asked) == 1
            assert running.gateway.counters.requests == {("chat", 400): 1} and balanced(running)

    run(test())


def test_an_error_after_the_first_token_is_passed_on_and_counts_as_one(tmp_path):
    async def test():
        log = tmp_path / "log"
        async with engines("a", "b") as (a, b), Running(settings([a, b], log=str(log))) as running:
            under_way = []

            def begin(exchange):
                exchange.begin(b"200 OK", [EVENT_STREAM])
                exchange.write(ROLE + TOKEN)
                under_way.append(exchange)

            a.behave = b.behave = begin
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat(stream=True)))
            await until(lambda: any(relay.first is not None for relay in running.gateway.relays))
            under_way[0].finish(fault() + DONE)
            _, _, body = await asking
            assert body == ROLE + TOKEN + fault() + DONE and balanced(running)
            assert running.gateway.counters.requests == {("chat", 500): 1}
            assert sum(e.errors for e in running.gateway.fleet.engines) == 1
        line = json.loads(log.read_text())
        assert line["status"] == 500 and "EngineCore died" in line["error"] and "completion_tokens" not in line

    run(test())


def test_a_text_that_speaks_of_errors_is_none():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            said = json.dumps({"choices": [{"delta": {"content": 'data: {"error": {"code": 500}}'}}], "error": None})
            a.behave = b.behave = streams(b"data: " + said.encode() + b"\n\n", DONE)
            await ask(running.port, "POST", CHAT, chat(stream=True))
            assert running.gateway.counters.requests == {("chat", 200): 1}

    run(test())


def test_the_head_waits_for_the_first_token_and_no_longer():
    async def test():
        under_way = []

        def begin(exchange):
            exchange.begin(b"200 OK", [EVENT_STREAM])
            exchange.write(ROLE)
            under_way.append(exchange)

        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = begin
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat(stream=True)))
            await until(lambda: under_way)
            await asyncio.sleep(0.05)
            relay = next(iter(running.gateway.relays))
            assert not relay.exchange.started and relay.first is None
            under_way[0].write(TOKEN)
            await until(lambda: relay.exchange.started)
            assert relay.tokens == 1
            under_way[0].finish(DONE)
            assert (await asking)[2] == ROLE + TOKEN + DONE

    run(test())
