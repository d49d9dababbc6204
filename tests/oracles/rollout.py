"""Trajectories on instances, iteration by iteration and object by object: slow, and plainly what the engine means."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.training.engine.rollout import Pool, Rule
from assay.workloads.trajectories import Trajectories

SOON = 1e-9


@dataclass
class Job:
    """One trajectory: turns of (prompt, output, env, state)."""

    name: int
    turns: list[tuple[int, int, float, int]]
    at: int = 0
    context: int = 0
    home: int = -1
    level: int = 0
    left: int = 0  # tokens of this turn still to be written
    written: int = 0
    done: float = math.inf


@dataclass
class Instance:
    """One instance: who runs, who waits, whose keys and values lie there."""

    cost: Any
    bucket: int
    gpus: int
    running: list[Job] = field(default_factory=list)
    waiting: deque[Job] = field(default_factory=deque)
    reading: Job | None = None
    read: int = 0
    kept: dict[int, int] = field(default_factory=dict)  # by trajectory, oldest first
    ends: float = math.inf  # of the iteration under way
    width: int = 0

    @property
    def load(self) -> float:
        return (len(self.running) + len(self.waiting) + (self.reading is not None)) / self.gpus

    def reserved(self) -> int:
        jobs = self.running + ([self.reading] if self.reading else [])
        return sum(job.context + job.turns[job.at][0] + job.turns[job.at][1] for job in jobs)


class Oracle:
    """Everything, one iteration at a time."""

    def __init__(self, work: Trajectories, pool: Pool, rule: Rule, hint: Any = None) -> None:
        self.rule, self.moved, self.reread, self.finished = rule, 0, 0, []
        self.hint = [0] * len(work) if hint is None else list(hint)
        columns = (work.prompt, work.output, work.env, work.state)
        self.jobs = [
            Job(i, [tuple(c[k].item() for c in columns) for k in range(work.first[i], work.first[i + 1])])
            for i in range(len(work))
        ]
        self.places = [
            Instance(pool.costs[pool.kind[w]], int(pool.bucket[w]), int(pool.gpus[w])) for w in range(len(pool))
        ]
        self.away = [(0.0, job.name) for job in self.jobs]
        self.tree: dict[tuple[int, ...], list[int]] = {}

    def bucket(self, tokens: float) -> int:
        return next(
            (at for at, limit in enumerate(self.rule.limits[:-1]) if tokens <= limit), len(self.rule.limits) - 1
        )

    def least(self, level: int) -> int:
        every = range(len(self.places))
        inside = [w for w in every if self.places[w].bucket == level and self.places[w].load < self.rule.full]
        return min(inside or every, key=lambda w: (self.places[w].load, w))

    def learnt(self, job: Job) -> int:
        found: list[int] = []
        for depth in range(1, job.at + 1):
            seen = self.tree.get(tuple(turn[3] for turn in job.turns[:depth]), [])
            if len(seen) < self.rule.visits:
                break
            found = seen
        if not found:
            return job.level
        mean, high = self.bucket(sum(found) / len(found)), self.bucket(float(np.percentile(found[-200:], 90)))
        return mean if mean == high else job.level

    def route(self, job: Job) -> int:
        name = self.rule.name
        if name == "spread" or (name == "sticky" and job.home < 0):
            return self.least(-1)
        if job.home < 0:
            job.level = self.hint[job.name] if name == "hinted" else 0
            return self.least(job.level)
        level = job.level
        if name == "aged":
            level = max(level, self.bucket(job.written))
        elif name == "learnt":
            level = self.learnt(job)
        if level == job.level:
            return job.home
        job.level = level
        return self.least(level)

    def arrive(self, job: Job, now: float) -> None:
        to = self.route(job)
        if job.home >= 0 and to != job.home:
            self.moved += 1
            self.places[job.home].kept.pop(job.name, None)
        job.home = to
        place = self.places[to]
        place.waiting.append(job)
        if place.ends == math.inf:
            self.begin(place, now)

    def admit(self, place: Instance) -> None:
        if place.reading or not place.waiting or len(place.running) >= self.rule.most:
            return
        job = place.waiting[0]
        need = job.context + job.turns[job.at][0] + job.turns[job.at][1]
        if place.reserved() + need > place.cost.kv_tokens and place.running:
            return
        place.waiting.popleft()
        place.read = place.kept.pop(job.name, 0)
        self.reread += job.context - place.read
        place.reading = job
        while place.reserved() + sum(place.kept.values()) > place.cost.kv_tokens and place.kept:
            place.kept.pop(next(iter(place.kept)))

    def begin(self, place: Instance, now: float) -> None:
        """One iteration."""
        self.admit(place)
        b, chunks = len(place.running), []
        if place.reading:
            needed = place.reading.context + place.reading.turns[place.reading.at][0]
            place.width = min(self.rule.chunk, needed - place.read)
            chunks = [(place.width, place.read)]
        if not b and not chunks:
            place.ends = math.inf
            return
        seen = sum(job.context + job.turns[job.at][0] + job.turns[job.at][1] - job.left for job in place.running)
        place.ends = now + place.cost.seconds(b, seen, chunks)

    def end(self, w: int) -> None:
        place, now = self.places[w], self.places[w].ends
        for job in place.running:
            job.left -= 1
        if place.reading:
            job, place.read = place.reading, place.read + place.width
            if place.read == job.context + job.turns[job.at][0]:
                place.reading, job.left = None, job.turns[job.at][1] - 1
                place.running.append(job)
        over = sorted((job for job in place.running if job.left == 0), key=lambda job: job.name)
        place.running = [job for job in place.running if job.left > 0]
        for at, job in enumerate(over):
            self.written(place, job, now, over[at + 1 :])
        self.begin(place, now)

    def written(self, place: Instance, job: Job, now: float, others: list[Job]) -> None:
        prompt, output, env, _ = job.turns[job.at]
        job.context += prompt + output
        job.written += output
        job.at += 1
        if job.at == len(job.turns):
            job.done = now
            self.finished.append(job)
            if len(self.finished) % self.rule.rebuild == 0:
                self.build()
            return
        place.kept[job.name] = job.context
        still = sum(o.context + o.turns[o.at][0] + o.turns[o.at][1] for o in others)
        if place.reserved() + still + sum(place.kept.values()) > place.cost.kv_tokens:
            del place.kept[job.name]
        self.away.append((now + env, job.name))

    def build(self) -> None:
        self.tree = {}
        for job in self.finished[-self.rule.recent :]:
            rest = sum(turn[1] for turn in job.turns)
            for depth, turn in enumerate(job.turns[:-1], 1):
                rest -= turn[1]
                self.tree.setdefault(tuple(t[3] for t in job.turns[:depth]), []).append(rest)

    def run(self) -> list[float]:
        while True:
            w = min(range(len(self.places)), key=lambda at: (self.places[at].ends, at))
            comes = min(self.away, default=(math.inf, -1))
            if comes[0] == math.inf and self.places[w].ends == math.inf:
                return [job.done for job in self.jobs]
            if comes[0] <= self.places[w].ends + SOON:
                self.away.remove(comes)
                self.arrive(self.jobs[comes[1]], comes[0])
            else:
                self.end(w)
