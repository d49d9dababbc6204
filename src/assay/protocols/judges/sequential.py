"""Sequential consistency: is there one order of all operations, true to every process, in which every answer is right?

To decide it is NP-complete, so three things come before the search. What is linearizable is sequential. For registers
whose writes are all different, the order must contain what every read forces (a saturation, like causal memory's but
for all readers at once): a cycle there is a proof of violation. And the search itself follows the forced order.

>>> history = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0), Operation(0, "read", "y", None, None, 2.0, 3.0),
...     Operation(1, "write", "y", 1, None, 0.0, 1.0), Operation(1, "read", "x", None, None, 2.0, 3.0),
... ]
>>> judge(history).verdict, judge(history[:3]).verdict
('violated', 'holds')

The search for one order knows whose value everyone read and what must come before what. Once a value is overwritten it
never comes back, so a write has to wait until all readers of the value that it replaces are done; and a read that fits
is taken at once, since it changes nothing. What is left to choose is which write comes next; choices that led nowhere
are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.protocols.judges import linearizable, saturation
from assay.protocols.judges.causal import saturate
from assay.protocols.judges.judgement import (
    ENOUGH,
    HOLDS,
    UNKNOWN,
    VIOLATED,
    Budget,
    Judgement,
    effective,
    explain,
    longest_prefix,
    names,
    owners,
    returned,
)
from assay.protocols.judges.linearizable import Found, by_process, search
from assay.protocols.judges.saturation import INITIAL, NO_READ, NOWHERE, Ambiguous, Edges, Ints, ReadsFrom, reads_from
from assay.protocols.judges.specifications import SPECIFICATIONS, Specification, State, check, guess, settle
from assay.workloads.histories import Operation

MODEL = "sequential"
PROBE = Budget(nodes=20_000)


def judge(
    history: Sequence[Operation], specification: Specification | None = None, budget: Budget = ENOUGH,
    *, prefix: bool = True,
) -> Judgement:  # fmt: skip
    """Judge a history; `prefix` asks for the longest good prefix too."""
    chosen = settle(check(specification, history) if specification else guess(history), history)
    strong = linearizable.solve(history, chosen, budget).order
    if strong is not None and _true_to_processes(strong, history):
        return Judgement(MODEL, HOLDS, order=tuple(strong), prefix=returned(history))
    found, core, reason = _order(history, chosen, budget)
    if found.order is not None:
        return Judgement(MODEL, HOLDS, order=found.order, prefix=returned(history))

    def probe(trial: Sequence[Operation]) -> str:
        return verdict(trial, chosen, PROBE)

    def quick(trial: Sequence[Operation]) -> str:
        return HOLDS if linearizable.verdict(trial, chosen, PROBE) == HOLDS else probe(trial)

    longest = longest_prefix(history, quick) if prefix else 0
    if found.exhausted:
        return Judgement(MODEL, UNKNOWN, reason=f"undecided after {found.nodes:,} steps", prefix=longest)
    witness, done = explain(history, probe, core, known=chosen.name in SPECIFICATIONS)
    told = f"{reason}: {names(history, witness)}" + ("" if done else " (perhaps more than needed)")
    return Judgement(MODEL, VIOLATED, witness, told, prefix=longest)


def _true_to_processes(order: Sequence[int], history: Sequence[Operation]) -> bool:
    last: dict[int, float] = {}
    session, follows = owners(history)
    done = {-1}
    for i in order:
        if history[i].invoke < last.get(session[i], -math.inf) or follows[i] not in done:
            return False
        last[session[i]] = history[i].invoke
        done.add(i)
    return True


def verdict(history: Sequence[Operation], specification: Specification, budget: Budget = PROBE) -> str:
    """The bare verdict, with a specification that is settled."""
    found, _, _ = _order(history, specification, budget)
    return HOLDS if found.order is not None else UNKNOWN if found.exhausted else VIOLATED


def _order(
    history: Sequence[Operation], specification: Specification, budget: Budget
) -> tuple[Found, list[int], str]:  # fmt: skip
    """An order as indices of the history, or the operations that forbid one, and why."""
    if specification.name in ("register", "cas-register"):
        try:
            return _registers(reads_from(history, specification.first), budget)
        except Ambiguous:
            pass  # the general search does not need to know who wrote what
    chosen = sorted(effective(history), key=lambda i: history[i].invoke)
    operations = [history[i] for i in chosen]
    session, follows = owners(history)  # of all of it: what a process did later may be among what does not matter
    place = {i: at for at, i in enumerate(chosen)}
    allowed = by_process(
        operations, [session[i] for i in chosen], [place.get(follows[i], -1) for i in chosen],
        alike=specification.name in SPECIFICATIONS,
    )  # fmt: skip
    found = search(operations, _whole(specification, operations), allowed, budget)
    order = None if found.order is None else tuple(chosen[i] for i in found.order)
    return Found(order, found.exhausted, found.nodes), chosen, "fit no order that is true to every process"


def _whole(specification: Specification, operations: Sequence[Operation]) -> Specification:
    """All parts of an object as one: sequential consistency cannot be judged part by part."""
    places = {part: at for at, part in enumerate(dict.fromkeys(map(specification.part, operations)))}
    if len(places) == 1:
        return replace(specification, initial=specification.first(next(iter(places))))

    def step(state: State, operation: Operation) -> tuple[bool, State]:
        at = places[specification.part(operation)]
        fits, after = specification.step(state[at], operation)
        return fits, (*state[:at], after, *state[at + 1 :])

    return replace(specification, initial=tuple(map(specification.first, places)), step=step)


def _registers(rf: ReadsFrom, budget: Budget) -> tuple[Found, list[int], str]:
    lost = np.flatnonzero(rf.source == NOWHERE)
    if len(lost):
        return Found(None, False, 0), [int(rf.order[lost[0]])], "returns a value that nobody wrote"
    readers = np.flatnonzero(rf.source != NO_READ)
    bad, clock = saturate(rf, Edges.read(rf, readers), readers, saturation.index(rf), total=True)
    if bad is not None:
        return Found(None, False, 0), [int(rf.order[v]) for v in bad.nodes], "must each come before the other"
    found = schedule(rf, clock, budget)
    order = None if found.order is None else tuple(rf.order[list(found.order)].tolist())
    return Found(order, found.exhausted, found.nodes), rf.order.tolist(), "fit no order that is true to every process"


def schedule(rf: ReadsFrom, clock: Ints, budget: Budget) -> Found:
    """An order of all nodes in which every read returns what its key holds; `clock` says what must come before."""
    table = _Table(rf, clock)
    dead: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    choices: list[tuple[Iterator[int], int]] = []
    nodes = remembered = 0
    while True:
        table.run_reads()
        if len(table.trail) == len(rf):
            return Found(tuple(node for node, _ in table.trail), False, nodes)
        options = iter(()) if table.place() in dead else iter(table.writes())
        choices.append((options, len(table.trail)))
        while True:
            if not choices:
                return Found(None, False, nodes)
            options, length = choices[-1]
            table.back_to(length)
            choice = next(options, None)
            if choice is not None:
                break
            choices.pop()
            remembered += 16 * (rf.processes + len(table.holds)) + 200
            dead.add(table.place())
        nodes += 1
        if nodes > budget.nodes + len(rf) or remembered > budget.memory:
            return Found(None, True, nodes)
        table.do(choice)


class _Table:
    """Where every process stands and whose value every key holds; steps can be taken back."""

    def __init__(self, rf: ReadsFrom, clock: Ints) -> None:
        self.source, self.key, self.is_write = rf.source.tolist(), rf.key.tolist(), rf.writes.tolist()
        self.process, self.starts = rf.process.tolist(), rf.starts.tolist()
        # What must be done before a node, of other processes than its own.
        self.needs = [
            [(p, count) for p, count in enumerate(row) if count and p != self.process[v]]
            for v, row in enumerate(clock.tolist())
        ]
        self.at = self.starts[:-1].copy()
        self.holds = [INITIAL] * (max(self.key, default=-1) + 1)
        self.readers: dict[tuple[int, int], int] = {}
        for v, source in enumerate(self.source):
            if source != NO_READ:
                place = (self.key[v], source)
                self.readers[place] = self.readers.get(place, 0) + 1
        self.trail: list[tuple[int, int]] = []

    def place(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the future depends on."""
        return tuple(self.at), tuple(self.holds)

    def _heads(self) -> list[int]:
        """The next node of each process whose needs are met."""
        heads = (v for p, v in enumerate(self.at) if v < self.starts[p + 1])
        return [v for v in heads if all(self.at[p] - self.starts[p] >= count for p, count in self.needs[v])]

    def _fits(self, v: int) -> bool:
        source, key = self.source[v], self.key[v]
        if source not in (NO_READ, self.holds[key]):
            return False
        waiting = self.readers.get((key, self.holds[key]), 0) - (source != NO_READ)
        return not self.is_write[v] or waiting == 0

    def run_reads(self) -> None:
        """Do every read that fits, until none does."""
        while ready := [v for v in self._heads() if not self.is_write[v] and self._fits(v)]:
            for v in ready:
                self.do(v)

    def writes(self) -> list[int]:
        """The writes that may come next; those that someone waits for first."""
        ready = [v for v in self._heads() if self.is_write[v] and self._fits(v)]
        return sorted(ready, key=lambda v: self.readers.get((self.key[v], v), 0) == 0)

    def do(self, v: int) -> None:
        """Take one step."""
        key, source = self.key[v], self.source[v]
        self.trail.append((v, self.holds[key]))
        self.at[self.process[v]] += 1
        if source != NO_READ:
            self.readers[key, source] -= 1
        if self.is_write[v]:
            self.holds[key] = v

    def back_to(self, length: int) -> None:
        """Take steps back."""
        while len(self.trail) > length:
            v, held = self.trail.pop()
            self.at[self.process[v]] -= 1
            if self.source[v] != NO_READ:
                self.readers[self.key[v], self.source[v]] += 1
            self.holds[self.key[v]] = held
