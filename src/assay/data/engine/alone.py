"""One run to an output folder: two would write the same files.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, alone(Path(folder)):
...     with alone(Path(folder)):
...         pass
Traceback (most recent call last):
assay.record.errors.BadInput: another run is writing to ...; wait for it, or use another one
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.record.errors import BadInput, unreadable


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder, and hold it while it is written to; BadInput where somebody else does.

    Its content may be removed meanwhile, and the folder itself just before the end: who waited at the door of one that
    is gone makes a new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, alone(Path(folder, "out")):
    ...     Path(folder, "out").is_dir()
    True
    """
    while not _same(held := _held(out), out):
        os.close(held)
    try:
        yield
    finally:
        os.close(held)


def _held(out: Path) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise unreadable(out, error, right="a folder that can be written expected") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise BadInput(f"another run is writing to {out}; wait for it, or use another one") from None
    return held


def _same(held: int, out: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), out.stat())
    except FileNotFoundError:
        return False
