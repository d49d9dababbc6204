"""`assay data shuffle` on files of one's own: whole, cut, changed, and on stores that fail."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data import repartition
from assay.data.blobshuffle import compare, jobs
from assay.data.blobshuffle.files import partition_of, read
from assay.data.crash.faulty import Fault, Faulty, Kind
from assay.data.interface import StoreError
from assay.data.store.directory import DirStore
from assay.record.errors import BadInput

EXAMPLE = Path(__file__).parents[3] / "examples" / "visits.jsonl"
PARTS = 4


def lines(count: int, first: int = 0) -> str:
    return "".join(f'{{"user": "u{number % 7}", "n": {number}}}\n' for number in range(first, first + count))


def numbers(out: Path) -> dict[str, list[int]]:
    """What became of each user, in the order of its one partition."""
    found: dict[str, list[int]] = {}
    for path in sorted(out.glob("part-*.jsonl")):
        here = [json.loads(line) for line in path.read_text().splitlines()]
        for user in {row["user"] for row in here}:
            assert user not in found, "a key is in one partition only"
            found[user] = [row["n"] for row in here if row["user"] == user]
    return found


def whole(count: int) -> dict[str, list[int]]:
    return {f"u{user}": list(range(user, count, 7)) for user in range(min(7, count))}


def shuffled(path: Path, out: Path, **options: Any) -> Any:
    return repartition([path], "user", out, parts=PARTS, **options)


def test_the_example_comes_out_whole_and_each_key_in_its_order(tmp_path: Path) -> None:
    words = ["shuffle", "--from", str(EXAMPLE), "--key", "user", "--parts", "8", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    answer = json.loads(done.output)
    assert [row["design"] for row in answer["table"]] == ["native", "blob", "blob + cache"]
    native, plain, ours = answer["table"]
    assert native["puts"] == 0 < native["crossings"] and ours["gets"] < plain["gets"] and ours["puts"] == plain["puts"]
    came = [line for path in sorted(tmp_path.glob("part-*.jsonl")) for line in path.read_text().splitlines()]
    assert sorted(came) == sorted(EXAMPLE.read_text().splitlines())
    for path in tmp_path.glob("part-*.jsonl"):
        visits: dict[str, int] = {}
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert visits.get(row["user"], -1) < row["visit"]
            visits[row["user"]] = row["visit"]
    assert not (tmp_path / ".shuffle").exists()


def test_keys_go_where_kafkas_own_client_puts_them() -> None:
    assert [partition_of(key, 1000) for key in (b"21", b"foobar", b"a-little-bit-long-string", b"abc")] == [
        (hashed & 0x7FFFFFFF) % 1000 for hashed in (-973932308, -790332482, -985981536, 479470107)
    ]


def test_a_cut_line_is_named_and_the_next_run_goes_on(tmp_path: Path) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    log.write_text(lines(5000) + '{"user": "u3", "n"')
    with pytest.raises(BadInput, match=r"in.jsonl:5001: .*; JSON with 'user' expected"):
        shuffled(log, out, store=store)
    log.write_text(lines(6000))  # mended, and longer by now
    done = shuffled(log, out, store=store)
    assert (done.before, done.records) == (5000, 1000)
    assert numbers(out) == whole(6000)


@pytest.mark.parametrize("at", [0, 5])
def test_a_bad_line_that_was_mended_is_shuffled_and_the_file_is_known_when_it_is_renamed(
    tmp_path: Path, at: int
) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    rows = lines(10).splitlines(keepends=True)
    log.write_text("".join([*rows[:at], '{"user": "u3", and more than what will be there\n', *rows[at + 1 :]]))
    with pytest.raises(BadInput, match=f"in.jsonl:{at + 1}: "):
        shuffled(log, out, store=store)
    log.write_text("".join(rows))
    assert shuffled(log, out, store=store).before == at and numbers(out) == whole(10)
    log.rename(other := tmp_path / "renamed.jsonl")
    assert shuffled(other, out, store=store).records == 0 and numbers(out) == whole(10)


def test_a_gzip_that_ends_early_is_told_and_goes_on_when_it_is_whole(tmp_path: Path) -> None:
    log, out, store = tmp_path / "in.jsonl.gz", tmp_path / "out", str(tmp_path / "store")
    data = gzip.compress(lines(20_000).encode())
    log.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match="ends early"):
        shuffled(log, out, store=store)
    log.write_bytes(data)
    assert 0 < shuffled(log, out, store=store).before < 20_000
    assert numbers(out) == whole(20_000)


def test_parquet_keeps_its_types_and_a_cut_one_is_told(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": [f"u{n % 7}" for n in range(500)], "n": pl.Series(range(500), dtype=pl.Int16)})
    table.write_parquet(tmp_path / "in.parquet")
    done = repartition([tmp_path / "in.parquet"], "user", tmp_path / "out", parts=PARTS)
    came = pl.concat([pl.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet"))])
    assert came.sort("n").equals(table) and came.schema == table.schema and sum(done.partitions) == 500
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "in.parquet").read_bytes()[:300])
    with pytest.raises(BadInput, match="cannot be read as parquet"):
        repartition([cut], "user", tmp_path / "other", parts=PARTS)
    with pytest.raises(BadInput, match=r"no column 'who'; it has user, n"):
        repartition([tmp_path / "in.parquet"], "who", tmp_path / "third", parts=PARTS)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
@pytest.mark.parametrize("at", [0, 2, 4, 6])
def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, kind: Kind) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    log.write_text(lines(300))
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "open_store", lambda url: Faulty(DirStore(url, fsync=False), Fault(at, kind), _dies))
        with pytest.raises(StoreError, match="gone"):
            shuffled(log, out, store=store)
    shuffled(log, out, store=store)
    assert numbers(out) == whole(300)


def _dies() -> None:
    raise StoreError("the process is gone")


def test_a_full_disk_is_one_line_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    log.write_text(lines(100))
    shuffled(log, out, store=store)
    log.write_text(lines(300))

    async def full(self: DirStore, key: str, *arguments: Any, **options: Any) -> Any:
        raise StoreError(f"cannot write {key} in {self.root}: {errno.errorcode[errno.ENOSPC]}; free some space there")

    with monkeypatch.context() as patch:
        patch.setattr(DirStore, "put", full)
        with pytest.raises(StoreError, match="free some space"):
            shuffled(log, out, store=store)
    assert numbers(out) == whole(100)
    assert shuffled(log, out, store=store).records == 200
    assert numbers(out) == whole(300)


def test_what_does_not_fit_the_store_is_told(tmp_path: Path) -> None:
    log, out, store = tmp_path / "in.jsonl", tmp_path / "out", str(tmp_path / "store")
    log.write_text(lines(50))
    shuffled(log, out, store=store)
    with pytest.raises(BadInput, match="this store holds a shuffle by key user, parts 4"):
        repartition([log], "n", out, parts=PARTS, store=store)
    log.write_text(lines(50, first=3))
    with pytest.raises(BadInput, match="has changed since part of it was shuffled"):
        shuffled(log, out, store=store)
    with pytest.raises(BadInput, match="cannot read"):
        shuffled(tmp_path / "nothing.jsonl", out)
    with pytest.raises(BadInput, match="do not mix"):
        repartition([log, tmp_path / "a.parquet"], "user", out)


def test_a_key_may_lie_deep_and_be_any_value(tmp_path: Path) -> None:
    log = tmp_path / "in.jsonl"
    log.write_text('{"a": {"b": 3}}\n\n{"a": {"b": "three"}}\n{"a": {"b": null}}\n{"a": 1}\n')
    batches = read(log, "a.b", PARTS)
    assert next(batches).partitions == [partition_of(key, PARTS) for key in (b"3", b"three", b"null")]
    with pytest.raises(BadInput, match=r"in.jsonl:5"):
        next(batches)


def test_designs_side_by_side_on_a_users_records() -> None:
    words = ["--input", str(EXAMPLE), "--key", "user", "--parts", "8", "--rate", "64Mi", "--tasks", "4"]
    context = compare.command.make_context("x", words, obj=lambda done, total: None)
    with context:
        answer = compare.command.invoke(context)
    rows = {row["design"]: row for row in answer["table"]}
    assert rows["claim check"]["usd_per_TiB"] > rows["native"]["usd_per_TiB"] > rows["blob + cache"]["usd_per_TiB"]
    assert rows["native"]["crossings"] > rows["native, follower fetch"]["crossings"] > 1
    assert rows["blob + cache"]["gets_per_blob"] == 1.0 and "native at its best" in answer["why"]
