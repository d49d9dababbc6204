"""What an engine's prefix cache holds, as it says so itself: KV cache events over ZeroMQ.

vLLM and SGLang publish an event for every block that enters or leaves their cache (`--kv-events-config`). A message
has three parts: a topic, a sequence number in 8 bytes (big-endian), and a batch in MessagePack. `Subscriber` receives
them in order and notices what is missing, `Mirror` keeps a prefix index in step with them, and `Publisher` is the
engine's side, for the mock engine and for tests.

>>> stored = BlockStored(block_hashes=[7], parent_block_hash=None, token_ids=[1, 2], block_size=2)
>>> decode(encode(Batch(ts=1.5, events=[stored]))).events == [stored]
True
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from assay.live.prefix_index import PrefixIndex
from assay.record.errors import BadInput

if TYPE_CHECKING:  # pyzmq comes with the extra `gateway`; reading and writing events needs none of it
    import zmq

BlockHash = int | bytes  # numbers in older versions, digests in newer ones

_BURST = 64  # messages taken at once before others on the loop get their turn
_LARGEST = 64 << 20  # bytes of a message; a longer one is not an event
_END = b"\xff" * 8  # the sequence number -1 ends a replay
_NEGATIVE = b"\x80" + b"\x00" * 7  # no sequence number of a batch is, nor comes near


class EventError(ValueError):
    """These bytes are no batch of KV cache events."""


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Blocks entered the cache, one after another behind the block `parent_block_hash` (None: at the very start).

    Fields stand in the order of the wire, because older versions send them without their names. Behind `medium` the
    engines do not agree on that order, so what stands there is not checked.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: Any = None
    medium: str | None = None  # "GPU", or a slower tier
    lora_name: Any = None  # SGLang sends a table of other things in this place
    extra_keys: Any = None  # what else made the hash of each block: salts, images
    group_idx: Any = None  # models with several kinds of layer have a cache for each
    kv_cache_spec_kind: Any = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None
    metadata: Any = None
    cache_salt: Any = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Blocks left the cache."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: Any = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The cache is empty."""


class _PositionalStored(BlockStored, frozen=True, tag="BlockStored", array_like=True):
    pass


class _PositionalRemoved(BlockRemoved, frozen=True, tag="BlockRemoved", array_like=True):
    pass


class _PositionalCleared(AllBlocksCleared, frozen=True, tag="AllBlocksCleared", array_like=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What changed in one step of an engine."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _Envelope(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _NamedEnvelope(msgspec.Struct):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_envelope = msgspec.msgpack.Decoder(_Envelope)
_named_envelope = msgspec.msgpack.Decoder(_NamedEnvelope)
_positional = msgspec.msgpack.Decoder(_PositionalStored | _PositionalRemoved | _PositionalCleared)
_named = msgspec.msgpack.Decoder(Event)
_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


def decode(payload: bytes) -> Batch:
    """The batch in a message, in any of the shapes in use; an event of a kind unknown here is left out.

    Versions differ: batches and events are arrays in older ones, and tables with names in newer ones (vLLM since
    mid 2026 sends named events in an array).

    Raises:
        EventError: it is no batch.
    """
    try:
        # An array starts with 0x90..0x9f, 0xdc or 0xdd; a table with 0x80..0x8f, 0xde or 0xdf.
        envelope = (_named_envelope if _is_table(payload) else _envelope).decode(payload)
        events = [_event(raw) for raw in envelope.events]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"not a batch of KV cache events: {error}") from error
    known = [event for event in events if event is not None]
    return Batch(envelope.ts, known, envelope.data_parallel_rank)


def _is_table(raw: bytes | msgspec.Raw) -> bool:
    first = memoryview(raw)[:1].tobytes()
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")


def _event(raw: msgspec.Raw) -> Event | None:
    table = _is_table(raw)
    try:
        event: Event = (_named if table else _positional).decode(raw)
        return event
    except msgspec.ValidationError:
        shape = msgspec.msgpack.decode(raw)
        tag = shape.get("type") if table else shape[0] if isinstance(shape, list) and shape else None
        if isinstance(tag, str) and tag not in _KNOWN:
            return None
        raise


