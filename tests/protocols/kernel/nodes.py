"""Nodes for tests of the kernel, at the top level of a module so that other processes can make them."""

from __future__ import annotations

import os
import signal
import time

from assay.protocols.interface import Node, Parent
from assay.protocols.nodes.broadcast import Bracha


class Gossip(Node):
    """Passes a token on to somebody random, so many times; sets a timer now and then; decides when it ends."""

    def __init__(self, hops: int = 20) -> None:
        self.hops = hops
        self.heard = 0

    def start(self, ctx):
        if ctx.id % 2 == 0:
            ctx.broadcast(("token", self.hops))
        ctx.timer(0.003 * (ctx.id + 1), ("wake", ctx.id))

    def recv(self, ctx, src, msg):
        self.heard += 1
        left = msg[1]
        if left == 0:
            ctx.decide((src, self.heard), slot=(ctx.id, self.heard))
        elif ctx.peers:
            ctx.send(ctx.peers[(self.heard * 7 + left) % len(ctx.peers)], ("token", left - 1))
            if left % 5 == 0:
                ctx.send(ctx.id, ("token", 0))

    def timeout(self, ctx, tag):
        ctx.broadcast(("token", 1))


class Counter(Node):
    """Counts rounds, and what arrived in them."""

    every_round = True

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[tuple[int, int]]]] = []

    def start(self, ctx):
        ctx.broadcast(("count", 0))

    def tick(self, ctx, inbox):
        self.seen.append((ctx.now, [(src, msg[1]) for src, msg in inbox]))
        if ctx.now < 5:
            ctx.broadcast(("count", int(ctx.now)))
        else:
            ctx.decide(len(self.seen))


class Memory(Node):
    """Remembers on disk how often it was written to, and forgets the rest."""

    stable = ("kept",)

    def __init__(self) -> None:
        self.kept = self.lost = 0

    def start(self, ctx):
        if ctx.id == 0:
            for second in range(10):
                ctx.timer(second + 0.5, ("write", second))

    def timeout(self, ctx, tag):
        ctx.send(1, tag)

    def recv(self, ctx, src, msg):
        self.kept += 1
        self.lost += 1


class TwoBroadcasts(Parent):
    """Two reliable broadcasts at once, by nodes 0 and 1; decides the pair."""

    def __init__(self) -> None:
        super().__init__()
        self.got: dict[int, object] = {}

    def start(self, ctx):
        for sender in (0, 1):
            self.sub(ctx, sender)

    def child(self, ctx, name):
        return Bracha(name) if name in (0, 1) else None

    def decided(self, ctx, name, value, slot):
        self.got[name] = value
        if len(self.got) == 2:
            ctx.decide((self.got[0], self.got[1]))


class Broken(Node):
    """Fails when it hears something."""

    def start(self, ctx):
        ctx.broadcast(("boo",), to=ctx.peers)

    def recv(self, ctx, src, msg):
        raise KeyError("what now")


class Signer(Node):
    """Signs its number; decides who signed rightly and whether a borrowed signature passes."""

    def __init__(self) -> None:
        self.right: list[int] = []

    def start(self, ctx):
        ctx.broadcast(("signed", ctx.sign(b"%d" % ctx.id)))

    def recv(self, ctx, src, msg):
        if ctx.verify(src, b"%d" % src, msg[1]) and not ctx.verify((src + 1) % ctx.n, b"%d" % src, msg[1]):
            self.right.append(src)
        if len(self.right) == ctx.n:
            ctx.decide(tuple(sorted(self.right)))


class Busy(Node):
    """Works for longer than anybody waits in silence before it answers."""

    def start(self, ctx):
        if ctx.id == 0:
            ctx.send(1, ("work",))

    def recv(self, ctx, src, msg):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sum(range(1000))
        ctx.decide("done")


class Leaver(Node):
    """Node 1 leaves its process, in the way it is told."""

    def start(self, ctx):
        ctx.broadcast(("go",))

    def recv(self, ctx, src, msg):
        if ctx.id == 1 and ctx.input == "exit":
            os._exit(3)
        if ctx.id == 1 and ctx.input == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.decide(1)


class Secretive(Node):
    """Decides what no other process can be told."""

    def start(self, ctx):
        ctx.decide(lambda: 1)


class Soliloquist(Node):
    """Answers itself for ever."""

    def start(self, ctx):
        ctx.send(ctx.id, ("again",))

    def recv(self, ctx, src, msg):
        ctx.send(ctx.id, msg)


class Lazybones(Node):
    """Has what it needs only from its start on, and says hello to the others then."""

    def start(self, ctx):
        self.heard: set[int] = set()
        ctx.broadcast(("hello",))

    def recv(self, ctx, src, msg):
        self.heard.add(src)
        if len(self.heard) == ctx.n:
            ctx.decide(tuple(sorted(self.heard)))
