"""From what a client asks to a row of token ids: the same row in the gateway and in the mock engine.

Routing needs to know which prompts begin alike and how long they are, not what an engine's vocabulary says. So where no
tokenizer is given, four bytes of text are a token, about what tokenizers make of English. A chat is rendered message by
message and each message begins with a token of its own: a conversation that goes on has the earlier one, answer
included, as its prefix, token by token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

Tokens = NDArray[np.uint32]

_ID = np.dtype("<u4")  # the same ids on every machine
_NO_TOKENS: Tokens = np.zeros(0, np.uint32)
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")  # by length modulo four


_ABSENT = msgspec.Raw()


class Message(msgspec.Struct, gc=False):
    """One message of a chat; fields that say nothing about the prompt are passed over.

    >>> message = msgspec.json.decode(b'{"role": "user", "content": "hi", "audio": {}}', type=Message)
    >>> message.role, message.text
    ('user', 'hi')
    """

    role: str
    content: str | list[msgspec.Raw] | None = None  # text, or parts of which some are text
    name: str | None = None
    tool_calls: msgspec.Raw = _ABSENT  # msgspec knows no `Raw | None`
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """What is written in the message, without images and the like."""
        if isinstance(self.content, str):
            return self.content
        return "".join(text for text in map(_part_text, self.content or ()) if text is not None)


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str


_PART = msgspec.json.Decoder(_Part)
TEXTS = ("text", "input_text", "output_text")  # as the three APIs call them
_LARGEST = 4096  # bytes: a thousand tokens, about what an image costs a model


def _part_text(part: msgspec.Raw) -> str | None:
    """The text of a part that is one."""
    try:
        found = _PART.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found.text if found.type in TEXTS else None


def _part_bytes(part: msgspec.Raw) -> bytes:
    """A part that is no text counts as it was sent; of a large one the beginning and a digest stand for the whole."""
    raw = bytes(part)
    if len(raw) <= _LARGEST:
        return raw
    return raw[: _LARGEST - 32] + hashlib.sha256(raw).hexdigest()[:32].encode()


def _given(raw: bytes | msgspec.Raw | None) -> bytes:
    """Raw JSON where there is any."""
    if raw is None or raw is _ABSENT:
        return b""
    found = bytes(raw)
    return b"" if found == b"null" else found


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can write half a surrogate pair


def _special(number: int) -> bytes:
    """A token that no text gives: UTF-8 has no byte 0xFF, and what was not checked to be UTF-8 is rid of it."""
    return b"\xff\xff\xff" + bytes([number])


_END, _TOOLS, _OTHER, _NAME, _PIECE, _CALLS, _CALL = (_special(number) for number in range(7))
_ROLES = {
    role: _special(number)
    for number, role in enumerate(("system", "user", "assistant", "tool", "developer", "function"), 16)
}


class ByteTokens:
    """Four bytes of UTF-8 are one token; the last of a text is filled up with zero bytes.

    >>> ByteTokens().text("abcdefghi").tolist() == [int.from_bytes(b, "little") for b in (b"abcd", b"efgh", b"i")]
    True
    >>> asked = [Message("user", "Why?")]
    >>> first = ByteTokens().chat(asked)
    >>> later = ByteTokens().chat([*asked, Message("assistant", "So."), Message("user", "Oh.")])
    >>> later[: len(first) + 1].tolist() == [*first.tolist(), *ByteTokens().text("So.").tolist()]
    True
    """

    def text(self, text: str) -> Tokens:
        """The tokens of a text."""
        raw = _utf8(text)
        return _row([raw, _PADDING[len(raw) & 3]])

    def prompt(self, prompt: Any) -> tuple[Tokens, int]:
        """The tokens of a completion's prompt, and their number in all its rows (see `prompt_tokens`)."""
        return prompt_tokens(self.text, prompt)

    def chat(self, messages: Sequence[Message], tools: bytes | msgspec.Raw | None = None) -> Tokens:
        """The tokens of a chat, the beginning of the answer included; `tools` is their JSON as it was sent."""
        pieces: list[bytes] = []
        if raw := _given(tools):
            _add(pieces, _TOOLS, raw.replace(b"\xff", b"?"))
            pieces.append(_END)
        for message in messages:
            role, content = _ROLES.get(message.role), message.content
            if role and isinstance(content, str) and message.name is None:  # nearly all: no time to lose
                raw = _utf8(content)
                pieces += (role, raw, _PADDING[len(raw) & 3])
            else:
                _add_unusual(pieces, message)
            if raw := _given(message.tool_calls):
                _add(pieces, _CALLS, raw.replace(b"\xff", b"?"))
            if message.tool_call_id is not None:
                _add(pieces, _CALL, _utf8(message.tool_call_id))
            pieces.append(_END)
        pieces.append(_ROLES["assistant"])
        return _row(pieces)


def _add(pieces: list[bytes], mark: bytes, raw: bytes) -> None:
    pieces += (mark, raw, _PADDING[len(raw) & 3])


