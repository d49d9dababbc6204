"""One JSON line a request: what came, where it went, what became of it. Never what was said, never a key.

`assay compare serving --trace` reads the file back: `hash_ids` say which prompts begin alike (each stands for all of a
prompt up to the end of its block; what is left of the prompt has none), and the hashes are salted anew in every
process, so they tell nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from assay.record.errors import BadInput

EVERY = 1  # blocks of the index for one id in the log; with 4, short prompts lose two points of reuse
_FULL = 256 * 1024  # bytes


class Line(msgspec.Struct, omit_defaults=True):
    """One request."""

    time: float  # of arrival, seconds since 1970
    id: str  # its run and its number there
    endpoint: str
    status: int
    request_id: str = ""  # the client's own
    path: str = ""  # where the endpoint is "other"
    engine: str = ""
    prefill: str = ""  # the engine that computed the prompt, where that is another
    model: str = ""
    asked: str = ""  # the name that the client used for it, where that is another
    canary: bool = False  # whether the canary chose the engine
    tenant: str = ""
    tier: str = ""
    session: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None  # as the engine says
    matched_tokens: int = 0  # as the gateway thought when it chose
    max_tokens: int | None = None
    tries: int = 0
    queue: float = 0.0
    ttft: float | None = None
    e2e: float = 0.0
    running: int = 0  # on the engine when it was sent there
    kv_tokens: int = 0  # that answers held there
    prefill_tokens: int = 0  # of prompts before it
    placed: float = 0.0  # from arrival to the last engine asked, where there were several
    error: str = ""
    block: float = 0.0  # tokens of the prompt that one id stands for
    hash_ids: list[int] = []


class AccessLog:
    """Lines, written together some times a second; a disk that is full costs lines, not answers."""

    def __init__(self, path: str) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._size = 0
        self.lost = 0
        self._file: BinaryIO | Any = None
        if path == "-":
            self._file = sys.stdout.buffer
        elif path:
            try:
                self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the gateway runs
            except OSError as error:
                raise BadInput(f"cannot write the log {path}: {error.strerror}") from error

    @property
    def on(self) -> bool:
        """Whether anybody reads it."""
        return self._file is not None

    def add(self, line: Line) -> None:
        """One more."""
        text = self._encode(line)
        self._lines.append(text)
        self._size += len(text)
        if self._size > _FULL:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        if not self._lines:
            return
        count, data = len(self._lines), b"\n".join([*self._lines, b""])
        self._lines, self._size = [], 0
        try:
            self._file.write(data)
            if self._file is sys.stdout.buffer:
                self._file.flush()
        except OSError:
            self.lost += count

    def close(self) -> None:
        """Write what is left, and no more."""
        self.flush()
        if self._file is not None and self._file is not sys.stdout.buffer:
            self._file.close()
        self._file = None
