"""Two ranks kept at work: each candidate is compiled, verified on random inputs, and only then timed.

Verified means: on three inputs that nobody saw before the search began, with rooms and results filled with what is no
number, once as it comes and once with either rank dawdling (it reads late, and what it sends comes late), the results
are the reference's. A candidate that raises, hangs or kills its rank has failed, and gets fresh ranks for the next one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from assay.record.errors import BadInput, unreadable
from assay.record.types import NotMeasured
from assay.sim import own_code
from assay.sim.ranks import Ranks
from assay.sim.scratch import scratch
from assay.sim.search import Candidate, Islands, Search
from assay.training.cuco.program import RANKS, Lowered, Program, Uncompilable, lower
from assay.training.cuco.run import Job, Shot, serve
from assay.training.cuco.targets import TARGETS
from assay.training.cuco.wire import WIRES
from assay.training.engine.shaped import Link

CHECKS = 3  # inputs on which a candidate is verified, at least
SETTLED = 5  # runs that tell how long host-driven communication takes
FINAL = 4  # candidates that run in turns before one of them is called the best
CLOSE = 1e-4  # in parts of the largest right number: float32, summed in another order
PATIENCE = 10.0  # seconds that a rank waits for the other within a run
HANGS = 120.0  # seconds after which a rank that says nothing is given up
IMPORTS = ("torch", __name__)  # once for all ranks
FAST = 1.0  # gigabit a second
DAWDLES = 1.25  # times as long as host-driven communication: by then all has come that will, or has been overwritten


@dataclass(frozen=True)
class Outcome:
    """How far a candidate came: `stage` is where it failed, or nothing."""

    stage: str = ""
    note: str = ""
    errors: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Of its timed runs."""
        return float(np.median(self.seconds))

    def with_more(self, seconds: list[float]) -> Outcome:
        """After more timed runs."""
        return replace(self, seconds=(*self.seconds, *seconds))


def named(source: str) -> str:
    """Where a target's class lies: one of ours by name, or FILE.py:CLASS as it is, from the root."""
    if source in TARGETS:
        return f"{TARGETS[source].__module__}:{TARGETS[source].__name__}"
    where, _, name = source.rpartition(":")
    if not where:
        raise BadInput(f"no program '{source}'; one of {', '.join(TARGETS)} or FILE.py:CLASS expected")
    return f"{Path(where).resolve()}:{name}" if where.endswith(".py") else source


