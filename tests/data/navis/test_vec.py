"""`assay data vec` on a user's files: what it answers, what it says of bad ones, and that the next run goes on."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.compare import command as compare
from assay.cli.data import command
from assay.data.disk import PagedFile
from assay.data.interface import StoreError
from assay.data.navis.vector_index import VectorIndex
from assay.data.store.directory import DirStore
from assay.data.vectors import drifting, write_vectors
from assay.record.errors import AssayError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = drifting(260, 20, intrinsic=6, clusters=5, seed=1).vectors
    write_vectors(tmp_path / "first.fvecs", rows[:160])
    write_vectors(tmp_path / "more.fbin", rows[160:])
    np.save(tmp_path / "queries.npy", rows[::40])
    return tmp_path


def answered(*words: Any) -> Any:
    done = CliRunner().invoke(command, ["vec", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def refused(*words: Any) -> str:
    with pytest.raises(AssayError) as told:
        CliRunner().invoke(command, ["vec", *map(str, words)], catch_exceptions=False)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_build_insert_and_search(files: Path) -> None:
    index = files / "index"
    assert answered("build", index, files / "first.fvecs")["index"]["vectors"] == 160
    assert answered("insert", index, files / "more.fbin")["index"]["added"] == 100
    again = answered("insert", index, files / "more.fbin")
    assert again["index"]["added"] == 0 and "already" in again["why"]
    found = answered("search", index, files / "queries.npy", "-k", 3, "--out", files / "ids.npy")
    assert np.load(files / "ids.npy")[:, 0].tolist() == list(range(0, 260, 40))
    assert [row["squared"] for row in found["table"]] == [0.0] * 7


def test_bad_files_are_told_in_one_line(files: Path) -> None:
    index = files / "index"
    assert "build it: assay data vec build" in refused("search", index, files / "queries.npy")
    (files / "cut.fvecs").write_bytes((files / "first.fvecs").read_bytes()[:-7])
    assert "cut, or" in refused("build", index, files / "cut.fvecs")
    answered("build", index, files / "first.fvecs")
    assert "already" in refused("build", index, files / "first.fvecs")
    write_vectors(files / "wide.fvecs", np.ones((4, 21), np.float32))
    assert "wide.fvecs has vectors of 21 numbers; 20 expected" in refused("insert", index, files / "wide.fvecs")
    assert "queries have 21 numbers" in refused("search", index, files / "wide.fvecs")
    rows = np.ones((70, 20), np.float32)
    rows[66, 3] = np.nan
    write_vectors(files / "nan.fvecs", rows)
    assert "nan.fvecs: row 66 has a number" in refused("insert", index, files / "nan.fvecs")
    with VectorIndex(index) as opened:
        assert len(opened) == 160  # none of the rows before it, either
    assert "no size" in refused("insert", index, files / "more.fbin", "--memory", "much")
    assert "missing.fvecs" in refused("insert", index, files / "missing.fvecs")


def test_a_full_disk_loses_nothing_and_the_next_run_goes_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = files / "index"
    answered("build", index, files / "first.fvecs")
    put, puts = DirStore.put, []

    async def full(self: DirStore, key: str, *rest: Any, **options: Any) -> Any:
        puts.append(key)
        if len(puts) > 2:
            raise StoreError(f"cannot write {key}: No space left on device")
        return await put(self, key, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DirStore, "put", full)
        assert "No space left" in refused("insert", index, files / "more.fbin")
    went_on = answered("insert", index, files / "more.fbin")
    assert went_on["index"]["there_before"] == 64 and went_on["index"]["vectors"] == 260

    def no_room(self: PagedFile, *rest: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_vectors(files / "third.fvecs", drifting(40, 20, seed=9).vectors)
    with monkeypatch.context() as patched:
        patched.setattr(PagedFile, "write", no_room)
        assert "No space left" in refused("insert", index, files / "third.fvecs")
    assert answered("insert", index, files / "third.fvecs")["index"]["vectors"] == 300


def test_pages_changed_behind_the_index_are_told(files: Path) -> None:
    index = files / "index"
    answered("build", index, files / "first.fvecs")
    for file in (index / "pages").iterdir():
        file.write_bytes(file.read_bytes()[:4096] + bytes(4096) + bytes(file.stat().st_size - 8192))
    assert "is not what was written" in refused("search", index, files / "queries.npy")


@pytest.mark.parametrize("harm", [lambda old: b"", lambda old: old[:-70], lambda old: bytes([old[0] ^ 1]) + old[1:]])
def test_codes_changed_behind_the_index_are_told(files: Path, harm: Callable[[bytes], bytes]) -> None:
    index = files / "index"
    answered("build", index, files / "first.fvecs")
    for file in (index / "nodes").iterdir():
        file.write_bytes(harm(file.read_bytes()))
    assert "is not what was written" in refused("search", index, files / "queries.npy")


def test_compare_says_who_inserts_fastest_and_why(files: Path) -> None:
    rows = drifting(240, 16, seed=2).vectors
    write_vectors(files / "some.fvecs", rows)
    words = ["data", "--job", "vec", "--input", str(files / "some.fvecs"), "--inserts", "32", "--json"]
    done = CliRunner().invoke(compare, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert {row["design"] for row in found["table"]} >= {"navis", "packed", "layout", "entrance", "cache"}
    assert "KiB" in found["why"]
