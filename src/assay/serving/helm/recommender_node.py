"""A fleet of recommender nodes: one HBM pool a node, two real caches in it, a copy link and a GPU, request by request.

A node keeps embeddings of item groups and the KV of user histories in one pool; `ratio` is the embeddings' share. A
request first fetches the groups that are not resident over the host link, then the GPU prefills what of the history is
not resident and scores the candidates. Link and GPU are two queues in a row, each in order of arrival, so

    latency = waiting + (missing groups x group bytes / link) + prefill(missing tokens) + scoring.

What is resident is decided by least-recently-used lists over what was really asked for, nothing by a formula. Moving
the border evicts at once on the side that shrinks. KV cannot be copied in, it comes with its user's next request;
embeddings can, and `refill` says how the space they gained is filled again with what was evicted last:

- ``demand``: only as requests miss;
- ``idle``: also while the link would idle, never in front of a request;
- ``bulk``: at once, in one copy that later requests wait behind.

>>> from assay.workloads.recommender_traffic import generate
>>> fleet = Fleet(generate("steady", nodes=2, duration=5.0, seed=0), nodes=2, ratio=0.5)
>>> fleet.advance(5.0)
>>> bool(fleet.latency.min() > 0), bool(fleet.allocated.max() <= fleet.node.pool)
(True, True)
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.caches import Lru, insert, insert_oldest, lru, oldest, remove, touch
from assay.sim.compiled import njit
from assay.workloads.recommender_traffic import Traffic

Floats = NDArray[np.float64]
EMBEDDINGS, HISTORIES = 0, 1
ROUTERS = ("both-caches", "kv-affinity", "least-load")
REFILLS = ("demand", "idle", "bulk")
GHOSTS = 1 << 14  # evicted groups a node remembers

# What a node counts between two looks.
COUNTS = ("requests", "users", "kv_hits", "group_hits", "groups", "history", "link_busy")
(REQUESTS, USERS, KV_HITS, GROUP_HITS, GROUPS, HISTORY, LINK_BUSY) = range(len(COUNTS))


@dataclass(frozen=True)
class Node:
    """One node. The sizes are assumptions of a plausible deployment, not measurements.

    The GPU is an A100 at 45 % of its dense bf16 peak with 40 GB left beside weights and activations; the model a
    32-layer transformer of width 1024 whose four-fold grouped keys and values take 32 KiB a token; a group is 64 items
    with 128 features of 256 half-precision numbers; the link is a gather of such scattered 512-byte rows from
    host tables.

    >>> node = Node()
    >>> round(node.prefill(4000, 0), 4), round(node.group_bytes / node.link, 5)
    (0.0304, 0.0014)
    """

    pool: int = 40_000_000_000
    group_bytes: int = 64 * 128 * 512
    token_bytes: int = 32 * 2 * 256 * 2
    link: float = 3e9
    flops: float = 0.45 * 312e12
    layers: int = 32
    width: int = 1024
    candidates: int = 1024
    launch: float = 0.5e-3
    target: float = 0.2  # seconds within which a request should be answered

    @property
    def per_token(self) -> float:
        """GPU seconds of a token's matrix products."""
        return 24 * self.width**2 * self.layers / self.flops

    @property
    def per_pair(self) -> float:
        """GPU seconds of one token attending to another."""
        return 4 * self.width * self.layers / self.flops

    def prefill(self, tokens: float, cached: float) -> float:
        """Seconds to compute the KV of `tokens` that follow `cached` ones."""
        return tokens * self.per_token + tokens * (cached + tokens / 2) * self.per_pair


class _Costs(NamedTuple):
    group: float
    token: float
    pair: float
    launch: float
    candidates: float
    group_bytes: int
    token_bytes: int
    pool: int


class _State(NamedTuple):
    """Arrays over nodes; what is looked up for all nodes at once has the node as its last axis."""

    entries: NDArray[np.int32]
    used: NDArray[np.int64]
    capacity: NDArray[np.int64]
    resident: NDArray[np.uint8]  # (group, node)
    tokens: NDArray[np.int32]  # (user, node): tokens of the history that are resident
    ghosts: NDArray[np.int32]
    ghost_count: NDArray[np.int64]  # (node, [pushed, remembered])
    link_free: Floats
    gpu_free: Floats
    counts: Floats
    seen: NDArray[np.int32]  # (user, node): the last look in which the user came
    peak: NDArray[np.int64]  # most bytes ever allocated


@njit(cache=True, nogil=True, forceinline=True)
def _cache(s, n):
    return Lru(s.entries[n], s.used[n], s.capacity[n])


@njit(cache=True, nogil=True, forceinline=True)
def _evict(resident, tokens, ghosts, ghost_count, cache, n, part, room):
    """Evict from a part until it has room; groups are remembered as ghosts.

    It takes the arrays it needs: handing over the whole state would count references to all of them at every miss,
    and that alone would take most of a replay's time.
    """
    groups = len(resident)
    while cache.used[part] + room > cache.capacity[part]:
        key = oldest(cache, part)
        remove(cache, key, part)
        if key < groups:
            resident[key, n] = 0
            pushed = ghost_count[n, 0]
            ghosts[n, pushed % GHOSTS] = key
            ghost_count[n, 0] = pushed + 1
            ghost_count[n, 1] = min(ghost_count[n, 1] + 1, GHOSTS)
        else:
            tokens[key - groups, n] = 0


