"""The mock engine on real sockets: what it answers, when, and what it tells of itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvloop")

from assay.live import signals
from assay.live.mock_board import Settings, warm_up
from assay.live.mock_serve import Running
from assay.live.tokens import ByteTokens, Message
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine.simulator import Simulation
from assay.serving.fleet import FleetSpec, Instance
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests
from tests.live.fake_engines import Client, ask, until

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
COST = StepCost(tokens=0.010 + 1e-5 * np.arange(9000), kv_tokens=100_000)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 300))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiling takes longer than any of these tests would wait."""
    warm_up(Settings(model="m", instance=Instance(COST), kv_events="tcp://127.0.0.1:*"))


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[Running]:
    """An engine of 10 ms an iteration, twenty times as fast."""
    async with Running(
        Settings(**{"model": "m", "instance": Instance(COST), "speed": 20.0} | settings), "127.0.0.1", 0
    ) as it:
        yield it


def instant(**settings: Any) -> Any:
    return engine(instance=None, **settings)


def chat(text: str = "hello there", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]} | fields).encode()


def completion(prompt: Any = "hello there", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt} | fields).encode()


def events(body: bytes) -> list[Any]:
    """The events of a stream, without the mark at its end."""
    *found, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: ") for event in found)
    return [json.loads(event[6:]) for event in found]


def said(body: bytes) -> str:
    return "".join(choice["delta"].get("content", "") for event in events(body) for choice in event["choices"])


# What is answered


def test_a_chat_is_answered_with_words_and_usage():
    async def test():
        async with engine() as it:
            status, fields, body = await ask(it.port, "POST", CHAT, chat(max_tokens=5))
            answer = json.loads(body)
            assert (status, fields["content-type"]) == (200, "application/json")
            assert answer["object"] == "chat.completion" and answer["model"] == "m"
            (choice,) = answer["choices"]
            assert choice["message"]["role"] == "assistant" and len(choice["message"]["content"]) == 20
            assert choice["finish_reason"] == "length"
            prompt = len(ByteTokens().chat([Message("user", "hello there")]))
            usage = {"prompt_tokens": prompt, "total_tokens": prompt + 5, "completion_tokens": 5}
            assert answer["usage"] == usage | {"prompt_tokens_details": None}

    run(test())


def test_a_stream_has_the_role_first_then_an_event_a_token_and_the_usage_where_it_is_wanted():
    async def test():
        async with engine() as it:
            _, fields, body = await ask(it.port, "POST", CHAT, chat(max_tokens=5, stream=True))
            assert fields["content-type"].startswith("text/event-stream")
            first, *tokens = events(body)
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert [len(event["choices"][0]["delta"]["content"]) for event in tokens] == [4] * 5
            reasons = [event["choices"][0]["finish_reason"] for event in [first, *tokens]]
            assert reasons == [None] * 5 + ["length"]
            assert {event["object"] for event in [first, *tokens]} == {"chat.completion.chunk"}
            assert not any("usage" in event for event in [first, *tokens])
            asked = chat(max_tokens=5, stream=True, stream_options={"include_usage": True})
            *_, last = events((await ask(it.port, "POST", CHAT, asked))[2])
            assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5
            whole = json.loads((await ask(it.port, "POST", CHAT, chat(max_tokens=5)))[2])
            assert said(body) == whole["choices"][0]["message"]["content"] and first["id"] == whole["id"]

    run(test())


