"""`assay decompose` on a user's own file."""

from __future__ import annotations

import json
from collections.abc import Callable
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


@pytest.mark.parametrize("seed", range(3))
def test_of_noise_alone_nothing_is_said_to_beat_the_simple_forecasts(tmp_path: Path, seed: int) -> None:
    """A median of noise errs 30 % less than a copy of noise: that is no merit of the parts."""
    values = 10 + np.random.default_rng(seed).normal(0, 1, 24 * 40)
    file = tmp_path / "noise.csv"
    file.write_text("time,value\n" + "".join(f"{3600 * i},{v}\n" for i, v in enumerate(values)))
    ended = CliRunner().invoke(command, [str(file), "--forecast", "4d", "--json"])
    assert ended.exit_code == 0, ended.output
    tested = json.loads(ended.stdout)["series"][0]["backtest"]
    assert set(tested["simple"]) == {"seasonal naive", "recent median", "drift"}
    best = tested["simple"][tested["best_simple"]]["mase"]["value"]
    assert best == min(one["mase"]["value"] for one in tested["simple"].values())
    assert best < 0.85 * tested["simple"]["seasonal naive"]["mase"]["value"]
    assert "less than" not in tested["sentence"]
    assert tested["ratio"]["high"] >= 1.0


def test_a_line_is_no_merit_of_the_parts_either(tmp_path: Path) -> None:
    values = 10 + 0.02 * np.arange(24 * 40) + np.random.default_rng(5).normal(0, 0.2, 24 * 40)
    file = tmp_path / "line.csv"
    file.write_text("time,value\n" + "".join(f"{3600 * i},{v}\n" for i, v in enumerate(values)))
    ended = CliRunner().invoke(command, [str(file), "--forecast", "4d", "--json"])
    assert json.loads(ended.stdout)["series"][0]["backtest"]["best_simple"] == "drift"


T0 = 1_700_000_000
WAVE = [20 + 4 * np.sin(2 * np.pi * i / 24) for i in range(24 * 12)]


def prometheus_text() -> str:
    lines = [f'heat{{instance="n1"}} {v} {(T0 + 3600 * i) * 1000}\n' for i, v in enumerate(WAVE)]
    return "# TYPE heat gauge\n" + "".join(lines)


def prometheus_answer() -> str:
    values = [[T0 + 3600 * i, str(v)] for i, v in enumerate(WAVE)]
    result = [{"metric": {"__name__": "heat", "instance": "n1"}, "values": values}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def counter() -> str:
    total = np.cumsum([3600 * v for v in WAVE])
    return "".join(f'heat_total{{instance="n1"}} {v} {(T0 + 3600 * i) * 1000}\n' for i, v in enumerate(total))


def otlp_metrics() -> str:
    points = [{"timeUnixNano": str((T0 + 3600 * i) * 10**9), "asDouble": v} for i, v in enumerate(WAVE)]
    metric = {"name": "heat", "gauge": {"dataPoints": points}}
    return json.dumps({"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]})


def otlp_traces() -> str:
    spans = [
        {"traceId": f"{i:032x}", "spanId": f"{i + 1:016x}", "name": "heat",
         "startTimeUnixNano": str((T0 + 3600 * i) * 10**9),
         "endTimeUnixNano": str((T0 + 3600 * i) * 10**9 + int(v * 1e9))}
        for i, v in enumerate(WAVE)
    ]  # fmt: skip
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]})


@pytest.mark.parametrize("written", [prometheus_text, prometheus_answer, counter, otlp_metrics, otlp_traces])
def test_what_a_monitoring_system_wrote_is_opened_too(tmp_path: Path, written: Callable[[], str]) -> None:
    file = tmp_path / "export"
    file.write_text(written())
    ended = CliRunner().invoke(command, [str(file), "--json"])
    assert ended.exit_code == 0, ended.output
    (told,) = json.loads(ended.stdout)["series"]
    assert "heat" in told["series"]
    assert [cycle["period"] for cycle in told["cycles"]] == [86400.0]
    assert max(value for value in told["values"] if value is not None) == pytest.approx(24.0, rel=0.01)
    chosen = CliRunner().invoke(command, [str(file), "--value", "none_such"])
    assert isinstance(chosen.exception, BadInput) and "no series of 'none_such'" in str(chosen.exception)


def test_one_scrape_is_no_series(tmp_path: Path) -> None:
    (tmp_path / "scrape.txt").write_text('up{instance="n1"} 1\n')
    refused = CliRunner().invoke(command, [str(tmp_path / "scrape.txt")])
    assert isinstance(refused.exception, BadInput) and "one scrape is no series" in str(refused.exception)
