"""What is minimised: a random quadratic, logistic regression, a small language model; weights in blocks, one a stage.

An objective takes several weight vectors at once, one for each step size that is tried: `[step size, weight]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from assay.sim.random import stream
from assay.training.interface import Floats


class Objective(Protocol):
    """A mean of losses over microbatches."""

    @property
    def start(self) -> Floats:
        """The weights before any step."""
        ...

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where one block ends and the next begins."""
        ...

    @property
    def microbatches(self) -> int:
        """How many there are."""
        ...

    def gradient(self, weights: Floats, microbatch: int) -> Floats:
        """Of one microbatch's loss, for each row of weights."""
        ...

    def loss(self, weights: Floats) -> Floats:
        """Over all of them."""
        ...


def blocks(weights: int, stages: int) -> tuple[int, ...]:
    """Cuts into blocks as equal as can be.

    >>> blocks(10, 3)
    (3, 6)
    """
    return tuple(int(cut) for cut in np.linspace(0, weights, stages + 1).astype(int)[1:-1])


@dataclass(frozen=True)
class Linear:
    """Losses of a linear model, with a slope by its output and label."""

    x: Floats
    y: Floats
    batch: int
    cuts: tuple[int, ...]
    logistic: bool
    ridge: float = 1e-4

    @property
    def start(self) -> Floats:
        """All zero."""
        return np.zeros(self.x.shape[1])

    @property
    def microbatches(self) -> int:
        """Of an epoch."""
        return len(self.x) // self.batch

    @property
    def smoothness(self) -> float:
        """The largest curvature."""
        top = float(np.linalg.eigvalsh(self.x.T @ self.x / len(self.x))[-1])
        return (0.25 if self.logistic else 1.0) * top + self.ridge

    def gradient(self, weights: Floats, microbatch: int) -> Floats:
        """Of a microbatch's mean loss."""
        some = slice(microbatch * self.batch, (microbatch + 1) * self.batch)
        x, y = self.x[some], self.y[some]
        out = weights @ x.T
        error = (_sigmoid(out) if self.logistic else out) - y
        return np.asarray(error @ x / len(x) + self.ridge * weights)

    def loss(self, weights: Floats) -> Floats:
        """Mean over all samples; infinite where weights are."""
        out = weights @ self.x.T
        each = np.logaddexp(0.0, out) - out * self.y if self.logistic else (out - self.y) ** 2 / 2
        found = each.mean(axis=1) + self.ridge / 2 * (weights**2).sum(axis=1)
        return np.where(np.isfinite(found), found, np.inf)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def linear(kind: str, stages: int, seed: int, weights: int = 512, microbatches: int = 60, batch: int = 10) -> Linear:
    """A `quadratic` or `logistic` problem: drawn features, drawn true weights, labels from them.

    >>> linear("logistic", 4, seed=0).smoothness > 0
    True
    """
    random = stream(seed, "rpd", kind)
    x = random.normal(size=(microbatches * batch, weights))
    out = x @ random.normal(size=weights)
    y = (random.random(len(x)) < _sigmoid(out)).astype(float) if kind == "logistic" else out
    return Linear(x, y, batch, blocks(weights, stages), kind == "logistic")


@dataclass(frozen=True)
class Modules:
    """Stages of torch with their batches and loss; needs the extra `torch`."""

    start: Floats
    cuts: tuple[int, ...]
    batches: Sequence[tuple[Any, Any]]
    call: Callable[[Any, Any, Any], Any]  # flat weights, inputs, targets -> loss

    @property
    def microbatches(self) -> int:
        """Of an epoch."""
        return len(self.batches)

    @property
    def smoothness(self) -> float:
        """Not known: step sizes are tried around one."""
        return 1.0

    def gradient(self, weights: Floats, microbatch: int) -> Floats:
        """Of a microbatch's mean loss."""
        import torch
        from torch.func import grad, vmap

        rows = torch.from_numpy(weights.astype(np.float32))
        found = vmap(grad(self.call), in_dims=(0, None, None))(rows, *self.batches[microbatch])
        return np.asarray(found.numpy(), np.float64)

    def loss(self, weights: Floats) -> Floats:
        """Mean over all microbatches."""
        import torch
        from torch.func import vmap

        rows = torch.from_numpy(weights.astype(np.float32))
        with torch.no_grad():
            each = [vmap(self.call, in_dims=(0, None, None))(rows, x, y).numpy() for x, y in self.batches]
        found = np.mean(each, axis=0)
        return np.where(np.isfinite(found), found, np.inf)


def modules(parts: Sequence[Any], batches: Sequence[tuple[Any, Any]], loss: Callable[[Any, Any], Any]) -> Modules:
    """An objective of consecutive modules, each of them a block of weights.

    >>> import torch
    >>> some = [(torch.ones(4, 2), torch.ones(4, 1))]
    >>> modules([torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)], some, torch.nn.functional.mse_loss).cuts
    (9,)
    """
    import torch

    model = torch.nn.Sequential(*parts)
    names, shapes = zip(*((name, p.shape) for name, p in model.named_parameters()), strict=True)
    sizes = [shape.numel() for shape in shapes]
    edges = np.cumsum([sum(p.numel() for p in part.parameters()) for part in parts])[:-1]

    def call(flat: Any, inputs: Any, targets: Any) -> Any:
        tensors = {n: v.view(s) for n, v, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return loss(torch.func.functional_call(model, tensors, (inputs,)), targets)

    start = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()]).astype(np.float64)
    return Modules(start, tuple(int(edge) for edge in edges), batches, call)


def language(
    stages: int, seed: int, microbatches: int = 40, rows: int = 4, tokens: int = 16, width: int = 16
) -> Modules:
    """A transformer on a small text: embedding, blocks, head; the blocks of weights are its stages.

    >>> language(4, seed=0, microbatches=2).microbatches
    2
    """
    import torch
    from torch.nn import functional

    from assay.sim import tiny_lm
    from assay.training.rpd.stages import character_model

    ids = np.frombuffer(tiny_lm.text(seed, 200).encode(), np.uint8).astype(np.int64)
    letters, codes = np.unique(ids, return_inverse=True)
    random = stream(seed, "rpd", "language")
    begins = random.integers(0, len(codes) - tokens - 1, (microbatches, rows))
    data = torch.from_numpy(codes[begins[..., None] + np.arange(tokens + 1)])
    batches = [(windows[:, :-1], windows[:, 1:]) for windows in data]

    def next_letter(logits: Any, targets: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return modules(character_model(len(letters), tokens, width, stages, seed), batches, next_letter)
