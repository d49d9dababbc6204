"""The command in real processes that are killed, and over a real HTTP S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from assay.data.blobshuffle.shuffle import DESIGNS, BlobShuffle, Placement
from assay.data.interface import Store
from assay.data.store.blocking import wait


def commits(store: Path) -> int:
    """How many numbered objects there are."""
    return sum(1 for _ in store.glob("broker/log/*"))


@pytest.mark.slow
def test_processes_that_are_killed_again_and_again_lose_and_double_nothing(tmp_path: Path) -> None:
    log, out = tmp_path / "in.jsonl", tmp_path / "out"
    users = [f"u{number % 97}" for number in range(150_000)]
    log.write_text("".join(f'{{"user": "{user}", "n": {n}, "pad": "{"x" * 400}"}}\n' for n, user in enumerate(users)))
    run = "from assay.data.blobshuffle import jobs; jobs.COMMIT = 1 << 20; "
    run += f"jobs.repartition([{str(log)!r}], 'user', {str(out)!r}, parts=5, store={str(tmp_path / 'store')!r})"
    for kills in range(4):  # each when it has committed something that those before it had not; the last one ends
        with subprocess.Popen([sys.executable, "-c", run], env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}) as child:
            before = commits(tmp_path / "store")
            while kills < 3 and commits(tmp_path / "store") < before + 8:
                assert child.poll() is None, "it ended before it could be killed"
                time.sleep(0.005)
            if kills < 3:
                child.kill()
            else:
                assert child.wait(timeout=120) == 0
    came: dict[str, list[int]] = {}
    for path in out.glob("part-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            came.setdefault(row["user"], []).append(row["n"])
    assert came == {user: list(range(first, len(users), 97)) for first, user in enumerate(dict.fromkeys(users))}


@pytest.fixture
def bucket() -> Iterator[Store]:
    """A bucket of an S3 that answers over a socket."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]'")
    cloud = pytest.importorskip("assay.data.store.cloud", reason="pip install obstore")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    endpoint = "http://{}:{}".format(*running.get_host_and_port())
    urlopen(Request(f"{endpoint}/bucket", method="PUT"), timeout=10).close()
    keys = {"access_key_id": "nobody", "secret_access_key": "nothing"}
    yield cloud.S3Store("s3://bucket/run", endpoint=endpoint, region="us-east-1", **keys)
    running.stop()


@pytest.mark.slow
def test_a_shuffle_over_http(bucket: Store) -> None:
    async def main() -> list[bytes]:
        shuffle = BlobShuffle(Placement(4), DESIGNS["blob + cache"].sized(2000))
        await shuffle.open(bucket)
        for turn in range(3):
            producer = await shuffle.producer("x", "a")
            assert producer.offset == 10 * turn
            await producer.send([number % 4 for number in range(10)], [b"%d.%d" % (turn, n) for n in range(10)])
            await producer.commit(10 * turn + 10)
        return [record async for batch in shuffle.receive(1) for record in batch.records]

    assert wait(main()) == [b"%d.%d" % (turn, n) for turn in range(3) for n in (1, 5, 9)]