@dataclass
class Bench:
    """Two ranks that run a program under whatever directive they are given; use it in a `with` block."""

    source: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    link: Link = field(default_factory=lambda: Link(FAST * 125e6, shaped=True))
    seed: int = 0
    rounds: int = 3
    patience: float = PATIENCE
    evaluated: int = 0
    restarts: int = -1
    known: dict[Lowered, Outcome] | None = None  # where it is given, a program is judged once, and remembered
    _dawdle: float = 0.0

    def __enter__(self) -> Bench:
        self.program = _made(self.source, self.sizes)
        self._open: ExitStack | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        data = self.program.inputs(self.seed, 0)
        wires = [stage for stage in self.program.stages if stage.wire]
        nbytes = sum(data[wire.reads[0]].nbytes for wire in wires)
        self._open = ExitStack()
        self.restarts += 1
        folder = self._open.enter_context(scratch())
        pipes = [multiprocessing.get_context("forkserver").Pipe() for _ in range(RANKS)]
        self._ends = [self._open.enter_context(ours) for ours, _ in pipes]
        self._open.enter_context(Ranks(
            RANKS, serve, str(folder), named(self.source), dict(self.sizes), self.link, self.patience,
            [theirs for _, theirs in pipes], imports=IMPORTS,
            arrays={"words": np.zeros((RANKS, 2, WIRES), np.int64), "window": np.zeros((RANKS, nbytes), np.uint8),
                    "when": np.zeros((RANKS, WIRES, self.program.tiles))},
        ))  # fmt: skip
        for _, theirs in pipes:
            theirs.close()

    def stop(self) -> None:
        """End the ranks; the next directive gets new ones."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def shots(self, directive: Mapping[str, Any], shots: tuple[Shot, ...]) -> list[tuple[float, float]] | str:
        """Seconds and error of each run, of the slower rank and of the worse; or what went wrong."""
        if self._open is None:
            self._start()
        answers: dict[Any, Any] = {}
        try:
            for end in self._ends:
                end.send(Job(dict(directive), shots))
            while len(answers) < RANKS:
                ready = wait([end for end in self._ends if end not in answers], HANGS)
                if not ready:
                    raise EOFError("hangs")
                answers |= {end: end.recv() for end in self._ends if end in ready}
                if told := next((one for one in answers.values() if isinstance(one, str)), None):
                    raise EOFError(told)
        except (EOFError, OSError) as error:
            self.stop()  # whatever is still on its way belongs to nobody
            return str(error) or "a rank died"
        each = list(answers.values())
        return [
            (max(one[1] for one in both) - min(one[0] for one in both), float(np.max([one[2] for one in both])))
            for both in zip(*each, strict=True)
        ]

    def evaluate(self, directive: Mapping[str, Any]) -> Outcome:
        """The cascade: a failed step ends it."""
        self.evaluated += 1
        try:
            program = lower(self.program, directive)
        except Uncompilable as error:
            return Outcome("compile", str(error))
        if self.known is None:
            return self._judged(directive)
        if program not in self.known:
            self.known[program] = self._judged(directive)
        return self.known[program]

    def _judged(self, directive: Mapping[str, Any]) -> Outcome:
        errors: list[float] = []
        first: list[float] = []
        for k, slow in enumerate((None, *range(RANKS))[:CHECKS]):
            shot = Shot(self.seed * CHECKS + k, check=True, slow=slow, dawdle=self._dawdle)
            found = self.shots(directive, (shot,))
            if isinstance(found, str):
                return Outcome("verify", found)
            errors.append(found[0][1])
            first += [found[0][0]] if slow is None else []  # a run like those below: checking begins when it has ended
            if not errors[-1] <= CLOSE:
                return Outcome("verify", f"input {k}: off by {errors[-1]:.3g}", tuple(errors))
        more = (Shot(self.seed * CHECKS),) * (self.rounds - 1)
        timed = self.shots(directive, more) if more else []
        if isinstance(timed, str):
            return Outcome("time", timed)
        return Outcome(errors=tuple(errors), seconds=(*first, *(seconds for seconds, _ in timed)))

    def settle(self, directive: Mapping[str, Any]) -> Outcome:
        """Evaluate the safe version, the first of all: its time says how long a rank dawdles from here on."""
        shot = Shot(self.seed * CHECKS)
        self.shots(directive, (shot,))  # the first run loads what is needed
        timed = self.shots(directive, (shot,) * SETTLED)
        seconds = [] if isinstance(timed, str) else [one for one, _ in timed]
        self._dawdle = DAWDLES * float(np.median(seconds)) if seconds else 0.0
        found = self.evaluate(directive)
        if found.stage:
            raise BadInput(f"{self.source}: the safe version fails to {found.stage}: {found.note}")
        return found.with_more(seconds)

    def race(self, directives: Mapping[str, Mapping[str, Any]], rounds: int) -> dict[str, list[float]]:
        """Seconds of each directive in each round, all of them once a round, in a rotating order."""
        names = list(directives)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found = self.shots(directives[name], (Shot(self.seed * CHECKS),))
                if isinstance(found, str):
                    raise NotMeasured(f"{name}: {found}")
                seconds[name].append(found[0][0])
        return seconds


def _made(source: str, sizes: Mapping[str, Any]) -> Program:
    """The program, with a word on what is missing where something is."""
    made = own_code.load(named(source))
    try:
        program: Program = made(**sizes)
        data = [program.inputs(0, rank) for rank in range(RANKS)]
        wires = [stage for stage in program.stages if stage.wire]
        lacking = [s.name for s in program.stages if not s.wire and not callable(getattr(program, s.name, None))]
        wrong = [w.name for w in wires for one in data if len(one[w.reads[0]]) != program.tiles]
        reference = [program.reference(data, rank) for rank in range(RANKS)]
    except Exception as error:
        raise BadInput(
            f"{source} should be a class with tiles, stages, inputs, result and reference: "
            f"{type(error).__name__}: {error}"
        ) from error
    if lacking or wrong or not 1 <= len(wires) <= WIRES or any(one is None for one in reference):
        raise BadInput(
            f"{source}: " + (f"no function {lacking[0]}(data, tiles, got)" if lacking else
                             f"what {wrong[0]} moves should have {program.tiles} tiles as its first dimension"
                             if wrong else f"1 to {WIRES} stages with wire=True expected")
        )  # fmt: skip
    return program


class Database:
    """Candidates that passed, a line of JSON each, on disk before anybody hears of them.

    >>> import tempfile
    >>> where = Path(tempfile.mkdtemp()) / "found.jsonl"
    >>> Database(where).add({"directive": {}, "errors": [0.0, 0.0], "seconds": [1.0]})
    Traceback (most recent call last):
    ValueError: 2 of at least 3 verifications, all within 0.0001, before a candidate is kept
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep a candidate; ValueError unless it was verified."""
        passed = sum(error <= CLOSE for error in entry["errors"])
        if passed < CHECKS or passed < len(entry["errors"]) or not entry["seconds"]:
            raise ValueError(
                f"{passed} of at least {CHECKS} verifications, all within {CLOSE:g}, before a candidate is kept"
            )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(self.path, error) from None
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                yield {key: entry[key] for key in ("id", "program", "sizes", "gbit", "seed", "directive", *entry)}
            except (ValueError, KeyError, TypeError):
                raise BadInput(f"{self.path}, line {number}: not a candidate of assay compare cuco") from None


def pursue(
    bench: Bench, search: Search, budget: int, base: float, database: Database | None = None,
    say: Callable[[Candidate], None] = lambda one: None,
) -> None:  # fmt: skip
    """Try so many candidates; `base` are the seconds of host-driven communication that scores are told against."""
    names = list(search.knobs)  # type: ignore[attr-defined]
    while len(search.tried) < budget:
        try:
            asked = search.ask()
        except StopIteration:
            return
        directive = dict(zip(names, asked.values, strict=True))
        outcome = bench.evaluate(directive)
        search.tell(0.0 if outcome.stage else base / outcome.median, outcome.stage, outcome.note)
        if database is not None and not outcome.stage:
            lineage = {"generation": asked.generation, "island": asked.island, "phase": asked.phase}
            database.add({
                "id": len(search.tried), "program": bench.source, "sizes": dict(bench.sizes),
                "gbit": bench.link.bandwidth / 125e6, "seed": bench.seed, "directive": directive, **lineage,
                "score": search.tried[-1].score, **asdict(outcome),
            })  # fmt: skip
        say(search.tried[-1])


def front(search: Search) -> list[dict[str, Any]]:
    """The candidates that scored best, at most a few."""
    names = list(search.knobs)  # type: ignore[attr-defined]
    scores = {one.values: one.score for one in search.tried if one.score > 0}
    return [dict(zip(names, values, strict=True)) for values in sorted(scores, key=lambda one: -scores[one])[:FINAL]]


def winner(bench: Bench, search: Search, rounds: int) -> dict[str, Any] | None:
    """Of the candidates that scored best, the one that is fastest when they run in turns; none where none was right.

    A score comes from a few runs, and the best of many scores is rather lucky than fast.
    """
    best = front(search)
    if not best:
        return None
    seconds = bench.race({str(at): one for at, one in enumerate(best)}, rounds)
    return min(best, key=lambda one: float(np.median(seconds[str(best.index(one))])))


def again(entry: Mapping[str, Any], rounds: int = 3) -> Outcome:
    """Build, verify and time a candidate of a database once more."""
    link = Link(entry["gbit"] * 125e6, shaped=True)
    with Bench(entry["program"], entry["sizes"], link, entry["seed"], rounds) as bench:
        return bench.evaluate(entry["directive"])


__all__ = ["Bench", "Database", "Islands", "Outcome", "again", "pursue"]
