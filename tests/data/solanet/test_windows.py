"""Windows: read without asking, waited for, and closed to strangers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from assay.data.solanet import windows
from assay.data.solanet.windows import Reader, Window

SECRET = bytes(range(16))


def test_rows_come_whole_in_blocks_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "BLOCK", 100)
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    with Window(SECRET) as window, Reader([window.port], SECRET) as reader:
        window.publish("rows", rows)
        assert np.array_equal(reader.get(0, "rows", 100, (3,), np.float32), rows)
        assert reader.gets > 5 and reader.nbytes == rows.nbytes
        places = np.array([99, 0, 50, 50])
        assert np.array_equal(reader.take(0, "rows", places, (3,), np.float32), rows[places])
        assert len(reader.take(0, "rows", [], (3,), np.float32)) == 0


def test_who_asks_early_waits_until_it_is_published() -> None:
    with Window(SECRET) as window, Reader([window.port], SECRET) as reader:
        found: list[np.ndarray] = []
        asking = threading.Thread(target=lambda: found.append(reader.get(0, "late", 2, (), np.int64)))
        asking.start()
        assert not found
        window.publish("late", np.array([7, 8]))
        asking.join(30)
        assert found[0].tolist() == [7, 8]


def test_a_stranger_gets_nothing() -> None:
    with Window(SECRET) as window, Reader([window.port], bytes(16)) as stranger:
        window.publish("rows", np.ones(4))
        with pytest.raises(ConnectionError):
            stranger.get(0, "rows", 4, (), np.float64)


def test_a_reader_of_a_closed_window_does_not_wait_for_ever() -> None:
    with Reader([], SECRET) as reader:
        with Window(SECRET) as window:
            reader._ports.append(window.port)
            window.publish("rows", np.ones(4))
            reader.get(0, "rows", 4, (), np.float64)
        with pytest.raises(ConnectionError):
            reader.get(0, "never", 4, (), np.float64)
