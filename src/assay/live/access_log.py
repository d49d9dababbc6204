"""One JSON line a request: what came, where it went, what became of it. Never what was said, never a key.

`assay compare serving --trace` reads the file back: `hash_ids` say which prompts begin alike (each stands for all of a
prompt up to the end of its block; what is left of the prompt has none), and the hashes are salted anew in every
process, so they tell nothing else.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import msgspec

from assay.record.errors import BadInput

EVERY = 1  # blocks of the index for one id in the log; with 4, short prompts lose two points of reuse
_FULL = 256 * 1024  # bytes
_KEPT = 1 << 20  # bytes that wait for room
_AGAIN = 60.0  # seconds between two complaints


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


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class AccessLog:
    """Lines, written together some times a second.

    A disk that is full, or a reader of standard output that stops, costs lines, not answers. Some are kept until there
    is room, and what was written of a line is ended then; the rest is counted in `lost`, and `tell` hears of it.
    """

    def __init__(self, path: str, lost: int = 0, tell: Callable[[str], None] = _to_stderr) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._size = 0
        self._kept: list[bytes] = []  # what there was no room for; the first may be the end of a line
        self._held = 0  # bytes of them
        self._torn = False  # whether it is
        self._tell, self._told = tell, float("-inf")
        self.lost = lost
        self.name = "standard output" if path == "-" else path
        self.problem = ""  # why nothing can be written at present
        self._file: BinaryIO | Any = None
        if path == "-":
            self._file = sys.stdout.buffer
        elif path:
            try:
                self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the gateway runs
            except OSError as error:
                raise BadInput(f"cannot write the log {path}: {error.strerror}") from error
        self._room: select.poll | None = None
        number = -1 if self._file is None else self._file.fileno()
        if self.on and not stat.S_ISREG(os.fstat(number).st_mode):  # a write to a pipe waits for its reader
            self._room = select.poll()
            self._room.register(number, select.POLLOUT)

    @property
    def on(self) -> bool:
        """Whether anybody reads it."""
        return self._file is not None

    def add(self, line: Line) -> None:
        """One more."""
        text = self._encode(line) + b"\n"
        self._lines.append(text)
        self._size += len(text)
        if self._size > _FULL:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered, and before it what there was no room for."""
        lines = self._kept + self._lines
        if not lines:
            return
        torn, self._torn = self._torn, False
        self._lines, self._size, self._kept, self._held = [], 0, [], 0
        data, at = b"".join(lines), 0
        try:
            while at < len(data):
                at += self._write(data[at:] if at else data)
            self.problem = ""
        except OSError as error:
            self._torn = torn and not at
            self._keep(lines, at, error.strerror or str(error))

    def _write(self, data: bytes) -> int:
        """How much was taken of it; nobody waits."""
        if self._room is not None:
            if not self._room.poll(0):
                raise BlockingIOError(errno.EAGAIN, "its reader does not read")
            data = data[: select.PIPE_BUF]  # for so much there is room then
        wrote = os.write(self._file.fileno(), data)
        if not wrote:
            raise OSError(0, "it takes no more")
        return wrote

    def _keep(self, lines: list[bytes], written: int, why: str) -> None:
        """What was not written waits, as much as may; the newest lines are lost."""
        for line in lines:
            if written >= len(line):
                written -= len(line)
            elif written or self._held + len(line) <= _KEPT:
                self._torn = self._torn or written > 0
                self._kept.append(line[written:])
                self._held += len(line) - written
                written = 0
            else:
                self.lost += 1
        if not self.problem and monotonic() - self._told >= _AGAIN:
            self._told = monotonic()
            self._tell(f"assay: the access log cannot be written ({self.name}: {why}); its lines wait for room, and "
                       f"those beyond {_KEPT >> 20} MiB are lost and counted ({self.lost:,} so far)")  # fmt: skip
        self.problem = why

    def follow(self, old: AccessLog) -> None:
        """Go on where another one ends: with what it could not write, but for half a line where the file is another."""
        old.flush()
        if old._kept and self.on:
            same = os.path.sameopenfile(self._file.fileno(), old._file.fileno())
            kept, old._kept = (old._kept, []) if same or not old._torn else (old._kept[1:], old._kept[:1])
            self._kept, self._held, self._torn = kept, sum(map(len, kept)), old._torn and same
        old.close()
        self.lost += old.lost

    def close(self) -> None:
        """Write what is left, and no more."""
        self.flush()
        if self._kept:
            self._tell(
                f"assay: {len(self._kept):,} lines of the access log that waited for room are lost ({self.name})"
            )
        self.lost += len(self._kept)
        self._kept, self._held = [], 0
        if self._file is not None and self._file is not sys.stdout.buffer:
            self._file.close()
        self._file = None
