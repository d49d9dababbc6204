"""Stages of a torch model, one forward or backward pass at a time: what simulator and live pipeline both call.

A stage's weights are replaced, never changed in place, so the graph of a forward pass keeps those it began with: that
is PipeDream's stash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn


def split(model: nn.Sequential, stages: int) -> list[nn.Sequential]:
    """Cut a Sequential into consecutive stages, with parameters as even as its modules allow.

    >>> from torch import nn
    >>> parts = split(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), 3)
    >>> [len(part) for part in parts]
    [2, 2, 1]
    """
    from torch import nn

    layers = list(model)
    heavy = [at for at, layer in enumerate(layers) if any(True for _ in layer.parameters())]
    if not 1 <= stages <= len(heavy):
        raise BadInput(f"{stages} stages of a model with {len(heavy)} modules that have parameters; at most so many")
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    whole, cuts, so_far, left = sum(sizes), [0], 0, stages - 1
    for rank, at in enumerate(heavy):
        enough = so_far >= whole * len(cuts) / stages or len(heavy) - rank <= left
        if left and at > cuts[-1] and rank > len(cuts) - 1 and enough:
            cuts.append(at)
            left -= 1
        so_far += sizes[at]
    return [nn.Sequential(*layers[a:b]) for a, b in zip(cuts, [*cuts[1:], len(layers)], strict=True)]


class Stage:
    """One stage at work: its weights now, and the passes that are on their way."""

    def __init__(self, module: nn.Module, rate: float, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        self.module, self.rate, self.loss = module, rate, loss
        self.names = [name for name, _ in module.named_parameters()]
        self.weights = [p.detach().clone().requires_grad_() for p in module.parameters()]
        self.version = 0
        self.passing: dict[int, tuple[Any, Any, list[Tensor], int]] = {}
        self.losses: list[float] = []

    def forward(self, microbatch: int, given: Tensor, target: Tensor | None = None) -> Tensor:
        """A pass with the weights as they are; the last stage's ends in a loss."""
        import torch

        given = given.detach()
        if given.is_floating_point():
            given.requires_grad_()
        weights = self.weights
        out = torch.func.functional_call(self.module, dict(zip(self.names, weights, strict=True)), (given,))
        if self.loss is not None:
            assert target is not None
            out = self.loss(out, target)
            self.losses.append(float(out.detach()))
        self.passing[microbatch] = given, out, weights, self.version
        result: Tensor = out.detach()
        return result

    def backward(self, microbatch: int, gradient: Tensor | None) -> tuple[Tensor | None, int]:
        """The way back through the weights it went forth with, and the update; returns the gradient of what was given,
        and how many versions old those weights were."""
        import torch

        given, out, weights, version = self.passing.pop(microbatch)
        inputs = [*weights, *([given] if given.requires_grad else [])]
        found = torch.autograd.grad(out, inputs, gradient)
        with torch.no_grad():
            now = zip(self.weights, found, strict=False)
            self.weights = [(w - self.rate * g).requires_grad_() for w, g in now]
        age = self.version - version
        self.version += 1
        return (found[-1] if given.requires_grad else None), age


def simulated(
    parts: Sequence[nn.Module], slots: Any, batches: Sequence[tuple[Tensor, Tensor]], rate: float, loss: Any
) -> list[Stage]:
    """All stages in one process, slot by slot."""
    last = len(parts) - 1
    stages = [Stage(part, rate, loss if at == last else None) for at, part in enumerate(parts)]
    carried: dict[tuple[int, int], Any] = {}  # what goes into a stage's pass
    back: dict[tuple[int, int], Any] = {}
    for row in slots:
        for s, op in enumerate(row.tolist()):
            m = abs(op) - 1
            if op > 0:
                given = batches[m][0] if s == 0 else carried.pop((m, s))
                out = stages[s].forward(m, given, batches[m][1] if s == last else None)
                if s < last:
                    carried[m, s + 1] = out
            elif op < 0:
                gradient, _ = stages[s].backward(m, None if s == last else back.pop((m, s)))
                if s:
                    back[m, s - 1] = gradient
    return stages


def character_model(letters: int, tokens: int, width: int, stages: int, seed: int) -> list[nn.Module]:
    """Embedding, `stages` - 2 transformer blocks, head."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(tokens, width)

        def forward(self, ids: Tensor) -> Tensor:
            return torch.as_tensor(self.letter(ids) + self.place.weight[: ids.shape[1]])

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.mix(self.before(x)).chunk(3, dim=-1)
            seen = q @ k.transpose(-1, -2) / width**0.5
            later = torch.ones(x.shape[1], x.shape[1]).triu(1) * -1e9
            x = x + self.out((seen + later).softmax(-1) @ v)
            return x + torch.as_tensor(self.down(functional.gelu(self.up(self.between(x)))))

    torch.manual_seed(seed)
    return [
        Embedding(),
        *(Block() for _ in range(stages - 2)),
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters)),
    ]
