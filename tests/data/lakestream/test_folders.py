"""Files that grow, come, go and are renamed between runs: every record is in exactly one step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.interface import StoreError
from assay.record.errors import BadInput


def run(*words: object, batch: int = 16) -> None:
    done = CliRunner().invoke(
        command, ["plane", "produce", *map(str, words), "--batch", str(batch)], catch_exceptions=True
    )
    if done.exception is not None:
        raise done.exception


def read(store: Path, *more: str) -> list[str]:
    out = store.with_name("out")
    words = ["plane", "consume", str(store), "--out", str(out), "--json", *more]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    return out.read_text().splitlines()


def lines(name: str, first: int, last: int) -> str:
    return "".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(first, last))


def everything(folder: Path) -> list[str]:
    return sorted(line for path in folder.iterdir() for line in path.read_text().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "corpus"
    made.mkdir()
    (made / "m.jsonl").write_text(lines("m", 0, 36))
    return made


SHARES: list[Sequence[Sequence[str]]] = [[()], [("--name", "p0", "--part", "1/2"), ("--name", "p1", "--part", "2/2")]]


@pytest.mark.parametrize("shares", SHARES)
def test_a_file_that_grew_and_one_that_sorts_before_it_are_published_once(
    folder: Path, tmp_path: Path, shares: Sequence[Sequence[str]]
) -> None:
    store = tmp_path / "plane"
    for share in shares:
        run(store, folder, *share)
    assert sorted(read(store)) == everything(folder)
    with (folder / "m.jsonl").open("a") as file:
        file.write(lines("m", 36, 48))
    for share in shares:
        run(store, folder, *share)
    assert sorted(read(store)) == everything(folder)
    (folder / "a.jsonl").write_text(lines("a", 0, 32))
    for share in [*shares, *shares]:
        run(store, folder, *share)
    assert sorted(read(store)) == everything(folder)


@pytest.mark.parametrize("late", [0, 1])
def test_a_share_that_starts_later_sees_the_same_batches(folder: Path, tmp_path: Path, late: int) -> None:
    store, early = tmp_path / "plane", 1 - late
    run(store, folder, *SHARES[1][early])
    (folder / "a.jsonl").write_text(lines("a", 0, 40))
    (folder / "m.jsonl").rename(folder / "b.jsonl")
    with (folder / "b.jsonl").open("a") as file:
        file.write(lines("m", 36, 50))
    run(store, folder, *SHARES[1][late])
    run(store, folder, *SHARES[1][early])
    assert sorted(read(store)) == everything(folder)


def test_files_that_were_renamed_rotated_or_deleted_are_not_published_again(folder: Path, tmp_path: Path) -> None:
    store, expected = tmp_path / "plane", everything(folder)
    run(store, folder)
    (folder / "m.jsonl").rename(folder / "m.1.jsonl")
    (folder / "m.jsonl").write_text(lines("new m", 0, 5))
    expected += lines("new m", 0, 5).splitlines()
    run(store, folder)
    assert sorted(read(store)) == sorted(expected)
    kept = (folder / "m.1.jsonl").read_text()
    (folder / "m.1.jsonl").unlink()
    run(store, folder)
    (folder / "back.jsonl").write_text(kept + lines("m", 36, 40))
    run(store, folder, batch=7)  # another size of batches is nothing to lose records by
    assert sorted(read(store)) == sorted(expected + lines("m", 36, 40).splitlines())


def test_a_file_that_changed_in_its_middle_is_told_before_more_of_it_is_published(folder: Path, tmp_path: Path) -> None:
    store, path = tmp_path / "plane", folder / "m.jsonl"
    path.write_text(lines("m" * 100, 0, 2000))
    run(store, folder, batch=500)
    before = read(store)
    path.write_text(lines("m" * 100, 0, 2000).replace(" 1000", " 9999") + lines("m", 2000, 2100))
    with pytest.raises(BadInput, match="changed since its records were published"):
        run(store, folder, batch=500)
    assert read(store) == before
    path.write_text("short\n")
    with pytest.raises(BadInput, match="changed since its records were published"):
        run(store, folder)


@pytest.mark.parametrize("shares", SHARES)
def test_a_file_that_is_packed_anew_unpacked_or_mended_goes_on(
    folder: Path, tmp_path: Path, shares: Sequence[Sequence[str]]
) -> None:
    store, texts = tmp_path / "plane", (folder / "m.jsonl").read_text()
    for change in ("first", "packed", "packed otherwise", "unpacked, renamed"):
        for path in list(folder.iterdir()):
            path.unlink()
        if change.startswith("packed"):
            (folder / "m.jsonl.gz").write_bytes(gzip.compress(texts.encode(), 1 if "other" in change else 9))
        else:
            (folder / ("a.jsonl" if "renamed" in change else "m.jsonl")).write_text(texts)
        for share in shares:
            run(store, folder, *share)
        assert sorted(read(store)) == sorted(lines("m", 0, 36).splitlines())


def test_a_file_that_is_packed_and_takes_the_name_of_one_that_takes_its_name_is_known(
    folder: Path, tmp_path: Path
) -> None:
    store, other = tmp_path / "plane", lines("b", 0, 9)
    (folder / "b.jsonl").write_text(other)
    run(store, folder)
    (folder / "b.jsonl").rename(folder / "m.jsonl.txt")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress((folder / "m.jsonl").read_bytes()))
    (folder / "m.jsonl.txt").rename(folder / "m.jsonl")
    run(store, folder)
    assert sorted(read(store)) == sorted(lines("m", 0, 36).splitlines() + other.splitlines())


@pytest.mark.parametrize("change", ["swapped", "packed"])
def test_files_of_another_name_are_known_when_they_changed_places_or_were_packed(
    folder: Path, tmp_path: Path, change: str
) -> None:
    store, one, other = tmp_path / "plane", folder / "m.jsonl", folder / "b.jsonl"
    other.write_text(lines("b", 0, 9))
    run(store, folder, "--name", "ada")
    before = sorted(read(store))
    if change == "swapped":
        one.rename(tmp_path / "aside")
        other.rename(one)
        (tmp_path / "aside").rename(other)
    else:
        (folder / "m.jsonl.gz").write_bytes(gzip.compress(one.read_bytes()))
        one.unlink()
        other.unlink()
    with pytest.raises(BadInput, match="was published by 'ada'"):
        run(store, folder, "--name", "bob")
    assert sorted(read(store)) == before


def test_a_record_that_could_not_be_prepared_is_published_when_it_is_mended(folder: Path, tmp_path: Path) -> None:
    store, convert, path = tmp_path / "plane", tmp_path / "own.py", folder / "m.jsonl"
    convert.write_text("import json\ndef checked(record):\n    json.loads(record)\n    return record\n")
    path.write_text(lines("m", 0, 35) + "{'text': 'bad'}\n" + lines("m", 36, 40))
    with pytest.raises(BadInput, match=r"record 35 of .* could not be prepared"):
        run(store, folder, "--map", f"{convert}:checked")
    path.write_text(lines("m", 0, 40))
    run(store, folder, "--map", f"{convert}:checked")
    assert sorted(read(store)) == everything(folder)


def test_half_a_line_of_json_is_published_when_it_is_whole(folder: Path, tmp_path: Path) -> None:
    store, late = tmp_path / "plane", folder / "z.jsonl"
    late.write_text(lines("z", 0, 2) + '{"text": "z ')
    with pytest.raises(BadInput, match=r"z\.jsonl ends in the middle of a line"):
        run(store, folder)
    before = read(store, "--steps", "2")  # whole batches; the producer has not ended
    assert before == lines("m", 0, 32).splitlines()
    with late.open("a") as file:
        file.write('2"}\n{"text": "z 3"}')  # whole, and without an end of its line
    run(store, folder)
    assert sorted(read(store)) == everything(folder)


def test_a_file_belongs_to_one_name_and_a_share_to_one(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "plane"
    run(store, folder, "--name", "ada")
    with pytest.raises(BadInput, match="published by 'ada' in this plane; go on with --name ada"):
        run(store, folder, "--name", "bob")
    (folder / "m.jsonl").rename(folder / "z.jsonl")
    with pytest.raises(BadInput, match="published by 'ada'"):
        run(store, folder, "--name", "bob")
    (tmp_path / "other.jsonl").write_text(lines("o", 0, 5))
    run(store, tmp_path / "other.jsonl", "--name", "bob")
    assert len(read(store)) == 41
    two = tmp_path / "two"
    run(two, folder, "--part", "1/2")
    with pytest.raises(BadInput, match="had share 1/2, not 2/2"):
        run(two, folder, "--part", "2/2")
    with pytest.raises(BadInput, match="share 1/2 is published by 'p0'"):
        run(two, folder, "--part", "1/2", "--name", "other")
    with pytest.raises(BadInput, match="batches have 16 records, not 8"):
        run(two, folder, "--part", "2/2", "--name", "other", batch=8)


def test_a_file_named_twice_and_the_plane_in_its_own_folder_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(folder / "plane", "corpus", folder / "m.jsonl", "corpus/../corpus/m.jsonl")
    monkeypatch.chdir(folder)
    run("plane", ".")
    assert len(read(folder / "plane")) == 36


def test_a_place_of_an_earlier_version_is_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    from assay.data.lakestream.sources import Source

    with pytest.raises(BadInput, match="earlier version"):
        list(Source([folder / "m.jsonl"], 4, 1)({"batches": 2, "files": {}}))


def test_a_share_whose_file_is_gone_before_it_was_published_is_told(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "plane"
    run(store, folder, *SHARES[1][0])
    (folder / "m.jsonl").rename(tmp_path / "away")
    (folder / "n.jsonl").write_text(lines("n", 0, 3))
    with pytest.raises((BadInput, StoreError), match="bring it back"):
        run(store, folder, *SHARES[1][1])
    (tmp_path / "away").rename(folder / "m.jsonl")
    run(store, folder, *SHARES[1][1])
    run(store, folder, *SHARES[1][0])
    assert sorted(read(store)) == everything(folder)
