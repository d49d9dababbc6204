"""Names for models: aliases, and what answers instead where the first choice is down."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.fake_engines import FakeEngine, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
NAMES = [{"name": "assistant", "to": ["big", "small"]}]


async def two() -> tuple[FakeEngine, FakeEngine]:
    return await FakeEngine("a", ("big",)).start(), await FakeEngine("b", ("small",)).start()


def test_an_alias_goes_to_the_model_that_it_stands_for_with_that_model_s_name(tmp_path):
    async def test():
        a, b = await two()
        log = tmp_path / "log"
        async with Running(settings([a, b], model=NAMES, log=str(log))) as running:
            odd = b'{ "model":"assistant",  "messages":[{"role":"user","content":"\\u00e9"}], "x": 1e400 }'
            _, fields, _ = await ask(running.port, "POST", CHAT, odd)
            assert fields["x-assay-engine"] == "a"
            assert a.asked[0].body == b'{"model":"big","messages":[{"role":"user","content":"\\u00e9"}],"x":1e400}'
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(model="small"))  # by its own name, as it came
            assert fields["x-assay-engine"] == "b" and b.asked[0].body == chat(model="small")
            _, fields, _ = await ask(running.port, "POST", "/tokenize", b'{"model": "assistant"}')
            assert fields["x-assay-engine"] == "a" and a.asked[1].body == b'{"model":"big"}'
            listed = json.loads((await ask(running.port, "GET", "/v1/models"))[2])["data"]
            assert [model["id"] for model in listed] == ["big", "small", "assistant"]
        line = json.loads(log.read_text().splitlines()[0])
        assert (line["model"], line["asked"]) == ("big", "assistant")
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_the_next_model_answers_where_the_first_is_down_or_fails():
    async def test():
        a, b = await two()
        async with Running(settings([a, b], model=NAMES, failures=2)) as running:
            a.behave = lambda exchange: exchange._connection.transport.close()  # it breaks: nobody else has the model
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(model="assistant"))
            assert fields["x-assay-engine"] == "b" and json.loads(b.asked[0].body)["model"] == "small"
            a.healthy = False
            await until(lambda: running.gateway.fleet.engines[0].state == "down")
            asked = len(a.asked)
            _, fields, _ = await ask(running.port, "POST", CHAT, chat(model="assistant"))
            assert fields["x-assay-engine"] == "b" and len(a.asked) == asked
            a.healthy, a.behave = True, a.answer
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            assert (await ask(running.port, "POST", CHAT, chat(model="assistant")))[1]["x-assay-engine"] == "a"
            assert balanced(running)
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_who_waits_for_a_model_that_goes_down_is_answered_by_the_next():
    async def test():
        a, b = await two()
        async with Running(settings([a, b], model=[NAMES[0] | {"full": "wait"}], inflight=1, failures=1)) as running:
            a.behave = lambda exchange: None
            first = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="big")))
            await until(lambda: a.asked)
            waiting = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="assistant")))
            await until(lambda: running.gateway.placing.waiting == 1)
            a.healthy = False
            assert (await waiting)[1]["x-assay-engine"] == "b"
            assert (await first)[0] == 502
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_a_name_that_stands_for_itself_needs_no_entry():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            await ask(running.port, "POST", CHAT, chat())
            assert a.asked[0].body == chat()

    run(test())


async def held_up(running: Running, a: FakeEngine) -> asyncio.Task:
    """The first model's only engine is full."""
    a.behave = lambda exchange: None
    first = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="big")))
    await until(lambda: a.asked)
    return first


@pytest.mark.parametrize("policy", ["lmetric", "balanceroute"])  # the latter chooses from a pool
def test_where_the_first_model_is_full_the_next_answers_and_where_both_are_whoever_has_room_first(policy):
    async def test():
        a, b = await two()
        async with Running(settings([a, b], model=NAMES, inflight=1, policy=policy)) as running:
            first = await held_up(running, a)
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(model="assistant"))
            assert (status, fields["x-assay-engine"], json.loads(b.asked[0].body)["model"]) == (200, "b", "small")
            b.behave = lambda exchange: None
            second = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="small")))
            await until(lambda: len(b.asked) == 2)
            waiting = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="assistant")))
            await until(lambda: running.gateway.placing.waiting == 1)
            b.behave = b.answer
            b.answer(b.asked[1])
            assert (await second)[0] == 200 and (await waiting)[1]["x-assay-engine"] == "b"
            a.behave = a.answer
            a.answer(a.asked[0])
            assert (await first)[0] == 200
            assert (await ask(running.port, "POST", CHAT, chat(model="assistant")))[1]["x-assay-engine"] == "a"
            assert balanced(running)
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_an_alias_may_wait_for_its_first_model_or_refuse_at_once():
    async def test():
        a, b = await two()
        names = [{"name": how, "to": ["big", "small"], "full": how} for how in ("wait", "refuse")]
        async with Running(settings([a, b], model=names, inflight=1)) as running:
            assert (await ask(running.port, "POST", CHAT, chat(model="refuse")))[1]["x-assay-engine"] == "a"
            a.asked.clear()
            first = await held_up(running, a)
            status, fields, _ = await ask(running.port, "POST", CHAT, chat(model="refuse"))
            assert (status, fields["retry-after"]) == (429, "1") and not b.asked
            waiting = asyncio.create_task(ask(running.port, "POST", CHAT, chat(model="wait")))
            await until(lambda: running.gateway.placing.waiting == 1)
            a.behave = a.answer
            a.answer(a.asked[0])
            assert (await waiting)[1]["x-assay-engine"] == "a" and (await first)[0] == 200 and not b.asked
            assert balanced(running)
        for engine in (a, b):
            await engine.stop()

    run(test())
