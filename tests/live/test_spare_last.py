"""Where the last engine of a model is spared: what another one died with waits for a second, and never reaches it."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live import reload
from assay.live.serve import Running
from tests.live.fake_engines import ask, balanced, chat, run, settings, until
from tests.live.test_poison import CHAT, POISON, RARELY, Frail, all_up, frail, others

KEPT = {"policy": "round-robin", "spare_last": True, **RARELY}


async def stopped(made: list[Frail]) -> None:
    for engine in made:
        await engine.stop()


async def aboard(running: Running, engine: Frail, count: int) -> list[asyncio.Task]:
    """So many requests, all of them on one engine, which dies; they wait."""
    fleet = running.gateway.fleet.engines
    for other in fleet:
        other.room = other.limit if other.name == engine.name else 0
    asking = await others(running, [engine], count)
    for other in fleet:
        other.room = other.limit
    engine.die()
    await until(lambda: running.gateway.placing.waiting >= count - 1)
    return asking


def told(answer: tuple[int, dict[str, str], bytes]) -> bool:
    """Whether it is the refusal of what an engine died with."""
    status, fields, body = answer
    return (
        status == 503 and fields["x-should-retry"] == "false" and int(fields["retry-after"]) > 0
        and "not sent to the last" in json.loads(body)["error"]["message"]
    )  # fmt: skip


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_request_that_kills_takes_two_engines_at_most_and_the_last_one_only_where_that_is_not_spared(count, spare):
    async def test():
        made = await frail(count, fatal=True)
        async with Running(settings(made, **KEPT | {"spare_last": spare})) as running:
            await until(lambda: all_up(running))
            answer = await ask(running.port, "POST", CHAT, chat(POISON))
            killed = sum(engine.dead for engine in made)
            assert killed == sum(engine.poisoned for engine in made)
            if spare:
                assert killed == (2 if count > 2 else 1)
                assert told(answer) if count < 3 else answer[0] == 502
            else:
                assert killed == min(count, 2) and answer[0] == 502
            if count > killed:
                assert (await ask(running.port, "POST", CHAT, chat("after all that")))[0] == 200
            await until(lambda: balanced(running))
        await stopped(made)

    run(test())


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_with_others_aboard_those_of_living_engines_are_answered_and_of_a_dead_one_at_most_its_own_are_lost(
    count, spare
):
    async def test():
        made = await frail(count, fatal=True)
        async with Running(settings(made, **KEPT | {"spare_last": spare})) as running:
            await until(lambda: all_up(running))
            asking = await others(running, made, 12)
            poisoned = asyncio.create_task(ask(running.port, "POST", CHAT, chat(POISON)))
            await until(lambda: any(engine.dead for engine in made))
            first = next(engine for engine in made if engine.dead)
            for engine in made:
                if engine is not first:
                    engine.go_on()
            answers = [await task for task in asking]
            refused = [answer for answer in answers if answer[0] != 200]
            killed = sum(engine.dead for engine in made)
            answer = await poisoned
            if spare and count == 2:
                assert killed == 1 and told(answer) and all(map(told, refused))
                assert len(refused) == len(first.held) == 6  # nothing tells them from what killed it
            elif spare:
                assert killed == 2 and answer[0] == 502 and all(map(told, refused))
                assert len(refused) <= (len(first.held) if count == 3 else 0)
            else:
                assert killed == 2 and answer[0] == 502
            if killed < count:
                assert (await ask(running.port, "POST", CHAT, chat("after all that")))[0] == 200
            await until(lambda: balanced(running))
        await stopped(made)

    run(test())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_an_engine_that_hangs_up_and_lives_is_none_that_died(count, stream):
    async def test():
        made = await frail(count)
        async with Running(settings(made, **KEPT)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, made, 12)
            for n in range(3):
                before = [engine.poisoned for engine in made]
                assert (await ask(running.port, "POST", CHAT, chat(f"{POISON} {n}", stream=stream)))[0] == 502
                tried = [engine.poisoned - was for engine, was in zip(made, before, strict=True)]
                assert sorted(tried)[-2:] == [1, 1] if count > 1 else tried == [2]
            assert all_up(running) and not any(task.done() for task in asking)
            for engine in made:
                engine.go_on()
            assert [(await task)[0] for task in asking] == [200] * 12
            assert balanced(running)
        await stopped(made)

    run(test())


def test_who_waits_is_answered_when_a_second_engine_comes_and_not_before():
    async def test():
        a, b = await frail(2)
        async with Running(settings([a, b], policy="round-robin", spare_last=True, probe=0.05, wait=600.0)) as running:
            await until(lambda: all_up(running))
            asking = await aboard(running, a, 5)
            assert (await ask(running.port, "POST", CHAT, chat("new")))[1]["x-assay-engine"] == "e1"  # nothing held up
            assert len(b.asked) == 1 and not any(task.done() for task in asking)
            back = await Frail("e0").start(a.port)
            assert [(await task)[0] for task in asking] == [200] * 5
            await until(lambda: balanced(running))
        await stopped([a, b, back])

    run(test())


def test_two_that_may_be_what_kills_are_never_on_both_of_two_engines():
    async def test():
        a, b, c = made = await frail(3)
        async with Running(settings(made, **KEPT | {"wait": 600.0})) as running:
            await until(lambda: all_up(running))
            b.holds = c.holds = True
            asking = await aboard(running, a, 6)
            await until(lambda: len(b.held) + len(c.held) == 1)
            assert running.gateway.placing.waiting == 5
            for answered in range(1, 7):
                for engine in (b, c):
                    for exchange in engine.held:
                        if not exchange.done:
                            engine.answer(exchange)
                await until(lambda n=answered: len(b.held) + len(c.held) == min(n + 1, 6))
                assert sum(bool(e.doubted) for e in running.gateway.fleet.engines) <= 1
            assert [(await task)[0] for task in asking] == [200] * 6
            await until(lambda: balanced(running))
        await stopped(made)

    run(test())


def test_the_settings_that_are_read_again_say_whether_it_goes_on_to_the_last_one():
    async def test():
        a, b = await frail(2)
        kept = settings([a, b], **KEPT | {"wait": 600.0})
        async with Running(kept) as running:
            await until(lambda: all_up(running))
            asking = await aboard(running, a, 3)
            assert not b.asked
            assert "changed: spare_last" in reload.apply(
                running, settings([a, b], **KEPT | {"wait": 600.0, "spare_last": False})
            )
            assert [(await task)[0] for task in asking] == [200] * 3
            assert {exchange.body for exchange in b.asked} == {exchange.body for exchange in a.held}
            await until(lambda: balanced(running))
        await stopped([a, b])

    run(test())


@pytest.mark.parametrize("count", [2, 3])
def test_the_last_is_the_last_of_its_model(count):
    """One with another model does not stand in for it."""

    async def test():
        made = await frail(count)
        made[-1].models = ("n",)
        async with Running(settings(made, **KEPT)) as running:
            await until(lambda: all_up(running))
            assert [told(await task) for task in await aboard(running, made[0], 2)] == [True] * 2
            assert not any(engine.asked for engine in made[1:])
        await stopped(made)

    run(test())


@pytest.mark.parametrize("healthy", [False, True])
def test_an_engine_that_says_so_before_it_dies_died(healthy):
    async def test():
        a, b = await frail(2)

        def refuse(exchange):
            a.healthy = healthy
            exchange.refuse(500, "my core is dead")

        a.behave = refuse
        async with Running(settings([a, b], **KEPT)) as running:
            await until(lambda: all_up(running))
            answers = [await ask(running.port, "POST", CHAT, chat(str(n))) for n in range(2)]
            assert len(b.asked) == (2 if healthy else 1)
            assert [answer[0] for answer in answers] == [200, 200] if healthy else [503, 200]
            assert healthy or told(answers[0])
            assert balanced(running)
        await stopped([a, b])

    run(test())


def test_what_a_dead_engine_never_had_goes_to_the_last_one():
    async def test():
        a, b = await frail(2)
        async with Running(settings([a, b], **KEPT)) as running:
            await until(lambda: all_up(running))
            await a.stop()
            for n in range(4):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert (status, fields["x-assay-engine"]) == (200, "e1")
        await b.stop()

    run(test())


def test_an_engine_that_listens_no_more_and_still_answers_may_finish_what_the_last_one_would_not_get():
    async def test():
        a, b = await frail(2)
        async with Running(settings([a, b], **KEPT)) as running:
            await until(lambda: all_up(running))
            asking = await others(running, [a, b], 4)
            b.go_on()
            for listener in a.server._listeners:
                listener.close()
            for n in range(2):  # the first that is to open a connection there finds out
                assert (await ask(running.port, "POST", CHAT, chat(f"more {n}")))[1]["x-assay-engine"] == "e1"
            assert running.gateway.fleet.engines[0].state == "down"
            a.go_on()
            assert [(await task)[0] for task in asking] == [200] * 4
        await stopped([a, b])

    run(test())


def test_who_may_go_to_one_engine_only_goes_when_another_one_is_found_to_bear_what_it_has():
    async def test():
        a, b, c = made = await frail(3)
        async with Running(settings(made, **KEPT | {"wait": 600.0})) as running:
            await until(lambda: all_up(running))
            first, second, third = running.gateway.fleet.engines
            first.room = second.room = 0

            def full(exchange):
                first.room, third.room = first.limit, 0
                exchange.refuse(429, "no room")

            a.holds, c.behave = True, full
            late = asyncio.create_task(ask(running.port, "POST", CHAT, chat("late")))
            await until(lambda: a.held)
            other = asyncio.create_task(ask(running.port, "POST", CHAT, chat("other")))
            await until(lambda: len(a.held) == 2)
            c.holds, c.behave, third.room = True, c.bear, third.limit
            a.die()
            await until(lambda: c.held)
            second.room = second.limit
            assert running.gateway.placing.waiting == 1 and not b.asked
            c.go_on()
            assert (await other)[1]["x-assay-engine"] == "e2" and (await late)[1]["x-assay-engine"] == "e1"
            await until(lambda: balanced(running))
        await stopped(made)

    run(test())
