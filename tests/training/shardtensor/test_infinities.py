"""Infinities, what is no number, and equals are treated as one process does: none is spread, lost or made finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from assay.training import Domain, shard  # noqa: E402
from assay.training.shardtensor import shards  # noqa: E402
from assay.training.shardtensor.dispatch import ShardTensor, Unsupported  # noqa: E402
from assay.training.shardtensor.shards import mine  # noqa: E402
from tests.oracles.domain_of_threads import on_threads  # noqa: E402

SIZES = (4, 0, 3)
CALLS: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(),
    "softmax": lambda x: x.softmax(0),
    "norm": lambda x: x.norm(dim=0),
    "std": lambda x: x.std(0),
    "var": lambda x: x.var(),
    "interpolate": lambda x: F.interpolate(x.t()[None], scale_factor=2, mode="linear"),
    "max_pool1d": lambda x: F.max_pool1d(x.t()[None], 2),
}
WITH: dict[str, Callable[[Any], Any]] = {
    "a column of minus infinity": lambda x: x.masked_fill(torch.arange(4) == 1, -torch.inf),
    "some infinite": lambda x: x.masked_fill(x > 1, torch.inf),
    "some no numbers": lambda x: x.masked_fill(x > 1, torch.nan),
    "equals": lambda x: x.masked_fill(torch.arange(4) > 1, 0.5),
}


@pytest.mark.parametrize("given", WITH)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_finite_is_treated_as_in_one_process(name: str, given: str) -> None:
    def work(x: Any) -> Any:
        found = CALLS[name](WITH[given](x))
        if found.requires_grad:
            (found * 0.5).sum().backward()
        return found

    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = x.clone().requires_grad_()
    truth = work(whole)

    def one(domain: Domain) -> Any:
        part = shard(x, 0, domain, SIZES).requires_grad_()
        found = work(part)
        return found, part.local.grad, domain

    for each in on_threads(len(SIZES), one):
        assert not isinstance(each, Exception), each
        found, gradient, domain = each
        here = mine(truth, found.axis, domain, found.sizes) if isinstance(found, ShardTensor) else truth
        found = found.local if isinstance(found, ShardTensor) else found
        assert torch.allclose(found, here, equal_nan=True), (found, here)
        if whole.grad is not None:
            assert torch.allclose(gradient, mine(whole.grad, 0, domain, SIZES), equal_nan=True)


@pytest.mark.parametrize("how", ["max", "min"])
@pytest.mark.parametrize("here", [True, False])
def test_what_is_no_number_survives_a_backend_that_loses_it(
    how: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo keeps either of two numbers as they compare, so which rank has what is none decides."""
    one, other = torch.tensor([torch.nan, 2.0]), torch.tensor([1.0, -torch.inf])
    handed: list[Any] = []

    def hand(given: Any, op: Any, group: Any) -> None:
        handed.append(given.clone())

    def compare(given: Any, op: Any, group: Any) -> None:
        theirs = handed[0]
        given.copy_(torch.where(given > theirs if how == "max" else given < theirs, given, theirs))

    domain = Domain()
    domain.size = 2
    monkeypatch.setattr(shards.dist, "all_reduce", hand)
    domain.all_reduce(other if here else one, how)
    monkeypatch.setattr(shards.dist, "all_reduce", compare)
    found = domain.all_reduce(one if here else other, how)
    assert bool(found[0].isnan())
    assert float(found[1]) == (2.0 if how == "max" else -torch.inf)


def test_numbers_that_only_one_process_would_take_are_refused_by_all() -> None:
    x = torch.arange(7.0)
    for index in (torch.zeros(0, dtype=torch.bool), torch.zeros(2, 0, dtype=torch.int64)):

        def gathered(domain: Domain, index: Any = index) -> Any:
            return torch.gather(shard(x, 0, domain, SIZES), 0, shard(index, index.ndim - 1, domain, (0, 0, 0)))

        assert torch.gather(x, 0, index).numel() == 0
        assert all(isinstance(found, Unsupported) for found in on_threads(3, gathered))

    def shorter(domain: Domain) -> Any:
        rows = shard(torch.arange(28.0).reshape(7, 4), 0, domain, SIZES)
        return torch.gather(rows, 1, shard(torch.zeros(5, 2, dtype=torch.int64), 0, domain, (2, 1, 2)))

    assert all(isinstance(found, Unsupported) for found in on_threads(3, shorter))

    def fraction(domain: Domain) -> Any:
        a = shard(torch.ones(3, 7, 2, dtype=torch.int64), 1, domain, SIZES)
        return torch.baddbmm(
            torch.ones(3, 7, 5, dtype=torch.int64), a, torch.ones(3, 2, 5, dtype=torch.int64), beta=0.2
        )

    assert all(isinstance(found, Unsupported) for found in on_threads(3, fraction))
