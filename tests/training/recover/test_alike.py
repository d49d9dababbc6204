"""Replicas begin with the first one's weights, and stop, all of them, where they have come apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from assay.training.recover.alike import digest  # noqa: E402
from assay.training.recover.replicas import Replicas, Unequal  # noqa: E402
from tests.oracles.dying_group import Died, Group, Member  # noqa: E402


def together(size: int, work: Callable[[Member], Any], dies_in_sum: dict[int, int] | None = None) -> dict[int, Any]:
    """What `work(backend)` gives on every replica, or the error it raised; the dead give nothing."""
    group, found = Group(size, lambda: True), {}

    def one(rank: int) -> None:
        try:
            found[rank] = work(Member(group, rank, (dies_in_sum or {}).get(rank)))
        except Died:
            return
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a replica hangs"
    return found


def model_of(rank: int) -> Any:
    stream = torch.Generator().manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=stream))
        model[0].bias[:2] = torch.tensor([-0.0, float("nan")])
        model[1].running_mean.fill_(float(rank))
        model[1].num_batches_tracked.fill_(rank)
    return model


def train(job: Replicas, model: Any, optimizer: Any, steps: int, spoil: Callable[[int], None] = lambda _: None) -> None:
    for step in range(steps):
        spoil(step)
        for one in job.step():
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + one))
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("dies", [{}, {0: 1}, {0: 2}, {1: 2}])
def test_all_begin_with_the_bits_of_the_first_also_if_it_dies_meanwhile(dies: dict[int, int]) -> None:
    def work(backend: Member) -> tuple[str, str]:
        model = model_of(backend.rank)
        Replicas(model, 4, backend, bucket=40)
        return digest(list(model.parameters())), digest(list(model.buffers()))

    found = together(3, work, dies)
    assert len(found) == 3 - len(dies)
    assert len(set(found.values())) == 1
    if not dies:
        first = model_of(0)
        assert found[0] == (digest(list(first.parameters())), digest(list(first.buffers())))


def test_replicas_of_unequal_optimizers_stop_at_the_first_step() -> None:
    def work(backend: Member) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * (backend.rank == 2))
        train(Replicas(model, 4, backend, optimizer=optimizer), model, optimizer, 3)

    found = together(3, work)
    assert all(isinstance(error, Unequal) for error in found.values())
    assert "differ in their weights or optimizers before step 0: 2 from the others" in str(found[0])


def test_an_optimizer_that_nobody_named_shows_in_the_weights_a_step_later() -> None:
    def work(backend: Member) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * (backend.rank == 2))
        train(Replicas(model, 4, backend), model, optimizer, 3)

    found = together(3, work)
    assert all("before step 1: 2 from" in str(error) for error in found.values())


def test_weights_that_come_apart_later_stop_all_at_the_next_look() -> None:
    def work(backend: Member) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def spoil(step: int) -> None:
            if backend.rank == 1 and step == 5:
                with torch.no_grad():
                    model.weight[0, 0] += 1e-6

        train(Replicas(model, 4, backend, optimizer=optimizer, every=4), model, optimizer, 10, spoil)

    found = together(3, work)
    assert all("before step 8: 1 from the others" in str(error) for error in found.values())


@pytest.mark.parametrize(("what", "width", "batch"), [("model", 3, 4), ("batch", 2, 5)])
def test_replicas_of_unequal_models_or_batches_do_not_begin(what: str, width: int, batch: int) -> None:
    def work(backend: Member) -> None:
        odd = backend.rank == 0
        Replicas(torch.nn.Linear(3, width if odd else 2), batch if odd else 4, backend)

    found = together(3, work)
    assert len(found) == 3
    assert all("models, batches or buckets: 0 from the others" in str(error) for error in found.values()), found


def test_replicas_that_are_alike_train_as_one_and_end_with_the_same_bits() -> None:
    def work(backend: Member) -> str:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        train(Replicas(model, 4, backend, optimizer=optimizer, every=1), model, optimizer, 6)
        return digest(list(model.parameters()), optimizer)

    assert len(set(together(3, work).values())) == 1


@pytest.mark.slow
def test_a_script_that_seeds_nothing_trains_the_same_weights_in_all_replicas(tmp_path: Path) -> None:
    from assay.training.recover import launch

    script = tmp_path / "unseeded.py"
    script.write_text(
        "import os, torch\n"
        "from assay.training.recover import join\n"
        "from assay.training.recover.alike import digest\n"
        "model = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "job = join(model, batch=4, optimizer=optimizer)\n"
        "for step in range(3):\n"
        "    for one in job.step():\n"
        "        model(torch.full((2, 3), float(one))).square().mean().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
        f"open(os.path.join({str(tmp_path)!r}, 'ended-' + os.environ['RANK']), 'w').write(digest(model.parameters()))\n"
        "job.leave()\n"
    )
    assert launch([str(script)], 2, 60.0)["survivors"] == [0, 1]
    assert len({(tmp_path / f"ended-{rank}").read_text() for rank in range(2)}) == 1