def test_completions_take_several_prompts_and_answer_each():
    async def test():
        async with instant() as it:
            _, _, body = await ask(
                it.port, "POST", COMPLETION, completion(["hello there", "good day"], max_tokens=3, n=2)
            )
            answer = json.loads(body)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            assert len({choice["text"] for choice in answer["choices"]}) == 4
            assert answer["usage"]["completion_tokens"] == 12
            _, _, body = await ask(
                it.port, "POST", COMPLETION, completion(["hello there", "good day"], max_tokens=3, n=2, stream=True)
            )
            texts = ["", "", "", ""]
            for event in events(body):
                texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
            assert texts == [choice["text"] for choice in answer["choices"]]
            _, _, body = await ask(it.port, "POST", COMPLETION, completion([7, 8, 9], max_tokens=3))
            assert json.loads(body)["usage"]["prompt_tokens"] == 3
            _, _, body = await ask(it.port, "POST", COMPLETION, completion("good day", echo=True, max_tokens=3))
            assert json.loads(body)["choices"][0]["text"] == "good day" + answer["choices"][2]["text"]

    run(test())


def test_asking_twice_gives_the_same_bytes_and_another_seed_others():
    async def test():
        bodies = []
        asked = (chat(), chat(stream=True), chat(n=3), chat(max_tokens=9, logprobs=True, top_logprobs=2))
        for seed in (0, 0, 1):
            async with instant(seed=seed) as it:
                bodies += [(await ask(it.port, "POST", CHAT, body))[2] for body in asked]
        assert bodies[:4] == bodies[4:8]
        assert not set(bodies[:4]) & set(bodies[8:])

    run(test())


def test_the_id_follows_the_request_id_of_the_client():
    async def test():
        async with instant() as it:
            ids = [json.loads((await ask(it.port, "POST", CHAT, chat(), x_request_id=name))[2])["id"] for name in "aab"]
            assert ids[0] == ids[1] != ids[2] and ids[0].startswith("chatcmpl-")

    run(test())


def test_a_stop_string_ends_the_answer_before_it():
    async def test():
        async with instant() as it:
            whole = json.loads((await ask(it.port, "POST", CHAT, chat(max_tokens=9)))[2])["choices"][0]["message"][
                "content"
            ]
            stop = whole[13:18]
            for stream in (False, True):
                body = (await ask(it.port, "POST", CHAT, chat(max_tokens=9, stop=[stop, "@"], stream=stream)))[2]
                if stream:
                    text, last = said(body), events(body)[-1]["choices"][0]
                else:
                    last = json.loads(body)["choices"][0]
                    text = last["message"]["content"]
                assert text == whole[: whole.index(stop)]
                assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)

    run(test())


def test_ignore_eos_and_min_tokens_keep_it_talking():
    async def test():
        async with instant() as it:
            for fields in ({"ignore_eos": True}, {"min_tokens": 700}):
                body = (await ask(it.port, "POST", CHAT, chat(max_tokens=700, **fields)))[2]
                assert json.loads(body)["usage"]["completion_tokens"] == 700
            body = (await ask(it.port, "POST", CHAT, chat(max_tokens=700)))[2]
            assert json.loads(body)["usage"]["completion_tokens"] < 700

    run(test())


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "choice", "called"),
    [
        ("rain?", "required", True),
        ("rain?", {"type": "function", "function": {"name": "weather"}}, True),
        ("rain?", "auto", False),
        ("the weather?", "auto", True),
        ("the weather?", None, True),
        ("the weather?", "none", False),
    ],
)
def test_a_function_is_called_when_it_must_be_or_was_named(text: str, choice: Any, called: bool):
    async def test():
        async with instant() as it:
            fields = {"tools": [WEATHER], "tool_choice": choice}
            answer = json.loads((await ask(it.port, "POST", CHAT, chat(text, **fields)))[2])["choices"][0]
            calls = answer["message"]["tool_calls"]
            assert len(calls) == called and (answer["finish_reason"] == "tool_calls") == called
            if not called:
                return
            arguments = json.loads(calls[0]["function"]["arguments"])
            assert isinstance(arguments["city"], str) and 1 <= arguments["days"] <= 7
            _, *deltas = events((await ask(it.port, "POST", CHAT, chat(text, stream=True, **fields)))[2])
            parts = [event["choices"][0]["delta"]["tool_calls"][0] for event in deltas]
            assert parts[0]["id"] == calls[0]["id"] and parts[0]["function"]["name"] == "weather"
            assert "".join(part["function"]["arguments"] for part in parts) == calls[0]["function"]["arguments"]
            assert deltas[-1]["choices"][0]["finish_reason"] == "tool_calls"

    run(test())


