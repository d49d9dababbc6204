"""The processes that a session of measurements starts, and what ends them: Ctrl-C and SIGTERM leave none behind.

Each leads a process group of its own and is killed with all it started. Within :func:`interruptible` the first signal
kills them all and raises `KeyboardInterrupt`, so that the session cleans up on its way out; further signals are
ignored then, for whoever presses Ctrl-C twice wants to leave, not to keep a worktree. Where an exception would come at
a bad moment (between the start of a process and noting it, or amid cleaning up) :func:`held_back` makes it wait.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DYING = 0.5  # seconds until a killed group is gone; its dead count as members where nobody reaps orphans
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Now:
    """What the signal handler has to know; there is one of it, as there is one handler."""

    alive: set[subprocess.Popen[bytes]] = field(default_factory=set)
    starting: threading.Lock = field(default_factory=threading.Lock)
    held: int = 0  # how many of the main thread's callers want no exception now
    due: bool = False  # a signal came meanwhile
    over: bool = False  # interrupted: only the main thread, which cleans up, may start anything


_now = _Now()


# ------------------------------------------------------------------------------------------------ processes


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that no interruption leaves behind; `end` it.

    Raises:
        OSError: it cannot be started, or the session was interrupted.
    """
    with held_back(), _now.starting:
        if _now.over and not _in_main_thread():
            raise InterruptedError(errno.EINTR, "interrupted")
        process = subprocess.Popen(words, start_new_session=True, **options)
        _now.alive.add(process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all it started, if any of it still runs; none of it writes into a folder afterwards."""
    kill(process)
    process.wait()
    deadline = time.monotonic() + DYING
    while _has_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    _now.alive.discard(process)


def run(
    words: Sequence[str], timeout: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it left running is killed only if it was cut short.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took too long.
    """
    process = start(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said, complained = process.communicate(timeout=timeout)
    except BaseException:
        end(process)
        raise
    _now.alive.discard(process)
    texts = [text.decode(errors="replace") for text in (said, complained)]
    return subprocess.CompletedProcess(words, process.returncode, *texts)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all it started, without waiting for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # those of other users we could not kill, and do not wait for
        return False
    return True


# -------------------------------------------------------------------------------------------------- signals


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a hung-up terminal end the session as Ctrl-C does; what the caller ignores stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    chosen = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    for number in chosen:
        signal.signal(number, _come)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, before[number])
        _now.due = _now.over = False


@contextmanager
def held_back() -> Iterator[None]:
    """Until the end of this no signal raises; one that came is then made up for. Other threads get none anyway."""
    if not _in_main_thread():
        yield
        return
    _now.held += 1
    try:
        yield
    finally:
        _now.held -= 1
        if _now.due and not _now.held:
            _leave()


def _come(*_: Any) -> None:
    _now.due = True
    if not _now.held:
        _leave()


def _leave() -> None:
    """Kill what runs, then unwind. Ignored signals are inherited: git can remove a worktree undisturbed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _now.due, _now.over = False, True
    with _now.starting:
        for process in list(_now.alive):
            kill(process)
    raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
