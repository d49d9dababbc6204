"""`assay check`: a verdict, a drawing and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.check import command
from assay.protocols.judges import lattice
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
    assert result.exit_code == 1  # a stale read
    assert "✗ expected linearizable: violated" in result.output
    assert CliRunner().invoke(command, [str(forked), "--expect", "causal"]).exit_code == 0
    assert result.output.count("strongest that holds") == 2
    assert "what broke sequential:" in result.output and "what broke linearizable:" not in result.output


def test_json_has_every_model(forked: Path) -> None:
    result = CliRunner().invoke(command, [str(forked), "--json"])
    told = json.loads(result.output)
    assert told["maximal"] == ["causal-memory", "causal-convergent"]
    assert {row["model"]: row["verdict"] for row in told["models"]}["sequential"] == "violated"
    one = CliRunner().invoke(command, [str(forked), "--model", "pram", "--json"])
    assert json.loads(one.output)["verdict"] == "holds"


STEPS = {
    "dirty": ('[["append", "x", 1]]', "fail", '[["r", "x", [1]]]', "ok"),
    "lost": ('[["r", "x", []], ["append", "x", 1]]', "ok", '[["r", "x", []], ["append", "x", 2]]', "ok"),
    "fine": ('[["append", "x", 1]]', "ok", '[["r", "x", [1]]]', "ok"),
}


@pytest.mark.parametrize(
    ("case", "level", "code"),
    [("dirty", None, 1), ("lost", None, 1), ("fine", None, 0), ("dirty", "read-uncommitted", 0),
     ("lost", "read-committed", 0), ("lost", "serializable", 1), ("lost", "linearizable", 2)],
)  # fmt: skip
def test_a_dirty_read_and_a_lost_update_fail_unless_less_is_expected(
    tmp_path: Path, case: str, level: str | None, code: int
) -> None:
    first, status, second, other = STEPS[case]
    rows = [(0, first, status), (1, second, other)]
    if case == "lost":
        rows.append((2, '[["r", "x", [1, 2]]]', "ok"))
    path = tmp_path / "history.jsonl"
    lines = []
    for process, steps, end in rows:
        asked = [[f, key, None if f == "r" else value] for f, key, value in json.loads(steps)]
        lines += [{"process": process, "type": "invoke", "f": "txn", "value": asked, "time": len(lines)}]
        lines += [{"process": process, "type": end, "f": "txn", "value": json.loads(steps), "time": len(lines)}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(command, [str(path), *(["--expect", level] if level else [])])
    assert (2 if isinstance(result.exception, BadInput) else result.exit_code) == code, result.output


def test_the_keys_that_are_not_linearizable_are_named(tmp_path: Path) -> None:
    history = planted.registers(30)
    for name, seed in (("stale-read", 1), ("own-write-missed", 2)):
        history, _ = planted.plant(history, name, seed)
    histories.write(tmp_path / "stale.jsonl", history)
    one = CliRunner().invoke(command, [str(tmp_path / "stale.jsonl"), "--model", "per-key-linearizable"])
    assert one.exit_code == 1 and "keys fail: " in one.output
    assert all(key in one.output for key in ("stale-read-x", "own-write-missed-x"))
    told = CliRunner().invoke(command, [str(tmp_path / "stale.jsonl"), "--expect", "per-key-linearizable", "--json"])
    rows = {row["model"]: row for row in json.loads(told.output)["models"]}
    assert told.exit_code == 1
    assert sorted(rows["per-key-linearizable"]["keys"]) == ["own-write-missed-x", "stale-read-x"]


def test_every_model_is_named_in_the_help() -> None:
    told = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert all(f" {model}" in told.replace("- ", "-") for model in lattice.MODELS)


@pytest.mark.parametrize(
    ("name", "held", "broken"),
    [("forgotten-session", "serializable", "strong-session-snapshot-isolation"),
     ("late-session", "strong-session-snapshot-isolation", "strong-session-serializable")],
)  # fmt: skip
def test_a_session_that_forgets_fails_where_that_is_expected(tmp_path: Path, name: str, held: str, broken: str) -> None:
    history, _ = planted.plant(planted.transactions(30), name)
    histories.write(tmp_path / "lists.jsonl", history)
    for level, code in ((held, 0), (broken, 1)):
        result = CliRunner().invoke(command, [str(tmp_path / "lists.jsonl"), "--expect", level])
        assert result.exit_code == code, result.output
        assert f"what broke {broken}: G" in result.output


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
