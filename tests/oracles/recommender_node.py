"""The recommender fleet in plain Python: one request after the other, two OrderedDicts a node."""

from __future__ import annotations

from assay.serving.helm.recommender_node import Node
from assay.workloads.recommender_traffic import Traffic
from tests.oracles.caches import Cache


class PlainNode:
    def __init__(self, node: Node, ratio: float) -> None:
        self.node = node
        share = int(ratio * node.pool)
        self.groups, self.users = Cache(share), Cache(node.pool - share)
        self.tokens: dict[int, int] = {}
        self.ghosts: list[int] = []
        self.link_free = self.gpu_free = 0.0

    def split(self, ratio: float, now: float, bulk: bool) -> None:
        share = int(ratio * self.node.pool)
        self.ghosts += self.groups.resize(share)
        for user in self.users.resize(self.node.pool - share):
            del self.tokens[user]
        if bulk:
            copied = self.refill(1 << 40)
            self.link_free = max(now, self.link_free) + copied * (self.node.group_bytes / self.node.link)

    def refill(self, most: int) -> int:
        came = 0
        while came < most and self.ghosts and self.groups.used + self.node.group_bytes <= self.groups.capacity:
            group = self.ghosts.pop()
            if group not in self.groups.entries:
                self.groups.entries[group] = self.node.group_bytes
                self.groups.entries.move_to_end(group, last=False)
                came += 1
        return came

    def score(self, user: int, groups: list[int], now: float) -> float:
        cached = self.tokens.get(user, 0)
        saved = cached * self.node.per_token + cached * cached / 2 * self.node.per_pair
        overlap = sum(group in self.groups.entries for group in groups)
        wait = max(0.0, self.gpu_free - now, self.link_free - now)
        return -wait + saved + overlap * (self.node.group_bytes / self.node.link)

    def serve(self, user: int, history: int, groups: list[int], now: float, idle: bool) -> float:
        node, fetch = self.node, self.node.group_bytes / self.node.link
        if idle and now > self.link_free:
            self.refill(int((now - self.link_free) / fetch))
        missing = 0
        for group in groups:
            if not self.groups.get(group):
                missing += 1
                self.ghosts += self.groups.put(group, node.group_bytes)
        cached = self.tokens.pop(user, 0)
        nbytes = history * node.token_bytes
        if nbytes <= self.users.capacity:
            for gone in self.users.put(user, nbytes):
                del self.tokens[gone]
            self.tokens[user] = history
        else:
            self.users.entries.pop(user, None)
        ready = max(now, self.link_free) + missing * fetch if missing else now
        self.link_free = max(self.link_free, ready)
        todo = history - cached
        work = node.launch + node.prefill(todo, cached) + node.candidates * (node.per_token + history * node.per_pair)
        self.gpu_free = max(ready, self.gpu_free) + work
        return self.gpu_free - now


def replay(
    traffic: Traffic, nodes: int, moves: list[tuple[float, list[float]]], node: Node, refill: str
) -> list[float]:
    """Latencies of all requests; `moves` are (time, ratio of each node), the first at time zero."""
    fleet = [PlainNode(node, ratio) for ratio in moves[0][1]]
    waiting, latencies = moves[1:], []
    for i, now in enumerate(traffic.arrival.tolist()):
        while waiting and now >= waiting[0][0]:
            at, ratios = waiting.pop(0)
            for each, ratio in zip(fleet, ratios, strict=True):
                each.split(ratio, at, refill == "bulk")
        user, history, groups = int(traffic.user[i]), int(traffic.history[i]), traffic.groups[i].tolist()
        scores = [each.score(user, groups, now) for each in fleet]
        chosen = fleet[scores.index(max(scores))]
        latencies.append(chosen.serve(user, history, groups, now, refill == "idle"))
    return latencies
