"""A fleet of LLM instances in plain Python, one iteration and one KV block at a time: slow, and easy to be sure of.

Every block of KV is a key. A block of a prompt that others may share is named by its content: the path of prefix
segments up to the one its last token lies in, and its place in the prompt. Everything else is a sequence's own.

A sequence that gives way leaves its full blocks; until their room is taken it finds them again, and only it does.

Requests that wait for another (`Requests.after`) are unknown until that one has ended and the think time is over.

What cannot be compared with it: a host tier, planners, a cache layer, moving averages (`itl`, `ttft`) and energy.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests

Key = tuple[Any, ...]


def iteration_seconds(cost: StepCost, contexts: list[int], chunks: list[tuple[int, int]]) -> float:
    """One iteration: decodes with these contexts, and (chunk, tokens before it) of prompts."""
    b, total = len(contexts), sum(contexts)
    seconds = float(cost.tokens[b + sum(c for c, _ in chunks)])
    if b:
        seconds += cost.decode_fixed + cost.decode_seq * b + cost.decode_kv * total
        if cost.decode_window:
            seconds += cost.decode_window * min(total, cost.window * b)
    for c, before in chunks:
        seconds += cost.prefill_fixed + cost.prefill_token * c
        seconds += max(cost.prefill_pair * c * (before + c / 2), cost.prefill_kv * (before + c))
        if cost.prefill_pair_window:
            seconds += cost.prefill_pair_window * c * min(before + c / 2, cost.window)
    if chunks:
        seconds = max(seconds + cost.launch, cost.launch_mixed if b else cost.launch_alone)
    return seconds


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
            if self.complete(sequence, key):
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


class Engine:
    """One instance."""

    def __init__(self, number: int, spec: Instance, block: int, whole: bool, caching: bool) -> None:
        self.number, self.spec, self.block = number, spec, block
        self.memory = Memory(spec.room // block, block, whole, caching)
        self.share = Share()
        self.running: list[Sequence] = []  # in order of admission
        self.waiting: list[Sequence] = []
        self.decode_pause = False
        self.extra = 0.0
        self.uncomputed = 0
        self.handed: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.told = 0  # of them, who follows is known
        self.gaps: list[tuple[str, float]] = []  # between two tokens of a sequence, and what lies between them
        self.decoded = self.prefilled = self.preemptions = 0
        self.kept_out = 0  # times that only the room kept for outputs was in the way

    # -------------------------------------------------------------------------------- what is going on

    @property
    def decodes(self) -> list[Sequence]:
        return [s for s in self.running if s.decoding]

    @property
    def prompts(self) -> list[Sequence]:
        return [s for s in self.running if not s.decoding]

    def decode_need(self) -> int:
        return sum(s.have % self.block == 0 for s in self.decodes)

    # ---------------------------------------------------------------------------------------- queueing

    def accept(self, s: Sequence) -> None:
        s.instance = self.number
        s.expected = 0 if s.ready else self.to_compute(s)
        self.uncomputed += s.expected
        self.waiting.append(s)

    def to_compute(self, s: Sequence) -> int:
        found = self.memory.reach(s, self.memory.match(s.path))
        return s.prompt + s.emitted - s.ready if s.ready else max(s.prompt + s.emitted - found * self.block, 1)

    def preempt(self) -> Sequence:
        s = self.running.pop()
        if not s.decoding:
            self.uncomputed -= s.target - s.have
        swaps = s.decoding and self.spec.preemption == "swap"
        s.ready = s.have if swaps else 0
        if swaps:
            self.extra += s.ready * self.spec.cost.kv_bytes / self.spec.host_bandwidth
        computed = min(s.have, s.target) if self.spec.plan == "sglang" else s.have  # it frees what was generated
        self.memory.release(s, ended=False, computed=0 if swaps else computed)
        s.have, s.decoding, s.key, s.interruption = 0, False, -math.inf, "preempted"
        s.preemptions += 1
        self.preemptions += 1
        s.expected = self.to_compute(s)
        self.uncomputed += s.expected
        self.waiting.append(s)
        return s

    def fits(self, s: Sequence, hit: int, found: int, have: int, chunk: int) -> bool:
        """Whether a request may be admitted that finds so many blocks on its path, and with what it left itself."""
        memory, block = self.memory, self.block
        by_chunk = self.spec.plan == "vllm-v1" and self.spec.admission == "chunk"
        wanted = have + chunk if by_chunk else s.target
        room = memory.room - memory.idle(s.path[:hit]) - (found - hit)
        if blocks_of(wanted, block) - found > room - self.decode_need():
            return False
        if self.spec.plan != "sglang":
            return True
        kept = self.share.now * sum(min(d.output - d.emitted, 4096) for d in self.decodes)
        for other in self.prompts:
            whole = other.have + other.chunk == other.target
            kept += block + (min(other.output - other.emitted, 4096) if whole else 0)
        enough = s.target - have + min(s.output - s.emitted, 4096) + block <= room * block - kept
        self.kept_out += not enough
        return enough

    def admit(self, budget: int, now: float) -> int | None:
        s = min(self.waiting, key=lambda s: (s.key, s.number))
        memory, block = self.memory, self.block
        s.target = s.prompt + s.emitted
        hit = memory.match(s.path)
        if s.ready:
            found = hit = min(hit, s.ready // block)
            have, chunk = s.ready, 0
        else:
            hit = min(hit, (s.target - 1) // block)
            found = memory.reach(s, hit)
            have = found * block
            chunk = min(s.target - have, budget, self.spec.chunk_limit or self.spec.max_tokens)
        if not self.fits(s, hit, found, have, chunk):
            return None
        self.waiting.remove(s)
        self.running.append(s)
        memory.hold(s, hit)
        memory.reclaim(s, hit)
        memory.allocate(s, blocks_of(have + chunk, block) - found)
        if s.preemptions == 0 and not s.ready:
            s.admitted, s.cached = now, have
        self.uncomputed -= s.expected
        s.have, s.chunk = have, chunk
        memory.publish(s, have + chunk)
        if s.ready:
            if s.preemptions and self.spec.preemption == "swap":  # else nothing comes back from the host
                self.extra += s.ready * self.spec.cost.kv_bytes / self.spec.host_bandwidth
            s.ready, s.decoding = 0, True
            return 1
        self.uncomputed += s.target - have
        return chunk

    # ---------------------------------------------------------------------------------------- planning

    def continue_prompts(self, budget: int, reserve: bool) -> tuple[int, bool]:
        gave_way = False
        for s in self.prompts:
            if s not in self.running:
                continue
            chunk = min(s.target - s.have, budget, self.spec.chunk_limit or self.spec.max_tokens)
            need = blocks_of(s.have + chunk, self.block) - blocks_of(s.have, self.block)
            while s in self.running and need > self.memory.room - (self.decode_need() if reserve else 0):
                self.preempt()
                gave_way = True
            if s in self.running:
                s.chunk = chunk
                self.memory.allocate(s, need)
                self.memory.publish(s, s.have + chunk)
                budget -= chunk
        return budget, gave_way

    def admit_waiting(self, budget: int, now: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.spec.max_seqs:
            used = self.admit(budget, now)
            if used is None:
                break
            budget -= used

    def make_room_for_decodes(self) -> bool:
        gave_way = False
        while self.decode_need() > self.memory.room:
            self.preempt()
            gave_way = True
        return gave_way

    def plan(self, now: float) -> None:
        """What the next iteration computes; its blocks are taken."""
        self.decode_pause = False
        if self.spec.plan == "sglang":
            left, gave_way = self.continue_prompts(self.spec.max_tokens, reserve=False)
            if not gave_way:
                self.admit_waiting(left, now)
            self.decode_pause = bool(self.prompts)
            if not self.decode_pause and self.make_room_for_decodes():
                self.share.measure(self.decodes)
        else:
            short = self.make_room_for_decodes()
            left, gave_way = self.continue_prompts(self.spec.max_tokens - len(self.decodes), reserve=True)
            if not (short or gave_way) and (self.spec.plan != "static" or not self.running):
                self.admit_waiting(left, now)
            self.make_room_for_decodes()  # those that came with their KV decode at once
        if not self.decode_pause:
            for s in self.decodes:
                if s.have % self.block == 0:
                    self.memory.allocate(s, 1)

    def rest(self) -> None:
        """What happens where there is nothing to do."""
        if not self.running:
            self.share = Share()

    def seconds(self) -> float | None:
        """How long the planned iteration takes; None: there is nothing to compute."""
        contexts = [] if self.decode_pause else [s.have for s in self.decodes]
        chunks = [(s.chunk, s.have) for s in self.prompts if s.chunk]
        if not contexts and not chunks:
            return None
        return iteration_seconds(self.spec.cost, contexts, chunks) + self.extra

    # ----------------------------------------------------------------------------------------- booking

    def token(self, s: Sequence, now: float) -> None:
        s.emitted += 1
        if s.emitted == 1:
            s.first = now
        else:
            self.gaps.append((s.interruption, now - s.latest))
        s.latest, s.interruption = now, ""

    def settle(self, now: float) -> None:
        """The planned iteration is over."""
        if self.seconds() is None:
            return
        self.extra = 0.0
        decodes = [] if self.decode_pause else self.decodes
        prompts = self.prompts
        for s in self.decodes if self.decode_pause else []:
            s.interruption = s.interruption or "paused"
        if decodes:
            self.share.decode()
        for s in decodes:
            s.have += 1
            self.token(s, now)
            self.decoded += 1
        # Those that end in one iteration leave in the order of their numbers.
        for s in sorted((s for s in decodes if s.emitted == s.output), key=lambda s: s.number):
            self.end(s, now)
        for s in prompts:
            s.have += s.chunk
            self.uncomputed -= s.chunk
            self.prefilled += s.chunk
            if s.have < s.target:
                continue
            self.token(s, now)
            if s.emitted == s.output:
                self.end(s, now)
            elif self.spec.role == "prefill":
                self.running.remove(s)
                self.memory.release(s, ended=False)
                s.ready, s.source, s.interruption = s.have, self.number, "handed over"
                self.handed.append(s)
            else:
                s.decoding = True

    def end(self, s: Sequence, now: float) -> None:
        self.running.remove(s)
        self.memory.release(s, ended=True)
        s.finish, s.decoding = now, False
        s.finishes += 1
        self.finished.append(s)


class Share:
    """The share of what is left of outputs for which SGLang keeps room: less with every decode."""

    def __init__(self) -> None:
        self.begin, self.steps = 0.7, 0

    @property
    def now(self) -> float:
        if self.steps <= 0:
            return self.begin
        return max(self.begin - (0.7 - 0.7 * 0.14) / 600 * self.steps, 0.7 * 0.14)

    def decode(self) -> None:
        self.steps += 1

    def measure(self, decodes: list[Sequence]) -> None:
        """Somebody had to be retracted: the share that the others used, 20 tokens from now."""
        used = sum(s.emitted for s in decodes) + 20 * len(decodes)
        self.begin = min(used / (sum(s.output for s in decodes) + 1.0), 1.0)
        self.steps = -1


class OracleFleet(Fleet):
    """What a router sees: the fleet as it is, or as it was when last read."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.age = np.zeros(len(oracle.engines))
        self.read_at = 0.0

    def look(self, now: float) -> None:
        self.now = now
        if not self.oracle.age:
            self.read(now)
        self.age[:] = now - self.read_at

    def read(self, now: float) -> None:
        engines = self.oracle.engines
        self.read_at = now
        self.running = np.array([len(e.running) for e in engines])
        self.waiting = np.array([len(e.waiting) for e in engines])
        self.prefill_tokens = np.array([e.uncomputed for e in engines])
        self.kv_tokens = np.array([sum(s.have for s in e.running) for e in engines])
        self.kv_free = np.array([1.0 - e.memory.held / e.memory.capacity for e in engines])

    def match(self, request: Request) -> Any:
        path = self.oracle.sequences[int(request.id)].path
        return np.array([e.memory.match(path) * e.block for e in self.oracle.engines])


