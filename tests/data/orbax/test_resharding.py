"""Any sharding that was saved comes back in any sharding that is wanted, and costs no more bytes than it must."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.engine.version_log import Damaged
from assay.data.interface import StoreError
from assay.data.orbax import pieces, reading
from assay.data.orbax.checkpoints import Checkpoints
from assay.data.orbax.reading import target
from assay.data.orbax.tree import Box, Leaf, Sharded, flatten, merged, unflatten
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.ledger import Ledger

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
dtypes = st.sampled_from(["float32", "int8", "float64", "bool", "complex64", "uint16"])


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...], most: int = 6) -> list[Box]:
    """A partition of an array into boxes, by cutting again and again."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, most - 1))):
        start, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axes = [axis for axis, n in enumerate(size) if n > 1]
        if not axes:
            boxes.append((start, size))
            continue
        axis = draw(st.sampled_from(axes))
        at = draw(st.integers(1, size[axis] - 1))
        low = tuple(at if a == axis else n for a, n in enumerate(size))
        high = tuple(n - at if a == axis else n for a, n in enumerate(size))
        moved = tuple(s + (at if a == axis else 0) for a, s in enumerate(start))
        boxes += [(start, low), (moved, high)]
    return boxes


def placed(box: Box | None) -> Callable[[pieces.Array], list[reading.Target]]:
    """Where a part of any array goes."""
    return lambda array: [target(array, box)]


def cut(array: np.ndarray, box: Box) -> np.ndarray:
    return array[tuple(slice(s, s + n) for s, n in zip(*box, strict=True))]


async def saved(store: MemStore, trees: list[dict[str, Any]], step: int = 0) -> None:
    """A save by as many ranks as there are trees, all at once."""

    async def rank(number: int, tree: dict[str, Any]) -> None:
        one = Checkpoints(number, len(trees), run="job")
        await one.open(store, clock=VirtualClock())
        await one.save(step, *flatten(tree))

    await asyncio.gather(*(rank(number, tree) for number, tree in enumerate(trees)))


@given(st.data())
def test_any_sharding_to_any_sharding(data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 4))
    arrays, sources = {}, {}
    for number in range(data.draw(st.integers(1, 3))):
        shape, dtype = data.draw(shapes), data.draw(dtypes)
        random = np.random.default_rng(number)
        arrays[f"a{number}"] = random.integers(0, 100, shape).astype(dtype)
        sources[f"a{number}"] = data.draw(grids(shape, most=world))
    trees: list[dict[str, Any]] = [{} for _ in range(world)]
    for name, array in arrays.items():
        for rank, box in enumerate(sources[name]):
            trees[rank][name] = Sharded(cut(array, box).copy(), array.shape, box[0])
    wanted = {name: data.draw(grids(array.shape)) for name, array in arrays.items()}
    verify = data.draw(st.booleans())
    short = data.draw(st.sampled_from([1, reading.SHORT]))

    async def main() -> None:
        store = MemStore(VirtualClock())
        await saved(store, trees)
        reader = Checkpoints()
        await reader.open(store, clock=VirtualClock())
        table = await reader.table()
        for name, array in arrays.items():
            for box in wanted[name]:
                _, found, _ = await reader.read(table, name.__eq__, placed(box), verify=verify)
                got = (
                    np.frombuffer(found[name][0].into, array.dtype) if found[name][0].into else np.empty(0, array.dtype)
                )
                np.testing.assert_array_equal(got.reshape(box[1]), cut(array, box))

    with patch.object(reading, "SHORT", short):
        run_virtual(main())


@given(st.integers(1, 5), st.integers(1, 60), st.integers(1, 40))
def test_what_all_ranks_hold_is_written_once_and_shared_among_them(world: int, rows: int, columns: int) -> None:
    array = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    held = pieces.SHARED
    pieces.SHARED = 512
    try:
        store = MemStore()
        run_virtual(saved(store, [{"w": array}] * world))
        written = [p for rank in range(world) for p in pieces.cut(flatten({"w": array})[0][0], rank, world)]
        shares = [sum(len(v) for _, v in pieces.cut(flatten({"w": array})[0][0], r, world)) for r in range(world)]
    finally:
        pieces.SHARED = held
    assert sum(len(view) for _, view in written) == array.nbytes
    if array.nbytes >= 512 and rows >= world:
        assert max(shares) - min(shares) <= columns * 8


@given(st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple), st.integers(0, 3))
def test_pieces_cover_an_array_once(shape: tuple[int, ...], world: int) -> None:
    shape = shape[:2] if math.prod(shape) > 10**6 else shape
    size = math.prod(shape)
    leaf = Leaf("w", "numpy", "uint8", shape, ((((0,) * len(shape), shape), memoryview(bytes(size))),), True)
    count = np.zeros(shape, np.int64)
    for rank in range(max(world, 1)):
        for (start, extent), view in pieces.cut(leaf, rank, max(world, 1)):
            assert len(view) == math.prod(extent)
            count[tuple(slice(s, s + n) for s, n in zip(start, extent, strict=True))] += 1
    assert (count == 1).all()


