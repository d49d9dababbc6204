"""Every command that reads requests is told the unit of their times, and refuses where two are plausible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from assay.record.errors import BadInput
from assay.serving.coral.compare import command as coral
from assay.serving.dooly.compare import command as dooly
from assay.serving.flying_serving.compare import command as flying
from assay.serving.nitsum.compare import command as nitsum
from assay.serving.powercap.compare import command as powercap
from assay.serving.sidp.compare import command as sidp
from assay.serving.taper.compare import command as taper
from assay.training.rose.compare import command as rose

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS: dict[str, tuple[click.Command, str, list[str]]] = {
    "coral": (coral, "--trace", ["--market", str(EXAMPLES / "market.csv"), "--models", "qwen3-32b"]),
    "dooly": (dooly, "--trace", ["--config", str(EXAMPLES / "config.json")]),
    "flying-serving": (flying, "--trace", ["--engines", "2xh200:qwen3-32b"]),
    "nitsum": (nitsum, "--trace", ["--gpus", "2xh200:qwen3-32b", "--slo", "chat:ttft=1,tpot=0.05"]),
    "powercap": (powercap, "--trace", []),
    "taper": (taper, "--trace", ["--share", "0.5", "--layout", "h200:qwen3-32b"]),
    "rose": (rose, "--trace", ["--trajectories", str(EXAMPLES / "trajectories.jsonl")]),
}


def doubtful(folder: Path) -> Path:
    """A request every 40 units: 25 a second, or one in 40 seconds."""
    path = folder / "doubtful.jsonl"
    row: dict[str, Any] = {"input_length": 300, "output_length": 20, "tier": "chat"}
    path.write_text("".join(json.dumps({"timestamp": 40 * i + i % 7} | row) + "\n" for i in range(60)))
    return path


def run(name: str, trace: Path, *more: str) -> Any:
    command, option, rest = COMMANDS[name]
    return command.main([option, str(trace), *rest, *more], standalone_mode=False, obj=lambda done, total: None)


@pytest.mark.parametrize("name", COMMANDS)
def test_two_plausible_units_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        run(name, doubtful(tmp_path))
    said = str(refused.value)
    assert said.startswith("doubtful.jsonl: its times are ") and "\n" not in said
    assert "milliseconds" in said and " seconds" in said and "--time-unit" in said


@pytest.mark.parametrize("name", ["dooly", "powercap"])
def test_the_unit_given_is_taken(name: str, tmp_path: Path) -> None:
    answers = [run(name, doubtful(tmp_path), "--time-unit", unit) for unit in ("s", "ms")]
    assert all(answer["table"] for answer in answers)
    assert answers[0]["table"] != answers[1]["table"]


def test_a_job_without_times_needs_no_unit(tmp_path: Path) -> None:
    command = ["--job", str(doubtful(tmp_path)), "--gpus", "2xh200:qwen3-32b"]
    answers = [
        sidp.main([*command, *unit], standalone_mode=False, obj=lambda done, total: None)
        for unit in ([], ["--time-unit", "s"])
    ]
    assert answers[0]["table"] == answers[1]["table"]


def test_a_unit_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="--time-unit ms: one batch regime has no times; add --trace"):
        powercap.main(["--time-unit", "ms"], standalone_mode=False, obj=lambda done, total: None)
    stages = ["--trace", str(EXAMPLES / "branches.jsonl"), "--time-unit", "ms"]
    with pytest.raises(BadInput, match="--time-unit ms: requests with stages have seconds"):
        taper.main(stages, standalone_mode=False, obj=lambda done, total: None)
