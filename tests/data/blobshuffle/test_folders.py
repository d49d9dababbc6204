"""Partitions that were written before, sources that were renamed or changed: nothing is lost, nothing comes twice."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from assay.data import repartition
from assay.data.engine.alone import alone
from assay.record.errors import BadInput


def lines(first: int, last: int) -> str:
    return "".join(f'{{"user": "u{number % 7}", "n": {number}}}\n' for number in range(first, last))


def numbers(out: Path) -> list[int]:
    return sorted(json.loads(line)["n"] for path in out.glob("part-*") for line in path.read_text().splitlines())


def shuffled(sources: Sequence[Path], out: Path, parts: int = 4, **options: str) -> None:
    repartition(sources, "user", out, parts=parts, **options)


def test_a_folder_of_another_shuffle_is_refused(tmp_path: Path) -> None:
    log, other, out = tmp_path / "in.jsonl", tmp_path / "other.jsonl", tmp_path / "out"
    log.write_text(lines(0, 50))
    other.write_text(lines(50, 60))
    shuffled([log], out, parts=8)
    for sources, parts, store, why in (
        ([log], 4, "", "key user in 8 partitions"), ([other], 8, "", "holds the records of"),
        ([log], 8, str(tmp_path / "store"), "another store"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=why):
            shuffled(sources, out, parts, store=store)
        assert numbers(out) == list(range(50))
    log.write_text(lines(0, 80))
    shuffled([log], out, parts=8)
    assert numbers(out) == list(range(80))
    log.rename(tmp_path / "renamed.jsonl")
    shuffled([tmp_path / "renamed.jsonl"], out, parts=8)
    assert numbers(out) == list(range(80))
    (out / ".partitions.json").unlink()  # as an earlier version left it
    with pytest.raises(BadInput, match=r"holds part-00004.jsonl of another shuffle"):
        shuffled([tmp_path / "renamed.jsonl"], out, parts=4)


def test_a_source_that_was_renamed_is_not_shuffled_twice_and_one_changed_far_behind_is_told(tmp_path: Path) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    log.write_text(lines(0, 6000))
    shuffled([log], out, store=store)
    renamed = log.rename(tmp_path / "renamed.jsonl")
    shuffled([renamed], out, store=store)
    assert numbers(out) == list(range(6000))
    renamed.write_text(lines(0, 5000) + lines(5000, 6100).replace('"n": 5999', '"n": 9999'))
    with pytest.raises(BadInput, match="changed since part of it was shuffled"):
        shuffled([renamed], out, store=store)


def test_one_run_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    log, out = tmp_path / "in.jsonl", tmp_path / "out"
    log.write_text(lines(0, 5))
    with alone(out), pytest.raises(BadInput, match="another run is writing"):
        shuffled([log], out)


def test_files_that_take_each_others_names_or_are_packed_come_once(tmp_path: Path) -> None:
    one, other, out, store = tmp_path / "m.jsonl", tmp_path / "a.jsonl", tmp_path / "out", str(tmp_path / "store")
    one.write_text(lines(0, 50))
    shuffled([one], out, store=store)
    one.rename(other)
    one.write_text(lines(50, 70))  # a new file in the place of the old one
    shuffled([other, one], out, store=store)
    assert numbers(out) == list(range(70))
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    shuffled([other, one, tmp_path / "." / "m.jsonl"], out, store=store)
    assert numbers(out) == list(range(70))
    packed = tmp_path / "z.jsonl.gz"
    packed.write_bytes(gzip.compress((one.read_text() + lines(70, 80)).encode()))
    one.unlink()
    shuffled([packed], out, store=store)
    assert numbers(out) == list(range(80))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(other.read_bytes())  # a file of its own, whatever is in it
    shuffled([copy, other], out, store=store)
    assert numbers(out) == sorted([*range(80), *range(50, 70)])
