"""`assay data plane` on files of one's own, whole and damaged, and killed on the way."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data import open_store
from assay.data.interface import StoreError
from assay.data.lakestream import produce, slices
from assay.data.lakestream.pace import Fixed
from assay.data.lakestream.sources import Source, records, unpack
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op, Wrapper
from assay.record.errors import BadInput

EXAMPLE = Path(__file__).parents[3] / "examples" / "chats.jsonl"


def told(*words: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(command, ["plane", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def wrong(*words: str) -> str:
    done = CliRunner().invoke(command, ["plane", *words])
    assert isinstance(done.exception, BadInput | StoreError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_every_line_reaches_one_rank_once(tmp_path: Path) -> None:
    store = str(tmp_path / "plane")
    halves = [("--name", f"p{i}", "--part", f"{i + 1}/2") for i in (0, 1)]
    for half in halves:
        told("produce", store, str(EXAMPLE), "--batch", "16", "--ranks", "2", *half)
    for rank in ("0", "1"):
        read = told("consume", store, "--rank", rank, "--world", "2", "--out", str(tmp_path / rank), "--turns", "p0,p1")
        assert read["read"]["steps"] == 25
    lines = [line for rank in ("0", "1") for line in (tmp_path / rank).read_bytes().splitlines()]
    assert sorted(lines) == sorted(EXAMPLE.read_bytes().splitlines())
    again = told("produce", store, str(EXAMPLE), "--batch", "16", "--ranks", "2", *halves[0])
    assert again["published"]["batches"] == 0 and again["published"]["started"] == 2
    kept = told("serve", store, "--once", "--grace", "0", "--retain", "20,22")
    assert {name: kept["plane"][name] for name in ("first_step", "next_step", "deleted")} == {
        "first_step": 20, "next_step": 25, "deleted": 20,
    }  # fmt: skip
    assert "was reclaimed; the plane begins with step 20" in wrong("consume", store)


def test_a_function_of_ones_own_prepares_the_records(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import json\n\ndef user(line):\n    return str(json.loads(line)['chat_id']).encode()\n"
    )
    store = str(tmp_path / "plane")
    told("produce", store, str(EXAMPLE), "--map", f"{tmp_path / 'mine.py'}:user")
    told("consume", store, "--out", str(tmp_path / "out"))
    users = [str(json.loads(line)["chat_id"]) for line in EXAMPLE.read_text().splitlines()]
    assert (tmp_path / "out").read_text().splitlines() == users


def test_a_batch_that_was_deleted_by_hand_is_found(tmp_path: Path) -> None:
    store = tmp_path / "plane"
    told("produce", str(store), str(EXAMPLE))
    next(path for path in (store / "data" / "p0").iterdir()).unlink()
    assert (
        "a visible step can be read does not hold" in told("serve", str(store), "--once", "--grace", "0", code=1)["why"]
    )


def test_records_of_all_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\r\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    (tmp_path / "c.png").write_bytes(b"\x89PNG\n\n")
    assert [list(records(path)) for path in sorted(tmp_path.iterdir())] == [
        [b"one", b"two"], [b'{"a": 1}', b'{"a": 2}'], [b"\x89PNG\n\n"],
    ]  # fmt: skip
    arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"text": ["x", "y"], "n": [1, 2]}), tmp_path / "d.parquet")
    assert list(records(tmp_path / "d.parquet")) == [b'{"text": "x", "n": 1}', b'{"text": "y", "n": 2}']
    (tmp_path / "d.parquet").write_bytes((tmp_path / "d.parquet").read_bytes()[:-20])
    with pytest.raises(BadInput, match="is no parquet file, or was cut"):
        list(records(tmp_path / "d.parquet"))


def test_a_file_that_ends_early_costs_one_line_and_none_of_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"line %d %s\n" % (i, os.urandom(40).hex().encode()) for i in range(400)))
    path, store = tmp_path / "a.jsonl.gz", str(tmp_path / "plane")
    path.write_bytes(whole[: len(whole) // 2])
    assert "ends early or is damaged" in wrong("produce", store, str(path), "--batch", "10")
    before = told("consume", store, "--steps", "5", "--out", str(tmp_path / "out"))
    assert before["read"]["records"] == 50
    path.write_bytes(whole)
    assert told("produce", store, str(path), "--batch", "10")["published"]["batches"] > 0
    told("consume", store, "--out", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == gzip.decompress(whole)


def test_a_file_that_changed_is_noticed_and_one_that_grew_is_read_on(tmp_path: Path) -> None:
    path, store = tmp_path / "a.txt", str(tmp_path / "plane")
    path.write_text("".join(f"{i}\n" for i in range(20)))
    told("produce", store, str(path), "--batch", "5")
    with path.open("a") as file:
        file.write("".join(f"{i}\n" for i in range(20, 30)))
    assert told("produce", store, str(path), "--batch", "5")["published"]["batches"] == 2
    path.write_text("another\n" * 40)
    assert "changed since its records were published" in wrong("produce", store, str(path), "--batch", "5")
    assert "is not named now" in wrong("produce", store, str(EXAMPLE))
    assert told("consume", store)["read"]["records"] == 30


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("consume", "nowhere"), "there is no plane here yet"),
        (("produce", "plane", "nothing.jsonl"), "cannot read nothing.jsonl"),
        (("produce", "plane", str(EXAMPLE), "--part", "3/2"), "is no share"),
        (("produce", "plane", str(EXAMPLE), "--pace", "often"), "is no pace"),
        (("produce", "plane", str(EXAMPLE), "--map", "nothing:at_all"), "cannot load"),
        (("serve", "plane", "--retain", "new"), "is no list of steps"),
    ],
)
def test_bad_input_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told("produce", "plane", str(EXAMPLE))
    assert line in wrong(*words)


class Full(Wrapper):
    """Has no room, or answers 503, from some put on."""

    def __init__(self, inner: Any, room: int) -> None:
        super().__init__(inner)
        self.room = room

    async def around(self, op: Op, call: Any) -> Any:
        self.room -= op.changes
        if op.changes and self.room < 0:
            raise StoreError(f"cannot write {op.key}: no space left on the device")
        return await call()


@pytest.mark.parametrize("room", [1, 2, 3, 7, 10])
def test_where_the_store_is_full_nothing_is_lost_and_the_next_run_goes_on(room: int, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{i}\n" for i in range(40)))
    store, source = MemStore(), Source([path], size=5, slices=1)
    with pytest.raises(StoreError, match="no space left"):
        produce(Full(store, room), "p", source, slices=1, pace=Fixed(0.0))
    produce(store, "p", source, slices=1)
    assert [int(line) for (part,) in slices(store, 0, 1) for line in unpack(part)] == list(range(40))


def counted(cursor: Any) -> Iterator[tuple[list[bytes], int]]:
    for number in range(cursor or 0, 300):
        time.sleep(0.0005)  # so that there is a middle to be killed in
        yield [b"%d" % number], number + 1


def forever(store: str) -> None:
    produce(open_store(store, fsync=False), "p", counted, slices=1, pace=Fixed(0.01))


@pytest.mark.timed  # on a busy machine it may be done before it is killed
def test_a_producer_that_is_killed_again_and_again_publishes_everything_once(tmp_path: Path) -> None:
    store = str(tmp_path / "plane")
    killed = 0
    for patience in (40, 120, 200, 0):
        process = multiprocessing.get_context("fork").Process(target=forever, args=(store,))
        process.start()
        while patience and process.is_alive() and len(list(tmp_path.glob("plane/data/p/*"))) < patience:
            time.sleep(0.001)
        if patience:
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join(60)
        killed += process.exitcode == -signal.SIGKILL
    assert killed == 3
    assert [bytes(part) for (part,) in slices(store, 0, 1)] == [b"%d" % number for number in range(300)]
