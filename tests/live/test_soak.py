"""Operators do what they do, engines die, and no stream is lost, doubled or without a reason for its end."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from tests.live import soak


def check(found: soak.Soak) -> None:
    assert not found.wrong, found.wrong[:5]
    assert sum(found.ends.values()) == found.asked and found.ends["forgotten"] == 0
    assert found.ends["complete"] > found.asked / 2
    assert not any(engine["aboard"] for engine in found.overview["engines"])
    assert found.overview["queue"] == found.running == 0
    assert found.files[-1] <= found.files[0] + 3 * found.streams  # a client's, and those kept to engines


def test_a_short_soak_loses_nothing():
    found = soak.run(10.0, 16, 3, speed=2.0, pause=0.2)
    check(found)
    assert (
        found.done.total() >= 2
    )  # an engine was killed or stalled, and something else was done, even on a busy machine


@pytest.mark.slow
def test_ten_minutes_with_two_hundred_streams_lose_nothing_and_leave_memory_flat():
    """An hour is `python -m tests.live.soak 3600`."""
    found = soak.run(600.0, 200, 4)
    check(found)
    assert found.seconds >= 600.0 and all(found.done[name] for name in ("kill", "stall", "add", "drain", "revoke",
                                                                       "break", "replace", "move"))  # fmt: skip
    assert found.growth < 8 << 20
