"""KV events and a gateway that comes later than its engines, or is told to listen where nobody speaks."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("zmq")

from assay.live.kv_events import Batch, BlockStored, Publisher
from assay.live.serve import Running
from tests.live.fake_engines import engines, run, settings, until


def stored(number: int, parent: int | None = None) -> Batch:
    tokens = list(range(16 * number, 16 * number + 16))
    return Batch(0.0, [BlockStored([number], parent, tokens, 16)])


def listed(engine, **more: str) -> dict:
    return {"engine": [{"url": engine.url, "name": engine.name, **more}]}


def test_what_an_engine_has_cached_before_the_gateway_started_is_known_at_once():
    """It was asked for with the next event only: after a restart, and no traffic, nothing was known."""

    async def test():
        async with engines("a") as (a,):
            publisher = Publisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0")
            for number in range(5):
                publisher.publish(stored(number + 1, number or None))
            named = listed(a, events=publisher.endpoint, replay=publisher.replay_endpoint)
            for _ in range(2):  # and once more after a restart
                async with Running(settings([a], **named)) as running:
                    await until(lambda: running.gateway.index.blocks(0) == 5)
            publisher.close()

    run(test())


def nobody() -> str:
    """An endpoint that is free and stays so: below the ports that the system gives to whoever asks for any.

    Of those, it would sooner or later give this very one to the gateway's own attempt to connect.
    """
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError), socket.socket() as held:  # not ZeroMQ's: its sockets close later than they say
            held.bind(("127.0.0.1", port))
            return f"tcp://127.0.0.1:{port}"
    raise AssertionError("no port is free")


@pytest.mark.parametrize("where", ["nobody", "the engine's own port"])
def test_an_endpoint_where_nobody_publishes_is_reported_and_no_longer_when_somebody_does(where):
    async def test():
        async with engines("a") as (a,):
            endpoint = nobody() if where == "nobody" else f"tcp://127.0.0.1:{a.port}"
            async with Running(settings([a], **listed(a, events=endpoint))) as running:
                engine = running.gateway.fleet.engines[0]
                await until(lambda: f"nobody who publishes events answers at {endpoint}" in engine.note)
                if where == "nobody":
                    publisher = Publisher(endpoint)
                    await until(lambda: "nobody" not in engine.note)
                    publisher.close()

    run(test())


def test_a_wrong_replay_endpoint_is_reported():
    async def test():
        async with engines("a") as (a,):
            publisher = Publisher("tcp://127.0.0.1:0")
            named = listed(a, events=publisher.endpoint, replay=f"tcp://127.0.0.1:{a.port}")
            async with Running(settings([a], **named)) as running:
                engine = running.gateway.fleet.engines[0]
                await until(lambda: "past events" in engine.note)
            publisher.close()

    run(test())
