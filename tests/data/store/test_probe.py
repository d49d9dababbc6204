"""`assay data probe` leaves a store as it was, whatever lies there and however it ends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from assay.data.commands import probe
from assay.data.commands.probe import command
from assay.data.crash.faulty import Fault, Faulty, Kind
from assay.data.interface import StoreError
from assay.data.store.directory import DirStore

REQUESTS = 3
CHANGES = 2 * (REQUESTS + 1) + 1  # a put and a delete of each, and the put that is refused


def objects(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def probed(folder: Path, fault: Fault | None = None, progress: Any = lambda done, total: None) -> Any:
    """A probe, perhaps one that dies at a change."""

    def dies() -> None:
        raise StoreError("gone")

    opened = patch.object(probe, "open_store", lambda url: Faulty(DirStore(url, fsync=False), fault, die=dies))
    words = [str(folder), "--requests", str(REQUESTS)]
    with opened, patch.object(probe, "LARGE", 1 << 16), command.make_context("x", words, obj=progress) as context:
        return command.invoke(context)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (f"probe/{'0' * 32}", f"probe/{uuid4().hex}-notes", f"probe/{uuid4().hex}/mine", "probe-1", "data/0"):
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_bytes(b"somebody's")
        os.utime(tmp_path / "store" / name, (0, 1))
    return tmp_path / "store"


def test_a_probe_leaves_what_others_keep_and_nothing_of_its_own(folder: Path) -> None:
    before = objects(folder)
    assert not probed(folder)["fails"] and objects(folder) == before
    assert sorted(path.name for path in folder.iterdir()) == [".aside", "data", "probe", "probe-1"]


@pytest.mark.parametrize("at", range(CHANGES))
def test_what_a_killed_one_leaves_is_one_object_that_a_later_one_deletes(folder: Path, at: int) -> None:
    before = objects(folder)
    for kind in (Kind.BEFORE, Kind.AFTER):
        with pytest.raises(StoreError, match="gone"):
            probed(folder, Fault(at, kind))
    left = set(objects(folder)) - set(before)
    assert len(left) <= 2
    probed(folder)
    assert set(objects(folder)) - set(before) == left  # whose it is cannot be known yet
    for name in left:
        os.utime(folder / name, (0, time.time() - probe.FORGOTTEN - 1))
    probed(folder)
    assert objects(folder) == before


def test_a_probe_that_is_interrupted_leaves_nothing(folder: Path) -> None:
    before = objects(folder)
    waited: list[Any] = []

    class Interrupted:
        """The main thread's wait, which Ctrl-C ends while a put is on its way."""

        def __init__(self, measuring: Any) -> None:
            self.measuring = measuring

        def result(self) -> Any:
            if not waited:
                waited.append(self.measuring)
                raise KeyboardInterrupt
            return self.measuring.result()

    run, name = asyncio.run_coroutine_threadsafe, "run_coroutine_threadsafe"
    with patch.object(asyncio, name, lambda *some: Interrupted(run(*some))), pytest.raises(KeyboardInterrupt):
        probed(folder)
    assert waited[0].done() and objects(folder) == before
