"""PBFT: a replicated state machine that bears f < n/3 Byzantine replicas, and a key-value store on top of it.

The primary of a view gives a request its place (pre-prepare); 2f backups who agree make it prepared; 2f + 1 who saw it
prepared make it committed, and it is executed in order. Every `interval` places the replicas sign a checkpoint; 2f + 1
signatures make it stable, what lies before is forgotten, and who has fallen behind fetches the state. When requests
wait too long, replicas ask for the next view with proofs of what they have prepared; its primary proposes all of that
again, and everybody checks that it does. This is the variant with signatures. Clients sign their requests and believe
an answer that f + 1 replicas give.

A vote for a place or a view that a replica has not come to is kept until it does: asynchrony may bring it early. All
that a replica has seen and said is on its disk; one that crashes and forgets counts as Byzantine.

Castro, Liskov, Practical Byzantine fault tolerance, OSDI 1999.

>>> from assay.protocols.faults import Silence
>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.kv import finished
>>> client = PbftClient([("write", "x", 1), ("read", "x", None)])
>>> outcome = World(n=4, f=1, node=Pbft, clients=[client], faults={0: Silence()}).run("timed", until=finished)
>>> [operation.result for operation in outcome.operations], {node.view for node in outcome.nodes[1:4]}
([None, 1], {1})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.nodes import pbft_proofs as proofs
from assay.protocols.nodes.kv import Ask, Client, Command, Store

NO_CHECKPOINT: tuple[Any, ...] = (0, b"", ())
VIEWS = 1000  # how far ahead of its own view a replica keeps votes


class Place:
    """What a replica knows of one place of the order in one view."""

    def __init__(self) -> None:
        self.request: proofs.Request | None = None
        self.digest = b""
        self.mark = b""
        """The primary's signature of the proposal."""
        self.prepares: dict[NodeId, tuple[bytes, bytes]] = {}
        """Digest and signature of each backup."""
        self.commits: dict[NodeId, bytes] = {}
        self.promised = self.prepared = False


