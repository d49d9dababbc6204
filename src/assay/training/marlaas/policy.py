"""One base model, an adapter for every tenant: a small policy in torch whose rollouts are batched over tenants.

The policy writes a few digits. It sees the prompt, the digit before and the place, through two layers that are frozen;
each has a low-rank product of the tenant's own beside it (LoRA). Rows of several tenants go through the base model in
one pass, each with its own adapter. Products are grouped by tenant, in groups of the same number of rows whoever is
beside them, so that the last bit of a tenant's logits does not depend on its company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

if TYPE_CHECKING:
    import torch

DIGITS = 10
PROMPT, OUTPUT = 3, 2  # digits read and written
WIDTH, RANK = 96, 8
PROMPTS, GROUP = 8, 16  # prompts of a step, and samples of each
CLIP = 0.2  # of the ratio between the policy that learns and the one that wrote

Ints = NDArray[np.int64]


class Task(Protocol):
    """What a tenant brings: prompts of three digits, and how good two digits are as an answer."""

    @property
    def name(self) -> str:
        """Of the tenant; no two have the same."""
        ...

    def reward(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """From 0 to 1."""
        ...


@dataclass(frozen=True)
class Puzzle:
    """A built-in task: the share of the two digits that are right.

    >>> Puzzle("first and last", lambda p: (p[0], p[2])).reward([4, 5, 6], [4, 0])
    0.5
    """

    name: str
    answer: Any

    def reward(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """How many are right."""
        right = self.answer(prompt)
        return sum(int(one == other) for one, other in zip(right, output, strict=True)) / OUTPUT


TASKS = (
    Puzzle("twice", lambda p: (p[0], p[0])),
    Puzzle("odd", lambda p: (p[0] % 2, p[1] % 2)),
    Puzzle("seven", lambda p: (7, 7)),
    Puzzle("large", lambda p: (int(p[0] > 4), int(p[2] > 4))),
    Puzzle("first-two", lambda p: (p[0], p[1])),
    Puzzle("last-two", lambda p: (p[1], p[2])),
    Puzzle("swap", lambda p: (p[2], p[0])),
    Puzzle("one-more", lambda p: ((p[0] + 1) % 10, p[1])),
)


@dataclass
class Adapter:
    """A tenant's own weights and its optimizer."""

    weights: dict[str, torch.Tensor]
    optimiser: torch.optim.Optimizer

    def bits(self) -> dict[str, NDArray[Any]]:
        """A copy that does not change."""
        return {name: weight.detach().numpy().copy() for name, weight in self.weights.items()}


def base(seed: int) -> dict[str, torch.Tensor]:
    """The frozen weights that all tenants share."""
    import torch

    random = stream(seed, "marlaas", "base")
    inputs = PROMPT * DIGITS + DIGITS + 1 + OUTPUT
    first = random.standard_normal((inputs, WIDTH)) / 2
    second = random.standard_normal((WIDTH, DIGITS)) / WIDTH
    return {"first": torch.tensor(first, dtype=torch.float32), "second": torch.tensor(second, dtype=torch.float32)}


def adapter(name: str, seed: int, rate: float = 0.02) -> Adapter:
    """A new tenant's: the second factor is zero, so that it begins as the base model."""
    import torch

    random = stream(seed, "marlaas", "adapter", name)
    inputs = PROMPT * DIGITS + DIGITS + 1 + OUTPUT
    weights = {
        "first.a": random.standard_normal((inputs, RANK)) / 4, "first.b": np.zeros((RANK, WIDTH)),
        "second.a": random.standard_normal((WIDTH, RANK)) / 8, "second.b": np.zeros((RANK, DIGITS)),
    }  # fmt: skip
    tensors = {at: torch.tensor(value, dtype=torch.float32, requires_grad=True) for at, value in weights.items()}
    return Adapter(tensors, torch.optim.Adam(tensors.values(), lr=rate))


def features(prompts: Ints, before: Ints, place: int) -> torch.Tensor:
    """What the policy sees, a row a sequence: one-hot digits of the prompt, the digit before (10: none), the place."""
    import torch

    seen = np.zeros((len(prompts), PROMPT * DIGITS + DIGITS + 1 + OUTPUT), dtype=np.float32)
    for at in range(PROMPT):
        seen[np.arange(len(prompts)), at * DIGITS + prompts[:, at]] = 1.0
    seen[np.arange(len(prompts)), PROMPT * DIGITS + before] = 1.0
    seen[:, PROMPT * DIGITS + DIGITS + 1 + place] = 1.0
    return torch.from_numpy(seen)


