"""Who moves the border: HELM's three layers, and the controllers it is compared with.

A controller looks at what each node saw in the last second and returns each node's new ratio. All of them see the
same signals, none sees the name of the regime.

>>> import numpy as np
>>> HillClimb(nodes=1).decide(np.zeros((1, len(FEATURES))), np.array([0.5])).shape
(1,)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.serving.helm.recommender_node import Fleet, Node
from assay.sim import learners
from assay.sim.random import stream
from assay.workloads import recommender_traffic as traffic_of

Floats = NDArray[np.float64]
WEIGHTS = Path(__file__).with_name("weights.npz")
PERIOD = 1.0  # seconds between two decisions
STEP = 0.05  # the base policy's largest move
RESIDUAL = 0.02  # the online layer's largest correction
LOW, HIGH = 0.05, 0.95
WARMUP = 30.0  # seconds in which caches fill; not measured
FEATURES = (
    "group_hit_ratio", "kv_hit_ratio", "rate", "rate_slope", "history_mean", "unique_ratio", "link_utilisation",
    "ratio", "latency_p99",
)  # fmt: skip
(GROUP_HIT, KV_HIT, RATE, SLOPE, HISTORY, UNIQUE, LINK, RATIO, TAIL) = range(len(FEATURES))


class Signals:
    """What a node saw, as numbers around one, smoothed over a few seconds."""

    def __init__(self, nodes: int, target: float) -> None:
        self.values, self.target, self._slow = np.zeros((nodes, len(FEATURES))), target, np.full(nodes, np.nan)

    def update(self, look: dict[str, Floats], ratios: Floats) -> Floats:
        """Take in one period; returns features[node]."""
        rate = look["rate"] / 50.0
        first = bool(np.isnan(self._slow).all())
        self._slow = rate if first else 0.9 * self._slow + 0.1 * rate
        tail = np.log2(1.0 + np.nan_to_num(look["latency_p99"]) / self.target)
        new = np.column_stack((
            look["group_hit_ratio"], look["kv_hit_ratio"], rate, rate - self._slow, look["history_mean"] / 4000.0,
            look["unique_ratio"], look["link_utilisation"], ratios, tail,
        ))  # fmt: skip
        self.values = new if first else self.values + 0.3 * (new - self.values)
        self.values[:, RATIO] = ratios
        return self.values.copy()


def reward(look: dict[str, Floats], moved: Floats, target: float) -> Floats:
    """What a period was worth: the tail against the target, less a little for moving and for a busy link.

    The tail counts by its logarithm (one at the target), lest a single overload outweigh all else that was seen.

    >>> look = {"latency_p99": np.array([0.1]), "link_utilisation": np.array([0.5])}
    >>> reward(look, moved=np.array([0.0]), target=0.2).round(3).tolist()
    [-0.635]
    """
    tail = np.log2(1.0 + np.nan_to_num(look["latency_p99"]) / target)
    return -tail - 0.1 * np.abs(moved) - 0.1 * look["link_utilisation"]


class Controller(Protocol):
    """Moves the borders of all nodes once a period."""

    def decide(self, features: Floats, ratios: Floats) -> Floats:
        """The new ratio of each node."""

    def learn(self, reward: Floats) -> None:
        """How the last decision turned out."""


class HillClimb:
    """Keep moving while the tail falls, else turn round. Step and pause are the best of a sweep over other seeds."""

    def __init__(self, nodes: int, step: float = 0.02, every: int = 2) -> None:
        self._direction, self._last, self._sum = np.ones(nodes), np.full(nodes, np.inf), np.zeros(nodes)
        self._step, self._every, self._count = step, every, 0

    def decide(self, features: Floats, ratios: Floats) -> Floats:
        """One step on, or back, at the end of every stretch."""
        self._sum += features[:, TAIL]
        self._count += 1
        if self._count % self._every:
            return ratios
        tail, self._sum = self._sum / self._every, np.zeros(len(ratios))
        self._direction = np.where(tail > self._last, -self._direction, self._direction)
        self._last = tail
        moved = np.clip(ratios + self._direction * self._step, LOW, HIGH)
        self._direction = np.where(moved == ratios, -self._direction, self._direction)
        return moved

    def learn(self, reward: Floats) -> None:
        """It has nothing to learn from a reward."""


class Residual:
    """Layer 2: a linear correction that follows the gradient of the reward, one step a period.

    Each node tries a little more or less than the layer would say (`noise`); where that was followed by a better reward
    than the node is used to, the layer leans that way: REINFORCE with a running baseline, averaged over nodes.
    """

    def __init__(self, nodes: int, seed: int = 0, rate: float = 1e-4, noise: float = 0.002) -> None:
        self.weights, self._usual = np.zeros(len(FEATURES)), np.full(nodes, np.nan)
        self._random, self._rate, self._noise = stream(seed, "helm", "residual"), rate, noise
        self._tried, self._features = np.zeros(nodes), np.zeros((nodes, len(FEATURES)))

    def correct(self, features: Floats) -> Floats:
        """The correction of each node, within ±RESIDUAL."""
        self._tried = self._random.standard_normal(len(features)) * self._noise
        self._features = features
        return np.minimum(np.maximum(features @ self.weights + self._tried, -RESIDUAL), RESIDUAL)

    def learn(self, reward: Floats) -> None:
        """Lean towards what paid."""
        self._usual = np.where(np.isnan(self._usual), reward, self._usual)
        better = np.clip(reward - self._usual, -1.0, 1.0)
        self._usual += 0.1 * (reward - self._usual)
        self.weights += self._rate * (better * self._tried / self._noise) @ self._features / len(reward)
        norm = float(np.linalg.norm(self.weights))  # keep the lean within what may be applied
        self.weights *= min(1.0, RESIDUAL / max(norm, 1e-12))


class BurstGuard:
    """Layer 3: during a burst the border moves one way only, and no faster than an idle link could refill it.

    A burst is a rate above mean + 3 sigma of the last minute; it is over after five calm periods.
    """

    def __init__(self, nodes: int, node: Node, window: int = 60, calm: int = 5) -> None:
        self._rates, self._count, self._calm = np.zeros((window, nodes)), 0, calm
        self._sum, self._squares = np.zeros(nodes), np.zeros(nodes)  # of the window, kept up as it slides
        self._left, self._way = np.zeros(nodes), np.zeros(nodes)
        self._refill = node.link * PERIOD / node.pool  # share of the pool that an idle link fills in a period

    def limit(self, move: Floats, features: Floats, rate: Floats) -> Floats:
        """The part of each node's move that may be made now."""
        self._watch(rate)
        during = self._left > 0
        if not during.any():
            self._way[:] = 0.0
            return move
        self._way = np.where(during, np.where(self._way == 0, np.sign(move), self._way), 0.0)
        idle = np.maximum(0.0, 1.0 - features[:, LINK]) * self._refill
        allowed = np.where(move * self._way >= 0, np.minimum(np.maximum(move, -idle), idle), 0.0)
        return np.where(during, allowed, move)

    def _watch(self, rate: Floats) -> None:
        """Note the rate, and for how many periods a burst still counts."""
        n = min(self._count, len(self._rates))
        if n >= 10:
            mean = self._sum / n
            sigma = np.sqrt(np.maximum(self._squares / n - mean * mean, 0.0))
            self._left = np.where(rate > mean + 3.0 * sigma, self._calm, np.maximum(self._left - 1, 0))
        slot = self._count % len(self._rates)
        self._sum += rate - self._rates[slot]
        self._squares += rate * rate - self._rates[slot] ** 2
        self._rates[slot] = rate
        self._count += 1


