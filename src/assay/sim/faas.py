"""Functions as a service: stateless calls with a cold start, a memory cap, a time limit, retries and a bill.

A handler is a coroutine `handler(argument: bytes, context) -> bytes`. Two platforms run it behind one interface:

- :class:`Processes`: every instance is a real process that was really started, may hold so many bytes and no more, and
  is killed when its time is up. An idle instance serves the next call, as clouds do; one that died is replaced and the
  call is made again, so a handler runs at least once and perhaps more often.
- :class:`Modelled`: the same handler on a virtual clock, with a cold start drawn from a distribution, for fleets larger
  than the machine.

A call with `pin` goes to the instance of that name, which is kept (and paid for) until it is released; what it left in
`context.memory` is still there unless it died meanwhile.

>>> import asyncio
>>> async def main() -> tuple[bytes, int, int]:
...     async with Processes("assay.sim.faas:shout", slots=1) as platform:
...         answer = await platform.call(b"hello")
...         await platform.call(b"again")
...     return answer, platform.bill.calls, platform.bill.cold
>>> asyncio.run(main())
(b'HELLO', 2, 1)
"""

from __future__ import annotations

import asyncio
import importlib
import math
import multiprocessing
import resource
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from assay.record.errors import AssayError, BadInput
from assay.sim.clock import Clock, VirtualClock, WallClock
from assay.sim.forking import start_forked
from assay.sim.ledger import LIST_PRICES, PriceBook, peak_rss
from assay.sim.ranks import environment
from assay.sim.streams import stream

MB = 1 << 20
MEMORY = 512 * MB
LIMIT = 900.0  # seconds of a call
RETRIES = 2
_Z99 = 2.3263478740408408
COLD = (0.25, 1.0)  # median and 99th percentile, seconds: public figures for interpreted runtimes, approximate


class CallFailed(AssayError):  # noqa: N818 - read as a sentence
    """A call did not succeed, however often it was tried."""


class OutOfMemory(CallFailed):
    """A call needs more memory than its instance may hold: trying again would not help."""


class _Died(Exception):  # noqa: N818
    """One attempt is over without an answer: killed, late, or the handler raised."""


@dataclass
class Context:
    """What a handler finds: memory that outlives the call if its instance does, and the time."""

    clock: Clock
    memory: dict[Any, Any] = field(default_factory=dict)


Handler = Callable[[bytes, Context], Awaitable[bytes]]


async def shout(argument: bytes, context: Context) -> bytes:
    """The smallest handler, for examples and tests."""
    return argument.upper()


@dataclass
class Bill:
    """What was used: seconds are those of instances at work or kept, whether they succeeded or not.

    >>> round(Bill(calls=10**6, seconds=1000.0, memory=10**9).usd(), 4)
    0.2167
    """

    calls: int = 0
    cold: int = 0
    retried: int = 0
    seconds: float = 0.0
    memory: int = MEMORY  # bytes of an instance: what is charged for, used or not
    peak: int = 0  # bytes that an instance really held at most; 0 where it is not known

    @property
    def gb_seconds(self) -> float:
        """Gigabytes times seconds."""
        return self.seconds * self.memory / 1e9

    def usd(self, prices: PriceBook = LIST_PRICES) -> float:
        """Dollars at a provider's prices."""
        return self.calls * prices.function_call + self.gb_seconds * prices.function_gb_second


