"""Storage nodes that hold ciphertext for others, what they sign, and how they are caught.

A node announces, signed, the root of its inventory and what changed. It adds after it has stored, and removes before it
deletes: an announced chunk is never missing at an honest node, wherever it crashes. An audit asks about one announced
chunk under a fresh nonce. A wrong signed answer about a chunk that its own announcement contains contradicts itself,
and anybody can see that from the two signatures.

`prefix` is the paper's audit: a hash over the nonce and the first 32 bytes. A node that keeps 32 bytes of each chunk
passes it. `spot` asks for blocks that the nonce chooses, with their places in the tree over the chunk's blocks, whose
root the owner has published.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha3_256, sha256
from typing import Any

import msgspec

from assay.data.engine.puts import put_surely
from assay.data.engine.version_log import VersionLog
from assay.data.interface import Buffer, Fenced, NotFound, Store, Violation
from assay.data.safecloud.chunks import BLOCK, blocks, cid
from assay.data.safecloud.grants import Signed, public_key
from assay.data.safecloud.inventory_tree import InventoryTree
from assay.data.safecloud.keys import derive
from assay.data.safecloud.merkle import MerkleTree, proves
from assay.sim.clock import Clock, WallClock

PREFIX = 32  # bytes of a chunk that the paper's audit covers
AUDITS = ("prefix", "spot")
BLOCKS = 4  # that a spot audit asks for


class Announcement(Signed, frozen=True):
    """A node's signed word: its inventory after a change. The first of every process changes nothing: it takes over."""

    version: int
    root: bytes
    claim: int  # the version at which the process that speaks took over
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


class Challenge(msgspec.Struct, frozen=True):
    """A question about one chunk."""

    digest: bytes
    nonce: bytes
    audit: str = "spot"
    blocks: int = BLOCKS

    def places(self, count: int) -> list[int]:
        """The blocks that the nonce chooses, of so many, none of them twice; nobody knows them before.

        >>> sorted(Challenge(b"chunk", b"nonce", blocks=4).places(4))
        [0, 1, 2, 3]
        """
        asked = min(self.blocks, count)
        draws = derive(self.nonce, "places", 8 * asked, context=self.digest.hex())
        moved: dict[int, int] = {}  # a shuffle of all blocks that stops after those asked for
        for i in range(asked):
            other = i + int.from_bytes(draws[8 * i : 8 * i + 8], "big") % (count - i)
            moved[i], moved[other] = moved.get(other, other), moved.get(i, i)
        return [moved[i] for i in range(asked)]


class Answer(Signed, frozen=True):
    """What a node says, signed, at a version of its inventory. No `proof`: it does not hold the chunk."""

    digest: bytes
    nonce: bytes
    version: int
    root: bytes
    proof: bytes = b""


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """A block and the siblings on its way to the chunk's root."""

    block: bytes
    way: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True)
class Published:
    """What an auditor knows of a chunk without holding it: digest, the root over its blocks, size, first bytes."""

    digest: bytes
    blocks_root: bytes
    size: int
    prefix: bytes

    @classmethod
    def of(cls, stored: Buffer) -> Published:
        """Computed by whoever uploads."""
        return cls(sha256(stored).digest(), blocks(stored).root, memoryview(stored).nbytes, bytes(stored[:PREFIX]))


def prefix_proof(challenge: Challenge, start: Buffer) -> bytes:
    """The paper's proof: a hash over id, nonce and the first bytes."""
    return sha3_256(cid(challenge.digest).encode() + challenge.nonce + bytes(start[:PREFIX])).digest()


def spot_proof(challenge: Challenge, stored: Buffer, tree: MerkleTree | None = None) -> bytes:
    """The blocks asked for, each with its way up the tree over all blocks."""
    tree, view = tree or blocks(stored), memoryview(stored)
    found = [
        Spot(bytes(view[BLOCK * place : BLOCK * (place + 1)]), tuple(map(tuple, tree.proof(place))))
        for place in challenge.places(len(tree.levels[0]))
    ]
    return msgspec.msgpack.encode(found)


