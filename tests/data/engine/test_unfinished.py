"""Files that somebody writes on while they are read: no half of a line is a record, and every line is one, once."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.engine import inputs
from tests.data.engine.test_inputs import run, zstd

TEXTS = [" ".join(f"{word}{number}" for word in ("ah", "böse", "cœur", "d", "e", "f")) for number in range(5)]
CSV_TEXTS = [f'{text},\n"it", {text}' if number % 2 else text for number, text in enumerate(TEXTS)]
Rows = list[tuple[str, str]]  # as they are in the file, and as they are in a layer


def in_json(texts: list[str]) -> Rows:
    rows = [json.dumps({"user": f"u{number}", "text": text}) for number, text in enumerate(texts)]
    return [(row + "\n", row) for row in rows]


def in_csv(texts: list[str]) -> Rows:
    quoted = ['"' + text.replace('"', '""') + '"' if '"' in text else text for text in texts]
    return [(f"{number},{row}\r\n", text) for number, (row, text) in enumerate(zip(quoted, texts, strict=True))]


CASES: dict[str, tuple[str, str, str, Rows, tuple[str, ...]]] = {
    "plane jsonl": ("plane", "a.jsonl", "", in_json(TEXTS), ()),
    "plane txt": ("plane", "a.txt", "", [(f"{text}\r\n", text) for text in TEXTS], ()),
    "plane numbers": ("plane", "a.jsonl", "", [(f"{number}\n", str(number)) for number in (123, 45, 678, 9)], ()),
    "plane csv": ("plane", "a.csv", "", [(f"{text},x\n", f"{text},x") for text in TEXTS], ()),
    "plane utf-16": ("plane", "a.txt", "utf-16", [(f"{text}\n", text) for text in TEXTS], ()),
    "shares txt": ("shares", "a.txt", "", [(f"{text}\n", text) for text in TEXTS], ()),
    "dedup jsonl": ("dedup", "a.jsonl", "", in_json(TEXTS), ()),
    "dedup txt": ("dedup", "a.txt", "", [(f"{text}\n", text) for text in TEXTS], ("--lines",)),
    "dedup csv": ("dedup", "a.csv", "", in_csv(CSV_TEXTS), ()),
    "dedup utf-16": ("dedup", "a.tsv", "utf-16", [(f"{i}\t{text}\n", text) for i, text in enumerate(TEXTS)], ()),
    "shuffle jsonl": ("shuffle", "a.jsonl", "", in_json(TEXTS), ()),
}


def published(layer: str, path: Path, *more: str) -> int:
    """The exit code of one run; of shares, the worst."""
    if layer == "shares":
        shares = (("--part", f"{share}/2", "--name", f"p{share}") for share in (1, 2))
        return max(run("plane", path, *share, *more)[0] for share in shares)
    return run(layer, path, *more)[0]


def there(layer: str, path: Path, name: str) -> list[str]:
    """What a layer has of the file's records, each as often as it is there."""
    from assay.data.lakestream.files import unpack
    from assay.data.lakestream.jobs import opened
    from assay.data.store.blocking import wait

    at = path.parent.with_name("at")
    if layer in ("plane", "shares"):
        if not (at / "plane").exists():
            return []
        plane = opened(str(at / "plane"))
        consumer = plane.consumer(0, 1)
        parts = [wait(consumer.read(step)) for step in range(plane.manifest.state.next_step)]
        return [record.decode() for slices in parts for part in slices or () for record in unpack(part)]
    folder, pattern = (at / "clean", "kept/*") if layer == "dedup" else (at / "parts", "part-*")
    lines = [line for one in folder.glob(pattern) for line in one.read_text().splitlines()]
    return lines if name.endswith(".jsonl") else [json.loads(line)["text"] for line in lines]


@contextmanager
def fresh(name: str) -> Iterator[Path]:
    """A file's path in a folder of its own, and nothing beside it."""
    home = Path(tempfile.mkdtemp())
    try:
        (home / "in").mkdir()
        with patch("os.fsync"):
            yield home / "in" / name
    finally:
        shutil.rmtree(home)


def whole(case: str) -> tuple[list[bytes], list[str]]:
    """The pieces of a file that end with a record each, the first with all that is before the first record."""
    layer, name, encoding, rows, _ = CASES[case]
    separator = {".csv": ",", ".tsv": "\t"}.get(Path(name).suffix, "")
    head = f"id{separator}text\n" if layer == "dedup" and separator else ""
    encoded = [row.encode("utf-16-le" if encoding else "utf-8") for row, _ in rows]
    mark = codecs.BOM_UTF16_LE if encoding else b""
    encoded[0] = mark + head.encode("utf-16-le" if encoding else "utf-8") + encoded[0]
    return encoded, [record for _, record in rows]


