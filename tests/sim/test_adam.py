"""Our Adam gives torch's weights to the last bit, also with a rate that changes and gradients that are missing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from assay.sim.adam import Adam


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_those_of_torch_to_the_last_bit(seed: int) -> None:
    torch.manual_seed(seed)
    start = [torch.randn(5, 3), torch.randn(7), torch.randn(2, 2)]
    ours, theirs = ([weight.clone().requires_grad_() for weight in start] for _ in range(2))
    mine, other = Adam(ours, 3e-2), torch.optim.Adam(theirs, 3e-2)
    for step in range(12):
        rate = 3e-2 * (1 - step / 20)
        mine.rate = other.param_groups[0]["lr"] = rate
        gradients = [torch.randn_like(weight) for weight in start]
        mine.zero_grad()
        other.zero_grad()
        for weights in (ours, theirs):
            for at, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                if at != 2 or step % 3:  # the last has none now and then
                    weight.grad = gradient.clone()
        mine.step()
        other.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
