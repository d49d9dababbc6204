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
from assay.workloads.more_sessions import sustained
from assay.workloads.requests import Requests
from assay.workloads.session_reuse import with_session_reuse

GENERATED = 5000  # requests
SHORTEST = 30.0  # seconds for which a load is steady, where its rate is given, though the trace be shorter
MOST_AT_A_RATE = 200_000  # requests of it, though the trace have fewer


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
        if dict(options).get("time_unit"):
            raise BadInput(f"--time-unit: {trace} is generated, in seconds; leave it out")
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
    """A trace at `x2` times its rate, or at so many requests a second: with more sessions, or fewer, as slow as before.

    It is steady for as long as the trace lasts, or as long as so many requests can be simulated.

    >>> trace = Requests.of([0.0, 1.0, 2.0], [5, 5, 5], [2, 2, 2])
    >>> round(at_rate(trace, "12").rate), at_rate(trace, "x1") is trace
    (12, True)
    """
    found = re.fullmatch(r"(x?)(\d+(?:\.\d*)?(?:e-?\d+)?)", text.strip())
    value = float(found[2]) if found else 0.0
    if not found or not value > 0:
        raise BadInput(f"--rate '{text}': write x2 for twice the trace's rate, or 12 for 12 requests a second")
    if found[1] and value == 1.0:
        return requests
    if not requests.seconds:
        raise BadInput(f"--rate {text}: all requests of the trace arrive at once; it needs one that lasts some time")
    rate = value * requests.rate if found[1] else value
    most = max(MOST_AT_A_RATE, len(requests))
    seconds = min(max(requests.seconds, SHORTEST), most / rate)
    if seconds < 1.0:
        raise BadInput(f"--rate {text}: {rate:,.0f} requests a second are more than can be simulated for a second")
    return sustained(requests, rate, seconds)


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
