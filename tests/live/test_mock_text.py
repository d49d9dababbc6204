"""The mock engine's words: a function of the prompt alone, a token each, cut where they should be."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.live import mock_text as text
from assay.live.tokens import ByteTokens, Message

STARTS = st.integers(0, 2**64 - 1)


@given(STARTS, st.integers(1, 300))
def test_an_answer_that_is_sent_again_is_the_same_tokens(start: int, count: int):
    answer = text.spoken(start, count, least=count)
    assert ByteTokens().text(answer.text.decode()).tolist() == answer.tokens.tolist()
    asked = [Message("user", "why?")]
    before, after = ByteTokens().chat(asked), ByteTokens().chat([*asked, Message("assistant", answer.text.decode())])
    assert after[: len(before) + count].tolist() == [*before.tolist(), *answer.tokens.tolist()]


@given(STARTS, st.integers(1, 600))
def test_a_longer_answer_begins_like_a_shorter_one(start: int, count: int):
    long = text.words(start, 600)
    assert text.words(start, count).tolist() == long[:count].tolist()


@given(STARTS)
def test_lengths_lie_where_they_should(start: int):
    assert text.SHORTEST <= text.drawn_length(start) <= text.LONGEST
    limited = text.spoken(start, 16)
    assert (len(limited.pieces), limited.finish) == (16, "length")
    free = text.spoken(start, 10_000)
    assert (len(free.pieces), free.finish) == (text.drawn_length(start), "stop")


def test_lengths_are_about_120_in_the_median():
    assert 100 < np.median([text.drawn_length(start) for start in range(2000)]) < 140


@given(STARTS, st.integers(1, 60), st.integers(0, 240), st.integers(1, 12), st.booleans())
def test_a_stop_string_ends_the_text_before_it_and_the_tokens_with_it(
    start: int, count: int, at: int, size: int, keep: bool
):
    whole = text.answer_text(start, count)
    stop = whole[at : at + size]
    answer = text.spoken(start, count, count, stop=(stop, "never there"), keep_stop=keep)
    said = answer.text.decode()
    if not stop:
        assert (said, answer.finish) == (whole, "length")
        return
    first = whole.index(stop)
    assert said == whole[: first + len(stop) * keep]
    assert len(answer.pieces) == len(answer.tokens) == -(-(first + len(stop)) // 4)
    assert (answer.finish, answer.stopped_by) == ("stop", stop)


def test_seed_prompt_and_sequence_all_change_the_text():
    prompt = np.arange(9, dtype=np.uint32)
    digests = {text.digest(0, prompt), text.digest(1, prompt), text.digest(0, prompt[:8]), text.digest(0, prompt, 1)}
    assert len({text.answer_text(digest, 8) for digest in digests}) == 4


@given(st.text(st.characters(codec="ascii"), min_size=1), st.integers(1, 40))
def test_a_written_text_is_cut_at_its_limit(said: str, limit: int):
    answer = text.written(said, limit, "f")
    assert json.loads(b'"%b"' % answer.text) == said[: 4 * limit]
    assert answer.finish == ("length" if len(said) > 4 * limit else "tool_calls")


ADDRESS = {
    "type": "object",
    "required": ["street", "kind"],
    "properties": {
        "street": {"type": "string", "minLength": 9, "maxLength": 12},
        "number": {"type": "integer", "minimum": 5, "maximum": 6},
        "share": {"type": "number", "exclusiveMaximum": 3},
        "kind": {"enum": ["home", "work"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        "more": {"$ref": "#/$defs/More"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "nothing": {"type": "null"},
        "either": {"type": ["null", "string"]},
        "same": {"const": 7},
    },
    "$defs": {"More": {"properties": {"x": {"type": "integer"}}}},
}


@given(STARTS)
def test_a_value_satisfies_its_schema(start: int):
    value = json.loads(text.value_json(ADDRESS, start))
    assert list(value) == list(ADDRESS["properties"])
    assert 9 <= len(value["street"]) <= 12 and value["number"] in (5, 6) and value["share"] < 3
    assert value["kind"] in ("home", "work") and value["same"] == 7 and value["nothing"] is None
    assert len(value["tags"]) == 2 and all(isinstance(tag, bool) for tag in value["tags"])
    assert isinstance(value["more"]["x"], int) and isinstance(value["maybe"], int) and isinstance(value["either"], str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from("type properties required items enum $ref anyOf minItems minimum a".split()),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON, STARTS)
def test_a_schema_that_is_none_still_gives_json(schema: object, start: int):
    said = text.value_json(schema, start)
    assert said.isascii()
    json.loads(said)


def test_a_schema_that_refers_to_itself_comes_to_an_end():
    loop = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert json.loads(text.value_json(loop, 1))


def test_a_schema_cannot_ask_for_more_than_there_is_room_for():
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(6):
        schema = {"type": "array", "minItems": 1000, "items": schema}
    assert len(text.value_json(schema, 1)) < 50_000


def test_uniform_numbers_are_spread_evenly():
    drawn = [text.uniform(start, "x") for start in range(4000)]
    assert abs(np.mean(drawn) - 0.5) < 0.02 and min(drawn) < 0.01 < 0.99 < max(drawn)
