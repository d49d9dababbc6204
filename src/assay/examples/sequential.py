"""A model of your own for `assay compare rpd`: a Sequential, its microbatches, and a loss.

assay compare rpd --model examples/sequential.py:job --stages 4
"""

import torch
from torch import nn


def job() -> tuple[nn.Sequential, list[tuple[torch.Tensor, torch.Tensor]], nn.Module]:
    """A model, what it learns from, and the loss."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*hidden, nn.Linear(16, 1))
    inputs = torch.randn(40, 8, 16)
    targets = inputs[..., :4].sum(dim=-1, keepdim=True).tanh()
    return model, list(zip(inputs, targets, strict=True)), nn.MSELoss()
