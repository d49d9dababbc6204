"""`assay engine` as a process: with the official client, with signals, and with wrong options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvloop")

from tests.live.conftest import Listening

USER = [{"role": "user", "content": "what is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def client(engine_process: Callable[..., str]) -> Any:
    openai = pytest.importorskip("openai")
    url = engine_process("--speed", "20", "--enable-prompt-tokens-details")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30.0) as made:
        yield made


def test_the_official_client_gets_chats_and_completions(client: Any):
    chat = client.chat.completions.create(model="qwen3-8b", messages=USER, max_tokens=12)
    assert chat.choices[0].message.content and chat.choices[0].finish_reason == "length"
    assert chat.usage.completion_tokens == 12 and chat.usage.prompt_tokens_details.cached_tokens >= 0
    completion = client.completions.create(model="qwen3-8b", prompt=["once", "twice"], max_tokens=4, n=2)
    assert [len(choice.text) for choice in completion.choices] == [16] * 4
    assert [model.id for model in client.models.list()] == ["qwen3-8b"]


def test_the_official_client_reads_streams(client: Any):
    whole = client.chat.completions.create(model="qwen3-8b", messages=USER, max_tokens=12)
    stream = client.chat.completions.create(
        model="qwen3-8b", messages=USER, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.completion_tokens == 12
    texts = client.completions.create(model="qwen3-8b", prompt="once", max_tokens=4, stream=True)
    assert len("".join(chunk.choices[0].text for chunk in texts)) == 16


def test_the_official_client_gets_tool_calls(client: Any):
    fields: Any = {"model": "qwen3-8b", "messages": USER, "tools": [WEATHER], "tool_choice": "required"}
    (choice,) = client.chat.completions.create(**fields).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather" and choice.finish_reason == "tool_calls"
    assert list(json.loads(call.function.arguments)) == ["city"]
    parts = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(**fields, stream=True)]
    assert "".join(part[0].function.arguments for part in parts if part) == call.function.arguments
    answered = [*USER, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    told = client.chat.completions.create(model="qwen3-8b", messages=answered, max_tokens=3)
    assert told.choices[0].message.content


def test_the_official_client_gets_log_probabilities_and_embeddings(client: Any):
    chat = client.chat.completions.create(model="qwen3-8b", messages=USER, max_tokens=3, logprobs=True, top_logprobs=2)
    content = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == chat.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob < 0 for entry in content)
    text = client.completions.create(model="qwen3-8b", prompt="once", max_tokens=3, logprobs=2)
    assert "".join(text.choices[0].logprobs.tokens) == text.choices[0].text
    vectors = client.embeddings.create(model="qwen3-8b", input=["a", "b"], dimensions=5).data
    assert [len(vector.embedding) for vector in vectors] == [5, 5]


def test_the_official_client_raises_what_it_should(client: Any):
    import openai

    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="another", messages=USER)
    assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="qwen3-8b", messages=USER, temperature=3)


def post(url: str, body: object) -> bytes:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found: bytes = answer.read()
        return found


def test_it_stops_when_told_to_and_ends_what_it_began():
    listening = Listening("engine", "--port", "0", "--instant", "--served-model-name", "any")
    assert "answers at once" in listening.lines[0]
    assert json.loads(post(f"{listening.url}/v1/completions", {"model": "any", "prompt": "x"}))["choices"]
    assert listening.stop() == 0
    assert "Traceback" not in "".join(listening.lines)


def test_a_crash_ends_the_process_at_its_time_or_at_its_request():
    for spec in ("crash@0.2", "crash:1"):
        listening = Listening("engine", "--port", "0", "--instant", "--fault", spec)
        if spec == "crash:1":
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                post(f"{listening.url}/v1/completions", {"model": "qwen3-8b", "prompt": "x"})
        assert listening.process.wait(20.0) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fault", "melt:1"], "fault 'melt:1'"),
        (["--gpu", "abacus"], "abacus"),
        (["--model", "nobody-8b"], "nobody-8b"),
        (["--kv-events-replay", "tcp://127.0.0.1:1"], "--kv-events"),
        (["--instant", "--kv-events", "tcp://127.0.0.1:*"], "--instant"),
        (["--order", "chaos"], "unknown order 'chaos'"),
        (["--max-num-seqs", "9000"], "max_seqs"),
        (["--speed", "0"], "speed"),
        (["--instant", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], told: str, tmp_path: Path):
    command = [sys.executable, "-m", "assay.cli.main", "engine", "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ, check=False)
    assert ended.returncode in (1, 2) and told in ended.stderr
    assert ended.stderr.count("\n") == 1 and "Traceback" not in ended.stderr