def logits(shared: dict[str, Any], adapters: Sequence[dict[str, Any]], rows: Any) -> Any:
    """Logits [tenants, rows, digits] of rows [tenants, rows, features], each tenant's with its own adapter.

    Products go tenant by tenant in groups of the same shape: a product of all rows at once would be blocked, and so
    rounded, by how many tenants there are.
    """
    import torch

    def layer(x: Any, name: str) -> Any:
        own = zip(x, adapters, strict=True)
        return torch.stack([part @ shared[name] + (part @ one[f"{name}.a"]) @ one[f"{name}.b"] for part, one in own])

    return layer(torch.tanh(layer(rows, "first")), "second")


@dataclass(frozen=True)
class Batch:
    """Rollouts of one tenant's step: prompts, what was written, its log-probabilities, and by which version."""

    prompts: Ints
    outputs: Ints
    logprobs: NDArray[np.float32]
    version: int


def prompts(name: str, step: int, seed: int) -> Ints:
    """A step's prompts, each as often as it is sampled."""
    drawn = stream(seed, "marlaas", "prompts", name, step).integers(0, DIGITS, (PROMPTS, PROMPT))
    return np.repeat(drawn, GROUP, axis=0)


def roll(shared: dict[str, Any], tenants: Sequence[tuple[str, int, dict[str, Any], int]], seed: int) -> list[Batch]:
    """Write a step for several tenants at once: (name, step, adapter weights, their version) of each.

    What is drawn depends on the tenant and its step alone.
    """
    import torch

    with torch.no_grad():
        asked = [prompts(name, step, seed) for name, step, _, _ in tenants]
        count = len(asked[0])
        noise = [stream(seed, "marlaas", "draws", name, step).gumbel(size=(OUTPUT, count, DIGITS))
                 for name, step, _, _ in tenants]  # fmt: skip
        before = [np.full(count, DIGITS) for _ in tenants]
        outputs = np.zeros((len(tenants), count, OUTPUT), dtype=np.int64)
        chances = np.zeros((len(tenants), count, OUTPUT), dtype=np.float32)
        for place in range(OUTPUT):
            rows = torch.stack([features(p, b, place) for p, b in zip(asked, before, strict=True)])
            scores = torch.log_softmax(logits(shared, [weights for _, _, weights, _ in tenants], rows), -1).numpy()
            for at in range(len(tenants)):
                chosen = (scores[at] + noise[at][place]).argmax(-1)
                outputs[at, :, place], before[at] = chosen, chosen
                chances[at, :, place] = scores[at][np.arange(count), chosen]
    return [Batch(asked[at], outputs[at], chances[at], tenants[at][3]) for at in range(len(tenants))]


def update(shared: dict[str, Any], learner: Adapter, batch: Batch, rewards: NDArray[np.float64]) -> None:
    """One step of clipped policy gradient with rewards compared within each prompt's group (GRPO)."""
    import torch

    grouped = rewards.reshape(-1, GROUP)
    gain = (grouped - grouped.mean(1, keepdims=True)) / (grouped.std(1, keepdims=True) + 1e-3)
    advantage = torch.from_numpy(gain.reshape(-1).astype(np.float32))
    loss = torch.zeros(())
    before = np.full(len(batch.prompts), DIGITS)
    for place in range(OUTPUT):
        rows = features(batch.prompts, before, place)[None]
        scores = torch.log_softmax(logits(shared, [learner.weights], rows)[0], -1)
        now = scores[torch.arange(len(before)), torch.from_numpy(batch.outputs[:, place])]
        times = torch.exp(now - torch.from_numpy(batch.logprobs[:, place]))
        held = torch.clamp(times, 1 - CLIP, 1 + CLIP)
        loss = loss - torch.minimum(times * advantage, held * advantage).mean()
        before = batch.outputs[:, place]
    learner.optimiser.zero_grad()
    loss.backward()
    learner.optimiser.step()