def test_an_answer_in_json_is_json():
    async def test():
        async with instant() as it:
            schema = {"name": "x", "schema": WEATHER["function"]["parameters"]}
            for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": schema}):
                body = (await ask(it.port, "POST", CHAT, chat(response_format=form)))[2]
                assert json.loads(json.loads(body)["choices"][0]["message"]["content"])

    run(test())


def test_embeddings_are_unit_vectors_of_the_text():
    async def test():
        async with engine() as it:
            asked = {"model": "m", "input": ["a text", "another", "a text"]}
            _, _, body = await ask(it.port, "POST", EMBEDDING, json.dumps(asked).encode())
            vectors = np.array([entry["embedding"] for entry in json.loads(body)["data"]])
            assert vectors.shape == (3, 64) and np.allclose((vectors**2).sum(1), 1.0)
            assert (vectors[0] == vectors[2]).all() and (vectors[0] != vectors[1]).any()
            asked |= {"encoding_format": "base64", "dimensions": 8}
            _, _, body = await ask(it.port, "POST", EMBEDDING, json.dumps(asked).encode())
            assert len(json.loads(body)["data"][0]["embedding"]) == 44

    run(test())


# What is refused


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("POST", CHAT, chat(model="other"), 404, {"param": "model", "code": "model_not_found"}),
        ("POST", CHAT, chat(max_tokens=0), 400, {"param": "max_tokens", "code": 400}),
        ("POST", CHAT, chat(max_tokens=200_000), 400, {"param": "messages"}),
        ("POST", CHAT, chat("x" * 600_000), 400, {"param": "messages"}),
        ("POST", CHAT, b"{", 400, {"type": "BadRequestError"}),
        ("POST", COMPLETION, completion(["x"] * 257), 400, {}),
        ("POST", COMPLETION, completion(""), 400, {"param": "prompt"}),
        ("POST", EMBEDDING, b'{"model": "m", "input": []}', 400, {"param": "input"}),
        ("POST", "/faults", b'{"faults": ["melt"]}', 400, {"param": "faults"}),
        ("POST", "/tokenize", b"{}", 400, {"param": "prompt"}),
        ("GET", "/v1/nothing", b"", 404, {"type": "NotFoundError"}),
    ],
)
def test_errors_have_the_shape_of_openais(method: str, path: str, body: bytes, status: int, told: dict[str, Any]):
    async def test():
        async with instant() as it:
            found, fields, answer = await ask(it.port, method, path, body)
            error = json.loads(answer)["error"]
            assert found == status and fields["content-type"] == "application/json"
            assert list(error) == ["message", "type", "param", "code"] and error["message"]
            assert error | told == error

    run(test())


def test_a_wrong_method_is_told_the_right_ones():
    async def test():
        async with instant() as it:
            for method, path, allowed in (
                ("GET", CHAT, "post"),
                ("POST", "/metrics", "get"),
                ("PUT", "/faults", "get, post"),
            ):
                status, fields, _ = await ask(it.port, method, path)
                assert (status, fields["allow"]) == (405, allowed)

    run(test())


# What it tells of itself


def test_models_version_health_and_tokens():
    async def test():
        async with instant() as it:
            (model,) = json.loads((await ask(it.port, "GET", "/v1/models"))[2])["data"]
            assert (model["id"], model["max_model_len"]) == ("m", 131072)
            assert json.loads((await ask(it.port, "GET", "/version"))[2])["version"]
            assert (await ask(it.port, "GET", "/health"))[0] == 200
            tokens = json.loads((await ask(it.port, "POST", "/tokenize", b'{"prompt": "abcdefgh"}'))[2])
            assert tokens["tokens"] == ByteTokens().text("abcdefgh").tolist() and tokens["count"] == 2

    run(test())


