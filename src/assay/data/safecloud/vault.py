"""Private files in a store that is not trusted: put, get, grant a range, forget, collect what nobody needs.

Chunks lie under the digests of their ciphertext, what belongs to one attempt to put a file under that attempt's name;
a record in a sealed log commits it. Nothing else is a name, so a listing of the store tells sizes and times and no
more.

A file's root key is derived from the owner's master secret and a salt that is fresh for every attempt: key and nonce of
a chunk follow from its position, and two contents under one root would share them. In `content` mode a chunk's key
follows from its content (and the owner's secret), so equal chunks are stored once; the leaf's key then seals that key.

Collecting is safe without clocks: it commits the list of what it will delete, chunks uploaded later get new names, and
a put that relied on something in the list starts again.

>>> from assay.data import MemStore, blocking
>>> vault = blocking(Vault(b"my secret my secret my secret 32"))
>>> vault.open(MemStore())
>>> _ = vault.put("letters/one.txt", b"dear friend")
>>> bytes(vault.get("letters/one.txt", (5, 6)))
b'friend'
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from assay.data.engine.puts import ATTEMPTS, put_surely
from assay.data.engine.version_log import EMPTY, Damaged, VersionLog
from assay.data.interface import Buffer, NotFound, Span, Store, Unknown, Violation
from assay.data.safecloud.chunks import CHUNK, TAG, aead, blocks, cid, pieces, seal, seal_into, unseal
from assay.data.safecloud.grants import FOREVER, Capability, grant, public_key, sign, signed
from assay.data.safecloud.keys import Link, Shape, Walk, access_root, derive, encryption_root, node
from assay.data.safecloud.merkle import MerkleTree
from assay.record.errors import BadInput
from assay.sim.clock import Clock, WallClock

T = TypeVar("T")
MODES = ("position", "content")
SNAPSHOT = 64  # records between two saved states
GRACE = 3600.0  # seconds that an upload may take before a collection disturbs it
_WIDE = 8  # requests in flight


class Track(msgspec.Struct, frozen=True):
    """A track's chunks, public: digests, where they lie, roots for audits, and (content mode) sealed chunk keys."""

    size: int
    digests: bytes
    epochs: list[int]
    audits: bytes
    keys: bytes = b""

    @property
    def chunks(self) -> int:
        """How many."""
        return len(self.epochs)

    def digest(self, chunk: int) -> bytes:
        """What a chunk's stored bytes hash to."""
        return self.digests[32 * chunk : 32 * chunk + 32]

    def place(self, chunk: int) -> str:
        """Where a chunk lies."""
        return chunk_key(self.epochs[chunk], self.digest(chunk))

    @property
    def leaves(self) -> list[bytes]:
        """All digests."""
        return [self.digest(chunk) for chunk in range(self.chunks)]


