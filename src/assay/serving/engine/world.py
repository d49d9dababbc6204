"""Lay a trace and a fleet out as the arrays that the compiled core works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine import state
from assay.serving.engine.output_reserve import KEPT
from assay.serving.engine.state import ADMISSIONS, NONE, PLANS, RECOMPUTE, ROLES, SWAP, World
from assay.serving.fleet import FleetSpec, Instance
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests

FIRST_SIZE = 1 << 14  # entries and span rows to begin with; they double when short


def build(
    requests: Requests, fleet: FleetSpec, *, prefix_cache: bool = True, step: bool = False, record: bool = True
) -> World:
    """The world at time zero."""
    n, hosts = len(fleet), [i for i, instance in enumerate(fleet.instances) if instance.host_tokens]
    offsets, path, begin, end, answers = _paths(requests, fleet.block, prefix_cache)
    records = np.zeros(len(requests), state.REQUEST)
    records["arrival"], records["prompt"], records["output"] = requests.arrival, requests.prompt, requests.output
    records["turn"] = np.arange(len(requests))
    for name in ("routed", "admitted", "first", "finish"):
        records[name] = np.nan
    for name in ("instance", "child", "sibling", "older", "newer", "prefilled_by", "own"):
        records[name] = NONE
    last = path[np.maximum(offsets[1:] - 1, 0)] if len(path) else np.zeros(len(records), np.int32)
    reach = end[last] if len(end) else 0
    records["path_blocks"] = np.where(np.diff(offsets) > 0, np.minimum(reach, requests.prompt // fleet.block), 0)
    kinds, costs = _costs(fleet)
    counts = np.zeros(state.N_COUNTS, np.int64)
    counts[state.STEP], counts[state.RECORD], counts[state.FINDS_OWN] = step, record, prefix_cache
    counts[state.LONGEST] = np.diff(offsets).max(initial=0)
    seats = max(instance.max_seqs for instance in fleet.instances)
    world = World(
        groups=_groups(fleet), instances=_instances(fleet, kinds, hosts), caches=_caches(fleet, hosts),
        requests=records, entries=new_entries(counts, FIRST_SIZE),
        index=np.full((len(begin), n + len(hosts)), NONE, np.int32),
        offsets=offsets, path=path, begin=begin, end=end, answers=answers,
        phases=np.zeros((n, fleet.block), np.int32), finishing=np.zeros((n, seats), state.FINISHING),
        chunks=np.zeros((n, seats), np.int32), **cost_arrays(costs),
        spans=np.zeros(FIRST_SIZE, state.SPAN), gauges=np.zeros((4, n), np.int64), signals=np.zeros((3, n)),
        books=np.zeros((2, n), np.int64), board=np.zeros((0, n, 2), np.int32),
        finished=np.zeros(len(records), np.int32), handed=np.zeros(len(records) + 1, np.int32),
        touched=np.zeros(0, np.int32), counts=counts, handle=np.zeros(0, state.HANDLE),
    )  # fmt: skip
    return world._replace(handle=state.handle_of(world))


def new_entries(counts: NDArray[np.int64], size: int) -> state.Records:
    """A pool of free cache entries, chained."""
    entries = np.zeros(size, state.ENTRY)
    entries["warmer"] = np.arange(1, size + 1)
    counts[state.FREE_ENTRY], counts[state.ENTRIES_LEFT] = 0, size
    return entries


def grown(w: World) -> World:
    """The same world with twice the room for what ran short."""
    entries, spans, counts = w.entries, w.spans, w.counts
    more = np.zeros(len(entries), state.ENTRY)
    more["warmer"] = np.arange(len(entries) + 1, 2 * len(entries) + 1)
    more["warmer"][-1] = counts[state.FREE_ENTRY]
    counts[state.FREE_ENTRY] = len(entries)
    counts[state.ENTRIES_LEFT] += len(entries)
    entries = np.concatenate([entries, more])
    if len(spans) < 2 * counts[state.SPANS] + 1024:
        spans = np.concatenate([spans, np.zeros(len(spans), state.SPAN)])
    larger = w._replace(entries=entries, spans=spans)
    return larger._replace(handle=state.handle_of(larger))


def _paths(
    requests: Requests, block: int, on: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Paths in blocks. A block that straddles two segments belongs to the later one: its content depends on both."""
    n, prefixes = len(requests), requests.prefixes
    if prefixes is None or not on:
        nothing = np.zeros(0, np.int32)
        return np.zeros(n + 1, np.int64), nothing, nothing, nothing, np.full(n, NONE, np.int32)
    begin, end = prefixes.start // block, prefixes.stop // block
    owner = np.repeat(np.arange(n), np.diff(prefixes.offsets))
    segments = prefixes.segments
    kept = (end > begin)[segments] & (begin[segments] < (requests.prompt // block)[owner])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner[kept], minlength=n))]).astype(np.int64)
    answers = prefixes.output.astype(np.int32)
    return offsets, segments[kept].astype(np.int32), begin.astype(np.int32), end.astype(np.int32), answers


def _costs(fleet: FleetSpec) -> tuple[list[int], list[StepCost]]:
    """The different costs, and which of them each instance has."""
    costs: dict[int, StepCost] = {}
    for instance in fleet.instances:
        costs.setdefault(id(instance.cost), instance.cost)
    rows = {identity: row for row, identity in enumerate(costs)}
    return [rows[id(instance.cost)] for instance in fleet.instances], list(costs.values())


def cost_arrays(costs: Sequence[StepCost]) -> dict[str, NDArray[np.float64]]:
    """One row per cost, as the core reads them."""
    width = max(len(cost.tokens) for cost in costs)
    tokens, joules = np.full((len(costs), width), np.inf), np.zeros((len(costs), width))
    energies = np.zeros((len(costs), 3))
    for row, cost in enumerate(costs):
        tokens[row, : len(cost.tokens)] = cost.tokens
        if cost.energy is not None:
            joules[row, : len(cost.energy.joules)] = cost.energy.joules
            energies[row] = cost.energy.kv, cost.energy.pair, cost.energy.seq
    coefficients = np.stack([cost.packed() for cost in costs])
    return {"tokens": tokens, "coefficients": coefficients, "joules": joules, "energies": energies}


def _groups(fleet: FleetSpec) -> state.Records:
    sizes = np.array(fleet.lockstep or (1,) * len(fleet))
    groups = np.zeros(len(sizes), state.GROUP)
    groups["last"] = np.cumsum(sizes)
    groups["first"] = groups["last"] - sizes
    groups["phase"], groups["next"] = state.IDLE, np.inf
    return groups


def _instances(fleet: FleetSpec, kinds: list[int], hosts: list[int]) -> state.Records:
    table = np.zeros(len(fleet), state.INSTANCE)
    for name in ("queue", "oldest", "newest", "host"):
        table[name] = NONE
    table["group"] = np.repeat(np.arange(len(fleet.lockstep) or len(fleet)), fleet.lockstep or 1)
    table["kind"], table["accepts"] = kinds, 1
    for i, instance in enumerate(fleet.instances):
        configure(table[i], instance)
    for row, i in enumerate(hosts, len(fleet)):
        table[i]["host"] = row
    return table


def configure(record: np.void, instance: Instance) -> None:
    """Set what an instance is, apart from its cost and its memory."""
    record["plan"], record["role"] = PLANS[instance.plan], ROLES[instance.role]
    record["admission"] = ADMISSIONS[instance.admission]
    record["ratio"], record["ratio_k"] = KEPT, record["k"]
    record["preemption"] = SWAP if instance.preemption == "swap" else RECOMPUTE
    record["max_seqs"], record["max_tokens"] = instance.max_seqs, instance.max_tokens
    record["chunk_limit"] = instance.chunk_limit or instance.max_tokens
    record["swap"] = record["fetch"] = instance.cost.kv_bytes / instance.host_bandwidth


def _caches(fleet: FleetSpec, hosts: list[int]) -> state.Records:
    caches = np.zeros(len(fleet) + len(hosts), state.CACHE)
    caches["coldest"] = caches["warmest"] = NONE
    rooms = [instance.room for instance in fleet.instances] + [fleet.instances[i].host_tokens for i in hosts]
    caches["capacity"] = np.array(rooms) // fleet.block
    return caches
