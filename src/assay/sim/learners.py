"""Small reinforcement learners for controllers with a few numbers in and a few out.

A learner's `fit(env, steps, seed)` returns a plain NumPy :class:`Mlp`: training needs torch, running does not. An
environment runs many lanes at once (nodes, machines, replicas of a simulator) and is any object with

    reset(seed) -> observations[lane, feature]
    step(actions[lane, action]) -> observations, rewards[lane], done        actions lie in -1..1; done ends all lanes

>>> net = Mlp([np.eye(2), np.array([[1.0], [1.0]])], [np.zeros(2), np.zeros(1)])
>>> net(np.array([[0.0, 0.0]])).tolist()
[[0.0]]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

Floats = NDArray[np.float64]


class Env(Protocol):
    """Lanes that are stepped together."""

    def reset(self, seed: int) -> Floats:
        """Begin an episode; returns observations[lane, feature]."""

    def step(self, actions: Floats) -> tuple[Floats, Floats, bool]:
        """Observations, rewards, and whether the episode is over."""


@dataclass(frozen=True, eq=False)
class Mlp:
    """A tanh network whose output also passes tanh, so that it lies in -1..1. Inference is a few small products.

    >>> Mlp([np.zeros((3, 1))], [np.zeros(1)])(np.ones(3)).tolist()
    [0.0]
    """

    weights: list[Floats]
    biases: list[Floats]

    def __call__(self, x: Floats) -> Floats:
        """Outputs for observations[..., feature]."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = np.tanh(x @ weight + bias)
        return x


def save(path: Path, nets: Mapping[str, Mlp], provenance: Mapping[str, Any]) -> None:
    """Write networks, and where they come from, to one .npz without pickled objects."""
    arrays = {f"{name}.{kind}{i}": array.astype(np.float32) for name, net in nets.items()
              for kind, layer in (("w", net.weights), ("b", net.biases)) for i, array in enumerate(layer)}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part.npz")
    np.savez(aside, allow_pickle=False, provenance=np.array(json.dumps(dict(provenance))), **arrays)
    aside.replace(path)


