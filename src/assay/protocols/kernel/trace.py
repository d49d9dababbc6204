"""A schedule that goes wrong: looked for, replayed, cut down to what it takes, kept in a small file.

What Byzantine nodes said in the run is part of the trace: in a replay they are silent themselves, and their messages
are under way from the start. So the rest can be cut without changing their minds.

`search` tries adversarial schedules by the thousand: many seeds, several schedulers, until a judge objects.

>>> from assay.protocols.faults.two_faced import twins
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.broadcast import Bracha
>>> def two_liars(seed):
...     return twins(World(n=4, f=1, node=Bracha, seed=seed), {0: ("a", "b"), 1: (None, None)}, half={2})
>>> found = search(two_liars, lambda world, outcome: "split" if outcome.conflicts else None, schedules=100)
>>> print(found.trace)
step  from  to  message
   1     0   2  ('ready', 'b')
   2     1   2  ('ready', 'b')
   3     0   3  ('ready', 'a')
   4     1   3  ('ready', 'a')
split
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.protocols.faults import Composed, Crash, Delay, Eclipse, Halt, Omit, Silence, When
from assay.protocols.interface import Fault, NodeId
from assay.protocols.kernel import wire
from assay.protocols.kernel.asynchronous import (
    Asynchronous,
    DelayVictim,
    Fifo,
    QuorumStarver,
    Random,
    Replay,
    Scheduler,
    SplitBrain,
)
from assay.protocols.kernel.explore import Identity, Judge
from assay.protocols.kernel.run import Outcome
from assay.record.errors import BadInput, unreadable
from assay.sim.random import stream

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World


FORMAT = "assay-trace-1"


@dataclass(frozen=True)
class Trace:
    """Deliveries in order, and what the judge says of the run."""

    events: tuple[Identity, ...]
    why: str
    seed: int = 0
    """Of the world in which it happens."""

    def __str__(self) -> str:
        """A table: step, from, to, message."""
        rows = [("step", "from", "to", "message")]
        rows += [
            (str(step), "timer" if src < 0 else str(src), str(dst), _short(msg))
            for step, (src, dst, msg) in enumerate(self.events, 1)
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{step:>{widths[0]}}  {src:>{widths[1]}}  {dst:>{widths[2]}}  {msg}" for step, src, dst, msg in rows]
        return "\n".join([*lines, self.why])


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:3].hex() + ("…" if len(value) > 3 else "")
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_short, value)) + ")"
    return repr(value)


def is_benign(fault: Fault) -> bool:
    """Whether a node with this fault says nothing that its code does not say."""
    if isinstance(fault, Composed):
        return all(map(is_benign, fault.faults))
    if isinstance(fault, When):
        return is_benign(fault.fault)
    return isinstance(fault, (Crash, Halt, Omit, Silence, Delay, Eclipse))


def byzantine(world: World) -> frozenset[NodeId]:
    """The nodes that may say anything."""
    return frozenset(node for node, fault in world.faults.items() if not is_benign(fault))


def replay(world: World, events: Sequence[Identity]) -> Outcome:
    """The run in which exactly these things happen, but for those that cannot."""
    liars = byzantine(world)
    silent = replace(world, faults={**world.faults, **{node: Crash() for node in liars}})
    run = Asynchronous(silent, metered=False, traced=True)
    for event in events:
        if event[0] in liars:
            run.inject(*event)
    outcome = run.go(Replay(events), None, math.inf)
    if all(event.dst in liars for event in run.pending):
        outcome.stopped = "quiet"  # what is under way to a liar has no effect
    return outcome


def happened(world: World, outcome: Outcome) -> tuple[Identity, ...]:
    """The deliveries of a traced run, without those to Byzantine nodes."""
    liars = byzantine(world)
    return tuple((src, dst, msg) for _, src, dst, msg in outcome.trace if dst not in liars)


def shrink(world: World, judge: Judge, events: Sequence[Identity]) -> Trace:
    """A part of the trace that still goes wrong, of which nothing can be left out.

    Raises:
        ValueError: where the trace itself goes right.

    """
    kept: tuple[Identity, ...] = ()
    why = ""

    def wrong(part: Sequence[Identity]) -> bool:
        nonlocal kept, why
        outcome = replay(world, part)
        said = judge(world, outcome)
        if said is not None:
            kept, why = happened(world, outcome), said
        return said is not None

    if not wrong(events):
        raise ValueError("the judge has no objection to this trace; nothing to shrink")
    delta(wrong, lambda: kept)
    return Trace(kept, why, world.seed)


def delta(wrong: Callable[[Sequence[Any]], bool], kept: Callable[[], tuple[Any, ...]]) -> None:
    """Try to leave out halves, quarters, … single events, until no single one can go (Zeller, Hildebrandt, 2002).

    `wrong` takes a part and, if that is still wrong, makes it what `kept` returns.
    """
    size = max(1, len(kept()) // 2)
    while True:
        before = len(kept())
        end = len(kept())  # from the end: what comes late depends on what came early
        while end > 0:
            now = kept()
            wrong((*now[: max(0, end - size)], *now[end:]))
            end = min(end - size, len(kept()))
        if size == 1 and len(kept()) == before:
            return
        size = max(1, size // 2)


# ------------------------------------------------------------------------------------------------------------- files


def save(path: str | Path, world: World, trace: Trace) -> None:
    """Write a trace as JSON, whole or not at all; bytes are written as {"hex": …}."""
    from assay.record.store import write_whole

    rows = ",\n  ".join(json.dumps([src, dst, _outward(msg)], ensure_ascii=False) for src, dst, msg in trace.events)
    head = {"format": FORMAT, "why": trace.why, "n": world.n, "f": world.f, "seed": world.seed}
    text = json.dumps(head, ensure_ascii=False)[:-1] + ', "events": [\n  ' + rows + "\n]}\n"
    write_whole(Path(path), text.encode())


def load(path: str | Path) -> Trace:
    """Read a trace.

    Raises:
        BadInput: what is wrong, where, and what would be right.

    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error, "a trace that `save` wrote expected") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({error}); a trace that `save` wrote expected") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("events"), list):
        raise BadInput(f'{path}: "format": "{FORMAT}" and a list of "events" expected')
    events = []
    for number, row in enumerate(content["events"], 1):
        try:
            src, dst, msg = row
            events.append((_whole(src), _whole(dst), _inward(msg)))
        except (TypeError, ValueError):
            raise BadInput(f"{path}: event {number} is {str(row)[:60]}; [from, to, [kind, …]] expected") from None
    seed = content.get("seed")
    return Trace(tuple(events), str(content.get("why", "")), seed if isinstance(seed, int) else 0)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _outward(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_outward(item) for item in value] if isinstance(value, tuple) else value


