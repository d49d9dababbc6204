"""Proof of work: miners race to extend a chain of blocks; a rule says which of several chains counts.

Bitcoin's rule is the longest chain. GHOST ("greedy heaviest observed subtree") starts at the first block and goes, at
every fork, where more blocks stand behind, stale ones too: work that honest miners lose by mining at the same time
still speaks for their branch. With it come uncles: a block names stale relatives that it has seen.

Work is a lottery. How long a miner needs for a block is drawn, without memory, from the node's own randomness; a timer
stands for it, so that rounds without a block cost nothing. In rounds the lottery is a coin thrown in each of them.

Nakamoto, Bitcoin, 2008. Sompolinsky and Zohar, Secure High-Rate Transaction Processing in Bitcoin, FC 2015.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> world = World(n=5, node=partial(Miner, rate=0.01), seed=1)
>>> chains = [miner.ledger.chain() for miner in world.run("rounds", limit=2000).nodes]
>>> len(common(chains)) > 80, len(set(map(len, chains))) <= 2
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from assay.protocols.interface import Ctx, Message, Node, NodeId, Tag
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.wire import encode

T = TypeVar("T")
Hash = bytes
Transaction = tuple[int, int]
"""Who submitted it, and its number there."""

GENESIS: Hash = bytes(16)
ORPHANS = 4096
"""Blocks without a known parent that a miner keeps at most: a peer may send any number of them."""


class Block(NamedTuple):
    """A block, as it travels: ``("block", *block)``."""

    height: int
    parent: Hash
    uncles: tuple[Hash, ...]
    miner: NodeId
    nonce: int
    transactions: tuple[Transaction, ...]

    @property
    def hash(self) -> Hash:
        """The block's name follows from what is in it."""
        return blake2b(encode(tuple(self)), digest_size=16).digest()


def parse(msg: Message) -> Block | None:
    """The block of a message; None where it is not one, whatever a peer may have sent.

    >>> parse(("block", 1, GENESIS, (), 0, 7, ((2, 1),))).height
    1
    >>> parse(("block", "high", 3)) is None
    True
    """
    if len(msg) != 7:
        return None
    _, height, parent, uncles, miner, nonce, transactions = msg
    whole = all(_is_whole(number) for number in (height, miner, nonce))
    hashes = isinstance(uncles, tuple) and all(_is_hash(one) for one in (parent, *uncles))
    held = isinstance(transactions, tuple) and all(_is_transaction(one) for one in transactions)
    return Block(*msg[1:]) if whole and hashes and held else None


def _is_hash(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == len(GENESIS)


def _is_transaction(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_whole(number) for number in value)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # what is larger has no name: it cannot be encoded


# ------------------------------------------------------------------------------------------ which chain counts


class LongestChain:
    """All blocks that a miner knows, as a tree. The chain that counts is the longest; of equals, the one seen first."""

    uncles = 0
    """How many stale relatives a new block may name."""

    def __init__(self) -> None:
        self.names: list[Hash] = [GENESIS]
        self.places: dict[Hash, int] = {GENESIS: 0}
        self.blocks: list[Block] = [Block(0, GENESIS, (), -1, 0, ())]
        self.parents: list[int] = [-1]
        self.children: list[list[int]] = [[]]
        self.tip = 0

    def __contains__(self, name: Hash) -> bool:
        return name in self.places

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: Hash, block: Block) -> bool:
        """Takes in a block whose parent is known. False: it does not fit there, or is known already."""
        parent = self.places[block.parent]
        if name in self.places or block.height != self.blocks[parent].height + 1:
            return False
        place = len(self.names)
        self.places[name] = place
        self.names.append(name)
        self.blocks.append(block)
        self.parents.append(parent)
        self.children.append([])
        self.children[parent].append(place)
        self._choose(place)
        return True

    def _choose(self, place: int) -> None:
        if self.blocks[place].height > self.blocks[self.tip].height:
            self.tip = place

    @property
    def head(self) -> Block:
        """The last block of the chain that counts."""
        return self.blocks[self.tip]

    def ancestor(self, place: int, height: int) -> int:
        """Of this block at this height."""
        while self.blocks[place].height > height:
            place = self.parents[place]
        return place

    def meet(self, one: int, other: int) -> int:
        """The last block that two chains share."""
        low = min(self.blocks[one].height, self.blocks[other].height)
        one, other = self.ancestor(one, low), self.ancestor(other, low)
        while one != other:
            one, other = self.parents[one], self.parents[other]
        return one

    def chain(self) -> list[Hash]:
        """The names of the chain that counts, without the first block."""
        places = []
        place = self.tip
        while place:
            places.append(self.names[place])
            place = self.parents[place]
        return places[::-1]

    def stale(self, generations: int = 7) -> tuple[Hash, ...]:
        """Relatives that a block on the head may name: children of its last ancestors that are not named yet."""
        if not self.uncles:
            return ()
        place, line, named = self.tip, {self.tip}, set(self.head.uncles)
        found: list[int] = []
        for _ in range(generations):
            if place == 0:
                break
            place = self.parents[place]
            found += [child for child in self.children[place] if child not in line]
            line.add(place)
            named.update(self.blocks[place].uncles)
        fresh = [self.names[child] for child in found if self.names[child] not in named]
        return tuple(fresh[: self.uncles])


