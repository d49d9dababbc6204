"""Who waits for whom: nobody for an engine that could not take them anyway."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.chaos import free_port
from tests.live.fake_engines import Client, FakeEngine, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"


def never(name: str) -> FakeEngine:
    """An engine that is listed and does not come up."""
    engine = FakeEngine(name)
    engine.port = free_port()
    return engine


@pytest.mark.parametrize("ask_for", [("GET", "/v1/models", b""), ("GET", "/nowhere", b"")])
def test_what_names_no_model_is_answered_while_a_listed_engine_has_never_been_up(ask_for):
    """It waited for that engine, and everybody else behind it."""

    async def test():
        async with engines("a") as (a,), Running(settings([a, never("b")], start=30.0, wait=30.0)) as running:
            first = asyncio.create_task(ask(running.port, *ask_for))
            await asyncio.sleep(0.1)
            status, fields, _ = await ask(running.port, "POST", CHAT, chat())
            assert status == 200 and fields["x-assay-engine"] == "a"
            assert (await first)[0] == 200 and balanced(running)

    run(test())


def test_a_model_nobody_has_waits_for_who_has_not_come_up_and_holds_up_nobody():
    async def test():
        late = never("b")
        late.models = ("other",)
        async with engines("a") as (a,), Running(settings([a, late], start=30.0)) as running:
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            waiting = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="other")))
            await until(lambda: running.gateway.placing.waiting == 1)
            for n in range(3):
                assert (await ask(running.port, "POST", CHAT, chat(str(n))))[1]["x-assay-engine"] == "a"
            assert not waiting.done()
            await late.start(late.port)
            assert (await waiting)[1]["x-assay-engine"] == "b"
            await late.stop()

    run(test())


def test_when_who_never_came_up_is_given_up_an_engine_says_that_there_is_no_such_model():
    async def test():
        async with engines("a") as (a,), Running(settings([a, never("b")], start=0.6)) as running:
            a.behave = lambda exchange: exchange.refuse(404, "no such model")
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(model="made up"))
            assert status == 404 and fields["x-assay-engine"] == "a"

    run(test())


def test_an_engine_is_sent_nothing_before_its_models_are_known():
    """The first request would go to whoever came up first, whatever it serves."""

    async def test():
        a, b = FakeEngine("a", ("one",)), FakeEngine("b", ("two",))
        a.port, b.port = free_port(), free_port()
        async with Running(settings([a, b], start=30.0)) as running:
            asking = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n), model="two"))) for n in range(5)]
            await until(lambda: running.gateway.placing.waiting == 5)
            await a.start(a.port)
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            await b.start(b.port)
            assert [(await task)[1]["x-assay-engine"] for task in asking] == ["b"] * 5
            await a.stop()
            await b.stop()

    run(test())


def test_a_full_engine_holds_up_its_own_model_only():
    async def test():
        async with engines("a", "b") as (a, b):
            b.models = ("other",)
            async with Running(settings([a, b], inflight=1)) as running:
                await until(lambda: all(e.models for e in running.gateway.fleet.engines))
                held = []
                a.behave = held.append
                full = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n)))) for n in range(4)]
                await until(lambda: running.gateway.placing.waiting == 3)
                for n in range(3):  # the second and third take the room that the one before has left
                    status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n), model="other"))
                    assert (status, fields["x-assay-engine"]) == (200, "b")
                assert not any(task.done() for task in full)
                while not all(task.done() for task in full):
                    while held:
                        a.answer(held.pop())
                    await asyncio.sleep(0.01)
                assert balanced(running)

    run(test())


def test_a_request_that_left_an_engine_makes_room_there():
    """One that another engine takes over: whoever waits for the first one need not wait for the next answer."""

    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b], inflight=1)) as running:
            await until(lambda: all(e.state == "up" for e in running.gateway.fleet.engines))
            held: dict[str, list] = {"a": [], "b": []}
            a.behave, b.behave = held["a"].append, held["b"].append
            asking = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n)))) for n in range(3)]
            await until(lambda: held["a"] and held["b"] and running.gateway.placing.waiting == 1)
            held["b"].pop().refuse(503, "not now")  # there is nobody else with room: it is passed on
            await until(lambda: held["b"])
            for name, engine in (("a", a), ("b", b)):
                engine.answer(held[name].pop())
            assert sorted([(await task)[0] for task in asking]) == [200, 200, 503]

    run(test())


def test_start_up_drill_nothing_waits_that_could_be_served():
    """The gateway first, engines one after the other, one never; clients ask for all of it all the time."""

    async def test():
        a, b, c = FakeEngine("a", ("one",)), FakeEngine("b", ("two",)), never("c")
        a.port, b.port = free_port(), free_port()
        ends: dict[str, list[int]] = {"one": [], "two": [], "list": [], "made up": []}
        over = asyncio.Event()

        async def client(what: str) -> None:
            while not over.is_set():
                if what == "list":
                    status, _, _ = await ask(running.port, "GET", "/v1/models")
                else:
                    status, _, body = await ask(running.port, "POST", CHAT, chat(model=what))
                    if status == 200 and what != "made up":
                        assert json.loads(body)["from"] == {"one": "a", "two": "b"}[what]
                ends[what].append(status)
                await asyncio.sleep(0.01)

        async with Running(settings([a, b, c], start=600.0, probe=0.2, wait=600.0)) as running:
            clients = [asyncio.create_task(client(what)) for what in ends for _ in range(3)]
            await asyncio.sleep(0.6)
            assert not any(ends.values())  # nobody is up: all wait
            await a.start(a.port)
            await until(lambda: ends["one"] and ends["list"])
            assert not ends["two"] and not ends["made up"]
            await b.start(b.port)
            await until(lambda: ends["two"])  # nobody waits for the one that will never come, but who asks for it
            assert not ends["made up"]
            running.gateway.fleet.engines[2].added = float("-inf")  # its time to start is over
            await until(lambda: ends["made up"])
            over.set()
            await asyncio.gather(*clients)
            assert {status for found in ends.values() for status in found} == {200}
            assert balanced(running)
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_lanes_are_few_whatever_names_clients_make_up():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running, Client(running.port) as client:
            await until(lambda: running.gateway.fleet.engines[0].models)
            for n in range(30):
                await client.ask("POST", CHAT, chat(model=f"made up {n}"))
            lanes = {running.gateway.placing.lanes.of(f"made up {n}") for n in range(30)}
            assert lanes == {running.gateway.placing.lanes.everybody}

    run(test())
