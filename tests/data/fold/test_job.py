"""`assay dedup` on people's files: what stays, what goes and why, over several runs and damaged inputs."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assay.cli.data import verb
from assay.data.fold.compare import _why
from assay.data.fold.generate import corpus
from assay.data.fold.job import deduplicate
from assay.data.interface import StoreError
from assay.data.store.directory import DirStore
from assay.record.errors import BadInput

TEXTS = [text for some in corpus(240, seed=11, words=40) for text in some]


def written(path: Path, texts: list[str], first: int = 0) -> Path:
    rows = [json.dumps({"id": f"d{first + i}", "text": text}) + "\n" for i, text in enumerate(texts)]
    data = "".join(rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def told(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(verb("dedup"), [str(one) for one in arguments])
    if isinstance(result.exception, BadInput):
        assert code == 2
        return str(result.exception)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def ids(out: Path, what: str = "kept") -> list[str]:
    return [json.loads(line)["id"] for path in sorted((out / what).glob("*")) for line in path.read_text().splitlines()]


def run(out: Path, *inputs: Path, batch: int = 50) -> int:
    """Documents that were decided now."""
    return asyncio.run(deduplicate(inputs, out / "out", str(out / "index"), batch=batch)).documents


def test_every_document_stays_or_goes_and_who_goes_is_told_why(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS)
    out = tmp_path / "out"
    answer = json.loads(told(path, "--out", out, "--index", tmp_path / "index", "--json"))
    assert answer["dedup"]["documents"] == 240
    stay, gone = ids(out), ids(out, "duplicates")
    assert sorted([*stay, *gone]) == sorted(f"d{i}" for i in range(240))
    assert len(gone) == answer["dedup"]["duplicates"] > 20
    for file in (out / "duplicates").iterdir():
        for line in file.read_text().splitlines():
            row = json.loads(line)
            assert row["of"] in stay and 0.7 <= row["similarity"] <= 1
    lines = {line for file in (out / "kept").iterdir() for line in file.read_text().splitlines()}
    assert lines <= set(path.read_text().splitlines())


def test_next_week_it_goes_on_with_what_is_new(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", TEXTS[:120])
    second = written(tmp_path / "b.jsonl.gz", TEXTS[120:], 120)
    assert run(tmp_path / "two", first) == 120
    assert run(tmp_path / "two", first) == 0
    assert run(tmp_path / "two", first, second) == 120
    assert run(tmp_path / "one", first, second) == 240
    whole = set(ids(tmp_path / "one" / "out"))
    assert len(whole ^ set(ids(tmp_path / "two" / "out"))) <= 2  # batches begin elsewhere, and the graph is approximate
    with first.open("a") as file:
        file.write(json.dumps({"id": "more", "text": "a line that was written behind the others"}) + "\n")
    assert run(tmp_path / "two", first, second) == 1
    assert "more" in ids(tmp_path / "two" / "out")


def test_all_kinds_of_files_hold_the_same_documents(tmp_path: Path) -> None:
    texts = TEXTS[:30]
    written(tmp_path / "a.jsonl", texts)
    written(tmp_path / "a.jsonl.gz", texts)
    pl.DataFrame({"int_id_column": range(30), "contents": texts}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("\n".join(texts))
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    for i, text in enumerate(texts):
        (folder / f"{i:03d}.txt").write_text(text)
    (folder / "picture.bin").write_bytes(b"\x89PNG\0\0")
    kept = []
    for kind in ("a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt", "folder"):
        more = ["--lines"] if kind == "a.txt" else []
        answer = json.loads(
            told(tmp_path / kind, "--out", tmp_path / f"o{kind}", "--index", tmp_path / f"i{kind}", "--json", *more)
        )
        assert answer["dedup"]["documents"] == 30
        kept.append(answer["dedup"]["kept"])
    assert len(set(kept)) == 1


def test_an_index_keeps_what_it_was_made_with_and_what_bands_cannot_decide_the_graph_does(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS[:20])
    where = (path, "--out", tmp_path / "o", "--index", tmp_path / "i")
    assert json.loads(told(*where, "--verify", "none", "--json"))["dedup"]["documents"] == 20
    assert "Nothing new" in told(*where)
    assert "made with verify none, by graph" in told(*where, "--tau", "0.7", code=2)
    assert "must be verified" in told(path, "--out", tmp_path / "p", "--index", tmp_path / "j",
                                      "--verify", "none", "--by", "bands", code=2)  # fmt: skip


def test_a_file_that_ends_early_costs_one_line_and_nothing_else(tmp_path: Path) -> None:
    good = written(tmp_path / "a.jsonl.gz", TEXTS[:120])
    whole = good.read_bytes()
    good.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="no whole gzip file"):
        run(tmp_path, good, batch=10)
    assert 0 < len(ids(tmp_path / "out")) < 120
    good.write_bytes(whole)
    run(tmp_path, good, batch=10)
    assert sorted([*ids(tmp_path / "out"), *ids(tmp_path / "out", "duplicates")]) == sorted(f"d{i}" for i in range(120))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"id": 1, "text": "fine"}\n{"id": 2, "te', "line 2"),
        ("a.jsonl", b'{"id": 1, "words": "fine"}\n', "--field"),
        ("a.jsonl", b"[1]\n", "one JSON object a line"),
        ("a.parquet", b"PAR1 and then nothing", "no whole parquet file"),
        ("a.jsonl.gz", b"not zipped at all", "no whole gzip file"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    message = told(tmp_path / name, "--out", tmp_path / "o", "--index", tmp_path / "i", code=2)
    assert said in message and name in message and "\n" not in message


def test_a_file_that_changed_behind_the_index_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS[:40])
    run(tmp_path, path)
    before = ids(tmp_path / "out")
    written(path, ["something else", *TEXTS[1:60]])
    with pytest.raises(BadInput, match="first 40 documents"):
        run(tmp_path, path)
    assert ids(tmp_path / "out") == before


class Killed(BaseException):
    """The process is gone."""


def test_a_parquet_file_that_ends_early_costs_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    first, path = written(tmp_path / "a.jsonl", TEXTS[:20]), tmp_path / "b.parquet"
    pl.DataFrame({"id": [f"p{i}" for i in range(20)], "contents": TEXTS[20:40]}).write_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"b\.parquet is no whole parquet file: [^\n]*fetch it again$"):
        run(tmp_path, first, path)
    path.write_bytes(whole)
    assert run(tmp_path, first, path) == 20
    assert len({*ids(tmp_path / "out"), *ids(tmp_path / "out", "duplicates")}) == 40


def test_a_full_disk_costs_one_line_and_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS[:60])
    run(tmp_path / "whole", path, batch=20)
    write, left = os.writev, 0

    def full(file: int, views: Any) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, views)

    monkeypatch.setattr(os, "writev", full)
    for left in (1, 3, 4, 2):  # noqa: B007 - counted down by the disk
        with pytest.raises(StoreError, match="No space left on device; free some space") as error:
            run(tmp_path / "full", path, batch=20)
        assert "\n" not in str(error.value)
    run(tmp_path / "full", path, batch=20)
    for what in ("kept", "duplicates"):
        assert ids(tmp_path / "full" / "out", what) == ids(tmp_path / "whole" / "out", what)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_run_that_is_killed_anywhere_leaves_what_an_undisturbed_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS[:60])
    run(tmp_path / "whole", path, batch=20)
    put, left = DirStore._put, 0

    def dying(self: DirStore, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and how == "before":
            raise Killed
        done = put(self, *args)
        if left == 0:
            raise Killed
        return done

    monkeypatch.setattr(DirStore, "_put", dying)
    for left in (2, 4, 3, 5):  # noqa: B007 - counted down by the store
        with pytest.raises(Killed):
            run(tmp_path / "killed", path, batch=20)
    run(tmp_path / "killed", path, batch=20)
    for what in ("kept", "duplicates"):
        assert ids(tmp_path / "killed" / "out", what) == ids(tmp_path / "whole" / "out", what)


@pytest.mark.slow
def test_real_processes_that_are_killed_leave_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", TEXTS[:120])
    run(tmp_path / "whole", path, batch=20)
    script = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from assay.data.store.directory import DirStore\n"
        "from assay.data.fold.job import deduplicate\n"
        "left, put = int(sys.argv[2]), DirStore._put\n"
        "def dying(self, *args):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return put(self, *args)\n"
        "DirStore._put = dying\n"
        "at = Path(sys.argv[1])\n"
        "asyncio.run(deduplicate([at.parent / 'a.jsonl'], at / 'out', str(at / 'index'), batch=20))\n"
    )
    for when in (5, 4, 3, 6, 2):
        ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "killed"), str(when)], check=False)
        assert ended.returncode == -9
    run(tmp_path / "killed", path, batch=20)
    for what in ("kept", "duplicates"):
        assert ids(tmp_path / "killed" / "out", what) == ids(tmp_path / "whole" / "out", what)


def test_who_was_not_faster_on_every_batch_ties() -> None:
    told = [("a", 1.0, 9.0, "no"), ("b", 1.0, 8.0, "yes"), ("c", 0.5, 99.0, "no")]
    rows = [dict(zip(("method", "recall", "documents_s", "durable"), one, strict=True)) for one in told]
    assert "a finds 100.0%" in _why(rows, {"a": [1, 1], "b": [2, 2]}, 5)
    assert "1.1 times as fast as b" in _why(rows, {"a": [1, 1], "b": [2, 2]}, 5)
    assert "a tie with b." in _why(rows, {"a": [1, 2], "b": [2, 1]}, 5)
    assert "nothing to find" in _why(rows, {}, 0)


def test_two_runs_into_one_folder_do_not_meet(tmp_path: Path) -> None:
    import fcntl

    path = written(tmp_path / "a.jsonl", TEXTS[:5])
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BadInput, match="another run"):
        run(tmp_path, path)
    os.close(held)
    assert run(tmp_path, path) == 5