class Ghost(LongestChain):
    """At every fork the child with the larger subtree counts; of equals, the one seen first."""

    uncles = 2

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[int] = [1]

    def _choose(self, place: int) -> None:
        weights, parents = self.weights, self.parents
        weights.append(0)
        fork = self.meet(place, self.tip)
        above = place
        while above >= 0:
            weights[above] += 1
            above = parents[above]
        if fork == self.tip:
            self.tip = place
        elif fork != place:  # only where the new block's line leaves the chain can the choice change
            height = self.blocks[fork].height + 1
            side, main = self.ancestor(place, height), self.ancestor(self.tip, height)
            if (-weights[side], side) < (-weights[main], main):
                self.tip = self._descend(side)

    def _descend(self, place: int) -> int:
        while self.children[place]:
            place = min(self.children[place], key=lambda child: (-self.weights[child], child))
        return place


# ----------------------------------------------------------------------------------------------- the miner


class Miner(Node):
    """Mines on the chain that counts, and tells its peers.

    `rate` is how many blocks a second (in rounds: a round) it finds alone, see :func:`rate_of_chance`. It submits
    `submits` transactions a second, puts up to `capacity` into a block, and decides a block (its name and miner; the
    slot is its height) once `confirmations` more stand on it: a second decision for one height is a payment taken back.
    """

    def __init__(
        self, rate: float = 0.1, rule: type[LongestChain] = LongestChain, submits: float = 0.0, capacity: int = 100,
        confirmations: int = 6,
    ) -> None:  # fmt: skip
        if not (0 <= rate < math.inf and 0 <= submits < math.inf):
            raise ValueError(f"a miner of {rate} blocks and {submits} transactions a second; numbers from 0 expected")
        self.rate, self.submits, self.capacity, self.confirmations = rate, submits, capacity, confirmations
        self.ledger = rule()
        self.pool: dict[Transaction, None] = {}
        self.orphans: dict[Hash, list[tuple[Hash, Block]]] = {}
        self.waiting = 0
        self.settled: list[Hash] = [GENESIS]
        self.mined = self.submitted = 0
        self.life = 0

    def start(self, ctx: Ctx) -> None:
        """Sets to work."""
        self.life = int(ctx.rng.integers(1 << 62))  # timers of an earlier life are not ours
        self._again(ctx, "mine", self.rate)
        self._again(ctx, "submit", self.submits)

    def _again(self, ctx: Ctx, what: str, rate: float) -> None:
        if rate > 0:
            ctx.timer(float(ctx.rng.exponential(1 / rate)), (what, self.life))

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """A block was found, or somebody wants to pay."""
        what, life = tag
        if life != self.life:
            return
        if what == "mine":
            self._mine(ctx)
            self._again(ctx, "mine", self.rate)
        else:
            self.submitted += 1
            self._submit(ctx, (ctx.id, self.submitted))
            self._again(ctx, "submit", self.submits)

    def _mine(self, ctx: Ctx) -> None:
        ledger = self.ledger
        self.mined += 1
        held = tuple(list(self.pool)[: self.capacity])
        parent = ledger.names[ledger.tip]
        block = Block(ledger.head.height + 1, parent, ledger.stale(), ctx.id, self.mined, held)
        self._take(ctx, block.hash, block)
        ctx.broadcast(("block", *block), to=ctx.peers)

    def _submit(self, ctx: Ctx, transaction: Transaction) -> None:
        self.pool[transaction] = None
        ctx.broadcast(("pay", *transaction), to=ctx.peers)

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """A block, a payment, or a question for a block."""
        if msg[0] == "block" and (block := parse(msg)):
            self._hear(ctx, src, block)
        elif msg[0] == "pay" and _is_transaction(msg[1:]):
            self.pool.setdefault(msg[1:], None)
        elif msg[0] == "ask" and len(msg) == 2 and _is_hash(msg[1]) and self.ledger.places.get(msg[1]):
            ctx.send(src, ("block", *self.ledger.blocks[self.ledger.places[msg[1]]]))

    def _hear(self, ctx: Ctx, src: NodeId, block: Block) -> None:
        name = block.hash
        if name in self.ledger:
            return
        if block.parent not in self.ledger:
            if self.waiting < ORPHANS:
                self.waiting += 1
                self.orphans.setdefault(block.parent, []).append((name, block))
                ctx.send(src, ("ask", block.parent))
            return
        fresh = [(name, block)]
        while fresh:
            name, block = fresh.pop(0)
            if self._take(ctx, name, block) and len(ctx.peers) < ctx.n - 1:  # else its miner told everybody
                ctx.broadcast(("block", *block), to=[peer for peer in ctx.peers if peer != src])
            fresh += (found := self.orphans.pop(name, []))
            self.waiting -= len(found)

    def _take(self, ctx: Ctx, name: Hash, block: Block) -> bool:
        before = self.ledger.tip
        taken = self.ledger.add(name, block)
        if self.ledger.tip != before:
            self._move(before)
            self._settle(ctx)
        return taken

    def _move(self, before: int) -> None:
        """Payments of blocks that do not count any more wait again; those of the new ones wait no more."""
        ledger, pool = self.ledger, self.pool
        fork = ledger.meet(before, ledger.tip)
        for place, back in ((before, True), (ledger.tip, False)):
            while place != fork:
                for transaction in ledger.blocks[place].transactions:
                    if back:
                        pool[transaction] = None
                    else:
                        pool.pop(transaction, None)
                place = ledger.parents[place]

    def _settle(self, ctx: Ctx) -> None:
        """Decides what lies deep enough, and decides again what was decided otherwise."""
        ledger = self.ledger
        place = ledger.ancestor(ledger.tip, max(0, ledger.head.height - self.confirmations))
        new = []
        while place and (len(self.settled) <= (height := ledger.blocks[place].height) or
                         self.settled[height] != ledger.names[place]):  # fmt: skip
            new.append(place)
            place = ledger.parents[place]
        for place in reversed(new):
            height, name = ledger.blocks[place].height, ledger.names[place]
            del self.settled[height:]
            self.settled.append(name)
            ctx.decide((name, ledger.blocks[place].miner), height)


