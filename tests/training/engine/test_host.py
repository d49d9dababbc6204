"""Predictions against real training steps of two gloo processes on this machine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from assay.training.engine.cluster import FP32, Cluster
from assay.training.engine.costs import model_flops, stage_costs
from assay.training.engine.host import OWN, PLAN, _fitted, _line, calibrate, decoder, predicted, step
from assay.training.interface import Job

pytest.importorskip("torch")

# Not what was calibrated with: deeper, wider, longer.
SHAPES = (
    (decoder(4, 256, 8, 768, 2000), Job(16, 128)),
    (decoder(3, 512, 8, 1024, 3000), Job(8, 128)),
    (decoder(6, 320, 5, 960, 1500), Job(4, 384)),
)


@pytest.fixture(scope="module")
def host() -> Cluster:
    """Processor time, for this machine may have others on it."""
    return calibrate(time.process_time)


@pytest.mark.timed
@pytest.mark.parametrize(("shape", "job"), SHAPES, ids=lambda value: getattr(value, "name", ""))
def test_a_real_step_is_predicted_within_15_percent(host: Cluster, shape: object, job: Job) -> None:
    seconds = step(shape, job, rounds=9, clock=time.process_time)  # type: ignore[arg-type]
    assert predicted(host, shape, job) == pytest.approx(seconds, rel=0.15)  # type: ignore[arg-type]


def test_none_of_the_shapes_was_calibrated_with() -> None:
    assert not {shape for shape, _ in SHAPES} & {shape for shape, _ in OWN}


def test_the_fits_find_what_was_planted() -> None:
    m, n, k = np.array([[64.0, 256, 512, 1024], [256, 256, 1536, 768], [256, 512, 512, 768]])
    half = 12.0
    shares = 0.9 * (m / (m + half)) * (n / (n + half)) * (k / (k + half))
    matrix, found = _fitted(m, n, k, shares)
    assert (matrix, found) == pytest.approx((0.9, half), rel=0.05)
    x = np.array([1e4, 1e6, 1e8])
    assert _line(x, 2e-4 + 3e-10 * x) == pytest.approx((2e-4, 3e-10), rel=1e-6)


def test_single_precision_costs_single_precision() -> None:
    """Twice the bytes of an activation, no master copy; FLOPs as before."""
    from dataclasses import replace

    from assay.training.engine.cluster import read

    shape, job = OWN[0]
    half = replace(read("2xh100"), per_node=2)
    single = replace(half, precision=FP32)
    ours, theirs = (stage_costs(shape, cluster, PLAN, job) for cluster in (single, half))
    params = ours.gradient_bytes / 4
    assert ours.state == pytest.approx(16 * params)
    assert theirs.state == pytest.approx(18 * params)
    assert model_flops(shape, job) > 0
