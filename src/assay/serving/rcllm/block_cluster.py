"""A cluster that ranks items with an LLM: nodes with a queue, a store of cached rows, and a network between them.

A request's prompt is [instruction][history][item]…[item][question]. It is routed once, on arrival, to the node with the
highest (share of its rows that lie there) − beta (waiting / mean service), queues first come first served, and its
first token leaves when what was not cached is computed and what was cached has arrived:

    ttft = waiting + max(loading and fetching, computing)

Loading (from the node's own host memory) and fetching (from a peer, over both nodes' network ports, each in order)
begin on arrival and overlap with the queue and with computing; a new history is pushed to the peers in the
background. The last iteration emits the first token, so it needs
no term of its own. What a node does next never depends on a later arrival, so one pass over the arrivals is exact.

Three ways to cache, each a class with `local` (share of the prompt's rows at every node) and `serve` (the work that is
left at one of them): `NoCache`, `PrefixCache` and `BlockCache`. All get the same bytes on every node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.serving.rcllm.item_placement import Placement
from assay.sim.caches import Cache
from assay.sim.layouts import read_layout
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.sim.roofline import layout
from assay.workloads.recommendations import RankingRequests

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
ITERATION = 8192  # tokens an engine computes at most in one iteration


@dataclass(frozen=True)
class Cluster:
    """Alike nodes: what computing costs, and how fast rows come from host memory and from peers."""

    nodes: int
    cost: StepCost
    layers: int
    capacity: float  # bytes of cached rows a node can keep
    host: float = 25e9  # bytes/s
    network: float = 12.5e9  # bytes/s, each way
    memory: float = 2e12  # bytes/s: turning keys reads and writes them once
    latency: float = 50e-6  # seconds from asking a peer to its first byte

    @classmethod
    def of(cls, node: str, nodes: int, capacity: float, network: float = 12.5e9) -> Cluster:
        """Nodes by their layout; host link and memory are the device's own, the network is the fleet's.

        >>> Cluster.of("a100:llama-3.1-8b", nodes=4, capacity=64e9).layers
        32
        """
        cut = read_layout(node)
        layers = cut.model.dense_layers + cut.model.moe_layers
        bandwidths = {"host": cut.device.pcie.bandwidth, "memory": cut.device.mem_bw, "network": network}
        return cls(nodes, layout(node), layers, capacity, **bandwidths)

    @property
    def kv_bytes(self) -> float:
        """Of one token's rows."""
        return self.cost.kv_bytes

    def prefill(self, tokens: float, before: float = 0.0) -> float:
        """Seconds to compute so many tokens of a prompt behind `before` others, in iterations of bounded size."""
        return self._prefill(round(tokens), round(before))

    @cached_property
    def _prefill(self) -> Callable[[int, int], float]:
        @lru_cache(maxsize=1 << 16)
        def prefill(left: int, done: int) -> float:
            now = min(left, ITERATION)
            return 0.0 if now <= 0 else self.cost.seconds(chunks=[(now, done)]) + prefill(left - now, done + now)

        return prefill

    def repair(self, new: float, cached: float, share: float, total: int) -> float:
        """Seconds to compute `new` tokens and a share of `cached` ones that are spread over a prompt of `total`.

        Finding the tokens to repair runs the first layer over the whole prompt; without repair nothing is searched.
        """
        tokens = new + share * cached
        deep = self.prefill(tokens, max(0.0, (total - tokens) / 2))  # spread out, a token sees half the prompt
        if share == 0.0 or cached == 0.0:
            return deep
        return deep * (1 - 1 / self.layers) + self.prefill(total) / self.layers


# ------------------------------------------------------------------------------------------ the prompts


@dataclass(frozen=True)
class Prompts:
    """Ranking requests with the lengths of their parts, in tokens."""

    requests: RankingRequests
    item_tokens: Ints  # by item
    history_tokens: Ints  # by user
    instruction: int = 64
    question: int = 16

    @cached_property
    def totals(self) -> list[int]:
        """Tokens of the whole prompts."""
        items = self.item_tokens[self.requests.items].sum(axis=1)
        whole = self.instruction + self.history_tokens[self.requests.user] + items + self.question
        return [int(tokens) for tokens in whole]


@dataclass(frozen=True)
class Work:
    """What is left to do for a request at its node."""

    compute: float  # seconds
    load: float = 0.0  # bytes from the node's own host memory
    fetch: dict[int, float] = field(default_factory=dict)  # bytes from each peer
    push: float = 0.0  # bytes to every other node, when it is done
    reused: float = 0.0  # tokens


class Caching(Protocol):
    """What is cached where. The instruction is cached everywhere and by everyone."""

    def local(self, r: int, now: Floats) -> Floats:
        """The share of the prompt whose rows each node keeps when it could start (`now`, by node)."""

    def serve(self, r: int, node: int, now: float) -> Work:
        """The work at this node, which starts at `now`; the cache learns of the request."""

    def done(self, r: int, end: float, arrived: Floats) -> None:
        """The request's first token left at `end`; what was pushed is at node n at `arrived[n]`."""