def test_the_metrics_page_is_read_by_the_gateway():
    async def test():
        async with engine(prompt_details=True) as it:
            text = "hello there, " * 20
            cached = []
            for _ in range(2):
                answer = json.loads((await ask(it.port, "POST", CHAT, chat(text, max_tokens=6)))[2])
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            prompt = answer["usage"]["prompt_tokens"]
            assert cached == [0, prompt // 16 * 16]
            reading = signals.read((await ask(it.port, "GET", "/metrics"))[2])
            assert (reading.family, set(reading.missing)) == ("vllm", {"hit_ratio", "throughput"})
            assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0)
            assert reading.kv_tokens == 100_000
            assert (reading.prompt_tokens, reading.output_tokens) == (2 * prompt, 12)
            assert (reading.queries, reading.hits) == (2 * prompt, cached[1])
            assert reading.ttft and reading.ttft.count == 2 and reading.itl and reading.itl.count == 10
            assert reading.step_tokens and reading.step_tokens.count == 12

    run(test())


def test_several_answers_to_one_prompt_do_not_find_it_several_times():
    async def test():
        async with engine(prompt_details=True) as it:
            asked = chat("hello there, " * 20, max_tokens=2, n=4)
            found = [json.loads((await ask(it.port, "POST", CHAT, asked))[2])["usage"] for _ in range(2)]
            cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in found]
            assert cached == [0, found[0]["prompt_tokens"] // 16 * 16]
            assert found[0]["completion_tokens"] == 8

    run(test())


def test_resetting_the_cache_forgets_prompts():
    async def test():
        async with engine(prompt_details=True) as it:
            asked = chat("hello there, " * 20, max_tokens=2)
            found = []
            for _ in range(2):
                await ask(it.port, "POST", CHAT, asked)
                answer = json.loads((await ask(it.port, "POST", CHAT, asked))[2])
                found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                assert (await ask(it.port, "POST", "/reset_prefix_cache"))[0] == 200
            answer = json.loads((await ask(it.port, "POST", CHAT, asked))[2])
            assert found[0] == found[1] > 0 == answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    run(test())


def test_a_conversation_that_goes_on_finds_its_answer_in_the_cache():
    async def test():
        async with engine(prompt_details=True) as it:
            messages = [{"role": "user", "content": "tell me something long about nothing at all, please"}]
            body = json.dumps({"model": "m", "messages": messages, "max_tokens": 40, "ignore_eos": True}).encode()
            answer = json.loads((await ask(it.port, "POST", CHAT, body))[2])
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
            messages[1] = {"role": "assistant", "content": messages[1]["content"]}
            usage = json.loads(
                (await ask(it.port, "POST", CHAT, json.dumps({"model": "m", "messages": messages}).encode()))[2]
            )["usage"]
            known = answer["usage"]["prompt_tokens"] + 39  # the last token was never computed on
            assert usage["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16

    run(test())


def test_kv_events_mirrored_are_what_the_engine_has():
    """What a mirror of the events foretells of every prompt is what the engine then finds in its cache."""
    pytest.importorskip("zmq")
    from assay.live.kv_events import Mirror, Subscriber
    from assay.live.prefix_index import PrefixIndex

    index = PrefixIndex(block=16)
    mirror = Mirror(index, index.add(4096))
    foretold = np.zeros(1, np.int64)
    index.match(index.hashes(np.arange(64, dtype=np.uint32)), 0.0, foretold)  # compiled before anybody waits

    async def test():
        small = Instance(COST, kv_tokens=1024, max_seqs=4)
        wildcard = "tcp://127.0.0.1:*"
        async with engine(instance=small, kv_events=wildcard, kv_replay=wildcard, prompt_details=True) as it:
            board = it.engine.board
            assert board.instance is not None and board.publisher is not None
            subscriber = Subscriber(
                board.publisher.endpoint,
                lambda batch, gap: mirror.apply(batch, 0.0),
                replay_endpoint=board.publisher.replay_endpoint,
            )
            found = 0
            for n in range(40):
                prompt = f"prompt {n % 7}, " + "and so on and on " * (n % 5 + 3)
                tokens = ByteTokens().text(prompt)
                index.match(index.hashes(tokens), 0.0, foretold)
                body = (await ask(it.port, "POST", COMPLETION, completion(prompt, max_tokens=20)))[2]
                cached = json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached == min(foretold[0], (len(tokens) - 1) // 16 * 16)
                await until(lambda: len(mirror) == board.instance.named_blocks)
                found += cached
            assert found and index.blocks(0) == len(mirror) <= 64
            await ask(it.port, "POST", "/reset_prefix_cache")
            await until(lambda: len(mirror) == 0)
            assert mirror.unknown == mirror.ignored == subscriber.gaps == 0
            subscriber.close()

    run(test())


# When it is said


@pytest.mark.timed
def test_answers_come_hardly_later_than_the_simulator_says():
    async def test():
        prompts, outputs, spec = [3000, 200, 9000, 40], [5, 9, 3, 12], Instance(COST)
        async with engine(instance=spec, speed=1.0, prefix_caching=False) as it:
            measured = []
            for prompt, output in zip(prompts, outputs, strict=True):
                asked = completion([5] * prompt, max_tokens=output, ignore_eos=True, stream=True)
                began = time.monotonic()
                await ask(it.port, "POST", COMPLETION, asked)
                measured.append(time.monotonic() - began)
        spaced = Requests.of([10.0 * i for i in range(4)], prompts, outputs)
        outcome = Simulation(spaced, FleetSpec((spec,)), RoundRobin(), prefix_cache=False).run()
        assert np.median(np.array(measured) - outcome.e2e) < 0.1

    run(test())


def test_times_are_the_simulators():
    """Requests that come alone, and some that come together: each sum of times is the simulator's to rounding."""

    async def test():
        prompts, outputs = [3000, 200, 9000, 40], [5, 9, 3, 12]
        spec = Instance(COST)
        async with engine(instance=spec, speed=1.0, prefix_caching=False) as it:
            measured = []
            for prompt, output in zip(prompts, outputs, strict=True):
                asked = completion([5] * prompt, max_tokens=output, ignore_eos=True, stream=True)
                began = time.monotonic()
                await ask(it.port, "POST", COMPLETION, asked)
                measured.append(time.monotonic() - began)
            alone = it.engine.board.metrics
            spaced = Requests.of([10.0 * i for i in range(4)], prompts, outputs)
            outcome = Simulation(spaced, FleetSpec((spec,)), RoundRobin(), prefix_cache=False).run()
            assert alone.ttft._sum == pytest.approx(outcome.ttft.sum(), rel=1e-9)
            assert alone.e2e._sum == pytest.approx(outcome.e2e.sum(), rel=1e-9)
            late = np.array(measured) - outcome.e2e
            assert (late > -1e-4).all()  # never early; how late, a busy machine decides
            await ask(it.port, "POST", COMPLETION, completion([5] * 700, max_tokens=30, ignore_eos=True, n=8))
            together = Requests.of(np.zeros(8), np.full(8, 700), np.full(8, 30))
            outcome = Simulation(together, FleetSpec((spec,)), RoundRobin(), prefix_cache=False).run()
            e2e = alone.e2e._sum - sum(
                Simulation(spaced, FleetSpec((spec,)), RoundRobin(), prefix_cache=False).run().e2e
            )
            assert e2e == pytest.approx(outcome.e2e.sum(), rel=1e-9)

    run(test())


def test_a_client_that_leaves_frees_its_place():
    async def test():
        async with engine(speed=1.0) as it:
            board = it.engine.board
            assert board.instance is not None
            async with Client(it.port) as client:
                client.send("POST", CHAT, chat(max_tokens=5000, ignore_eos=True, stream=True, n=3))
                await client.head()
                await client.chunk()
                assert board.instance.running == 3
            await until(lambda: board.instance.running == 0)
            assert board.metrics.ended["abort"] == 3 and not board._sequences
            await until(lambda: board.instance.free_slots == board.instance.slots)

    run(test())


def test_a_full_engine_says_so():
    async def test():
        async with engine(speed=0.1) as it, AsyncExitStack() as stack:
            many = completion(["x"] * 256, max_tokens=500, ignore_eos=True, stream=True)
            for _ in range(4):
                (await stack.enter_async_context(Client(it.port))).send("POST", COMPLETION, many)
            board = it.engine.board
            await until(lambda: board.instance is not None and board.instance.free_slots == 0)
            status, fields, _ = await ask(it.port, "POST", CHAT, chat())
            assert (status, fields["retry-after"]) == (503, "1")

    run(test())


# Faults


async def ended(port: int, body: bytes) -> tuple[str, bytes]:
    """How an exchange ended, and all that was read of it."""
    async with Client(port) as client:
        client.send("POST", CHAT, body)
        read = b""
        try:
            async with asyncio.timeout(120):
                while piece := await client.reader.read(65536):
                    read += piece
                    if read.endswith((b"0\r\n\r\n", b"}")):
                        return "complete", read
        except ConnectionResetError:
            pass
        return "cut", read


@pytest.mark.parametrize("made", [engine, instant])
def test_a_stream_that_breaks_off_has_some_of_its_tokens(made: Callable[..., Any]):
    async def test():
        async with made(faults=("disconnect:1",)) as it:
            how, read = await ended(it.port, chat(max_tokens=10, stream=True))
            assert how == "cut" and read.count(b"data: ") == 6 and b"[DONE]" not in read
            how, read = await ended(it.port, chat(max_tokens=10))
            assert how == "cut" and b"200 OK" in read and b'"choices"' in read
            assert it.engine.board.metrics.faults["disconnect"] == 2
            await until(lambda: not it.engine.board._sequences)

    run(test())


def test_refused_hung_and_wrong_answers():
    async def test():
        async with instant() as it:
            for spec, told in (("refuse:1", ("cut", b"")), ("error:1:502", ("complete", b"502 Bad Gateway"))):
                status, _, body = await ask(it.port, "POST", "/faults", json.dumps({"faults": [spec]}).encode())
                assert status == 200 and json.loads(body) == {"faults": [spec]}
                how, read = await ended(it.port, chat())
                assert how == told[0] and told[1] in read
            await ask(it.port, "POST", "/faults", b'{"faults": ["hang:1"]}')
            async with Client(it.port) as client:
                client.send("POST", CHAT, chat())
                await until(lambda: it.engine.board.metrics.faults["hang"] == 1)
                assert json.loads((await ask(it.port, "GET", "/faults"))[2]) == {"faults": ["hang:1"]}
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.reader.read(1), 0.05)
            await ask(it.port, "POST", "/faults", b'{"faults": []}')
            assert (await ask(it.port, "POST", CHAT, chat()))[0] == 200

    run(test())


def test_a_slow_request_takes_so_many_times_as_long_and_says_the_same():
    async def test():
        async with engine(faults=("slow:1:8",)) as it:
            began = time.monotonic()
            slow = (await ask(it.port, "POST", CHAT, chat(max_tokens=20, stream=True)))[2]
            taken = time.monotonic() - began
            await ask(it.port, "POST", "/faults", b'{"faults": []}')
            assert (await ask(it.port, "POST", CHAT, chat(max_tokens=20, stream=True)))[2] == slow
            assert taken > 8 * 20 * 0.010 / 20.0

    run(test())
