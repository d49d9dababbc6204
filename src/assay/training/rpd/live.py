"""The small model that the live pipeline trains in the study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def example(stages: int, microbatches: int, seed: int) -> tuple[Callable[[], Any], list[Any], Any]:
    """A model of one hidden layer a stage (made anew, alike, by each call), batches, and a loss."""
    import torch
    from torch import nn

    def model() -> nn.Sequential:
        torch.manual_seed(seed)
        middle = [layer for _ in range(stages - 1) for layer in (nn.Linear(16, 16), nn.Tanh())]
        return nn.Sequential(*middle, nn.Linear(16, 1))

    random = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(microbatches):
        x = torch.randn(8, 16, generator=random)
        batches.append((x, x[:, :4].sum(dim=1, keepdim=True).tanh()))
    return model, batches, nn.functional.mse_loss