def encode(batch: Batch) -> bytes:
    """The batch as current versions of vLLM write it: named events in an array."""
    return msgspec.msgpack.encode(batch)


class _Socket:
    """A ZeroMQ socket on the running event loop.

    Its descriptor says only that something may have changed, once; so it is read until there is nothing left.
    """

    HANDSHAKE, DISCONNECTED = 0x1000, 0x0200  # what ZeroMQ tells who watches a socket

    def __init__(
        self, kind: str, receive: Callable[[list[bytes]], None] | None, high_water: int, made: Any = None
    ) -> None:
        import zmq

        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._looking = False  # whether a look is due already
        self._zmq = zmq
        self.socket: zmq.Socket[bytes] = made or zmq.Context.instance().socket(getattr(zmq, kind))
        self.socket.set_hwm(high_water)
        options = {zmq.LINGER: 0, zmq.MAXMSGSIZE: _LARGEST, zmq.RECONNECT_IVL: 100, zmq.RECONNECT_IVL_MAX: 2000}
        # Without heartbeats a peer that vanished without a goodbye looks like one that has nothing to say.
        options |= {zmq.HEARTBEAT_IVL: 5000, zmq.HEARTBEAT_TIMEOUT: 15000}
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self._descriptor: int = self.socket.getsockopt(zmq.FD)
        if receive is not None:
            self._loop.add_reader(self._descriptor, self._readable)
            self._look_again()

    def monitored(self) -> Any:
        """A socket that tells when this one is connected, and when it is no more."""
        return self.socket.get_monitor_socket(self.HANDSHAKE | self.DISCONNECTED)

    def unmonitor(self) -> None:
        """Tell nobody any more when this one is connected."""
        if not self.socket.closed:
            self.socket.disable_monitor()

    def attach(self, endpoint: str, *, bind: bool) -> str:
        """Bind or connect; the endpoint comes back, with the port that was chosen where it was left open."""
        zmq = self._zmq
        try:
            self.socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            (self.socket.bind if bind else self.socket.connect)(endpoint)
        except (zmq.ZMQError, UnicodeError) as error:
            self.close()
            what = f"cannot {'bind' if bind else 'connect to'} '{endpoint}': {error}"
            raise BadInput(f"{what}; an endpoint of KV events looks like tcp://127.0.0.1:5557") from error
        self._look_again()
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, parts: list[bytes]) -> None:
        """Send, or drop where the other side is slow: an engine never waits for who listens."""
        try:
            self.socket.send_multipart(parts, self._zmq.NOBLOCK)
        except self._zmq.Again:
            return
        self._look_again()

    def close(self) -> None:
        """Stop reading and close, dropping what was not sent."""
        if not self.socket.closed:
            self._loop.remove_reader(self._descriptor)
            self.socket.close(linger=0)

    def _look_again(self) -> None:
        # Anything done to the socket may swallow the one sign that a message came.
        if self._receive is not None and not self._looking:
            self._looking = True
            self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        self._looking = False
        for _ in range(_BURST):
            if self.socket.closed or self._receive is None:
                return
            try:
                parts = self.socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            try:
                self._receive(parts)
            except Exception as error:  # one bad batch must not stop the rest, nor pass unseen
                self._loop.call_exception_handler({"message": "a batch of KV events failed", "exception": error})
        self._look_again()


