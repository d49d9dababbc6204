from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.clock import Stuck, VirtualClock, run_virtual

waits = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0, 1e6]), max_size=5), max_size=5)


@given(waits, st.sampled_from([0.0, 1e9]))
def test_sleepers_wake_in_the_order_of_their_times_whoever_sleeps(each: list[list[float]], start: float) -> None:
    clock = VirtualClock()
    woken: list[tuple[float, int]] = []

    async def sleeper(name: int, naps: list[float]) -> None:
        for nap in naps:
            await (clock.sleep(nap) if name % 2 else asyncio.sleep(nap))  # asyncio's own timers, too
            woken.append((clock.now(), name))

    async def main() -> None:
        await asyncio.gather(*(sleeper(name, naps) for name, naps in enumerate(each)))

    run_virtual(main(), start)
    assert [when for when, _ in woken] == sorted(when for when, _ in woken)
    for name, naps in enumerate(each):
        told = [start + sum(naps[: i + 1]) for i in range(len(naps))]
        assert [when for when, who in woken if who == name] == pytest.approx(told, rel=1e-12)


def test_two_runs_have_the_same_order_of_events() -> None:
    def events() -> list[int]:
        seen: list[int] = []

        async def one(name: int) -> None:
            await VirtualClock().sleep(1.0)
            seen.append(name)
            await asyncio.to_thread(seen.append, 100 + name)

        async def main() -> None:
            await asyncio.gather(*map(one, range(6)))

        run_virtual(main())
        return seen

    assert events() == events()


def test_a_timeout_cancels_a_sleeper_and_time_stays_there() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(VirtualClock().sleep(100), timeout=2)
        await VirtualClock().sleep(1)
        return VirtualClock().now()

    assert run_virtual(main()) == 3.0


def test_a_wait_that_nobody_ends_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="no timer is left"):
        run_virtual(main())


def test_an_error_in_a_thread_reaches_whoever_waits() -> None:
    async def main() -> None:
        await asyncio.to_thread(int, "seven")

    with pytest.raises(ValueError, match="seven"):
        run_virtual(main())
