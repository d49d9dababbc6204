"""A folder for what real processes write while they work, gone at the end of the block.

Who is killed cannot tidy up: the folder stays, but nobody holds its lock any more, and the next block removes it.

>>> with scratch() as folder:
...     _ = (folder / "store").write_text("so far")
>>> folder.exists()
False
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "assay-scratch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder among the temporary ones; those of killed processes go first."""
    sweep()
    folder, held = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep() -> None:
    """Remove the folders whose makers are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, gone by now, or on a file system without locks
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def _locked() -> tuple[Path, int]:
    """A new folder and what holds its lock. Someone who sweeps just then may be quicker: then another one."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(held) and folder.exists():
                return folder, held
            os.close(held)


def _lock(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system: then nobody else gets one either
        return True
    return True
