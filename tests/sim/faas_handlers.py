"""Functions for the platform's tests: ones that count, die, want too much, or take too long."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from assay.record.errors import BadInput
from assay.sim.faas import Context


async def count(argument: bytes, context: Context) -> bytes:
    """How often this instance was called."""
    context.memory["calls"] = context.memory.get("calls", 0) + 1
    return str(context.memory["calls"]).encode()


async def die_once(argument: bytes, context: Context) -> bytes:
    """Killed the first time; the argument is a file that remembers."""
    seen = Path(argument.decode())
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return b"alive"


async def allocate(argument: bytes, context: Context) -> bytes:
    """Holds as many bytes as it is told."""
    return str(len(bytearray(int(argument)))).encode()


async def compute(argument: bytes, context: Context) -> bytes:
    """Computes for so many seconds of its processor; tells what this instance has spent in all."""
    end = time.process_time() + float(argument)
    while time.process_time() < end:
        pass
    return repr(time.process_time()).encode()


async def fail(argument: bytes, context: Context) -> bytes:
    """Raises what it is told."""
    if argument == b"input":
        raise BadInput("no such thing; another expected")
    raise ValueError("two\nlines")


async def wait(argument: bytes, context: Context) -> bytes:
    """Never answers."""
    await asyncio.sleep(3600)
    return b""