class Oracle:
    """The whole fleet. `whole`: a prefix segment is pinned as a whole, as the engine does; else block by block."""

    def __init__(
        self,
        requests: Requests,
        fleet: FleetSpec,
        router: Any,
        order: Any = None,
        whole: bool = True,
        prefix_cache: bool = True,
        age: float = 0.0,
    ) -> None:
        self.requests, self.fleet, self.router, self.order, self.age = requests, fleet, router, order, age
        block = fleet.block
        cached = prefix_cache and requests.prefixes is not None
        self.sequences = [
            Sequence(
                r, float(requests.arrival[r]), int(requests.prompt[r]), int(requests.output[r]),
                prompt_keys(requests, r, block) if cached else [], answer_keys(requests, r, block) if cached else [],
            )
            for r in range(len(requests))
        ]  # fmt: skip
        self.engines = [Engine(i, spec, block, whole, prefix_cache) for i, spec in enumerate(fleet.instances)]
        ends: dict[Key, int] = {}
        if cached:
            p = requests.prefixes
            assert p is not None
            for s in self.sequences:
                for path, _ in s.path + s.answer:
                    ends[path] = int(p.stop[path[-1]]) // block
        for e in self.engines:
            e.memory.ends = ends
        sizes = fleet.lockstep or (1,) * len(fleet)
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self.groups = [self.engines[a:b] for a, b in pairwise(starts)]
        self.next = [math.inf] * len(self.groups)  # when the iteration in flight ends
        self.waking: set[int] = set()  # groups that plan then, having had nothing to do
        self.links = [0.0] * len(self.engines)
        # On their way to another instance, or (-1) in the head of somebody who thinks about the answer before them;
        # or the next reading of the signals.
        self.mail: list[tuple[float, int, Sequence | None, int]] = []
        self.readings = 0
        self.posted = 0
        self.view = OracleFleet(self)
        self.handovers = 0

    def run(self) -> Oracle:
        after = self.requests.after
        opening = [s for s in self.sequences if after is None or after[s.number] < 0]
        for s in opening:
            if not self.fits(s):
                self.follow(s, s.arrival)
        arrivals = [s for s in opening if self.fits(s)]
        if self.age:
            self.post(self.sequences[0].arrival, None, -1)
        while True:
            t_arrival = arrivals[0].arrival if arrivals else math.inf
            t_mail = min(self.mail)[0] if self.mail else math.inf
            t = min(t_arrival, t_mail)
            g = min(range(len(self.groups)), key=lambda g: self.next[g])
            if self.next[g] < t:
                self.boundary(g)
            elif t == math.inf or (self.age and not arrivals and len(self.mail) == 1 and self.next[g] == math.inf):
                return self
            elif t_mail <= t_arrival:
                item = min(self.mail)
                self.mail.remove(item)
                if item[2] is None:
                    self.view.read(t)
                    self.readings += 1
                    self.post(self.sequences[0].arrival + self.readings * self.age, None, -1)
                elif item[3] < 0:
                    self.arrive(item[2], t)
                else:
                    self.send(item[2], item[3], t)
            else:
                self.arrive(arrivals.pop(0), t)

    def follow(self, ended: Sequence, now: float) -> None:
        """Whoever waits for a request that has ended (or was refused) thinks, and then asks."""
        if self.requests.after is None or self.requests.think is None:
            return
        over = [(ended, now)]
        for before, when in over:
            for r in np.flatnonzero(self.requests.after == before.number).tolist():
                s = self.sequences[r]
                s.arrival = when + float(self.requests.think[r])
                if self.fits(s):
                    self.post(s.arrival, s, -1)
                else:
                    over.append((s, s.arrival))

    def fits(self, s: Sequence) -> bool:
        need = blocks_of(s.prompt + s.output, self.fleet.block) + 1
        return any(need <= e.memory.capacity for e in self.engines)

    def eligible(self, s: Sequence, roles: tuple[str, ...]) -> Any:
        need = blocks_of(s.prompt + s.output, self.fleet.block) + 1
        return np.array([e.spec.role in roles and need <= e.memory.capacity for e in self.engines])

    def arrive(self, s: Sequence, now: float) -> None:
        self.view.look(now)
        self.view.eligible = self.eligible(s, ("both", "prefill"))
        self.send(s, int(self.router.route(Request(s.number, s.arrival, s.prompt), self.view)), now)

    def send(self, s: Sequence, i: int, now: float) -> None:
        if not s.preemptions:
            s.key = now if self.order is None else self.order.key(Request(s.number, s.arrival, s.prompt), now)
        self.engines[i].accept(s)
        g = next(g for g, members in enumerate(self.groups) if self.engines[i] in members)
        if self.next[g] == math.inf:  # it wakes up, after all that happens at this very moment
            self.next[g] = now
            self.waking.add(g)

    def boundary(self, g: int) -> None:
        now = self.next[g]
        if g in self.waking:
            self.waking.remove(g)
            self.plan(g, now)
            return
        for e in self.groups[g]:
            e.settle(now)
        for e in self.groups[g]:
            for s in e.handed:
                self.hand_over(s, now)
            e.handed = []
        for e in self.groups[g]:
            for s in e.finished[e.told :]:
                self.follow(s, now)
            e.told = len(e.finished)
        self.waking.add(g)  # it plans after all that happens at this very moment

    def hand_over(self, s: Sequence, now: float) -> None:
        self.handovers += 1
        self.view.look(now)
        self.view.eligible = self.eligible(s, ("both", "decode"))
        i = self.view.argmin(self.view.batch_size, self.view.kv_tokens)
        fresh = max(s.ready - int(self.view.match(Request(s.number, s.arrival, s.prompt))[i]), 0)
        cost = self.engines[s.source].spec.cost
        seconds = fresh * cost.kv_bytes * (1.0 - self.fleet.overlap) / self.fleet.bandwidth
        begin = max(now, self.links[s.source])
        self.links[s.source] = begin + seconds
        self.post(begin + seconds + self.fleet.latency, s, i)

    def post(self, when: float, s: Sequence | None, i: int) -> None:
        self.posted += 1
        self.mail.append((when, self.posted, s, i))

    def plan(self, g: int, now: float) -> None:
        for e in self.groups[g]:
            e.plan(now)
            if e.waiting and not e.running:  # it gave way to what it pins itself: start again without the cache
                e.memory.clear()
                e.plan(now)
                assert e.running, "an empty instance refuses a request that fits"
            e.rest()
        times = [seconds for e in self.groups[g] if (seconds := e.seconds()) is not None]
        self.next[g] = now + max(times) if times else math.inf
