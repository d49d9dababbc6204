"""The mechanism without processes: who computes what, and that no death, wherever it falls, changes a step."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from assay.record.errors import BadInput  # noqa: E402
from assay.training.recover import join  # noqa: E402
from assay.training.recover.replicas import Bucket, LedgerBroken, Replicas, deal  # noqa: E402
from assay.training.recover.rivals import DropAndGo, Spares  # noqa: E402
from tests.oracles.dying_group import Died, Group, Member  # noqa: E402

BATCH, STEPS, PARAMETERS = 5, 3, (3, 2, 4)


@given(st.integers(1, 40), st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms())
def test_every_microbatch_is_held_or_dealt_once_and_shares_are_as_even_as_they_can_be(
    batch: int, held: list[int], chance: random.Random
) -> None:
    ids = list(range(batch))
    chance.shuffle(ids)
    done = {3 * rank: [ids.pop() for _ in range(min(count, len(ids)))] for rank, count in enumerate(held)}
    shares = deal(batch, done)
    assert sorted(one for rank in done for one in [*done[rank], *shares[rank]]) == list(range(batch))
    loads = {rank: len(done[rank]) + len(shares[rank]) for rank in done}
    assert all(loads[rank] <= min(loads.values()) + 1 for rank in done if shares[rank])


def test_the_first_replicas_get_the_microbatches_that_do_not_divide() -> None:
    assert {rank: len(share) for rank, share in deal(10, {1: [], 4: [], 6: [], 7: []}).items()} == {
        1: 3,
        4: 3,
        6: 2,
        7: 2,
    }


def gradient(step: int, one: int, at: int) -> Any:
    return torch.randn(PARAMETERS[at], generator=torch.Generator().manual_seed(1000 * step + 10 * one + at)).double()


def alone() -> list[Any]:
    """The weights of one process that computes everything: the failure-free job in its plainest form."""
    weights = [torch.zeros(size, dtype=torch.float64) for size in PARAMETERS]
    for step in range(STEPS):
        for at, weight in enumerate(weights):
            weight -= torch.stack([gradient(step, one, at) for one in range(BATCH)]).mean(dim=0)
    return weights


def together(
    size: int, deaths: dict[int, tuple[int, str, int]], sums: dict[int, int], coin: Any, kind: Any = Replicas
) -> dict[int, tuple[list[Any], list[int]]]:
    """The same in threads; `deaths`: at which point of which step a member dies, `sums`: within which of its sums."""
    group, found, errors = Group(size, coin), {}, []

    def work(rank: int) -> None:
        weights = [torch.nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in PARAMETERS]
        step = 0

        def watch(point: str, at: int) -> None:
            if deaths.get(rank) == (step, point, at):
                group.die(rank)

        try:
            job = kind(weights, BATCH, Member(group, rank, sums.get(rank)), bucket=1, watch=watch)
            counted = []
            for step in range(STEPS):
                for one in job.step():
                    for at, weight in enumerate(weights):
                        new = gradient(step, one, at)
                        weight.grad = new if weight.grad is None else weight.grad + new
                    job.note(1.0)
                assert job.loss == 1.0
                counted.append(job.counted)
                with torch.no_grad():
                    for weight in weights:
                        weight -= weight.grad
                        weight.grad = None
            job.leave()
            found[rank] = [weight.detach() for weight in weights], counted
        except Died:
            return
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a replica hangs"
    assert errors == []
    return found


POINTS = st.one_of(
    st.tuples(st.just("microbatch"), st.integers(0, BATCH - 1)),
    st.tuples(st.just("bucket"), st.integers(0, len(PARAMETERS) - 1)),
    st.tuples(st.sampled_from(["agree", "agreed"]), st.integers(0, len(PARAMETERS))),
)


@settings(max_examples=60)
@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, STEPS - 1), POINTS), max_size=4),
    st.lists(st.integers(1, 9), max_size=2),
    st.integers(0, 2**32),
)
def test_whoever_dies_wherever_weights_are_those_of_one_process(
    size: int, deaths: list[tuple[int, tuple[str, int]]], sums: list[int], seed: int
) -> None:
    """Replica 0 lives; any of the others may die at a point, or inside a sum that only some of the others then get."""
    where = {rank: (step, *point) for rank, (step, point) in zip(range(1, size), deaths, strict=False)}
    inside = {size - 1 - at: n for at, n in enumerate(sums) if size - 1 - at > 0}
    chance = random.Random(seed)
    found = together(size, where, inside, lambda: chance.random() < 0.5)
    assert 0 in found
    for weights, counted in found.values():
        assert counted == [BATCH] * STEPS
        for mine, theirs in zip(weights, alone(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_bucket_that_all_have_keeps_the_dead_ones_part_and_the_rest_is_computed_again() -> None:
    again: list[int] = []

    class Watched(Replicas):
        def leave(self) -> None:
            again.append(self.again)
            super().leave()

    together(3, {2: (1, "bucket", 2)}, {}, lambda: False, Watched)
    assert sum(again) == 1  # of five microbatches the third replica had one


def test_dropping_shrinks_the_batch_and_never_mixes_averages() -> None:
    from functools import partial

    found = together(3, {2: (1, "bucket", 1)}, {}, lambda: False, partial(DropAndGo, replicas=3))
    weights, counted = found[0]
    assert counted == [5, 4, 4]
    expected = [torch.zeros(size, dtype=torch.float64) for size in PARAMETERS]
    for step in range(STEPS):
        kept = range(BATCH) if step == 0 else [0, 1, 3, 4]
        for at, weight in enumerate(expected):
            weight -= torch.stack([gradient(step, one, at) for one in kept]).mean(dim=0)
    assert all(torch.allclose(a, b) for a, b in zip(weights, expected, strict=True))


def test_a_spare_computes_nothing_until_somebody_dies() -> None:
    from functools import partial

    shares = {}

    class Watched(Spares):
        def step(self) -> Any:
            for one in super().step():
                shares.setdefault((self.steps, self.backend.rank), []).append(one)
                yield one

    together(3, {0: (1, "bucket", 0)}, {}, lambda: False, partial(Watched, replicas=2))
    assert (0, 2) not in shares
    assert len(shares[1, 2]) >= 2
    assert len(shares[2, 2]) == 2


def test_a_gradient_that_nobody_has_stays_away_and_one_that_somebody_has_comes_to_all() -> None:
    group, found = Group(2, lambda: False), {}

    def work(rank: int) -> None:
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        job = Replicas(weights, 2, Member(group, rank))
        for one in job.step():
            if one == 0:
                weights[0].grad = torch.ones(2)
        found[rank] = [weight.grad for weight in weights]

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(torch.equal(found[rank][0], torch.full((2,), 0.5)) and found[rank][1] is None for rank in range(2))


def test_buckets_hold_all_parameters_once_the_last_first_and_one_type_each() -> None:
    half, whole = torch.float32, torch.float64
    sizes = ((4, half), (9, whole), (2, whole), (1, whole))
    some = [torch.nn.Parameter(torch.zeros(n, dtype=kind)) for n, kind in sizes]
    buckets = Bucket.cut(some, size=32)
    assert [[p.numel() for p in bucket.parameters] for bucket in buckets] == [[1, 2], [9], [4]]


def test_a_step_whose_ledger_is_wrong_is_refused() -> None:
    class Twice(Member):
        def all_reduce(self, buffer: Any) -> None:
            buffer *= 2

    job = Replicas([torch.nn.Parameter(torch.zeros(1))], 2, Twice(Group(1, lambda: False), 0))
    with pytest.raises(LedgerBroken, match="step 0, bucket 0"):
        list(job.step())


def test_what_cannot_be_trained_or_joined_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASSAY_KEEPER", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="assay recover run"):
        join(torch.nn.Linear(1, 1), batch=2)
    with pytest.raises(BadInput, match="nothing to train"):
        Replicas([], 2, Member(Group(1, lambda: False), 0))