def grown(case: str, cuts: list[int]) -> None:
    """A file that is published at several lengths, and then when all of it is there."""
    layer, name, encoding, rows, words = CASES[case]
    pieces, expected = whole(case)
    content, growing = b"".join(pieces), () if layer == "shuffle" else ("--growing",)
    start = len(pieces[0]) - len(rows[0][0].encode("utf-16-le" if encoding else "utf-8"))
    ends = [len(b"".join(pieces[: number + 1])) for number in range(len(pieces))]
    with fresh(name) as path:
        for cut in [*sorted(cut % len(content) for cut in cuts), len(content)]:
            path.write_bytes(content[:cut])
            code = published(layer, path, *words, *growing)
            found = there(layer, path, name)
            assert sorted(found) == sorted(expected[: len(found)]), (cut, found)  # each once, and none by halves
            ended = sum(end <= cut for end in ends)
            assert len(found) >= ended or code == 2, (cut, found)  # what stops has published whole batches
            if code == 0:  # nothing is left out without a word
                assert cut <= start or cut in ends or len(found) > ended, (cut, found)
        assert code == 0 and sorted(found) == sorted(expected)


@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
@pytest.mark.parametrize("case", CASES)
def test_a_file_that_is_read_between_two_writes_gives_every_record_once(case: str, cuts: list[int]) -> None:
    grown(case, cuts)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_wherever_a_file_is_cut(case: str) -> None:
    content = b"".join(whole(case)[0])
    for cut in range(len(content)):
        grown(case, [cut])


PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("case", ["plane txt", "dedup csv", "dedup txt", "shuffle jsonl"])
def test_a_packed_file_that_is_cut_is_told_and_read_on_when_it_is_whole(case: str, suffix: str) -> None:
    layer, name, _, _, words = CASES[case]
    pieces, expected = whole(case)
    packed = PACKS[suffix](b"".join(pieces))
    for cut in (len(packed) // 3, len(packed) - 9, len(packed) - 1):
        with fresh(name + suffix) as path:
            path.write_bytes(packed[:cut])
            code = published(layer, path, *words)
            found = there(layer, path, name)
            assert code == 2 or sorted(found) == sorted(expected)  # what is cut is the packing's end
            assert sorted(found) == sorted(expected[: len(found)])
            path.write_bytes(packed)
            assert published(layer, path, *words) == 0 and sorted(there(layer, path, name)) == sorted(expected)


@pytest.mark.parametrize("case", ["plane txt", "plane csv", "plane numbers", "shares txt", "dedup txt", "dedup csv"])
def test_a_last_line_without_an_end_counts_unless_somebody_writes_on(case: str) -> None:
    layer, name, _, _, words = CASES[case]
    pieces, expected = whole(case)
    content = b"".join(pieces).rstrip(b"\r\n")
    command = "plane" if layer == "shares" else layer
    with fresh(name) as path, path.open("wb") as writer:
        writer.write(content)
        writer.flush()
        (path.parent / "b.jsonl").write_text('{"text": "another file, behind it"}\n')
        code, said = run(command, path.parent, *words)
        assert code == 1 and f"1 unfinished line held back in {path.resolve()}" in " ".join(said.split()), said
        assert any("another file" in record for record in there(layer, path, "b.jsonl"))
    with fresh(name) as path:
        path.write_bytes(content)
        assert published(layer, path, *words, "--growing") == 1
        assert sorted(there(layer, path, name)) == sorted(expected[:-1])
        assert published(layer, path, *words) == 0  # also where nothing about the file has changed
        assert sorted(there(layer, path, name)) == sorted(expected)
        assert published(layer, path, *words, "--growing") == 0  # it was a record before
        path.write_bytes(b"".join(pieces))
        assert published(layer, path, *words) == 0 and sorted(there(layer, path, name)) == sorted(expected)


def test_what_is_written_behind_half_a_line_while_it_is_read_is_no_record() -> None:
    """A file's end may move between two reads: the other half of the line would come as a line of its own."""
    opened = inputs.opened

    @contextmanager
    def growing(path: Path, *words: str, **more: str):  # type: ignore[no-untyped-def]
        with opened(path, *words, **more) as (stream, raw):

            def lines() -> Iterator[bytes]:
                for line in stream:
                    yield line
                    if not line.endswith(b"\n"):
                        yield b"2\n"

            yield lines(), raw

    with fresh("a.txt") as path:
        path.write_text("one 1\ntwo ")
        with patch("assay.data.lakestream.files.opened", growing):
            assert published("plane", path) == 0
        assert there("plane", path, "a.txt") == ["one 1", "two "]