class Platform(ABC):
    """Calls functions; at most `slots` instances at once."""

    def __init__(self, slots: int, memory: int, limit: float, retries: int) -> None:
        if slots < 1 or memory < 64 * MB or limit <= 0:
            raise BadInput(
                f"{slots} slots, {memory:,} bytes, {limit} seconds; a slot, {64 * MB:,} bytes, some time expected"
            )
        self.slots, self.limit, self.retries = slots, limit, retries
        self.bill = Bill(memory=memory)
        self._turns = asyncio.Semaphore(slots)
        self._free: list[Any] = []
        self._pinned: dict[str, tuple[Any, float]] = {}  # and since when

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        while self._free:
            self._end(self._free.pop())

    def release(self) -> None:
        """Keep nobody any longer: those who were wait for whatever call comes next."""
        for pin in list(self._pinned):
            instance, began = self._pinned.pop(pin)
            self.bill.seconds += self._now() - began
            self._free.append(instance)

    def settle(self) -> Bill:
        """The bill up to now, those who are kept included; a new one begins."""
        now, bill = self._now(), self.bill
        for pin, (instance, began) in self._pinned.items():
            bill.seconds += now - began
            self._pinned[pin] = instance, now
        self.bill = Bill(memory=bill.memory)
        return bill

    async def call(self, argument: bytes, pin: str = "") -> bytes:
        """The handler's answer, tried again where an attempt died.

        Raises:
            OutOfMemory: the handler needs more than an instance may hold.
            CallFailed: every attempt died; the message says how.
        """
        why = ""
        for attempt in range(1 + self.retries):
            self.bill.retried += attempt > 0
            try:
                return await (self._kept(argument, pin) if pin else self._pooled(argument))
            except _Died as died:
                why = str(died)
        raise CallFailed(f"a function failed {1 + self.retries} times, at last because {why}")

    async def _pooled(self, argument: bytes) -> bytes:
        async with self._turns:
            began = self._now()
            self.bill.calls += 1
            instance = self._free.pop() if self._free else await self._begin()
            try:
                answer = await self._ask(instance, argument)
                self._free.append(instance)
                return answer
            except BaseException:
                self._end(instance)
                raise
            finally:
                self.bill.seconds += self._now() - began

    async def _kept(self, argument: bytes, pin: str) -> bytes:
        self.bill.calls += 1
        if pin not in self._pinned:
            if len(self._pinned) >= self.slots:
                raise BadInput(f"{len(self._pinned) + 1} functions are to be kept in {self.slots} slots")
            began = self._now()
            self._pinned[pin] = None, began  # the place is taken while it starts
            try:
                self._pinned[pin] = self._free.pop() if self._free else await self._begin(), began
            except BaseException:
                del self._pinned[pin]
                raise
        instance, began = self._pinned[pin]
        try:
            return await self._ask(instance, argument)
        except BaseException:
            del self._pinned[pin]
            self.bill.seconds += self._now() - began
            self._end(instance)
            raise

    @abstractmethod
    def _now(self) -> float: ...

    @abstractmethod
    async def _begin(self) -> Any:
        """Start an instance."""

    @abstractmethod
    async def _ask(self, instance: Any, argument: bytes) -> bytes:
        """Its answer, or _Died."""

    @abstractmethod
    def _end(self, instance: Any) -> None:
        """Let it go."""


@dataclass
class _Process:
    process: Any
    pipe: Any


class Processes(Platform):
    """Real processes. `handler` is `module:function`.

    With `imports`, instances are forked from a process that has loaded these modules and done nothing else, as clouds
    that start from snapshots do; without, each starts a new interpreter.
    """

    def __init__(
        self, handler: str, *, slots: int, memory: int = MEMORY, limit: float = LIMIT, retries: int = RETRIES,
        imports: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(slots, memory, limit, retries)
        self.handler = handler
        forks = bool(imports) and "forkserver" in multiprocessing.get_all_start_methods()
        self._make: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        self._imports = list(imports) if forks else []
        self._threads = ThreadPoolExecutor(slots, "functions")

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _now(self) -> float:
        return time.perf_counter()

    async def _begin(self) -> _Process:
        self.bill.cold += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._start)

    def _start(self) -> _Process:
        ours, theirs = self._make.Pipe()
        process = self._make.Process(target=_serve, args=(self.handler, theirs, self.bill.memory), daemon=True)
        try:
            with environment():
                start_forked(process, self._imports) if self._imports else process.start()
        finally:
            theirs.close()
        return _Process(process, ours)

    async def _ask(self, instance: _Process, argument: bytes) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._exchange, instance, argument)

    def _exchange(self, instance: _Process, argument: bytes) -> bytes:
        try:
            instance.pipe.send_bytes(argument)
            if not instance.pipe.poll(self.limit):
                raise _Died(f"it took longer than {self.limit:g} seconds")
            peak, kind, told = instance.pipe.recv()
        except (EOFError, OSError):
            instance.process.join(5.0)
            raise _Died(f"its process ended with {_ending(instance.process.exitcode)}") from None
        self.bill.peak = max(self.bill.peak, peak)
        if kind == "memory":
            raise OutOfMemory(f"a function needs more than its {self.bill.memory:,} bytes ({told})")
        if kind == "refused":
            raise BadInput(told)
        if kind == "failed":
            raise _Died(told)
        return told  # type: ignore[no-any-return]

    def _end(self, instance: _Process) -> None:
        instance.pipe.close()
        instance.process.kill()
        instance.process.join()

    def pids(self) -> list[int]:
        """The processes of the instances that are there now: for whoever wants to kill one."""
        return [one.process.pid for one in [*self._free, *(kept for kept, _ in self._pinned.values())]]


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"code {code}"


