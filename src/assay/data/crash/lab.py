"""Every change × every way to fail, then every crash of the recovery, then actors at once.

A scenario is run once and filmed. Then, for each change and each :class:`~assay.data.crash.faulty.Kind`, its life ends
there, or goes on with that fault; its successor recovers, is asked whether the rules hold, finishes the scenario, and
is asked again. Where the first life ended in a crash, the successor is crashed, too, at each of the first changes of
its own. All of it in memory and virtual time: a case takes milliseconds, and the same case always goes the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.data.crash.faulty import DEATHS, SURVIVED, Crash, Fault, Faulty, Kind
from assay.data.crash.film import Camera, Film
from assay.data.interface import Crashable, Store, StoreError, Violation
from assay.data.store.delayed import Delayed, Latency, Profile
from assay.data.store.memory import MemStore
from assay.sim.clock import Clock, Stuck, VirtualClock, run_virtual
from assay.sim.streams import stream

Make = Callable[[], Crashable]
Progress = Callable[[int, int], None]
EXHAUSTIVE = 2000  # changes up to which every one is a crash point
AGAIN = 3  # changes of the recovering process at which it is crashed, too
JITTER = Profile("jitter", Latency(0.01, 0.2), Latency(0.01, 0.2), source="made up, to mix the order of requests")
LIMIT = 10 * 24 * 3600.0  # virtual seconds after which a scenario is called endless


@dataclass(frozen=True, slots=True)
class Case:
    """A crash, perhaps a second one while recovering, or actors at once (`mixed` is how many)."""

    ops: int
    seed: int
    faults: tuple[Fault, ...] = ()
    mixed: int = 0

    def __str__(self) -> str:
        if self.mixed:
            return f"--ops {self.ops} --mix {self.seed}"
        return f"--ops {self.ops} --seed {self.seed} --at {','.join(map(str, self.faults))}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A case in which a rule broke."""

    case: Case
    violations: tuple[Violation, ...]
    trace: tuple[str, ...] = ()  # the last changes before the crash


@dataclass
class Report:
    """What was tried, and what broke."""

    component: str
    changes: int  # of the scenario
    exhaustive: bool
    crashes: int = 0  # cases with one fault
    crashes_twice: int = 0
    mixes: int = 0  # seeds with several actors at once
    processes: int = 0  # crash points of real processes on real files
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        """All that was tried."""
        return self.crashes + self.crashes_twice + self.mixes + self.processes


def examine(
    make: Make, ops: int = 400, *, seed: int = 0, mixes: int = 100, progress: Progress = lambda done, total: None
) -> Report:
    """Crash a component in every way there is.

    >>> from assay.data.baselines.append_log import AppendLog
    >>> report = examine(AppendLog, ops=12, mixes=2)
    >>> report.exhaustive, report.crashes, report.findings
    (True, 72, [])
    """
    began = time.perf_counter()
    film = filmed(make, ops, seed)
    changes = len(film.frames)
    tried = cases(make, changes, ops, seed, mixes)
    report = Report(make().key, changes, changes <= EXHAUSTIVE)
    report.mixes = sum(case.mixed > 0 for case in tried)
    report.crashes, report.crashes_twice = (sum(len(case.faults) == n for case in tried) for n in (1, 2))
    for done, case in enumerate(tried):
        if found := replay(make, case, film):
            report.findings.append(found)
        progress(done + 1, len(tried))
    report.seconds = time.perf_counter() - began
    return report


def filmed(make: Make, ops: int, seed: int) -> Film:
    """A scenario that nothing disturbs."""

    async def main() -> Film:
        promised: list[Any] = []
        camera = Camera(MemStore(VirtualClock()), promised, VirtualClock())
        await life(make(), camera, ops, promised, seed * 1000)
        return camera.film

    return run_virtual(main())


def recorded(make: Make, ops: int, seed: int) -> list[str]:
    """The changes of a scenario that nothing disturbs."""
    return [f"{frame.op.name} {frame.op.key}" for frame in filmed(make, ops, seed).frames]


def cases(make: Make, changes: int, ops: int, seed: int, mixes: int) -> list[Case]:
    """All that is tried of a scenario with so many changes: one fault, two, several actors."""
    crowds = (Case(ops, seed * 1000 + i, mixed=max(2, len(make().roles))) for i in range(mixes))
    return [*_singles(changes, ops, seed), *_doubles(changes, ops, seed), *crowds]


def _points(changes: int, seed: int, most: int = EXHAUSTIVE) -> list[int]:
    if changes <= most:
        return list(range(changes))
    return sorted(int(at) for at in stream(seed, "crash points").choice(changes, most, replace=False))


def _singles(changes: int, ops: int, seed: int) -> Iterator[Case]:
    for at in _points(changes, seed):
        for kind in Kind:
            yield Case(ops, seed, (Fault(at, kind),))


