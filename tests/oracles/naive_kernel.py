"""Slow and obviously right ways to run a world: look at everything that is under way, take what is due first."""

from __future__ import annotations

from assay.protocols.kernel.net import sampler


class NaiveCtx:
    def __init__(self, run, node):
        self.run, self.id = run, node
        world = run.world
        self.n, self.f = world.n, world.f
        ways = world.neighbours()
        self.peers = [p for p in range(world.n) if p != node] if ways is None else list(ways[node])
        self.input = world.inputs[node] if world.inputs and node < len(world.inputs) else None

    @property
    def now(self):
        return self.run.time / 1e6

    def send(self, to, msg):
        self.run.send(self.id, to, msg)

    def broadcast(self, msg, to=None):
        for other in [*self.peers, self.id] if to is None else to:
            self.send(other, msg)

    def timer(self, delay, tag):
        self.run.number += 1
        self.run.events.append((self.run.time + max(1, round(delay * 1e6)), self.run.number, self.id, None, tag))

    def decide(self, value, slot=0):
        self.run.log.append((self.run.time / 1e6, self.id, slot, value))


class NaiveTimed:
    """No heap, no blocks of draws kept across nodes, no fast path: a list that is scanned for its least entry."""

    def __init__(self, world):
        self.world, self.time, self.number = world, 0, 0
        self.events, self.log, self.delivered, self.sent = [], [], [], 0
        self.copies = [sampler(world.net, world.seed, node) for node in range(world.n)]
        self.nodes = world.make_nodes()
        self.ctxs = [NaiveCtx(self, node) for node in range(world.n)]
        self.own = []

    def send(self, src, dst, msg):
        if src == dst:
            self.own.append((src, msg))
            return
        self.sent += 1
        for delay in self.copies[src](dst):
            self.number += 1
            self.events.append((self.time + delay, self.number, dst, src, msg))

    def settle(self):
        while self.own:
            node, msg = self.own.pop(0)
            self.nodes[node].recv(self.ctxs[node], node, msg)

    def run(self):
        for node, ctx in zip(self.nodes, self.ctxs, strict=True):
            node.start(ctx)
            self.settle()
        while self.events:
            first = min(self.events, key=lambda event: event[:2])
            self.events.remove(first)
            self.time, _, dst, src, body = first
            if src is None:
                self.nodes[dst].timeout(self.ctxs[dst], body)
            else:
                self.delivered.append((self.time / 1e6, src, dst, body))
                self.nodes[dst].recv(self.ctxs[dst], src, body)
            self.settle()
        return self
