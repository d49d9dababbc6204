"""A script that ends without a word, a job that is started again, a process that forks: no save is lost or mixed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data import Checkpointer
from assay.data.interface import Fenced, StoreError
from assay.data.orbax import Retention, Sharded, checkpoints
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput


def script(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A Python of its own that runs to its end."""
    command = [sys.executable, "-c", f"import numpy as np, sys\nfrom assay.data import Checkpointer\n{code}"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def test_the_last_asynchronous_save_of_a_script_is_durable_when_it_has_ended(tmp_path: Path) -> None:
    ended = script("Checkpointer(sys.argv[1]).save_async(7, {'w': np.arange(1 << 20)})", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert Checkpointer(tmp_path).restore(7)["w"][-1] == (1 << 20) - 1


def test_what_is_saved_when_the_main_thread_has_ended_is_durable(tmp_path: Path) -> None:
    code = """
import atexit, threading
def last(step):
    Checkpointer(sys.argv[1]).save(step, {'w': np.full(9, step)})
    Checkpointer(sys.argv[1]).save_async(step + 1, {'w': np.full(9, step + 1)})
def late():
    threading.main_thread().join()
    last(10)
atexit.register(last, 20)  # before anything is stored, so it is called last
Checkpointer(sys.argv[1]).save(1, {'w': np.full(9, 1)})
atexit.register(last, 30)
threading.Thread(target=late).start()
"""
    ended = script(code, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    ck = Checkpointer(tmp_path)
    assert {step: int(ck.restore(step)["w"][-1]) for step in ck.steps()} == {n: n for n in (1, 10, 11, 20, 21, 30, 31)}


def test_a_script_whose_last_save_failed_says_so_and_does_not_end_well(tmp_path: Path) -> None:
    code = """
from assay.data.interface import StoreError
from assay.data.store.memory import MemStore
class Full(MemStore):
    async def put(self, key, data, *, if_absent=False):
        raise StoreError("the disk is full; free some space")
ck = Checkpointer(Full())
ck.save_async(7, {'w': np.arange(8)})
if len(sys.argv) > 1:
    try: ck.wait()
    except StoreError: print("seen")
"""
    ended = script(code)
    assert ended.returncode == 1
    assert ended.stderr == "step 7 was not saved: the disk is full; free some space\n"
    ended = script(code, "look")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "seen\n", "")


def test_what_forked_from_a_job_ends_and_saves_under_names_of_its_own(tmp_path: Path) -> None:
    code = """
import os, time
ck = Checkpointer(sys.argv[1])
ck.save(1, {'w': np.arange(3)})
ck.save_async(2, {'w': np.full(1 << 20, 2)})
child = os.fork()
if not child:
    ck.save(3, {'w': np.full(1 << 16, 3)})
    sys.exit(0)
ck.save(4, {'w': np.full(1 << 16, 4)})
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert script(code, tmp_path).returncode == 0
    ck = Checkpointer(tmp_path)
    assert sorted(ck.steps()) == [1, 2, 3, 4]
    assert [int(ck.restore(step)["w"][-1]) for step in (1, 2, 3, 4)] == [2, 2, 3, 4]


def test_threads_that_save_with_one_checkpointer_do_not_mix_their_states() -> None:
    ck = Checkpointer(MemStore())

    def save(step: int) -> None:
        ck.save_async(step, {"w": np.full(1 << 16, step)}) if step % 2 else ck.save(step, {"w": np.full(9, step)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(12)))
    ck.wait()
    assert sorted(ck.steps()) == list(range(12))
    assert all((ck.restore(step)["w"] == step).all() for step in range(12))


def test_two_jobs_that_save_one_step_at_once_leave_one_whole_step_and_one_error() -> None:
    store, outcomes = MemStore(), []
    barrier = threading.Barrier(2)

    def job(number: int) -> None:
        ck = Checkpointer(store, run="the same")
        barrier.wait(60)
        try:
            ck.save(5, {"a": np.full(1 << 16, number), "b": np.full(1 << 16, number)})
            outcomes.append(number)
        except StoreError:
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(job, (1, 2)))
    found = Checkpointer(store).restore(5)
    assert len(outcomes) == 1 and (found["a"] == outcomes[0]).all() and (found["b"] == outcomes[0]).all()


def test_retention_keeps_the_newest_saves_also_after_a_rollback() -> None:
    store = MemStore()
    ck = Checkpointer(store, keep=2)
    for step in (100, 200, 300, 50):
        ck.save(step, {"at": step, "w": np.full(4, step)})
        assert step in ck.steps()
    assert ck.steps() == [50, 300] and ck.restore()["at"] == 50  # the newest is what was saved last
    ck.save(60, {"at": 60, "w": np.full(4, 60)})
    assert ck.steps() == [50, 60] and ck.restore(50)["w"].tolist() == [50] * 4
    again = Checkpointer(store, keep=2)
    again.save(55, {"at": 55, "w": np.full(4, 55)})
    assert again.steps() == [55, 60]


def test_a_metric_that_is_no_number_is_never_the_best() -> None:
    ck = Checkpointer(MemStore(), keep=Retention(last=1, best=1))
    for step, loss in enumerate([float("nan"), np.float32(2.0), float("nan"), 3.0]):
        ck.save(step, {"step": step}, metric=loss)
    assert ck.steps() == [1, 3]
    with pytest.raises(BadInput, match="metric"):
        ck.save(9, {}, metric="low")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="meta"):
        ck.save(9, {}, meta={"of": object()})


def parts(value: int, rank: int) -> dict[str, Any]:
    return {"w": Sharded(np.full((2, 3), value), (4, 3), (2 * rank, 0)), "note": value}


def together(store: Any, value: int, run: str = "kept by torchrun", step: int = 100) -> None:
    """Both ranks of an attempt, the first one first."""
    ranks = [Checkpointer(store, rank=rank, world=2, run=run) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: ranks[rank].save(step, parts(value, rank)), (0, 1)))


def test_a_part_of_a_dead_attempt_is_never_used_whatever_the_run_is_called(tmp_path: Path) -> None:
    dead = """
import os, threading, time
from assay.data.orbax import Sharded
ck = Checkpointer(sys.argv[1], rank=1, world=2, run="kept by torchrun")
ck.save_async(100, {"w": Sharded(np.full((2, 3), 1), (4, 3), (2, 0)), "note": 1})
while not os.path.isdir(f"{sys.argv[1]}/data"): time.sleep(0.01)
time.sleep(0.3)
os._exit(9)
"""
    assert script(dead, tmp_path).returncode == 9
    together(tmp_path, 2)
    assert (Checkpointer(tmp_path).restore(100)["w"] == 2).all()


def test_a_rank_that_was_replaced_is_told_and_its_part_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PATIENCE", 30.0)
    store = MemStore()
    late = Checkpointer(store, rank=1, world=2, run="job")
    handle = late.save_async(100, parts(1, 1))
    together(store, 2, "job")
    assert (Checkpointer(store).restore(100)["w"] == 2).all()
    with pytest.raises(Fenced, match="rank 1"):
        handle.wait()


def test_a_rank_returns_when_the_step_is_there_and_raises_when_the_first_rank_gave_up() -> None:
    store = MemStore()
    first, other = (Checkpointer(store, rank=rank, world=2, run="job") for rank in (0, 1))
    waiting = other.save_async(1, parts(1, 1))
    assert not waiting.durable
    first.save(1, parts(1, 0))
    waiting.wait()
    assert other.steps() == [1] and not [key for key in store.objects if key.startswith("part/call/")]
    waiting = other.save_async(2, {"w": Sharded(np.zeros((3, 3)), (5, 3), (2, 0))})
    with pytest.raises(BadInput, match="differ on the shape of 'w'"):
        first.save(2, {"w": Sharded(np.zeros((2, 3)), (4, 3), (0, 0))})
    with pytest.raises(StoreError, match=r"step 2 .* the first rank gave it up"):
        waiting.wait()
    assert first.steps() == [1]


def test_parts_that_overlap_are_refused_and_equal_ones_are_kept_once() -> None:
    store = MemStore()
    ranks = [Checkpointer(store, rank=rank, world=2, run="job") for rank in (0, 1)]

    def both(step: int, *trees: Any) -> None:
        waiting = ranks[1].save_async(step, trees[1])
        try:
            ranks[0].save(step, trees[0])
        finally:
            with suppress(StoreError):
                waiting.wait()

    whole = Sharded(np.arange(6.0), (6,), (0,))
    both(1, {"w": whole}, {"w": whole})
    assert ranks[0].restore(1)["w"].tolist() == list(range(6))
    with pytest.raises(BadInput, match=r"'w' .* more than once"):
        both(2, {"w": whole}, {"w": Sharded(np.ones(3), (6,), (3,))})
    with pytest.raises(BadInput, match="ranks 0 and 1 differ on 'l': dicts"):
        both(3, {"l": [np.ones(2)]}, {"l": [np.ones(2), np.ones(2)]})
    assert ranks[0].steps() == [1]


@pytest.mark.parametrize("world", [2, 3])
def test_arrays_that_only_some_ranks_have_come_back(world: int) -> None:
    store = MemStore()
    large = np.arange(1 << 18, dtype=np.float64)
    trees = [{"every": large, "rng": {f"rank{rank}": np.full(4, rank)}} for rank in range(world)]
    trees[0] |= {"first": large + 1}
    trees[-1] |= {"last": large + 2, "none": np.zeros((0, 3))}
    for tree in trees[1:]:
        tree["others"] = np.array(7)
    ranks = [Checkpointer(store, rank=rank, world=world, run="job") for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        list(pool.map(lambda rank: ranks[rank].save(1, trees[rank]), range(world)))
    found = Checkpointer(store).restore(1)
    expected = {"every": large, "first": large + 1, "last": large + 2, "none": np.zeros((0, 3)), "others": np.array(7)}
    assert set(found) == {*expected, "rng"} and all(np.array_equal(found[name], expected[name]) for name in expected)
    assert {name: one.tolist() for name, one in found["rng"].items()} == {f"rank{i}": [i] * 4 for i in range(world)}


@pytest.mark.parametrize(
    ("mine", "its", "message"),
    [
        (Sharded(np.zeros(2), (6,), (0,)), Sharded(np.ones(2), (6,), (2,)), "'w' is not whole: of 6 numbers .* have 4"),
        (Sharded(np.zeros(4), (6,), (0,)), Sharded(np.ones(2), (6,), (2,)), "'w' .* more than once"),
        (Sharded(np.zeros((2, 4)), (4, 3), (0, 0)), None, "does not lie in an array"),
        (Sharded(np.zeros((2, 2)), (2, 4), (0, 0)), Sharded(np.ones((1, 4)), (2, 4), (1, 0)), "'w' .* more than once"),
        (
            Sharded(np.zeros(2, "f4"), (4,), (0,)),
            Sharded(np.ones(2, "f8"), (4,), (2,)),
            "type of 'w': float32, float64",
        ),
    ],
)
def test_parts_that_do_not_make_a_whole_are_refused_at_the_save(mine: Sharded, its: Any, message: str) -> None:
    store = MemStore()
    ranks = [Checkpointer(store, rank=rank, world=2, run="job") for rank in (0, 1)]
    waiting = ranks[1].save_async(1, {} if its is None else {"w": its})
    with pytest.raises(BadInput, match=message):
        ranks[0].save(1, {"w": mine})
    if its is not None:
        with pytest.raises(StoreError, match="gave it up"):
            waiting.wait()
    else:  # nobody called
        ranks[0].save(1, {})
        waiting.wait()
    with pytest.raises(BadInput, match="not whole"):
        Checkpointer(MemStore()).save(1, {"w": Sharded(np.zeros(2), (6,), (0,))})


ScaleState = namedtuple("ScaleState", ["count", "mu"])


def test_trees_as_optimizers_and_generators_have_them_come_back_as_they_were() -> None:
    ck = Checkpointer(MemStore())
    generator = np.random.default_rng(3)
    generator.random(5)
    tree = {
        "rng": generator.bit_generator.state, "old": np.random.RandomState(1).get_state(legacy=False),
        "opt": (ScaleState(np.int32(4), {"w": np.ones(3)}), ()), "huge": -(1 << 200), "lr": np.float32(0.5),
    }  # fmt: skip
    ck.save(1, tree)
    found = ck.restore()
    again = np.random.default_rng(0)
    again.bit_generator.state = found["rng"]
    assert again.random() == generator.random()
    assert found["huge"] == -(1 << 200) and type(found["lr"]) is np.float32
    state = found["opt"][0]
    assert type(state) is ScaleState and state.count == 4 and state.mu["w"].tolist() == [1, 1, 1]
    into = ck.restore(like={"opt": (ScaleState(np.int32(0), {"w": np.zeros(3)}), ())})["opt"][0]
    assert type(into) is ScaleState and into.mu["w"].tolist() == [1, 1, 1]


def test_a_named_tuple_of_a_class_that_is_not_here_keeps_its_fields(tmp_path: Path) -> None:
    code = """
from collections import namedtuple
Far = namedtuple("Far", ["count", "mu"]); Far.__module__ = "optax._far"
Checkpointer(sys.argv[1]).save(1, {"opt": Far(3, np.ones(2))})
"""
    assert script(code, tmp_path).returncode == 0
    found = Checkpointer(tmp_path).restore()["opt"]
    assert found._fields == ("count", "mu") and found.count == 3 and "optax._far" not in sys.modules


def torch_trees() -> list[tuple[str, Any]]:
    torch = pytest.importorskip("torch", reason="pip install torch")
    return [
        ("sparse", torch.eye(3).to_sparse()), ("sparse_csr", torch.eye(3).to_sparse_csr()),
        ("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
        ("meta", torch.ones(3, device="meta")),
        ("lazy", torch.nn.parameter.UninitializedParameter()),
        ("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    ]  # fmt: skip


def deep() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for _ in range(400):
        tree = {"a": tree}
    return tree


def cycle() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    tree["itself"] = tree
    return tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"1": np.ones(2), 1: np.zeros(2)}, "two .* '1'"),
        ({"a": {"True": np.ones(2), True: np.zeros(2)}}, "two .* 'a/True'"),
        ({"m": np.ma.masked_array([1, 2], [True, False])}, "'m' is a MaskedArray"),
        ({"t": "\udc80"}, "'t' .* no text"),
        ({"\udc80": 1}, "no text"),
        ({1 << 70: 1}, "key"),
        ({"g": np.random.default_rng(0)}, "'g' is a Generator"),
        (cycle(), "deep"),
        (deep(), "deep"),
    ],
)
def test_what_cannot_be_kept_as_it_is_is_refused_before_anything_is_written(tree: Any, message: str) -> None:
    store = MemStore()
    ck = Checkpointer(store)
    for save in (ck.save, ck.save_async):
        with pytest.raises(BadInput, match=message):
            save(1, tree)
    assert not store.objects


def test_tensors_of_layouts_that_are_no_rows_of_numbers_are_refused_at_save() -> None:
    store = MemStore()
    ck = Checkpointer(store)
    for name, tensor in torch_trees():
        with pytest.raises(BadInput, match=f"'{name}'"):
            ck.save(1, {name: tensor})
    assert not store.objects


def test_lazily_conjugated_and_negated_tensors_keep_their_values() -> None:
    torch = pytest.importorskip("torch", reason="pip install torch")
    made = torch.tensor([1 + 2j, 3 - 4j])
    tree = {"conj": made.conj(), "imag": made.conj().imag}
    ck = Checkpointer(MemStore())
    ck.save(1, tree)
    found = ck.restore()
    assert torch.equal(found["conj"], made.conj().resolve_conj()) and found["imag"].tolist() == [-2.0, 4.0]


class OfJax:
    """What a sharded array of JAX shows of itself."""

    def __init__(self, whole: np.ndarray, rows: slice, addressable: bool) -> None:
        self.dtype, self.shape, self.is_fully_addressable = whole.dtype, whole.shape, addressable
        index = (rows, *[slice(None)] * (whole.ndim - 1))
        shard = type("Shard", (), {"data": whole[index], "index": index, "replica_id": 0})
        self.addressable_shards = [shard]


@pytest.mark.parametrize("addressable", [False, True])
def test_arrays_of_jax_over_several_processes_are_written_once_and_whole(addressable: bool) -> None:
    whole = np.arange(1 << 18, dtype=np.float64).reshape(512, -1)
    store = MemStore()
    ranks = [Checkpointer(store, rank=rank, world=2, run="job") for rank in (0, 1)]
    rows = [slice(0, 512)] * 2 if addressable else [slice(0, 256), slice(256, 512)]
    waiting = ranks[1].save_async(1, {"w": OfJax(whole, rows[1], addressable)})
    ranks[0].save(1, {"w": OfJax(whole, rows[0], addressable)})
    waiting.wait()
    assert np.array_equal(ranks[0].restore(1)["w"], whole)