def _inward(value: Any) -> Any:
    """Tuples for lists, bytes for {"hex": …}; ValueError for anything that is no message."""
    if not isinstance(value, list):
        raise ValueError
    return wire.plain(_unhex(value))


def _unhex(value: Any) -> Any:
    if isinstance(value, dict) and list(value) == ["hex"]:
        return bytes.fromhex(value["hex"])
    return [_unhex(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Searched:
    """How far the search came, and what it found."""

    schedules: int
    deliveries: int
    finished: int
    """Runs that came to their end (quiet, or `until`) before the limit."""
    decided: int
    """Runs in which a node that is not Byzantine put something out, or operations began; else little is judged."""
    seconds: float
    trace: Trace | None = None
    """The first violation, shrunk."""
    seed: int = -1
    """Of the world in which it happens."""
    length: int = 0
    """Deliveries before shrinking."""


def scheduler(world: World, seed: int) -> Scheduler:
    """One of the built-in schedulers, by the seed, with victims and halves drawn at random."""
    rng = stream(seed, "search")
    total = world.n + len(world.clients)
    chosen = frozenset(rng.permutation(total)[: int(rng.integers(1, max(2, total)))].tolist())
    match seed % 6:
        case 0 | 1:
            return Random(seed, timers=float(10.0 ** rng.uniform(-3, 0)))
        case 2:
            return DelayVictim(sorted(chosen)[:1], seed)
        case 3:
            return SplitBrain(chosen, seed)
        case 4:
            return QuorumStarver(seed)
    return Fifo() if rng.random() < 0.1 else DelayVictim(chosen, seed)


def search(
    make: Callable[[int], World], judge: Judge, schedules: int, *, first: int = 0, limit: int = 2_000,
    until: Callable[[Outcome], bool] | None = None, seconds: float = 3600.0, traced: bool = False,
    around: Callable[[Scheduler], Scheduler] = lambda inner: inner,
) -> Searched:  # fmt: skip
    """Run `make(seed)` under `scheduler` for so many seeds; stop at the first run that the judge objects to.

    `traced` is for a judge that looks at deliveries; `around` may restrict what the schedulers pick.
    """
    begun = time.perf_counter()
    deliveries = finished = decided = 0
    for seed in range(first, first + schedules):
        world = make(seed)
        options: dict[str, Any] = {"until": until, "limit": limit, "metered": False}
        outcome = world.run("async", scheduler=around(scheduler(world, seed)), traced=traced, **options)
        deliveries += outcome.meter.deliveries
        finished += outcome.stopped != "limit"
        liars = byzantine(world)
        decided += any(entry.node not in liars for entry in outcome.log) or bool(outcome.operations)
        done = seed + 1 - first
        if judge(world, outcome) is not None:
            again = world.run("async", scheduler=around(scheduler(world, seed)), traced=True, **options)
            events = happened(world, again)
            trace = shrink(world, judge, events)
            return Searched(done, deliveries, finished, decided, time.perf_counter() - begun, trace, seed, len(events))
        if time.perf_counter() - begun > seconds:
            break
    return Searched(done, deliveries, finished, decided, time.perf_counter() - begun)
