"""A request that is more than its engine can bear costs itself an answer, and nobody else: 1, 2, 3 and 8 engines."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from assay.live.server import Exchange
from tests.live.fake_engines import EVENT_STREAM, Client, FakeEngine, ask, balanced, chat, run, settings, until

CHAT = "/v1/chat/completions"
POISON = "poison"
# Nothing but the requests says how engines fare.
RARELY = {"probe": 600.0, "scrape": 600.0, "pause": 600.0, "start": 600.0}


class Frail(FakeEngine):
    """Holds what it is asked until it is told to go on, unless that is poison."""

    def __init__(self, name: str, fatal: bool = False) -> None:
        super().__init__(name)
        self.fatal, self.held, self.poisoned, self.dead = fatal, [], 0, False
        self.holds = False
        self.behave = self.bear
        self.dying: set[asyncio.Task[None]] = set()

    def bear(self, exchange: Exchange) -> None:
        if POISON.encode() in exchange.body:
            self.poisoned += 1
            if self.fatal:
                self.die()
            else:
                exchange._connection.transport.close()
        elif self.holds:
            self.held.append(exchange)
        else:
            self.answer(exchange)

    def die(self) -> None:
        """As a process does: nobody listens any more, and all connections end."""
        self.dead = True
        for listener in self.server._listeners:
            listener.close()
        for connection in list(self.server.connections):
            connection.abort()

    def go_on(self) -> None:
        self.holds = False
        for exchange in self.held:
            if not exchange.done:
                self.answer(exchange)


async def frail(count: int, fatal: bool = False) -> list[Frail]:
    return [await Frail(f"e{n}", fatal).start() for n in range(count)]


async def others(running: Running, engines: list[Frail], count: int) -> list[asyncio.Task]:
    """So many requests of other tenants, all aboard some engine."""
    for engine in engines:
        engine.holds = True
    asking = [
        asyncio.create_task(ask(running.port, "POST", CHAT, chat(f"good {n}", stream=n % 2 == 0), x_tenant=f"t{n % 3}"))
        for n in range(count)
    ]
    await until(lambda: sum(len(engine.held) for engine in engines) == count)
    return asking


def all_up(running: Running) -> bool:
    return all(e.state == "up" for e in running.gateway.fleet.engines)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_request_on_which_engines_hang_up_ends_in_its_own_error_and_takes_nothing_from_others(count, stream):
    async def test():
        made = await frail(count)
        async with Running(settings(made, policy="round-robin", failures=2, **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, made, 12)
            for n in range(5):  # its client, or the client's library, asks again and again
                before = [engine.poisoned for engine in made]
                status, fields, body = await ask(running.port, "POST", CHAT, chat(f"{POISON} {n}", stream=stream))
                assert status == 502 and json.loads(body)["error"]["message"]
                assert fields["x-should-retry"] == "false"  # else its library would take the next two engines
                tried = [engine.poisoned - was for engine, was in zip(made, before, strict=True)]
                assert sorted(tried)[-2:] == [1, 1] if count > 1 else tried == [2]
            assert all_up(running) and not any(task.done() for task in asking)
            assert not any(e.failures for e in running.gateway.fleet.engines)
            for engine in made:
                engine.go_on()
            assert [(await task)[0] for task in asking] == [200] * 12
            assert (await ask(running.port, "POST", CHAT, chat("after all that")))[0] == 200
            errors = sum(e.errors for e in running.gateway.fleet.engines)
            assert errors == 5 * min(count, 2)  # a request counts once against an engine
            assert balanced(running)
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_request_on_a_kept_connection_is_asked_no_more_often(count):
    """A kept connection that ends without an answer may have been closed before it was asked; this one was not."""

    async def test():
        made = await frail(count)
        async with Running(settings(made, policy="round-robin", **RARELY)) as running:
            await until(lambda: all_up(running))
            for n in range(2 * count):
                assert (await ask(running.port, "POST", CHAT, chat(str(n))))[0] == 200
            assert (await ask(running.port, "POST", CHAT, chat(POISON)))[0] == 502
            assert sorted(engine.poisoned for engine in made)[-2:] == ([2] if count == 1 else [1, 1])
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_request_that_kills_its_engine_is_not_sent_to_a_third_and_nobody_else_s_is_lost(count):
    async def test():
        made = await frail(count, fatal=True)
        async with Running(settings(made, policy="round-robin", **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, made, 12)
            poisoned = asyncio.create_task(ask(running.port, "POST", CHAT, chat(POISON)))
            for engine in made[1:]:
                engine.go_on()
            status, fields, body = await poisoned
            assert status == 502 and b"error" in body and fields["x-should-retry"] == "false"
            assert sum(engine.poisoned for engine in made) == sum(engine.dead for engine in made) == 2
            await until(lambda: sum(e.state == "down" for e in running.gateway.fleet.engines) == 2)
            if count > 2:
                for engine in made:
                    engine.go_on()
                assert [(await task)[0] for task in asking] == [200] * 12
                assert (await ask(running.port, "POST", CHAT, chat("after all that")))[0] == 200
            await asyncio.gather(*asking)
            await until(lambda: balanced(running))
        for engine in made:
            await engine.stop()

    run(test())


def test_engines_that_answer_500_before_they_die_have_died_of_it():
    """vLLM's server answers what its core died with, and then ends."""

    async def test():
        made = await frail(4, fatal=True)
        for engine in made:
            engine.behave = lambda exchange, e=engine: refuse(e, exchange)
        async with Running(settings(made, policy="round-robin", **RARELY)) as running:
            await until(lambda: all_up(running))
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(POISON))
            assert status == 502 and fields["x-should-retry"] == "false"
            assert [engine.poisoned for engine in made].count(1) == 2
        for engine in made:
            await engine.stop()

    def refuse(engine: Frail, exchange: Exchange) -> None:
        engine.poisoned += 1
        engine.healthy = False
        exchange.refuse(500, "my core is dead")

    run(test())


