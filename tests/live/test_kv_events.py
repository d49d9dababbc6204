"""KV cache events: read in every shape in use, received in order or with the gap told, mirrored in our own hashes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live.kv_events import (
    AllBlocksCleared,
    Batch,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventError,
    Mirror,
    Publisher,
    Subscriber,
    decode,
    encode,
)
from assay.live.prefix_index import PrefixIndex
from assay.record.errors import BadInput

pack = msgspec.msgpack.encode


def stored(hashes: list[BlockHash], tokens: list[int], parent: BlockHash | None = None, size: int = 4) -> BlockStored:
    return BlockStored(block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=size, medium="GPU")


# The shapes on the wire.

NAMED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "something_new": 1,
}


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param([1.5, [["BlockStored", [9], None, [1, 2], 2, None], ["BlockRemoved", [9]]]], id="first-versions"),
        pytest.param(
            [1, [["BlockStored", [9], None, [1, 2], 2, None, "GPU"], ["BlockRemoved", [9], "GPU"]], 3], id="medium"
        ),
        pytest.param(
            [
                1.5,
                [["BlockStored", [b"a" * 32], b"p", [1, 2], 2, None, "GPU", None, [None], 0, "full", 8, 9, 10]],
                0,
                "more",
            ],
            id="digests-and-fields-to-come",
        ),
        pytest.param([1.5, [["BlockStored", [-9], 5, [1, 2], 2, None, "GPU", {"session_id": "s"}]]], id="sglang-table"),
        pytest.param([1.5, [NAMED, {"type": "BlockRemoved", "block_hashes": [1]}], 0], id="named-events"),
        pytest.param({"ts": 1.5, "events": [NAMED], "data_parallel_rank": 0}, id="all-named"),
    ],
)
def test_every_shape_in_use_is_read(payload: object) -> None:
    batch = decode(pack(payload))
    first = batch.events[0]
    assert isinstance(first, BlockStored)
    assert (first.token_ids, first.block_size) == ([1, 2], 2)
    assert all(isinstance(event, BlockRemoved) for event in batch.events[1:])


def test_a_named_event_of_vllm_keeps_its_fields() -> None:
    batch = decode(pack([1.5, [NAMED], 7]))
    assert batch.data_parallel_rank == 7
    assert batch.events == [
        BlockStored([2**64 - 1], None, [1, 2], 2, None, "GPU", None, [None], 0, "full_attention"),
    ]


def test_an_event_of_an_unknown_kind_is_left_out_and_the_rest_kept() -> None:
    batch = decode(pack([0.0, [["BlockTouched", [1]], {"type": "BlockPinned"}, ["AllBlocksCleared"]]]))
    assert [type(event).__mro__[1] for event in batch.events] == [AllBlocksCleared]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack(3),
        pack([1.0]),
        pack(["now", []]),
        pack([1.0, [[]]]),
        pack([1.0, [{}]]),
        pack([1.0, [3]]),
        pack([1.0, [["BlockStored", ["text"], None, [1], 1]]]),
        pack([1.0, [["BlockRemoved"]]]),
        pack([1.0, [{"type": "BlockStored", "block_hashes": [1]}]]),
        pack([1.0, [["AllBlocksCleared"]]])[:-1],
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_one_clear_error(payload: bytes) -> None:
    with pytest.raises(EventError, match="not a batch of KV cache events"):
        decode(payload)


names = st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(min_size=1, max_size=32))
stores = st.builds(
    BlockStored,
    block_hashes=st.lists(names, max_size=4),
    parent_block_hash=st.none() | names,
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=16),
    block_size=st.integers(1, 64),
    lora_id=st.none() | st.integers(0, 9),
    medium=st.sampled_from([None, "GPU", "CPU"]),
    lora_name=st.none() | st.text(max_size=4),
    group_idx=st.none() | st.integers(0, 3),
)
events = st.one_of(stores, st.builds(BlockRemoved, st.lists(names, max_size=4)), st.just(AllBlocksCleared()))
batches = st.builds(Batch, st.floats(0, 2e9), st.lists(events, max_size=6), st.none() | st.integers(0, 7))


@given(batches)
def test_what_is_encoded_is_decoded(batch: Batch) -> None:
    assert decode(encode(batch)) == batch


@given(st.binary(max_size=300))
def test_random_bytes_decode_or_are_one_error(noise: bytes) -> None:
    for payload in (noise, b"\x92\xcb" + noise, b"\x92\x00\x91" + noise):
        with contextlib.suppress(EventError):
            assert isinstance(decode(payload), Batch)


@settings(deadline=None)  # the first example compiles
@given(batches, st.data())
def test_a_damaged_batch_decodes_or_is_one_error_and_never_harms_a_mirror(batch: Batch, data: st.DataObject) -> None:
    payload = bytearray(encode(batch))
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        damaged = decode(bytes(payload))
    except EventError:
        return
    index = PrefixIndex(block=4, key=1)
    mirror = Mirror(index, index.add())
    mirror.apply(damaged, 0.0)
    assert len(mirror) <= sum(len(event.block_hashes) for event in damaged.events if isinstance(event, BlockStored))


# The mirror.


def fresh(block: int = 4, **options: int) -> tuple[PrefixIndex, Mirror]:
    index = PrefixIndex(block=block, key=42)
    return index, Mirror(index, index.add(), **options)


def matched(index: PrefixIndex, tokens: list[int]) -> int:
    out = np.empty(len(index), np.int64)
    index.match(index.hashes(np.array(tokens, np.uint32)), 1e9, out)
    return int(out[0])


def test_stored_blocks_match_prompts_and_removed_ones_do_not() -> None:
    index, mirror = fresh()
    tokens = list(range(12))
    mirror.apply(Batch(0.0, [stored([11, 12], tokens[:8]), stored([13], tokens[8:], parent=12)]), 1.0)
    assert matched(index, [*tokens, 99, 99, 99, 99]) == 12
    mirror.apply(Batch(0.0, [BlockRemoved([13], "GPU")]), 2.0)
    assert matched(index, tokens) == 8
    mirror.apply(Batch(0.0, [AllBlocksCleared()]), 3.0)
    assert (matched(index, tokens), len(mirror)) == (0, 0)


def test_a_block_of_the_engine_may_be_several_of_ours() -> None:
    index, mirror = fresh(block=4)
    tokens = list(range(32))
    mirror.apply(Batch(0.0, [stored([b"a"], tokens[:16], size=16), stored([b"b"], tokens[16:], b"a", size=16)]), 0.0)
    assert matched(index, tokens[:24]) == 24
    mirror.apply(Batch(0.0, [BlockRemoved([b"b"])]), 0.0)
    assert matched(index, tokens) == 16


@pytest.mark.parametrize("size", [1, 6])
def test_blocks_that_are_no_multiple_of_ours_are_refused_with_a_reason(size: int) -> None:
    index, mirror = fresh(block=4)
    for _ in range(2):
        mirror.apply(Batch(0.0, [stored([1], list(range(size)), size=size)]), 0.0)
    assert mirror.reason.startswith(f"its blocks have {size} tokens, no multiple of the gateway's 4; start it with")
    assert (mirror.ignored, index.blocks(0)) == (2, 0)


def test_blocks_behind_an_unknown_parent_are_counted_and_left_out() -> None:
    index, mirror = fresh()
    mirror.apply(Batch(0.0, [stored([2], [5, 6, 7, 8], parent=1), stored([3], [9, 9, 9, 9], parent=2)]), 0.0)
    assert (mirror.unknown, len(mirror), index.blocks(0)) == (2, 0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"lora_id": 3},
        {"lora_name": "adapter"},
        {"lora_name": {"cache_salt": "tenant"}},
        {"cache_salt": "tenant"},
        {"metadata": {"cache_salt": "tenant"}},
        {"extra_keys": [["an image"]]},
        {"medium": "CPU_TIER1"},
        {"locality": "REMOTE"},
        {"kv_cache_spec_kind": "sliding_window"},
        {"kv_cache_spec_kind": "mamba"},
        {"kv_cache_spec_sliding_window": 128},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [1, 2, 3, -1]},
        {"token_ids": [1, 2, 3, 2**32]},
        {"block_hashes": []},
    ],
)
def test_what_other_requests_cannot_reuse_is_left_out(change: dict[str, object]) -> None:
    index, mirror = fresh()
    event = msgspec.structs.replace(stored([1], [1, 2, 3, 4]), **change)
    mirror.apply(Batch(0.0, [event]), 0.0)
    assert (mirror.ignored, len(mirror), index.blocks(0)) == (1, 0, 0)


def test_a_session_in_the_place_of_an_adapter_is_no_adapter() -> None:
    index, mirror = fresh()
    mirror.apply(
        decode(pack([0.0, [["BlockStored", [1], None, [1, 2, 3, 4], 4, None, "GPU", {"session_id": "s"}]]])), 0.0
    )
    assert index.blocks(0) == 1


def test_what_leaves_a_slower_tier_or_another_kind_of_layer_is_still_on_the_gpu() -> None:
    index, mirror = fresh()
    event = msgspec.structs.replace(stored([1], [1, 2, 3, 4]), group_idx=1, kv_cache_spec_kind="full_attention")
    mirror.apply(Batch(0.0, [event, BlockRemoved([1], "CPU"), BlockRemoved([1], "GPU", group_idx=0)]), 0.0)
    assert index.blocks(0) == 1
    mirror.apply(Batch(0.0, [BlockRemoved([1], "GPU", group_idx=1)]), 0.0)
    assert index.blocks(0) == 0


def test_a_block_stays_while_one_rank_has_it() -> None:
    index, mirror = fresh()
    for rank, name in ((0, 10), (1, 20)):
        mirror.apply(Batch(0.0, [stored([name], [1, 2, 3, 4])], rank), 0.0)
    mirror.apply(Batch(0.0, [BlockRemoved([10])], 0), 0.0)
    assert matched(index, [1, 2, 3, 4]) == 4
    mirror.apply(Batch(0.0, [AllBlocksCleared()], 1), 0.0)
    assert matched(index, [1, 2, 3, 4]) == 0


def test_a_block_told_twice_is_held_once() -> None:
    index, mirror = fresh()
    mirror.apply(Batch(0.0, [stored([1], [1, 2, 3, 4]), stored([1], [1, 2, 3, 4]), BlockRemoved([1])]), 0.0)
    assert (len(mirror), index.blocks(0)) == (0, 0)


def test_a_full_mirror_takes_no_more_until_something_leaves() -> None:
    _, mirror = fresh(room=2)
    mirror.apply(Batch(0.0, [stored([i], [i, i, i, i]) for i in range(5)]), 0.0)
    assert (len(mirror), mirror.ignored) == (2, 3)
    mirror.apply(Batch(0.0, [BlockRemoved([0]), stored([9], [9, 9, 9, 9])]), 0.0)
    assert (len(mirror), mirror.ignored) == (2, 3)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 2]))
def test_the_index_knows_exactly_the_prefixes_that_an_engine_holds(dice: random.Random, ratio: int) -> None:
    """An engine of two tokens' vocabulary stores prefixes and frees leaves; every prompt must match what it holds."""
    index, mirror = fresh(block=2)
    size = 2 * ratio
    held: dict[tuple[int, ...], int] = {}  # prefix -> the engine's hash
    for step in range(40):
        if held and dice.random() < 0.3:
            leaves = [path for path in held if not any(other[: len(path)] == path != other for other in held)]
            mirror.apply(Batch(0.0, [BlockRemoved([held.pop(dice.choice(leaves))])]), step)
            continue
        prompt = tuple(dice.randrange(2) for _ in range(size * dice.randrange(1, 4)))
        paths = [prompt[:end] for end in range(size, len(prompt) + 1, size)]
        new = [path for path in paths if path not in held]
        if new:
            known = len(new[0]) - size
            held |= {path: 1000 * step + len(path) for path in new}
            parent = held[prompt[:known]] if known else None
            mirror.apply(Batch(0.0, [stored([held[p] for p in new], list(prompt[known:]), parent, size)]), step)
        probe = tuple(dice.randrange(2) for _ in range(size * 3))
        whole = next((end for end in range(len(probe), 0, -size) if probe[:end] in held), 0)
        assert matched(index, list(probe[:whole])) == whole
        # Where the engine's block is several of ours, a part of it is not promised.
        assert matched(index, list(probe)) - whole < size
    assert len(mirror) == len(held)
    assert mirror.unknown == mirror.ignored == 0