class Pbft(Node):
    """One replica. It decides the commands it executes (None where nothing was asked), slot by slot from 1 on."""

    stable: tuple[str, ...] = (
        "view", "changing", "low", "executed", "proposed", "places", "waiting", "given", "store", "prepared", "votes",
        "checkpoint", "wanted", "states", "changes", "announced",
    )  # fmt: skip

    def __init__(self, patience: float = 0.2, interval: int = 16) -> None:
        """A request may wait `patience` seconds, twice that after each vain change of view; in rounds, set it."""
        if not 1 <= interval <= proofs.WINDOW // 2:
            raise ValueError(f"a checkpoint every {interval} places; 1 to {proofs.WINDOW // 2} expected")
        self.patience, self.interval = patience, interval
        self.view = 0
        self.changing = False
        self.low = 0
        """Place of the last stable checkpoint."""
        self.executed = self.proposed = 0
        self.places: dict[tuple[int, int], Place] = {}
        """By view and place."""
        self.waiting: dict[tuple[NodeId, int], proofs.Request] = {}
        """Requests not yet executed, by client and number."""
        self.given: set[tuple[NodeId, int]] = set()
        """Those among them that this replica, as primary, has proposed in this view."""
        self.store = Store()
        self.prepared: dict[int, proofs.Certificate] = {}
        """Of each place after the checkpoint, what was prepared in the latest view."""
        self.votes: dict[int, dict[NodeId, tuple[bytes, bytes]]] = {}
        """For checkpoints: digest and signature of each replica, by place."""
        self.checkpoint = self.wanted = NO_CHECKPOINT
        """The last stable one (place, digest, signatures), and the one whose state is being fetched."""
        self.states: dict[int, tuple[Any, ...]] = {}
        self.changes: dict[int, dict[NodeId, proofs.Change]] = {}
        self.announced: Message = ("new-view", 0)
        """Why this replica is in its view."""
        self.vain = 0
        self.watching = False

    def start(self, ctx: Ctx) -> None:
        """After a recovery, wait on."""
        if self.waiting or self.changing:
            self._watch(ctx)

    def primary(self, ctx: Ctx) -> NodeId:
        """Of the present view."""
        return self.view % ctx.n

    # ------------------------------------------------------------------------------------------------- messages

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """What has another shape is ignored."""
        match msg:
            case ("request", tuple(request)) if request and proofs.is_request(ctx, request):
                self._asked(ctx, request)
            case ("pre-prepare", int(view), int(place), tuple(request), bytes(mark)) if self._open(view, place):
                self._proposed(ctx, src, view, place, request, mark)
            case ("prepare", int(view), int(place), bytes(name), bytes(mark)) if self._open(view, place):
                self._prepare(ctx, src, view, place, name, mark)
            case ("commit", int(view), int(place), bytes(name)) if self._open(view, place):
                self._at(view, place).commits.setdefault(src, name)
                self._execute(ctx)
            case _ if src < ctx.n:
                self._repair(ctx, src, msg)

    def _repair(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Messages outside the usual case."""
        match msg:
            case ("checkpoint", int(place), bytes(name), bytes(mark)) if self.low < place < proofs.HIGHEST:
                self._vouch(ctx, src, place, name, mark)
            case ("fetch", int(place)) if place in self.states or 0 < place < self.low:
                place = max(place, self.low)
                ctx.send(src, ("state", place, self.states[place], self.checkpoint))
            case ("state", int(place), tuple(state), tuple(checkpoint)) if place > self.executed:
                self._fetched(ctx, place, state, self.wanted if self.wanted[0] == place else checkpoint)
            case ("view-change", int(view), _) if src != ctx.id and not self.changing and 0 < view <= self.view:
                ctx.send(src, self.announced)
            case ("view-change", int(view), tuple(change)) if self._near(view) and change and change[0] == src:
                self._change(ctx, view, change)
            case ("new-view", int(view), tuple(), tuple(), bytes(mark)) if self._near(view) and view:
                if ctx.verify(view % ctx.n, proofs.signed(*msg[:-1]), mark):
                    self._new_view(ctx, msg)

    def _near(self, view: int) -> bool:
        return self.view <= view <= self.view + VIEWS

    def _open(self, view: int, place: int) -> bool:
        """Whether votes for this place count, now or later."""
        return self._near(view) and self.low < place <= self.low + proofs.WINDOW

    def _at(self, view: int, place: int) -> Place:
        known = self.places.get((view, place))
        if known is None:
            known = self.places[view, place] = Place()
        return known

    # --------------------------------------------------------------------------------------------- the usual case

    def _asked(self, ctx: Ctx, request: proofs.Request) -> None:
        command: Command = request[0]
        client, number = command[:2]
        if self.store.answered(client, number):
            last, result = self.store.answers[client]
            if last == number:
                ctx.send(client, ("answer", self.view, number, result))
        elif (client, number) not in self.waiting:
            self.waiting[client, number] = request
            self._watch(ctx)
            if self.primary(ctx) != ctx.id:
                ctx.send(self.primary(ctx), ("request", request))
            self._propose(ctx)

    def _propose(self, ctx: Ctx) -> None:
        """The primary gives places to what waits, as far as the window reaches."""
        if self.primary(ctx) != ctx.id or self.changing:
            return
        self.proposed = max(self.proposed, self.executed)
        for name, request in self.waiting.items():
            if name not in self.given and self._open(self.view, self.proposed + 1):
                self.given.add(name)
                self.proposed += 1
                mark = self._mark(ctx, self.proposed, request)
                ctx.broadcast(("pre-prepare", self.view, self.proposed, request, mark))

    def _mark(self, ctx: Ctx, place: int, request: proofs.Request) -> bytes:
        return ctx.sign(proofs.signed("pre-prepare", self.view, place, proofs.digest(request)))

    def _proposed(self, ctx: Ctx, src: NodeId, view: int, place: int, request: proofs.Request, mark: bytes) -> None:
        """The primary's first word for a place counts, once it is proved to be its own."""
        at = self._at(view, place)
        name = proofs.digest(request)
        said = proofs.signed("pre-prepare", view, place, name)
        if src != view % ctx.n or at.request is not None or not ctx.verify(src, said, mark):
            return
        if proofs.is_request(ctx, request):
            at.request, at.digest, at.mark = request, name, mark
            if request and not self.store.answered(*request[0][:2]):
                self.waiting.setdefault(request[0][:2], request)
                self._watch(ctx)
            self._promise(ctx, view, place)

    def _promise(self, ctx: Ctx, view: int, place: int) -> None:
        """A backup agrees, once, when it has come to the view."""
        at = self.places[view, place]
        if view == self.view and not self.changing and at.request is not None:
            if not at.promised and ctx.id != view % ctx.n:
                at.promised = True
                mark = ctx.sign(proofs.signed("prepare", view, place, at.digest))
                ctx.broadcast(("prepare", view, place, at.digest, mark))
            self._check(ctx, view, place)

    def _prepare(self, ctx: Ctx, src: NodeId, view: int, place: int, name: bytes, mark: bytes) -> None:
        at = self._at(view, place)
        said = proofs.signed("prepare", view, place, name)
        if src not in at.prepares and src != view % ctx.n and src < ctx.n and ctx.verify(src, said, mark):
            at.prepares[src] = (name, mark)
            self._check(ctx, view, place)

    def _check(self, ctx: Ctx, view: int, place: int) -> None:
        """Prepared: from here on this replica will prove it in every change of view."""
        at = self.places[view, place]
        if view != self.view or self.changing or at.request is None or at.prepared:
            return
        links = tuple((who, mark) for who, (name, mark) in sorted(at.prepares.items()) if name == at.digest)
        if len(links) >= 2 * ctx.f:
            at.prepared = True
            self.prepared[place] = (view, place, at.request, at.mark, links[: 2 * ctx.f])
            ctx.broadcast(("commit", view, place, at.digest))

    def _execute(self, ctx: Ctx) -> None:
        """What is committed, in order."""
        while (at := self.places.get((self.view, self.executed + 1))) and at.prepared and at.request is not None:
            if sum(name == at.digest for who, name in at.commits.items() if who < ctx.n) <= 2 * ctx.f:
                return
            self.executed += 1
            command = at.request[0] if at.request else None
            self.vain = 0
            ctx.decide(command, self.executed)
            if command is not None:
                ctx.send(command[0], ("answer", self.view, command[1], self.store.apply(command)))
                self.waiting.pop(command[:2], None)
                self.given.discard(command[:2])
            if self.executed % self.interval == 0:
                self._checkpoint(ctx)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _checkpoint(self, ctx: Ctx) -> None:
        place = self.executed
        self.states[place] = self.store.snapshot()
        name = proofs.digest(self.states[place])
        ctx.broadcast(("checkpoint", place, name, ctx.sign(proofs.signed("checkpoint", place, name))))

    def _vouch(self, ctx: Ctx, src: NodeId, place: int, name: bytes, mark: bytes) -> None:
        if place % self.interval or not ctx.verify(src, proofs.signed("checkpoint", place, name), mark):
            return
        votes = self.votes.setdefault(place, {})
        votes.setdefault(src, (name, mark))
        links = tuple((who, sign) for who, (what, sign) in sorted(votes.items()) if what == name)
        if len(links) > 2 * ctx.f:
            self._settle(ctx, (place, name, links))

    def _settle(self, ctx: Ctx, checkpoint: tuple[Any, ...]) -> None:
        """A checkpoint is stable: forget what lies before it, or fetch the state if this replica is not there yet."""
        place = checkpoint[0]
        if place > self.executed:
            self.wanted = checkpoint
            ctx.broadcast(("fetch", place), to=[who for who, _ in checkpoint[2] if who != ctx.id])
        elif place > self.low:
            self.low, self.checkpoint = place, checkpoint
            self.places = {at: known for at, known in self.places.items() if at[1] > place}
            self.prepared = {at: known for at, known in self.prepared.items() if at > place}
            self.votes = {at: known for at, known in self.votes.items() if at > place}
            self.states = {at: known for at, known in self.states.items() if at >= place}
            self._propose(ctx)

    def _fetched(self, ctx: Ctx, place: int, state: tuple[Any, ...], checkpoint: tuple[Any, ...]) -> None:
        """Another replica's state, good if 2f + 1 have vouched for it."""
        if len(checkpoint) != 3 or checkpoint[0] != place or not proofs.is_stable(ctx, *checkpoint):
            return
        if proofs.digest(state) == checkpoint[1]:
            self.store.restore(state)
            self.executed, self.states[place] = place, state
            self.waiting = {who: what for who, what in self.waiting.items() if not self.store.answered(*who)}
            self._settle(ctx, checkpoint)
            self._execute(ctx)

    # --------------------------------------------------------------------------------------------- changes of view

    def _watch(self, ctx: Ctx) -> None:
        if not self.watching:
            self.watching = True
            ctx.timer(self.patience * 2 ** min(self.vain, 16), ("patience", self.view, self.executed))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Nothing moved though requests wait: ask for the next view."""
        match tag:
            case ("patience", int(view), int(executed)):
                self.watching = False
                if (self.changing or self.waiting) and (view, executed) == (self.view, self.executed):
                    self._leave(ctx, self.view + 1)
                if self.changing or self.waiting:
                    self._watch(ctx)

    def _leave(self, ctx: Ctx, view: int) -> None:
        """Stop taking part in the present view, and say what is prepared."""
        self.view, self.changing = view, True
        self.vain += 1
        self.places = {at: known for at, known in self.places.items() if at[0] >= view}
        self.changes = {at: known for at, known in self.changes.items() if at >= view}
        certificates = tuple(self.prepared[at] for at in sorted(self.prepared))
        mark = ctx.sign(proofs.signed("view-change", view, ctx.id, *self.checkpoint, certificates))
        ctx.broadcast(("view-change", view, (ctx.id, *self.checkpoint, certificates, mark)))

    def _change(self, ctx: Ctx, view: int, change: proofs.Change) -> None:
        """Another replica wants a view. Where more than f want a later one, so does this one."""
        known = self.changes.setdefault(view, {})
        if change[0] in known or not proofs.is_change(ctx, view, change):
            return
        known[change[0]] = change
        later = {who for at, asked in self.changes.items() if at > self.view for who in asked}
        if len(later) > ctx.f:
            self._leave(ctx, min(at for at, asked in self.changes.items() if at > self.view and asked))
            self._watch(ctx)
        self._announce(ctx)

    def _announce(self, ctx: Ctx) -> None:
        """The new primary has been asked by enough replicas: it shows them, and signs what must be proposed again."""
        known = self.changes.get(self.view, {})
        if not self.changing or self.primary(ctx) != ctx.id or len(known) <= 2 * ctx.f:
            return
        changes = tuple(known[who] for who in sorted(known))
        first, requests = proofs.carried_over(changes)
        marks = tuple(self._mark(ctx, first + 1 + i, request) for i, request in enumerate(requests))
        body = ("new-view", self.view, changes, marks)
        self._new_view(ctx, (*body, ctx.sign(proofs.signed(*body))))
        ctx.broadcast(self.announced, to=ctx.peers)

    def _new_view(self, ctx: Ctx, announced: Message) -> None:
        """The new primary shows who asked for the view; what it must propose follows from that."""
        _, view, changes, marks, _ = announced
        if view == self.view and not self.changing:
            return
        if not all(proofs.is_change(ctx, view, change) for change in changes):
            return
        if len({change[0] for change in changes}) <= 2 * ctx.f:
            return
        first, requests = proofs.carried_over(changes)
        if len(marks) != len(requests):
            return
        for i, (request, mark) in enumerate(zip(requests, marks, strict=True)):
            said = proofs.signed("pre-prepare", view, first + 1 + i, proofs.digest(request))
            if not isinstance(mark, bytes) or not ctx.verify(view % ctx.n, said, mark):
                return
        self.announced = announced
        self.view, self.changing, self.proposed = view, False, first + len(requests)
        self.given = {request[0][:2] for request in requests if request}
        self.places = {at: known for at, known in self.places.items() if at[0] >= view}
        self._settle(ctx, max(changes, key=lambda change: change[1])[1:4])
        self._begin(ctx, first, requests, marks)

    def _begin(self, ctx: Ctx, first: int, requests: tuple[Any, ...], marks: tuple[Any, ...]) -> None:
        """Take over what is proposed again, then what came early, then what waits."""
        for i, (request, mark) in enumerate(zip(requests, marks, strict=True)):
            if first + 1 + i > self.low:
                at = self._at(self.view, first + 1 + i)
                at.request, at.digest, at.mark = request, proofs.digest(request), mark
        for view, place in sorted(self.places):
            if view == self.view:
                self._promise(ctx, view, place)
        self._execute(ctx)
        if self.primary(ctx) != ctx.id:
            for request in self.waiting.values():
                ctx.send(self.primary(ctx), ("request", request))
        self._propose(ctx)
        if self.waiting:
            self._watch(ctx)


class PbftClient(Client):
    """Asks the primary, as far as it knows; then everybody. It believes what f + 1 replicas answer."""

    def __init__(self, operations: Sequence[Ask], patience: float = 0.5) -> None:
        super().__init__(operations, patience)
        self.view = 0
        self.answers: dict[NodeId, tuple[int, Any]] = {}
        """View and result, by replica."""

    def _request(self, ctx: Ctx) -> Message:
        command = (ctx.id, self.number, *self.operations[self.number - 1])
        return ("request", (command, ctx.sign(proofs.signed("request", *command))))

    def ask(self, ctx: Ctx) -> None:
        """To the primary."""
        self.answers = {}
        ctx.send(self.view % ctx.n, self._request(ctx))

    def insist(self, ctx: Ctx) -> None:
        """To everybody."""
        ctx.broadcast(self._request(ctx), to=ctx.peers)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Enough equal answers; the least view among them is one that a correct replica has seen, or an earlier one."""
        match msg:
            case ("answer", int(view), number, result) if self.waiting and number == self.number and src < ctx.n:
                self.answers[src] = (view, result)
                views = [seen for seen, answer in self.answers.values() if answer == result]
                if len(views) > ctx.f:
                    self.view = max(self.view, min(views))
                    self.finish(ctx, result)