@njit(cache=True, nogil=True)
def _refill(s, cache, n, group_bytes, most):
    """Bring back up to `most` of the groups evicted last into free space; returns how many came."""
    came = 0
    while came < most and s.ghost_count[n, 1] > 0:
        if cache.used[EMBEDDINGS] + group_bytes > cache.capacity[EMBEDDINGS]:
            break
        s.ghost_count[n, 0] -= 1
        s.ghost_count[n, 1] -= 1
        key = s.ghosts[n, s.ghost_count[n, 0] % GHOSTS]
        if s.resident[key, n] == 0:
            insert_oldest(cache, key, EMBEDDINGS, group_bytes)
            s.resident[key, n] = 1
            came += 1
    return came


@njit(cache=True, nogil=True)
def _split(s, costs, ratios, now, bulk):
    """Move the border of every node whose ratio is another."""
    for n in range(len(ratios)):
        cache = _cache(s, n)
        share = np.int64(ratios[n] * costs.pool)
        if share == cache.capacity[EMBEDDINGS]:
            continue
        cache.capacity[EMBEDDINGS] = share
        cache.capacity[HISTORIES] = costs.pool - share
        for part in range(2):
            _evict(s.resident, s.tokens, s.ghosts, s.ghost_count, cache, n, part, 0)
        if bulk:
            copied = _refill(s, cache, n, costs.group_bytes, 1 << 40) * costs.group
            s.link_free[n] = max(now, s.link_free[n]) + copied
            s.counts[n, LINK_BUSY] += copied


@njit(cache=True, nogil=True)
def _choose(s, costs, router, user, history, groups, now, overlap):
    """Which node serves a request; every term is in seconds."""
    nodes = len(s.link_free)
    overlap[:] = 0
    if router == 0:
        for g in groups:
            for n in range(nodes):
                overlap[n] += s.resident[g, n]
    best, score = 0, -np.inf
    for n in range(nodes):
        value = -max(0.0, s.gpu_free[n] - now, s.link_free[n] - now)
        if router < 2:
            cached = s.tokens[user, n]
            saved = cached * costs.token + cached * cached / 2 * costs.pair
            value += saved * (1.0 if router == 0 else 1e6) + overlap[n] * costs.group
        if value > score:
            best, score = n, value
    return best


@njit(cache=True, nogil=True)
def _fetch(s, costs, cache, n, part, groups):
    """Look every group up and take in what is missing; returns how many were."""
    resident, tokens, ghosts, ghost_count = s.resident, s.tokens, s.ghosts, s.ghost_count
    missing = 0
    for g in groups:
        if touch(cache, g, part):
            continue
        missing += 1
        if costs.group_bytes <= cache.capacity[part]:
            _evict(resident, tokens, ghosts, ghost_count, cache, n, part, costs.group_bytes)
            insert(cache, g, part, costs.group_bytes)
            resident[g, n] = 1
    return missing


@njit(cache=True, nogil=True)
def _remember(s, costs, cache, n, part, user, history):
    """Keep the whole history's KV; returns how many tokens of it were there already."""
    cached, key = s.tokens[user, n], len(s.resident) + user
    if cached > 0:
        remove(cache, key, part)
        s.tokens[user, n] = 0
    nbytes = history * costs.token_bytes
    if nbytes <= cache.capacity[part]:
        _evict(s.resident, s.tokens, s.ghosts, s.ghost_count, cache, n, part, nbytes)
        insert(cache, key, part, nbytes)
        s.tokens[user, n] = history
    return cached


@njit(cache=True, nogil=True)
def _serve(s, costs, arrival, users, histories, candidates, latency, served_by, first, until, mode, look):
    """Serve requests from number `first` until the time `until`; returns the number of the next one."""
    router, unified, idle = mode[0], mode[1], mode[2]
    kv_part = EMBEDDINGS if unified else HISTORIES
    overlap = np.zeros(len(s.link_free), np.int64)
    i = first
    while i < len(arrival) and arrival[i] < until:
        now, user, history, groups = arrival[i], users[i], np.int64(histories[i]), candidates[i]
        n = _choose(s, costs, router, user, history, groups, now, overlap)
        cache = _cache(s, n)
        if idle and now > s.link_free[n]:
            came = _refill(s, cache, n, costs.group_bytes, np.int64((now - s.link_free[n]) / costs.group))
            s.counts[n, LINK_BUSY] += came * costs.group
        missing = _fetch(s, costs, cache, n, EMBEDDINGS, groups)
        cached = np.int64(_remember(s, costs, cache, n, kv_part, user, history))
        s.peak[n] = max(s.peak[n], cache.used[0] + cache.used[1])
        ready = max(now, s.link_free[n]) + missing * costs.group if missing else now
        s.link_free[n] = max(s.link_free[n], ready)
        todo = history - cached
        work = costs.launch + todo * costs.token + todo * (cached + todo / 2) * costs.pair
        work += costs.candidates * (costs.token + history * costs.pair)
        s.gpu_free[n] = max(ready, s.gpu_free[n]) + work
        latency[i], served_by[i] = s.gpu_free[n] - now, n
        count = s.counts[n]
        count[REQUESTS] += 1
        count[USERS] += s.seen[user, n] != look
        s.seen[user, n] = look
        count[KV_HITS] += cached > 0
        count[GROUP_HITS] += len(groups) - missing
        count[GROUPS] += len(groups)
        count[HISTORY] += history
        count[LINK_BUSY] += missing * costs.group
        i += 1
    return i


