"""One instance of the simulator with requests that come one by one: what a mock engine runs on the wall clock.

It is the compiled core of `assay.serving.engine.simulator`, iteration by iteration, so its times are the simulator's
to the last bit. Only what a trace says beforehand is found as it comes: which blocks of a prompt somebody had before,
and which numbers are free. Nothing grows with the number of requests served.

>>> import numpy as np
>>> from assay.sim.llm_cost import StepCost
>>> engine = OnlineInstance(Instance(StepCost(tokens=0.010 + 1e-5 * np.arange(9000), kv_tokens=100_000)))
>>> prompt, answer = np.arange(1000, dtype=np.uint32), np.arange(3, dtype=np.uint32)
>>> slot = engine.submit(prompt, answer, now=5.0)
>>> [(round(e.time, 6), e.slots.tolist(), e.finished.tolist()) for e in engine.advance(6.0)]
[(5.02, [0], []), (5.03001, [0], []), (5.04002, [0], [0])]
>>> engine.next, engine.running, engine.totals.generation_tokens
(inf, 0, 3)
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-calls=False, disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.serving.engine import block_names as blocks
from assay.serving.engine import state
from assay.serving.engine import views as v
from assay.serving.engine.batch import finish_decode, withdraw
from assay.serving.engine.core import enqueue, plan_group, settle_group
from assay.serving.engine.own_books import depart
from assay.serving.engine.prefix_cache import JIT, clear, disown
from assay.serving.engine.queues import add_end, drop_end, pop, push
from assay.serving.engine.state import (
    AHEAD,
    DECODING,
    FINISHED,
    FINISHED_COUNT,
    NONE,
    ON_PATH,
    PLAN,
    PREFILLING,
    SETTLE,
    WAITING,
    World,
)
from assay.serving.engine.world import build, new_entries
from assay.serving.fleet import FleetSpec, Instance, check
from assay.serving.interface import Finished, Order, Request
from assay.sim.block_hash import KEY
from assay.sim.compiled import njit
from assay.workloads.requests import Requests

Slots = NDArray[np.int32]
LONGEST_TURN = 2**31 - 2**24  # turns are 32 bits wide
# Slots of `tally`: cancellations to see to, and what is counted.
LEAVING, QUERIES, HITS, PROMPTS, GENERATED = range(5)
ROW = np.dtype([("time", "f8"), ("tokens", "i4"), ("finished", "i4")], align=True)  # the latter: how many up to here
ROWS = 64  # iterations in one call of the core


class AllSlotsTaken(RuntimeError):  # noqa: N818 - read as a sentence: raise AllSlotsTaken("…")
    """As many requests as the instance was made for are on board."""


class Emission(NamedTuple):
    """The end of one iteration: who got a token, and for whom it was the last."""

    time: float
    slots: Slots
    finished: Slots


class Progress(NamedTuple):
    """What became of a request so far; times are NaN until they come."""

    prompt: int
    output: int
    cached: int  # prompt tokens that were in the cache when it was first admitted
    preemptions: int
    arrival: float
    admitted: float
    first: float
    finish: float


class Totals(NamedTuple):
    """What was counted since the beginning."""

    iterations: int
    preemptions: int
    prefix_queries: int  # prompt tokens looked up in the cache, and found
    prefix_hits: int
    prompt_tokens: int  # of requests that got their first token
    generation_tokens: int


class Cleared(NamedTuple):
    """Nothing is in the cache, but for what is stored from here on."""


class Stored(NamedTuple):
    """Blocks that came into the cache, each continuing the one before it."""

    words: list[int]
    before: int | None  # the word of the block that the first one continues; None: it begins a prompt
    tokens: NDArray[np.uint32]


class Removed(NamedTuple):
    """Blocks that left the cache."""

    words: list[int]


Change = Cleared | Stored | Removed


# -------------------------------------------------------------------------------------------- compiled


@njit(**JIT)
def _enter(handle, n, r, turn, tokens, prompt, output, key, secret, now):
    """Request r, with its prompt and its answer in `tokens`, waits from now on."""
    w = handle[0]
    request = v.requests(w)[r]
    request.turn, request.prompt, request.output, request.key, request.arrival = turn, prompt, output, key, now
    request.admitted, request.first, request.finish = np.nan, np.nan, np.nan
    request.emitted, request.target, request.pre, request.chunk, request.ready = 0, 0, 0, 0, 0
    request.reuse, request.extra, request.cached, request.fetched, request.preemptions = 0, 0.0, 0, 0, 0
    request.held, request.shared, request.private, request.writing = 0, 0, 0, 0
    disown(w, r)  # what the one before it in this slot left
    request.state, request.prefilled_by = AHEAD, NONE
    blocks.lay(w, n, r, tokens, secret)
    request.path_blocks = min(prompt, len(tokens)) // w.block
    enqueue(w, 0, r, now)


@njit(**JIT)
def _emitting(w, left, who, used, tally):
    """Write down who has a token when the iteration in flight ends, but for those who left."""
    instance = v.instances(w)[0]
    if instance.mixed:
        for slot in range(instance.decodes):
            r = v.finishing(w)[0][slot].request % w.n_requests
            if left[r] == 0:
                who[used] = r
                used += 1
        tally[GENERATED] += instance.decodes
    for slot in range(instance.prefills):
        r = v.chunks(w)[0, slot]
        request = v.requests(w)[r]
        if request.pre + request.chunk == request.target:
            tally[GENERATED] += 1
            if request.emitted == 0:
                tally[PROMPTS] += request.prompt
            if left[r] == 0:
                who[used] = r
                used += 1
    return used


@njit(**JIT)
def _cut_short(w, r, now):
    """A decode ends here, as if this had been its last token: its answer so far can be found by others."""
    instance, heap = v.instances(w)[0], v.finishing(w)[0]
    for slot in range(instance.decodes):
        turn = heap[slot].request
        if turn % w.n_requests == r:
            drop_end(heap, instance.decodes, slot)
            add_end(heap, instance.decodes - 1, instance.k, turn)
            break
    finish_decode(w, 0, now)
    instance.changed = 1


@njit(**JIT)
def _unqueue(w, left):
    """Take those who left out of the queue."""
    instance = v.instances(w)[0]
    staying, count = np.empty(instance.waiting, np.int32), 0
    while instance.waiting > 0:
        r = pop(w, 0)
        if left[r]:
            instance.uncomputed -= v.requests(w)[r].expected
            v.requests(w)[r].state = FINISHED
            depart(w, 0, r)
        else:
            staying[count] = r
            count += 1
    for at in range(count):
        push(w, 0, staying[at])


@njit(**JIT)
def _see_off(w, leaving, left, tally, now):
    """Between two iterations, those who left let go of what they hold."""
    queued = False
    for at in range(tally[LEAVING]):
        r = leaving[at]
        request = v.requests(w)[r]
        if request.state == WAITING:
            queued = True
        elif request.state == PREFILLING:
            withdraw(w, 0, r, False)
            depart(w, 0, r)
            request.state = FINISHED
        elif request.state == DECODING:
            _cut_short(w, r, now)
    if queued:
        _unqueue(w, left)
    tally[LEAVING] = 0


@njit(**JIT)
def _count_admitted(w, tally, now):
    """Count what those who were admitted for the first time just now found in the cache: they are the newest."""
    r = v.instances(w)[0].newest
    while r >= 0 and v.requests(w)[r].admitted == now:
        tally[QUERIES] += v.requests(w)[r].prompt
        tally[HITS] += v.requests(w)[r].cached
        r = v.requests(w)[r].older


@njit(**JIT)
def _run(handle, n, until, leaving, left, tally, rows, who):
    """Process boundaries before `until` as far as there is room for what comes of them; how many rows are filled."""
    w = handle[0]
    group, finished, counts = v.groups(w)[0], v.finished(w), v.counts(w)
    count, used, over = 0, 0, 0
    while group.next < until and count < len(rows) and used + w.seats <= len(who):
        now, before = group.next, used
        counts[FINISHED_COUNT] = over
        if group.phase == SETTLE:
            used = _emitting(w, left, who, used, tally)
            settle_group(w, 0)
            group.phase = PLAN
        if tally[LEAVING] > 0:
            _see_off(w, leaving, left, tally, now)
        for at in range(over, counts[FINISHED_COUNT]):
            if left[finished[at]] == 0:
                finished[over] = finished[at]
                over += 1
        if used > before:
            rows[count].time, rows[count].tokens, rows[count].finished = now, used, over
            count += 1
        plan_group(w, 0)
        _count_admitted(w, tally, now)
    blocks.note_changes(w, n)
    return count


# ---------------------------------------------------------------------------------------- the instance


class OnlineInstance:
    """One instance; `slots` requests on board at once, each of at most `longest` tokens of prompt and answer.

    Who is submitted or leaves at a time that is past does so at the latest time seen. With `events`, `changes` tells
    what came into the cache and what left it.
    """

    def __init__(
        self, spec: Instance, *, block: int = 16, slots: int = 1024, longest: int = 131072,
        prefix_cache: bool = True, order: Order | None = None, events: bool = False, secret: int = KEY,
    ) -> None:  # fmt: skip
        fleet = FleetSpec((spec,), block=block)
        check(fleet)
        if spec.role != "both" or spec.host_tokens:
            raise BadInput("an instance on its own needs the role 'both', and has no tier in host memory")
        self.block, self.slots, self.longest = block, slots, min(longest, (spec.room // block - 1) * block)
        self._order, self._prefix_cache, self._events = order, prefix_cache, events
        self._secret = np.uint64(secret)
        stride = self.longest // block + 1 if prefix_cache else 1
        capacity = spec.room // block
        size = capacity + 2 * stride if prefix_cache else 1
        self._names = blocks.new_names(size, block, 4 * capacity + 1024 if events else 0)
        self.world: World = _world(fleet, slots, stride, size, prefix_cache)
        self._group, self._instance, self._cache = self.world.groups[0], self.world.instances[0], self.world.caches[0]
        self._clock = self.world.groups["next"]
        self._tally = np.zeros(5, np.int64)
        self._rows, self._who = np.zeros(ROWS, ROW), np.zeros(max(4 * spec.max_seqs, 1024), np.int32)
        self._left, self._leaving = np.zeros(slots, np.uint8), np.zeros(slots, np.int32)
        self._taken = bytearray(slots)
        self._turn, self._now = 0, 0.0
        self._ready: list[Emission] = []  # came about before the caller asked
        self._asked: dict[int, Request] = {}  # by slot, where the order learns from answers

    # ------------------------------------------------------------------------------------ in and out

    def submit(
        self, tokens: NDArray[np.uint32], answer: NDArray[np.uint32], now: float, key: float | None = None
    ) -> int:
        """Queue a prompt whose answer will be `answer`; returns its slot, which is its own until it is over.

        Raises `BadInput` where it can never fit, and `AllSlotsTaken`.
        """
        prompt, output = len(tokens), len(answer)
        if not prompt or not output:
            raise BadInput("a request needs at least one prompt token and one output token")
        need, capacity = -(-(prompt + output) // self.block) + 1, int(self._cache["capacity"])
        if prompt + output > self.longest or need > capacity:
            most = min(self.longest, (capacity - 1) * self.block)
            raise BadInput(f"{prompt} prompt and {output} output tokens do not fit; there is room for {most} in all")
        self._now = max(self._now, now)
        self._run(self._now)
        slot = self._take_slot()
        # The last token of an answer is never computed on, so it has no KV.
        known = np.concatenate((tokens, answer[:-1]), dtype=np.uint32) if self._prefix_cache else _NOTHING
        if key is None:
            key = self._now if self._order is None else self._order.key(self._request(slot, prompt), self._now)
        while self._names.counts[blocks.LEFT] < len(known) // self.block:
            self._grow()
        _enter(
            self.world.handle, self._names, slot, self._turn - 1, known, prompt, output, key, self._secret, self._now
        )
        return slot

    def cancel(self, slot: int, now: float) -> None:
        """The client left: at the end of the iteration in flight the request lets go of its memory.

        What was computed stays in the cache. From here on nothing is reported of the slot.
        """
        self._now = max(self._now, now)
        self._run(self._now)
        if not self._taken[slot] or self._left[slot]:
            return
        self._ready = [
            e._replace(slots=_without(e.slots, slot), finished=_without(e.finished, slot)) for e in self._ready
        ]
        self._left[slot] = 1
        if self.world.requests[slot]["state"] == FINISHED:
            self._free_slot(slot)
            return
        self._leaving[self._tally[LEAVING]] = slot
        self._tally[LEAVING] += 1

    @property
    def next(self) -> float:
        """When there is something to `advance` to; infinity while nothing is on board."""
        return self._ready[0].time if self._ready else float(self._clock[0])

    def advance(self, now: float) -> list[Emission]:
        """Everything that happens up to and including `now`, in order; iterations without a token are left out.

        A slot that is reported as finished may be given to the next `submit`: look at `progress` before.
        """
        if now < math.inf:
            self._now = max(self._now, now)
        self._run(math.nextafter(now, math.inf))
        ready, self._ready = [emission for emission in self._ready if len(emission.slots)], []
        for emission in ready:
            for slot in emission.finished.tolist():
                if slot in self._asked:
                    self._tell(slot)
                self._free_slot(slot)
        return ready

    def _run(self, until: float) -> None:
        """Let the core process every boundary before `until`."""
        while self._clock[0] < until:
            leaving = self._leaving[: self._tally[LEAVING]].tolist()
            count = _run(
                self.world.handle, self._names, until, self._leaving, self._left, self._tally, self._rows, self._who
            )
            self._ready += _emissions(self._rows[:count].tolist(), self._who, self.world.finished)
            for slot in leaving:
                self._free_slot(slot)

    # ----------------------------------------------------------------------------------------- slots

    def _take_slot(self) -> int:
        """A free slot for the next turn. Slots are given out in rotation, so the remainder of a turn is its slot."""
        at = self._turn % self.slots
        slot = self._taken.find(0, at)
        if slot < 0:
            slot = self._taken.find(0)
            if slot < 0:
                raise AllSlotsTaken(f"all {self.slots} slots are taken")
        self._turn += (slot - at) % self.slots + 1
        self._taken[slot] = 1
        self._left[slot] = 0
        if self._turn > LONGEST_TURN:
            self._turn_back()
        return slot

    def _turn_back(self) -> None:
        """Take the same from all turns, which keeps their order and, being a multiple of the slots, who has which."""
        requests, taken = self.world.requests, np.frombuffer(self._taken, np.uint8) != 0
        requests["turn"][(self._turn - 1) % self.slots] = self._turn - 1  # the one that has just been taken
        base = int(requests["turn"][taken].min()) // self.slots * self.slots
        requests["turn"] -= base
        self.world.finishing["request"] -= base
        self._turn -= base

    def _free_slot(self, slot: int) -> None:
        if self._prefix_cache:
            blocks.leave_path(self.world.handle[0], self._names, slot)
        self._asked.pop(slot, None)
        self._taken[slot] = 0

    def _request(self, slot: int, prompt: int) -> Request:
        request = Request(self._turn - 1, self._now, prompt)
        if hasattr(self._order, "finished"):
            self._asked[slot] = request
        return request

    def _tell(self, slot: int) -> None:
        """Let the order learn from an answer."""
        p = self.progress(slot)
        done = Finished(p.output, p.first - p.arrival, p.finish - p.arrival, p.cached, 0)
        self._order.finished(self._asked[slot], done)  # type: ignore[union-attr]

    def _grow(self) -> None:
        """Twice as many numbers for blocks."""
        w, size = self.world, len(self.world.begin)
        self._names = blocks.grown_names(self._names)
        more = np.zeros(size, np.int32)
        larger = w._replace(
            begin=np.concatenate([w.begin, more]), end=np.concatenate([w.end, more]),
            touched=np.concatenate([w.touched, more]), index=np.concatenate([w.index, more[:, None] + NONE]),
        )  # fmt: skip
        self.world = larger._replace(handle=state.handle_of(larger))

    # ------------------------------------------------------------------------------- what can be seen

    @property
    def running(self) -> int:
        """Requests admitted."""
        return int(self._instance["decodes"]) + int(self._instance["prefills"])

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return int(self._instance["waiting"])

    @property
    def kv_usage(self) -> float:
        """Share of the KV memory that running requests hold."""
        return float(self._cache["active"]) / float(self._cache["capacity"])

    @property
    def free_slots(self) -> int:
        """Requests that can still come on board."""
        return self._taken.count(0)

    @property
    def named_blocks(self) -> int:
        """Blocks known by their content: those in the cache, and those that requests on board are about."""
        return blocks.in_use(self._names)

    @property
    def totals(self) -> Totals:
        """What was counted since the beginning."""
        counted = self._tally[QUERIES:].tolist()
        return Totals(int(self._instance["iterations"]), int(self._instance["preemptions"]), *counted)

    def progress(self, slot: int) -> Progress:
        """What became of a request so far."""
        record = self.world.requests[slot]
        return Progress(*(record[name].item() for name in Progress._fields))

    # ------------------------------------------------------------------------------------- the cache

    def reset_cache(self) -> bool:
        """Forget every block that no running request holds; whether nothing is left."""
        clear(self.world.handle[0], 0)
        blocks.note_changes(self.world.handle[0], self._names)
        self._names.counts[blocks.LOST] = 1
        return int(self._cache["resident"]) == 0

    def changes(self) -> list[Change]:
        """What came into the cache and what left it since the last call, in order.

        Where more happened than is kept, it begins with `Cleared` and says all that is there now.
        """
        if not self._events:
            raise ValueError("made without events: nothing was written down")
        n = self._names
        changes: list[Change] = []
        if n.counts[blocks.LOST]:
            there = blocks.resident(n, self.world.begin)
            changes = [Cleared(), *_stored(n.names[there], n.ids[there], self.world.begin[there])]
        elif n.counts[blocks.LOGGED]:
            changes = list(_changes(n.log[: n.counts[blocks.LOGGED]], n.log_ids))
        n.counts[blocks.LOGGED] = n.counts[blocks.LOST] = 0
        return changes


_NOTHING = np.zeros(0, np.uint32)


def _world(fleet: FleetSpec, slots: int, stride: int, size: int, prefix_cache: bool) -> World:
    """A world of empty request records, and of segments that are all the same to begin with."""
    nobody = Requests.of(np.zeros(slots), np.ones(slots), np.ones(slots))
    w = build(nobody, fleet, step=True, record=False, prefix_cache=prefix_cache)
    answers = ON_PATH if prefix_cache else NONE
    # Every entry has a block of its own, so there are never more of them than blocks. The core reckons with paths
    # instead, which would be far too careful here.
    entries = new_entries(w.counts, int(w.caches[0]["capacity"]) + 32)
    w.counts[state.LONGEST], w.counts[state.TOUCHED] = -3, NONE
    begin, end = np.zeros(size, np.int32), np.zeros(size, np.int32)
    begin[0] = end[0] = np.iinfo(np.int32).max  # what ends a path lies behind everything
    w = w._replace(
        entries=entries, spans=np.zeros(2, state.SPAN), index=np.full((size, 1), NONE, np.int32),
        offsets=np.arange(slots + 1, dtype=np.int64) * stride, path=np.zeros(slots * stride, np.int32),
        begin=begin, end=end, touched=np.zeros(size, np.int32), answers=np.full(slots, answers, np.int32),
    )  # fmt: skip
    return w._replace(handle=state.handle_of(w))


def _without(slots: Slots, slot: int) -> Slots:
    others: Slots = slots[slots != slot]
    return others


def _emissions(rows: list[tuple[float, int, int]], who: Slots, finished: Slots) -> Iterator[Emission]:
    """The rows that the core filled, with arrays of their own."""
    since = over = 0
    for time, used, ended in rows:
        yield Emission(time, who[since:used].copy(), finished[over:ended].copy())
        since, over = used, ended


def _changes(log: state.Records, ids: NDArray[np.uint32]) -> Iterator[Change]:
    """The log, which is not empty, with neighbours of a kind in one."""
    cuts = np.flatnonzero(np.diff(log["kind"])) + 1
    for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(log)], strict=True):
        part = log[first:last]
        if part["kind"][0] == blocks.REMOVED:
            yield Removed(part["word"].tolist())
        else:
            yield from _stored(part, ids[first:last], part["depth"])


def _stored(part: state.Records, ids: NDArray[np.uint32], depths: NDArray[np.int32]) -> Iterator[Stored]:
    """Blocks, parents first, as runs in which each continues the one before it."""
    runs: list[list[int]] = []
    ends: dict[int, list[int]] = {}  # by the last word of a run
    words, befores = part["word"].tolist(), part["before"].tolist()
    for at, (word, before, depth) in enumerate(zip(words, befores, depths.tolist(), strict=True)):
        run = ends.pop(before, None) if depth else None
        if run is None:
            run = []
            runs.append(run)
        run.append(at)
        ends[word] = run
    for run in runs:
        before = befores[run[0]] if depths[run[0]] else None
        yield Stored([words[at] for at in run], before, ids[run].ravel())
