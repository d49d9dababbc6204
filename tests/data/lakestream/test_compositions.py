"""The plane on other stores and beside other components: over ciphertext, over S3, with checkpoints, in a torch job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data import Checkpointer, Fold, MemStore, plane_dataset, produce
from assay.data.lakestream import Plane, slices
from assay.data.safecloud import Encrypted
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Metered
from assay.sim.ledger import Ledger

CANARY = b"a sentence that nobody else may read"


def private(cursor: Any) -> Iterator[tuple[list[bytes], int]]:
    for number in range(cursor or 0, 6):
        yield [b"%d %d " % (number, rank) + CANARY * 4000 for rank in range(2)], number + 1


def test_a_plane_over_ciphertext_reads_a_tenth_more_at_most_and_shows_nothing() -> None:
    pytest.importorskip("cryptography", reason="pip install cryptography")
    below, ledger, secret = MemStore(), Ledger(), bytes(range(32))
    produce(Encrypted(below, secret), "p", private, slices=2)
    sealed = Encrypted(Metered(below, ledger), secret)
    found = [bytes(part) for (part,) in slices(sealed, rank=1, world=2)]
    assert found == [made[1] for made, _ in private(0)]
    assert not any(CANARY in data for data in below.objects.values())
    assert ledger.nbytes("get") <= 1.1 * sum(map(len, found))


def test_a_plane_keeps_what_the_checkpoints_of_a_job_need(tmp_path: Path) -> None:
    store = MemStore()
    produce(store, "p", lambda cursor: (([b"%d" % n], n + 1) for n in range(cursor or 0, 30)), slices=1)
    plane = Plane(grace=0.0)
    wait(plane.open(store))
    ck = Checkpointer(str(tmp_path / "ckpts"), keep=2)
    for step in (10, 20, 30):
        ck.save(step, {"w": np.full(2, step)}, meta={"next_step": step})
        wait(plane.retain(ck.steps()))
        wait(plane.reclaim())
    step = ck.inspect(min(ck.steps())).meta["next_step"]
    assert step == plane.manifest.state.base == 20
    assert [int(bytes(part)) for (part,) in slices(store, 0, 1, start=step)] == list(range(20, 30))


class Killed(Exception):  # noqa: N818
    """Where the process would have died."""


def test_a_stage_that_drops_duplicates_may_die_between_deciding_and_publishing() -> None:
    unique = [" ".join(f"word{n}x{i}" for i in range(20)) for n in range(12)]
    texts = [text for n in range(12) for text in (unique[n], unique[n // 2])]  # a later half repeats an earlier one
    index, store = MemStore(), MemStore()

    def kept(cursor: Any, dies_at: int = -1) -> Iterator[tuple[list[bytes], int]]:
        fold = Fold()
        wait(fold.open(index))
        for first in range(cursor or 0, len(texts), 4):
            ids = [str(n) for n in range(first, first + 4)]
            keep = wait(fold.observe(ids, texts[first : first + 4]))
            if first == dies_at:
                raise Killed
            some = [text for text, good in zip(texts[first : first + 4], keep, strict=True) if good]
            yield ["\n".join(some).encode()], first + 4

    with pytest.raises(Killed):
        produce(store, "p", lambda cursor: kept(cursor, dies_at=8), slices=1)
    produce(store, "p", kept, slices=1)
    found = [line for (part,) in slices(store, 0, 1) for line in bytes(part).decode().splitlines()]
    assert found == unique


def rows(cursor: Any) -> Iterator[tuple[list[bytes], int]]:
    for number in range(cursor or 0, 12):
        yield [np.full(3, 10 * number + rank, np.float32).tobytes() for rank in range(2)], number + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_loader_gives_a_ranks_steps_in_order(workers: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install torch")
    from torch.utils.data import DataLoader

    store = str(tmp_path / "plane")
    produce(store, "p", rows, slices=2)
    items = plane_dataset(store, rank=1, world=2, start=3, decode=lambda parts: np.frombuffer(parts[0], np.float32)[0])
    assert [float(x) for x in DataLoader(items, batch_size=None, num_workers=workers)] == [
        10.0 * n + 1 for n in range(3, 12)
    ]


@pytest.mark.slow
def test_a_job_whose_producers_are_killed_has_the_losses_of_an_undisturbed_one() -> None:
    pytest.importorskip("torch", reason="pip install torch")
    from assay.data.lakestream.training import job

    right = job("loader", 0, 80, seed=4)["losses"]
    killed = job("plane", 4, 80, seed=4)
    assert len(right) == 80 and killed["survived"] and killed["kills"] == 4
    assert killed["losses"] == job("plane", 0, 80, seed=4)["losses"] == right
    assert not job("loader", 1, 80, seed=4)["survived"]


@pytest.mark.slow
def test_a_plane_on_s3() -> None:
    server = pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]'")
    from urllib.request import Request, urlopen

    from assay.data.store.cloud import S3Store

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        urlopen(Request(f"http://{host}:{port}/bucket", method="PUT"), timeout=10).close()
        keys = {"access_key_id": "nobody", "secret_access_key": "nothing"}
        store = S3Store("s3://bucket/run1", endpoint=f"http://{host}:{port}", region="us-east-1", **keys)
        for name in ("x", "y"):
            produce(store, name, rows, slices=2, producers=2)
        found = [np.frombuffer(part, np.float32)[0] for (part,) in slices(store, 0, 2, turns=("x", "y"))]
        assert found == [10.0 * (n // 2) for n in range(24)]
    finally:
        running.stop()
