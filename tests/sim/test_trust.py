"""The printed error of a cost model is the one that was measured."""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.record import catalogue
from assay.record.types import Evidence
from assay.sim import profiles, trust

ROOT = Path(__file__).parents[2]
ROOFLINE = ("lmetric", "balanceroute", "nitsum", "flying-serving", "driftsched", "rcllm", "coral", "sidp")
MEASURED = {"taper": "h200:qwen3-32b"}


@cache
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "cost_error.py"), run_name="errors")


def test_the_stored_errors_are_those_of_the_measured_runs() -> None:
    assert trust.FILE.read_text() == trust.as_toml(script()["errors"]())


@pytest.mark.parametrize("name", profiles.names())
def test_the_stored_step_times_are_the_fit_to_what_was_measured(name: str) -> None:
    gpu, model = name.split(":")
    again, kept = script()["fitted"](model), profiles.profile(gpu, model)
    assert kept is not None
    assert replace(again, cost=kept.cost) == kept  # how far it reaches, and what it is of
    for b, context, chunks in ((1, 300, ()), (40, 50_000, ()), (9, 4000, ((500, 64),)), (0, 0, ((2000, 0),))):
        assert kept.cost.seconds(b, context, chunks) == pytest.approx(again.cost.seconds(b, context, chunks), rel=1e-3)


@pytest.mark.parametrize("name", profiles.names())
def test_no_iteration_of_a_run_that_judges_was_fitted_to(name: str) -> None:
    model = name.split(":")[1]
    fitted_to = set(script()["calibration"](model))
    judging = [step for run in script()["held_back"]() if run.model == model for step in run.steps]
    assert len(judging) > 100
    assert not fitted_to & set(judging)


def test_measured_step_times_err_less_than_data_sheets() -> None:
    sheets = trust.measured()["roofline"]
    for name in profiles.names():
        mine = trust.measured()[name]
        assert (mine.ttft, mine.tpot, mine.step) < (sheets.ttft, sheets.tpot, sheets.step)
        assert mine.tpot < 0.5 * sheets.tpot


def test_what_is_told_is_of_what_was_used() -> None:
    kept = trust.measured()["h200:qwen3-32b"]
    said = trust.told([("h200:qwen3-32b", "measured")])
    assert f"{kept.ttft:.0%}".replace("%", " %") in said
    assert f"{kept.tpot:.0%}".replace("%", " %") in said
    assert "data sheets" not in said
    mixed = trust.told([("h200:qwen3-32b", "measured"), ("l4:qwen3-8b", "roofline"), ("h200:qwen3-32b:tp4", "scaled")])
    assert said in mixed
    assert "of l4:qwen3-8b come from data sheets" in mixed
    assert "On l4 nothing was measured." in mixed
    assert "Other cuts of h200:qwen3-32b take data sheets times" in mixed
    assert "none of them was measured" in mixed
    assert trust.told([("h200:qwen3-8b", "roofline")]) == trust.sentence("roofline")
    assert "calibrate" in trust.told([("fitted:mine.toml", "fitted")])


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


@pytest.mark.parametrize("key", MEASURED)
def test_a_study_of_measured_models_says_how_far_off_those_are(key: str) -> None:
    study = catalogue.study(key)
    assert study.evidence is not Evidence.REAL
    assert study.trust == trust.sentence(MEASURED[key])


def test_a_model_study_without_a_measured_error_says_so() -> None:
    assert "no measured node" in catalogue.study("helm").trust
