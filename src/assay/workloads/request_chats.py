"""Requests out of real conversations: ShareGPT lists, OpenAI chat lines and batch files, prompt and completion pairs.

Every answer of the model is a request whose prompt is all that was said before it. There is no tokenizer here: a token
is taken for four bytes of UTF-8, which is close for English under today's vocabularies. Prefixes come from the text
itself: 64 bytes are a block of 16 tokens, so prompts share exactly the blocks whose bytes, and all before, are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.workloads.request_formats import Layout
from assay.workloads.request_rows import Rows, length, moment, show

BYTES_PER_TOKEN = 4
BLOCK = 16
_BLOCK_BYTES = BLOCK * BYTES_PER_TOKEN
_ANSWERS = {"gpt", "chatgpt", "assistant", "model", "bard", "bing", "claude"}
_SPACING, _THINK = 1.0, 30.0  # seconds between conversations and between turns, where the file names no times


class Turn(NamedTuple):
    """What one side said."""

    role: str
    text: str


def tokens(size: int) -> int:
    """Tokens of so many bytes of text.

    >>> tokens(0), tokens(1), tokens(8)
    (0, 1, 2)
    """
    return -(-size // BYTES_PER_TOKEN)


def read_chats(rows: Rows, layout: Layout, chunks: Iterator[bytes], limit: int | None) -> None:
    """Read conversations into `rows`: one object a line, or one list of them."""
    untimed = 0
    for number, (place, raw) in enumerate(_items(rows, layout, chunks)):
        if limit is not None and rows.read >= limit:
            break
        try:
            record = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rows.read += 1
            rows.wrong(place, f"not a whole JSON object ({error})", "a conversation")
            continue
        body = _body(record)
        said = _turns(body)
        if said is None:
            rows.read += 1
            rows.wrong(
                place, f"no conversation in {show(record)[3:]}", "messages of role and content, or from and value"
            )
            continue
        start = _start(record)
        untimed += start is None
        _store(rows, number, said, number * _SPACING if start is None else start, body, limit)
    if untimed:
        rows.notes.append(
            f"no times in the file: conversations begin {_SPACING:g} s apart, turns follow after {_THINK:g} s"
        )
    if limit is not None and rows.read > limit:
        rows.read = limit


def _items(rows: Rows, layout: Layout, chunks: Iterator[bytes]) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    if layout.kind == "json":
        text = b"".join(chunks).removeprefix(b"\xef\xbb\xbf")
        try:
            items = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rows.read += 1
            rows.wrong("file", f"not a whole JSON list ({error})", "a list of conversations")
            return
        yield from ((f"item {number}", item) for number, item in enumerate(items, 1))
        return
    number = 0
    for chunk in chunks:
        for line in chunk.splitlines():
            number += 1
            if line.strip():
                yield f"line {number}", line


def _body(record: Any) -> Any:
    """The request inside a batch line or a log line."""
    for name in ("body", "request"):
        if isinstance(record, dict) and isinstance(record.get(name), dict):
            return record[name]
    return record


def _turns(body: Any) -> list[Turn] | None:
    """What was said, in order; None where this is no conversation."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("prompt"), str) and isinstance(body.get("completion", ""), str) and "messages" not in body:
        return [
            Turn("user", body["prompt"]),
            *([Turn("assistant", body["completion"])] if "completion" in body else []),
        ]
    said = body.get("messages", body.get("conversations"))
    if not isinstance(said, list):
        return None
    result = []
    for one in said:
        role = one.get("role", one.get("from")) if isinstance(one, dict) else None
        if not isinstance(role, str):
            return None
        result.append(Turn("assistant" if role.lower() in _ANSWERS else role.lower(), _text(one)))
    return result


def _text(message: dict[str, Any]) -> str:
    content = message.get("content", message.get("value"))
    if isinstance(content, list):  # parts: text, images; an image's own tokens are not known
        content = "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    calls = message.get("tool_calls")
    return (content if isinstance(content, str) else "") + (msgspec.json.encode(calls).decode() if calls else "")


def _start(record: Any) -> float | None:
    for name in ("timestamp", "created", "created_at", "time", "ts"):
        found = moment(record.get(name)) if isinstance(record, dict) else None
        if found is not None:
            return found
    return None


def _store(rows: Rows, session: int, said: list[Turn], start: float, body: dict[str, Any], limit: int | None) -> None:
    """A request for each answer; for the last message, where no answer follows, one as long as it was allowed to be."""
    ends, outputs, text = list[int](), list[int](), b""
    for turn in said:
        spoken = turn.text.encode(errors="replace")
        if turn.role == "assistant" and text:
            ends.append(len(text))
            outputs.append(tokens(len(spoken)))
        text += turn.role.encode() + b"\n" + spoken + b"\n"
    if said and said[-1].role != "assistant":
        allowed = next((length(body[name]) for name in ("max_completion_tokens", "max_tokens") if name in body), None)
        if allowed is not None:
            ends.append(len(text))
            outputs.append(allowed)
    if not ends:  # nobody answered: a row that is no request
        ends, outputs = [len(text)], [0]
    if limit is not None:
        ends, outputs = ends[: limit - rows.read], outputs[: limit - rows.read]
    rows.read += len(ends)
    counts = np.array(ends, np.int64) // _BLOCK_BYTES
    blocks = block_ids(text[: ends[-1]]) if ends else np.empty(0, np.int64)
    rows.add(
        arrival=start + _THINK * np.arange(len(ends), dtype=np.float64),
        prompt=np.array([tokens(end) for end in ends], np.int64),
        output=np.array(outputs, np.int64),
        ids=np.concatenate([blocks[:count] for count in counts] or [blocks]),
        counts=counts,
        session=rows.codes("session", [session] * len(ends)),
        model=rows.codes("model", [body.get("model") if isinstance(body.get("model"), str) else None] * len(ends)),
    )


_ODD = np.array(
    [
        0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93,
        0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3,
    ],
    np.uint64,
)  # fmt: skip


def block_ids(text: bytes) -> NDArray[np.int64]:
    """A 64-bit number for each full block of 64 bytes, equal for equal bytes.

    >>> a, b, c = block_ids(b"x" * 128 + b"y" * 100)
    >>> bool(a == b), bool(b == c)
    (True, False)
    """
    whole = len(text) // _BLOCK_BYTES * _BLOCK_BYTES
    words = np.frombuffer(text, dtype="<u8", count=whole // 8).reshape(-1, 8)
    mixed = (words ^ (words >> np.uint64(29))) * _ODD  # products wrap; each word has a multiplier of its own
    mixed ^= mixed >> np.uint64(32)
    state = np.zeros(len(words), np.uint64)
    for at in range(8):
        state = (state ^ mixed[:, at]) * _ODD[0]
        state ^= state >> np.uint64(31)
    return state.view(np.int64)
