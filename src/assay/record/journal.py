"""The journal: cases finished by a run that has not ended yet.

A run writes each finished case at once into a folder of its own and holds a lock on it while it lives:

    $ASSAY_HOME/unfinished/<key>/<fingerprint>/<run>/<case>.json

A folder whose lock is free belongs to a run that died or was interrupted; the next run of the same study, code, size
and machine takes over what it finished. Two living runs never see each other's folders. When a run ends well its
result is in the store, and its folder and those it took over are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from assay.record.errors import StoreFailed
from assay.record.store import home, write_whole


class Journal:
    """The finished cases of one run, and those inherited from runs that ended early."""

    def __init__(self, key: str, fingerprint: str, *, fresh: bool = False) -> None:
        self._study = home() / "unfinished" / key
        self.folder = self._study / fingerprint / secrets.token_hex(4)
        self._lock = _lock(self.folder, create=True)
        self._heirlooms: dict[Path, int] = {}  # folders of dead runs and the locks that now make them ours
        self._finished: dict[str, Any] = {}
        self.inherited = 0
        self._take_over(fingerprint, fresh)

    def _take_over(self, fingerprint: str, fresh: bool) -> None:
        for folder in sorted(self._study.glob("*/*")):
            if folder == self.folder or (lock := _lock(folder)) is None:
                continue
            self._heirlooms[folder] = lock
            if fresh or folder.parent.name != fingerprint:
                continue
            for path in folder.glob("*.json"):
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    self._finished[path.stem] = msgspec.json.decode(path.read_bytes())

    def get(self, case: str) -> Any | None:
        """What an earlier run measured for this case, or None."""
        rows = self._finished.get(_name(case))
        self.inherited += rows is not None
        return rows

    def put(self, case: str, rows: Any) -> None:
        """Keep a finished case; once this returns it survives kill -9."""
        write_whole(self.folder / f"{_name(case)}.json", msgspec.json.encode(rows))
        self._finished[_name(case)] = rows

    @property
    def finished(self) -> int:
        """How many cases are safe, inherited ones included: an interrupt may fall between writing one and noting it."""
        return len(self._finished.keys() | {path.stem for path in self.folder.glob("*.json")})

    def forget(self) -> None:
        """The result is stored: the cases are no longer needed one by one."""
        for folder in (self.folder, *self._heirlooms):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in {f.parent for f in (self.folder, *self._heirlooms)} | {self._study}:
            with contextlib.suppress(OSError):  # not empty: another run lives there
                folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.finished:
            self.forget()  # nothing to hand on, so leave no trace
        for lock in (self._lock, *self._heirlooms.values()):
            if lock is not None:
                os.close(lock)


def _lock(folder: Path, *, create: bool = False) -> int | None:
    """Hold the folder's lock until closed or until this process dies; None if a living run holds it."""
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    except OSError as error:
        if create:
            raise StoreFailed(
                f"cannot write {folder}: {error.strerror}; free space or set ASSAY_HOME to another folder"
            ) from error
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _name(case: str) -> str:
    return hashlib.blake2b(case.encode(), digest_size=12).hexdigest()
