"""What was measured on a GPU: the stored fit is that of the stored measurements, and predicts steps held out."""

from __future__ import annotations

from functools import cache

import pytest

from assay.training.engine import gpu, planning
from assay.training.engine.cluster import attained, read


@cache
def anew() -> gpu.Known:
    found = gpu.measurements("h200")
    return gpu.judged(found, gpu.fit(found))


def test_the_stored_fit_is_that_of_the_stored_measurements() -> None:
    stored = gpu.known("h200")
    assert stored is not None
    assert vars(anew().efficiency) == pytest.approx(vars(stored.efficiency), abs=1e-3, rel=1e-3)
    assert anew().steps == pytest.approx(stored.steps, abs=1e-3)
    assert anew().memory == pytest.approx(stored.memory, abs=1e-3)


def test_steps_that_were_held_out_are_within_eight_percent() -> None:
    assert len(anew().steps) >= 4
    assert anew().worst <= 0.08


def test_their_memory_is_within_eight_percent() -> None:
    assert max(map(abs, anew().memory.values())) <= 0.08


def test_the_fit_looks_at_operations_and_calibration_only() -> None:
    found = gpu.measurements("h200")
    kept = [step for step in found["steps"] if step["kind"] == "calibration"]
    assert gpu.fit(found | {"steps": kept}) == anew().efficiency
    assert {step["name"] for step in kept}.isdisjoint(anew().steps)


def test_no_step_held_out_is_made_of_products_that_were_fitted() -> None:
    """Layers' matrices have sizes of their own: what is predicted is not looked up."""
    found = gpu.measurements("h200")
    seen = {(one["n"], one["k"]) for one in found["products"]}
    for step in (step for step in found["steps"] if step["kind"] == "held out"):
        heads, width = step["heads"] + 2 * step["kv_heads"], step["head_dim"]
        sides = {(heads * width, step["hidden"]), (2 * step["ffn"], step["hidden"]), (step["hidden"], step["ffn"])}
        assert not sides <= seen, step["name"]


def test_where_a_device_was_measured_clusters_use_it_and_answers_say_how_far_off_it_is() -> None:
    stored = gpu.known("h200")
    assert stored is not None
    assert read("8xh200").efficiency == stored.efficiency == attained("h200")
    assert f"off by {stored.mean:.0%} in the mean and {stored.worst:.0%} at most".replace("%", " %") in planning.trust(
        read("8xh200")
    )
    assert read("8xh100").efficiency == stored.efficiency  # the same chip
    assert "assumed" in planning.trust(read("8xa100"))
