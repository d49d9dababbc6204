"""Processes as a user starts them: two mock engines, the gateway, the official client, curl."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

from tests.live.conftest import Listening

openai = pytest.importorskip("openai")
pytest.importorskip("uvloop")

FAST = ("--speed", "50", "--model", "qwen3-8b")
SAY = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue? " * 20}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@pytest.fixture(scope="module")
def engines(engine_process):
    return [engine_process(*FAST, "--seed", "0"), engine_process(*FAST, "--seed", "0", "--max-num-seqs", "255")]


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    log = tmp_path_factory.mktemp("gateway") / "access.jsonl"
    process = Listening("gateway", "--engines", ",".join(engines), "--port", "0", "--log", str(log))
    process.log = log
    yield process
    assert process.stop() == 0, process.lines


@pytest.fixture(scope="module")
def client(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def fetch(url: str, body: object = None, method: str | None = None) -> tuple[int, str, bytes]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "x-request-id": "the-same"}  # an engine's ids follow from it
    request = urllib.request.Request(url, data, fields, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["content-type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "max_tokens": 12}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "max_tokens": 12, "stream": True}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "max_tokens": 12, "stream": True,
                                  "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "tools": [TOOL], "tool_choice": "required"}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "tools": [TOOL], "tool_choice": "required",
                                  "stream": True}),
        ("/v1/completions", {"model": "qwen3-8b", "prompt": "Once upon a time", "max_tokens": 20}),
        ("/v1/completions", {"model": "qwen3-8b", "prompt": [1, 2, 3] * 30, "max_tokens": 20, "stream": True}),
        ("/v1/completions", {"model": "qwen3-8b", "prompt": ["one", "two"], "max_tokens": 5, "n": 2}),
        ("/v1/embeddings", {"model": "qwen3-8b", "input": ["a", "b"]}),
        ("/v1/models", None),
        ("/v1/chat/completions", {"model": "no-such-model", "messages": SAY}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": []}),
        ("/v1/chat/completions", {"model": "qwen3-8b", "messages": SAY, "temperature": "hot"}),
        ("/v1/chat/completions", b"{not json"),
        ("/no/such/path", None),
    ],
)  # fmt: skip
def test_every_answer_is_byte_for_byte_the_engine_s_own(gateway, engines, path, body):
    direct, through = fetch(engines[0] + path, body), fetch(gateway.url + path, body)
    assert through == direct


def test_chat(client):
    answer = client.chat.completions.create(
        model="qwen3-8b", messages=SAY, max_tokens=10, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.usage.completion_tokens == 10 and answer.choices[0].finish_reason == "length"


def test_a_streamed_chat_has_the_same_text(client):
    ask = {"model": "qwen3-8b", "messages": SAY, "max_tokens": 10}
    whole = client.chat.completions.create(**ask)
    pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage == whole.usage


def test_completions_and_embeddings(client):
    answer = client.completions.create(model="qwen3-8b", prompt="Once", max_tokens=7)
    assert answer.choices[0].text
    streamed = list(client.completions.create(model="qwen3-8b", prompt="Once", max_tokens=7, stream=True))
    assert "".join(piece.choices[0].text for piece in streamed) == answer.choices[0].text
    vectors = client.embeddings.create(model="qwen3-8b", input=["a", "b"])
    assert len(vectors.data) == 2 and len(vectors.data[0].embedding) > 1


def test_tools(client):
    ask = {"model": "qwen3-8b", "messages": SAY, "tools": [TOOL], "tool_choice": "required"}
    call = client.chat.completions.create(**ask).choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and isinstance(arguments["city"], str) and isinstance(arguments["days"], int)
    pieces = [p.choices[0].delta for p in client.chat.completions.create(**ask, stream=True) if p.choices]
    calls = [call for delta in pieces for call in delta.tool_calls or []]
    assert "".join(call.function.arguments or "" for call in calls) == call_arguments(client, ask)


def call_arguments(client, ask):
    return client.chat.completions.create(**ask).choices[0].message.tool_calls[0].function.arguments


def test_errors_are_the_client_library_s_own_exceptions(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=SAY)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="qwen3-8b", messages=[])
    assert [model.id for model in client.models.list()] == ["qwen3-8b"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_sees_events_as_they_come(gateway):
    ask = {"model": "qwen3-8b", "messages": SAY, "max_tokens": 8, "stream": True}
    command = ["curl", "-sN", "--max-time", "20", f"{gateway.url}/v1/chat/completions", "-d", json.dumps(ask)]
    done = subprocess.run(command, capture_output=True, timeout=30, check=True)
    events = done.stdout.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(json.loads(event[6:])["object"] == "chat.completion.chunk" for event in events[:-2])


def test_a_large_prompt_with_expect_continue_arrives_whole(gateway):
    prompt = {"model": "qwen3-8b", "prompt": "word " * 60_000, "max_tokens": 2}
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    command = [
        "curl",
        "-s",
        "--max-time",
        "20",
        "-H",
        "Expect: 100-continue",
        f"{gateway.url}/v1/completions",
        "-d",
        "@-",
    ]
    done = subprocess.run(command, input=json.dumps(prompt).encode(), capture_output=True, timeout=30, check=True)
    assert json.loads(done.stdout)["usage"]["prompt_tokens"] == 75_000


def test_the_log_of_all_this_is_a_trace(gateway, client):
    from assay.workloads.request_files import read

    client.chat.completions.create(model="qwen3-8b", messages=SAY, max_tokens=3)
    deadline = 50
    while not gateway.log.exists() or gateway.log.stat().st_size == 0:
        deadline -= 1
        assert deadline
        subprocess.run(["sleep", "0.1"], check=True)
    trace = read(gateway.log)
    assert len(trace) >= 1 and trace.prefixes is not None and "none" not in gateway.log.read_text()


def test_a_gateway_without_engines_says_what_to_do():
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "gateway"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "--engines" in done.stderr and done.stderr.count("\n") == 1


def test_a_replayed_trace_comes_back_from_the_log(engines, tmp_path):
    """Arrivals, lengths and what prompts share: what went in is what the log of the gateway reads as."""
    import asyncio

    from assay.live.replay import replay
    from assay.live.serve import Running
    from assay.live.settings import convert
    from assay.workloads.chat import chat
    from assay.workloads.prefixes import infinite_cache_hit
    from assay.workloads.request_files import read

    trace = chat(60, rate=20.0, seed=9)
    log = tmp_path / "access.jsonl"
    table = {"engine": [{"url": url} for url in engines], "port": 0, "log": str(log)}

    async def run():
        async with Running(convert(table, "test")) as running:
            return await replay(f"http://127.0.0.1:{running.port}", trace, model="qwen3-8b")

    sent = asyncio.run(run())
    rows = {row["request_id"]: row for row in map(json.loads, log.read_text().splitlines())}
    rows = [rows[f"replay-0-{r}"] for r in range(len(trace))]
    assert [row["prompt_tokens"] for row in rows] == trace.prompt.tolist()
    assert [row["completion_tokens"] for row in rows] == trace.output.tolist() == sent["tokens"].to_list()
    # Each came between its being sent and its last token, on whatever machine; the clocks differ by one offset.
    after = np.array([row["time"] for row in rows]) - sent["arrival"].to_numpy()
    assert (after - after.min() <= sent["e2e"].to_numpy() + 0.01).all()
    again = read(log)
    assert len(again) == len(trace)
    by_time = sorted(rows, key=lambda row: row["time"])
    assert again.prompt.tolist() == [row["prompt_tokens"] for row in by_time]
    assert again.output.tolist() == [row["completion_tokens"] for row in by_time]
    assert again.arrival == pytest.approx([row["time"] - by_time[0]["time"] for row in by_time], abs=1e-5)
    assert infinite_cache_hit(again) == pytest.approx(infinite_cache_hit(trace), abs=0.02)
