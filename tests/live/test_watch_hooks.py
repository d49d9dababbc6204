"""`monitor.wrap`: the stages of a real torch loop, and that the loop is not changed by being measured."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from assay.live import monitor
from assay.live.watch.sources import Folder
from assay.observe.frontier.collector import SYNC_STAGES, Vectors

torch = pytest.importorskip("torch")

NAP = 0.004  # seconds of sleep that stand for computing, so that a busy machine adds noise only
LEAST = int(NAP * 1e9)


class Net(torch.nn.Module):
    """A linear layer whose forward and backward passes take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: Any, fail: bool = False) -> Any:
        sleep(NAP)
        if fail:
            raise ValueError("a bad batch")
        return Slow.apply(self.layer(x))


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: Any) -> Any:
        sleep(NAP)
        return grad


class Data(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        sleep(NAP)
        with monitor.stage("forward"):  # a worker of the loader must not report
            monitor.step()
        return torch.ones(8)


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        sleep(NAP)
        return super().step(closure)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", monitor.MARK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(monitor.VARIABLE, str(tmp_path / "watch"))
    monitor.stop()
    yield tmp_path / "watch"
    monitor.stop()


def loader(length: int = 4, **more: Any) -> Any:
    data = [torch.ones(8)] * length if not more else Data(length)
    return torch.utils.data.DataLoader(data, batch_size=1, **more)


def rows(folder: Path) -> list[dict[str, int]]:
    monitor.stop()
    found = {}
    for _, said in Folder(folder).read():
        if said.vectors:
            vectors = Vectors.from_bytes(said.vectors)
            for place, row in enumerate(vectors.durations.tolist()):
                found[vectors.first_step + place] = dict(zip(vectors.stages, row, strict=True))
    assert sorted(found) == list(range(len(found)))
    return [found[step] for step in sorted(found)]


def test_every_stage_of_a_plain_loop_is_timed_and_a_batch_is_a_step(folder: Path) -> None:
    net = Net()
    model, optimizer, batches = monitor.wrap(net, SlowSGD(net.parameters(), lr=0.1), loader(6))
    assert model is net and len(batches) == 6 and batches.batch_size == 1
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = rows(folder)
    assert len(found) == 6  # the last ends where the loader is asked in vain
    for row in found:
        assert min(row["forward"], row["backward"], row["optimizer"]) >= LEAST and row["data"] > 0


def test_gradient_accumulation_is_one_step(folder: Path) -> None:
    net = Net()
    model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), loader(6))
    for place, batch in enumerate(batches):
        model(batch).sum().backward()
        if place % 3 == 2:
            optimizer.step()
    found = rows(folder)
    assert len(found) == 2
    assert all(row["forward"] >= 3 * LEAST and row["backward"] >= 3 * LEAST for row in found)


def test_several_optimizers_without_a_loader_end_a_step_when_all_have_stepped(folder: Path) -> None:
    net = Net()
    both = [torch.optim.SGD([p], lr=0.1) for p in net.parameters()]
    model, given, none = monitor.wrap(net, both)
    assert given is both and none is None
    for _ in range(4):
        for one in both:
            model(torch.ones(8)).sum().backward()
            one.step()
    found = rows(folder)
    assert len(found) == 3  # nothing tells the end of the fourth
    assert all(row["forward"] >= 2 * LEAST for row in found)


def test_steps_that_the_job_ends_itself_are_not_ended_twice(folder: Path) -> None:
    net = Net()
    model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), loader(4))
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        with monitor.stage("checkpoint"):
            sleep(NAP)
        monitor.step()
    found = rows(folder)
    assert len(found) == 4 and all(row["checkpoint"] >= LEAST for row in found)


def test_what_a_pass_raises_reaches_the_job_and_its_stage_ends(folder: Path) -> None:
    net = Net()
    model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), loader(4))
    for batch in batches:
        with pytest.raises(ValueError, match="a bad batch"):
            model(batch, fail=True)
        output = model(batch).sum()
        output.backward()
        with pytest.raises(RuntimeError):
            output.backward()  # the graph is gone
        with pytest.raises(TypeError):
            optimizer.step(closure=3)
        optimizer.step()
        sleep(NAP)
    found = rows(folder)
    assert len(found) == 4 and all(row["other"] >= LEAST for row in found[:3])


