"""One instance with branching requests in plain Python: objects, lists and sorting, one step after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from assay.serving.taper.branch_engine import noise
from assay.serving.taper.branch_state import PRIOR, TERMS, UNIT, Policy
from assay.sim.llm_cost import StepCost, chunk_line, decode_line
from assay.sim.random import key
from assay.workloads.branches import Branching


@dataclass
class Branch:
    index: int
    length: int
    made: int = 0


@dataclass
class Request:
    number: int
    arrival: float
    prefix: int
    stages: list[list[Branch]]
    now: int = 0  # the stage
    decoding: bool = False
    have: int = 0
    target: int = 0
    tokens: int = 0
    first: float = float("nan")
    finish: float = float("nan")
    chosen: list[Branch] = field(default_factory=list)
    chunk: int = 0

    @property
    def stage(self) -> list[Branch]:
        return self.stages[self.now]

    @property
    def alive(self) -> list[Branch]:
        return [branch for branch in self.stage if branch.made < branch.length]

    def blocks(self, size: int) -> int:
        """Blocks held by the request's text as it stands."""
        if len(self.stage) == 1:
            return -(-(self.prefix + self.stage[0].made) // size)
        return -(-self.prefix // size) + sum(-(-branch.made // size) for branch in self.stage)

    def grown(self, size: int, branches: list[Branch]) -> int:
        """Blocks that one more token for each of these branches would add."""
        before = self.blocks(size)
        for branch in branches:
            branch.made += 1
        after = self.blocks(size)
        for branch in branches:
            branch.made -= 1
        return after - before


class Instance:
    """The state of the instance; `step` is one iteration."""

    def __init__(
        self, trace: Branching, cost: StepCost, policy: Policy, *, ttft: float, tpot: float, believed: StepCost,
        jitter: float, seed: int, block: int, kv_tokens: int, chunk: int, watermark: float, most: int,
        prefix_reads: str,
    ) -> None:  # fmt: skip
        self.cost, self.believed, self.policy, self.ttft, self.tpot = cost, believed, policy, ttft, tpot
        self.jitter, self.key, self.size, self.total = (
            jitter,
            np.uint64(key(seed, "branch-engine")),
            block,
            kv_tokens // block,
        )
        self.chunk, self.spare, self.most, self.once = chunk, int(watermark * self.total), most, prefix_reads == "once"
        self.requests = []
        for r in range(len(trace)):
            stages = [
                [Branch(i, int(trace.length[i])) for i in range(trace.branches[s], trace.branches[s + 1])]
                for s in range(trace.stages[r], trace.stages[r + 1])
            ]
            self.requests.append(Request(r, float(trace.arrival[r]), int(trace.prompt[r]), stages))
        self.queue, self.again = list(self.requests), list[Request]()
        self.running: list[Request] = []
        self.now, self.steps, self.extras, self.preempted = 0.0, 0, 0, 0
        self.theta, self.spread = np.array([0.0, 1.0, 1.0, 1.0]), PRIOR * np.eye(TERMS)

    @property
    def used(self) -> int:
        return sum(request.blocks(self.size) for request in self.running)

    def run(self) -> None:
        while self.queue or self.again or self.running:
            if not self.running and not self.again:
                self.now = max(self.now, self.queue[0].arrival)
            self.admit()
            self.step()

    def admit(self) -> None:
        while len(self.running) < self.most:
            arrived = self.queue and self.queue[0].arrival <= self.now
            if not self.again and not arrived:
                return
            request = self.again[-1] if self.again else self.queue[0]
            if self.running and self.used + request.blocks(self.size) + self.spare > self.total:
                return
            (self.again.pop() if self.again else self.queue.pop(0))
            self.running.append(request)
            request.decoding, request.have = False, 0
            request.target = request.prefix + sum(branch.made for branch in request.stage)

    def ordered(self, request: Request) -> list[Branch]:
        keys = {
            "given": lambda branch: branch.index,
            "longest": lambda branch: (branch.made - branch.length, branch.index),
            "least": lambda branch: (branch.made, branch.index),
        }
        return sorted(request.alive, key=keys[self.policy.order])

    def plan(self) -> int:
        """The base batch; returns the blocks it needs."""
        left, need = self.chunk, 0
        for request in self.running:
            request.chosen, request.chunk = [], 0
            if request.decoding:
                request.chosen = self.ordered(request)[:1]
            else:
                request.chunk = min(left, request.target - request.have)
                left -= request.chunk
                if request.have + request.chunk == request.target and request.tokens == 0:
                    need += request.grown(self.size, request.stage)
            need += request.grown(self.size, request.chosen)
        return need

    def features(self) -> tuple[int, int, int]:
        decodes = sum(len(request.chosen) for request in self.running)
        context = 0
        for request in self.running:
            copies = min(1, len(request.chosen)) if self.once else len(request.chosen)
            context += copies * request.prefix + sum(branch.made for branch in request.chosen)
        return decodes, context, sum(request.chunk for request in self.running)

    def terms(self, cost: StepCost) -> list[float]:
        decodes, context, prefill = self.features()
        chunks = 0.0
        for request in self.running:
            if request.chunk:
                chunks += chunk_line(cost.packed(), request.chunk, request.have)[0]
        decoding = decode_line(cost.packed(), decodes, context)[0]
        return [UNIT, float(cost.tokens[decodes + prefill]), decoding, chunks]

    def guess(self) -> float:
        x, theta = self.terms(self.believed), self.theta
        return float(theta[0] * x[0] + theta[1] * x[1] + theta[2] * x[2] + theta[3] * x[3])

    def slack(self, base: float) -> float:
        due = [
            request.first + self.tpot * request.tokens if request.tokens else request.arrival + self.ttft
            for request in self.running
        ]
        return min(max(0.0, time - self.now - base) for time in due)

    def widen(self, base: float, budget: float, free: int) -> None:
        policy, turn, extras, rank = self.policy, self.steps % len(self.running), 0, 1
        while rank < policy.per_request:
            before = extras
            for request in self.running[turn:] + self.running[:turn]:
                line = self.ordered(request)
                if len(request.chosen) != rank or len(line) <= rank:
                    continue
                if extras >= policy.per_batch:
                    return
                blocks = request.grown(self.size, [line[rank]])
                if blocks > free:
                    continue
                request.chosen.append(line[rank])
                if policy.regulated and self.guess() - base > budget:
                    request.chosen.pop()
                    return
                extras, free = extras + 1, free - blocks
                self.extras += 1
            if extras == before:
                return
            rank += 1

    def step(self) -> None:
        need = self.plan()
        while need > self.total - self.used:
            self.again.append(self.running.pop())
            self.preempted += 1
            need = self.plan()
        base = self.guess()
        self.widen(base, self.slack(base) - self.policy.margin * base, self.total - self.used - need)
        terms = self.terms(self.cost)
        decodes, _, prefill = self.features()
        seconds = terms[1] + terms[2] + terms[3]
        if prefill:
            seconds = max(seconds + self.cost.launch, self.cost.launch_mixed if decodes else self.cost.launch_alone)
        seconds *= noise(self.key, self.steps, self.jitter)
        if self.policy.regulated:
            self.learn(seconds)
        self.now += seconds
        self.steps += 1
        for request in self.running:
            self.deliver(request)
        self.running = [request for request in self.running if request.now < len(request.stages)]
        assert self.used <= self.total

    def learn(self, seconds: float) -> None:
        x = np.array(self.terms(self.believed)) / UNIT
        gain = self.spread @ x
        forget = self.policy.forget
        fade = forget if np.trace(self.spread) < TERMS * PRIOR else 1.0
        scale = forget + gain @ x
        self.theta = self.theta + gain / scale * (seconds / UNIT - self.theta @ x)
        self.spread = (self.spread - np.outer(gain, gain) / scale) / fade

    def deliver(self, request: Request) -> None:
        if not request.decoding:
            request.have += request.chunk
            if request.have < request.target:
                return
            request.decoding = True
            request.chosen = request.stage[:1] if request.tokens == 0 else []
        if request.chosen and request.tokens == 0:
            request.first = self.now
        for branch in request.chosen:
            branch.made += 1
            request.tokens += 1
        if not request.alive:
            request.prefix += sum(branch.made for branch in request.stage)
            request.now += 1
            if request.now == len(request.stages):
                request.finish = self.now
