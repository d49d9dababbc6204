"""Asynchronous binary agreement without signatures: f < n/3 Byzantine nodes, a common coin, O(1) expected rounds.

A round has four steps. *bval*: nodes send their estimates; f + 1 copies of a bit are relayed, 2f + 1 make it a
candidate, so that every candidate was some correct node's estimate. *aux*: each names its first candidate. *conf*: each
names the set of candidates that n - f auxes support. *coin*: only now is it tossed. If n - f confs support one bit
alone, that bit is the new estimate, and decided if the coin shows it; otherwise the coin is the new estimate.

The first published version (PODC 2014) has no conf step. There an adversary who sees the coin can let one value survive
in the nodes that have not yet finished their round, for ever; the conf step fixes what a node will conclude before the
coin is known (MacBrough, Cobalt, 2018). This is the fixed version.

For this rule the coin must be the same at all nodes, always: who sees both bits takes the coin, trusting that whoever
decided has seen the same. Coins are sub-protocols that decide 0 or 1 once, made from the number of the round:
``partial(IdealCoin, seed)`` is one, and any node that decides a bit another. A coin is started only when the protocol
has come to the toss.

A node that decides says so; f + 1 who say so are believed, 2f + 1 let a node halt.

Mostefaoui, Moumen, Raynal, Signature-free asynchronous binary Byzantine consensus, JACM 62(4), 2015.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> world = World(n=4, f=1, node=partial(ABA, partial(IdealCoin, 1)), inputs=[0, 1, 1, 0])
>>> len(set(world.run("async").decided().values()))
1
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, reduce
from operator import or_
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Parent
from assay.sim.random import stream


class IdealCoin(Node):
    """A common coin as an ideal functionality: one bit for all, revealed to a node when f + 1 nodes have asked.

    It stands for a threshold signature, with the same messages (a share from each node) and none of the cryptography:
    the bit is a function of the seed and the round. Nothing in a simulation looks at the seed before the coin does,
    but nothing could stop a real adversary from it.

    >>> from functools import partial
    >>> from assay.protocols.kernel.world import World
    >>> len(set(World(n=4, f=1, node=partial(IdealCoin, 3, 1)).run("timed").decided().values()))
    1
    """

    def __init__(self, seed: int, round: int) -> None:
        self.seed, self.round = seed, round
        self.asked: set[NodeId] = set()
        self.revealed = False

    def start(self, ctx: Ctx) -> None:
        """Ask."""
        ctx.broadcast(("ask",))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody asks: more than f of them include a correct node."""
        if msg == ("ask",):
            self.asked.add(src)
            if len(self.asked) > ctx.f and not self.revealed:
                self.revealed = True
                ctx.decide(int(stream(self.seed, "coin", self.round).integers(2)))


IDEAL = partial(IdealCoin, 0)
AHEAD = 1000  # rounds that a node keeps messages for; a common coin needs so many with probability 2**-1000


class Round:
    """What one node knows of one round. Sets of values are bits; every candidate came from a correct node."""

    def __init__(self) -> None:
        self.bvals: dict[int, set[NodeId]] = {}
        self.sent: set[int] = set()
        self.candidates = 0
        self.auxes: dict[NodeId, int] = {}
        self.aux = False
        self.confs: dict[NodeId, int] = {}
        self.conf = False
        self.support = 0
        """The set that n - f confs support; 0 before there are so many, and from then on the coin may be tossed."""
        self.coin = -1
        self.early: list[tuple[NodeId, Message]] = []
        """Messages of the coin from those who are ahead."""


def supported(votes: dict[NodeId, int], candidates: int) -> list[int]:
    """The votes that name nothing but candidates."""
    return [vote for vote in votes.values() if vote & ~candidates == 0]