class Subscriber:
    """Receives the batches of one engine in order, on the running event loop.

    `receive(batch, gap)` is called for each. `gap` says that events before this batch were lost for good, so what was
    known of the engine's cache may be wrong. Where the engine keeps past batches (`replay_endpoint`), missing ones are
    asked for first, those from before the start too. A sequence that starts anew is an engine that started anew.

    Connects by itself, again and again; `high_water` bounds what waits here, the rest is a gap.
    """

    def __init__(
        self,
        endpoint: str,
        receive: Callable[[Batch, bool], None],
        topic: str = "",
        replay_endpoint: str | None = None,
        *,
        high_water: int = 10_000,
        patience: float = 2.0,
    ) -> None:
        import zmq

        self.batches = self.gaps = self.replayed = self.errors = 0
        self._nonsense = ""  # why the last message that made no sense made none
        self._unanswered = ""  # who did not answer a request for past batches
        self._connected = False
        self._endpoint = endpoint
        self._receive = receive
        self._replay_endpoint = replay_endpoint
        self._high_water = high_water
        self._patience = patience
        self._next = 0  # the sequence number to deliver next
        self._seen = -1  # the last one taken from the live stream
        self._begun = False  # whether anything was delivered: nothing can be lost before
        self._restarted = False  # whether a gap must be told with the next batch
        self._held: deque[tuple[int, bytes]] = deque(maxlen=high_water)  # live messages that wait for a replay
        self._replay: _Socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._live = _Socket("SUB", self._message, high_water)
        self._live.socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._monitor = _Socket("PAIR", self._heard, 0, self._live.monitored())
        self._live.attach(endpoint, bind=False)

    @property
    def problem(self) -> str:
        """Why what comes is of no use, or why nothing comes."""
        if not self._connected:
            return f"nobody who publishes events answers at {self._endpoint}"
        return self._nonsense or self._unanswered

    def close(self) -> None:
        """Stop receiving; nothing is delivered afterwards."""
        self._held.clear()
        self._end_request()
        # Before who listens goes: ZeroMQ's one thread waits for ever to tell of an end where nobody is left to hear it.
        self._live.unmonitor()
        self._monitor.close()
        self._live.close()

    def catch_up(self) -> None:
        """Ask for what was published before this one listened: at once, not when the next batch shows a gap."""
        if self._replay_endpoint is not None and self._replay is None and not self._begun:
            self._request()

    def _heard(self, parts: list[bytes]) -> None:
        """Something happened to the connection: only a handshake shows that the other side speaks ZeroMQ."""
        happened = int.from_bytes(parts[0][:2], "little")
        if happened == self._live.HANDSHAKE:
            self._connected = True
        elif happened == self._live.DISCONNECTED:
            self._connected = False

    def _message(self, parts: list[bytes]) -> None:
        if len(parts) != 3 or len(parts[1]) != 8 or parts[1] >= _NEGATIVE:
            self._bad(f"a message of {len(parts)} parts; it should have three: topic, sequence number, batch")
            return
        message = int.from_bytes(parts[1], "big"), parts[2]
        if self._replay is not None:
            self._held.append(message)
        else:
            self._take(*message, ask=self._replay_endpoint is not None)

    def _take(self, number: int, payload: bytes, *, ask: bool) -> None:
        if number <= self._seen:
            self._seen, self._next, self._restarted = -1, 0, self._begun
        if ask and number > self._next:
            self._held.append((number, payload))
            self._request()
            return
        self._seen = number
        if number >= self._next:  # else it came by replay already
            self._deliver(number, payload)

    def _deliver(self, number: int, payload: bytes) -> None:
        gap = self._restarted or (self._begun and number > self._next)
        self._next = number + 1
        try:
            batch = decode(payload)
        except EventError as error:
            # Told once: whoever receives starts from nothing, and need not be told again while nothing comes.
            if self._begun:
                self.gaps += 1
                self._receive(Batch(0.0, []), True)
            self._begun = self._restarted = False
            self._bad(str(error))
            return
        self._begun, self._restarted = True, False
        self.batches += 1
        self.gaps += gap
        self._receive(batch, gap)

    def _bad(self, problem: str) -> None:
        self.errors += 1
        self._nonsense = problem

    def _request(self) -> None:
        """Ask for everything from the first missing batch on. Live messages wait until the answer is complete."""
        assert self._replay_endpoint is not None
        self._replay = _Socket("DEALER", self._replayed, self._high_water)
        self._replay.attach(self._replay_endpoint, bind=False)
        self._replay.send([b"", self._next.to_bytes(8, "big")])
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._resume)

    def _replayed(self, parts: list[bytes]) -> None:
        # [b"", number, batch]; newer versions put the topic before the number.
        if len(parts) < 3 or len(parts[-2]) != 8:
            self._bad("a replayed message without a sequence number")
        elif parts[-2] == _END:
            self._resume(complete=True)
        elif parts[-2] < _NEGATIVE and (number := int.from_bytes(parts[-2], "big")) >= self._next:
            self.replayed += 1
            self._deliver(number, parts[-1])

    def _resume(self, complete: bool = False) -> None:
        """The replay is over: go on with what came meanwhile.

        The first of it is what made the gap visible; what is still missing before it is lost. A gap between the others
        may be asked for again, unless nobody answered.
        """
        self._unanswered = "" if complete else f"nobody answers a request for past events at {self._replay_endpoint}"
        self._end_request()
        held, self._held = self._held, deque(maxlen=self._high_water)
        for position, message in enumerate(held):
            if self._live.socket.closed:  # by who received
                return
            if self._replay is not None:
                self._held.append(message)
            else:
                self._take(*message, ask=complete and position > 0)

    def _end_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._replay is not None:
            self._replay.close()
        self._replay = self._timer = None


