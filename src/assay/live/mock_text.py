"""What the mock engine says: words that are a pure function of the prompt, one token each.

A word is three letters and a blank: the four bytes that `ByteTokens` takes for a token. So an answer that comes back
in the next turn of a conversation is, token by token, what the engine has in its cache.

>>> prompt = np.arange(5, dtype=np.uint32)
>>> answer_text(digest(0, prompt), 3)
'toc ruj roh '
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.live.tokens import ByteTokens, Tokens

SHORTEST, LONGEST = 16, 512  # tokens of an answer whose length nobody asked for
_MEDIAN, _SPREAD = 120.0, 0.8
_DEPTH, _VALUES = 8, 2000  # of a value made for a JSON schema: how deep, and of how many

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_WORDS: NDArray[np.uint32] = np.frombuffer(
    "".join(a + v + b + " " for a in _CONSONANTS for v in _VOWELS for b in _CONSONANTS).encode(), "<u4"
)


def digest(seed: int, prompt: Tokens, sequence: int = 0) -> int:
    """64 bits that stand for a seed, a prompt, and which of its answers is meant."""
    hashed = hashlib.blake2b(prompt.tobytes(), digest_size=8, key=b"%d/%d" % (seed, sequence))
    return int.from_bytes(hashed.digest(), "little")


def words(start: int, count: int) -> Tokens:
    """The tokens of an answer."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 (splitmix64)
        z = np.uint64(start % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    chosen: Tokens = _WORDS[(z >> np.uint64(33)) % np.uint64(len(_WORDS))]
    return chosen


def answer_text(start: int, count: int) -> str:
    """The text of an answer."""
    return words(start, count).tobytes().decode("ascii")


def uniform(start: int, salt: str) -> float:
    """A number in [0, 1) that follows from a digest.

    >>> uniform(1, "length") == uniform(1, "length") != uniform(1, "fault")
    True
    """
    hashed = hashlib.blake2b(b"%d:%b" % (start, salt.encode()), digest_size=8)
    return int.from_bytes(hashed.digest(), "little") / 2.0**64


def drawn_length(start: int) -> int:
    """How many tokens the model would say if nobody stops it: log-normal, 120 in the median.

    >>> sorted(drawn_length(start) for start in range(5))
    [40, 66, 70, 129, 169]
    """
    normal = NormalDist().inv_cdf(min(max(uniform(start, "length"), 1e-12), 1.0 - 1e-12))
    return int(min(max(_MEDIAN * math.exp(_SPREAD * normal), SHORTEST), LONGEST))


@dataclass(frozen=True, slots=True)
class Answer:
    """One sequence of an answer, all of it known beforehand."""

    pieces: list[bytes]  # a token's text each, as it stands inside a JSON string
    tokens: Tokens
    finish: str  # length, stop, tool_calls
    stopped_by: str | None = None  # the stop string
    function: str = ""  # the name of the function that is called, if one is

    @property
    def text(self) -> bytes:
        """All of it, as it stands inside a JSON string."""
        return b"".join(self.pieces)


def spoken(start: int, limit: int, least: int = 0, stop: tuple[str, ...] = (), keep_stop: bool = False) -> Answer:
    """Words, at most `limit` tokens and, unless stopped by a string, at least `least`.

    >>> spoken(7, limit=3).text, spoken(7, limit=3).finish
    (b'dan rem vad ', 'length')
    >>> cut = spoken(7, limit=3, stop=("m v",))
    >>> cut.pieces, cut.finish, cut.stopped_by
    ([b'dan ', b're', b''], 'stop', 'm v')
    """
    count = min(max(drawn_length(start), least), limit)
    tokens = words(start, count)
    raw = tokens.tobytes()
    if stop:
        text = raw.decode("ascii")
        # The string that is complete first stops it; of those that end together, the longest.
        found = [(at + len(s), at, s) for s in stop if s and (at := text.find(s)) >= 0]
        if found:
            end, at, reason = min(found)
            used = -(-end // 4)
            raw = raw[: end if keep_stop else at]
            return Answer([raw[i : i + 4] for i in range(0, 4 * used, 4)], tokens[:used], "stop", reason)
    pieces = [raw[i : i + 4] for i in range(0, len(raw), 4)]
    return Answer(pieces, tokens, "length" if count == limit else "stop")


def written(text: str, limit: int, function: str = "") -> Answer:
    """A given ASCII text, or the arguments of a function's call.

    >>> written('{"a": 1}', limit=9).pieces
    [b'{\\\\"a\\\\"', b': 1}']
    """
    tokens = ByteTokens().text(text)[:limit]
    pieces = [msgspec.json.encode(text[i : i + 4])[1:-1] for i in range(0, 4 * len(tokens), 4)]
    cut = 4 * len(tokens) < len(text)
    return Answer(pieces, tokens, "length" if cut else "tool_calls" if function else "stop", None, function)


def echoed(prompt: Tokens, answer: Answer) -> Answer:
    """The same answer, with its prompt's text before it."""
    said = prompt.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    first, *others = answer.pieces
    return replace(answer, pieces=[msgspec.json.encode(said)[1:-1] + first, *others])


# ------------------------------------------------------------------------------------- values for a JSON schema


def value_json(schema: Any, start: int) -> str:
    """ASCII JSON that satisfies a schema of simple types.

    >>> value_json({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, 5)
    '{"city": "sit", "days": 4}'
    """
    return json.dumps(_Maker(schema).value(schema, start, 0))


class _Maker:
    """Makes a value, and stops before it becomes huge: schemas come from anybody."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.left = _VALUES

    def value(self, schema: Any, start: int, depth: int) -> Any:
        self.left -= 1
        if not isinstance(schema, dict) or depth > _DEPTH or self.left < 0:
            return answer_text(start, 1).strip()
        if "const" in schema:
            return schema["const"]
        if isinstance(options := schema.get("enum"), list) and options:
            return options[int(uniform(start, "enum") * len(options))]
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self.referred(reference), start, depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(options := schema.get(key), list) and options:
                return self.value(options[0], start, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((k for k in kind if k != "null"), "null")
        if kind == "object":
            return self.members(schema, start, depth)
        if kind == "array":
            count = min(max(_number(schema, "minItems", 1), 1), 16)
            items = schema.get("items", {})
            return [self.value(items, start + i + 1, depth + 1) for i in range(count) if self.left > 0 or not i]
        return _plain(kind, schema, start)

    def members(self, schema: dict[str, Any], start: int, depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        names = [*properties, *(n for n in (required if isinstance(required, list) else ()) if isinstance(n, str))]
        return {
            name: self.value(properties.get(name, {}), start + i + 1, depth + 1)
            for i, name in enumerate(dict.fromkeys(names))
            if self.left > 0
        }

    def referred(self, reference: str) -> Any:
        """What `#/$defs/Name` points to."""
        found = self.root
        for part in filter(None, reference.removeprefix("#").split("/")):
            found = found.get(part) if isinstance(found, dict) else None
        return found


def _plain(kind: Any, schema: dict[str, Any], start: int) -> Any:
    if kind == "boolean":
        return uniform(start, "boolean") < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low = _number(schema, "minimum", _number(schema, "exclusiveMinimum", -1) + 1)
        high = max(_number(schema, "maximum", _number(schema, "exclusiveMaximum", low + 10) - 1), low)
        value = low + int(uniform(start, "number") * (min(high - low, 9) + 1))
        return value if kind == "integer" else float(value)
    shortest = min(max(_number(schema, "minLength", 0), 0), 4096)
    longest = max(_number(schema, "maxLength", 1 << 20), 0)
    text = answer_text(start, max(1, -(-shortest // 4))).rstrip()
    return text.ljust(shortest, "a")[:longest]


def _number(schema: dict[str, Any], name: str, otherwise: int) -> int:
    value = schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return otherwise
    return math.ceil(value)
