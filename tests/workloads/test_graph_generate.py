"""Generated graphs have the shape their models promise, and depend on nothing but the seed."""

from __future__ import annotations

import numpy as np
import pytest

from assay.workloads.graph_generate import communities, features, rmat


def test_rmat_is_skewed_as_its_corners_say_and_flat_where_they_are_equal() -> None:
    skewed, flat = rmat(12, 8, seed=3), rmat(12, 8, seed=3, corners=(0.25, 0.25, 0.25))
    top = [np.sort(np.bincount(edges[:, 0], minlength=4096))[-41:].sum() / len(edges) for edges in (skewed, flat)]
    assert top[0] > 0.2 > 0.05 > top[1]  # the busiest hundredth of the nodes
    # Each bit of a source is 1 with probability c + d, independently: so is the share of the emptiest half.
    halves = np.sort(np.bincount(skewed[:, 0], minlength=4096)).reshape(2, -1).sum(axis=1) / len(skewed)
    assert halves[1] > 0.9


def test_rmat_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert np.array_equal(rmat(8, 4, seed=1), rmat(8, 4, seed=1))
    assert not np.array_equal(rmat(8, 4, seed=1), rmat(8, 4, seed=2))


@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_a_share_of_edges_leaves_the_community(mixing: float) -> None:
    made = communities(5000, 10, degree=10, mixing=mixing, seed=2)
    u, v = made.edges.T
    sizes = np.bincount(made.block) / 5000
    expected = 1 - mixing + mixing * (sizes**2).sum()  # some of those that leave come back by chance
    assert abs((made.block[u] == made.block[v]).mean() - expected) < 0.03
    assert len(made.edges) == 50_000 and made.edges.min() >= 0 and made.edges.max() < 5000


def test_degrees_are_uneven_and_unshuffled_communities_lie_together() -> None:
    made = communities(4000, 8, degree=12, seed=5, shuffle=False)
    assert (np.diff(made.block) >= 0).all()
    degrees = np.sort(np.bincount(made.edges[:, 0], minlength=4000))
    assert degrees[-40:].mean() > 5 * degrees.mean()


def test_features_tell_communities_apart_unless_noise_drowns_them() -> None:
    block = np.repeat(np.arange(4), 50)
    rows = features(block, 16, noise=0.1, seed=1)
    centres = np.stack([rows[block == k].mean(axis=0) for k in range(4)])
    nearest = ((rows[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == block).all() and rows.dtype == np.float32


def test_impossible_wishes_are_told() -> None:
    with pytest.raises(ValueError, match="scale 31"):
        rmat(31)
    with pytest.raises(ValueError, match="mixing 2"):
        communities(10, 2, mixing=2)