class Layered:
    """HELM: a frozen network, an online correction, and a guard for bursts; each layer may be left out."""

    def __init__(
        self, base: learners.Mlp, *, residual: Residual | None = None, guard: BurstGuard | None = None
    ) -> None:
        self._base, self._residual, self._guard = base, residual, guard

    def decide(self, features: Floats, ratios: Floats) -> Floats:
        """Base move, plus correction, within what the guard lets through."""
        move = STEP * self._base(features)[:, 0]
        if self._residual:
            move = move + self._residual.correct(features)
        if self._guard:
            move = self._guard.limit(move, features, features[:, RATE])
        return np.minimum(np.maximum(ratios + move, LOW), HIGH)

    def learn(self, reward: Floats) -> None:
        """Only the online layer learns."""
        if self._residual:
            self._residual.learn(reward)


def drive(fleet: Fleet, controller: Controller) -> Floats:
    """Run the fleet to the end of its traffic; returns the ratios[period, node] in force."""
    signals, course = Signals(fleet.nodes, fleet.node.target), []
    moved = np.zeros(fleet.nodes)
    while fleet.now < fleet.traffic.duration:
        course.append(fleet.ratios)
        fleet.advance(fleet.now + PERIOD)
        look = fleet.look()
        features = signals.update(look, fleet.ratios)
        controller.learn(reward(look, moved, fleet.node.target))
        before = fleet.ratios
        fleet.split(controller.decide(features, before))
        moved = fleet.ratios - before
    return np.array(course)