def load(path: Path) -> tuple[dict[str, Mlp], dict[str, Any]]:
    """The networks and the provenance that :func:`save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key].astype(np.float64) for key in file.files if key != "provenance"}
        provenance = json.loads(str(file["provenance"]))
    names = dict.fromkeys(key.split(".")[0] for key in arrays)
    layers = {name: sum(key.startswith(f"{name}.w") for key in arrays) for name in names}
    nets = {
        name: Mlp([arrays[f"{name}.w{i}"] for i in range(n)], [arrays[f"{name}.b{i}"] for i in range(n)])
        for name, n in layers.items()
    }
    return nets, provenance


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation with a Gaussian policy, for low-dimensional actions.

    Schulman, Wolski, Dhariwal, Radford and Klimov, arXiv:1707.06347, with generalised advantages (arXiv:1506.02438).
    An episode's end is a cut, not a failure: the value behind it is bootstrapped.
    """

    hidden: tuple[int, ...] = (64, 64)
    actions: int = 1
    gamma: float = 0.95
    smoothing: float = 0.95  # GAE's lambda
    clip: float = 0.2
    rate: float = 5e-4
    epochs: int = 6
    minibatch: int = 256
    spread: float = 0.5  # the policy's first standard deviation

    def fit(self, env: Env, steps: int, seed: int) -> Mlp:
        """Train for at least `steps` lane-steps, whole episodes at a time; needs torch."""
        import torch

        torch.set_num_threads(1)
        random = stream(seed, "ppo")
        torch.manual_seed(int(random.integers(2**31)))
        features = env.reset(0).shape[1]
        actor = torch.nn.Sequential(*_layers(features, self.hidden, self.actions), torch.nn.Tanh())
        critic = torch.nn.Sequential(*_layers(features, self.hidden, 1))
        log_spread = torch.nn.Parameter(torch.full((self.actions,), float(np.log(self.spread))))
        parameters = [*actor.parameters(), *critic.parameters(), log_spread]
        optimiser = torch.optim.Adam(parameters, lr=self.rate)
        done = 0
        while done < steps:
            seen, actions, rewards = self._episode(env, int(random.integers(2**31)), actor, log_spread)
            batch = self._batch(seen, actions, rewards, actor, critic, log_spread)
            done += rewards.size
            for _ in range(self.epochs):
                order = torch.from_numpy(random.permutation(rewards.size))
                for chosen in order.split(self.minibatch):
                    loss = self._loss(actor, critic, log_spread, [part[chosen] for part in batch])
                    optimiser.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
                    optimiser.step()
        linear = [layer for layer in actor if isinstance(layer, torch.nn.Linear)]
        arrays = [[p.detach().numpy().astype(np.float64) for p in (layer.weight.T, layer.bias)] for layer in linear]
        return Mlp([weight for weight, _ in arrays], [bias for _, bias in arrays])

    def _episode(self, env: Env, seed: int, actor: Any, log_spread: Any) -> tuple[Any, Any, Floats]:
        """One episode: observations (one more than steps), actions, rewards; time first, then lanes."""
        import torch

        observations, actions, rewards = [torch.as_tensor(env.reset(seed), dtype=torch.float32)], [], []
        over = False
        while not over:
            with torch.no_grad():
                mean = actor(observations[-1])
                actions.append(mean + log_spread.exp() * torch.randn_like(mean))
            seen, reward, over = env.step(np.clip(actions[-1].numpy().astype(np.float64), -1.0, 1.0))
            observations.append(torch.as_tensor(seen, dtype=torch.float32))
            rewards.append(reward)
        return torch.stack(observations), torch.stack(actions), np.array(rewards)

    def _batch(self, seen: Any, actions: Any, rewards: Floats, *nets: Any) -> list[Any]:
        """Observation, action, its log-density, advantage and return, one row a lane-step."""
        import torch

        actor, critic, log_spread = nets
        with torch.no_grad():
            value = critic(seen).squeeze(-1).numpy().astype(np.float64) / (1 - self.gamma)
            density = _log_density(actor(seen[:-1]), log_spread, actions)
        surplus = rewards + self.gamma * value[1:] - value[:-1]
        advantage, carry = np.zeros_like(surplus), np.zeros(surplus.shape[1])
        for t in range(len(surplus) - 1, -1, -1):
            carry = surplus[t] + self.gamma * self.smoothing * carry
            advantage[t] = carry
        target = (advantage + value[:-1]) * (1 - self.gamma)  # the critic works in the scale of one reward
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rest = [torch.as_tensor(x.reshape(-1), dtype=torch.float32) for x in (scaled, target)]
        return [seen[:-1].flatten(0, 1), actions.flatten(0, 1), density.flatten(), *rest]

    def _loss(self, actor: Any, critic: Any, log_spread: Any, batch: list[Any]) -> Any:
        seen, action, before, advantage, target = batch
        ratio = (_log_density(actor(seen), log_spread, action) - before).exp()
        gain = (ratio * advantage).minimum(ratio.clamp(1 - self.clip, 1 + self.clip) * advantage)
        return (critic(seen).squeeze(-1) - target).square().mean() - gain.mean()


def _log_density(mean: Any, log_spread: Any, action: Any) -> Any:
    """Of a Gaussian, up to a constant, summed over the action's numbers."""
    return -(0.5 * ((action - mean) / log_spread.exp()).square() + log_spread).sum(-1)


def _layers(features: int, hidden: tuple[int, ...], out: int) -> list[Any]:
    import torch

    layers: list[Any] = []
    for a, b in pairwise((features, *hidden)):
        layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
    last = torch.nn.Linear(hidden[-1], out)
    torch.nn.init.normal_(last.weight, std=0.01)  # begin by doing next to nothing
    torch.nn.init.zeros_(last.bias)
    return [*layers, last]
