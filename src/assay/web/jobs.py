"""Studies and comparisons as processes of their own, and what they say while they run.

A job is one process (`assay.web.child`) that gets a request as a line of JSON and answers with lines of JSON: progress,
finished cases, the answer or one line of what went wrong. The server only hands these on, to pages that ask now and
then: a stream a page would take the few connections that a browser has for all its tabs. A cancelled study is
interrupted as by Ctrl-C, so that its finished cases stay; a comparison is killed, and ends by itself when no page has
asked for a minute. Processes that compared stay warm: the next question of the same room finds its trace read and its
code compiled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from assay.record.errors import AssayError, BadInput
from assay.sim.own_code import REFUSE

AT_ONCE = 2  # jobs of a kind that run; a third is refused, because it would only slow the others
UNSEEN = 70.0  # seconds without a look that end a comparison: a minute, and what browsers let a hidden page wait
LOOKS = 5.0  # seconds between two looks for such
KEPT = 40  # finished jobs whose answers can still be exported
GRACE = 20.0  # seconds that an interrupted study has to put its cases away
WARM = 2  # idle processes that wait for another question
LINE = 64 << 20  # bytes of an answer
SEEN = 2000  # events that a page that joins late still gets


class Busy(AssayError):  # noqa: N818
    """As many jobs run as may."""


@dataclass
class Progress:
    """Cases that are done, over all experiments of a job: it never runs backwards.

    How many experiments will follow nobody knows, so only the cases of the one that runs have a total.

    >>> progress = Progress()
    >>> for done, total in ((0, 3), (2, 3), (3, 3), (0, 8), (5, 8), (4, 8)):
    ...     progress.take(done, total)
    >>> progress
    Progress(done=8, experiment=2, of_it=5, total=8)
    """

    done: int = 0
    experiment: int = 0
    of_it: int = 0  # cases of the experiment that runs
    total: int = 0

    def take(self, done: int, total: int) -> None:
        """What the experiment that runs says of itself; it begins with none done."""
        if not self.experiment or total != self.total or (done == 0 and self.of_it):
            self.experiment, self.of_it, self.total = self.experiment + 1, 0, total
        self.done += max(0, done - self.of_it)
        self.of_it = max(self.of_it, done)


@dataclass(eq=False)
class Job:
    """A study or a comparison that runs or has run."""

    id: str
    kind: str  # run, compare, describe
    name: str  # the paper's key, or the comparison's name
    command: str  # what to type for the same
    request: Mapping[str, Any]
    seen: float  # when somebody last asked for it
    state: str = "running"  # then done, failed or stopped
    events: list[dict[str, Any]] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    answer: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    worker: Worker | None = None
    task: asyncio.Task[None] | None = None

    def told(self) -> dict[str, Any]:
        """What a page needs to know of it."""
        return {"id": self.id, "kind": self.kind, "name": self.name, "command": self.command, "state": self.state,
                "message": self.message}  # fmt: skip

    def note(self, event: dict[str, Any]) -> None:
        """Take down an event."""
        if len(self.events) < SEEN or event["event"] != "case":
            self.events.append(event)

    def since(self, number: int) -> dict[str, Any]:
        """What happened after so many events, how far it is, and with which number to ask next."""
        return {
            "next": len(self.events),
            "progress": msgspec.to_builtins(self.progress),
            "events": self.events[number:],
        }


Shown = Callable[[Job], str]  # what there is of a comparison's answer, as a part of a page


class Worker:
    """A process that answers requests, one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.name = ""
        self.said: list[str] = []  # the last lines of its error stream
        self._reader = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls, folder: Path, *, code: bool = False) -> Worker:
        """A new one, in a folder of its own; `code` lets it run a policy of the user's, and nothing else does."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "assay.web.child",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=folder, start_new_session=True, limit=LINE, env=_environment(code),
        )  # fmt: skip
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.returncode is None

    async def ask(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What it says about a request, until it has ended it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(request) + b"\n")
        await self.process.stdin.drain()
        while line := await self.process.stdout.readline():
            event: dict[str, Any] = msgspec.json.decode(line)
            yield event
            if event["event"] in ("done", "failed", "stopped"):
                return
        await self.process.wait()
        raise AssayError(self.cause())

    def cause(self) -> str:
        """Why it ended without an answer."""
        code = self.process.returncode
        last = self.said[-1] if self.said else ""
        how = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return f"the process ended without an answer ({how}){': ' if last else ''}{last}"

    def interrupt(self) -> None:
        """As Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    async def end(self) -> None:
        """Kill it with all it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):  # a line beyond all bounds
            while line := await self.process.stderr.readline():
                self.said = [*self.said[-19:], line.decode(errors="replace").strip()]


def _environment(code: bool) -> dict[str, str]:
    """Ours, without the token; and whether names such as file.py:Class are followed."""
    kept = {name: value for name, value in os.environ.items() if name != "ASSAY_WEB_TOKEN"}
    return kept | {REFUSE: "yes" if code else "no"}


class Jobs:
    """All jobs of a server, and the warm processes."""

    def __init__(self, shown: Shown = lambda job: "", clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self.known: dict[str, Job] = {}
        self._warm: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="assay-web-")  # empty: no name finds a file there

    @property
    def folder(self) -> Path:
        """Where processes run."""
        return Path(self._folder.name)

    def running(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.known.values() if job.state == "running"]

    def get(self, identity: str) -> Job:
        """A job by its id, for somebody who looks at it."""
        job = self.known[identity]
        job.seen = self._clock()
        return job

    async def end_unseen(self) -> None:
        """End comparisons that nobody has asked for in a minute."""
        for job in self.running():
            if job.kind == "compare" and self._clock() - job.seen >= UNSEEN:
                await self.cancel(job, "ended, as no page had asked for it in a minute")

    async def watch(self) -> None:
        """Look for such for ever."""
        while True:
            await asyncio.sleep(LOOKS)
            await self.end_unseen()

    def start(
        self, kind: str, name: str, command: str, request: Mapping[str, Any], *, limit: float, code: bool = False
    ) -> Job:
        """Begin a job; a study of the same paper, or the same comparison, that runs already is joined."""
        wanted = dict(request) | {"kind": kind, "name": name}
        others = [job for job in self.running() if job.kind == kind]
        for job in others:
            if job.name == name and (kind == "run" or job.request == wanted):
                job.seen = self._clock()
                return job
        if len(others) >= AT_ONCE:
            raise Busy(f"{' and '.join(job.name for job in others)} run already; wait for one, or cancel one")
        job = Job(secrets.token_hex(8), kind, name, command, wanted, self._clock())
        self._forget()
        self.known[job.id] = job
        job.task = self._begun(self._run(job, wanted, limit, code))
        return job

    def _begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def ask(self, kind: str, name: str, request: Mapping[str, Any], limit: float) -> Any:
        """The answer to a small question, of a warm process."""
        worker = await self._worker(name, code=False)
        try:
            async with asyncio.timeout(limit):
                async for event in worker.ask(dict(request) | {"kind": kind, "name": name}):
                    if event["event"] == "failed":
                        raise BadInput(event["message"])
                    if event["event"] == "done":
                        return event["answer"]
        except TimeoutError:
            await worker.end()
            raise AssayError(f"no answer within {limit:g} s") from None
        finally:
            await self._give_back(worker)

    async def _run(self, job: Job, request: dict[str, Any], limit: float, code: bool) -> None:
        worker = None
        try:
            worker = job.worker = await self._worker(job.name if job.kind == "compare" else "", code)
            async with asyncio.timeout(limit):
                async for event in worker.ask(request):
                    _heard(job, event, self._shown)
        except TimeoutError:
            who = "the policy did not come to an end: " if code else ""
            job.state, job.message = "failed", f"{who}stopped after {limit:g} s, the time limit"
        except (AssayError, OSError, ValueError, msgspec.MsgspecError) as error:
            if job.state == "running":
                job.state, job.message = "failed", str(error)
        finally:
            if job.state == "running":
                job.state, job.message = "failed", "the workbench was closed"
            if worker is not None:
                if job.kind == "run" or code or job.state != "done":
                    await worker.end()
                else:
                    await self._give_back(worker)
            job.worker = None
            job.note({"event": "end", "state": job.state, "message": job.message})

    async def cancel(self, job: Job, why: str = "cancelled") -> None:
        """End it early: a study keeps its finished cases."""
        worker = job.worker
        if job.state != "running":
            return
        if job.kind != "run" or worker is None:
            job.state, job.message = "stopped", why
            if worker is not None:
                await worker.end()
            elif job.task is not None:
                job.task.cancel()  # its process is only being started
            return
        worker.interrupt()

        async def insist() -> None:
            await asyncio.sleep(GRACE)
            if job.state == "running":
                job.state, job.message = "stopped", "cancelled; it did not end by itself"
                await worker.end()

        self._begun(insist())

    async def _worker(self, name: str, code: bool) -> Worker:
        """A process for a question: the one that knows the name, else any warm one, else a new one."""
        if name and not code:
            self._warm = [worker for worker in self._warm if worker.alive]
            best = next((w for w in self._warm if w.name == name), None)
            if best is not None:
                self._warm.remove(best)
                return best
        worker = await Worker.start(self.folder, code=code)
        worker.name = name
        return worker

    async def _give_back(self, worker: Worker) -> None:
        if not worker.alive:
            return
        self._warm.append(worker)
        while len(self._warm) > WARM:
            await self._warm.pop(0).end()

    def _forget(self) -> None:
        ended = [identity for identity, job in self.known.items() if job.state != "running"]
        for identity in ended[: max(0, len(self.known) - KEPT)]:
            del self.known[identity]

    async def close(self) -> None:
        """Interrupt what runs, kill what waits."""
        for job in self.running():
            if job.worker is not None:
                job.worker.interrupt()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        for task in list(self._tasks):
            task.cancel()
        for worker in [*self._warm, *(job.worker for job in self.known.values() if job.worker)]:
            await worker.end()
        self._folder.cleanup()


def _heard(job: Job, event: dict[str, Any], shown: Shown) -> None:
    match event["event"]:
        case "table":
            job.answer["answer"] = event["answer"]
            job.note({"event": "table", "html": shown(job)})
        case "done":
            job.answer |= event.get("answer") or {}
            job.state = "done"
            if job.kind == "compare":
                job.note({"event": "charts", "html": shown(job)})
        case "failed" | "stopped" as state:
            job.state, job.message = state, event["message"]
        case "progress":
            job.progress.take(event["done"], event["total"])
        case _:
            job.note(event)
