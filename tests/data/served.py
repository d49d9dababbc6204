"""A plane and those who keep it tidy, beside probes and crash labs, under random sequences of what people do.

Servers drop steps and delete objects while producers publish files that change, and consumers read; each of them dies
at any of its changes, comes again under the same or another name, and two at once. The model is the list of records of
every step that was ever visible: a step keeps its records until a server was told that no checkpoint needs it, no
record is in two steps, also of those that are gone, and whatever was acknowledged is in one. A probe and a crash lab
leave everything as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, local
from typing import Any
from unittest.mock import patch

import click
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from assay.data.commands import crash, probe
from assay.data.crash.faulty import Fault, Faulty, Kind
from assay.data.interface import Store, StoreError
from assay.data.lakestream import jobs
from assay.data.lakestream.commands import plane
from assay.data.lakestream.files import unpack
from assay.data.lakestream.jobs import opened
from assay.data.lakestream.plane import over
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.record.errors import AssayError
from tests.data.layers import Folder, answered, any_, at_once, called, number, once, two

COMMANDS = plane.command.commands
DEATHS = st.builds(Fault, st.integers(0, 12), st.sampled_from([Kind.BEFORE, Kind.AFTER, Kind.LAST]))
RETAINED = st.sampled_from([(), (), (0,), (1,), (1, 2), (3,), (9,)])  # steps behind the first that is there
APPEND_LOG = "assay.data.baselines.append_log:AppendLog"  # its short name is looked up by a parser of one thread
MINE = "from assay.data.baselines.append_log import AppendLog\n\n\nclass Mine(AppendLog):\n    key = 'mine'\n"


class Rounds:
    """The server's clock: a round follows the other, and Ctrl-C comes when all others have ended."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.others_ended = Event()

    def sleep(self, seconds: float) -> None:
        """No time passes."""
        if self.others_ended.is_set():
            raise KeyboardInterrupt


