"""The trace a user names, as the comparison plays it: read or generated, at a rate, in a loop, asked of this fleet."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput
from assay.serving.fleet import FleetSpec
from assay.workloads.closed_loop import closed
from assay.workloads.requests import Requests
from assay.workloads.session_reuse import with_session_reuse

GENERATED = 5000  # requests


def read_trace(trace: str, limit: int | None, **options: Any) -> Requests:
    """A trace from a file, or a generated one."""
    try:
        found = Path(trace).stat()
        stamp = (found.st_mtime_ns, found.st_size)
    except OSError:
        stamp = (0, 0)
    return _read(trace, stamp, limit, tuple(sorted(options.items())))


@lru_cache(maxsize=3)  # who asks again at another rate does not wait for the file
def _read(trace: str, stamp: tuple[int, int], limit: int | None, options: tuple[tuple[str, Any], ...]) -> Requests:
    if trace in ("chat", "agents") and stamp == (0, 0):
        return generated(trace, limit or GENERATED)
    from assay.workloads.request_files import read

    return with_session_reuse(read(trace, limit=limit, **dict(options)))


def generated(kind: str, count: int = GENERATED, seed: int = 0) -> Requests:
    """Requests of people who chat, or of people and agents, 30 a second.

    >>> len(generated("chat", 100))
    100
    """
    from assay.workloads.chat import Agents, chat

    return chat(count, rate=30.0, seed=seed, agents=Agents() if kind == "agents" else None)


def at_rate(requests: Requests, text: str) -> Requests:
    """A trace at `x2` times its rate, or at so many requests a second."""
    found = re.fullmatch(r"(x?)(\d+(?:\.\d*)?(?:e-?\d+)?)", text.strip())
    factor = float(found[2]) if found else 0.0
    if not factor > 0:
        raise BadInput(f"--rate '{text}': write x2 for twice the trace's rate, or 12 for 12 requests a second")
    if found and not found[1]:
        if not requests.seconds:
            raise BadInput("--rate in requests a second needs a trace that lasts some time")
        factor /= requests.rate
    return requests if factor == 1.0 else requests.faster(factor)


def in_loop(requests: Requests, loop: str) -> Requests:
    """The requests with the turns that a trace does not name, where they are to be found in its prompts."""
    if loop != "inferred" or requests.after is not None:
        return requests
    if requests.session is None and requests.prefixes is None:
        raise BadInput("--loop inferred needs prompts that share beginnings (hash_ids, text); this trace has none")
    return closed(requests)


def served_here(requests: Requests, spec: FleetSpec) -> Requests:
    """The requests, asked of this fleet's models: names of others say nothing here, and a note says so.

    A request for a model that the fleet has still goes there only, where the fleet has several.
    """
    if requests.model is None:
        return requests
    known, asked = {instance.model for instance in spec.instances}, set(requests.models)
    if asked <= known:
        return requests
    if asked & known:
        strangers = ", ".join(sorted(asked - known)[:3])
        raise BadInput(f"the trace asks for models that the fleet has not ({strangers}); name them in --fleet, too")
    names = ", ".join(requests.models[:3])
    note = f"asked for {names}: taken as requests for {', '.join(sorted(known))}"
    source = replace(requests.source, notes=(*requests.source.notes, note))
    return replace(requests, model=None, models=(), source=source)
