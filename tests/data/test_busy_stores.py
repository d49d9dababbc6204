"""A store that answers 503, over a real socket: one line, nothing lost, and the next run goes on."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.graphflash import Design, network
from assay.data.graphflash.function import serving
from assay.data.graphflash.run import perform, plan
from assay.data.interface import StoreError
from assay.data.solanet.build import Build
from assay.data.solanet.crashing import PARTS, SIZE, lists, recipe
from assay.data.store.blocking import wait
from assay.data.store.memory import MemStore
from assay.record.errors import AssayError
from assay.sim.faas import CallFailed, Modelled
from tests.data.small_s3 import SmallS3, small_s3
from tests.data.test_bad_stores import Busy

pytest.importorskip("obstore", reason="pip install obstore")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def nothing_else_is_said(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task is left behind whose error nobody asked for: asyncio would print its traceback."""
    yield
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallS3]:
    """An S3 that this process, and those it starts afresh, know of."""
    with small_s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def refused(*words: object) -> None:
    """The command ends in one line that tells of the 503."""
    error = CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False).exception
    assert isinstance(error, AssayError) and error.exit_code in (1, 2), repr(error)
    assert "503" in str(error) and "\n" not in str(error)


def told(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*(str(word) for word in words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def busy_after(s3: SmallS3, changes: int) -> None:
    s3.room = changes


def idle(s3: SmallS3) -> None:
    assert s3.refused > 0, "it was never busy"
    s3.room = 10**9


@pytest.mark.parametrize("changes", [0, 1, 3, 9])
def test_a_producer_goes_on_where_the_store_was_busy(s3: SmallS3, changes: int, tmp_path: Path) -> None:
    produce = ("plane", "produce", "s3://bucket/run", EXAMPLES / "chats.jsonl", "--batch", "16", "--pace", "batch")
    busy_after(s3, changes)
    refused(*produce)
    idle(s3)
    told(*produce)
    steps = told("plane", "consume", "s3://bucket/run", "--out", tmp_path / "out")["read"]["steps"]
    assert (tmp_path / "out").read_bytes() == (EXAMPLES / "chats.jsonl").read_bytes()
    busy_after(s3, 0)
    refused("plane", "serve", "s3://bucket/run", "--once", "--grace", "0", "--retain", "5")
    idle(s3)
    told("plane", "serve", "s3://bucket/run", "--once", "--grace", "0", "--retain", "5")
    assert told("plane", "consume", "s3://bucket/run", "--step", "5")["read"]["next_step"] == steps


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_corpus_goes_on_where_the_index_was_busy(s3: SmallS3, changes: int, tmp_path: Path) -> None:
    dedup = ("dedup", EXAMPLES / "news.jsonl", "--out")
    told(*dedup, tmp_path / "right", "--index", tmp_path / "index")
    busy_after(s3, changes)
    refused(*dedup, tmp_path / "out", "--index", "s3://bucket/index")
    idle(s3)
    told(*dedup, tmp_path / "out", "--index", "s3://bucket/index")
    for part in ("kept", "duplicates"):
        found, right = ([path.read_bytes() for path in (tmp_path / at / part).glob("*")] for at in ("out", "right"))
        assert found == right


@pytest.mark.parametrize("changes", [0, 1, 2, 4])
def test_a_shuffle_goes_on_where_the_store_was_busy(s3: SmallS3, changes: int, tmp_path: Path) -> None:
    words = ("shuffle", "--from", EXAMPLES / "visits.jsonl", "--key", "user", "--parts", "4", "--no-costs")
    told(*words, "--out", tmp_path / "right")
    shuffle = (*words, "--out", tmp_path / "out", "--store", "s3://bucket/blobs")
    busy_after(s3, changes)
    refused(*shuffle)
    idle(s3)
    told(*shuffle)
    for path in (tmp_path / "right").glob("part*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_a_checkpoint_and_a_vault_over_a_busy_store(s3: SmallS3, tmp_path: Path) -> None:
    save = ("ckpt", "save", EXAMPLES / "state.safetensors", "--store", "s3://bucket/ckpts", "--step", "1")
    mine = ("--store", "s3://bucket/vault", "--key", tmp_path / "my.key")
    told("vault", "key", "--out", tmp_path / "my.key")
    for words in (save, ("vault", "put", EXAMPLES / "chats.jsonl", *mine)):
        busy_after(s3, 1)
        refused(*words)
        idle(s3)
        told(*words)
    told("ckpt", "restore", "s3://bucket/ckpts@1", "--out", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (EXAMPLES / "state.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------- other processes' stores


@pytest.mark.parametrize("mode", ["pinned", "rotating"])
def test_functions_whose_store_is_busy_end_in_one_line_and_go_on(mode: str) -> None:
    path = network([(i, i + 1) for i in range(40)])

    async def main() -> Any:
        store = Busy(MemStore())
        task = plan("bfs", path, design=Design(mode, checkpoint=2), parts=8, workers=4, how="range")

        def progress(done: int, total: int) -> None:
            store.busy = done == 3

        async with Modelled(serving(store), slots=4, cold=(0.0, 0.0)) as platform:
            with pytest.raises((CallFailed, StoreError), match="503 Slow Down") as caught:
                await perform(task, store, platform, progress=progress)
        assert "\n" not in str(caught.value)
        store.busy = False
        async with Modelled(serving(store), slots=4, cold=(0.0, 0.0)) as platform:
            return await perform(task, store, platform)

    ran = asyncio.run(main())
    assert np.array_equal(ran.values, np.arange(41)) and ran.resumed == 3


def test_a_build_whose_store_is_busy_keeps_the_parts_it_has() -> None:
    store = Busy(MemStore())
    build, order = Build(recipe(0)), np.arange(PARTS * SIZE)
    wait(build.begin(store))
    for part in range(PARTS):
        wait(build.keep("final", part, *lists("final", part, 0), {}))
    store.busy = True
    with pytest.raises(StoreError, match="503 Slow Down") as caught:
        wait(build.finish(order))
    assert "\n" not in str(caught.value) and wait(build.done()) is None
    store.busy = False
    again = Build(recipe(0))
    assert wait(again.begin(store)) is None and wait(again.complete())
    wait(again.finish(order))
    assert wait(again.check([("done", 0)])) == []


def alone(s3: SmallS3, *words: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose children see the environment as it is now."""
    code = "from assay.cli.main import main; main()"
    given = [sys.executable, "-c", code, "data", *(str(word) for word in words)]
    return subprocess.run(given, capture_output=True, text=True, check=False, env=os.environ | s3.environment)


def in_vain(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "503" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("changes", [0, 2, 4])
def test_real_ranks_whose_store_is_busy(s3: SmallS3, changes: int, tmp_path: Path) -> None:
    build = ("knn", EXAMPLES / "points.fbin", "-k", "5", "--ranks", "2", "--out")
    busy_after(s3, changes)
    in_vain(alone(s3, *build, "s3://bucket/knn"))
    idle(s3)
    assert alone(s3, *build, "s3://bucket/knn").returncode == 0
    assert alone(s3, *build, tmp_path / "knn").returncode == 0
    assert np.array_equal(np.load(io.BytesIO(s3.objects["knn/ids.npy"])), np.load(tmp_path / "knn" / "ids.npy"))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [0, 9, 20])
def test_real_functions_whose_store_is_busy(s3: SmallS3, changes: int, tmp_path: Path) -> None:
    far = ("graph", "sssp", EXAMPLES / "roads.csv", "--root", "100", "--workers", "2", "--out")
    on_s3 = (tmp_path / "far.npy", "--store", "s3://bucket/job")
    busy_after(s3, changes)
    in_vain(alone(s3, *far, *on_s3))
    idle(s3)
    assert alone(s3, *far, *on_s3).returncode == 0
    assert alone(s3, *far, tmp_path / "right.npy").returncode == 0
    assert np.array_equal(np.load(tmp_path / "far.npy"), np.load(tmp_path / "right.npy"))
