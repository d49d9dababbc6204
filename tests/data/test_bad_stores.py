"""A store that is full, answers 503, or lost the end of a file: one line, nothing lost, and the next run goes on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from assay.cli.data import command
from assay.data import Checkpointer, MemStore, blocking
from assay.data.disk import pages
from assay.data.interface import StoreError, Unknown
from assay.data.safecloud import Vault
from assay.data.store import directory
from assay.data.store.wrappers import Op, Wrapper
from assay.record.errors import AssayError

EXAMPLES = Path(__file__).parents[2] / "examples"
STATE = str(EXAMPLES / "state.safetensors")


def assay(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)


def one_line(result: Result, message: str) -> None:
    assert isinstance(result.exception, AssayError), repr(result.exception)
    assert message in str(result.exception) and "\n" not in str(result.exception)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From the nth write of an object on, the disk is full; nothing before that is lost. 0: it has room again."""
    real = directory.DirStore._write
    left = [10**9]

    def write(self: Any, path: Path, parts: Sequence[Any]) -> int:
        left[0] -= 1
        if left[0] < 0:
            path.write_bytes(b"half of it")  # what a real disk leaves behind
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, path, parts)

    monkeypatch.setattr(directory.DirStore, "_write", write)

    def after(writes: int) -> None:
        left[0] = writes or 10**9

    return after


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_checkpoint_that_finds_the_store_full_leaves_the_last_one(
    tmp_path: Path, full: Callable[[int], None], writes: int
) -> None:
    store = tmp_path / "ckpts"
    np.savez(tmp_path / "later.npz", w=np.arange(9.0), v=np.ones(3))
    assert assay("ckpt", "save", STATE, "--store", store, "--step", 1).exception is None
    full(writes - 1 or -1)
    one_line(assay("ckpt", "save", tmp_path / "later.npz", "--store", store, "--step", 2), "free some space there")
    full(0)
    assert Checkpointer(str(store)).steps() == [1]
    assert assay("ckpt", "restore", f"{store}@1", "--out", tmp_path / "back.safetensors").exception is None
    assert (tmp_path / "back.safetensors").read_bytes() == Path(STATE).read_bytes()
    assert assay("ckpt", "save", tmp_path / "later.npz", "--store", store, "--step", 2).exception is None
    assert Checkpointer(str(store)).steps() == [1, 2]


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_vault_that_is_full_keeps_the_files_it_has(tmp_path: Path, full: Callable[[int], None], writes: int) -> None:
    mine = ("--store", tmp_path / "vault", "--key", tmp_path / "my.key")
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    assay("vault", "key", "--out", tmp_path / "my.key")
    assert assay("vault", "put", tmp_path / "old", *mine).exception is None
    full(writes - 1 or -1)
    one_line(assay("vault", "put", tmp_path / "new", *mine), "free some space there")
    full(0)
    assert assay("vault", "put", tmp_path / "new", *mine).exception is None
    for name in ("old", "new"):
        [path] = [row["path"] for row in listed(mine) if row["path"].endswith(name)]
        assert assay("vault", "get", path, *mine, "--out", tmp_path / "back").exception is None
        assert (tmp_path / "back").read_bytes() == name.encode() * 1000


def listed(mine: Sequence[object]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(assay("vault", "ls", *mine, "--json").output)["table"]
    return rows


def infer(folder: Path) -> Result:
    model, features = EXAMPLES / "gcn.npz", EXAMPLES / "web.npy"
    words = ("--features", features, "--model", model, "--out", folder / "rows.npy", "--memory", "8GB")
    return assay("gnn", "infer", EXAMPLES / "web.txt", *words)


def test_an_inference_on_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "right").mkdir()
    assert infer(tmp_path / "right").exception is None
    real = pages.PagedFile._write_run

    def refuse(self: Any, first: int, count: int, data: Any) -> None:
        if "layer-2" in self.path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        real(self, first, count, data)

    monkeypatch.setattr(pages.PagedFile, "_write_run", refuse)
    one_line(infer(tmp_path), "no space is left")
    assert not (tmp_path / "rows.npy").exists()
    monkeypatch.undo()
    assert infer(tmp_path).exception is None
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), np.load(tmp_path / "right" / "rows.npy"))


def test_a_feature_file_that_was_cut_is_told_by_its_bytes(tmp_path: Path) -> None:
    whole = (EXAMPLES / "web.npy").read_bytes()
    (tmp_path / "web.npy").write_bytes(whole[: len(whole) // 2])
    words = ("--features", tmp_path / "web.npy", "--model", EXAMPLES / "gcn.npz", "--out", tmp_path / "rows.npy")
    one_line(assay("gnn", "infer", EXAMPLES / "web.txt", *words, "--memory", "8GB"), "copy it again")
    assert not (tmp_path / "rows.npy").exists()


def test_an_object_that_was_cut_is_damaged_and_an_older_step_is_still_there(tmp_path: Path) -> None:
    ck = Checkpointer(str(tmp_path), incremental=False)
    for step in (1, 2):
        ck.save(step, {"w": np.full(5000, step)})
    [newer] = (tmp_path / "data").glob("000000000002-*")
    newer.write_bytes(newer.read_bytes()[:1000])
    one_line(assay("ckpt", "restore", f"{tmp_path}@2", "--out", tmp_path / "out.npz"), "ends at 1000")
    assert ck.restore(1)["w"][0] == 1


class Busy(Wrapper):
    """A store that answers 503 to every change while it is busy, as an overloaded S3 does."""

    busy = False

    async def around(self, op: Op, call: Callable[[], Awaitable[Any]]) -> Any:
        """Refuse, or do it."""
        if self.busy and op.changes:
            raise Unknown(f"s3://bucket did not say whether {op.key} changed: 503 Slow Down")
        return await call()


def test_a_checkpointer_whose_store_answers_503_keeps_what_it_has_and_goes_on() -> None:
    store = Busy(MemStore())
    ck = Checkpointer(store)
    ck.save(1, {"w": np.ones(3)})
    store.busy = True
    with pytest.raises(StoreError, match="503 Slow Down") as caught:
        ck.save(2, {"w": np.zeros(3)})
    assert "\n" not in str(caught.value)
    assert ck.steps() == [1] and ck.restore()["w"].tolist() == [1, 1, 1]
    store.busy = False
    ck.save(2, {"w": np.zeros(3)})
    assert ck.steps() == [1, 2]


def test_a_vault_whose_store_answers_503_keeps_what_it_has_and_goes_on() -> None:
    store = Busy(MemStore())
    vault = blocking(Vault(bytes(32)))
    vault.open(store)
    vault.put("old", b"old")
    store.busy = True
    with pytest.raises(StoreError) as caught:
        vault.put("new", b"new")
    assert "\n" not in str(caught.value)
    store.busy = False
    vault.put("new", b"new")
    assert [bytes(vault.get(path)) for path in ("old", "new")] == [b"old", b"new"]


@pytest.mark.slow
def test_the_command_ends_with_two_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(Path(STATE).read_bytes()[:2000])
    words = ["data", "ckpt", "save", str(tmp_path / "cut.safetensors"), "--store", str(tmp_path / "s"), "--step", "1"]
    code = "from assay.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
