"""Send a trace to an OpenAI-compatible endpoint as it was: the same arrivals, lengths and shared beginnings.

Prompts are token ids (`/v1/completions` takes them), made so that they share what the trace's prompts share; answers
are as long as in the trace. What comes back is timed where a user would: from sending to the first token, and on.
"""

from __future__ import annotations

import asyncio
import math
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.live.api import streamed_usage
from assay.live.http1 import ResponseHead
from assay.live.upstream import Address, Pool, Upstream
from assay.record.errors import AssayError
from assay.workloads.prompt_ids import prompt_ids
from assay.workloads.requests import Requests

_PREPARED = 64 << 20  # bytes of requests that are made ahead of their time


@dataclass
class Sent:
    """One request: what was asked, what came back, when."""

    number: int
    due: float
    sent: float = math.nan
    first: float = math.nan  # nothing came yet
    last: float = math.nan
    tokens: int = 0
    status: int = 0
    engine: str = ""
    cached: int | None = None
    error: str = ""


class _Asked:
    """Waits for one answer and notes its times."""

    method = b"POST"

    def __init__(self, sent: Sent, done: Callable[[], None]) -> None:
        self.sent = sent
        self._done = done

    def connected(self, upstream: Upstream) -> bool:
        return True

    def unreachable(self, pool: Pool, why: str) -> None:
        self.broken(why, False)

    def answered(self, head: ResponseHead) -> None:
        self.sent.status = head.status
        self.sent.engine = head.fields.get(b"x-assay-engine", b"").decode("latin-1")

    def payload(self, data: bytes) -> None:
        sent, now = self.sent, monotonic()
        events = data.count(b"data: {")
        if events and sent.status == 200:
            if b'"error"' in data:
                sent.error = data.decode(errors="replace")[:200]
            usage = streamed_usage(data)
            if usage is not None:
                sent.cached = usage.cached
                events -= 1
            sent.first = now if math.isnan(sent.first) else sent.first
            if events:
                sent.last = now
            sent.tokens += events

    def complete(self) -> None:
        self._done()

    def broken(self, why: str, stale: bool) -> None:
        self.sent.error = why
        self._done()


async def replay(
    url: str, trace: Requests, *, model: str = "", key: str = "", details: bool = False, salt: int = 0,
    text: bool = False, progress: Callable[[int, int], None] = lambda done, total: None,
) -> pl.DataFrame:  # fmt: skip
    """Send the whole trace at its own pace; one row a request.

    Prompts are token ids, or with `text` as many words of four bytes.
    Columns: arrival (as sent), ttft, tpot, e2e, tokens, status, engine, cached, error. `details` asks for usage.
    """
    pool = Pool(Address.of(url))
    model = model or await asyncio.to_thread(first_model, pool.address.url, key)
    rows = [Sent(r, due) for r, due in enumerate(trace.arrival.tolist())]
    finished = asyncio.Event()
    left = len(rows)

    def done() -> None:
        nonlocal left
        left -= 1
        progress(len(rows) - left, len(rows))
        if not left:
            finished.set()

    made = (_message(trace, r, pool.address, model, key, details, salt, text) for r in range(len(rows)))
    messages: deque[bytes] = deque()
    _prepare(messages, made)
    began = monotonic() + 0.1
    for row in rows:
        wait = began + row.due - monotonic()
        if wait > 0.0005:
            await asyncio.sleep(wait)
        row.sent = monotonic()
        pool.ask(_Asked(row, done), messages.popleft())
        if len(messages) < len(rows) - row.number - 1:  # right after sending, when there is most time until the next
            _prepare(messages, made)
    if rows:
        await finished.wait()
    pool.close()
    return _table(rows, began)


def _prepare(messages: deque[bytes], made: Iterator[bytes]) -> None:
    """Make requests until there are enough: making one takes longer than sending it."""
    size = sum(map(len, messages))
    while size < _PREPARED and (message := next(made, None)) is not None:
        messages.append(message)
        size += len(message)


def first_model(url: str, key: str = "") -> str:
    """The model that an endpoint lists first; AssayError where it lists none."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(msgspec.json.decode(answer.read())["data"][0]["id"])
    except (OSError, msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise AssayError(f"{url} does not list a model at /v1/models: {error}") from error


def as_text(ids: NDArray[np.uint32]) -> str:
    """Ids as words of four bytes, for routers that look at text only: equal ids, equal words.

    >>> as_text(np.array([1, 4097], np.uint32))
    '001 002 '
    """
    return "".join([f"{number % 4095:03x} " for number in ids.tolist()])


def _message(
    trace: Requests, r: int, address: Address, model: str, key: str, details: bool, salt: int, text: bool
) -> bytes:
    ids = prompt_ids(trace, r, salt)
    ask = {
        "model": model, "prompt": as_text(ids) if text else ids.tolist(), "max_tokens": int(trace.output[r]),
        "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip
    if details:
        ask["stream_options"] = {"include_usage": True}
    body = msgspec.json.encode(ask)
    lines = [
        b"POST %b/v1/completions HTTP/1.1" % address.prefix, b"host: " + address.authority,
        b"content-type: application/json", b"content-length: %d" % len(body),
        b"x-request-id: replay-%d-%d" % (salt, r),  # so that a row of anybody's log can be told
    ]  # fmt: skip
    if key:
        lines.append(b"authorization: Bearer " + key.encode())
    for name in ("session", "tenant", "tier"):
        column = getattr(trace, name)
        if column is not None and column[r] >= 0:
            words = getattr(trace, f"{name}s", ())
            value = words[column[r]] if words else int(column[r])
            lines.append(f"x-{name}{'-id' if name == 'session' else ''}: {value}".encode("latin-1", "replace"))
    return b"\r\n".join([*lines, b"", body])


def _table(rows: list[Sent], began: float) -> pl.DataFrame:
    column = {
        name: np.array([getattr(row, name) for row in rows], np.float64) for name in ("sent", "first", "last", "tokens")
    }
    ttft = column["first"] - column["sent"]
    gaps = np.maximum(column["tokens"] - 1, 1)
    tpot = np.where(column["tokens"] > 1, (column["last"] - column["first"]) / gaps, np.nan)
    return pl.DataFrame(
        {
            "arrival": column["sent"] - began, "ttft": ttft, "tpot": tpot,
            "e2e": column["last"] - column["sent"],
            "tokens": column["tokens"].astype(np.int64), "status": [row.status for row in rows],
            "engine": [row.engine for row in rows], "cached": [row.cached for row in rows],
            "error": [row.error for row in rows],
        }
    )  # fmt: skip