def objects(folder: Path) -> dict[str, bytes]:
    """All files but those that Python compiled."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Served(Folder):
    """By store: the records of every step there ever was, in their order, and which steps may be dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, dict[int, list[int]]] = {0: {}, 1: {}}
        self.base, self.bound = {0: 0, 1: 0}, {0: 0, 1: 0}  # the first step, and how far it may be at most
        self.late: list[Faulty] = []  # dead processes, of which a change has yet to land
        self.mortal = local()
        self.patches = ExitStack()
        for place in (plane, jobs, probe):
            self.patches.enter_context(patch.object(place, "open_store", self._opened))
        self.patches.enter_context(patch.object(probe, "LARGE", 1 << 14))

    def teardown(self) -> None:
        self.patches.close()
        super().teardown()

    def _run(self, command: click.Command, *words: object) -> bool:
        return called(command, *words)

    def _dies(self) -> None:
        raise StoreError("the process is gone")

    def _opened(self, url: str, **options: Any) -> Store:
        """The store, of a process that dies if it is to."""
        store, fault = open_store(url, fsync=False), getattr(self.mortal, "fault", None)
        if fault is None:
            return store
        self.late.append(Faulty(store, fault, die=self._dies))
        return self.late[-1]

    @contextmanager
    def _dying(self, fault: Fault) -> Iterator[None]:
        """Processes that this thread starts die at a change; what is on its way then may land much later."""
        self.mortal.fault = fault
        try:
            yield
        finally:
            self.mortal.fault = None

    @precondition(lambda self: self.late)
    @rule()
    def land(self) -> None:
        """What dead processes had on its way arrives."""
        for dead in self.late:
            wait(dead.land())
        self.late = []
        for store in (0, 1):
            self._look(store)

    def _text(self, name: str) -> Path:
        """Half of the files are no JSON by their names."""
        path = super()._text(name)
        return path.with_name(path.name.replace(".jsonl", ".txt")) if name < "c" else path

    # ------------------------------------------------------------------------------------------------ the plane

    def _look(self, store: int) -> set[int]:
        """All records that were ever in a step: each once, and those of steps that must be there are read."""
        try:
            there = opened(str(self.home / f"plane{store}"))
        except AssayError:
            assert not self.steps[store]
            return set()
        state, steps = there.manifest.state, self.steps[store]
        first, most = self.base[store], max(self.base[store], self.bound[store])
        assert first <= state.base <= most, f"the plane begins with {state.base}, not with one of {first} to {most}"
        assert state.next_step >= len(steps), "steps are gone that nobody dropped"
        self.base[store] = state.base
        consumer = there.consumer(0, 1)
        for step in range(state.base, state.next_step):
            found = [number(record) for part in wait(consumer.read(step)) or () for record in unpack(part)]
            assert steps.setdefault(step, found) == found, f"step {step} is another one now"
        assert set(range(state.next_step)) == set(steps)
        assert not wait(there.check())
        return once([record for found in steps.values() for record in found])

    def _produced(self, store: int, name: int, batch: int, share: str) -> bool:
        words = (
            self.home / f"plane{store}",
            self.texts,
            "--batch",
            batch,
            "--part",
            share,
            "--growing",
            "--ranks",
            store + 1,
        )
        if share != "1/1":
            return self._run(COMMANDS["produce"], *words, "--name", f"p{name}")
        return self._named(store, name, lambda own: self._run(COMMANDS["produce"], *words, "--name", own))

    def _published(self, store: int, well: bool) -> None:
        ever = self._look(store)
        missing = self._given() - ever
        assert not (well and missing), f"plane{store} ended well without {sorted(missing)}"

    @precondition(lambda self: self.files)
    @rule(store=two, name=two, batch=st.sampled_from([2, 5]), share=st.sampled_from(["1/1", "1/1", "1/2", "2/2"]))
    def produce(self, store: int, name: int, batch: int, share: str) -> None:
        """Publish under any of two names, in batches of any size, all of it or a share."""
        well = self._produced(store, name, batch, share)
        self._published(store, well and share == "1/1")

    @precondition(lambda self: self.files)
    @rule(store=two, name=two, fault=DEATHS)
    def produce_and_die(self, store: int, name: int, fault: Fault) -> None:
        """A producer that dies, and comes again."""
        with self._dying(fault):
            self._produced(store, name, 2, "1/1")
        self._published(store, False)
        self._published(store, self._produced(store, name, 2, "1/1"))

    @precondition(lambda self: any(self.steps.values()))
    @rule(store=two, first=any_, count=st.integers(1, 4))
    def consume(self, store: int, first: int, count: int) -> None:
        """Read some steps, by one rank and by two."""
        step = self.base[store] + first
        if self.steps[store] and step < len(self.steps[store]):
            self._consumed(store, step, min(count, len(self.steps[store]) - step))

    def _consumed(self, store: int, step: int, count: int, *, dropped: bool = False) -> None:
        expected = [record for one in range(step, step + count) for record in self.steps[store][one]]
        for world in range(1, store + 2):
            found = []
            for rank in range(world):
                out = self.home / "read.jsonl"
                words = ("--rank", rank, "--world", world, "--step", step, "--steps", count, "--out", out)
                if not called(COMMANDS["consume"], self.home / f"plane{store}", *words):
                    assert dropped
                    return
                found += [number(record) for record in out.read_bytes().splitlines()]
            assert (found if world == 1 else sorted(found)) == (expected if world == 1 else sorted(expected))

    # ------------------------------------------------------------------------------------------------ the servers

    def _marks(self, store: int, retain: tuple[int, ...], most: int = 1 << 30) -> tuple[int, ...]:
        """Steps of checkpoints, some behind the first: from now on a server may drop what lies before them."""
        marks = tuple(mark for step in retain if (mark := self.base[store] + step) <= most)
        self.bound[store] = max([self.bound[store], *marks[:1]])
        return marks

    def _served(self, store: int, marks: tuple[int, ...], *more: object) -> bool:
        """A server, told of checkpoints, or not."""
        words = ["--retain", ",".join(map(str, marks))] if marks else []
        return self._run(COMMANDS["serve"], self.home / f"plane{store}", "--grace", 0, *words, *more)

    def _tidied(self, store: int) -> None:
        """What a round leaves is named by the plane, or perhaps will be: its producer's start is the last one."""
        there = opened(str(self.home / f"plane{store}"))
        needed = {batch.key for batch in there.manifest.state.steps().values()}
        stray = {key for key in objects(self.home / f"plane{store}") if key.startswith("data/")} - needed
        assert not [key for key in stray if over(key, there.manifest.state)]

    @rule(store=two, retain=RETAINED)
    def serve(self, store: int, retain: tuple[int, ...]) -> None:
        """One round."""
        before, base = (self.home / f"plane{store}" / "shape").exists(), self.base[store]
        assert self._served(store, self._marks(store, retain), "--once") == before
        self._look(store)
        if before:
            self._tidied(store)
        if before and retain:
            assert self.base[store] == min(base + min(retain), len(self.steps[store]))

    @rule(store=two, retain=RETAINED, fault=DEATHS)
    def serve_and_die(self, store: int, retain: tuple[int, ...], fault: Fault) -> None:
        """A server that dies, and comes again."""
        with self._dying(fault):
            self._served(store, self._marks(store, retain), "--once")
        self._look(store)
        self._served(store, (), "--once")
        self._look(store)

    @precondition(lambda self: any(self.steps.values()))
    @rule(store=two, retain=st.tuples(RETAINED, RETAINED))
    def serve_twice_at_once(self, store: int, retain: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        """Two servers of one store, that were told of other checkpoints."""
        marks = [self._marks(store, some) for some in retain]
        at_once(*(lambda some=some: self._served(store, some, "--once") for some in marks))
        self._look(store)

    @precondition(lambda self: self.files and all(self.bound[one] <= len(self.steps[one]) for one in (0, 1)))
    @rule(store=two, name=two, retain=RETAINED, fault=st.one_of(st.none(), DEATHS), count=st.integers(1, 9))
    def serve_beside(
        self, store: int, name: int, retain: tuple[int, ...], fault: Fault | None, count: int
    ) -> None:  # fmt: skip
        """A server that goes on and on while files grow, a producer dies and comes again, and a consumer reads.

        What it may drop is there already, or nobody could tell what was in it.
        """
        some = self._one(count)  # what is begun of it is ended meanwhile
        step, steps = self.base[store], len(self.steps[store]) - self.base[store]
        rounds = Rounds()

        def produced() -> bool:
            if fault is not None:
                with self._dying(fault):
                    self._produced(store, name, 2, "1/1")
            self.grow(some, count)
            return self._produced(store, name, 2, "1/1")

        def consumed() -> bool:
            if steps:
                self._consumed(store, step, steps, dropped=bool(self.bound[store]))
            return True

        with patch.object(plane, "time", rounds), ThreadPoolExecutor(1) as pool:
            serving = pool.submit(self._served, store, self._marks(store, retain, most=len(self.steps[store])))
            try:
                well, _ = at_once(produced, consumed)
            finally:
                rounds.others_ended.set()
            serving.result()
        self._published(store, well)

    # ------------------------------------------------------------------------------------------------ the others

    @rule(store=two, fault=st.one_of(st.none(), DEATHS))
    def probe(self, store: int, fault: Fault | None) -> None:
        """Two probes at once of a store, or one that dies: then the next one a day later leaves nothing of it."""
        place = self.home / f"plane{store}"
        words = (place, "--requests", 3)
        mine = place / "probe" / "notes"
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("somebody's own")
        before = objects(self.home)
        if fault is None:
            assert at_once(*[lambda: called(probe.command, *words)] * 2) == [True, True]
        else:
            with self._dying(fault):
                self._run(probe.command, *words)
            left = set(objects(self.home)) - set(before)
            assert len(left) <= 1
            for name in left:
                os.utime(self.home / name, (0, time.time() - 2 * probe.FORGOTTEN))
            assert called(probe.command, *words)
            if fault.kind is Kind.LAST and self.late:  # it lands on a day of its own
                wait(self.late.pop().land())
                for name in set(objects(self.home)) - set(before):
                    os.utime(self.home / name, (0, time.time() - 2 * probe.FORGOTTEN))
                assert called(probe.command, *words)
        assert objects(self.home) == before

    @rule(own=st.booleans(), ops=st.integers(1, 3))
    def crash_twice_at_once(self, own: bool, ops: int) -> None:
        """Two crash labs with one component: they find the same, which is nothing, and leave nothing."""
        (self.home / "mine.py").write_text(MINE)
        component = f"{self.home / 'mine.py'}:Mine" if own else APPEND_LOG
        before, found = objects(self.home), list[Any]()

        def crashed() -> bool:
            answer = answered(crash.command, component, "--ops", ops, "--mixes", 1)
            found.append(None if answer is None else answer[component] | {"seconds": 0})
            return answer is not None

        calls: list[Callable[[], bool]] = [crashed, crashed]
        assert at_once(*calls) == [True, True] and found[0] == found[1] and found[0]["crashes"] > 0
        assert objects(self.home) == before


class Killed(Served):
    """The same, where who dies is a process that is gone at once, and nothing of it lands later."""

    serve_beside = None  # type: ignore[assignment]  # a process with threads at work is not forked

    def _dies(self) -> None:
        os._exit(137)

    def _run(self, command: click.Command, *words: object) -> bool:
        if getattr(self.mortal, "fault", None) is None:
            return called(command, *words)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if called(command, *words) else 2
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 2, 137)
        return status == 0