def _add_unusual(pieces: list[bytes], message: Message) -> None:
    """A message with a role of its own, a name, or content in parts."""
    role = _ROLES.get(message.role)
    if role is None:
        _add(pieces, _OTHER, _utf8(message.role))
    if message.name is not None:
        _add(pieces, _NAME, _utf8(message.name))
    pieces.append(role or _OTHER)
    if isinstance(message.content, str):
        _add(pieces, b"", _utf8(message.content))
        return
    for i, part in enumerate(message.content or ()):
        text = _part_text(part)
        if text is None:
            _add(pieces, _PIECE, _part_bytes(part).replace(b"\xff", b"?"))
        else:
            _add(pieces, _PIECE if i else b"", _utf8(text))  # one part of text is as good as a text


def _row(pieces: list[bytes]) -> Tokens:
    # of a bytearray, so that the row is writable: compiled functions are compiled anew for rows that are not
    row: Tokens = np.frombuffer(bytearray().join(pieces), _ID)
    return row


def prompt_tokens(text: Callable[[str], Tokens], prompt: Any) -> tuple[Tokens, int]:
    """The first row of a completion's prompt, for its prefix, and the number of tokens in all rows.

    A prompt is a text, a row of ids, or a list of either. Texts after the first are only counted, at four bytes a
    token. What is none of these is no tokens: the engine will say what is wrong with it.

    >>> rows = ["abcdefgh", "ij"], [5, 6, 7], [[5, 6], [7]], {"no": "prompt"}
    >>> [(len(row), total) for row, total in (prompt_tokens(ByteTokens().text, prompt) for prompt in rows)]
    [(2, 3), (3, 3), (2, 3), (0, 0)]
    """
    if isinstance(prompt, str):
        row = text(prompt)
        return row, len(row)
    if not isinstance(prompt, list) or not prompt:
        return _NO_TOKENS, 0
    if isinstance(prompt[0], int):
        row = _ids(prompt)
        return row, len(row)
    row = text(prompt[0]) if isinstance(prompt[0], str) else _ids(prompt[0])
    return row, len(row) + sum(map(_count, prompt[1:]))


def _count(row: Any) -> int:
    if isinstance(row, str):
        return (len(_utf8(row)) + 3) // 4
    return len(row) if isinstance(row, list) else 0


def _ids(row: Any) -> Tokens:
    try:
        ids: Tokens = np.array(row, np.uint32)
    except (OverflowError, TypeError, ValueError):
        return _NO_TOKENS
    return ids if ids.ndim == 1 else _NO_TOKENS


_KEPT, _KEPT_BYTES = 1024, 65_536  # messages whose tokens are remembered, and the longest of them


class TokenizerTokens:
    """Tokens of a model's own tokenizer, from its `tokenizer.json`.

    Messages stand between the marks of ChatML, `<|im_start|>role` and `<|im_end|>`. Where that is the model's own chat
    format the ids are the engine's; elsewhere they are as many, give or take a few a message, and begin alike where
    prompts do. Messages are tokenized one by one and remembered: of a conversation that goes on only the new ones cost.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise BadInput(missing_module("a tokenizer", error)) from None
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(path, error) from None
        except UnicodeDecodeError:
            raise BadInput(f"{path} is not text; expected a tokenizer.json") from None
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library has no narrower one
            why = " ".join(str(error).split())
            raise BadInput(f"{path} is not a tokenizer ({why}); expected a model's tokenizer.json") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._remembered = lru_cache(_KEPT)(self._encode)

    def text(self, text: str) -> Tokens:
        """The tokens of a text, with those that the model wants around it."""
        return np.array(self._tokenizer.encode(_clean(text)).ids, np.uint32)

    def prompt(self, prompt: Any) -> tuple[Tokens, int]:
        """The tokens of a completion's prompt, and their number in all its rows (see `prompt_tokens`)."""
        return prompt_tokens(self.text, prompt)

    def chat(self, messages: Sequence[Message], tools: bytes | msgspec.Raw | None = None) -> Tokens:
        """The tokens of a chat, the beginning of the answer included; `tools` is their JSON as it was sent."""
        pieces = []
        if raw := _given(tools):
            pieces.append(f"<|im_start|>tools\n{raw.decode(errors='replace')}<|im_end|>\n")
        pieces += ["".join(_written(message)) for message in messages]
        pieces.append("<|im_start|>assistant\n")
        rows = [(self._remembered if len(piece) <= _KEPT_BYTES else self._encode)(piece) for piece in pieces]
        return np.concatenate(rows)

    def _encode(self, text: str) -> Tokens:
        return np.array(self._tokenizer.encode(_clean(text), add_special_tokens=False).ids, np.uint32)


def _clean(text: str) -> str:
    """A text that is one: halves of surrogate pairs, which JSON can write, have no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _written(message: Message) -> Iterator[str]:
    """A message as text, piece by piece."""
    yield f"<|im_start|>{message.role}\n"
    if message.name is not None:
        yield f"{message.name}: "
    if isinstance(message.content, str):
        yield message.content
    else:
        for part in message.content or ():
            text = _part_text(part)
            yield _part_bytes(part).decode(errors="replace") if text is None else text
    yield _given(message.tool_calls).decode(errors="replace")
    yield message.tool_call_id or ""
    yield "<|im_end|>\n"
