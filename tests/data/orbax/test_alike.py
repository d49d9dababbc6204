"""What ranks hold under one key: it is the same on all and comes back to all, or the save is refused on all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.data import Checkpointer
from assay.data.interface import StoreError
from assay.data.orbax import Sharded, checkpoints, pieces, writing
from assay.data.orbax.trees import Trees
from assay.data.store.memory import MemStore
from assay.record.errors import AssayError, BadInput
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.ranks import Rank, Ranks

LARGE = np.arange(1 << 18, dtype=np.float64)  # ranks share the writing of so much


def with_one_changed(array: np.ndarray, at: int, bits: int) -> np.ndarray:
    """The same array but for one element, which gets these bits."""
    changed = array.copy()
    changed.view(np.uint64)[at] = bits
    return changed


NAN, OTHER_NAN = 0x7FF8000000000000, 0x7FF8000000000001
DIFFER: dict[str, Any] = {
    "large": (LARGE, with_one_changed(LARGE, -1, 1)),  # in the last rank's rows
    "first row": (LARGE, with_one_changed(LARGE, 0, 1)),
    "small": (np.zeros(3), np.ones(3)),
    "minus": (np.array([0.0]), np.array([-0.0])),
    "nan": (with_one_changed(np.ones(2), 0, NAN), with_one_changed(np.ones(2), 0, OTHER_NAN)),
    "type": (np.zeros(2, np.int64), np.zeros(2, np.float64)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "scalar": (np.float32(1), np.float32(2)),
    "number": (0, 1),
    "yes": (1, True),
    "real": (1, 1.0),
    "sign": (0.0, -0.0),
    "text": ("1", b"1"),
    "long": (1 << 70, 1),
    "generator": tuple(np.random.default_rng(seed).bit_generator.state for seed in (0, 1)),
    "legacy": tuple(np.random.RandomState(seed).get_state(legacy=False) for seed in (0, 1)),
    "part": (np.zeros(4), Sharded(np.ones(2), (4,), (2,))),
    "branch": ({"w": np.zeros(2)}, np.zeros(2)),
}
SAME: dict[str, Any] = {
    "w": LARGE, "nan": with_one_changed(np.ones(2), 0, OTHER_NAN), "loss": float("nan"), "zero": -0.0, "none": None,
    "list": [1, (2.0, "x", {"deep": np.zeros((2, 2), ">i4")})], "empty": np.zeros((0, 3)), "long": -(1 << 80),
}  # fmt: skip


def bits(value: Any) -> Any:
    """What a value is, to the last bit; a copy in Fortran's order is the same."""
    if isinstance(value, dict):
        return {key: bits(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [bits(child) for child in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), str(value.dtype), value.shape, value.tobytes()
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def save_what_differs(rank: Rank, store: str) -> list[tuple[str, str]]:
    """Try to save each of them, now and in the background; what was said. At last the same with keys of its own."""
    ck = Checkpointer(store, rank=rank.index, world=rank.size, run="first")
    told = []
    for step, several in enumerate(DIFFER.values()):
        tree = {"same": np.ones(5), "of": {"key": several[min(rank.index, 1)]}}
        try:
            ck.save_async(step, tree).wait() if step % 2 else ck.save(step, tree)
        except AssayError as error:
            told.append((type(error).__name__, str(error)))
    own = {name: {f"rank{rank.index}": several[min(rank.index, 1)]} for name, several in DIFFER.items()}
    ck.save(100, SAME | {"own": own | {"part": None}})
    return told


def test_processes_that_differ_on_a_key_are_all_told_and_no_step_is_there(tmp_path: Any) -> None:
    with Ranks(3, save_what_differs, str(tmp_path), imports=("assay.data", __name__)) as ranks:
        told = ranks.wait(200)
    for name, *said in zip(DIFFER, *told, strict=True):
        for rank, (kind, message) in enumerate(said):
            assert kind == ("StoreError" if rank else "BadInput"), (name, message)
            assert re.search(r"ranks 0 and 1 differ on (the (type|shape) of )?'of/key", message), (name, message)
            assert "\n" not in message
    ck = Checkpointer(str(tmp_path))
    assert ck.steps() == [100]
    found = ck.restore()
    own = found.pop("own")
    assert bits(found) == bits(SAME)
    for name, several in DIFFER.items():
        if name != "part":
            mine = {f"rank{rank}": several[min(rank, 1)] for rank in range(3)}
            assert bits(own[name]) == bits(mine), name


def outcomes(store: MemStore, trees: list[Any], step: int) -> list[BaseException | None]:
    """What each rank's save ended with."""

    async def rank(number: int, tree: Any) -> None:
        one = Trees(number, len(trees), run="job")
        await one.open(store, clock=VirtualClock())
        await one.save_tree(step, tree)

    async def main() -> list[BaseException | None]:
        return await asyncio.gather(*(rank(n, tree) for n, tree in enumerate(trees)), return_exceptions=True)

    return run_virtual(main())


def restored(store: MemStore) -> tuple[list[int], Any]:
    async def main() -> tuple[list[int], Any]:
        one = Trees()
        await one.open(store, clock=VirtualClock())
        steps = await one.steps()
        return steps, await one.restore_tree() if steps else None

    return run_virtual(main())


ROWS = np.arange(8.0)
SCALARS = ("number", "yes", "real", "sign", "text", "long")
VALUES: list[Any] = [value for name in SCALARS for value in DIFFER[name]]
VALUES += [None, [], {}, (1,), [1], ROWS, with_one_changed(ROWS, 7, NAN), with_one_changed(ROWS, 7, OTHER_NAN)]
VALUES += [-0.0 * ROWS, 0.0 * ROWS, ROWS.reshape(2, 4), ROWS.astype(">f8"), np.float64(1), np.array(1.0)]
VALUES += [np.asfortranarray(ROWS.reshape(2, 4)), np.zeros((0, 2)), np.zeros((2, 0)), np.ones(8, np.uint8)]
values = st.sampled_from(range(len(VALUES)))


@st.composite
def states(draw: st.DrawFn) -> list[dict[str, int]]:
    """What each rank has under a few keys: mostly the same, now and then something else or nothing."""
    world = draw(st.integers(1, 3))
    ranks: list[dict[str, int]] = [{} for _ in range(world)]
    for key in draw(st.sets(st.sampled_from(["a", "b", "c/d", "~"]))):
        usual = draw(values)
        for rank in ranks:
            how = draw(st.sampled_from(["same", "same", "same", "other", "absent"]))
            if how != "absent":
                rank[key] = usual if how == "same" else draw(values)
    return ranks


@given(states())
@example([{"a": VALUES.index("1")}, {"a": VALUES.index(b"1")}])
def test_a_state_comes_back_to_every_rank_or_is_refused_on_every_rank(drawn: list[dict[str, int]]) -> None:
    trees = [{key: VALUES[number] for key, number in one.items()} for one in drawn]
    held = {
        key: {rank: bits(tree[key]) for rank, tree in enumerate(trees) if tree.get(key) is not None}
        for key in set().union(*trees)
    }
    store = MemStore(VirtualClock())
    with patch.object(pieces, "SHARED", 32):
        ended = outcomes(store, trees, 1)
        if any(one != several[min(several)] for several in held.values() for one in several.values()):
            assert isinstance(ended[0], BadInput) and all(isinstance(one, StoreError) for one in ended[1:])
            for error in ended:
                found = re.search(r"ranks (\d) and (\d) differ on (?:the \w+ of )?'([^/']*)", str(error))
                assert found is not None, error
                one, other, key = int(found[1]), int(found[2]), found[3].replace("~1", "/").replace("~0", "~")
                assert held[key][one] != held[key][other]
            assert restored(store) == ([], None)
        else:
            assert ended == [None] * len(trees)
            _, tree = restored(store)
            assert bits(tree) == {key: next(iter(one.values()), bits(None)) for key, one in held.items()}
        own = [{key: {f"rank{rank}": child} for key, child in tree.items()} for rank, tree in enumerate(trees)]
        assert outcomes(store, own, 2) == [None] * len(trees), "the cure"
        _, tree = restored(store)
        for number, mine in enumerate(trees):
            assert {key: bits(tree[key][f"rank{number}"]) for key in mine} == bits(mine)


def test_of_a_few_ranks_those_are_named_that_differ_and_a_rank_that_has_not_the_array_does_not() -> None:
    store = MemStore()
    trees: list[Any] = [{"a": 1}, {"w": ROWS, "n": 5}, {"n": 5, "a": None}, {"w": ROWS + 1}]
    ended = outcomes(store, trees, 1)
    assert "ranks 1 and 3 differ on 'w'" in str(ended[0]) and str(ended[0]) in str(ended[2])
    trees[3] = {"w": ROWS, "n": 6}
    assert all("ranks 1 and 3 differ on 'n': " in str(error) for error in outcomes(store, trees, 1))
    trees[3] = {"w": ROWS}
    assert outcomes(store, trees, 1) == [None] * 4
    assert bits(restored(store)[1]) == bits({"a": 1, "w": ROWS, "n": 5})


def test_a_save_that_was_refused_may_be_made_again_when_it_is_mended() -> None:
    store = MemStore()
    for _ in range(2):
        assert all(outcomes(store, [{"n": 1}, {"n": 2}], 7))
    assert outcomes(store, [{"n": 2}, {"n": 2}], 7) == [None, None]
    assert restored(store) == ([7], {"n": 2})


def test_only_what_several_ranks_hold_alike_is_looked_at_and_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[str]] = []
    usual: Callable[..., list[bytes]] = writing.likeness

    def watched(leaves: Any) -> list[bytes]:
        found = usual(leaves)
        looked.append([leaf.path for leaf, one in zip(leaves, found, strict=True) if one])
        return found

    monkeypatch.setattr(checkpoints, "likeness", watched)
    assert outcomes(MemStore(), [{"w": ROWS}], 1) == [None] and not looked
    trees = [{"w": ROWS, "part": Sharded(ROWS[4 * rank :][:4], (8,), (4 * rank,))} for rank in (0, 1)]
    assert outcomes(MemStore(), trees, 1) == [None, None]
    assert looked == [["w"], ["w"]]
