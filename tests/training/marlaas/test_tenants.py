"""Tenants on one base model: isolated to the last bit, each at its own pace, none starved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from assay.training import marlaas
from assay.training.marlaas import fleet, policy
from assay.training.marlaas.service import Trained

STEPS = 12


@cache
def together(staleness: int = 1) -> dict[str, Trained]:
    waits = {task.name: 0.001 * at for at, task in enumerate(marlaas.TASKS)}
    return marlaas.train(marlaas.TASKS, STEPS, seed=7, staleness=staleness, latency=waits)


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 3])
def test_beside_others_as_alone_bit_for_bit(staleness: int, at: int) -> None:
    task = marlaas.TASKS[at]
    alone = marlaas.train([task], STEPS, seed=7, staleness=staleness)[task.name]
    assert marlaas.same(together(staleness)[task.name], alone)
    assert any((weight != 0).any() for name, weight in alone.weights.items() if name.endswith(".b"))  # it did learn


def test_the_company_does_not_matter() -> None:
    one, other = marlaas.TASKS[:2], [marlaas.TASKS[0], *marlaas.TASKS[4:7]]
    name = marlaas.TASKS[0].name
    found = [marlaas.train(tasks, STEPS, seed=3)[name] for tasks in (one, other, list(reversed(other)))]
    assert marlaas.same(found[0], found[1]) and marlaas.same(found[0], found[2])
    assert not marlaas.same(found[0], marlaas.train(one, STEPS, seed=4)[name])


def test_training_one_leaves_the_others_logits_as_they_were() -> None:
    torch.set_num_threads(1)
    shared = policy.base(0)
    mine, theirs = policy.adapter("mine", 0), policy.adapter("theirs", 0)
    rows = policy.features(policy.prompts("theirs", 0, 0), np.full(policy.PROMPTS * policy.GROUP, policy.DIGITS), 0)
    before = policy.logits(shared, [theirs.weights], rows[None])[0].detach().clone()
    for step in range(3):
        batch = policy.roll(shared, [("mine", step, mine.weights, step)], 0)[0]
        policy.update(shared, mine, batch, (batch.outputs[:, 0] == 7).astype(float))
    both = policy.logits(shared, [mine.weights, theirs.weights], torch.stack([rows, rows]))
    assert torch.equal(both[1].detach(), before)
    assert not torch.equal(both[0].detach(), before)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_policy_that_is_trained_on_is_older_than_the_bound(staleness: int) -> None:
    assert all(one.lag <= staleness for one in together(staleness).values())
    assert max(one.lag for one in together(staleness).values()) == staleness


def test_tenants_learn() -> None:
    found = marlaas.train([marlaas.TASKS[2]], 40, seed=1)[marlaas.TASKS[2].name]
    assert np.mean(found.rewards[-5:]) > np.mean(found.rewards[:5]) + 0.3


@dataclass
class Broken:
    name: str = "broken"

    def reward(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        raise RuntimeError("no environment")


def test_an_environment_that_raises_ends_the_run_with_its_error() -> None:
    with pytest.raises(RuntimeError, match="no environment"):
        marlaas.train([marlaas.TASKS[0], Broken()], 2, seed=0)
    with pytest.raises(ValueError, match="names of their own"):
        marlaas.train([marlaas.TASKS[0], marlaas.TASKS[0]], 2, seed=0)


def test_more_tenants_use_gpus_better_where_environments_take_long() -> None:
    used = {count: fleet.asynchronous(fleet.tenants(count, 3, 16, 12.0, 5)) for count in (1, 8, 32)}
    alone = fleet.sequential(fleet.tenants(1, 3, 16, 12.0, 5))
    assert used[1].seconds == pytest.approx(alone.seconds)  # one tenant gains nothing
    assert used[1].used < used[8].used < used[32].used
    many = fleet.tenants(32, 3, 16, 12.0, 5)
    assert used[32].used > 3 * fleet.sequential(many).used
    assert all(one.lag <= 1 for one in used.values())
    assert min(used[32].shares) >= 0.5  # nobody starves


def test_nobody_waits_for_another_in_the_asynchronous_fleet() -> None:
    work = fleet.tenants(6, 3, 16, 12.0, 2)
    free, locked = fleet.asynchronous(work), fleet.lockstep(work)
    assert free.seconds < locked.seconds
    assert min(free.ends) < max(free.ends)
    strict = fleet.asynchronous(work, staleness=0)
    assert strict.lag == 0 and strict.seconds >= free.seconds * 0.999


def test_tasks_of_ones_own_are_checked(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Odd:\n    name = 'odd'\n")
    assert "should be a class with a name and reward" in refused("compare", "marlaas", "--task", "own.py:Odd")


def test_how_much_time_falls_is_told_where_environments_make_it_least() -> None:
    left = {12.0: 0.06, 1.0: 0.10, 0.1: 0.14}
    rows = [
        {"experiment": "fleet", "tasks": 32, "env": env, "system": system, "seed": seed, "seconds": seconds}
        for env, share in left.items() for system, seconds in (("sequential", 1.0), ("marlaas", share))
        for seed in range(3)
    ]  # fmt: skip
    found = next(claim for claim in marlaas.claims if claim.id == "time").measure(pl.from_dicts(rows))
    assert found.value == pytest.approx(-0.86) and found.cases == "answers in 0.1 s, of 3 cases"
