"""What the gateway learns of an engine's cache: from what the engine took, never from what it refused."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.fake_engines import ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
LONG = "the same beginning " * 60


def test_prompts_that_engines_refuse_displace_nothing():
    """Four of four megabytes, each as long as all that an engine is thought to hold."""

    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            for n in range(6):
                await ask(running.port, "POST", CHAT, chat(LONG + str(n)))
            blocks = [running.gateway.index.blocks(i) for i in range(2)]
            home = running.gateway.placing.decisions[-1]["engine"]
            for engine in (a, b):
                engine.behave = lambda exchange: exchange.refuse(400, "too long")
            for n in range(4):
                assert (await ask(running.port, "POST", CHAT, chat(f"{n} words " * 450_000)))[0] == 400
            assert [running.gateway.index.blocks(i) for i in range(2)] == blocks
            a.behave, b.behave = a.answer, b.answer
            answer = await ask(running.port, "POST", CHAT, chat(LONG + "again"))
            assert answer[1]["x-assay-engine"] == home
            assert running.gateway.placing.decisions[-1]["matched"] > 200 and balanced(running)

    run(test())


def test_a_full_index_loses_a_sixteenth_at_most_however_many_prompts_are_refused():
    async def test():
        async with engines("a") as (a,), Running(settings([a], blocks=1600)) as running:
            for n in range(40):
                await ask(running.port, "POST", CHAT, chat(f"{n} " + "x" * 3200))
            index = running.gateway.index
            assert index.blocks(0) == 1600
            a.behave = lambda exchange: exchange.refuse(400, "too long")
            for n in range(30):
                assert (await ask(running.port, "POST", CHAT, chat(f"no {n} " + "y" * 64_000)))[0] == 400
            assert index.blocks(0) >= 1600 - 100
            a.behave = a.answer
            await ask(running.port, "POST", CHAT, chat("y" * 64_000))  # one that is taken is known as a whole
            await ask(running.port, "POST", CHAT, chat("y" * 64_000))
            last = running.gateway.placing.decisions[-1]
            assert last["matched"] > 0.95 * last["prompt"]

    run(test())


def test_prompts_that_begin_alike_go_to_one_engine_before_it_has_answered_the_first():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            held = []
            a.behave = b.behave = held.append
            asking = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(LONG + str(n)))) for n in range(2)]
            await until(lambda: len(held) == 2)
            first, second = list(running.gateway.placing.decisions)[-2:]
            assert first["matched"] == 0 and second["matched"] > 200 and first["engine"] == second["engine"]
            for exchange in held:
                a.answer(exchange)
            await asyncio.gather(*asking)
            assert balanced(running)

    run(test())