class NoCache:
    """Every prompt is computed from the instruction on."""

    def __init__(self, cluster: Cluster, prompts: Prompts) -> None:
        self.cluster, self.prompts = cluster, prompts

    def local(self, r: int, now: Floats) -> Floats:
        """Nothing is anywhere."""
        return np.zeros(self.cluster.nodes)

    def serve(self, r: int, node: int, now: float) -> Work:
        """The whole prompt."""
        first = self.prompts.instruction
        return Work(self.cluster.prefill(self.prompts.totals[r] - first, first), reused=first)

    def done(self, r: int, end: float, arrived: Floats) -> None:
        """Nothing is kept."""


class PrefixCache:
    """Exact prefix caching per node, least recently used evicted first; hits lie in HBM and cost nothing.

    How the prompts are laid out, and so what is a prefix of what, is said by `chains`.
    """

    def __init__(self, cluster: Cluster, prompts: Prompts, chains: Chains) -> None:
        self.cluster, self.prompts = cluster, prompts
        self.chains, self.tokens = chains
        # By last use. Few keys are ever seen twice, so a plain dictionary beats compiled lists over all of them.
        self.held: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(cluster.nodes)]
        self.used = [0.0] * cluster.nodes

    def local(self, r: int, now: Floats) -> Floats:
        """The share of the prompt that each node has as a prefix."""
        return np.array([self._hit(r, node)[1] for node in range(self.cluster.nodes)]) / self.prompts.totals[r]

    def _hit(self, r: int, node: int) -> tuple[int, int]:
        """Blocks and tokens of the longest prefix at the node, beyond the instruction."""
        held, chain = self.held[node], self.chains[r]
        blocks = next((i for i, key in enumerate(chain) if key not in held), len(chain))
        return blocks, sum(self.tokens[r][:blocks])

    def serve(self, r: int, node: int, now: float) -> Work:
        """Everything behind the longest prefix."""
        hit, total = self.prompts.instruction + self._hit(r, node)[1], self.prompts.totals[r]
        self._keep(r, node)
        return Work(self.cluster.prefill(total - hit, hit), reused=hit)

    def _keep(self, r: int, node: int) -> None:
        """Keep all blocks of the prompt, from the end to the front: a prefix is newer than what continues it.

        So the oldest is always the end of some prompt, and no hole can open in a prefix.
        """
        held, used = self.held[node], self.used[node]
        kv, capacity = self.cluster.kv_bytes, self.cluster.capacity
        for key, tokens in zip(reversed(self.chains[r]), reversed(self.tokens[r]), strict=True):
            if key in held:
                held.move_to_end(key)
            else:  # a new key is the newest
                held[key] = nbytes = tokens * kv
                used += nbytes
        while used > capacity:
            used -= held.popitem(last=False)[1]
        self.used[node] = used

    def done(self, r: int, end: float, arrived: Floats) -> None:
        """A node serves in order, so what it was given first is there when the next one starts."""


Chains = tuple[list[list[int]], list[list[int]]]


def prefix_chains(prompts: Prompts, order: str, popularity: NDArray[np.int64]) -> Chains:
    """For each request the keys of its prefixes, block by block, and the blocks' tokens.

    `order` lays the prompt out: ``asked`` as it comes, ``sorted`` with the items in one canonical order (the most
    popular first), ``items-first`` the same but with the history behind the items, so that users share them.
    """
    known: dict[tuple[int, int], int] = {}
    chains, tokens = [], []
    for user, row in zip(prompts.requests.user, prompts.requests.items, strict=True):
        items = row if order == "asked" else row[np.lexsort((row, -popularity[row]))]
        blocks = [(int(i), int(prompts.item_tokens[i])) for i in items]
        history = (-1 - int(user), int(prompts.history_tokens[user]))
        blocks = [*blocks, history] if order == "items-first" else [history, *blocks]
        chain: list[int] = []
        behind = -1
        for block, _ in blocks:
            behind = known.setdefault((behind, block), len(known))
            chain.append(behind)
        chains.append(chain)
        tokens.append([length for _, length in blocks])
    return chains, tokens


@dataclass(frozen=True)
class _Where:
    """Item tokens of each request: in all, in no store, at each node, and to be fetched by a node from a peer."""

    total: Floats
    nowhere: Floats
    here: Floats  # [node, request]
    away: Floats  # [node, peer, request]


def _where(placement: Placement, prompts: Prompts) -> _Where:
    items, nodes = prompts.requests.items, placement.nodes
    size = prompts.item_tokens[items].astype(float)
    stored = placement.stored[:, items]  # [node, request, slot]
    here: Floats = (stored * size).sum(axis=2)
    nowhere = ~stored.any(axis=0)
    holder = np.where(nowhere, -1, stored.argmax(axis=0))  # an item with copies elsewhere has one here, too
    away = np.zeros((nodes, nodes, len(items)))
    for node in range(nodes):
        for peer in range(nodes):
            away[node, peer] = (size * (~stored[node] & (holder == peer))).sum(axis=1)
    return _Where(size.sum(axis=1), (size * nowhere).sum(axis=1), here, away)


