"""Traces, fleets and routers in which everything happens that can happen to a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import Simulation
from assay.serving.fleet import FleetSpec, Instance
from assay.serving.interface import Fleet, Request
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.requests import Prefixes, Requests

GAUGES = ("running", "waiting", "prefill_tokens", "kv_tokens", "kv_free", "unanswered")
SEEN = (*GAUGES, "match", "prompts on board", "request", "arrival and now")


@dataclass
class Watcher:
    """Routes by one of the things a router can see, and writes down all of them."""

    by: str = "turn"
    check: Any = None  # called at every arrival
    seen: list[Any] = field(default_factory=list)
    key = "watcher"

    def route(self, request: Request, fleet: Fleet) -> int:
        matched = np.array(fleet.match(request))
        who = [np.array(request.id), np.array([request.arrival, fleet.now])]
        prompts = np.array(fleet.prompt_tokens(request))
        self.seen.append([np.array(getattr(fleet, name)) for name in GAUGES] + [matched, prompts] + who)
        if self.check is not None:
            self.check()
        scores = {
            "turn": np.zeros(len(fleet)), "batch": fleet.batch_size, "kv": fleet.kv_tokens,
            "prefill": fleet.prefill_tokens, "cache": -matched, "free": -fleet.kv_free, "prompts": prompts,
            "itl": fleet.itl if self.by == "itl" else 0,
        }  # fmt: skip
        return fleet.argmin(scores[self.by])


class ShortestFirst:
    """An order: short prompts first."""

    def key(self, request: Request, now: float) -> float:
        return float(request.prompt)


@dataclass(frozen=True)
class Case:
    """A trace, a fleet, and who decides."""

    requests: Requests
    fleet: FleetSpec
    by: str
    shortest_first: bool
    prefix_cache: bool
    age: float = 0.0

    def __repr__(self) -> str:
        q, f = self.requests, self.fleet
        p = q.prefixes
        assert p is not None
        paths = [p.segments[a:b].tolist() for a, b in zip(p.offsets, p.offsets[1:], strict=False)]
        rows = [
            *zip(
                q.arrival.round(4).tolist(), q.prompt.tolist(), q.output.tolist(), paths, p.output.tolist(), strict=True
            )
        ]
        segments = [*zip(p.parent.tolist(), p.start.tolist(), p.stop.tolist(), strict=True)]
        parts = [
            (i.plan, i.role, i.max_seqs, i.max_tokens, i.chunk_limit, i.preemption, i.room // f.block, i.host_tokens)
            for i in f.instances
        ]
        admission, age = f.instances[0].admission, self.age
        rest = f"lockstep {f.lockstep}, by {self.by}, shortest {self.shortest_first}, cache {self.prefix_cache}"
        rest += f", admission {admission}, age {age}"
        loop = "" if q.after is None or q.think is None else f"\nafter {q.after.tolist()} think {q.think.tolist()}"
        return f"block {f.block}\n{rows}\nsegments {segments}\n{parts}\n{rest}{loop}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def options(self) -> dict[str, Any]:
        order = ShortestFirst() if self.shortest_first else None
        return {"order": order, "prefix_cache": self.prefix_cache, "age": self.age}

    def run(self, mode: str) -> tuple[Outcome, Simulation, Watcher]:
        router = Watcher(self.by)
        simulation = Simulation(self.requests, self.fleet, router, mode=mode, patience=1.0, **self.options)
        return simulation.run(), simulation, router


def make_trace(
    seed: int, n: int, block: int, *, one_block: bool, overshoot: bool, rate: float, longest: int, ties: bool = False
) -> Requests:
    """Prompts along the paths of a random tree; some answers are part of later prompts.

    With `one_block` every segment is one cache block, so that pinning segments is pinning blocks. With `overshoot` a
    prompt may end inside its last segment.
    """
    rng = stream(seed, "serving-trace")
    parent, start, stop = [], [], []

    def grow(above: int, length: int) -> int:
        parent.append(above)
        start.append(stop[above] if above >= 0 else 0)
        stop.append(start[-1] + length)
        return len(parent) - 1

    for _ in range(int(rng.integers(1, 10))):
        above = int(rng.integers(-1, len(parent)))
        if above < 0 or stop[above] < longest:
            grow(above, block if one_block else int(rng.integers(1, 6 * block)))
    prompt, output, paths, answers = [], rng.geometric(1 / rng.uniform(2, 30), n), [], []
    for r in range(n):
        node = int(rng.integers(-1, len(parent)))
        path: list[int] = []
        above = node
        while above >= 0:
            path.insert(0, above)
            above = parent[above]
        kind, answer = rng.random(), -1
        length = stop[node] if node >= 0 else 0
        if node < 0 or kind < 0.4:
            length += int(rng.integers(1, 4 * block + 2))
        elif overshoot and kind < 0.7:
            length = int(rng.integers(start[node] + 1, stop[node] + 1))
        elif kind > 0.8 and stop[node] < 2 * longest:
            answer = grow(node, block if one_block else int(output[r]))
        prompt.append(length)
        paths.append(path)
        answers.append(answer)
    offsets = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    as_ints = lambda values: np.array(values, dtype=np.int32)  # noqa: E731
    tree = Prefixes(
        as_ints(parent),
        as_ints(start),
        as_ints(stop),
        offsets,
        as_ints([s for path in paths for s in path]),
        as_ints(answers),
    )
    gaps = rng.exponential(1 / rate, n)
    if ties:
        gaps *= rng.random(n) < 0.3
    return Requests.of(np.cumsum(gaps), prompt, output, prefixes=tree)


def with_loops(requests: Requests, seed: int) -> Requests:
    """Some requests wait for an earlier one, several perhaps for the same; some are sent at the moment it ends."""
    rng = stream(seed, "serving-loops")
    n = len(requests)
    earlier = np.minimum((rng.random(n) * np.arange(n)).astype(np.int32), np.maximum(np.arange(n) - 1, 0))
    waits = (rng.random(n) < rng.choice([0.3, 0.9])) & (np.arange(n) > 0)
    think = rng.exponential(rng.choice([0.01, 1.0]), n) * (rng.random(n) < 0.7)
    return replace(requests, after=np.where(waits, earlier, -1).astype(np.int32), think=np.where(waits, think, 0.0))


def make_cost(seed: int, widest: int) -> StepCost:
    """Every term of the formula, with a kink here and there."""
    rng = stream(seed, "serving-cost")
    some = rng.random(8) < 0.6
    n = np.arange(widest + 1)
    host = stream(seed, "serving-launch").uniform(0.0, 3e-2, 3) * (seed % 2)  # launches that often take longest
    return StepCost(
        tokens=rng.uniform(0.5, 1.5) * 1e-2 + rng.uniform(0, 2e-4) * n + 1e-3 * (n > 7),
        decode_fixed=1e-3 * some[0], decode_seq=1e-4 * some[1] * rng.random(), decode_kv=1e-5 * rng.random(),
        decode_window=1e-5 * some[2] * rng.random(), window=float(rng.integers(5, 60)),
        prefill_fixed=1e-3 * some[3], prefill_token=1e-4 * some[4] * rng.random(),
        prefill_pair=1e-6 * some[5] * rng.random(),
        prefill_kv=1e-5 * some[6] * rng.random(), prefill_pair_window=1e-6 * some[7] * rng.random(),
        launch=0.1 * host[0], launch_alone=host[1], launch_mixed=host[2], kv_bytes=1e4,
    )  # fmt: skip


SHAPES = ("one", "several", "lockstep", "split", "split-lockstep")


@st.composite
def cases(
    draw: Any, *, host: bool = False, ties: bool = False, one_block: bool | None = None, overshoot: bool = True,
    loops: bool = False, ages: tuple[float, ...] = (0.0,), most: int = 40,
    bys: tuple[str, ...] = ("turn", "batch", "kv", "prefill", "cache", "free", "prompts"),
) -> Case:  # fmt: skip
    """Small memories, so that sequences give way and blocks are evicted all the time."""
    seed = draw(st.integers(0, 2**32))
    shape = draw(st.sampled_from(SHAPES))
    block = draw(st.sampled_from([1, 2, 4, 7, 16]))
    single = draw(st.booleans()) if one_block is None else one_block
    n = draw(st.integers(1, most))
    longest = draw(st.integers(2, 8)) * block
    rate = draw(st.sampled_from([1.0, 10.0, 100.0]))
    requests = make_trace(
        seed, n, block, one_block=single, overshoot=overshoot and not single, rate=rate, longest=longest, ties=ties
    )
    if loops:
        requests = with_loops(requests, seed)
    need = -(-(requests.prompt.astype(int) + requests.output) // block) + 1
    room = draw(st.sampled_from([1.0, 1.0, 1.3, 2.0, 4.0]))
    max_tokens = draw(st.integers(2, 80))
    instance = Instance(
        make_cost(seed, 200), plan=draw(st.sampled_from(["vllm-v1", "vllm-v1", "sglang", "static"])),
        max_seqs=min(draw(st.integers(1, 12)), max_tokens), max_tokens=max_tokens,
        chunk_limit=draw(st.sampled_from([0, 0, 5, 16])), admission=draw(st.sampled_from(["prompt", "chunk"])),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        kv_tokens=int(need.max() * room) * block, host_bandwidth=1e7,
        host_tokens=draw(st.integers(1, 30)) * block if host else 0,
    )  # fmt: skip
    fleet = make_fleet(shape, instance, block, seed, draw(st.booleans()))
    by, shortest, cached = draw(st.sampled_from(bys)), draw(st.booleans()), draw(st.integers(0, 4)) > 0
    return Case(requests, fleet, by, shortest, cached, draw(st.sampled_from(ages)))


def make_fleet(shape: str, instance: Instance, block: int, seed: int, differ: bool) -> FleetSpec:
    """One to four instances, alone, in lock-step, or split by role."""
    count = {"one": 1, "several": 3, "lockstep": 3, "split": 4, "split-lockstep": 4}[shape]
    instances = [instance] * count
    if differ:
        instances = [replace(i, cost=make_cost(seed + number, 200)) for number, i in enumerate(instances)]
    lockstep: tuple[int, ...] = ()
    if shape.startswith("split"):
        roles = (
            ("prefill", "prefill", "decode", "decode")
            if shape == "split-lockstep"
            else ("prefill", "both", "decode", "decode")
        )
        instances = [replace(i, role=role) for i, role in zip(instances, roles, strict=True)]
        lockstep = (2, 2) if shape == "split-lockstep" else ()
    elif shape == "lockstep":
        lockstep = (2, 1)
    rng = stream(seed, "serving-network")
    return FleetSpec(
        tuple(instances), lockstep=lockstep, block=block, bandwidth=float(rng.uniform(1e6, 1e8)),
        latency=float(rng.uniform(1e-4, 1e-2)), overlap=float(rng.choice([0.0, 0.5])),
    )  # fmt: skip


def tight_case(seed: int) -> Case:
    """One instance whose blocks are always short, with hits that pin, answers that are evicted, and chunks."""
    rng = stream(seed, "soak")
    block = int(rng.choice([4, 16]))
    one_block, rate = bool(rng.random() < 0.7), float(rng.choice([20.0, 100.0, 400.0]))
    requests = make_trace(seed, 40, block, one_block=one_block, overshoot=True, rate=rate, longest=8 * block)
    need = int((-(-(requests.prompt.astype(int) + requests.output) // block) + 1).max())
    instance = Instance(
        make_cost(seed, 200), max_seqs=int(rng.integers(2, 8)), max_tokens=int(rng.integers(8, 60)),
        chunk_limit=int(rng.choice([0, 3, 5])), preemption=str(rng.choice(["recompute", "swap"])),
        kv_tokens=int(need * rng.choice([1.0, 1.2, 1.5, 2.0])) * block, host_bandwidth=1e7,
        admission=str(rng.choice(["prompt", "chunk"])), plan=str(rng.choice(["vllm-v1", "vllm-v1", "sglang"])),
    )  # fmt: skip
    return Case(requests, make_fleet("one", instance, block, seed, False), "turn", bool(rng.random() < 0.5), True)


def starved_case(seed: int) -> Case:
    """As `tight_case`, with longer answers, other plans, several instances, loops and old signals."""
    rng, case = stream(seed, "soak2"), tight_case(seed)
    if rng.random() >= 0.6:
        return case
    plan, preemption = str(rng.choice(["vllm-v1", "sglang", "static"])), rng.choice(["recompute", "recompute", "swap"])
    shape = str(rng.choice(SHAPES))
    requests = with_loops(case.requests, seed) if rng.random() < 0.5 else case.requests
    if rng.random() < 0.5:
        longer = np.minimum(requests.output * int(rng.integers(1, 8)), 90)
        requests = replace(requests, output=longer.astype(requests.output.dtype))
    block = case.fleet.block
    need = int((-(-(requests.prompt.astype(int) + requests.output) // block) + 1).max())
    room = int(need * rng.choice([1.0, 1.2, 1.5, 2.0, 3.0])) * block
    instance = replace(case.fleet.instances[0], plan=plan, preemption=str(preemption), kv_tokens=room)
    by = str(rng.choice(["turn", "batch", "kv", "prefill", "cache", "free", "prompts"]))
    fleet, cached = make_fleet(shape, instance, block, seed, False), bool(rng.random() < 0.8)
    return Case(requests, fleet, by, case.shortest_first, cached, float(rng.choice([0.0, 0.0, 0.03])))