@cache
def big() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "model": {"w": random.standard_normal((4096, 512)).astype(np.float32), "b": np.ones(512, np.float32)},
        "opt": {"m": random.standard_normal((4096, 512)).astype(np.float32)},
    }


@cache
def stored() -> MemStore:
    """A store that holds it, for those who only read."""
    store = MemStore(VirtualClock())
    run_virtual(saved(store, [big()]))
    return store


def read_bytes(wanted: str, box: Box | None, verify: bool) -> tuple[int, int]:
    """Bytes that came from the store, and bytes that were wanted."""
    store = stored()

    async def main() -> tuple[int, int]:
        ledger = Ledger()
        reader = Checkpoints()
        await reader.open(Metered(store, ledger), clock=VirtualClock())
        table = await reader.table()
        before = ledger.nbytes("get")
        _, found, _ = await reader.read(
            table, lambda path: path.startswith(wanted), lambda a: [target(a, box)], verify=verify
        )
        return ledger.nbytes("get") - before, sum(len(one.into) for several in found.values() for one in several)

    return run_virtual(main())


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("wanted", "box"),
    [("model", None), ("model/w", ((0, 0), (2048, 512))), ("opt/m", ((1000, 0), (1111, 512)))],
)
def test_a_partial_restore_reads_little_more_than_what_is_wanted(wanted: str, box: Box | None, verify: bool) -> None:
    read, needed = read_bytes(wanted, box, verify)
    assert needed <= read <= 1.1 * needed


def test_columns_are_read_in_whole_pieces_if_they_are_checked_and_alone_if_not() -> None:
    read, needed = read_bytes("model/w", ((0, 0), (4096, 256)), verify=True)
    assert read == 2 * needed
    read, needed = read_bytes("model/w", ((3, 100), (4000, 256)), verify=False)
    assert read == needed


def test_a_changed_byte_is_noticed_in_whatever_sharding_it_is_wanted() -> None:
    whole_one = stored()

    async def main() -> None:
        store = whole_one.copy(VirtualClock())
        key = next(key for key in store.objects if key.startswith("data/"))
        whole = bytearray(store.objects[key])
        whole[len(whole) // 3] ^= 64
        store.objects[key] = bytes(whole)
        reader = Checkpoints()
        await reader.open(store, clock=VirtualClock())
        table = await reader.table()
        for box in (None, ((0, 7), (4096, 30))):
            with pytest.raises(Damaged, match="restore it from a copy"):
                await reader.read(table, lambda path: path != "model/b", placed(box))

    run_virtual(main())


def test_an_array_of_which_nobody_saved_a_part_is_no_checkpoint() -> None:
    async def main() -> None:
        store = MemStore(VirtualClock())
        with pytest.raises(BadInput, match="'w' is not whole"):
            await saved(store, [{"w": Sharded(np.zeros((2, 4)), (4, 4), (0, 0))}])
        reader = Checkpoints()
        await reader.open(store, clock=VirtualClock())
        assert await reader.steps() == []

    run_virtual(main())


def test_ranks_that_differ_on_a_shape_are_told() -> None:
    trees = [{"w": Sharded(np.zeros(2), (4,), (0,))}, {"w": Sharded(np.zeros(2), (5,), (2,))}]
    with pytest.raises(BadInput, match="differ on the shape of 'w'"):
        run_virtual(saved(MemStore(VirtualClock()), trees))


def test_a_rank_that_never_writes_its_part_is_named() -> None:
    async def main() -> None:
        one = Checkpoints(0, 2, run="job")
        await one.open(MemStore(VirtualClock()), clock=VirtualClock())
        with pytest.raises(StoreError, match=r"part/.*-1 did not come"):
            await one.save(0, *flatten({"w": np.zeros(3)}))
        assert await one.steps() == []

    run_virtual(main())


trees = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=5),
        st.builds(lambda s: np.arange(math.prod(s), dtype=np.int16).reshape(s), shapes),
    ),
    lambda child: st.one_of(
        st.lists(child, max_size=3), st.lists(child, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(-5, 5)), child, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    async def main() -> Any:
        one = Checkpoints()
        await one.open(MemStore(VirtualClock()), clock=VirtualClock())
        await one.save(7, *flatten({"tree": tree}))
        skeleton, found, _ = await one.read(await one.table(), lambda path: True, lambda a: None)
        arrays = {
            path: np.frombuffer(several[0].into, several[0].array.dtype).reshape(several[0].array.shape)
            if several[0].into
            else np.empty(several[0].array.shape, several[0].array.dtype)
            for path, several in found.items()
        }
        return unflatten(skeleton, arrays)

    assert same(run_virtual(main()), {"tree": tree})


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ({"f": print}, "'f' is a builtin_function_or_method"),
        ({"o": np.array([object()])}, "'o' is a ndarray"),
        ({"s": {1.5: 2}}, "'s' has a key of type float"),
    ],
)
def test_what_cannot_be_saved_is_one_line(tree: Any, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        flatten(tree)


def test_skeletons_of_ranks_are_united() -> None:
    one, other = flatten({"a": {"x": 1}, "l": [1]})[1], flatten({"a": {"y": 2}, "b": (3,)})[1]
    assert unflatten(merged(one, other), {}) == {"a": {"x": 1, "y": 2}, "l": [1], "b": (3,)}