def test_an_evaluation_is_not_the_training_forward(folder: Path) -> None:
    net = Net()
    model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), loader(3))
    for batch in batches:
        model.eval()
        with torch.no_grad():
            for _ in range(10):
                model(batch)
        model.train()
        model(batch).sum().backward()
        optimizer.step()
    assert all(row["other"] >= 10 * LEAST and row["forward"] < 10 * LEAST for row in rows(folder))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_loader_do_not_report(folder: Path, method: str) -> None:
    net = Net()
    given = loader(4, num_workers=2, multiprocessing_context=method)
    model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), given)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
    assert len(rows(folder)) == 4
    assert len({said.pid for _, said in Folder(folder).read()}) == 1


def test_under_ddp_the_wait_for_gradients_is_a_stage_and_without_sync_there_is_none(folder: Path) -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        net = torch.nn.parallel.DistributedDataParallel(Net())

        def late(_, bucket):  # type: ignore[no-untyped-def] # another rank's gradients, which take their time
            future = torch.futures.Future()
            threading.Timer(0.05, future.set_result, [bucket.buffer()]).start()
            return future

        net.register_comm_hook(None, late)
        model, optimizer, batches = monitor.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), loader(6))
        for place, batch in enumerate(batches):
            if place % 2:
                with model.no_sync():
                    model(batch).sum().backward()
            else:
                model(batch).sum().backward()
            optimizer.step()
        found = rows(folder)
    finally:
        distributed.destroy_process_group()
    assert set(found[0]) == set(SYNC_STAGES)
    assert all(row["backward"] >= LEAST for row in found)
    assert all(row["sync"] >= 10_000_000 for row in found[::2])
    assert sum(row["sync"] for row in found[1::2]) < sum(row["sync"] for row in found[::2])


def test_all_hooks_are_taken_away_at_the_end(folder: Path) -> None:
    plain = torch.autograd.backward
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor.wrap(net, optimizer)
    assert torch.autograd.backward is not plain
    monitor.wrap(net, optimizer)  # twice is once
    assert len(net._forward_hooks) == len(net._forward_pre_hooks) == 1
    monitor.stop()
    assert torch.autograd.backward is plain
    assert not net._forward_hooks and not net._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks


def test_what_takes_no_hooks_is_said_and_the_rest_is_timed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Home:
        """An optimizer of somebody's own."""

        def step(self) -> None:
            pass

    net = Net()
    model, optimizer, batches = monitor.wrap(net, Home(), iter([torch.ones(8)] * 3))
    assert "a Home takes no hooks; time it with monitor.stage('optimizer')" in caplog.text
    while batches:  # an iterator, which is always true
        try:
            model(next(batches)).sum().backward()
        except StopIteration:
            break
        optimizer.step()
    found = rows(folder)
    assert len(found) == 3 and all(row["backward"] >= LEAST for row in found)


def test_a_timed_loader_can_be_copied_and_is_as_long_as_its_own(folder: Path) -> None:
    _, _, batches = monitor.wrap(None, None, loader(5))
    assert len(copy.copy(batches)) == 5 and len(list(batches)) == 5 and not hasattr(batches, "nonsense")


def test_without_a_watcher_nothing_is_hung_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(monitor.VARIABLE)
    plain, net, given = torch.autograd.backward, Net(), loader(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert monitor.wrap(net, optimizer, given) == (net, optimizer, given)
    assert torch.autograd.backward is plain and not net._forward_hooks


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
def test_a_compiled_model_is_timed_where_it_runs(folder: Path) -> None:
    net = Net()
    model = torch.compile(net, backend="eager")
    model, optimizer, batches = monitor.wrap(model, torch.optim.SGD(net.parameters(), lr=0.1), loader(4))
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
    assert all(row["forward"] > 0 and row["backward"] >= LEAST for row in rows(folder))
