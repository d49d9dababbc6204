"""The joules of the roofline against those of a measured GPU: what is printed is what was found."""

from __future__ import annotations

import runpy
from pathlib import Path

from assay.sim import energy_scale

ROOT = Path(__file__).parents[2]


def test_the_stored_factor_and_errors_are_those_of_the_measured_passes() -> None:
    found = runpy.run_path(str(ROOT / "benchmarks" / "energy_error.py"), run_name="scale")["scale"]()
    assert energy_scale.FILE.read_text() == energy_scale.as_toml(found)
    assert found.mean < found.unscaled  # the factor mends more than it spoils, on families it was not found on


def test_what_is_printed_is_what_is_stored() -> None:
    stored, said = energy_scale.measured(), energy_scale.sentence()
    assert f"{100 * stored.mean:.0f} % on average" in said and f"{100 * stored.most:.0f} % at most" in said
    assert stored.gpu.upper() in said
