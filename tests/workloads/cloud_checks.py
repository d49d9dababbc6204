"""What every reader of clouds is held to: the points as written, or one line, at once and without much memory."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.workloads.cloud_files import read_cloud

Cloud = np.ndarray[Any, Any]

POINTS = np.array([[1.5, -2.25, 3.0], [0.0, 0.5, -0.125], [1e3, 2e-3, -7.0], [4.0, 5.0, 6.0]], np.float32)


def read(folder: Path, name: str, content: bytes) -> Cloud:
    path = folder / name
    path.write_bytes(content)
    return read_cloud(path)


def check(cloud: Cloud, expected: Any, dtype: Any) -> None:
    assert cloud.dtype == dtype
    assert cloud.flags.c_contiguous
    assert cloud.flags.writeable
    assert np.array_equal(cloud, np.asarray(expected, dtype))


class TookTooLong(BaseException):
    """Not an Exception, so that no reader can take it for a complaint about the file."""


@contextmanager
def at_once(seconds: float = 5.0) -> Iterator[None]:
    """What takes longer fails instead of holding up everything else."""

    def stop(*_: Any) -> None:
        raise TookTooLong(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(folder: Path, name: str, content: bytes, why: str = "") -> None:
    """The file is refused with one line that names it: at once, and without much memory."""
    path = folder / name
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with at_once(), pytest.raises(ValueError, match=why or None) as caught:
            read_cloud(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    names_it(caught.value, path)
    assert peak < 2**24 + 100 * len(content)


def names_it(error: ValueError, path: Path) -> None:
    line = str(error)
    assert len(line.splitlines()) == 1
    if line.startswith(f"cannot read {path}: "):  # the system would not
        return
    assert line.startswith(f"{path}: ")
    assert "; expected " in line  # what is wrong, and what would be right


def read_or_refused(folder: Path, name: str, content: bytes) -> None:
    """Whatever a file holds, it is a cloud of finite points or one line that names the file."""
    try:
        with at_once():
            cloud = read(folder, name, content)
    except ValueError as error:
        names_it(error, folder / name)
    else:
        assert cloud.ndim == 2
        assert cloud.shape[1] == 3
        assert len(cloud) >= 1
        assert cloud.dtype in (np.float32, np.float64)
        assert np.isfinite(cloud).all()
