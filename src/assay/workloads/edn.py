"""EDN, the notation of Clojure's data, as plain Python values. Nothing that is read is ever executed.

Keywords and symbols become strings, vectors and lists become lists, maps dictionaries, sets frozensets. A map whose
keys are collections gets tuples in their place. Tagged elements (``#inst "…"``, ``#jepsen.history.Op{…}``) are read as
what stands behind the tag.

>>> list(read_all('{:f :cas, :value [1 2]} #{3 4} nil ; the end'))
[(1, {'f': 'cas', 'value': [1, 2]}), (1, frozenset({3, 4})), (1, None)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

DEEPEST = 200  # nesting beyond this is an attack, not a history

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|;[^\n]*)
    |(?P<open>\#\{|[\[({])
    |(?P<close>[\])}])
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<discard>\#_)
    |(?P<tag>\#[A-Za-z][\w.\-/*+!?$%&=<>]*)
    |(?P<char>\\(?:newline|space|tab|return|u[0-9a-fA-F]{4}|.))
    |(?P<atom>[^\s,;\[\](){}"\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_NAMED = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}
_INTEGER = re.compile(r"[+-]?\d{1,300}N?$")
_FLOAT = re.compile(r"[+-]?\d{1,300}(\.\d{0,300})?([eE][+-]?\d{1,5})?M?$")
_CONSTANTS = {"nil": None, "true": True, "false": False, "##Inf": float("inf"), "##-Inf": float("-inf")}
_CLOSING = {"[": "]", "(": ")", "{": "}", "#{": "}"}


class EdnError(ValueError):
    """Text that is not EDN; `line` says where."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read_all(text: str) -> Iterator[tuple[int, Any]]:
    """Every top-level value with the line on which it begins."""
    reader = _Reader(text)
    while reader.skip():
        line = reader.line
        value = reader.value(0)
        if value is not _NOTHING:
            yield line, value


_NOTHING = object()  # what a discarded element leaves


class _Reader:
    """One pass over the text, a token at a time."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1

    def skip(self) -> bool:
        """Move to the next token; whether there is one."""
        while match := _TOKEN.match(self.text, self.at):
            if match.lastgroup != "space":
                return True
            self._advance(match.end())
        if self.at < len(self.text):
            raise EdnError(self.line, f"cannot read {self.text[self.at : self.at + 20]!r} as EDN")
        return False

    def _advance(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def value(self, depth: int) -> Any:
        """The value that begins at the current token."""
        if depth > DEEPEST:
            raise EdnError(self.line, f"nested deeper than {DEEPEST}")
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise EdnError(self.line, "a value is missing")
        kind, token, line = match.lastgroup, match.group(), self.line
        self._advance(match.end())
        if kind == "open":
            return self._collection(token, line, depth)
        if kind == "close":
            raise EdnError(line, f"'{token}' closes nothing")
        if kind == "string":
            return _ESCAPE.sub(_unescape, token[1:-1])
        if kind == "char":
            return _NAMED.get(token[1:]) or (chr(int(token[2:], 16)) if len(token) == 6 else token[1:])
        if kind in ("tag", "discard"):
            if not self.skip():
                raise EdnError(line, f"nothing stands behind '{token}'")
            value = self.value(depth + 1)
            return _NOTHING if kind == "discard" else value
        return _atom(token, line)

    def _collection(self, opening: str, line: int, depth: int) -> Any:
        items: list[Any] = []
        closing = _CLOSING[opening]
        while self.skip():
            if self.text[self.at] in ")]}":
                if self.text[self.at] != closing:
                    raise EdnError(self.line, f"'{self.text[self.at]}' where '{closing}' would be right")
                self._advance(self.at + 1)
                return _build(opening, items, line)
            item = self.value(depth + 1)
            if item is not _NOTHING:
                items.append(item)
        raise EdnError(line, f"'{opening}' is never closed")


def _build(opening: str, items: list[Any], line: int) -> Any:
    if opening == "{":
        if len(items) % 2:
            raise EdnError(line, "a map with a key that has no value")
        return {_hashable(key): value for key, value in zip(items[::2], items[1::2], strict=True)}
    return frozenset(map(_hashable, items)) if opening == "#{" else items


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    return value


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)


def _atom(token: str, line: int) -> Any:
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token.startswith("##"):
        raise EdnError(line, f"'{token}' has no order and no equal: not a value of a history")
    if token.startswith(":"):
        if len(token) == 1:
            raise EdnError(line, "a keyword without a name")
        return token[1:]
    if _INTEGER.match(token):
        return int(token.rstrip("N"))
    if _FLOAT.match(token):
        return float(token.rstrip("M"))
    if token[0].isdigit() or token.startswith("#"):
        raise EdnError(line, f"cannot read '{token[:20]}' as EDN")
    return token


def write(value: Any) -> str:
    """A value as EDN. Strings are written as strings, except keys of maps, which are keywords where they can be.

    >>> write({"f": "read", "value": [1, None, {2}]})
    '{:f "read", :value [1 nil #{2}]}'
    """
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} {write(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "#{" + " ".join(sorted(map(write, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(write, value)) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "##Inf" if value > 0 else "##-Inf"
    return repr(value)


def _key(key: Any) -> str:
    return f":{key}" if isinstance(key, str) and re.fullmatch(r"[A-Za-z][\w\-]*", key) else write(key)
