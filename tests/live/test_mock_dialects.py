"""The mock engine's /v1/responses and /v1/messages: read strictly, answered as the chat that they amount to."""

from __future__ import annotations

import json

import pytest

from assay.live import api as gateway_api
from assay.live import mock_dialects as dialects
from assay.live.mock_api import Invalid
from assay.live.mock_text import spoken, written
from assay.live.mock_wire import Usage
from assay.live.tokens import ByteTokens

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def messages(**fields) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields).encode()


def responses(**fields) -> bytes:
    return json.dumps({"model": "m", "input": "hi"} | fields).encode()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),  # Anthropic's has a field for it
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"tools": [{"name": "weather"}]}, "input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ],
)
def test_messages_are_read_strictly(fields, named):
    with pytest.raises(Invalid, match=named):
        dialects.read_messages(messages(**fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "earlier responses"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ],
)
def test_responses_are_read_strictly(fields, named):
    with pytest.raises(Invalid, match=named):
        dialects.read_responses(responses(**fields))


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("messages", messages(system="Be brief.", tools=[TOOL])),
        ("messages", messages(system=[{"type": "text", "text": "Be brief."}])),
        ("messages", messages(messages=[USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "wet"}]}])),
        ("responses", responses(instructions="Be brief.")),
        ("responses", responses(input=[USER, {"type": "function_call_output", "call_id": "c", "output": "wet"}])),
    ],
)  # fmt: skip
def test_a_prompt_is_the_row_of_tokens_that_the_gateway_makes_of_it(endpoint, body):
    read = dialects.read_messages if endpoint == "messages" else dialects.read_responses
    row, _ = gateway_api.tokens(gateway_api.read(body, endpoint), endpoint, ByteTokens())
    assert read(body).prompt.tolist() == row.tolist()


@pytest.mark.parametrize("answer", [spoken(7, limit=3), written('{"city": "x"}', 100, "weather")], ids=["text", "call"])
def test_what_a_stream_says_adds_up_to_the_whole_answer(answer):
    usage = Usage(20, len(answer.tokens), 16)
    for said in (
        dialects.ResponsesAnswer("resp_ab", "m", answer),
        dialects.MessagesAnswer("msg_ab", "m", answer, 20),
    ):
        script, whole = said.script(), json.loads(said.whole(usage))
        stream = b"".join(script.chunk(i) for i in range(len(answer.pieces))) + said.farewell(usage)
        events = [json.loads(event.split("data: ")[1]) for event in stream.decode().split("\n\n") if event]
        tokens = [event for event in events if "delta" in event and event["type"] != "message_delta"]
        assert len(tokens) == len(answer.pieces) == gateway_api.named_tokens(stream)
        pieces = [e["delta"] if isinstance(e["delta"], str) else [*e["delta"].values()][1] for e in tokens]
        text = json.loads(b'"%b"' % answer.text)
        assert "".join(pieces) == text
        told = gateway_api.streamed_usage(stream)
        assert told is not None and (told.prompt, told.output, told.cached) == (20, usage.completion, 16)
        if isinstance(said, dialects.ResponsesAnswer):
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            assert events[-1]["response"] == whole
        else:
            assert events[-2]["usage"] == whole["usage"] and whole["stop_reason"] == events[-2]["delta"]["stop_reason"]
