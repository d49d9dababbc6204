"""`assay data probe`: measure how fast your store is, and keep it as a latency profile."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import click

from assay.data.interface import AlreadyExists, Store, StoreError
from assay.data.store.address import open_store
from assay.data.store.blocking import background
from assay.data.store.delayed import Profile, fitted, write_profile

LARGE = 16 << 20  # bytes, for the bandwidth
FORGOTTEN = 24 * 3600.0  # seconds after which what a probe left belongs to nobody
_OURS = re.compile(r"probe/[0-9a-f]{32}[-/](\d+|large)")


@click.command(epilog="Example:  assay data probe mem://")
@click.argument("url")
@click.option("--requests", type=click.IntRange(3, 100_000), default=50, show_default=True, help="Of each kind.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the profile as TOML.")
def command(url: str, requests: int, out: Path | None) -> dict[str, Any]:
    """Measure puts, gets and bandwidth of the store at URL, and whether its create-only put really is one.

    What it writes there lies under probe/ and is deleted at once, also by Ctrl-C; what a killed one left there, by the
    next one a day later.
    """
    found, exclusive = _measured(open_store(url), url, requests, click.get_current_context().obj)
    if out is not None:
        write_profile(found, out)
    rows = [
        {"request": op, "median_ms": 1e3 * latency.median, "p99_ms": 1e3 * latency.p99}
        for op, latency in (("get", found.get), ("put", found.put))
    ]
    why = f"{found.bandwidth / 1e6:.0f} MB/s a connection." + (
        "" if exclusive else " Its create-only put overwrites: nothing of this room is safe on it."
    )
    facts = {"bandwidth": found.bandwidth, "create_only": "yes" if exclusive else "no", "written": out and str(out)}
    return {url: facts, "table": rows, "why": why, "fails": not exclusive}


def _measured(store: Store, name: str, requests: int, progress: Any) -> tuple[Profile, bool]:
    """Wait for the measurement, and where that is interrupted for its end: a put would land after the delete."""
    stopped = Event()
    measuring = asyncio.run_coroutine_threadsafe(measure(store, name, requests, progress, stopped), background())
    try:
        return measuring.result()
    except KeyboardInterrupt:
        stopped.set()
        with suppress(StoreError):
            measuring.result()
        raise


async def measure(
    store: Store, name: str, requests: int, progress: Any, stopped: Event | None = None
) -> tuple[Profile, bool]:
    """The store's profile, and whether a second create-only put fails."""
    await _sweep(store)
    mine = f"probe/{uuid4().hex}"
    seconds: dict[str, list[float]] = {"put": [], "get": []}
    exclusive, took = False, 0.0
    for number in range(requests + 1):
        key, large = f"{mine}-{number}", number == requests
        try:  # one object at a time: who is killed leaves no more
            began = time.perf_counter()
            await store.put(key, bytes(LARGE if large else 1000))
            written = time.perf_counter()
            if large:
                took = written - began - min(seconds["put"])
                break
            await store.get(key)
            seconds["put"].append(written - began)
            seconds["get"].append(time.perf_counter() - written)
            if number == 0:
                exclusive = await _refuses(store, key)
        finally:
            await store.delete(key)
        progress(number + 1, requests)
        if stopped is not None and stopped.is_set():
            raise StoreError("the measurement was stopped")
    source = f"{requests} puts and gets of 1 kB, one put of {LARGE >> 20} MiB, {time.strftime('%Y-%m-%d')}"
    return fitted(name, seconds, LARGE / max(took, 1e-6), source), exclusive


async def _sweep(store: Store) -> None:
    """Delete what killed probes left, and nothing that somebody else keeps under the same folder."""
    before = time.time() - FORGOTTEN
    with suppress(StoreError):  # not everybody may list
        left = [meta.key async for meta in store.list("probe/") if 0 < meta.modified < before]
        if left := [key for key in left if _OURS.fullmatch(key)]:
            await store.delete(*left)


async def _refuses(store: Store, key: str) -> bool:
    try:
        await store.put(key, b"second", if_absent=True)
    except AlreadyExists:
        return True
    return False
