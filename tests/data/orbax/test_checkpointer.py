"""Checkpoints in a training loop: one line, nothing half-written, nothing silently lost."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data import Checkpointer
from assay.data.engine.segments import digest
from assay.data.interface import Buffer, Meta, NotFound, StoreError
from assay.data.orbax import Part, Retention, Sharded, checkpointer, writing
from assay.data.orbax.register import StepExists
from assay.data.orbax.tree import Leaf, flatten
from assay.data.store.blocking import background
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered, Wrapper
from assay.record.errors import BadInput
from assay.sim.ledger import Ledger

torch = pytest.importorskip("torch", reason="pip install torch")


def job() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: Any, opt: Any, steps: int) -> None:
    for step in range(steps):
        x = torch.linspace(-1, 1, 24).reshape(4, 6).to(torch.bfloat16) * (step + 1)
        loss = (model(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def test_a_torch_job_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    model, opt = job()
    train(model, opt, 3)
    Checkpointer(str(tmp_path)).save(3, {"model": model, "opt": opt, "epoch": 1})
    train(model, opt, 4)
    again, its = job()
    tree = Checkpointer(str(tmp_path)).restore(like={"model": again, "opt": its, "epoch": 0})
    assert tree["epoch"] == 1 and tree["model"] is again
    train(again, its, 4)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_with_digests_of_an_earlier_version_is_read_and_leaned_on_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"w": np.arange(1000.0)}
    with monkeypatch.context() as before:
        before.setattr(writing, "checksum", digest)
        Checkpointer(tmp_path).save(1, tree)
    ck = Checkpointer(tmp_path)
    assert np.array_equal(ck.restore(1)["w"], tree["w"])
    ck.save(2, tree)
    assert [len(piece.digest) for step in (1, 2) for piece in ck.inspect(step).pieces] == [32, 16]


def test_without_a_like_the_arrays_come_back_in_their_kind(tmp_path: Path) -> None:
    ck = Checkpointer(str(tmp_path))
    tree = {
        "t": torch.arange(5, dtype=torch.bfloat16), "n": np.array([1, 2], np.float32), "scalar": torch.tensor(2.5),
        "f8": torch.ones(3).to(torch.float8_e4m3fn), "none": torch.empty(0, 3),
        "strided": torch.arange(12).reshape(3, 4).T,
    }  # fmt: skip
    ck.save(0, tree)
    found = ck.restore()
    for name, value in tree.items():
        assert type(found[name]) is type(value) and found[name].dtype == value.dtype
        assert found[name].shape == value.shape
    assert torch.equal(found["strided"], tree["strided"]) and torch.equal(found["t"], tree["t"])
    assert torch.equal(found["f8"].float(), tree["f8"].float())
    found["t"][0] = 9  # memory of one's own, to be written to


class Held(Wrapper):
    """A store whose puts of data wait until they are let go."""

    def __init__(self, inner: MemStore) -> None:
        super().__init__(inner)
        self.go = threading.Event()

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> Meta:  # type: ignore[override]
        import asyncio

        if key.startswith("data/"):
            await asyncio.to_thread(self.go.wait, 30)
        return await super().put(key, data, if_absent=if_absent)


def test_an_asynchronous_save_keeps_the_state_of_the_moment_it_was_asked_for() -> None:
    store = Held(MemStore())
    ck = Checkpointer(store)
    weights = torch.zeros(1000)
    handle = ck.save_async(1, {"w": weights})
    weights += 1  # the optimizer goes on
    assert (handle.durable, ck.steps()) == (False, [])
    store.go.set()
    handle.wait()
    assert (handle.durable, ck.steps()) == (True, [1])
    assert ck.restore()["w"].sum() == 0
    ck.save_async(2, {"w": weights})
    ck.wait()
    assert ck.restore()["w"].sum() == 1000


def test_the_error_of_an_asynchronous_save_is_told_at_once_and_raised_at_the_next_call() -> None:
    class Full(Wrapper):
        async def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> Meta:  # type: ignore[override]
            raise StoreError("No space left on device; free some space there and run it again")

    told = threading.Event()
    ck = Checkpointer(Full(MemStore()), on_error=lambda error: told.set())
    ck.save_async(1, {"w": np.zeros(3)})
    assert told.wait(10)
    with pytest.raises(StoreError, match="free some space"):
        ck.save(2, {"w": np.zeros(3)})
    assert ck.steps() == []


def test_what_did_not_change_is_not_written_again() -> None:
    ledger = Ledger()
    ck = Checkpointer(Metered(MemStore(), ledger))
    frozen, moving = np.random.default_rng(0).bytes(3 << 20), np.zeros(1 << 18, np.uint8)
    tree = {"frozen": np.frombuffer(frozen, np.uint8), "moving": moving}
    ck.save(0, tree)
    before = ledger.nbytes("put")
    moving += 1
    ck.save(1, tree)
    assert len(moving) < ledger.nbytes("put") - before < 2 * len(moving)
    ck.drop([0])  # what step 1 leans on stays
    assert bytes(ck.restore(1)["frozen"]) == frozen


def test_retention_keeps_the_last_the_regular_and_the_best(tmp_path: Path) -> None:
    ck = Checkpointer(str(tmp_path), keep=Retention(last=2, every=4, best=1))
    losses = [5.0, 1.0, 4.0, 3.0, 2.5, 2.4, 2.3, 2.2]
    for step, loss in enumerate(losses):
        ck.save(step, {"w": np.full(100, step)}, metric=loss)
    assert ck.steps() == [0, 1, 4, 6, 7]
    for step in ck.steps():
        assert ck.restore(step)["w"][0] == step
    assert len(list((tmp_path / "table").iterdir())) == 5
    with pytest.raises(BadInput, match="at least the last"):
        Retention(last=0).kept({})


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    ck = Checkpointer(str(tmp_path))
    ck.save(0, {"model": {"a": np.arange(10), "b": np.arange(6).reshape(3, 2)}, "opt": {"m": np.zeros(4)}, "lr": 0.5})
    assert list(ck.restore(only="model")) == ["model", "lr"]
    assert list(ck.restore(only=["model/b", "opt"])["model"]) == ["b"]
    part = ck.restore(only="model/b", like={"model": {"b": Part((1, 0), (2, 1))}})
    assert part["model"]["b"].tolist() == [[2], [4]]
    into = {"model": {"a": np.zeros(10, np.int64)}}
    ck.restore(like=into)
    assert into["model"]["a"].tolist() == list(range(10))
    shard = Sharded(np.zeros((1, 2), np.int64), (3, 2), (2, 0))
    assert ck.restore(like={"model": {"b": shard}})["model"]["b"].local.tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda ck: ck.save(5, {}), StepExists, "step 5 is saved already"),
        (lambda ck: ck.save(-1, {}), BadInput, "a step is a number from 0 on"),
        (lambda ck: ck.restore(6), NotFound, "no checkpoint of step 6; the newest are 5"),
        (lambda ck: ck.restore(only="modell"), BadInput, "has nothing at 'modell'"),
        (lambda ck: ck.restore(like={"q": np.zeros(3)}), BadInput, "has no 'q'"),
        (lambda ck: ck.restore(like={"w": np.zeros(4)}), BadInput, r"shape \(3,\) was saved, and \(4,\) is wanted"),
        (lambda ck: ck.drop([9]), NotFound, "no checkpoint of step 9"),
    ],
)
def test_what_cannot_be_done_is_one_line(call: Any, error: type, message: str) -> None:
    ck = Checkpointer(MemStore())
    ck.save(5, {"w": np.zeros(3)})
    with pytest.raises(error, match=message):
        call(ck)


def test_an_empty_store_has_no_checkpoint_and_several_ranks_need_a_name() -> None:
    with pytest.raises(NotFound, match="no checkpoint yet"):
        Checkpointer(MemStore()).restore()
    with pytest.raises(BadInput, match="pass run="):
        Checkpointer(MemStore(), rank=1, world=2)


@pytest.mark.slow  # importing JAX takes seconds
def test_jax_arrays_are_saved_like_numpys() -> None:
    jax = pytest.importorskip("jax", reason="pip install jax")
    ck = Checkpointer(MemStore())
    ck.save(0, {"w": jax.numpy.arange(6, dtype=jax.numpy.bfloat16).reshape(2, 3)})
    found = ck.restore()["w"]
    assert found.dtype == "bfloat16" and found.astype(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_is_staged_in_large_pieces_is_the_state_at_that_moment() -> None:
    whole = np.random.default_rng(0).integers(0, 256, 2 * writing.LARGE + 4096 + 5, np.uint8)
    parts = [whole[:7], whole[7 : writing.LARGE + 50], whole[writing.LARGE + 50 :]]
    leaves = [
        Leaf(str(i), "numpy", "uint8", part.shape, ((((0,), part.shape), part.data),), True)
        for i, part in enumerate(parts)
    ]
    wanted = whole.tobytes()
    copies = writing.Stage().copy(leaves)
    whole[:] = 0  # training goes on
    assert b"".join(bytes(leaf.views[0][1]) for leaf in copies) == wanted


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_lots_are_shared_out_so_that_each_is_taken_once(threads: int) -> None:
    taken: list[int] = []
    writing.share_out(list(range(1000)), taken.append, threads)
    assert sorted(taken) == list(range(1000))


def test_what_goes_wrong_with_a_lot_is_raised_whoever_took_it() -> None:
    mine = threading.get_ident()
    others = threading.Event()

    def work(lot: int) -> None:
        if threading.get_ident() != mine:
            others.set()
            raise MemoryError(f"no memory for {lot}")
        assert others.wait(120)  # the first lot that this thread takes lasts until another has taken one

    with pytest.raises(MemoryError, match="no memory"):
        writing.share_out([1, 2], work, threads=2)


def test_what_looks_at_the_arrays_is_let_go_before_the_writing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[weakref.ref[Leaf]] = []
    left: list[Leaf | None] = []

    def seen(tree: Any) -> tuple[list[Leaf], Any]:
        leaves, skeleton = flatten(tree)
        looks.extend(map(weakref.ref, leaves))
        return leaves, skeleton

    def begun() -> Any:
        left.extend(look() for look in looks)
        return background()

    monkeypatch.setattr(checkpointer, "flatten", seen)
    ck = Checkpointer(MemStore())
    monkeypatch.setattr(checkpointer, "background", begun)
    ck.save_async(1, {"w": torch.zeros(3)}).wait()
    assert left == [None]
