"""The search for one order of reads and writes, given whose value everyone read and what must come before what.

Once a value is overwritten it never comes back, so a write has to wait until all readers of the value that it replaces
are done; and a read that fits is taken at once, since it changes nothing. What is left to choose is which write comes
next; choices that led nowhere are remembered.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.protocols.judges.judgement import Budget
from assay.protocols.judges.reads_from import INITIAL, NO_READ, Ints, ReadsFrom
from assay.protocols.judges.search import Found


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