def _doubles(changes: int, ops: int, seed: int) -> Iterator[Case]:
    for at in _points(changes, seed, EXHAUSTIVE // 4):
        for first in DEATHS:
            for again in range(AGAIN):
                yield Case(ops, seed, (Fault(at, first), Fault(again, DEATHS[(at + again) % 2])))


def replay(make: Make, case: Case, film: Film | None = None) -> Finding | None:
    """Run one case, with the film of its scenario from the first death on; None where every rule held."""
    if film is None or case.mixed or case.faults[0].kind in SURVIVED:
        violations, trace = run_virtual(_mixed(make, case) if case.mixed else _crashed(make, case))
    else:
        violations, trace = run_virtual(_crashed(make, case, film), start=film.frames[case.faults[0].at].when)
    return Finding(case, tuple(violations), tuple(trace[-8:])) if violations else None


async def life(
    component: Crashable, store: Store, ops: int, promised: list[Any], seed: int, *, role: str = "",
    clock: Clock | None = None,
) -> None:  # fmt: skip
    """One process: it opens (which is recovery, if anything was there) and works until it is done, or dies."""
    await component.open(store, clock=clock or VirtualClock(), seed=seed)
    await component.work(ops, promised, role or component.roles[0])


async def _crashed(make: Make, case: Case, film: Film | None = None) -> tuple[list[Violation], list[str]]:
    world, promised = MemStore(VirtualClock()), list[Any]()
    stores: list[Faulty] = []
    if film is not None:
        world, dead, promised = await film.death(case.faults[0])
        stores.append(dead)
    for number, fault in list(enumerate(case.faults))[len(stores) :]:
        stores.append(Faulty(world, fault))
        wrong = await _dying(life(make(), stores[-1], case.ops, promised, _seed(case, number)))
        if wrong:
            return wrong, _told(stores[-1])
    trace = [line for store in stores for line in _told(store)]
    return await _survivor(make, case, world, stores, promised), trace


async def _survivor(
    make: Make, case: Case, world: Store, stores: Sequence[Faulty], promised: list[Any]
) -> list[Violation]:
    """The process after the last crash: it recovers, keeps the rules, finishes, and keeps them still."""
    number = len(case.faults)
    try:
        async with asyncio.timeout(LIMIT):
            heir = make()
            await heir.open(world, clock=VirtualClock(), seed=_seed(case, number))
            await _land(stores, Kind.LATE)
            if wrong := await heir.check(promised):
                return list(wrong)
            await heir.work(case.ops, promised, heir.roles[0])
            await _land(stores, Kind.LAST)
            judge = make()
            await judge.open(world, clock=VirtualClock(), seed=_seed(case, number + 1))
            return list(await judge.check(promised))
    except (Exception, Stuck) as error:
        return [Violation("recovery works", f"{type(error).__name__}: {error}")]


async def _land(stores: Sequence[Faulty], kind: Kind) -> None:
    for store in stores:
        if store.fault is not None and store.fault.kind is kind:
            await store.land()


async def _dying(life: Any) -> list[Violation]:
    """A life that may end in a crash, or in a store's error that the component passes on; its tasks die with it."""
    try:
        async with asyncio.timeout(LIMIT):
            await life
    except (Crash, StoreError):
        pass
    except TimeoutError:
        return [Violation("the scenario ends", f"not within {LIMIT / 3600:.0f} virtual hours")]
    except Exception as error:
        return [Violation("only the store's errors reach the caller", f"{type(error).__name__}: {error}")]
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    return []


async def _mixed(make: Make, case: Case) -> tuple[list[Violation], list[str]]:
    """Actors at once on a store that answers in a random order; one of them dies somewhere and comes back."""
    world, random = MemStore(VirtualClock()), stream(case.seed, "mix")
    first = make()
    roles = first.roles if len(first.roles) > 1 else first.roles * case.mixed
    promised: list[list[Any]] = [[] for _ in roles]
    unlucky, at = int(random.integers(len(roles))), int(random.integers(2 * case.ops))

    async def actor(number: int, role: str) -> list[Violation]:
        # Those who do the same job share it; the order of what each was promised is its own.
        slow = Delayed(world, JITTER, seed=case.seed * 16 + number)
        store = Faulty(slow, Fault(at, DEATHS[at % 2])) if number == unlucky else slow
        seed = _seed(case, 10 * number)
        try:
            await life(make(), store, case.ops, promised[number], seed, role=role)
        except (Crash, StoreError):
            await life(make(), slow, case.ops, promised[number], seed + 1, role=role)
        return []

    try:
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(actor(number, role) for number, role in enumerate(roles)))
        judge = make()
        await judge.open(world, clock=VirtualClock(), seed=_seed(case, 99))
        return list(await judge.check([one for each in promised for one in each])), []
    except (Exception, Stuck) as error:
        return [Violation("actors at once finish", f"{type(error).__name__}: {error}")], []


def smallest(make: Make, found: Finding, tries: int = 3000) -> Finding:
    """The shortest scenario in which a rule breaks, as far as so many tries find one."""
    for ops in range(1, found.case.ops):
        film = None if found.case.mixed else filmed(make, ops, found.case.seed)
        if film is None:
            tried: Iterator[Case] = (Case(ops, found.case.seed + i, mixed=found.case.mixed) for i in range(20))
        else:
            tried = _singles(len(film.frames), ops, found.case.seed)
        for case in tried:
            tries -= 1
            if tries < 0:
                return found
            if smaller := replay(make, case, film):
                return smaller
    return found


def _seed(case: Case, number: int) -> int:
    return case.seed * 1000 + number


def _told(store: Faulty) -> list[str]:
    lines = [f"{op.name} {op.key}" for op in store.trace]
    if store.fault is not None and len(lines) > store.fault.at:
        lines[store.fault.at] += f"  <- {store.fault.kind}"
        lines = lines[: store.fault.at + 1]
    return lines