def proved(challenge: Challenge, known: Published, proof: bytes) -> bool:
    """Whether a proof shows what was asked, as far as this kind of audit can tell."""
    if challenge.audit == "prefix":
        return proof == prefix_proof(challenge, known.prefix)
    try:
        found = msgspec.msgpack.decode(proof, type=list[Spot])
    except msgspec.DecodeError:
        return False
    count = max(1, -(-known.size // BLOCK))
    places = challenge.places(count)
    return len(found) == len(places) and all(
        proves(known.blocks_root, sha256(spot.block).digest(), place, count, spot.way, arity=16)
        for spot, place in zip(found, places, strict=True)
    )


@dataclass
class Drop:
    """A node that stores ciphertext under the digests of it, and signs what it says."""

    secret: bytes
    key: str = "drop"
    inventory: InventoryTree = field(default_factory=lambda: InventoryTree(()))

    @property
    def public(self) -> bytes:
        """Under which its signatures are known."""
        return public_key(self.secret)

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int = 0) -> None:
        """Take over: read what was announced, say so, and remove what earlier processes stored and never announced."""
        self.store, self.clock = store, clock or WallClock()
        self.log = VersionLog(store, "announced", author=self.public.hex() + os.urandom(8).hex(), clock=self.clock)
        self.announced: list[Announcement] = []
        self._places: dict[bytes, str] = {}
        self._claim = -1
        while self._claim < 0:
            async for _, data in self.log.tail(len(self.announced) - 1):
                self._follow(msgspec.msgpack.decode(data, type=Announcement))
            self.inventory = InventoryTree(self._places)
            version = len(self.announced)
            if await self._append(Announcement(version, self.inventory.root, version)):
                self._claim = version
        needed = set(self._places.values())
        stray = [meta.key async for meta in store.list("held/") if meta.key not in needed]
        old = [key for key in stray if int(key.split("/")[1]) < self._claim]  # a successor's are not ours to judge
        if old:
            await store.delete(*old)

    def _follow(self, said: Announcement) -> None:
        self.announced.append(said)
        self._places.update((digest, _place(said.version, digest, said.claim)) for digest in said.added)
        for digest in said.removed:
            self._places.pop(digest, None)

    async def _append(self, bare: Announcement) -> bool:
        said = bare.signed_by(self.secret)
        if not await self.log.append(said.version, msgspec.msgpack.encode(said)):
            return False
        self._follow(said)
        return True

    async def hold(self, *chunks: Buffer) -> None:
        """Take chunks: stored first, announced after."""
        version = len(self.announced)
        new = {digest: bytes(stored) for stored in chunks if (digest := sha256(stored).digest()) not in self._places}
        for digest, stored in new.items():
            await put_surely(self.store, _place(version, digest, self._claim), stored, if_absent=True)
        await self._announce(added=new)

    async def evict(self, *digests: bytes) -> None:
        """Let chunks go: announced first, deleted after."""
        places = [self._places[digest] for digest in digests if digest in self._places]
        await self._announce(removed=digests)
        await self.store.delete(*places)

    async def _announce(self, added: Iterable[bytes] = (), removed: Iterable[bytes] = ()) -> None:
        tree = InventoryTree((set(self._places) | set(added)) - set(removed))
        new, gone = tuple(tree.minus(self.inventory)), tuple(self.inventory.minus(tree))
        if not new and not gone:
            return
        if not await self._append(Announcement(len(self.announced), tree.root, self._claim, new, gone)):
            raise Fenced("another process has taken this node over; this one stops")
        self.inventory = tree

    async def answer(self, challenge: Challenge) -> Answer:
        """Prove, from what is stored now."""
        proof = b""
        if challenge.digest in self.inventory:
            try:
                proof = self.prove(challenge, await self.store.get(self._places[challenge.digest]))
            except NotFound:
                proof = b"lost"  # signed all the same: that convicts it
        bare = Answer(challenge.digest, challenge.nonce, len(self.announced) - 1, self.inventory.root, proof)
        return bare.signed_by(self.secret)

    def prove(self, challenge: Challenge, stored: Buffer) -> bytes:
        """The proof, from a chunk's bytes."""
        return prefix_proof(challenge, stored) if challenge.audit == "prefix" else spot_proof(challenge, stored)

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Every announced chunk is there and whole; what was promised was announced."""
        wrong = list(await self.log.check())
        said = {digest for one in self.announced for digest in one.added}
        wrong += [Violation("a chunk that was taken was announced", cid(one)) for one in promised if one not in said]
        for digest, place in self._places.items():
            try:
                whole = sha256(await self.store.get(place)).digest() == digest
            except NotFound:
                whole = False
            if not whole:
                wrong.append(Violation("an announced chunk is there and whole", cid(digest)))
        return wrong


class Keeps32(Drop):
    """A cheat: it keeps the first 32 bytes of each chunk, which is what the paper's audit looks at."""

    def prove(self, challenge: Challenge, stored: Buffer) -> bytes:
        """As if the rest were still there."""
        whole = memoryview(stored).nbytes
        return super().prove(challenge, bytes(stored[:PREFIX]) + bytes(max(0, whole - PREFIX)))


@dataclass
class LosesBlocks(Drop):
    """A cheat: it has thrown away a share of each chunk's blocks, and kept the digests of all of them."""

    share: float = 0.1

    def prove(self, challenge: Challenge, stored: Buffer) -> bytes:
        """From the blocks that are left; which went is fixed by the chunk, not by the question."""
        left = bytearray(stored)
        count = -(-len(left) // BLOCK)
        for gone in Challenge(challenge.digest, b"lost", blocks=round(self.share * count)).places(count):
            place = gone * BLOCK
            left[place : place + BLOCK] = bytes(len(left[place : place + BLOCK]))
        return (
            prefix_proof(challenge, left)
            if challenge.audit == "prefix"
            else spot_proof(challenge, left, blocks(stored))
        )


def _place(version: int, digest: bytes, claim: int) -> str:
    """Where a chunk lies: no other process and no other announcement ever uses this name."""
    return f"held/{claim:08d}/{version:08d}-{cid(digest)}"


def contradicts(
    public: bytes, announced: Sequence[Announcement], challenge: Challenge, known: Published, answer: Answer
) -> bool:
    """Whether a node's signed answer is false about a chunk that its own signed word says it held at that version.

    Silence contradicts nothing, nor does an answer at a version whose inventory no longer has the chunk.
    """
    if answer.digest != challenge.digest or answer.nonce != challenge.nonce:
        return False
    if not answer.is_from(public):
        return False
    held: set[bytes] = set()
    for version, said in enumerate(announced[: answer.version + 1]):
        if said.version != version or not said.is_from(public):
            return False
        held = (held | set(said.added)) - set(said.removed)
    return challenge.digest in held and not proved(challenge, known, answer.proof)


def expected_challenges(share: float, asked: int = BLOCKS, sure: float = 0.99) -> int:
    """How many spot audits find a node that lost a share of its blocks, with this certainty.

    >>> expected_challenges(0.01, 4), expected_challenges(1.0)
    (115, 1)
    """
    missed = (1 - share) ** asked
    return 1 if missed <= 0 else max(1, math.ceil(math.log(1 - sure) / math.log(missed)))
