"""`assay decompose` on a user's own file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.decompose import command
from assay.record.errors import BadInput


@pytest.fixture
def series(tmp_path: Path) -> Path:
    t = np.arange(24 * 60)
    values = 20 + 4 * np.sin(2 * np.pi * t / 24) + np.random.default_rng(0).normal(0, 0.5, len(t))
    file = tmp_path / "mine.csv"
    file.write_text("time,value\n" + "".join(f"{3600 * i},{v}\n" for i, v in enumerate(values) if i % 50))
    return file


def test_the_json_holds_parts_that_add_up_cycles_forecast_and_backtest(series: Path) -> None:
    ended = CliRunner().invoke(command, [str(series), "--forecast", "5d", "--json"])
    assert ended.exit_code == 0, ended.output
    (told,) = json.loads(ended.stdout)["series"]
    assert [cycle["period"] for cycle in told["cycles"]] == [86400.0]
    for i, value in enumerate(told["values"]):
        parts = [values[i] for values in told["parts"].values()]
        if value is None:
            assert told["parts"]["rest"][i] is None
        else:
            assert sum(parts) == pytest.approx(value, rel=1e-12)
    assert len(told["forecast"]["times"]) == 120
    assert told["backtest"]["ratio"]["value"] < 1.0
    assert "less" in told["backtest"]["sentence"]


def test_people_get_a_table_and_an_honest_sentence(series: Path, tmp_path: Path) -> None:
    noise = tmp_path / "noise.csv"
    values = np.random.default_rng(1).normal(10, 1, 900).cumsum()
    noise.write_text("time,value\n" + "".join(f"{3600 * i},{v}\n" for i, v in enumerate(values)))
    plain = CliRunner().invoke(command, [str(noise), "--period", "1d", "--forecast", "3d"])
    assert plain.exit_code == 0, plain.output
    assert "seasonal naive" in plain.output
    drawn = CliRunner().invoke(command, [str(series), "--plot", str(tmp_path / "parts.svg")])
    assert drawn.exit_code == 0, drawn.output
    assert "always" in drawn.output
    assert (tmp_path / "parts.svg").read_text().startswith("<svg")


def test_a_guide_is_followed(series: Path, tmp_path: Path) -> None:
    guide = tmp_path / "guide.toml"
    guide.write_text('[[cycle]]\nperiod = "12h"\nshape = "smooth"\n')
    ended = CliRunner().invoke(command, [str(series), "--analyst", str(guide), "--json"])
    assert [cycle["period"] for cycle in json.loads(ended.stdout)["series"][0]["cycles"]] == [43200.0]


@pytest.mark.parametrize(
    "words",
    [
        ["--period", "soon"], ["--forecast", "-1d"], ["--series", "other"], ["--value", "nope"], ["--plot", "x.gif"],
        ["--period", "1d", "--analyst", "x.toml"], ["--period", "year"], ["--step", "1s"],
    ],
)  # fmt: skip
def test_wrong_words_are_bad_input(series: Path, words: list[str]) -> None:
    ended = CliRunner().invoke(command, [str(series), *words])
    assert isinstance(ended.exception, BadInput)
    assert "\n" not in str(ended.exception)
