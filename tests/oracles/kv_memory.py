"""The KV memory of one instance in plain Python, block by block: slow, and easy to be sure of.

Every block of KV is a key. A block of a prompt that others may share is named by its content: the path of prefix
segments up to the one its last token lies in, and its place in the prompt. Everything else is a sequence's own.

A sequence that gives way leaves its full blocks; until their room is taken it finds them again, and only it does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from assay.workloads.requests import Requests

Key = tuple[Any, ...]


def blocks_of(tokens: int, block: int) -> int:
    return -(-tokens // block)


def prompt_keys(requests: Requests, r: int, block: int) -> list[Key]:
    """The names of the leading full blocks of a prompt that lie on its path: (segments up to here, number)."""
    if requests.prefixes is None:
        return []
    p = requests.prefixes
    path = p.segments[p.offsets[r] : p.offsets[r + 1]].tolist()
    keys: list[Key] = []
    for number in range(int(requests.prompt[r]) // block):
        token = (number + 1) * block - 1
        depth = next((d for d, s in enumerate(path) if p.start[s] <= token < p.stop[s]), None)
        if depth is None:
            break
        keys.append((tuple(path[: depth + 1]), number))
    return keys


def answer_keys(requests: Requests, r: int, block: int) -> list[Key]:
    """The names of the blocks that end in the segment that the answer fills."""
    p = requests.prefixes
    if p is None or p.output[r] < 0:
        return []
    s = int(p.output[r])
    path = (*p.segments[p.offsets[r] : p.offsets[r + 1]].tolist(), s)
    return [(path, number) for number in range(int(p.start[s]) // block, int(p.stop[s]) // block)]


@dataclass(eq=False)
class Sequence:
    """A request on its way."""

    number: int
    arrival: float
    prompt: int
    output: int
    path: list[Key]
    answer: list[Key]
    key: float = 0.0
    emitted: int = 0
    have: int = 0  # tokens with KV
    target: int = 0  # tokens to have before the next one is emitted by prefilling
    chunk: int = 0
    ready: int = 0  # tokens whose KV it brings along
    decoding: bool = False
    blocks: list[Key] = field(default_factory=list)  # in order; the first `shared` lie in units others may find
    shared: int = 0
    writing: bool = False
    expected: int = 0
    promised: int = 0  # prompt tokens not cached when it was sent, until its first token comes
    cached: int = 0
    admitted: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    preemptions: int = 0
    finishes: int = 0
    instance: int = -1
    source: int = -1
    latest: float = math.nan  # when its latest token came
    interruption: str = ""  # what happened to it since: nothing, a pause, a preemption, a hand-over


class Memory:
    """The KV blocks of one instance.

    What is pinned together is a unit: with `whole` the resident blocks of one prefix segment, else one block.
    """

    def __init__(self, capacity: int, block: int, whole: bool, caching: bool) -> None:
        self.capacity, self.block, self.whole, self.caching = capacity, block, whole, caching
        self.left: dict[int, list[Key]] = {}  # by sequence: what it left when it gave way, in order
        self.units: dict[Key, list[Key]] = {}  # resident, findable blocks by unit, in order
        self.holders: dict[Key, list[Sequence]] = {}
        self.writer: dict[Key, Sequence] = {}
        self.free: OrderedDict[Key, None] = OrderedDict()  # resident, held by nobody; coldest first
        self.held = 0  # blocks that somebody holds
        self.fresh = 0  # to name own blocks
        self.evicted = self.hits = self.found = 0

    def unit(self, key: Key) -> Key:
        return (key[0],) if self.whole else key

    def resident(self, key: Key) -> bool:
        return key in self.units.get(self.unit(key), ())

    @property
    def room(self) -> int:
        """Blocks that can still be given away."""
        return self.capacity - self.held

    def match(self, path: list[Key]) -> int:
        hit = 0
        while hit < len(path) and self.resident(path[hit]):
            hit += 1
        return hit

    def idle(self, path: list[Key]) -> int:
        """Blocks that become held when somebody takes this path."""
        units = {self.unit(key): None for key in path}
        return sum(len(self.units[unit]) for unit in units if not self.holders.get(unit))

    def hold(self, sequence: Sequence, hit: int) -> None:
        path = sequence.path
        for unit in {self.unit(key): None for key in path[:hit]}:
            if not self.holders.setdefault(unit, []):
                for key in self.units[unit]:
                    del self.free[key]
                self.held += len(self.units[unit])
            self.holders[unit].append(sequence)
        sequence.blocks, sequence.shared, sequence.writing = path[:hit], hit, False
        self.hits += hit
        if hit < len(path):
            unit = self.unit(path[hit])
            inside = hit > 0 and self.unit(path[hit - 1]) == unit
            if not inside:
                sequence.writing = True
            elif unit not in self.writer and self.units[unit][-1] == path[hit - 1]:
                self.writer[unit] = sequence
                sequence.writing = True

    def allocate(self, sequence: Sequence, count: int) -> None:
        """New blocks of its own; the coldest that nobody holds make room."""
        for _ in range(count):
            if self.held + len(self.free) == self.capacity:
                key, _ = self.free.popitem(last=False)
                self.evicted += 1
                unit = self.unit(key)
                if key[0] == "left":
                    if key in self.left.get(key[1], ()):
                        assert self.left[key[1]].pop() == key, "what was left lost a block in its middle"
                elif key[0] != "own":
                    last = self.units[unit].pop()
                    assert last == key, "a prefix lost a block in its middle"
                    if not self.units[unit]:
                        del self.units[unit]
            self.fresh += 1
            self.held += 1
            sequence.blocks.append(("own", self.fresh))
        assert self.held + len(self.free) <= self.capacity

    def clear(self) -> None:
        assert not self.held
        self.units.clear()
        self.free.clear()
        self.left.clear()

    def reach(self, sequence: Sequence, hit: int) -> int:
        """Leading blocks that it finds, `hit` of them on its path."""
        left = self.left.get(sequence.number)
        return max(hit, left[0][2] + len(left)) if left and left[0][2] <= hit else hit

    def reclaim(self, sequence: Sequence, hit: int) -> None:
        """It holds again what it left beyond the first `hit` blocks; the rest is nobody's."""
        reach = self.reach(sequence, hit)
        for key in self.left.pop(sequence.number, []):
            if hit <= key[2] < reach:
                del self.free[key]
                self.held += 1
                self.fresh += 1
                self.found += 1
                sequence.blocks.append(("own", self.fresh))

    def publish(self, sequence: Sequence, tokens: int) -> None:
        """The first `tokens` tokens are scheduled: the blocks of the path they fill can be found from now on."""
        while sequence.writing and sequence.shared < min(len(sequence.path), tokens // self.block):
            key = sequence.path[sequence.shared]
            unit = self.unit(key)
            if self.writer.get(unit) is not sequence:
                if unit in self.units:  # somebody else is at it: keep a copy of one's own
                    sequence.writing = False
                    return
                self.units[unit], self.holders[unit], self.writer[unit] = [], [sequence], sequence
            self.units[unit].append(key)
            sequence.blocks[sequence.shared] = key
            sequence.shared += 1
            if self.complete(sequence, key) or sequence.shared == len(sequence.path):
                del self.writer[unit]

    def complete(self, sequence: Sequence, key: Key) -> bool:
        """Whether a unit ends with this block: for one block always, for a segment where it does."""
        return not self.whole or self.ends[key[0]] == key[1] + 1

    ends: dict[Key, int]

    def release(self, sequence: Sequence, ended: bool, computed: int = 0) -> None:
        """Its blocks are free, the last one first; an answer that completes its path can be found.

        One that gives way finds the full blocks of its first `computed` tokens again.
        """
        own = sequence.blocks[sequence.shared :]
        if self.caching and computed // self.block > sequence.shared:
            full = range(sequence.shared, computed // self.block)
            self.fresh += 1
            left = [("left", sequence.number, number, self.fresh) for number in full]
            own[: len(left)] = left
            self.left[sequence.number] = left
        names: list[Key] = []
        follows = ended and sequence.answer and sequence.shared == sequence.answer[0][1]
        if follows and not any(self.resident(key) for key in sequence.answer):
            full = sequence.have // self.block - sequence.shared
            names = sequence.answer[: min(full, len(own))]
        for number in range(len(own) - 1, -1, -1):
            key = names[number] if number < len(names) else own[number]
            self.free[key] = None
        for key in names:
            self.units.setdefault(self.unit(key), []).append(key)
        self.held -= len(own)
        units = {self.unit(key): None for key in sequence.blocks[: sequence.shared]}
        for unit in reversed(units):
            if self.writer.get(unit) is sequence:
                del self.writer[unit]
            self.holders[unit].remove(sequence)
            if not self.holders[unit]:
                self.held -= len(self.units[unit])
                for key in reversed(self.units[unit]):
                    self.free[key] = None
        sequence.blocks, sequence.shared, sequence.writing = [], 0, False
