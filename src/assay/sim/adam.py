"""Adam as torch has it, operation by operation, for networks that train in a moment. Needs the extra `torch`.

The first optimizer of `torch.optim` in a process loads torch's compiler, which takes longer than a small training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Adam:
    """Kingma and Ba's; `rate` may be changed between steps.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimiser = Adam([weight], rate=0.1)
    >>> (weight**2).sum().backward()
    >>> optimiser.step()
    >>> round(float(weight.detach()), 4)  # the first step is as long as the rate
    0.9
    """

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.parameters, self.rate, self.betas, self.eps = list(parameters), rate, betas, eps
        self._state: dict[int, tuple[int, Tensor, Tensor]] = {}  # steps, means of gradients and of their squares

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for weight in self.parameters:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient."""
        first, second = self.betas
        for at, weight in enumerate(self.parameters):
            if weight.grad is None:
                continue
            steps, mean, square = self._state.get(at) or (0, torch.zeros_like(weight), torch.zeros_like(weight))
            steps += 1
            mean.lerp_(weight.grad, 1 - first)
            square.mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
            below = (square.sqrt() / (1 - second**steps) ** 0.5).add_(self.eps)
            weight.addcdiv_(mean, below, value=-self.rate / (1 - first**steps))
            self._state[at] = steps, mean, square
