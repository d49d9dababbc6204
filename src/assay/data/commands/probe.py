"""`assay data probe`: measure how fast your store is, and keep it as a latency profile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from assay.data.interface import AlreadyExists, Store
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.data.store.delayed import Profile, fitted, write_profile

LARGE = 16 << 20  # bytes, for the bandwidth


@click.command(epilog="Example:  assay data probe mem://")
@click.argument("url")
@click.option("--requests", type=click.IntRange(3, 100_000), default=50, show_default=True, help="Of each kind.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the profile as TOML.")
def command(url: str, requests: int, out: Path | None) -> dict[str, Any]:
    """Measure puts, gets and bandwidth of the store at URL, and whether its create-only put really is one.

    What it writes there lies under probe/ and is deleted at the end.
    """
    progress = click.get_current_context().obj
    found, exclusive = wait(measure(open_store(url), url, requests, progress))
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


async def measure(store: Store, name: str, requests: int, progress: Any) -> tuple[Profile, bool]:
    """The store's profile, and whether a second create-only put fails."""
    folder = f"probe/{uuid4().hex}"
    seconds: dict[str, list[float]] = {"put": [], "get": []}
    keys = [f"{folder}/{i}" for i in range(requests)]
    try:
        for done, key in enumerate(keys):
            began = time.perf_counter()
            await store.put(key, bytes(1000))
            written = time.perf_counter()
            await store.get(key)
            seconds["put"].append(written - began)
            seconds["get"].append(time.perf_counter() - written)
            progress(done + 1, requests)
        exclusive = await _refuses(store, keys[0])
        large = f"{folder}/large"
        began = time.perf_counter()
        await store.put(large, bytes(LARGE))
        took = time.perf_counter() - began - min(seconds["put"])
        keys.append(large)
    finally:
        await store.delete(*keys)
    source = f"{requests} puts and gets of 1 kB, one put of {LARGE >> 20} MiB, {time.strftime('%Y-%m-%d')}"
    return fitted(name, seconds, LARGE / max(took, 1e-6), source), exclusive


async def _refuses(store: Store, key: str) -> bool:
    try:
        await store.put(key, b"second", if_absent=True)
    except AlreadyExists:
        return True
    return False