class BlockCache:
    """RcLLM: item blocks where the placement put them, histories on every node, a share of reused tokens repaired.

    Item blocks are computed beforehand. A history is computed when its user first comes and then pushed to all nodes;
    each keeps the latest ones in what the items leave of its store.
    """

    def __init__(self, cluster: Cluster, prompts: Prompts, placement: Placement, share: float) -> None:
        self.cluster, self.prompts, self.share = cluster, prompts, share
        users = len(prompts.history_tokens)
        self.histories = [Cache(int(max(1.0, cluster.capacity - load)), users) for load in placement.load]
        self.ready = np.full((cluster.nodes, users), np.inf)  # when a history's rows are at a node
        self.items = _where(placement, prompts)

    def local(self, r: int, now: Floats) -> Floats:
        """The share of the item bytes that each node keeps."""
        share: Floats = self.items.here[:, r] / self.items.total[r]
        return share

    def serve(self, r: int, node: int, now: float) -> Work:
        """Load, fetch, repair; compute what no node has."""
        user, kv = int(self.prompts.requests.user[r]), self.cluster.kv_bytes
        history = int(self.prompts.history_tokens[user])
        known = self.ready[node, user] <= now and self.histories[node].get(user)
        missing = float(self.items.nowhere[r])
        cached = float(self.items.total[r]) - missing  # items: a history lies where it was computed, and is exact
        new = missing + history * (not known) + self.prompts.question
        turning = kv * cached / self.cluster.memory  # keys are half of the rows, read and written
        away = self.items.away[node, :, r]
        return Work(
            self.cluster.repair(new, cached, self.share, self.prompts.totals[r]) + turning,
            load=kv * (float(self.items.here[node, r]) + history * known),
            fetch={int(peer): kv * float(away[peer]) for peer in np.flatnonzero(away)},
            push=0.0 if known else kv * history,
            reused=cached + history * known + self.prompts.instruction,
        )

    def done(self, r: int, end: float, arrived: Floats) -> None:
        """A new history is kept by every node that it reached."""
        user = int(self.prompts.requests.user[r])
        nbytes = max(1, int(self.cluster.kv_bytes * self.prompts.history_tokens[user]))
        for node in np.flatnonzero(np.isfinite(arrived)):
            if not self.histories[node].get(user):
                self.histories[node].put(user, nbytes)
                self.ready[node, user] = arrived[node]


# ------------------------------------------------------------------------------------------- the queues


@dataclass(frozen=True)
class Outcome:
    """What became of the requests, in their order."""

    ttft: Floats
    waiting: Floats
    compute: Floats
    fetched: Floats  # bytes from peers
    reused: Floats  # share of the prompt's tokens
    local: Floats  # share at the chosen node
    node: Ints

    @property
    def ttft_mean(self) -> float:
        """Seconds."""
        return float(self.ttft.mean())


def simulate(
    caching: Caching, cluster: Cluster, prompts: Prompts, *, beta: float = 1.0, routing: str = "score", seed: int = 0
) -> Outcome:
    """Serve all requests; `routing` is ``score`` or ``random``."""
    n = len(prompts.requests)
    draws = stream(seed, "routing").integers(0, cluster.nodes, n)
    free, inward, outward = (np.zeros(cluster.nodes) for _ in range(3))
    columns = np.zeros((6, n))
    nodes = np.zeros(n, np.int32)
    served = 0.0
    for r, now in enumerate(prompts.requests.arrival):
        start = np.maximum(free, now)
        local = caching.local(r, start)
        mean = served / r if r else 1.0
        node = int(draws[r] if routing == "random" else (local - beta * (start - now) / mean).argmax())
        work = caching.serve(r, node, float(start[node]))
        ready = now + work.load / cluster.host
        for peer, nbytes in work.fetch.items():
            begin = max(now + cluster.latency, inward[node], outward[peer])
            inward[node] = outward[peer] = begin + nbytes / cluster.network
            ready = max(ready, inward[node])
        end = max(start[node] + work.compute, ready)
        served += end - start[node]
        free[node] = end
        caching.done(r, end, _push(work.push, node, end, cluster))
        fetched, reused = sum(work.fetch.values()), work.reused / prompts.totals[r]
        columns[:, r] = end - now, start[node] - now, work.compute, fetched, reused, local[node]
        nodes[r] = node
    ttft, waiting, compute, fetched_bytes, reused_share, local_share = columns
    return Outcome(ttft, waiting, compute, fetched_bytes, reused_share, local_share, nodes)


def _push(nbytes: float, node: int, end: float, cluster: Cluster) -> Floats:
    """When a node's new rows are at each node; never, if there are none.

    Pushing is background traffic: it goes one peer after the other and gives way to fetches.
    """
    if nbytes == 0.0:
        return np.full(cluster.nodes, np.inf)
    turn = (np.arange(cluster.nodes) - node) % cluster.nodes
    return np.asarray(end + turn * (nbytes / cluster.network), np.float64)
