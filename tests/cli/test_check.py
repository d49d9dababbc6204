"""`assay check`: a verdict, a drawing and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.check import command
from assay.record.errors import BadInput
from assay.workloads import histories
from assay.workloads import planted_histories as planted


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    histories.write(tmp_path / "clean.jsonl", planted.registers(30))
    return tmp_path / "clean.jsonl"


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    histories.write(tmp_path / "forked.edn", planted.plant(planted.registers(30), "long-fork")[0], "jepsen-edn")
    return tmp_path / "forked.edn"


def test_a_clean_history_holds_and_ends_in_zero(clean: Path) -> None:
    result = CliRunner().invoke(command, [str(clean), "--model", "linearizable"])
    assert result.exit_code == 0 and "✓ linearizable: holds" in result.output


def test_a_violated_model_ends_in_one_with_a_drawing(forked: Path) -> None:
    result = CliRunner().invoke(command, [str(forked), "--model", "sequential"])
    assert result.exit_code == 1
    assert "✗ sequential: violated" in result.output
    assert "├#" in result.output and "long-fork-x" in result.output


def test_the_strongest_model_is_named_and_what_broke_the_next_one(forked: Path) -> None:
    result = CliRunner().invoke(command, [str(forked)])
    assert result.exit_code == 0
    assert result.output.count("strongest that holds") == 2
    assert "what broke sequential:" in result.output and "what broke linearizable:" not in result.output


def test_json_has_every_model(forked: Path) -> None:
    result = CliRunner().invoke(command, [str(forked), "--json"])
    told = json.loads(result.output)
    assert told["maximal"] == ["causal-memory", "causal-convergent"]
    assert {row["model"]: row["verdict"] for row in told["models"]}["sequential"] == "violated"
    one = CliRunner().invoke(command, [str(forked), "--model", "pram", "--json"])
    assert json.loads(one.output)["verdict"] == "holds"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--model", "eventual"], "no model 'eventual'; there are strongest, linearizable"),
        (["--spec", "heap"], "no specification 'heap'"),
        (["--spec", "bank:much"], "an amount behind 'bank:'"),
        (["--format", "xml"], "no format 'xml'"),
        (["--spec", "queue", "--model", "linearizable"], "a queue knows dequeue, enqueue"),
    ],
)
def test_bad_options_are_refused(clean: Path, options: list[str], what: str) -> None:
    result = CliRunner().invoke(command, [str(clean), *options])
    assert isinstance(result.exception, BadInput) and what in str(result.exception)


def test_a_bank_is_told_what_its_accounts_held(tmp_path: Path) -> None:
    history = [operation for operation in planted.bank(60, processes=3) if operation.invoke >= 0]
    histories.write(tmp_path / "bank.jsonl", history)
    runner = CliRunner()
    assert isinstance(
        runner.invoke(command, [str(tmp_path / "bank.jsonl"), "--model", "linearizable"]).exception, BadInput
    )
    told = runner.invoke(command, [str(tmp_path / "bank.jsonl"), "--model", "linearizable", "--spec", "bank:100"])
    assert told.exit_code == 0, told.output
