"""A fleet of LLM instances in plain Python, one iteration and one KV block at a time: slow, and easy to be sure of.

Instances are `llm_instance.Engine`, their memory `kv_memory.Memory`. Requests that wait for another (`Requests.after`)
are unknown until that one has ended and the think time is over.

What cannot be compared with it: a host tier, planners, a cache layer, moving averages (`itl`, `ttft`) and energy.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from assay.serving.fleet import FleetSpec
from assay.serving.interface import Fleet, Request
from assay.workloads.requests import Requests
from tests.oracles.kv_memory import Key, Sequence, answer_keys, blocks_of, prompt_keys
from tests.oracles.llm_instance import Engine


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

    @property
    def unanswered(self) -> Any:
        return np.array([e.unanswered for e in self.oracle.engines])

    def prompt_tokens(self, request: Request) -> Any:
        newcomer = self.oracle.sequences[int(request.id)]
        return np.array([e.blocks_on_board(newcomer) * e.block for e in self.oracle.engines])

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
