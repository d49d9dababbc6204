"""A folder as a store: what a crash, a full disk or a stranger may leave behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from assay.data.interface import StoreError
from assay.data.store.blocking import blocking
from assay.data.store.directory import ASIDE, FORGOTTEN, DirStore
from assay.record.errors import BadInput


def test_a_put_is_synced_before_it_has_a_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    store = DirStore(tmp_path)

    def told(name: str, real: object) -> object:
        def call(*args: object) -> object:
            what = args[0]
            if name == "fsync":
                what = Path(f"/proc/self/fd/{what}").readlink()
            events.append(f"{name} {(Path(str(what)).relative_to(tmp_path).parts or ('.',))[0]}")
            return real(*args)  # type: ignore[operator]

        return call

    monkeypatch.setattr(os, "fsync", told("fsync", os.fsync))
    monkeypatch.setattr(os, "link", told("link", os.link))
    asyncio.run(store.put("log/1", b"x", if_absent=True))
    assert events == [f"fsync {ASIDE}", "fsync .", f"link {ASIDE}", "fsync log"]


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = blocking(DirStore(tmp_path))
    store.put("before", b"kept")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(StoreError, match="No space left on device; free some space there and run it again"):
            store.put("after", b"lost")
    assert [meta.key for meta in store.list()] == ["before"]
    assert list((tmp_path / ASIDE).iterdir()) == []
    store.put("after", b"now")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda file, views: real(file, [views[0][:3]]))
    store = blocking(DirStore(tmp_path))
    store.put("slow", [b"abcdefgh", b"", b"ij", b"klmnop"])
    assert bytes(store.get("slow")) == b"abcdefghijklmnop"


def test_what_lies_aside_for_a_day_goes_and_what_is_fresh_stays(tmp_path: Path) -> None:
    DirStore(tmp_path)
    old, fresh = tmp_path / ASIDE / "1-1-1", tmp_path / ASIDE / "2-2-2"
    for path in (old, fresh):
        path.write_bytes(b"half")
    long_ago = old.stat().st_mtime - FORGOTTEN - 60
    os.utime(old, (long_ago, long_ago))
    store = blocking(DirStore(tmp_path))
    assert not old.exists() and fresh.exists()
    assert store.list() == []


def test_a_key_that_is_the_folder_of_another_is_one_line(tmp_path: Path) -> None:
    store = blocking(DirStore(tmp_path))
    store.put("a", b"x")
    with pytest.raises(StoreError, match="one key is the folder of another"):
        store.put("a/b", b"y")
    store.put("c/d", b"x")
    with pytest.raises(StoreError, match="one key is the folder of another"):
        store.put("c", b"y")


def test_a_place_that_cannot_be_a_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="a folder that can be written expected"):
        DirStore(tmp_path / "file" / "store")


WRITER = """
import asyncio, sys
from assay.data.store.directory import DirStore
async def main():
    store = DirStore(sys.argv[1])
    for i in range(10**6):
        await store.put(f"log/{i:06d}", [b"%06d" % i] * 3000, if_absent=True)
        print(i, flush=True)
asyncio.run(main())
"""


def test_after_kill_9_all_that_was_acknowledged_is_there_and_nothing_is_half(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.strip()]
    store = blocking(DirStore(tmp_path))
    found = [meta.key for meta in store.list("log/")]
    assert found[: len(acknowledged)] == [f"log/{i:06d}" for i in acknowledged]
    assert len(found) <= len(acknowledged) + 1
    for key in found:
        assert bytes(store.get(key)) == key.removeprefix("log/").encode() * 3000