# Over real sockets.


class Leaky(Publisher):
    """Loses some messages on the way."""

    lost: frozenset[int] = frozenset()

    def _send(self, number: int, payload: bytes) -> None:
        if number not in self.lost:
            super()._send(number, payload)


def run(test: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    pytest.importorskip("zmq")
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(test(), 120.0))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


class Log:
    """What came, by the time stamp that the tests number batches with."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.gaps: list[int] = []

    def __call__(self, batch: Batch, gap: bool) -> None:
        self.numbers.append(int(batch.ts))
        if gap:
            self.gaps.append(int(batch.ts))


def batch(number: int) -> Batch:
    return Batch(float(number), [])


async def joined(publisher: Publisher, log: Log, number: int = 0) -> int:
    """Publish, from this number on, until a batch has come through; the number of the next."""
    while not log.numbers:
        publisher.publish(batch(number))
        number += 1
        await asyncio.sleep(0.01)
    await until(lambda: log.numbers[-1] == number - 1)
    return number


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_events_reach_the_index_over_a_gap_and_a_late_start(loop: str) -> None:
    async def test() -> None:
        publisher = Leaky("tcp://127.0.0.1:0", "kv-events", "tcp://127.0.0.1:0")
        publisher.lost = frozenset({2, 3})
        index, mirror = fresh()
        gaps = []

        def receive(batch: Batch, gap: bool) -> None:
            gaps.append(gap)
            mirror.apply(batch, batch.ts)

        tokens = list(range(20))
        blocks = [stored([i], tokens[4 * i : 4 * i + 4], i - 1 if i else None) for i in range(5)]
        publisher.publish(Batch(0.0, [blocks[0]]))
        subscriber = Subscriber(publisher.endpoint, receive, "kv-events", publisher.replay_endpoint)
        for event in blocks[1:]:
            publisher.publish(Batch(1.0, [event]))
        number = 2
        while len(gaps) < 5:  # a message after the lost ones makes the gap visible
            publisher.publish(batch(number))
            number += 1
            await asyncio.sleep(0.01)
        assert matched(index, tokens) == 20
        assert not any(gaps) and mirror.unknown == 0
        assert subscriber.replayed >= 4 and subscriber.errors == 0
        subscriber.close()
        publisher.close()

    run(test, loop)


def test_a_gap_without_replay_is_told_with_the_next_batch() -> None:
    async def test() -> None:
        publisher, log = Leaky("tcp://127.0.0.1:0"), Log()
        subscriber = Subscriber(publisher.endpoint, log)
        number = await joined(publisher, log)
        assert not log.gaps, "before the first batch nothing was known, so nothing was lost"
        publisher.lost = frozenset({number + 1, number + 2})
        for extra in range(5):
            publisher.publish(batch(number + extra))
        await until(lambda: log.numbers[-1] == number + 4)
        assert log.numbers[-3:] == [number, number + 3, number + 4]
        assert log.gaps == [number + 3]
        assert (subscriber.gaps, subscriber.replayed) == (1, 0)
        subscriber.close()
        publisher.close()

    run(test)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_batch_comes_once_and_in_order_however_many_are_lost(loop: str) -> None:
    async def test() -> None:
        dice = random.Random(5)
        publisher, log = Leaky("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0"), Log()
        subscriber = Subscriber(publisher.endpoint, log, replay_endpoint=publisher.replay_endpoint)
        number = await joined(publisher, log)
        last = number + 3000
        publisher.lost = frozenset(n for n in range(number, last) if dice.random() < 0.05)
        for n in range(number, last + 1):
            publisher.publish(batch(n))
            if dice.random() < 0.02:
                await asyncio.sleep(0.001)
        await until(lambda: log.numbers[-1] == last)
        assert log.numbers == list(range(last + 1))
        assert not log.gaps and subscriber.gaps == 0
        subscriber.close()
        publisher.close()

    run(test, loop)


def test_what_the_engine_no_longer_keeps_is_a_gap() -> None:
    async def test() -> None:
        publisher, log = Leaky("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", keep=4), Log()
        subscriber = Subscriber(publisher.endpoint, log, replay_endpoint=publisher.replay_endpoint)
        number = await joined(publisher, log)
        publisher.lost = frozenset(range(number, number + 9))
        for n in range(number, number + 10):
            publisher.publish(batch(n))
        await until(lambda: log.numbers[-1] == number + 9)
        assert log.numbers[-4:] == [number + 6, number + 7, number + 8, number + 9]
        assert log.gaps == [number + 6]
        subscriber.close()
        publisher.close()

    run(test)


def test_a_replay_that_never_comes_holds_up_nothing_for_long() -> None:
    async def test() -> None:
        publisher, log = Leaky("tcp://127.0.0.1:0"), Log()
        nobody = Publisher("tcp://127.0.0.1:0")  # listens, and answers no request
        subscriber = Subscriber(publisher.endpoint, log, replay_endpoint=nobody.endpoint, patience=0.05)
        number = await joined(publisher, log)
        publisher.lost = frozenset({number})
        for n in range(number, number + 3):
            publisher.publish(batch(n))
        await until(lambda: log.numbers[-1] == number + 2)
        assert log.gaps == [number + 1]
        subscriber.close()
        nobody.close()
        publisher.close()

    run(test)


def test_an_engine_that_starts_anew_is_found_again_and_told_as_a_gap() -> None:
    async def test() -> None:
        first, log = Publisher("tcp://127.0.0.1:0"), Log()
        subscriber = Subscriber(first.endpoint, log)
        await joined(first, log)
        endpoint, came = first.endpoint, len(log.numbers)
        first.close()
        second = None
        while second is None:  # the port is free a moment after the close
            try:
                second = Publisher(endpoint)
            except BadInput:
                await asyncio.sleep(0.01)
        number = 0
        while len(log.numbers) == came and number <= log.numbers[-1]:
            second.publish(batch(0))
            await asyncio.sleep(0.01)
        assert log.gaps == [0] and subscriber.gaps == 1
        subscriber.close()
        second.close()

    run(test)


def test_garbage_is_told_once_and_good_batches_go_on() -> None:
    async def test() -> None:
        publisher, log = Publisher("tcp://127.0.0.1:0"), Log()
        subscriber = Subscriber(publisher.endpoint, log)
        number = await joined(publisher, log)
        live = publisher._live
        live.send([b"kv-events", number.to_bytes(8, "big"), b"garbage"])
        live.send([b"kv-events", (number + 1).to_bytes(8, "big"), b"more of it"])
        live.send([b"only one part"])
        live.send([b"kv-events", b"short", encode(batch(0))])
        live.send([b"kv-events", b"\xff" * 8, encode(batch(0))])
        live.send([b"kv-events", (number + 2).to_bytes(8, "big"), encode(batch(77))])
        await until(lambda: log.numbers[-1] == 77)
        assert log.numbers[-2:] == [0, 77] and log.gaps == [0]
        assert subscriber.errors == 5
        assert "three: topic" in subscriber.problem
        subscriber.close()
        publisher.close()

    run(test)


def test_only_the_topic_asked_for_comes() -> None:
    async def test() -> None:
        publisher, log, every = Publisher("tcp://127.0.0.1:0", topic="other"), Log(), Log()
        ours = Subscriber(publisher.endpoint, log, topic="kv-events")
        all_of_them = Subscriber(publisher.endpoint, every)
        await joined(publisher, every)
        assert not log.numbers
        for socket in (ours, all_of_them, publisher):
            socket.close()

    run(test)


def test_a_receiver_that_fails_is_heard_of_and_the_rest_still_comes() -> None:
    async def test() -> None:
        publisher, log = Publisher("tcp://127.0.0.1:0"), Log()
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def receive(batch: Batch, gap: bool) -> None:
            log(batch, gap)
            if batch.ts == 1e6:
                raise RuntimeError("a bug")

        subscriber = Subscriber(publisher.endpoint, receive)
        await joined(publisher, log)
        for n in (1_000_000, 2_000_000):
            publisher.publish(batch(n))
        await until(lambda: log.numbers[-1] == 2_000_000)
        assert [str(error) for error in failures] == ["a bug"]
        subscriber.close()
        publisher.close()

    run(test)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_nothing_comes_after_close_and_closing_twice_is_no_error(loop: str) -> None:
    async def test() -> None:
        publisher, log = Publisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0"), Log()
        subscriber = Subscriber(publisher.endpoint, log, replay_endpoint=publisher.replay_endpoint)
        witness = Log()
        other = Subscriber(publisher.endpoint, witness)
        number = await joined(publisher, log)
        number = await joined(publisher, witness, number)
        subscriber.close()
        came = len(log.numbers)
        publisher.publish(batch(number + 9000))
        await until(lambda: witness.numbers[-1] == number + 9000)
        assert len(log.numbers) == came
        for socket in (subscriber, other, publisher, publisher):
            socket.close()

    run(test, loop)


@pytest.mark.parametrize("endpoint", ["", "here", "tcp://*:5557", "tcp://127.0.0.1", "http://x:1"])
def test_an_endpoint_that_is_none_is_one_line(endpoint: str) -> None:
    async def test() -> None:
        with pytest.raises(BadInput, match=r"cannot connect to '.*; an endpoint of KV events looks like tcp://"):
            Subscriber(endpoint, Log())
        taken = Publisher("tcp://127.0.0.1:0")
        with pytest.raises(BadInput, match="cannot bind"):
            Publisher("tcp://127.0.0.1:0", replay_endpoint=taken.endpoint)
        taken.close()

    run(test)
