"""Clients as they are: pages in browsers, and those that close their half of a connection."""

from __future__ import annotations

import asyncio
import http.client
import socket

import pytest

pytest.importorskip("uvloop")

import uvloop

from assay.live.serve import Running
from assay.live.settings import convert
from assay.record.errors import BadInput
from tests.live.fake_engines import EVENT_STREAM, JSON, Client, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example"


def test_a_page_of_a_named_origin_may_ask():
    keys = [{"tenant": "acme", "sha256": "0" * 64}]

    async def test():
        async with engines("a") as (a,), Running(settings([a], origins=[PAGE], key=keys)) as running:
            wish = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-mine"}
            async with Client(running.port) as client:
                client.send("OPTIONS", CHAT, origin=PAGE, **wish)
                status, fields = await asyncio.wait_for(client.head(), 120)
            assert status == 204 and not a.asked  # browsers show no key here
            assert fields["access-control-allow-origin"] == PAGE and "post" in fields["access-control-allow-methods"]
            assert fields["access-control-allow-headers"] == "authorization,x-mine" and fields["vary"] == "origin"
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(), origin=PAGE)
            assert status == 401 and fields["access-control-allow-origin"] == PAGE  # so that the page can tell why

    run(test())


def test_an_answer_allows_an_origin_once_and_others_never():
    def behave(exchange):  # vLLM allows all
        exchange.reply(200, [JSON, b"access-control-allow-origin: *", b"access-control-allow-credentials: true"], b"{}")

    async def test():
        async with engines("a") as (a,), Running(settings([a], origins=[PAGE])) as running:
            a.behave = behave
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(), origin=PAGE)
            assert fields["access-control-allow-origin"] == PAGE and "access-control-allow-credentials" not in fields
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(), origin="https://other.example")
            assert "access-control-allow-origin" not in fields
        async with engines("a") as (a,), Running(settings([a])) as running:  # nobody asked the gateway to say anything
            a.behave = behave
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(), origin=PAGE)
            assert fields["access-control-allow-origin"] == "*"

    run(test())


def test_an_origin_is_written_as_browsers_write_it():
    with pytest.raises(BadInput, match="origins"):
        convert({"origins": ["chat.example/app"]}, "test")


LOOPS = pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@LOOPS
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_gets_its_answer(stream, loop):
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            held = []
            a.behave = held.append

            def client() -> tuple[int, bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=15)
                connection.request("POST", CHAT, chat(stream=stream))
                connection.sock.shutdown(socket.SHUT_WR)
                answer = connection.getresponse()
                return answer.status, answer.read()

            asking = asyncio.create_task(asyncio.to_thread(client))
            await until(lambda: held)
            await asyncio.sleep(0.2)
            a.answer(held[0])
            status, body = await asking
            assert status == 200 and b'"from"' in body and balanced(running)
            await until(lambda: not running.server.connections)

    loop(asyncio.wait_for(test(), 120))


@LOOPS
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_is_told_from_one_that_only_closed_its_half(loop, begun):
    """Also where its engine says nothing that it could refuse."""

    def begin(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = begin if begun else lambda exchange: None
            client = Client(running.port)
            await client.__aenter__()
            client.send("POST", CHAT, chat())
            await until(lambda: a.asked)
            if begun:
                await client.head()
            client.writer.close()
            await until(lambda: a.left == 1 and balanced(running))
            assert running.gateway.counters.requests["chat", 499] == 1

    loop(asyncio.wait_for(test(), 120))
