"""The printed error of a cost model is the one that was measured."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from assay.record import catalogue
from assay.record.types import Evidence
from assay.sim import trust

ROOT = Path(__file__).parents[2]
ROOFLINE = ("lmetric", "balanceroute", "taper", "nitsum", "flying-serving", "driftsched", "rcllm", "coral", "sidp")


def test_the_stored_errors_are_those_of_the_measured_runs() -> None:
    found = runpy.run_path(str(ROOT / "benchmarks" / "cost_error.py"), run_name="errors")["errors"]()
    assert trust.FILE.read_text() == trust.as_toml(found)


def test_what_is_printed_is_what_is_stored() -> None:
    stored = trust.measured()["roofline"]
    said = trust.sentence("roofline")
    assert f"{stored.ttft:.0%}".replace("%", " %") in said
    assert f"{stored.tpot:.0%}".replace("%", " %") in said
    assert "H200" in said


@pytest.mark.parametrize("key", ROOFLINE)
def test_a_study_on_modelled_step_times_says_how_far_off_they_are(key: str) -> None:
    study = catalogue.study(key)
    assert study.evidence is not Evidence.REAL
    assert study.trust == trust.sentence("roofline")


def test_a_model_study_without_a_measured_error_says_so() -> None:
    assert "no measured node" in catalogue.study("helm").trust
