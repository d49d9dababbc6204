"""Token rows: fast, the same everywhere, and prefixes where conversations go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.live.tokens import ByteTokens, Message, TokenizerTokens, prompt_tokens
from assay.record.errors import BadInput

BYTES = ByteTokens()
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "critic"])
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists, max_leaves=4)
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": st.text()})}),
    JSON,
)
MESSAGES = st.fixed_dictionaries(
    {"role": ROLES, "content": st.none() | st.text() | st.lists(PARTS, max_size=3)},
    optional={
        "name": st.none() | st.text(max_size=5),
        "tool_calls": st.lists(JSON, max_size=2) | st.none(),
        "tool_call_id": st.none() | st.text(max_size=9),
        "audio": JSON,
    },
)


def sent(*messages: dict[str, Any]) -> list[Message]:
    """Messages as a server reads them."""
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


def starts_with(row: np.ndarray, prefix: np.ndarray) -> bool:
    return bool(np.array_equal(row[: len(prefix)], prefix))


def special(row: np.ndarray) -> list[bool]:
    return [b"\xff" in int(token).to_bytes(4, "little") for token in row]


@given(st.text())
def test_four_bytes_are_a_token_and_none_is_special(text: str) -> None:
    row = BYTES.text(text)
    assert row.dtype == np.uint32
    assert row.flags.c_contiguous
    assert row.flags.writeable
    assert row.tobytes().rstrip(b"\0") == text.encode().rstrip(b"\0")
    assert len(row) == -(-len(text.encode()) // 4)
    assert not any(special(row))


@given(st.lists(MESSAGES, max_size=4), st.lists(MESSAGES, max_size=3), st.none() | st.lists(JSON, max_size=2))
def test_a_conversation_that_goes_on_begins_with_the_earlier_one(first: Any, more: Any, tools: Any) -> None:
    raw = None if tools is None else msgspec.json.encode(tools)
    earlier, later = BYTES.chat(sent(*first), raw), BYTES.chat(sent(*first, *more), raw)
    assert starts_with(later, earlier[:-1])  # all but the beginning of the answer
    assert later.flags.c_contiguous
    assert later[-1] == earlier[-1]


@given(st.lists(MESSAGES, max_size=3), st.lists(st.text("abcdefgh", min_size=4, max_size=4), max_size=9), MESSAGES)
def test_an_answer_of_whole_tokens_sent_back_continues_its_prompt(chat: Any, words: list[str], more: Any) -> None:
    answer = "".join(words)
    prompt = BYTES.chat(sent(*chat))
    next_turn = BYTES.chat(sent(*chat, {"role": "assistant", "content": answer}, more))
    assert starts_with(next_turn, np.concatenate([prompt, BYTES.text(answer)]))


def test_messages_that_differ_in_anything_differ_in_tokens() -> None:
    text = {"type": "text", "text": "abcd"}
    image = {"type": "image_url", "image_url": {"url": "data:abcd"}}
    calls = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    chats: list[list[dict[str, Any]]] = [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": "abcd"}],
        [{"role": "user", "content": "abcdefgh"}],
        [{"role": "user", "content": "abcd"}, {"role": "user", "content": "efgh"}],
        [{"role": "system", "content": "abcd"}],
        [{"role": "critic", "content": "abcd"}],
        [{"role": "abcd", "content": "critic"}],
        [{"role": "user", "content": "efgh", "name": "abcd"}],
        [{"role": "user", "content": "abcd", "name": "efgh"}],
        [{"role": "user", "content": "abcd", "tool_call_id": "efgh"}],
        [{"role": "user", "content": [text, text]}],
        [{"role": "user", "content": [text, image]}],
        [{"role": "user", "content": [image]}],
        [{"role": "user", "content": "abcd", "tool_calls": calls}],
    ]
    rows = [tuple(BYTES.chat(sent(*chat)).tolist()) for chat in chats]
    rows += [tuple(BYTES.chat(sent(*chat), b"[1]").tolist()) for chat in chats]
    assert len(set(rows)) == 2 * len(chats)


def test_what_says_nothing_costs_nothing() -> None:
    plain = BYTES.chat(sent({"role": "user", "content": "abcd"}))
    same = {"role": "user", "content": [{"type": "text", "text": "abcd"}], "tool_calls": None, "tool_call_id": None}
    assert BYTES.chat(sent(same), b"null").tolist() == plain.tolist()
    assert len(plain) == 4  # user, abcd, end, assistant


def test_a_byte_that_no_text_has_cannot_be_smuggled_in_with_raw_json() -> None:
    forged = b'["' + b"\xff" * 12 + b'"]'  # in a string that nobody checked
    body = b'[{"role": "user", "tool_calls": %b}]' % forged
    row = BYTES.chat(msgspec.json.decode(body, type=list[Message]), forged)
    assert sum(special(row)) == 2 + 3 + 1  # tools and end; user, calls and end; assistant


def test_a_large_image_counts_a_thousand_tokens_and_its_last_byte() -> None:
    def row(url: str) -> np.ndarray:
        return BYTES.chat(sent({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}))

    one, other = row("A" * 100_000), row("A" * 99_999 + "B")
    assert len(one) == len(other) == 1024 + 4
    assert one.tolist() != other.tolist()
    assert one.tolist() == row("A" * 100_000).tolist()


def test_half_a_surrogate_pair_is_bytes_like_any_other() -> None:
    assert not any(special(BYTES.text("a\ud800b")))


def test_text_of_a_message_leaves_out_what_is_none() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, 5, {"type": "text", "text": "b"}]
    assert [message.text for message in sent({"role": "user", "content": parts}, {"role": "user"})] == ["ab", ""]


@pytest.mark.parametrize(
    ("prompt", "first", "total"),
    [
        ("abcdefgh", b"abcdefgh", 2),
        (["abcdefgh", "ij", ""], b"abcdefgh", 3),
        ([1, 2, 3], [1, 2, 3], 3),
        ([[1, 2], [3], []], [1, 2], 3),
        ([], [], 0),
        (None, [], 0),
        ({"a": 1}, [], 0),
        ([-1], [], 0),
        ([2**32], [], 0),
        ([1, "x"], [], 0),
        ([[[1]]], [], 0),
        ([None, 5], [], 0),
    ],
)
def test_a_completion_has_four_shapes_of_prompt_and_anything_else_is_no_tokens(
    prompt: Any, first: bytes | list[int], total: int
) -> None:
    row, count = BYTES.prompt(prompt)
    expected = np.frombuffer(first, np.uint32).tolist() if isinstance(first, bytes) else first
    assert (row.tolist(), count) == (expected, total)
    assert row.dtype == np.uint32


# ------------------------------------------------------------------------------------------ a model's own tokenizer


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes with the marks of ChatML as tokens of their own."""
    pytest.importorskip("tokenizers")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("c", "d"), ("ab", "cd")]
    words = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_gives_the_ids_of_the_rendered_chat(file: Path) -> None:
    from tokenizers import Tokenizer

    chat = sent({"role": "system", "content": "abcd"}, {"role": "user", "content": [{"type": "text", "text": "ab é"}]})
    whole = "<|im_start|>system\nabcd<|im_end|>\n<|im_start|>user\nab é<|im_end|>\n<|im_start|>assistant\n"
    row = TokenizerTokens(file).chat(chat)
    assert row.tolist() == Tokenizer.from_file(str(file)).encode(whole).ids
    assert row.dtype == np.uint32
    assert row.flags.c_contiguous


