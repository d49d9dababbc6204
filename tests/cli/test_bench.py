"""`assay bench`: compare, run and watch on a real repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from assay.cli.bench import command
from assay.observe.bench import history, lab
from assay.observe.bench.history import Measured, Run
from assay.record.errors import BadInput
from assay.sim.random import stream

QUICK = "rounds = 3\nsample = 0.0001\npairs = 20\ninstructions = 'never'\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    lab.history(tmp_path / "r", [0.0, 7.0])
    (tmp_path / "r" / "bench.toml").write_text(QUICK + lab.CONFIG.replace("min_change = 0.01\n", ""))
    return tmp_path / "r"


def invoke(repository: Path, *words: str) -> Result:
    name, *rest = words
    return CliRunner().invoke(command, [name, "--config", str(repository / "bench.toml"), *rest])


def test_a_regression_ends_in_one_and_says_how_large(repository: Path) -> None:
    result = invoke(repository, "compare", "HEAD~1", "HEAD", "--json")
    answer = json.loads(result.stdout)
    (one,) = answer["benchmarks"]
    assert result.exit_code == 1 and one["decision"] == "regression"  # eight times the work: no noise hides that
    assert one["time"]["change"] > 1.0 and one["time"]["low"] > 0
    assert answer["head"]["dirty"] is False and len(answer["digest"]) == 20 and "cpu" in answer["fingerprint"]


def test_an_improvement_ends_in_zero_and_is_told_in_a_table(repository: Path) -> None:
    result = invoke(repository, "compare", "HEAD", "HEAD~1")
    assert result.exit_code == 0
    assert "✓ improvement" in result.output and "simulate" in result.output
    assert "probability below 0.01" in result.output


def test_a_benchmark_that_did_not_run_ends_in_two(repository: Path) -> None:
    with (repository / "bench.toml").open("a") as file:
        file.write('[benchmark.gone]\ncall = "spiking.network:gone"\n')
    result = invoke(repository, "compare", "HEAD~1", "HEAD~1", "--only", "gone")
    assert result.exit_code == 2 and "! error" in result.output and "gone" in result.output


def test_the_working_tree_is_a_side_too_and_marked_when_dirty(repository: Path) -> None:
    source = repository / "spiking" / "network.py"
    source.write_text(source.read_text().replace("STEPS = 8000", "STEPS = 8001"))
    result = invoke(repository, "compare", "HEAD~1", ".")
    assert result.exit_code == 1 and "+dirty" in result.output and "uncommitted changes" in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("compare", "HEAD", "nowhere"), "is no commit"),
        (("compare", "HEAD", "HEAD", "--only", "nothing"), "no benchmark 'nothing'"),
        (("compare", "HEAD", "HEAD", "--min-change", "-1"), "smallest change"),
        (("watch",), "no run in"),
        (("watch", "nowhere.csv"), "cannot read"),
        (("run", "--at", "nowhere"), "is no commit"),
    ],
)
def test_bad_input_is_one_line(repository: Path, words: tuple[str, ...], says: str) -> None:
    result = invoke(repository, *words)
    assert isinstance(result.exception, BadInput) and says in str(result.exception)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["run", "--config", str(tmp_path / "bench.toml")])
    assert isinstance(result.exception, BadInput) and "cannot read" in str(result.exception)


def test_runs_of_past_commits_are_stored_once_and_watched(repository: Path, tmp_path: Path) -> None:
    first = json.loads(invoke(repository, "run", "--last", "3", "--json").stdout)
    assert len(first) == 3 and all(not entry["run"]["dirty"] for entry in first)
    assert "nothing to measure" in invoke(repository, "run", "--last", "3").output
    page = tmp_path / "page.html"
    result = invoke(repository, "watch", "--html", str(page))
    assert result.exit_code == 0 and "simulate" in result.output and page.read_text().count("<svg") == 1


def test_watch_finds_the_step_in_a_history_and_names_the_commits(tmp_path: Path) -> None:
    commits = lab.history(tmp_path / "r", [0.0] * 14 + [0.1] + [0.0] * 10)
    noise = stream(0, "test", "watch").normal(1, 0.01, len(commits))
    for commit, factor in zip(commits, noise, strict=True):
        measured = {"simulate": Measured([commit.work * 1e-6 * float(factor)])}
        stored = Run(commit.name, False, "2026-01-01T00:00:00Z", {}, "d", {}, "m", measured)
        history.save(tmp_path / "r" / "bench-history", stored)
    result = invoke(tmp_path / "r", "watch", "--json")
    (change,) = json.loads(result.stdout)["changes"]
    assert change["kind"] == "regression" and change["after"] == commits[15].name and change["suspects"] == 1
    assert "✗ regression" in invoke(tmp_path / "r", "watch").output


def test_watch_bisects_what_was_not_measured(tmp_path: Path) -> None:
    commits = lab.history(tmp_path / "r", [0.0] * 9 + [7.0] + [0.0] * 9)
    (tmp_path / "r" / "bench.toml").write_text(QUICK + lab.CONFIG.replace("min_change = 0.01\n", ""))
    noise = stream(1, "test", "bisect").normal(1, 0.01, len(commits))
    for position, commit in enumerate(commits):
        if position in (7, 8, 9, 10, 11):
            continue
        measured = {"simulate": Measured([commit.work * 1e-6 * float(noise[position])])}
        stored = Run(commit.name, False, "2026-01-01T00:00:00Z", {}, "d", {}, "m", measured)
        history.save(tmp_path / "r" / "bench-history", stored)
    (wide,) = json.loads(invoke(tmp_path / "r", "watch", "--json").stdout)["changes"]
    assert wide["suspects"] == 6
    (narrow,) = json.loads(invoke(tmp_path / "r", "watch", "--json", "--bisect").stdout)["changes"]
    assert (narrow["before"], narrow["after"], narrow["suspects"]) == (commits[9].name, commits[10].name, 1)


@pytest.mark.parametrize("name", ["compare", "run", "watch"])
def test_help_has_an_example(name: str) -> None:
    assert "Example:" in CliRunner().invoke(command, [name, "--help"]).output
