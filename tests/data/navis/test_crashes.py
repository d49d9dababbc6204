"""After any crash: no edge leads nowhere, acknowledged vectors are found, pages are what was written."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data.crash.faulty import Fault, Kind
from assay.data.crash.lab import Case, cases, examine, filmed, replay
from assay.data.crash.processes import examine_processes
from assay.data.navis.crashing import Growing
from assay.data.navis.pages import Table
from assay.data.navis.vector_index import VectorIndex


def test_nothing_is_lost() -> None:
    film = filmed(Growing, 50, 0)
    kinds = {f"{frame.op.name} {frame.op.key}".partition("/")[0] for frame in film.frames}
    assert kinds == {
        "put log",
        "put pages",
        "put nodes",
        "put log-state",
        "delete nodes",
        "delete log",
        "delete log-state",
    }
    every = cases(Growing, len(film.frames), 50, 0, mixes=4)
    assert [found for case in every[:: len(every) // 5] + every[-3:] if (found := replay(Growing, case, film))] == []


@pytest.mark.parametrize("ops", [20, 30])
def test_the_last_insertion_lands_when_its_successor_has_recovered(ops: int) -> None:
    """The successor finds all of its vectors there and has nothing to write: a record of nothing could not be read."""
    film = filmed(Growing, ops, 0)
    last = max(i for i, frame in enumerate(film.frames) if frame.op.name == "put" and frame.op.key.startswith("log/"))
    assert replay(Growing, Case(ops, 0, (Fault(last, Kind.LATE),)), film) is None


def test_who_dies_leaves_no_file_open() -> None:
    case = Case(50, 0, (Fault(20, Kind.AFTER), Fault(1, Kind.BEFORE)))
    replay(Growing, case)
    gc.collect()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        replay(Growing, case)
    gc.collect()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= before


@pytest.mark.slow
def test_nothing_is_lost_in_more_than_three_hundred_changes() -> None:
    report = examine(Growing, ops=350, mixes=100)
    assert report.findings == [] and report.changes >= 300


@pytest.mark.slow
def test_nothing_is_lost_in_real_processes() -> None:
    assert examine_processes("assay.data.navis.crashing:Growing", ops=50, points=40) == (40, [])


class InPlace(Growing):
    """Writes a changed page over the one that the last state names."""

    async def checkpoint(self) -> None:
        settle = self.mine.settle

        def at_once(old: Table, new: Table) -> None:
            settle(old, new)
            places = np.concatenate([new.edge_place, new.vector_place])
            self.mine.free = sorted({*self.mine.free, *(places[places >= 0] & ((1 << 40) - 1)).tolist()})

        self.mine.settle = at_once  # type: ignore[method-assign]
        await super().checkpoint()


class Hasty(Growing):
    """Promises before the record is durable."""

    async def insert(self, ids: Any, vectors: Any, **options: Any) -> int:
        self.promised.extend(ids.tolist())
        return await super().insert(ids, vectors, **options)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        self.promised = promised
        await super().work(ops, promised, role)


@pytest.mark.parametrize("wrong", [InPlace, Hasty])
def test_the_lab_finds_an_index_that_is_careless(wrong: type[Growing]) -> None:
    film = filmed(wrong, 50, 0)
    begun = [frame.op.key for frame in film.frames].index("log/00000000000000000001")  # the first index is there
    deaths = [Case(50, 0, (Fault(at, Kind.BEFORE),)) for at in range(begun, len(film.frames))]
    assert any(replay(wrong, case, film) for case in deaths)


WRITER = """
import sys, numpy as np
from assay.data.navis.vector_index import VectorIndex
rows = np.random.default_rng(5).normal(size=(4000, 32)).astype(np.float32)
with VectorIndex(sys.argv[1], write=True, memory=1 << 16) as index:
    for first in range(len(index), len(rows), 8):
        print(index.insert(rows[first:first + 8])[-1], flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_that_it_said(tmp_path: Path) -> None:
    rows = np.random.default_rng(5).normal(size=(4000, 32)).astype(np.float32)
    VectorIndex.build(tmp_path / "index", rows[:200]).close()
    for turn in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "index")], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(3 + turn)]
            time.sleep(0.01 * turn)  # die at different moments
            os.kill(child.pid, signal.SIGKILL)
            said += child.stdout.readlines()
        last = max((int(line) for line in said if line.strip()), default=-1)
        with VectorIndex(tmp_path / "index") as index:
            assert len(index) > last
            some = np.arange(0, len(index), 7)
            found, far = index.search(rows[some], 1)
            assert np.array_equal(found[:, 0], some) and not far.any()
