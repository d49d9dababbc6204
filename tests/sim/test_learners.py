from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.sim import learners
from assay.sim.random import stream


class Follow:
    """Each lane has a position and a goal; the action moves the position, the reward is how near it is."""

    def reset(self, seed: int) -> learners.Floats:
        random = stream(seed, "follow")
        self.at, self.goal, self.steps = random.uniform(-1, 1, 16), random.uniform(-1, 1, 16), 0
        return np.column_stack((self.at, self.goal))

    def step(self, actions: learners.Floats) -> tuple[learners.Floats, learners.Floats, bool]:
        self.at = np.clip(self.at + 0.2 * actions[:, 0], -1, 1)
        self.steps += 1
        return np.column_stack((self.at, self.goal)), -np.abs(self.at - self.goal), self.steps == 30


def worth(net: learners.Mlp, seed: int) -> float:
    env, rewards, over = Follow(), [], False
    seen = env.reset(seed)
    while not over:
        seen, reward, over = env.step(net(seen))
        rewards.append(reward)
    return float(np.mean(rewards))


class TestPPO:
    def test_it_learns_to_follow_a_goal(self) -> None:
        pytest.importorskip("torch")
        idle = learners.Mlp([np.zeros((2, 1))], [np.zeros(1)])
        net = learners.PPO(hidden=(16, 16), rate=3e-3, gamma=0.9).fit(Follow(), steps=20_000, seed=0)
        assert worth(net, 5) > 0.4 * worth(idle, 5)  # rewards are negative: less than half as far from the goal

    def test_the_same_seed_gives_the_same_network(self) -> None:
        pytest.importorskip("torch")
        a, b, c = (learners.PPO(hidden=(8,)).fit(Follow(), steps=480, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))
        assert not np.array_equal(a.weights[0], c.weights[0])


class TestFiles:
    def test_networks_come_back_with_their_provenance(self, tmp_path: Path) -> None:
        random = stream(0, "nets")
        nets = {
            name: learners.Mlp(
                [random.random((3, 4)).astype(np.float32).astype(float), random.random((4, 1)).round(2)],
                [np.zeros(4), np.ones(1)],
            )
            for name in ("a", "b")
        }
        learners.save(tmp_path / "deep" / "nets.npz", nets, {"steps": 7, "why": "test"})
        back, provenance = learners.load(tmp_path / "deep" / "nets.npz")
        assert provenance == {"steps": 7, "why": "test"}
        assert list(back) == ["a", "b"]
        x = random.random((5, 3))
        assert np.allclose(back["b"](x), nets["b"](x), atol=1e-6)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["nets.npz"]