def rate_of_chance(chance: float) -> float:
    """The rate at which a miner in rounds finds a block with this chance in every round.

    >>> round(rate_of_chance(0.25), 4)
    0.2877
    """
    if not 0 <= chance < 1:
        raise ValueError(f"a chance of {chance} for a block in a round; from 0 to below 1 expected")
    return -math.log1p(-chance)


def common(chains: Iterable[Sequence[T]]) -> list[T]:
    """What all chains begin with.

    >>> common([[b"a", b"b", b"c"], [b"a", b"b"], [b"a", b"b", b"d"]])
    [b'a', b'b']
    """
    first, *others = list(chains)
    length = min(map(len, (first, *others)))
    return next((list(first[:i]) for i in range(length) if any(c[i] != first[i] for c in others)), list(first[:length]))


def settled(outcome: Outcome, node: NodeId) -> list[tuple[Hash, NodeId]]:
    """What a node has decided in the end, block by block: name and miner. What it took back is not among it."""
    chain: list[tuple[Hash, NodeId]] = []
    for entry in outcome.log:
        if entry.node == node:
            del chain[entry.slot - 1 :]  # type: ignore[operator]
            chain.append(entry.value)
    return chain


def share(outcome: Outcome, coalition: Iterable[NodeId]) -> float:
    """The coalition's share of the blocks that all correct nodes have decided; NaN where there is none."""
    agreed = common([settled(outcome, node) for node in outcome.correct])
    members = set(coalition)
    return sum(miner in members for _, miner in agreed) / len(agreed) if agreed else math.nan
