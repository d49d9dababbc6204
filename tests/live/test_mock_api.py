"""What the mock engine takes, and what it refuses with the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.live.mock_api import Invalid, functions, read_chat, read_completion, token_rows
from assay.live.tokens import ByteTokens

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER]} | fields).encode()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"seed": 1.5}, "seed"),
        ({"user": 7}, "user"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "magic", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps", "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [WEATHER]}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_what_breaks_the_description_is_refused_with_the_fields_name(fields: dict[str, Any], named: str):
    with pytest.raises(Invalid) as refused:
        read_chat(chat(**fields))
    assert refused.value.status == 400
    assert named in str(refused.value)
    assert (refused.value.param or "").startswith(named)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"unknown": {"deep": [1, None]}, "top_k": 40},
        {"max_tokens": None, "temperature": None, "stop": None, "stream": None, "stream_options": None, "tools": None},
        {"temperature": 0, "top_p": 1, "n": 8, "seed": -5, "stop": "x", "presence_penalty": -2},
        {"messages": [{"role": r, "content": None} for r in ("system", "developer", "assistant", "tool", "function")]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": []}]},
        {"tools": [WEATHER], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
    ],
)
def test_what_keeps_to_the_description_is_taken(fields: dict[str, Any]):
    assert read_chat(chat(**fields)).messages


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": "\xff"}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(Invalid):
        read_chat(body)


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_do_anything_worse_than_being_refused(body: bytes):
    for read in (read_chat, read_completion):
        with pytest.raises(Invalid):
            read(body)


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], 2], [-1], [2**32], {"a": 1}, 5, None, [None], [[["x"]]]])
def test_a_prompt_is_text_or_ids_or_a_list_of_either(prompt: Any):
    with pytest.raises(Invalid, match="prompt"):
        token_rows(
            read_completion(json.dumps({"model": "m", "prompt": prompt}).encode()).prompt, "prompt", ByteTokens()
        )


@pytest.mark.parametrize(
    ("prompt", "sizes"), [("abcde", [2]), (["abcde", "x"], [2, 1]), ([7, 8, 9], [3]), ([[7], [8, 9]], [1, 2])]
)
def test_prompts_of_every_kind_become_rows_of_tokens(prompt: Any, sizes: list[int]):
    assert [len(row) for row in token_rows(prompt, "prompt", ByteTokens())] == sizes


@pytest.mark.parametrize("prompt", ["", [""], [[]], ["a", ""]])
def test_an_empty_prompt_is_refused(prompt: Any):
    with pytest.raises(Invalid, match="prompt is empty"):
        token_rows(prompt, "prompt", ByteTokens())


def test_a_completion_has_16_tokens_unless_it_says_otherwise():
    assert read_completion(b'{"model": "m", "prompt": "x"}').limit == 16
    assert read_completion(b'{"model": "m", "prompt": "x", "max_tokens": 5}').limit == 5


def test_tools_are_read_with_their_parameters():
    (function,) = functions(read_chat(chat(tools=[WEATHER])))
    assert (function.name, function.parameters) == ("weather", {"type": "object"})


def test_the_model_must_be_named():
    with pytest.raises(Invalid, match="model"):
        read_chat(json.dumps({"messages": [USER]}).encode())


def test_a_whole_number_may_be_written_with_a_point():
    asked = read_chat(b'{"model": "m", "max_tokens": 5.0, "n": 2e0, "messages": [{"role": "user", "content": "hi"}]}')
    assert (asked.max_tokens, asked.n) == (5, 2)
    assert read_completion(b'{"model": "m", "prompt": [[7.0, 8], [9]]}').prompt == [[7, 8], [9]]
    with pytest.raises(Invalid, match="max_tokens"):
        read_chat(chat(max_tokens=5.5))
