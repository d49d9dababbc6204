"""Raft: a replicated log under an elected leader, and a linearizable key-value store on top of it.

Term, vote and log are on disk (`stable`) and survive a crash; everything else is learned again. Reads go through the
log like writes, so they are linearizable without clocks. A leader commits only entries of its own term by counting, and
begins its term with an empty entry so that there is one. Requests carry the client's number: a repeated one is executed
once. Followers are sent new entries without waiting for the last answer, and say where to begin again if some are lost.
There are no snapshots and no changes of membership.

An election timer fires all the time; an election begins when it fires and nobody was heard since it last did.

Ongaro, Ousterhout, In search of an understandable consensus algorithm, USENIX ATC 2014.

>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.kv import finished
>>> client = RaftClient([("write", "x", 1), ("cas", "x", (1, 2)), ("read", "x", None)])
>>> outcome = World(n=3, f=1, node=Raft, clients=[client]).run("timed", until=finished)
>>> [(operation.f, operation.result) for operation in outcome.operations]
[('write', None), ('cas', True), ('read', 2)]
"""

from __future__ import annotations

from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.nodes.kv import Client, Command, Store, is_command

Entry = tuple[int, Command | None]
"""The leader's term, and the command; None begins a term."""
HIGHEST = 1 << 63
"""A term above is nobody's: the terms to come must fit the wire too."""


