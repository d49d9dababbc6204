"""Files as people have them, into `dedup`, `plane` and `shuffle`: read, refused by name, or passed by and listed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.data import command as data
from assay.cli.data import verb
from assay.data.engine.inputs import opened
from assay.record.errors import AssayError, BadInput

LINES = [{"id": f"d{i}", "user": f"u{i % 3}", "text": f"document {i} says things {i * 7} of its own {i * 13}"}
         for i in range(20)]  # fmt: skip
JSONL = "".join(json.dumps(row) + "\n" for row in LINES)


def zstd(content: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    packed: bytes = arrow.compress(content, "zstd", asbytes=True)
    return packed


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd
}  # fmt: skip


def run(layer: str, path: Path, *more: object) -> tuple[int, str]:
    """Exit code and what was said of a layer's command on a file, in a folder beside it."""
    at = (path if path.is_dir() else path.parent).with_name("at")
    words = {
        "dedup": [path, "--out", at / "clean", "--index", at / "index"],
        "plane": ["produce", at / "plane", path, "--batch", 4],
        "shuffle": ["--from", path, "--key", "user", "--parts", 2, "--out", at / "parts", "--no-costs"],
    }[layer]
    done = CliRunner().invoke(verb(layer), [str(word) for word in [*words, *more]])
    if isinstance(done.exception, AssayError):
        assert "\n" not in str(done.exception)
        return 2, str(done.exception)
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.exit_code, done.output