class Manifest(msgspec.Struct, frozen=True):
    """What is public about a file: its trees, the root that commits to them, and whose access key may grant them."""

    root: bytes
    chunk: int
    arity: int
    tracks: dict[str, Track]
    access: bytes
    encryption: bytes
    signature: bytes = b""

    def shape(self, track: str) -> Shape:
        """A track's tree."""
        return Shape(self.tracks[track].chunks, self.arity)

    def track(self, name: str) -> Track:
        """A track by name; NotFound says which there are."""
        if name not in self.tracks:
            raise NotFound(f"no track '{name}'; there is {', '.join(self.tracks)}")
        return self.tracks[name]

    def holding(self, track: str, start: int, length: int) -> range:
        """The chunks that hold a span; BadInput where it lies outside."""
        size = self.track(track).size
        if not 0 <= start <= start + length <= size:
            raise BadInput(f"the track has {size} bytes; {start} + {length} lies outside")
        first = min(start // self.chunk, self.tracks[track].chunks - 1)
        return range(first, max(first + 1, -(-(start + length) // self.chunk)))

    def bound(self) -> bytes:
        """What the owner signs: both public keys and the root."""
        return b"safecloud.manifest\0" + self.access + self.encryption + self.root + self.chunk.to_bytes(8, "big")

    @property
    def places(self) -> set[str]:
        """The objects that hold its chunks."""
        return {track.place(chunk) for track in self.tracks.values() for chunk in range(track.chunks)}


class Entry(msgspec.Struct, frozen=True):
    """A file as the owner's log knows it."""

    attempt: str
    root: bytes
    size: int
    mode: str


class State(msgspec.Struct):
    """What the log adds up to."""

    files: dict[str, Entry] = {}
    epoch: int = 0


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: a file put, a file forgotten, or objects about to be deleted."""

    path: str = ""
    entry: Entry | None = None
    condemned: tuple[str, ...] = ()


def chunk_key(epoch: int, digest: bytes) -> str:
    """The object that holds a chunk."""
    return f"chunks/{epoch:08d}/{cid(digest)}"


def root_of(tracks: Mapping[str, Track], arity: int) -> bytes:
    """The digest that commits to all tracks, their names and order of chunks."""
    named = []
    for name, track in sorted(tracks.items()):
        tree = MerkleTree(track.leaves, arity).root
        beside = sha256(track.size.to_bytes(8, "big") + track.audits + track.keys).digest()
        named.append(sha256(name.encode() + b"\0" + tree + beside).digest())
    return MerkleTree(named).root


class Vault:
    """Files under one master secret, in any store."""

    key = "safecloud"

    def __init__(self, secret: bytes, *, mode: str = "position", chunk: int = CHUNK, arity: int = 2) -> None:
        if len(secret) < 16:
            raise BadInput("a master secret has at least 16 bytes; make one with: assay data vault key --out my.key")
        if mode not in MODES:
            raise BadInput(f"mode '{mode}': choose {' or '.join(MODES)}")
        self._secret, self.mode, self.chunk, self.arity = secret, mode, chunk, arity
        self._sealing = derive(secret, "log")
        self.state = State()

    async def open(self, store: Store, *, clock: Clock | None = None, seed: int = 0) -> None:
        """Read what is there."""
        self.store, self.clock = store, clock or WallClock()
        self.log = VersionLog(store, "log", clock=self.clock)
        self.state, self._at = State(), EMPTY
        saved = await self.log.snapshot()
        if saved.version != EMPTY:
            self.state, self._at = msgspec.json.decode(self._unsealed(saved.state), type=State), saved.version
        self._stored: dict[bytes, str] = {}  # content mode: chunks that a committed file refers to
        self._manifests: dict[str, Manifest] = {}
        await self.refresh()

    async def refresh(self) -> list[Record]:
        """Follow the log; what was new."""
        new = []
        async for version, sealed in self.log.tail(self._at):
            record = msgspec.json.decode(self._unsealed(sealed), type=Record)
            new.append(record)
            self._apply(record)
            self._at = version
        return new

    def _apply(self, record: Record) -> None:
        if record.condemned:
            self.state.epoch += 1
            self._stored.clear()
        elif record.entry is None:
            self.state.files.pop(record.path, None)
        else:
            self.state.files[record.path] = record.entry

    def paths(self) -> list[str]:
        """The files, in order."""
        return sorted(self.state.files)

    async def put(self, path: str, data: Buffer, tracks: Mapping[str, Buffer] | None = None) -> Entry:
        """Encrypt and store a file (and tracks beside it); durable and visible when it returns."""
        contents = {"data": data, **(tracks or {})}
        for _ in range(ATTEMPTS):
            await self.refresh()
            manifest, entry = await self._current(lambda: self._upload(contents))
            if await self._committed(Record(path, entry), manifest.places):
                self._manifests[entry.attempt] = manifest
                return entry
        raise Unknown(f"{path}: what was uploaded was collected {ATTEMPTS} times; collect less often")

    async def _upload(self, contents: Mapping[str, Buffer]) -> tuple[Manifest, Entry]:
        attempt = os.urandom(16).hex()
        root_key = self._root_key(attempt)
        if self.mode == "content":
            await self._learn_stored()
        tracks = {name: await self._upload_track(root_key, name, data) for name, data in contents.items()}
        access, encryption = access_root(root_key), encryption_root(root_key)
        root = root_of(tracks, self.arity)
        manifest = Manifest(root, self.chunk, self.arity, tracks, public_key(access), public_key(encryption))
        manifest = msgspec.structs.replace(manifest, signature=sign(encryption, manifest.bound()))
        await put_surely(self.store, f"manifests/{attempt}", msgspec.msgpack.encode(manifest), if_absent=True)
        return manifest, Entry(attempt, root, tracks["data"].size, self.mode)

    async def _upload_track(self, root_key: bytes, name: str, data: Buffer) -> Track:
        parts = pieces(data, self.chunk)
        walk = Walk(node(encryption_root(root_key), Link(name)), Shape(len(parts), self.arity))
        digests, audits, keys, epochs = [], [], [], []
        waiting, spare = set[asyncio.Task[None]](), list[bytearray]()
        for index, part in enumerate(parts):
            leaf, room = walk.leaf(index), spare.pop() if spare else bytearray(self.chunk + TAG)
            if self.mode == "content":
                own = derive(self._secret, "content", context=sha256(part).hexdigest())
                stored = seal_into(own, 0, part, room)
                keys.append(seal(leaf, index, own))
            else:
                stored = seal_into(leaf, index, part, room)
            digest = sha256(stored).digest()
            digests.append(digest)
            audits.append(blocks(stored).root)
            known = self._stored.get(digest)
            epochs.append(int(known.split("/")[1]) if known else self.state.epoch)
            if known:
                spare.append(room)
            else:
                waiting.add(asyncio.create_task(self._keep(chunk_key(self.state.epoch, digest), stored, room, spare)))
                if len(waiting) >= _WIDE:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for one in done:
                        one.result()
        await asyncio.gather(*waiting)
        return Track(memoryview(data).nbytes, b"".join(digests), epochs, b"".join(audits), b"".join(keys))

    async def _keep(self, key: str, stored: memoryview, room: bytearray, spare: list[bytearray]) -> None:
        """Put a chunk, whose name says what it is; the memory it lies in is spare once the store is done with it."""
        if await put_surely(self.store, key, stored, if_absent=True):
            spare.append(room)

    async def _committed(self, record: Record, places: set[str]) -> bool:
        """Append to the log; False where something this relies on was condemned meanwhile."""
        sealed = self._sealed(msgspec.json.encode(record))
        while not await self.log.append(self._at + 1, sealed):
            if any(places.intersection(other.condemned) for other in await self.refresh()):
                return False
        self._apply(record)
        self._at += 1
        if self._at % SNAPSHOT == SNAPSHOT - 1:
            await self.log.save_state(self._at, self._sealed(msgspec.json.encode(self.state)))
            await self.log.trim(self._at)
        return True

    async def _learn_stored(self) -> None:
        """The chunks that committed files refer to: those need not be uploaded again."""
        if self._stored:
            return
        for entry in list(self.state.files.values()):
            if entry.mode == "content":
                for track in (await self._manifest(entry.attempt)).tracks.values():
                    self._stored.update((track.digest(i), track.place(i)) for i in range(track.chunks))

    async def get(self, path: str, span: Span | None = None, track: str = "data") -> bytes:
        """A file's bytes, all or a span of them (start, length)."""

        async def now() -> bytes:
            entry, owner = self._entry(path), Link(track)
            secret = node(encryption_root(self._root_key(entry.attempt)), owner)
            return await read(self.store, await self._manifest(entry.attempt), owner, secret, span)

        return await self._current(now)

    async def _current(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that follows our view of the files; where another device replaced one and collected, again."""
        while True:
            try:
                return await work()
            except NotFound:
                if not await self.refresh():
                    raise

    async def grant(
        self, path: str, span: Span | None = None, track: str = "data", expires: float = FOREVER
    ) -> Capability:
        """What opens the chunks that hold a span of a track, and nothing else: the secret of one node or a few."""
        manifest = await self._current(lambda: self._manifest(self._entry(path).attempt))
        entry = self._entry(path)
        root_key = self._root_key(entry.attempt)
        start, length = span or (0, manifest.track(track).size)
        chunks = manifest.holding(track, start, length)
        made = []
        for digits in manifest.shape(track).cover(chunks.start, chunks.stop):
            link = Link(track, digits)
            secret = node(encryption_root(root_key), link)
            made.append(grant(access_root(root_key), manifest.root, link, secret, expires))
        return Capability(entry.attempt, start, length, tuple(made))

    async def forget(self, path: str) -> None:
        """Remove a file; its chunks go with the next collection."""
        self._entry(path)
        await self._committed(Record(path), set())

    async def collect(self, grace: float = GRACE) -> int:
        """Delete what no file refers to and is older than the grace; how many objects went."""
        while True:
            await self.refresh()
            needed = await self._current(self._needed)
            before = self.clock.now() - grace
            old = [
                meta.key
                for prefix in ("chunks/", "manifests/")
                async for meta in self.store.list(prefix)
                if meta.modified <= before and meta.key not in needed
            ]
            if not old:
                return 0
            record = self._sealed(msgspec.json.encode(Record(condemned=tuple(old))))
            if await self.log.append(self._at + 1, record):  # nobody committed since `needed` was computed
                self._apply(Record(condemned=tuple(old)))
                self._at += 1
                await self.store.delete(*old)
                return len(old)

    async def _needed(self) -> set[str]:
        """The objects that files refer to."""
        found: set[str] = set()
        for entry in list(self.state.files.values()):
            found |= {f"manifests/{entry.attempt}"} | (await self._manifest(entry.attempt)).places
        return found

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """Whether every file opens, whole, and is what was acknowledged last or tried since.

        `promised` holds (path, SHA-256 of the content or None for forgotten, acknowledged or only tried), in order.
        """
        wrong = list(await self.log.check())
        allowed: dict[str, set[str | None]] = {}
        for path, digest, acknowledged in promised:
            allowed[path] = {digest} if acknowledged else allowed.get(path, {None}) | {digest}
        for path, digests in allowed.items():
            if path not in self.state.files and None not in digests:
                wrong.append(Violation("an acknowledged file is there", path))
        for path in self.state.files:
            try:
                found = sha256(await self.get(path)).hexdigest()
            except (NotFound, Damaged) as error:
                wrong.append(Violation("every chunk of a file is there and whole", f"{path}: {error}"))
                continue
            if path in allowed and found not in allowed[path]:
                wrong.append(Violation("a file has the content that was acknowledged", path))
        return wrong

    async def _manifest(self, attempt: str) -> Manifest:
        if attempt not in self._manifests:
            manifest = await read_manifest(self.store, attempt)
            if manifest.encryption != public_key(encryption_root(self._root_key(attempt))):
                raise Damaged(f"manifests/{attempt} is another's: its signature is not ours")
            self._manifests[attempt] = manifest
        return self._manifests[attempt]

    def _entry(self, path: str) -> Entry:
        if path not in self.state.files:
            near = ", ".join(self.paths()[:3]) or "it is empty"
            raise NotFound(f"the vault has no '{path}'; it has {near}")
        return self.state.files[path]

    def _root_key(self, attempt: str) -> bytes:
        return derive(self._secret, "file", context=attempt)

    def _sealed(self, data: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + aead(self._sealing).encrypt(nonce, data, b"log")

    def _unsealed(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return aead(self._sealing).decrypt(data[:12], data[12:], b"log")
        except InvalidTag:
            raise BadInput("this secret does not open the vault; give the one it was made with") from None


async def read_manifest(store: Store, attempt: str) -> Manifest:
    """A file's manifest, if its root commits to its tracks and its owner signed it."""
    try:
        manifest = msgspec.msgpack.decode(await store.get(f"manifests/{attempt}"), type=Manifest)
        whole = root_of(manifest.tracks, manifest.arity) == manifest.root
    except (msgspec.DecodeError, OverflowError, ValueError):
        whole = False
    if not whole or not signed(manifest.encryption, manifest.bound(), manifest.signature):
        raise Damaged(f"manifests/{attempt} is damaged: it is not the one that was written")
    return manifest


async def read(store: Store, manifest: Manifest, link: Link, secret: bytes, span: Span | None = None) -> bytes:
    """A span of a track, by the secret of a node above it: the owner's, or a grantee's."""
    track = manifest.track(link.track)
    start, length = span or (0, track.size)
    chunks = manifest.holding(link.track, start, length)
    walk, gate = Walk(secret, manifest.shape(link.track), link.digits), asyncio.Semaphore(_WIDE)

    async def one(chunk: int, leaf: bytes) -> bytes:
        async with gate:
            stored = await store.get(track.place(chunk))
        if sha256(stored).digest() != track.digest(chunk):
            raise Damaged(f"{track.place(chunk)} is damaged: its bytes are not those that were written")
        if not track.keys:
            return unseal(leaf, chunk, stored)
        sealed = len(track.keys) // track.chunks
        own = unseal(leaf, chunk, track.keys[sealed * chunk : sealed * (chunk + 1)])
        return unseal(own, 0, stored)

    try:
        leaves = [(chunk, walk.leaf(chunk)) for chunk in chunks]
    except LookupError as error:
        raise BadInput(f"this grant does not reach that span: {error}") from None
    parts = await asyncio.gather(*(one(*leaf) for leaf in leaves))
    return b"".join(parts)[start - chunks.start * manifest.chunk :][:length]


async def read_granted(store: Store, capability: Capability) -> bytes:
    """The span that a capability opens, by its secrets alone."""
    manifest = await read_manifest(store, capability.manifest)
    parts = []
    for one in capability.grants:
        below = manifest.shape(one.link.track).span(one.link.digits)
        first = max(capability.start, below.start * manifest.chunk)
        last = min(capability.start + capability.length, below.stop * manifest.chunk)
        parts.append(await read(store, manifest, one.link, one.secret, (first, last - first)))
    return b"".join(parts)