class Raft(Node):
    """One server. It decides its committed entries, slot by slot from 1 on."""

    stable: tuple[str, ...] = ("term", "voted", "log", "boots")

    def __init__(self, election: float = 0.15, heartbeat: float = 0.05, batch: int = 64) -> None:
        """An election begins after `election` to three times that many seconds of silence; in rounds, set both."""
        self.election, self.heartbeat, self.batch = election, heartbeat, batch
        self.term = 0
        self.voted = -1
        self.log: list[Entry] = []
        self.boots = 0
        self.role = "follower"
        self.leader = -1
        self.heard = True
        self.votes: set[NodeId] = set()
        self.next: dict[NodeId, int] = {}
        self.match: dict[NodeId, int] = {}
        self.commit = self.applied = 0
        self.store = Store()

    def start(self, ctx: Ctx) -> None:
        """Wait for a leader."""
        self.boots += 1
        self._watch(ctx)

    def _watch(self, ctx: Ctx) -> None:
        self.heard = False
        ctx.timer(self.election * (1 + ctx.rng.random() / 2), ("election", self.boots))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """A leader says that it is there; others see whether it is."""
        match tag:
            case ("election", int(boots)) if boots == self.boots:
                if not self.heard and self.role != "leader":
                    self._campaign(ctx)
                self._watch(ctx)
            case ("heartbeat", int(term)) if self.role == "leader" and term == self.term:
                self._replicate(ctx)
                ctx.timer(self.heartbeat, tag)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """What has another shape is ignored; what has a later term comes first of all."""
        if src >= ctx.n:
            match msg:
                case ("request", int(number), f, key, value) if is_command((src, number, f, key, value)):
                    self._request(ctx, (src, number, f, key, value))
            return
        match msg:
            case (str(), int(term), *_) if term > HIGHEST:
                return
            case (str(), int(term), *_) if term > self.term:
                self._follow(term, -1)
        match msg:
            case ("ask", int(term), int(last), int(last_term)):
                self._asked(ctx, src, term, last, last_term)
            case ("vote", int(term), bool(granted)):
                self._voted(ctx, src, term, granted)
            case ("append", int(term), int(before), int(before_term), tuple(entries), int(commit)) if _entries(entries):
                self._append(ctx, src, term, (before, before_term), entries, commit)
            case ("appended", int(term), bool(good), int(index)) if term == self.term and self.role == "leader":
                self._appended(ctx, src, good, index)

    def _follow(self, term: int, leader: NodeId) -> None:
        if term > self.term:
            self.term, self.voted = term, -1
        self.role, self.leader = "follower", leader

    # ------------------------------------------------------------------------------------------------- elections

    def _last(self) -> tuple[int, int]:
        """Term and index of the last entry: the greater, the more there is in the log."""
        return (self.log[-1][0], len(self.log)) if self.log else (0, 0)

    def _campaign(self, ctx: Ctx) -> None:
        self.term += 1
        self.voted, self.role, self.leader, self.votes = ctx.id, "candidate", -1, {ctx.id}
        last_term, last = self._last()
        ctx.broadcast(("ask", self.term, last, last_term), to=ctx.peers)
        self._count(ctx)

    def _asked(self, ctx: Ctx, src: NodeId, term: int, last: int, last_term: int) -> None:
        granted = term == self.term and self.voted in (-1, src) and (last_term, last) >= self._last()
        if granted:
            self.voted, self.heard = src, True
        ctx.send(src, ("vote", self.term, granted))

    def _voted(self, ctx: Ctx, src: NodeId, term: int, granted: bool) -> None:
        if granted and term == self.term and self.role == "candidate":
            self.votes.add(src)
            self._count(ctx)

    def _count(self, ctx: Ctx) -> None:
        if len(self.votes) > ctx.n // 2:
            self.role, self.leader = "leader", ctx.id
            self.next = dict.fromkeys(ctx.peers, len(self.log) + 1)
            self.match = dict.fromkeys(ctx.peers, 0)
            self.log.append((self.term, None))
            self._replicate(ctx)
            self._commit(ctx)
            ctx.timer(self.heartbeat, ("heartbeat", self.term))

    # ----------------------------------------------------------------------------------------------- replication

    def _replicate(self, ctx: Ctx) -> None:
        for peer in ctx.peers:
            self._send(ctx, peer)

    def _send(self, ctx: Ctx, peer: NodeId) -> None:
        before = self.next[peer] - 1
        entries = tuple(self.log[before : before + self.batch])
        before_term = self.log[before - 1][0] if before else 0
        ctx.send(peer, ("append", self.term, before, before_term, entries, self.commit))
        self.next[peer] += len(entries)  # a gap, if this is lost, shows in the answer to what comes next

    def _append(
        self, ctx: Ctx, src: NodeId, term: int, before: tuple[int, int], entries: tuple[Entry, ...], commit: int
    ) -> None:
        if term < self.term:
            ctx.send(src, ("appended", self.term, False, 0))
            return
        self._follow(term, src)
        self.heard = True
        index, index_term = before
        if not 0 <= index <= len(self.log) or (index and self.log[index - 1][0] != index_term):
            ctx.send(src, ("appended", term, False, self._begin_again(index)))
            return
        for entry in entries:
            index += 1
            if index <= len(self.log) and self.log[index - 1][0] != entry[0]:
                del self.log[index - 1 :]
            if index > len(self.log):
                self.log.append(entry)
        self._advance(ctx, min(commit, index))
        ctx.send(src, ("appended", term, True, index))

    def _begin_again(self, index: int) -> int:
        """Where the leader should go on: after the log's end, or with the first entry of the term that does not fit."""
        if not 0 < index <= len(self.log):
            return len(self.log) + 1
        wrong = self.log[index - 1][0]
        while index > 1 and self.log[index - 2][0] == wrong:
            index -= 1
        return index

    def _appended(self, ctx: Ctx, src: NodeId, good: bool, index: int) -> None:
        if good:
            self.match[src] = max(self.match[src], min(index, len(self.log)))
            self.next[src] = max(self.next[src], self.match[src] + 1)
            self._commit(ctx)
        else:
            self.next[src] = max(self.match[src] + 1, min(index, self.next[src]))
            self._send(ctx, src)

    def _commit(self, ctx: Ctx) -> None:
        """What a majority has is committed, up to an entry of this term."""
        have = sorted((*self.match.values(), len(self.log)), reverse=True)[ctx.n // 2]
        if have > self.commit and self.log[have - 1][0] == self.term:
            self._advance(ctx, have)

    def _advance(self, ctx: Ctx, commit: int) -> None:
        self.commit = max(self.commit, commit)
        while self.applied < self.commit:
            self.applied += 1
            entry = self.log[self.applied - 1]
            ctx.decide(entry, self.applied)
            command = entry[1]
            if command is not None:
                result = self.store.apply(command)
                if self.role == "leader":
                    ctx.send(command[0], ("answer", command[1], result))

    # --------------------------------------------------------------------------------------------------- clients

    def _request(self, ctx: Ctx, command: Command) -> None:
        client, number = command[:2]
        if self.role != "leader":
            ctx.send(client, ("elsewhere", number, self.leader))
        elif self.store.answered(client, number):
            ctx.send(client, ("answer", number, self.store.apply(command)))
        elif not any(entry[1] is not None and entry[1][:2] == (client, number) for entry in self.log[self.applied :]):
            self.log.append((self.term, command))
            self._replicate(ctx)
            self._commit(ctx)


def _entries(entries: tuple[Any, ...]) -> bool:
    return all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], int)
        and (entry[1] is None or is_command(entry[1])) for entry in entries
    )  # fmt: skip


class RaftClient(Client):
    """Asks whom it takes for the leader; after a while without an answer, the next server."""

    target = 0

    def ask(self, ctx: Ctx) -> None:
        """To the leader, as far as known."""
        ctx.send(self.target, ("request", self.number, *self.operations[self.number - 1]))

    def insist(self, ctx: Ctx) -> None:
        """To the next server."""
        self.target = (self.target + 1) % ctx.n
        self.ask(ctx)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """An answer, or where to ask instead."""
        match msg:
            case ("answer", number, result) if self.waiting and number == self.number:
                self.finish(ctx, result)
            case ("elsewhere", number, int(leader)) if self.waiting and number == self.number:
                if src == self.target != leader and 0 <= leader < ctx.n:
                    self.target = leader
                    self.ask(ctx)
