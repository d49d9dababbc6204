"""A request has one name: the client's or a new one, in the answer, at the engine, in the log."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.fake_engines import JSON, ask, chat, engines, run, settings

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_s_id_is_taken_returned_passed_on_and_logged(stream, tmp_path):
    async def test():
        log = tmp_path / "log"
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(stream=stream), x_request_id="order-66")
            assert fields["x-request-id"] == "order-66"
            assert a.asked[0].head.fields[b"x-request-id"] == b"order-66"
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(stream=stream))
            made = fields["x-request-id"]
            assert a.asked[1].head.fields[b"x-request-id"].decode() == made
        theirs, ours = (json.loads(line) for line in log.read_text().splitlines())
        assert theirs["request_id"] == "order-66" and ours["id"] == made and "request_id" not in ours

    run(test())


@pytest.mark.parametrize("odd", ["two words", "x" * 500, ""])
def test_an_id_that_is_none_is_replaced(odd):
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(), x_request_id=odd)
            made = fields["x-request-id"]
            assert made not in ("", odd) and a.asked[0].head.fields[b"x-request-id"].decode() == made

    run(test())


def test_the_engine_s_own_id_does_not_stand_beside_it():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = lambda exchange: exchange.reply(200, [JSON, b"X-Request-Id: engine-7"], b"{}")
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(), x_request_id="mine")
            assert status == 200 and fields["x-request-id"] == "mine"

    run(test())


def test_an_answer_of_the_gateway_itself_has_one_too():
    async def test():
        async with engines("a") as (a,), Running(settings([a], passthrough=False)) as running:
            assert (await ask(running.port, "GET", "/nowhere", x_request_id="lost"))[1]["x-request-id"] == "lost"
            assert (await ask(running.port, "GET", "/health"))[1]["x-request-id"]

    run(test())


def test_the_log_says_which_path_was_passed_on_and_not_what_was_asked_there(tmp_path):
    async def test():
        log = tmp_path / "log"
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            await ask(running.port, "POST", "/tokenize?secret=1", b"{}")
            await ask(running.port, "POST", CHAT, chat())
        passed, chatted = (json.loads(line) for line in log.read_text().splitlines())
        assert passed["path"] == "/tokenize" and "path" not in chatted

    run(test())