# ------------------------------------------------------------------------------------------ training


class BorderEnv:
    """The simulator as an environment: every node is a lane; an episode runs small fleets under all regimes at once."""

    def __init__(self, fleets: int = 6, nodes: int = 2, duration: float = 160.0) -> None:
        self._fleets, self._nodes, self._duration = fleets, nodes, duration

    def reset(self, seed: int) -> Floats:
        """New traffic, and borders anywhere."""
        random = stream(seed, "helm", "episode")
        self._running, self._signals = [], []
        for number in range(self._fleets):
            regime = traffic_of.REGIMES[number % len(traffic_of.REGIMES)]
            # Seeds of studies are small numbers: training never sees their traffic.
            other = 1_000_000 + self._fleets * seed + number
            traffic = traffic_of.generate(regime, self._nodes, self._duration, other, warmup=20.0)
            self._running.append(Fleet(traffic, self._nodes))
            self._running[-1].split(random.uniform(0.1, 0.8, self._nodes))
            self._running[-1].advance(20.0)
            self._signals.append(Signals(self._nodes, self._running[-1].node.target))
        return np.vstack([s.update(f.look(), f.ratios) for s, f in zip(self._signals, self._running, strict=True)])

    def step(self, actions: Floats) -> tuple[Floats, Floats, bool]:
        """Move the borders, serve a second."""
        seen, worth = [], []
        parts = actions[:, 0].reshape(self._fleets, self._nodes)
        for fleet, signals, part in zip(self._running, self._signals, parts, strict=True):
            before = fleet.ratios
            fleet.split(np.clip(before + STEP * part, LOW, HIGH))
            fleet.advance(fleet.now + PERIOD)
            look = fleet.look()
            worth.append(reward(look, fleet.ratios - before, fleet.node.target))
            seen.append(signals.update(look, fleet.ratios))
        return np.vstack(seen), np.concatenate(worth), self._running[0].now >= self._duration


def train(steps: int, seed: int, path: Path = WEIGHTS) -> None:
    """Train the base policy and store it."""
    learners.save(path, {"base": learners.PPO().fit(BorderEnv(), steps, seed)}, provenance(steps, seed))


def provenance(steps: int, seed: int) -> dict[str, Any]:
    """What the stored weights came from."""
    from importlib.metadata import version

    return {
        "paper": "helm", "learner": repr(learners.PPO()), "steps": steps, "seed": seed, "features": FEATURES,
        "node": repr(Node()), "traffic": repr(traffic_of.Shape()),
        "reward": "-log2(1 + p99/target) - 0.1 |move| - 0.1 link utilisation",
        "command": f"python -c 'from assay.serving import helm_policy; helm_policy.train({steps}, {seed})'",
        "versions": {name: version(name) for name in ("torch", "numpy", "numba")},
    }  # fmt: skip