def _serve(handler: str, pipe: Any, memory: int) -> None:
    """An instance's life: one event loop, call after call, until its platform hangs up."""
    module, _, name = handler.partition(":")
    answer_of: Handler = getattr(importlib.import_module(module), name)
    most = memory + _reserved()
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    context = Context(WallClock())
    with asyncio.Runner() as runner:
        while True:
            try:
                argument = pipe.recv_bytes()
            except EOFError:
                return
            try:
                told: tuple[str, Any] = "", runner.run(_awaited(answer_of, argument, context))
            except MemoryError as error:
                told = "memory", " ".join(str(error).split()) or "no more memory"
            except BadInput as error:
                told = "refused", str(error)
            except Exception as error:
                told = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
            pipe.send((peak_rss(), *told))


def _reserved() -> int:
    """Bytes that are set aside and not used, such as threads' stacks: the limit counts them, the function need not."""
    found = {"VmData": 0, "RssAnon": 0}
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) << 10
    return max(0, found["VmData"] - found["RssAnon"])


async def _awaited(answer_of: Handler, argument: bytes, context: Context) -> bytes:
    return await answer_of(argument, context)


class Modelled(Platform):
    """Instances that exist in the model alone: the handler runs here, and a cold start takes time on the clock.

    >>> from assay.sim.clock import run_virtual
    >>> async def main() -> float:
    ...     async with Modelled(shout, slots=2, cold=(0.5, 0.5)) as platform:
    ...         await platform.call(b"a")
    ...         await platform.call(b"b")  # warm
    ...         return VirtualClock().now()
    >>> run_virtual(main())
    0.5
    """

    def __init__(
        self, handler: Handler, *, slots: int, memory: int = MEMORY, limit: float = LIMIT, retries: int = RETRIES,
        cold: tuple[float, float] = COLD, clock: Clock | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(slots, memory, limit, retries)
        self.handler, self.cold, self.clock = handler, cold, clock or VirtualClock()
        self._random = stream(seed, "cold starts")

    def _now(self) -> float:
        return self.clock.now()

    async def _begin(self) -> Context:
        self.bill.cold += 1
        median, p99 = self.cold
        if median > 0:
            sigma = math.log(max(p99 / median, 1.0)) / _Z99
            await self.clock.sleep(median * math.exp(sigma * float(self._random.standard_normal())))
        return Context(self.clock)

    async def _ask(self, instance: Context, argument: bytes) -> bytes:
        try:
            async with asyncio.timeout(self.limit):
                return await self.handler(argument, instance)
        except TimeoutError:
            raise _Died(f"it took longer than {self.limit:g} seconds") from None
        except BadInput:
            raise
        except Exception as error:
            raise _Died(f"{type(error).__name__}: {' '.join(str(error).split())}") from error

    def _end(self, instance: Context) -> None:
        instance.memory.clear()
