"""The alarm: rings at its time, not before, once, and not at all when it is off."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from assay.live import mock_clock
from assay.live.mock_clock import Alarm, Clock


@pytest.fixture(params=["kernel", "loop"])
def timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "loop":
        monkeypatch.setattr(mock_clock.sys, "platform", "elsewhere")


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


def test_it_rings_at_its_time_and_not_before(timer: None):
    async def test():
        clock = Clock(speed=10.0)
        rung: list[float] = []
        done = asyncio.Event()

        def ring() -> None:
            rung.append(clock.now())
            if len(rung) == 5:
                done.set()
            else:
                alarm.set(due[len(rung)])

        alarm = Alarm(clock, ring)
        due = [clock.now() + 0.03 * n for n in (1, 2, 2, 4, 7)]
        alarm.set(due[0])
        await done.wait()
        # An event loop's own timer may ring within a millisecond before; what it rings for looks at the clock again.
        assert all(at > moment - 0.02 for at, moment in zip(rung, due, strict=True))
        alarm.close()

    run(test())


def test_it_can_be_set_anew_and_switched_off(timer: None):
    async def test():
        clock = Clock()
        rung: list[float] = []
        alarm = Alarm(clock, lambda: rung.append(clock.now()))
        alarm.set(clock.now() + 0.005)
        alarm.set(math.inf)
        await asyncio.sleep(0.03)
        assert not rung
        alarm.set(clock.now() + 60.0)
        alarm.set(clock.now() - 1.0)
        async with asyncio.timeout(120):
            while not rung:
                await asyncio.sleep(0.001)
        alarm.close()
        assert len(rung) == 1

    run(test())


def test_the_clock_runs_as_fast_as_it_is_told():
    clock = Clock(speed=100.0)
    before, wall = clock.now(), time.monotonic()
    assert clock.wall(before) <= wall
    assert clock.wall(clock.now() + 100.0) == pytest.approx(time.monotonic() + 1.0, abs=0.5)
