"""Which host calls waited for the device, one call and one op at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.observe.traces.host_waits import RETURN, SHORT


@dataclass(frozen=True)
class Op:
    """Something that ran on a stream; `call` launched it, -1 where nobody is known to have."""

    stream: int
    start: int
    end: int
    called: int = -1
    call: int = -1


@dataclass(frozen=True)
class Call:
    """A call of the runtime that holds no other."""

    name: str
    start: int
    end: int


def waits(calls: list[Call], ops: list[Op]) -> dict[int, int]:
    """For each call that waited, when the op ended that it waited for."""
    found = {}
    for at, call in enumerate(calls):
        over = _waited(at, call, ops)
        if over is not None:
            found[at] = over
    return found


def _waited(at: int, call: Call, ops: list[Op]) -> int | None:
    own = [op.end for op in ops if op.call == at]
    if own:
        return max(own) if call.start < max(own) <= call.end else None
    says, long = re.search("synchroni[sz]e", call.name, re.I), call.end - call.start > SHORT
    dry = []
    for stream in {op.stream for op in ops}:
        queue = sorted((op for op in ops if op.stream == stream), key=lambda op: (op.start, op.end))
        given, so_far = [], -1
        for op in queue:
            so_far = max(so_far, min(op.called, op.start) if op.called >= 0 else op.start)
            given.append(so_far)
        before = [op.end for op, when in zip(queue, given, strict=True) if when <= call.start]
        if before and call.start < max(before) <= call.end:
            dry.append(max(before))
    if dry and (says or (long and call.end - max(dry) <= RETURN)):
        return max(dry)
    ended = max((op.end for op in ops if op.end <= call.end), default=-1)
    if ended > call.start and (
        says or (long and call.end - ended <= RETURN and re.search("wait|finish|sync", call.name, re.I))
    ):
        return ended
    return None
