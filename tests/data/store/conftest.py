"""Every kind of store there is, by name; and a real HTTP S3 on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from assay.data.crash.faulty import Faulty
from assay.data.interface import Store
from assay.data.safecloud import Encrypted
from assay.data.store.cached import Cached
from assay.data.store.delayed import PROFILES, Delayed
from assay.data.store.directory import DirStore
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered, Recorded, Zoned
from assay.sim.clock import WallClock
from assay.sim.ledger import Ledger


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 that answers over a socket."""
    server = pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]'")
    pytest.importorskip("obstore", reason="pip install obstore")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def on_s3(endpoint: str) -> Store:
    from urllib.request import Request, urlopen

    from assay.data.store.cloud import S3Store

    bucket = f"b{uuid4().hex}"
    urlopen(Request(f"{endpoint}/{bucket}", method="PUT"), timeout=10).close()
    keys = {"access_key_id": "nobody", "secret_access_key": "nothing"}
    return S3Store(f"s3://{bucket}/folder", endpoint=endpoint, region="us-east-1", **keys)


def foreign() -> Store:
    pytest.importorskip("fsspec", reason="pip install fsspec")
    from assay.data.store.foreign import FsspecStore

    return FsspecStore(f"memory://{uuid4().hex}")


WRAPPERS: dict[str, Callable[[Store], Store]] = {
    "metered": lambda inner: Metered(inner, Ledger(), who="test"),
    "delayed": lambda inner: Delayed(inner, PROFILES["zero"], clock=WallClock()),
    "zoned": lambda inner: Zoned(inner, Ledger(), here="a", zones={"far/": "b"}),
    "recorded": Recorded,
    "encrypted": lambda inner: Encrypted(inner, bytes(range(32)), chunk=7),  # small: every range crosses chunks
    "cached": lambda inner: Cached(inner, 10_000),
    "a small cache": lambda inner: Cached(inner, 9),
    "faulty, but at no point": Faulty,
}
LEAVES = ("memory", "folder", "folder without fsync", "fsspec", "s3")


@pytest.fixture(params=[*LEAVES, *WRAPPERS, "all of them"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One store of each kind."""
    name = request.param
    if name == "s3":
        return on_s3(request.getfixturevalue("s3_endpoint"))
    if name in LEAVES:
        return {
            "memory": MemStore,
            "folder": lambda: DirStore(tmp_path / "store"),
            "folder without fsync": lambda: DirStore(tmp_path / "store", fsync=False),
            "fsspec": foreign,
        }[name]()
    if name in WRAPPERS:
        return WRAPPERS[name](MemStore())
    found: Store = DirStore(tmp_path / "store", fsync=False)
    for wrap in WRAPPERS.values():
        found = wrap(found)
    return found
