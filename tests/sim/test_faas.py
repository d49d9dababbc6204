"""Functions as clouds run them: warm if they can be, capped, ended when late, called again when they died, billed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from assay.record.errors import BadInput
from assay.record.timing import tree_seconds
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.faas import MB, Bill, CallFailed, Context, Modelled, OutOfMemory, Processes
from tests.sim import faas_handlers

MODULE = "tests.sim.faas_handlers"
ROOT = Path(__file__).parents[2]


def on(handler: str, use: Callable[[Processes], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Something done on a platform of real processes."""

    async def main() -> Any:
        async with Processes(f"{MODULE}:{handler}", imports=[MODULE], **{"slots": 1, **options}) as platform:
            return await use(platform), platform.settle()

    return asyncio.run(main())


def test_an_idle_instance_serves_the_next_call_and_more_at_once_need_more_of_them() -> None:
    async def use(platform: Processes) -> list[bytes]:
        one_by_one = [await platform.call(b"") for _ in range(3)]
        together = await asyncio.gather(platform.call(b""), platform.call(b""))
        return one_by_one + sorted(together)

    answers, bill = on("count", use, slots=2)
    assert answers == [b"1", b"2", b"3", b"1", b"4"]
    assert (bill.calls, bill.cold, bill.retried) == (5, 2, 0) and bill.seconds > 0


def test_a_kept_instance_has_its_memory_and_is_paid_for_until_it_is_released() -> None:
    async def use(platform: Processes) -> Any:
        first = [
            await platform.call(b"", pin="a"),
            await platform.call(b"", pin="b"),
            await platform.call(b"", pin="a"),
        ]
        with pytest.raises(BadInput, match="3 functions are to be kept in 2 slots"):
            await platform.call(b"", pin="c")
        assert len(platform.pids()) == 2
        platform.release()
        return first, await platform.call(b"")

    (first, after), bill = on("count", use, slots=2)
    assert first == [b"1", b"1", b"2"] and after in (b"2", b"3"), "whoever was kept serves the next call"
    assert bill.cold == 2


def test_a_killed_function_is_called_again(tmp_path: Path) -> None:
    answer, bill = on("die_once", lambda platform: platform.call(str(tmp_path / "seen").encode()))
    assert answer == b"alive" and (bill.retried, bill.cold, bill.calls) == (1, 2, 2)


def test_a_function_holds_no_more_than_its_memory() -> None:
    async def use(platform: Processes) -> None:
        assert await platform.call(b"1000000") == b"1000000"
        with pytest.raises(OutOfMemory, match="needs more than its 201,326,592 bytes"):
            await platform.call(b"500000000")

    _, bill = on("allocate", use, memory=192 * MB)
    assert bill.retried == 0, "it would need as much again"


def test_what_other_processes_were_forked_with_is_not_in_a_functions_memory() -> None:
    """The standard library's one server may have loaded anything by then."""
    code = (
        "from assay.sim.ranks import Ranks; from tests.sim import heavy, test_faas\n"
        "if __name__ == '__main__':\n"
        "    with Ranks(1, heavy.size, imports=['tests.sim.heavy']) as ranks:\n"
        "        assert ranks.wait(60) == [heavy.BYTES]\n"
        "    test_faas.test_a_function_holds_no_more_than_its_memory()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_what_goes_wrong_is_told_in_a_line() -> None:
    async def use(platform: Processes) -> None:
        with pytest.raises(CallFailed, match=r"failed 3 times, at last because ValueError: two lines$"):
            await platform.call(b"")
        with pytest.raises(BadInput, match="no such thing"):
            await platform.call(b"input")

    on("fail", use)


def test_a_function_that_takes_too_long_is_ended() -> None:
    async def use(platform: Processes) -> None:
        with pytest.raises(CallFailed, match=r"longer than 0\.05 seconds"):
            await platform.call(b"")

    _, bill = on("wait", use, limit=0.05, retries=1)
    assert bill.retried == 1


@pytest.mark.parametrize("imports", [(), (MODULE,)])
def test_what_functions_compute_is_our_own_work_also_while_they_are_kept(imports: tuple[str, ...]) -> None:
    """Else a gauge takes an idle machine for a busy one."""

    async def main() -> tuple[float, ...]:
        async with Processes(f"{MODULE}:compute", slots=2, imports=imports) as platform:
            first = float(await platform.call(b"0.1", pin="a")) + float(await platform.call(b"0.1", pin="b"))
            kept = tree_seconds(os.getpid())
            platform.release()
            return first, kept, float(await platform.call(b"0.1"))

    before = tree_seconds(os.getpid())
    first, kept, again = asyncio.run(main())
    ticks = 4 / os.sysconf("SC_CLK_TCK")  # two processes, each in user's and in the system's name
    if Path("/proc/stat").exists():
        assert kept - before >= first - ticks
        assert tree_seconds(os.getpid()) - kept >= 0.1 - ticks, f"it ended, and all of {again} s stay counted"


def test_a_platform_without_slots_is_refused() -> None:
    with pytest.raises(BadInput, match="0 slots"):
        Modelled(faas_handlers.count, slots=0)


# ------------------------------------------------------------------------------------------------------- in the model


async def work(argument: bytes, context: Context) -> bytes:
    """Takes as many seconds as it is told."""
    await context.clock.sleep(float(argument))
    return b""


def test_slots_bound_what_runs_at_once_and_the_bill_counts_every_second() -> None:
    async def main() -> tuple[float, Bill]:
        async with Modelled(work, slots=2, cold=(1.0, 1.0), memory=10**9) as platform:
            await asyncio.gather(*(platform.call(b"3") for _ in range(4)))
            return VirtualClock().now(), platform.settle()

    took, bill = run_virtual(main())
    assert took == pytest.approx(7.0), "two cold starts at once, then two calls each"
    assert (bill.calls, bill.cold) == (4, 2) and bill.seconds == pytest.approx(14.0)
    assert bill.usd() == pytest.approx(4 * 2e-7 + 14 * 1.66667e-5)


def test_who_is_kept_is_paid_for_while_idle() -> None:
    async def main() -> list[float]:
        async with Modelled(work, slots=1, cold=(0.0, 0.0)) as platform:
            await platform.call(b"1", pin="a")
            await VirtualClock().sleep(10)
            first = platform.settle()
            await VirtualClock().sleep(5)
            platform.release()
            await VirtualClock().sleep(100)
            return [first.seconds, platform.settle().seconds]

    assert run_virtual(main()) == [11.0, 5.0]


def test_a_handler_that_fails_in_the_model_is_tried_again_with_new_memory() -> None:
    seen: list[int] = []

    async def shaky(argument: bytes, context: Context) -> bytes:
        seen.append(len(context.memory))
        context.memory["mine"] = 1
        if len(seen) < 3:
            raise OSError("gone")
        return b"there"

    async def main() -> bytes:
        async with Modelled(shaky, slots=1, cold=(0.0, 0.0)) as platform:
            return await platform.call(b"")

    assert run_virtual(main()) == b"there" and seen == [0, 0, 0]