def records(layer: str, path: Path) -> list[str]:
    """The ids that a layer has now, in their order."""
    at = path.parent.with_name("at")
    if layer == "plane":
        words = ["plane", "consume", str(at / "plane"), "--out", str(at / "out")]
        assert CliRunner().invoke(data, words).exit_code == 0
        rows = (at / "out").read_text().splitlines()
    else:
        found = (at / "clean" / "kept").glob("*") if layer == "dedup" else (at / "parts").glob("part-*")
        rows = [row for one in found for row in one.read_text("utf-8", "replace").splitlines()]
    return sorted(json.loads(row)["id"] for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


LAYERS = ["dedup", "plane", "shuffle"]
EVERY = sorted(str(row["id"]) for row in LINES)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("pack", list(PACKS))
def test_packed_files_in_capitals_and_utf_16_are_read(folder: Path, layer: str, pack: str) -> None:
    path = folder / f"A.JSONL{pack.upper()}"
    path.write_bytes(PACKS[pack](JSONL.encode("utf-16")))
    assert run(layer, path)[0] == 0 and records(layer, path) == EVERY


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_packed_otherwise_or_cut_is_named(folder: Path, layer: str) -> None:
    for name, content, why in (
        ("a.jsonl.lz4", b"x", "packed by lz4"), ("a.jsonl.zip", b"PK", "packed by zip"),
        ("a.jsonl.xz", lzma.compress(JSONL.encode())[:-20], "no whole xz file"),
        ("a.jsonl.bz2", b"nothing", "no whole bzip2 file"),
        ("a.jsonl", b"\xff\xfe{\x00\x00\xdc\n\x00", "encoding"),
    ):  # fmt: skip
        shutil.rmtree(folder.with_name("at"), ignore_errors=True)
        (folder / name).write_bytes(content)
        code, said = run(layer, folder / name)
        assert code == 2 and why in said and name in said, said


def test_csv_gives_documents_to_dedup_and_is_refused_where_json_is_meant(folder: Path) -> None:
    path = folder / "a.csv"
    path.write_text('id,text\nd1,"of two\nlines, and a comma"\nd2,something else altogether now\n')
    assert run("dedup", path)[0] == 0 and records("dedup", path) == ["d1", "d2"]
    assert run("shuffle", path) == (2, f"{path} is CSV; JSON lines or parquet expected")
    path.write_text("id,text\nd1,fine words are here\nd2,more,than,named\nd3\nd4,other words are there\n")
    code, said = run("dedup", path, "--bad", "skip")
    assert code == 1 and "bad 3" in said and records("dedup", path) == ["d1", "d1", "d2", "d4"]


BAD = b'{"id": "n", "user": "a", "text": null}\n{"id": "b", "user": "b", "text": "bad \xff"}\n[1]\n{"id": "c", "us\n'


@pytest.mark.parametrize(("layer", "count"), [("dedup", 4), ("shuffle", 2)])
def test_bad_rows_stop_or_are_passed_by_counted_and_listed(folder: Path, layer: str, count: int) -> None:
    path = folder / "a.jsonl"
    half = JSONL.encode().splitlines(keepends=True)
    path.write_bytes(b"".join(half[:10]) + BAD + b"".join(half[10:]))
    code, said = run(layer, path)
    assert code == 2 and ("line 11" in said or ":13" in said)
    code, said = run(layer, path, "--bad", "skip")
    assert code == 1 and f"bad {count}" in said, said
    assert set(records(layer, path)) >= set(EVERY)
    at = folder.with_name("at")
    listed = list((at / "clean" / "bad").glob("*")) if layer == "dedup" else [at / "parts" / "bad.jsonl"]
    rows = [json.loads(row)["bad"] for one in listed for row in one.read_text().splitlines()]
    assert len(rows) == count and all("a.jsonl" in row for row in rows)
    if layer == "dedup":
        assert run(layer, path, "--bad", "skip")[0] == 0  # listed once


def test_a_file_that_changed_blocks_nobody_who_skips(folder: Path) -> None:
    path, other = folder / "a.jsonl", folder / "b.jsonl"
    path.write_text(JSONL)
    assert run("dedup", folder)[0] == 0 and run("plane", folder)[0] == 0
    path.write_text(JSONL.replace('"d3"', '"e3"'))
    other.write_text(json.dumps({"id": "new", "text": "another one that nobody has seen before"}) + "\n")
    for layer in ("dedup", "plane"):
        assert run(layer, folder)[0] == 2
        assert run(layer, folder, "--bad", "skip")[0] == 1
        assert "new" in records(layer, path) and len(set(records(layer, path))) == len(records(layer, path))
    listed = (folder.with_name("at") / "plane" / "bad").glob("*")
    assert "changed since its records were published" in next(listed).read_text()


def test_what_is_read_anew_because_it_changed_is_not_told_as_a_copy_of_itself(folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text(JSONL)
    assert run("dedup", path)[0] == 0
    path.write_text(JSONL.replace('"d3"', '"e3"'))
    assert "documents 1," in run("dedup", path, "--bad", "skip")[1]
    gone = [row for one in (folder.with_name("at") / "clean" / "duplicates").glob("*") for row in one.open()]
    assert [json.loads(row)["id"] for row in gone] == ["e3"]  # its text is d3's


def test_a_row_that_comes_again_is_a_copy_of_itself_and_wholly_alike(folder: Path) -> None:
    first, later = folder / "a.jsonl", folder / "b.jsonl"
    row = json.dumps({"id": "n", "text": "a row that somebody has written twice"}) + "\n"
    first.write_text(row * 2)
    later.write_text(row)
    assert run("dedup", first)[0] == run("dedup", later)[0] == 0
    gone = [row for one in (folder.with_name("at") / "clean" / "duplicates").glob("*") for row in one.open()]
    assert list(map(json.loads, gone)) == [{"id": "n", "of": "n", "similarity": 1.0}] * 2


def test_a_shuffle_that_skips_passes_a_changed_file_and_half_a_line_by(folder: Path) -> None:
    path, other, store = folder / "a.jsonl", folder / "b.jsonl", ("--store", folder.with_name("blobs"))
    path.write_text(JSONL)
    assert run("shuffle", path, *store)[0] == 0
    path.write_text(JSONL.replace('"d3"', '"e3"'))
    other.write_text('{"id": "new", "user": "u"}\n{"id": "torn", "us')
    both = ("--from", other, *store)
    code, said = run("shuffle", path, *both)
    assert code == 2 and "has changed since part of it was shuffled" in said
    code, said = run("shuffle", path, *both, "--bad", "skip")
    assert code == 1 and "bad 2" in said and records("shuffle", path) == sorted([*EVERY, "new"])
    with other.open("a") as file:
        file.write('er": "v"}\n')
    path.write_text(JSONL)
    assert run("shuffle", path, *both)[0] == 0 and records("shuffle", path) == sorted([*EVERY, "new", "torn"])


def test_shares_that_skip_pass_damaged_and_changed_files_by(folder: Path) -> None:
    first = folder / "a.jsonl"
    first.write_text(JSONL)
    shares = [("--name", f"p{i}", "--part", f"{i + 1}/2") for i in (0, 1)]
    assert [run("plane", folder, *share)[0] for share in shares] == [0, 0]
    first.write_text(JSONL.replace('"d3"', '"e3"'))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(JSONL.replace('"d', '"g').encode() * 9)[:200])
    (folder / "c.jsonl").write_text("".join(f'{{"id": "c{i}"}}\n' for i in range(9)))
    for share in shares:
        code, said = run("plane", folder, *share)
        assert code == 2 and "changed since its records were published" in said
    assert [run("plane", folder, *share, "--bad", "skip")[0] for share in shares] == [1, 1]
    found = records("plane", first)
    assert set(found) >= {*EVERY, *(f"c{i}" for i in range(9))} and "e3" not in found
    assert len(set(found)) == len(found) - sum(one.startswith("g") for one in found) + len(
        {one for one in found if one.startswith("g")}
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_packed_and_does_not_say_so_and_archives_are_named(folder: Path, layer: str) -> None:
    packed = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    for name, pack in packed.items():
        (folder / "a.jsonl").write_bytes(pack(JSONL.encode()))
        code, said = run(layer, folder / "a.jsonl")
        assert code == 2 and f"a.jsonl is packed by {name}" in said, said
    (folder / "all.tar.gz").write_bytes(gzip.compress(JSONL.encode()))
    code, said = run(layer, folder / "all.tar.gz")
    assert code == 2 and "all.tar.gz is packed by tar" in said, said
    (folder / "a.jsonl").write_text("BZh is how some begin\n")
    assert "is packed" not in run(layer, folder / "a.jsonl")[1]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_that_does_not_say_so_is_named(folder: Path, layer: str, encoding: str) -> None:
    for name in ("a.jsonl", "a.jsonl.gz"):
        content = JSONL.encode(encoding)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        code, said = run(layer, folder / name)
        assert code == 2 and "UTF-16" in said and name in said, said


def test_records_that_cannot_be_prepared_and_damaged_files_are_passed_by(folder: Path) -> None:
    (folder / "a.jsonl").write_text(JSONL)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(JSONL.encode() * 9)[:200])
    (folder / "c.jsonl").write_text(json.dumps({"id": "last", "text": "x"}) + "\n")
    mine = folder.with_name("mine.py")
    mine.write_text("def some(line):\n    assert b'\"d3\"' not in line\n    return line\n")
    code, said = run("plane", folder, "--bad", "skip", "--map", f"{mine}:some")
    assert code == 1 and "bad 3" in said  # it is in what there is of the damaged one, too
    found = records("plane", folder / "a.jsonl")
    assert "last" in found and "d3" not in found and set(EVERY) - {"d3"} <= set(found)


def test_a_stream_is_utf_8_whatever_it_was(folder: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
        path = folder / "a.txt"
        mark = "\ufeff" if encoding == "utf-16-le" else ""
        path.write_bytes((mark + "größer\n" * 5000).encode(encoding))
        with opened(path) as (stream, _):
            assert stream.read() == ("größer\n" * 5000).encode()
    with pytest.raises(BadInput, match="cannot read"), opened(folder / "none.jsonl"):
        pass
