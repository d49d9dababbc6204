"""Unmodified llama.cpp and vLLM behind the gateway: `make engines` puts them into .cache/engines, else all is skipped.

The tests of an engine run in this order, on one process of it, which the last ones kill and start again. Marked
`slow`: vLLM takes minutes to start.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from assay.live.settings import Settings, convert
from tests.live import fake_engines
from tests.live.conftest import Listening
from tests.live.fake_engines import Client, balanced, until
from tests.live.real import install
from tests.live.real.processes import KINDS, MODEL, START, Real

pytestmark = [pytest.mark.engines, pytest.mark.slow]
CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]},
    },
}
LONG = "Once upon a time there was an engine that nobody had modified. " * 10


@pytest.fixture(scope="module", params=KINDS)
def engine(request, tmp_path_factory):
    made, needs = KINDS[request.param]
    if not needs.exists():
        pytest.skip(f"{request.param} is not here: {install.CURE}")
    running = made(tmp_path_factory.mktemp("real"))
    running.start()
    yield running
    running.stop()


def run(test):
    return asyncio.run(asyncio.wait_for(test, START))


def settings(engine: Real, /, **more: Any) -> Settings:
    quick = {"port": 0, "probe": 0.5, "scrape": 0.5, "pause": 0.5, "connect": 10.0, "policy_time": 60.0}
    return convert(quick | {"engine": [engine.settings()]} | more, "test")


def chat(text: str = "hi", **more: Any) -> bytes:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    return json.dumps(asked | more).encode()


JSON = {"content_type": "application/json"}  # vLLM insists on it


async def ask(port: int, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    return await fake_engines.ask(port, method, path, body, **JSON)


def events(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_of(body: bytes) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events(body) if e.get("choices"))


def test_chat_stream_tools_and_usage_are_the_engine_s_own(engine):
    async def test():
        async with Running(settings(engine)) as running:
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            status, fields, body = await ask(running.port, "POST", CHAT, chat())
            direct = (await ask(engine.port, "POST", CHAT, chat()))[2]
            whole, same = json.loads(body), json.loads(direct)
            assert status == 200 and fields["x-assay-engine"] == engine.kind
            said = whole["choices"][0]["message"]["content"]
            assert said == same["choices"][0]["message"]["content"]
            assert whole["usage"]["completion_tokens"] == 8
            assert whole["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]

            streamed = chat(stream=True, stream_options={"include_usage": True})
            status, _, body = await ask(running.port, "POST", CHAT, streamed)
            assert status == 200 and body.rstrip().endswith(b"data: [DONE]") and text_of(body) == said
            assert [e["usage"] for e in events(body) if e.get("usage")][-1]["completion_tokens"] == 8

            choice = {"type": "function", "function": {"name": "weather"}} if engine.kind == "vllm" else "required"
            called = chat(tools=[TOOL], tool_choice=choice, max_tokens=200)
            status, _, body = await ask(running.port, "POST", CHAT, called)
            direct = (await ask(engine.port, "POST", CHAT, called))[2]
            message, same = (json.loads(said)["choices"][0]["message"] for said in (body, direct))
            assert status == 200 and message["content"] == same["content"]
            if engine.kind == "vllm":  # llama.cpp lets a model of noise talk before it calls, and so it never does
                function = message["tool_calls"][0]["function"]
                assert function == same["tool_calls"][0]["function"] and function["name"] == "weather"
            assert json.loads(body)["usage"]["prompt_tokens"] > whole["usage"]["prompt_tokens"]  # the tools
            await until(lambda: balanced(running))

    run(test())


def test_a_client_that_leaves_takes_its_request_along(engine):
    async def test():
        async with Running(settings(engine)) as running:
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat(LONG, stream=True, max_tokens=3000, ignore_eos=True), **JSON)
                status, _ = await client.head()
                assert status == 200 and await client.chunk()
                assert await asyncio.to_thread(engine.busy) == 1
            await until(lambda: balanced(running))
            assert running.gateway.counters.requests["chat", 499] == 1
            while await asyncio.to_thread(engine.busy):
                await asyncio.sleep(0.1)

    run(test())


def test_kv_events_say_what_the_engine_will_find_in_its_cache(engine, tmp_path):
    if engine.kind != "vllm":
        pytest.skip("llama.cpp publishes none")

    async def test():
        log = tmp_path / "log"
        more = {"tokenizer": str(install.CHECKPOINT / "tokenizer.json"), "log": str(log), "block": 32}
        asked = [json.dumps({"model": MODEL, "prompt": f"{n} {LONG}", "max_tokens": 4}).encode() for n in range(3)]
        async with Running(settings(engine, **more)) as running:
            fleet = running.gateway.fleet
            await until(lambda: fleet.engines[0].state == "up")
            for body in (*asked, *asked):
                status, _, _ = await ask(running.port, "POST", "/v1/completions", body)
                assert status == 200
                await asyncio.sleep(1.0)  # the events come by another way than the answer
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        counted = [(line.get("cached_tokens") or 0, line.get("matched_tokens", 0)) for line in lines]
        assert all(cached == matched for cached, matched in counted[:3]), counted
        later = counted[3:]
        assert all(cached == matched and cached >= 576 for cached, matched in later), later
        async with Running(settings(engine, **more)) as running:  # a new gateway hears what it missed
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            await until(lambda: running.gateway.index.blocks(0) > 0)
            await ask(running.port, "POST", "/v1/completions", asked[0])
        last = json.loads(log.read_text().splitlines()[-1])
        assert last["cached_tokens"] == last["matched_tokens"] >= 576

    run(test())


@pytest.fixture(scope="module")
def spare():
    """A mock engine of the same model, which takes over."""
    process = Listening("engine", "--port", "0", "--model", MODEL, "--speed", "50")
    yield process.url
    process.stop()


def both(engine: Real, spare: str, **more: Any) -> Settings:
    listed = [engine.settings(), {"url": spare, "name": "spare"}]
    return settings(engine, **{"engine": listed, "policy": "round-robin", "failures": 1} | more)


async def first_to(engine: Real, running: Running, body: bytes) -> Client:
    """A client whose request is on the real engine."""
    gateway = running.gateway
    await until(lambda: all(e.state == "up" for e in gateway.fleet.engines))
    while True:
        client = await Client(running.port).__aenter__()
        client.send("POST", CHAT, body, **JSON)
        await until(lambda: any(relay.engine is not None for relay in gateway.relays))
        if next(iter(gateway.relays)).engine.name == engine.kind:
            return client
        await client.answer()


def test_killed_before_the_first_token_another_engine_answers(engine, spare):
    async def test():
        rarely = {"probe": 600.0, "scrape": 600.0}  # no health check notices before the request does
        async with Running(both(engine, spare, **rarely)) as running:
            await until(lambda: all(e.state == "up" for e in running.gateway.fleet.engines))
            engine.signal(signal.SIGSTOP)  # so that there is no first token
            client = await first_to(engine, running, chat(LONG, stream=True))
            await asyncio.sleep(0.5)
            engine.signal(signal.SIGKILL)
            status, fields, body = await asyncio.wait_for(client.answer(), 120)
            assert status == 200 and fields["x-assay-engine"] == "spare" and b"[DONE]" in body
            assert running.gateway.counters.retries == 1
            await until(lambda: balanced(running))

    run(test())
    engine.stop()
    engine.start()


def test_killed_after_the_first_token_the_stream_ends_in_an_error_and_the_engine_comes_back(engine, spare):
    async def test():
        async with Running(both(engine, spare)) as running:
            client = await first_to(engine, running, chat(LONG, stream=True, max_tokens=3000, ignore_eos=True))
            status, _ = await client.head()
            assert status == 200 and await client.chunk()
            engine.signal(signal.SIGKILL)
            body = b""
            while piece := await asyncio.wait_for(client.chunk(), 120):
                body += piece
            assert b'"error"' in body.splitlines()[-2] or b'"error"' in body.splitlines()[-4], body[-600:]
            counted = running.gateway.counters.requests
            await until(lambda: balanced(running))
            assert counted["chat", 502] + counted["chat", 500] == 1 and counted["chat", 200] <= 1
            for _ in range(3):  # the other one answers meanwhile
                status, fields, _ = await ask(running.port, "POST", CHAT, chat())
                assert status == 200 and fields["x-assay-engine"] == "spare"
            await asyncio.to_thread(engine.stop)
            await asyncio.to_thread(engine.start)
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            served = {(await ask(running.port, "POST", CHAT, chat()))[1]["x-assay-engine"] for _ in range(4)}
            assert served == {engine.kind, "spare"}
            await until(lambda: balanced(running))

    run(test())