@pytest.mark.parametrize("count", [3, 8])
def test_what_was_aboard_a_dead_engine_comes_to_the_others_one_by_one_so_that_the_killer_is_alone_when_it_kills(count):
    async def test():
        made = await frail(count, fatal=True)
        first, *rest = made
        async with Running(settings([first], policy="round-robin", **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, [first], 12)  # all of them on one engine, and then the killer
            more = [{"url": engine.url, "name": engine.name} for engine in rest]
            for engine in more:
                assert (await ask(running.port, "POST", "/engines", json.dumps(engine).encode()))[0] == 201
            await until(lambda: len(running.gateway.fleet.engines) == count and all_up(running))
            running.gateway.fleet.engines[0].room = 13
            for engine in running.gateway.fleet.engines[1:]:
                engine.room = 0
            poisoned = asyncio.create_task(ask(running.port, "POST", CHAT, chat(POISON)))
            await until(lambda: running.gateway.placing.waiting or first.dead)
            for engine in running.gateway.fleet.engines[1:]:
                engine.room = engine.limit
            running.gateway.placing.room()
            assert (await poisoned)[0] == 502
            assert [(await task)[0] for task in asking] == [200] * 12
            assert sum(engine.poisoned for engine in made) == 2
            assert not any(e.doubted for e in running.gateway.fleet.engines)
            await until(lambda: balanced(running))
        for engine in made:
            await engine.stop()

    run(test())


def test_what_came_last_to_a_dead_engine_comes_last_to_the_next_one_when_the_others_are_answered():
    async def test():
        a, b = await frail(2, fatal=True)
        async with Running(settings([a, b], policy="round-robin", **RARELY)) as running:
            await until(lambda: all_up(running))
            second = running.gateway.fleet.engines[1]
            second.room = 0

            def bear(exchange):
                second.room = second.limit  # only now: all of them are on the first
                exchange._connection.transport.abort()  # nor is it the last to be cut off
                a.bear(exchange)

            asking = await others(running, [a], 12)
            a.behave = bear
            assert (await ask(running.port, "POST", CHAT, chat(POISON)))[0] == 502
            assert [(await task)[0] for task in asking] == [200] * 12
            assert (
                a.dead
                and b.dead
                and [POISON.encode() in exchange.body for exchange in b.asked] == [False] * 12 + [True]
            )
            await until(lambda: balanced(running))
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_slow_engines_take_over_more_and_more_of_what_a_dead_one_had():
    """Whoever waits to be cleared by an answer waits long where answers take long: good health counts as well."""

    async def test():
        a, b = await frail(2)
        a.holds = b.holds = True
        async with Running(settings([a, b], probe=0.05, policy="round-robin")) as running:
            await until(lambda: all_up(running))
            second = running.gateway.fleet.engines[1]
            second.room = 0
            asking = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n)))) for n in range(14)]
            await until(lambda: len(a.held) == 14)
            second.room = second.limit
            a.die()
            seen = []
            await until(lambda: seen.append(len(b.held)) or len(b.held) == 14)  # nobody is answered meanwhile
            assert next(n for n in seen if n) == 1 and second.trust >= 8
            b.go_on()
            assert [(await task)[0] for task in asking] == [200] * 14
            await until(lambda: balanced(running))
        for engine in (a, b):
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_request_that_breaks_its_streams_in_the_middle_breaks_nothing_else(count):
    def half(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')
        exchange._connection.server.outbox.flush()
        asyncio.get_running_loop().call_soon(exchange._connection.transport.close)

    async def test():
        made = await frail(count)
        async with Running(settings(made, policy="round-robin", failures=1, **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, made, 12)
            bear = [engine.behave for engine in made]
            for engine in made:
                engine.behave = half
            for n in range(2 * count):
                body = (await ask(running.port, "POST", CHAT, chat(f"{POISON} {n}", stream=True)))[2]
                assert b'"error"' in body and b"[DONE]" not in body
            for engine, behave in zip(made, bear, strict=True):
                engine.behave = behave
                engine.go_on()
            assert [(await task)[0] for task in asking] == [200] * 12 and all_up(running)
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [2, 3, 8])
def test_an_engine_that_fails_what_others_answer_loses_its_circuit_and_keeps_what_it_has(count):
    async def test():
        made = await frail(count)
        bad, *good = made
        async with Running(settings(made, policy="round-robin", failures=2, **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, [bad, *good], 2 * count)
            bad.behave = lambda exchange: exchange._connection.transport.close()
            for engine in good:
                engine.holds = False
            first = running.gateway.fleet.engines[0]
            for n in range(2 * count + 2):
                assert (await ask(running.port, "POST", CHAT, chat(f"more {n}")))[0] == 200
            assert first.state == "down" and first.trial and first.aboard == 2
            for engine in made:
                engine.go_on()
            answers = [await task for task in asking]
            assert [status for status, *_ in answers] == [200] * len(answers)
            assert sum(fields["x-assay-engine"] == "e0" for _, fields, _ in answers) == 2
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [2, 3, 8])
def test_where_nobody_listens_any_more_one_try_is_enough_and_costs_nobody_an_answer(count):
    async def test():
        made = await frail(count)
        async with Running(settings(made, policy="round-robin", failures=100, attempts=1, **RARELY)) as running:
            await until(lambda: all_up(running))
            for engine in made[:-1]:
                await engine.stop()
            for n in range(4):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert (status, fields["x-assay-engine"]) == (200, made[-1].name)
            states = [e.state for e in running.gateway.fleet.engines]
            assert states == ["down"] * (count - 1) + ["up"]
        await made[-1].stop()

    run(test())


def test_an_engine_that_listens_no_more_and_still_answers_may_finish_what_nobody_else_could_take():
    async def test():
        (a,) = await frail(1)
        async with Running(settings([a], **RARELY)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, [a], 3)
            for listener in a.server._listeners:
                listener.close()
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat("one more"))
                await until(lambda: running.gateway.fleet.engines[0].state == "down")
                a.go_on()
                assert [(await task)[0] for task in asking] == [200] * 3
        await a.stop()

    run(test())


def test_a_request_whose_engines_are_only_silent_is_not_sent_to_a_third():
    async def test():
        made = await frail(3)
        async with Running(settings(made, policy="round-robin", failures=1, **RARELY)) as running:
            await until(lambda: all_up(running))

            def time_is_over():
                for relay in running.gateway.relays:
                    relay.due = 0.0

            for engine in made:
                engine.behave = lambda exchange: time_is_over()
            status, _, body = await ask(running.port, "POST", CHAT, chat(stream=True))
            assert status == 502 and b"no byte for" in body and sorted(len(e.asked) for e in made) == [0, 1, 1]
            assert all_up(running)
        for engine in made:
            await engine.stop()

    run(test())