@njit(cache=True, nogil=True)
def _tails(latency, served_by, nodes, share):
    """The share-quantile of latency on each node, nan where it served nothing."""
    out = np.full(nodes, np.nan)
    for n in range(nodes):
        mine = np.sort(latency[served_by == n])
        if len(mine):
            out[n] = mine[min(len(mine) - 1, np.int64(share * len(mine)))]
    return out


class Fleet:
    """Nodes that serve a traffic, and whose borders may be moved between two calls of `advance`."""

    def __init__(
        self,
        traffic: Traffic,
        nodes: int,
        *,
        ratio: float = 0.5,
        router: str = "both-caches",
        refill: str = "idle",
        unified: bool = False,
        node: Node | None = None,
    ) -> None:
        if router not in ROUTERS or refill not in REFILLS:
            raise ValueError(f"router is one of {', '.join(ROUTERS)}, refill one of {', '.join(REFILLS)}")
        self.traffic, self.nodes, self.node, self.refill = traffic, nodes, node or Node(), refill
        self.now, self._next = 0.0, 0
        self._looks, self._looked, self._seen = 1, 0.0, 0  # how often, and up to which time and request
        self.latency, self.served_by = np.zeros(len(traffic)), np.zeros(len(traffic), np.int32)
        self._costs = _Costs(
            self.node.group_bytes / self.node.link, self.node.per_token, self.node.per_pair, self.node.launch,
            float(self.node.candidates), self.node.group_bytes, self.node.token_bytes, self.node.pool,
        )  # fmt: skip
        self._mode = np.array([ROUTERS.index(router), unified, refill == "idle"], np.int64)
        self._state = _empty(traffic, nodes, self.node.pool)
        self.ratios = np.full(nodes, np.nan)
        if not unified:
            self.split(np.full(nodes, ratio))

    @property
    def allocated(self) -> NDArray[np.int64]:
        """The most bytes each node has ever had allocated."""
        return self._state.peak

    @property
    def capacities(self) -> NDArray[np.int64]:
        """Bytes each node grants to embeddings and to histories."""
        return self._state.capacity

    def split(self, ratios: Floats) -> None:
        """Move every node's border to its ratio."""
        self.ratios = np.array(ratios, float)
        _split(self._state, self._costs, self.ratios, self.now, self.refill == "bulk")

    def advance(self, until: float) -> None:
        """Serve all requests that arrive before `until`."""
        t = self.traffic
        self._next = _serve(
            self._state, self._costs, t.arrival, t.user, t.history, t.groups, self.latency, self.served_by,
            self._next, until, self._mode, self._looks,
        )  # fmt: skip
        self.now = until

    def look(self) -> dict[str, Floats]:
        """What each node saw since the last look."""
        counts = dict(zip(COUNTS, self._state.counts.T.copy(), strict=True))
        requests, elapsed = np.maximum(counts["requests"], 1.0), self.now - self._looked
        last = slice(self._seen, self._next)
        self._looks, self._looked, self._seen = self._looks + 1, self.now, self._next
        self._state.counts[:] = 0.0
        tail = _tails(self.latency[last], self.served_by[last], self.nodes, 0.99)
        return {
            "group_hit_ratio": counts["group_hits"] / np.maximum(counts["groups"], 1.0),
            "kv_hit_ratio": counts["kv_hits"] / requests,
            "rate": counts["requests"] / elapsed,
            "history_mean": counts["history"] / requests,
            "unique_ratio": counts["users"] / requests,
            "link_utilisation": counts["link_busy"] / elapsed,
            "latency_p99": tail,
        }


def _empty(traffic: Traffic, nodes: int, pool: int) -> _State:
    empty = lru(traffic.catalogue + traffic.users, [pool, 0])
    return _State(
        entries=np.tile(empty.entries, (nodes, 1, 1)),
        used=np.tile(empty.used, (nodes, 1)),
        capacity=np.tile(empty.capacity, (nodes, 1)),
        resident=np.zeros((traffic.catalogue, nodes), np.uint8),
        tokens=np.zeros((traffic.users, nodes), np.int32),
        ghosts=np.zeros((nodes, GHOSTS), np.int32),
        ghost_count=np.zeros((nodes, 2), np.int64),
        link_free=np.zeros(nodes),
        gpu_free=np.zeros(nodes),
        counts=np.zeros((nodes, len(COUNTS))),
        seen=np.zeros((traffic.users, nodes), np.int32),
        peak=np.zeros(nodes, np.int64),
    )