class Publisher:
    """The engine's side: publishes batches on the running event loop, and replays the last `keep` of them on demand."""

    def __init__(
        self, endpoint: str, topic: str = "kv-events", replay_endpoint: str | None = None, keep: int = 10_000
    ) -> None:
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._number = 0
        self._live = _Socket("PUB", None, keep)
        self.endpoint = self._live.attach(endpoint, bind=True)
        self._replay: _Socket | None = None
        self.replay_endpoint = ""
        if replay_endpoint is not None:
            self._replay = _Socket("ROUTER", self._replay_from, keep + 1)
            try:
                self.replay_endpoint = self._replay.attach(replay_endpoint, bind=True)
            except BadInput:
                self._live.close()
                raise

    def publish(self, batch: Batch) -> None:
        """Send a batch to whoever listens."""
        payload = encode(batch)
        self._kept.append((self._number, payload))
        self._send(self._number, payload)
        self._number += 1

    def close(self) -> None:
        """Close both sockets."""
        self._live.close()
        if self._replay is not None:
            self._replay.close()

    def _send(self, number: int, payload: bytes) -> None:
        self._live.send([self._topic, number.to_bytes(8, "big"), payload])

    def _replay_from(self, parts: list[bytes]) -> None:
        if self._replay is None or len(parts) != 3 or len(parts[2]) != 8:
            return
        who, start = parts[0], int.from_bytes(parts[2], "big")
        first = self._kept[0][0] if self._kept else 0
        for number, payload in islice(self._kept, min(max(0, start - first), len(self._kept)), None):
            self._replay.send([who, b"", number.to_bytes(8, "big"), payload])
        self._replay.send([who, b"", _END, b""])