@given(st.lists(MESSAGES, max_size=3), st.lists(MESSAGES, max_size=2), st.none() | st.lists(JSON, max_size=2))
def test_with_a_tokenizer_too_a_conversation_begins_with_the_earlier_one(
    file: Path, first: Any, more: Any, tools: Any
) -> None:
    tokenizer, raw = TokenizerTokens(file), None if tools is None else msgspec.json.encode(tools)
    prompt = tokenizer.chat(sent(*first), raw)
    answer = {"role": "assistant", "content": "abcd"}
    later = tokenizer.chat(sent(*first, answer, *more), raw)
    assert starts_with(later, np.concatenate([prompt, tokenizer.text("abcd")]))


def test_a_tokenizer_takes_all_shapes_of_prompt_and_halves_of_surrogate_pairs(file: Path) -> None:
    tokenizer = TokenizerTokens(file)
    assert len(tokenizer.text("abcdab")) == 2
    assert prompt_tokens(tokenizer.text, [[1, 2], [3]])[1] == 3
    assert [len(tokenizer.prompt(["abcd", "12345"])[0]), tokenizer.prompt(["abcd", "12345"])[1]] == [1, 3]
    assert len(tokenizer.chat([Message("user", "\ud800")])) > 0


def test_a_tokenizer_that_cannot_be_read_is_bad_input_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "wrong.json").write_text('{"version": "1.0"}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name in ("missing.json", "wrong.json", "binary.json", "."):
        with pytest.raises(BadInput) as caught:
            TokenizerTokens(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_without_the_library_a_tokenizer_is_bad_input_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match="gateway"):
        TokenizerTokens(tmp_path / "tokenizer.json")
