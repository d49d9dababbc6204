"""One index and its outputs: a folder belongs to one index, no line is there twice, what is read is checked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from assay.data.engine.sealing import sealed, unsealed
from assay.data.engine.version_log import Damaged
from assay.data.fold.corpus import files
from assay.data.fold.decide import Settings
from assay.data.fold.generate import corpus
from assay.data.fold.index import Fold
from assay.data.fold.job import deduplicate
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput

TEXTS = [text for some in corpus(400, seed=3, words=40) for text in some]


def written(path: Path, first: int, last: int, prefix: str = "d") -> Path:
    rows = [json.dumps({"id": f"{prefix}{i}", "text": TEXTS[i % 400]}) + "\n" for i in range(first, last)]
    path.write_text("".join(rows))
    return path


def lines(*outs: Path) -> list[str]:
    return [line for out in outs for path in (out / "kept").glob("*") for line in path.read_text().splitlines()]


def run(out: Path, index: Path, *inputs: Path, batch: int = 50, settings: Settings | None = None) -> int:
    return asyncio.run(deduplicate(inputs, out, str(index), batch=batch, settings=settings)).documents


def test_an_output_folder_belongs_to_one_index(tmp_path: Path) -> None:
    data, out = written(tmp_path / "a.jsonl", 0, 100), tmp_path / "out"
    run(out, tmp_path / "one", data)
    before = lines(out)
    for index in ("two", "one-that-was-made-anew"):
        with pytest.raises(BadInput, match="belongs to another index"):
            run(out, tmp_path / index, data)
    (out / ".index").unlink()  # as an earlier version left it
    with pytest.raises(BadInput, match="files that this index did not write"):
        run(out, tmp_path / "two", data)
    other = written(tmp_path / "b.jsonl", 100, 400)
    run(tmp_path / "elsewhere", tmp_path / "two", other)  # an index with more batches than the files speak of
    with pytest.raises(BadInput, match="files that this index did not write"):
        run(out, tmp_path / "two", other)
    assert lines(out) == before and run(out, tmp_path / "one", data) == 0 and lines(out) == before


def test_an_index_that_lost_batches_or_its_settings_sweeps_nothing(tmp_path: Path) -> None:
    out, index, old = tmp_path / "out", tmp_path / "index", tmp_path / "old"
    run(out, index, data := written(tmp_path / "a.jsonl", 0, 50))
    shutil.copytree(index, old)
    run(out, index, written(tmp_path / "a.jsonl", 0, 250))
    before = lines(out)
    with pytest.raises(BadInput, match="batches that the index has lost"):
        run(out, old, data)
    (index / "settings").unlink()
    with pytest.raises(Damaged, match="lost its settings"):
        run(out, index, data)
    assert lines(out) == before


def test_two_runs_at_once_over_one_index_leave_no_line_twice(tmp_path: Path) -> None:
    inputs = [written(tmp_path / "a.jsonl", 0, 300), written(tmp_path / "b.jsonl", 100, 400)]
    code = """
import asyncio, sys
from pathlib import Path
from assay.data.fold.job import deduplicate
out, index, *inputs = sys.argv[1:]
asyncio.run(deduplicate([Path(one) for one in inputs], Path(out), index, batch=20))
"""
    outs = [tmp_path / "left", tmp_path / "right"]
    many = [
        subprocess.Popen([sys.executable, "-c", code, str(out), str(tmp_path / "index"), str(one), str(other)])
        for out, one, other in zip(outs, inputs, reversed(inputs), strict=True)
    ]
    assert [process.wait(120) for process in many] == [0, 0]
    found = [json.loads(line)["id"] for line in lines(*outs)]
    fold = Fold()
    from assay.data.store.address import open_store

    asyncio.run(fold.open(open_store(str(tmp_path / "index"))))
    assert len(found) == len(set(found)) == fold.kept


def test_what_lost_a_race_is_taken_away_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, raced = written(tmp_path / "a.jsonl", 0, 60), []
    admit = Fold.admit

    async def late(self: Fold, *arguments: object, **options: object) -> object:
        if "before" not in options:
            return await admit(self, *arguments)  # type: ignore[arg-type]
        before = options["before"]

        async def write(version: int, answer: object) -> None:
            await before(version, answer)  # type: ignore[operator]
            if not raced:
                raced.append(version)
                other = Fold()
                await other.open(self.store)
                await admit(other, ["quick"], ["a document of somebody quicker that is like no other one"])

        return await admit(self, *arguments, **options | {"before": write})  # type: ignore[arg-type]

    monkeypatch.setattr(Fold, "admit", late)
    run(tmp_path / "out", tmp_path / "index", data, batch=100)
    found = lines(tmp_path / "out")
    assert raced == [0] and len(found) == len(set(found)) > 20


@pytest.mark.parametrize("verify", ["exact", "minhash"])
@pytest.mark.parametrize("older", [False, True])
def test_an_index_whose_shingles_were_zeroed_is_noticed(verify: str, older: bool) -> None:
    store, settings = MemStore(), Settings(by="bands", verify=verify)

    async def filled() -> Fold:
        fold = Fold(settings)
        await fold.open(store)
        if older:
            fold.__class__ = type("Older", (Fold,), {})
        await fold.admit([f"d{i}" for i in range(60)], TEXTS[:60])
        return fold

    fold = asyncio.run(filled())
    key = next(key for key in store.objects if key.startswith("batch/"))
    segment = asyncio.run(_segment(store, key, "shingles" if verify == "exact" else "slots"))
    whole = bytearray(store.objects[key])

    async def copies() -> np.ndarray:
        again = Fold(settings)
        await again.open(store)
        if older:
            again._sums.clear()
        whole[segment.offset : segment.offset + segment.length] = bytes(segment.length)
        store.objects[key] = bytes(whole)
        return await again.observe([f"copy{i}" for i in range(60)], TEXTS[:60])

    assert fold.kept
    with pytest.raises(Damaged, match="is damaged"):
        asyncio.run(copies())


async def _segment(store: MemStore, key: str, name: str) -> object:
    from assay.data.engine.segments import open_blob

    return (await open_blob(store, key)).segments[name]


def test_settings_that_changed_by_a_bit_are_noticed_and_those_of_an_earlier_version_read() -> None:
    store = MemStore()
    asyncio.run(Fold(Settings(tau=0.8)).open(store))
    whole = store.objects["settings"]
    store.objects["settings"] = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
    with pytest.raises(Damaged, match="settings is damaged"):
        asyncio.run(Fold().open(store))
    assert msgspec.msgpack.decode(unsealed("", whole), type=Settings).tau == 0.8
    store.objects["settings"] = msgspec.msgpack.encode(Settings(tau=0.8))
    again = Fold()
    asyncio.run(again.open(store))
    assert again.settings.tau == 0.8 and unsealed("", sealed(b"a")) == b"a"


def test_outputs_are_no_inputs_and_a_file_that_keeps_its_dates_is_read_when_it_changed(tmp_path: Path) -> None:
    data = written(tmp_path / "a.jsonl", 0, 40)
    assert run(tmp_path / "out", tmp_path / "index", tmp_path) == 40
    assert run(tmp_path / "out", tmp_path / "index", tmp_path) == 0
    with pytest.raises(BadInput, match="written by this command"):
        run(tmp_path / "out", tmp_path / "index", tmp_path / "out")
    before = data.stat()
    data.write_text(data.read_text().replace('"d7"', '"e7"'))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BadInput, match="is not what it was"):
        run(tmp_path / "out", tmp_path / "index", data)
    assert files([data, tmp_path]).count(data) == 1