class Mirror:
    """Keeps a prefix index in step with the cache of one engine, through its events.

    The engine's hashes are its own; ours are computed anew from the tokens, behind the hash of the parent. So the
    mirror remembers, for at most `room` of the engine's blocks, which of ours they are. One of its blocks may be
    several of ours. Where it is not a whole number of ours, the events are of no use, and `reason` says so.

    Only what any request could reuse goes in: blocks on the GPU, of plain tokens, of full attention. Blocks behind a
    parent unknown here (from before the start, or lost) are counted in `unknown`, others left out in `ignored`.
    """

    def __init__(self, index: PrefixIndex, engine: int, room: int = 500_000) -> None:
        self.engine = engine  # its number in the index, which may move
        self.reason = ""
        self.unknown = self.ignored = 0
        self._index = index
        self._room = room
        # Per data-parallel rank, oldest first: each rank has a cache of its own, and its own hashes.
        self._ranks: dict[int | None, dict[BlockHash, tuple[int, ...]]] = {}
        self._copies: dict[int, int] = {}  # our hash -> in how many of their blocks
        self._groups: set[int | None] = {None}  # the layer groups of full attention

    def __len__(self) -> int:
        """How many of the engine's blocks are known."""
        return sum(map(len, self._ranks.values()))

    def apply(self, batch: Batch, now: float) -> None:
        """Do what the events of a batch say, at the time `now` of the index."""
        rank = batch.data_parallel_rank
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._stored(event, self._ranks.setdefault(rank, {}), now)
            elif isinstance(event, BlockRemoved):
                if _on_gpu(event.medium) and _group(event) in self._groups:
                    self._drop(self._ranks.get(rank, {}), event.block_hashes)
            elif self._ranks.keys() <= {rank}:
                self.forget()
            else:
                self._drop(blocks := self._ranks.get(rank, {}), list(blocks))

    def forget(self) -> None:
        """Know nothing of this engine: after a gap, a restart, or where it says that it cleared its cache."""
        self._ranks.clear()
        self._copies.clear()
        self._index.clear(self.engine)

    def _stored(self, event: BlockStored, blocks: dict[BlockHash, tuple[int, ...]], now: float) -> None:
        size, count = event.block_size, len(event.block_hashes)
        if not _reusable(event) or not count or len(event.token_ids) != size * count or len(self) + count > self._room:
            self.ignored += 1
            return
        if size % self._index.block:
            self.ignored += 1
            self.reason = self.reason or (
                f"its blocks have {size} tokens, no multiple of the gateway's {self._index.block}; "
                f"start it with --block-size {self._index.block} (SGLang: --page-size)"
            )
            return
        before = 0
        if event.parent_block_hash is not None:
            parent = blocks.get(event.parent_block_hash)
            if parent is None:
                self.unknown += 1
                return
            before = parent[-1]
        try:
            tokens = np.array(event.token_ids, np.uint32)
        except OverflowError:  # not the number of a token: what some engines put in the place of an image
            self.ignored += 1
            return
        self._groups.add(_group(event))
        hashes = self._index.hashes(tokens, before)
        self._hold(blocks, event.block_hashes, hashes.tolist(), size // self._index.block)
        self._index.insert(self.engine, hashes, now, after=before)

    def _hold(
        self, blocks: dict[BlockHash, tuple[int, ...]], theirs: Iterable[BlockHash], ours: list[int], ratio: int
    ) -> None:
        copies = self._copies
        for position, name in enumerate(theirs):
            held = tuple(ours[position * ratio : (position + 1) * ratio])
            if blocks.get(name) != held:
                self._drop(blocks, [name])
                blocks[name] = held
                for number in held:
                    copies[number] = copies.get(number, 0) + 1

    def _drop(self, blocks: dict[BlockHash, tuple[int, ...]], theirs: Iterable[BlockHash]) -> None:
        gone = []
        for name in theirs:
            for number in blocks.pop(name, ()):
                left = self._copies[number] - 1
                if left:
                    self._copies[number] = left
                else:
                    del self._copies[number]
                    gone.append(number)
        if gone:
            self._index.remove(self.engine, np.array(gone, np.uint64))


def _on_gpu(medium: str | None) -> bool:
    return medium is None or medium.upper() == "GPU"


def _group(event: BlockStored | BlockRemoved) -> int | None:
    return event.group_idx if isinstance(event.group_idx, int) else None


def _reusable(event: BlockStored) -> bool:
    """Whether these blocks serve any request with the same tokens, from the first token on."""
    adapted = event.lora_id is not None or (isinstance(event.lora_name, str) and event.lora_name)
    tables = (event.lora_name, event.metadata)
    salted = event.cache_salt or any(isinstance(table, dict) and table.get("cache_salt") for table in tables)
    mixed = isinstance(event.extra_keys, list) and any(event.extra_keys)
    kind = event.kv_cache_spec_kind if isinstance(event.kv_cache_spec_kind, str) else "full"
    windowed = event.kv_cache_spec_sliding_window is not None or not ("full" in kind or "mla" in kind)
    elsewhere = not _on_gpu(event.medium) or event.locality == "REMOTE"
    return not (adapted or salted or mixed or windowed or elsewhere)