class ABA(Parent):
    """One agreement with a coin that is common to all. The input is 0 or 1; a parent may call `propose` instead."""

    def __init__(self, coin: Callable[[int], Node] = IDEAL) -> None:
        """`coin` makes the sub-protocol that tosses in a round."""
        super().__init__()
        self.coin = coin
        self.round = 0
        self.estimate = -1
        self.rounds: dict[int, Round] = {}
        self.done: tuple[set[NodeId], set[NodeId]] = (set(), set())
        self.decision = -1
        self.halted = False

    def start(self, ctx: Ctx) -> None:
        """Propose the input."""
        if ctx.input in (0, 1):
            self.propose(ctx, int(ctx.input))

    def propose(self, ctx: Ctx, value: int) -> None:
        """Begin with this estimate."""
        if self.round == 0 and not self.halted:
            self.estimate = value
            self._enter(ctx, 1)

    def _enter(self, ctx: Ctx, number: int) -> None:
        """Earlier rounds are kept: slower nodes need this one's copies of their bits."""
        self.round = number
        self._bval(ctx, number, self.estimate)
        self._advance(ctx)

    def _known(self, number: Any) -> Round | None:
        """The state of a round, if it is one to keep."""
        if not isinstance(number, int) or not 1 <= number <= self.round + AHEAD:
            return None
        state = self.rounds.get(number)
        if state is None:
            state = self.rounds[number] = Round()
        return state

    def _bval(self, ctx: Ctx, number: int, value: int) -> None:
        state = self._known(number)
        if state is not None and value not in state.sent:
            state.sent.add(value)
            ctx.broadcast(("bval", number, value))

    # ------------------------------------------------------------------------------------------------- messages

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Keeps what belongs to a coin that this node must not toss yet."""
        if self.halted:
            return
        match msg:
            case ("/", ("coin", int(number)), tuple(inner)) if inner:
                state = self._known(number)
                if state is not None and not state.support:
                    state.early.append((src, inner))
                elif state is not None:
                    super().recv(ctx, src, msg)
            case ("/", *_):
                pass
            case _:
                self.message(ctx, src, msg)

    def message(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Count a vote, and see what follows."""
        match msg:
            case ("bval", number, (0 | 1) as value) if state := self._known(number):
                voters = state.bvals.setdefault(int(value), set())
                voters.add(src)
                if len(voters) > ctx.f:
                    self._bval(ctx, number, int(value))
                if len(voters) > 2 * ctx.f:
                    state.candidates |= 1 << value
            case ("aux", number, (0 | 1) as value) if state := self._known(number):
                state.auxes.setdefault(src, 1 << value)
            case ("conf", number, (1 | 2 | 3) as bits) if state := self._known(number):
                state.confs.setdefault(src, int(bits))
            case ("done", (0 | 1) as bit):
                self._count_done(ctx, src, int(bit))
                return
            case _:
                return
        if msg[1] == self.round:
            self._advance(ctx)

    # ---------------------------------------------------------------------------------------- the steps of a round

    def _advance(self, ctx: Ctx) -> None:
        """The steps of the present round, as far as the votes carry."""
        number = self.round
        state = self.rounds[number]
        if state.candidates and not state.aux:
            state.aux = True
            ctx.broadcast(("aux", number, state.candidates.bit_length() - 1))
        auxes = supported(state.auxes, state.candidates)
        if len(auxes) >= ctx.n - ctx.f and not state.conf:
            state.conf = True
            ctx.broadcast(("conf", number, _union(auxes)))
        confs = supported(state.confs, state.candidates)
        if state.conf and not state.support and len(confs) >= ctx.n - ctx.f:
            state.support = _union(confs)  # before the coin is known, and nothing changes it
            self._toss(ctx, number, state)

    def _toss(self, ctx: Ctx, number: int, state: Round) -> None:
        self.sub(ctx, ("coin", number))
        early, state.early = state.early, []
        for src, msg in early:
            super().recv(ctx, src, ("/", ("coin", number), msg))

    def child(self, ctx: Ctx, name: Any) -> Node | None:
        """The coin of a round; `recv` lets no other name through."""
        return self.coin(name[1])

    def decided(self, ctx: Ctx, name: Any, value: Any, slot: Hashable) -> None:
        """The coin fell: the round is over."""
        state = self._known(name[1])
        if state is None or name[1] != self.round or state.coin >= 0 or value not in (0, 1):
            return
        state.coin = int(value)
        self.estimate = state.coin if state.support == 3 else state.support - 1
        if state.support - 1 == state.coin:
            self._decide(ctx, self.estimate)
        self._enter(ctx, self.round + 1)

    def _decide(self, ctx: Ctx, value: int) -> None:
        if self.decision < 0:
            self.decision = value
            ctx.decide(value)
            ctx.broadcast(("done", value))

    def _count_done(self, ctx: Ctx, src: NodeId, value: int) -> None:
        self.done[value].add(src)
        if len(self.done[value]) > ctx.f:
            self._decide(ctx, value)
        if len(self.done[value]) > 2 * ctx.f:
            self.halted = True
            self.rounds.clear()
            self.children.clear()


def _union(votes: list[int]) -> int:
    return reduce(or_, votes, 0)
