"""`assay verify`: what a person or a script sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.cli.verify import command
from assay.protocols import taco
from assay.protocols.automata.verify import Finding, Verdict
from assay.record.errors import BadInput
from tests.conftest import Package

LIBRARY = Path(taco.__file__).parent / "library"
BROADCAST = str(LIBRARY / "broadcast.ta")


def test_proofs_end_in_zero_and_a_table(package: Package) -> None:
    shown = package.assay("verify", BROADCAST).stdout
    assert "unforgeability" in shown
    assert shown.count("proved") == 2


def test_a_violation_is_drawn_and_ends_in_one(package: Package) -> None:
    shown = package.assay("verify", BROADCAST, "--weaken", "n >= 3*t", "--spec", "relay", code=1).stdout
    assert "relay is violated at n = 3, t = 1, f = 1" in shown
    assert "having -> relayed" in shown


def test_json_has_every_finding_with_its_run(package: Package) -> None:
    found = package.assay("verify", BROADCAST, "--weaken", "f <= t + 1", "--algorithm", "all", "--json", code=1).stdout
    answer = json.loads(found)
    rows = [row for row in answer["findings"] if row["specification"] == "unforgeability"]
    assert [row["algorithm"] for row in rows] == ["smt", "acs", "zcs", "explicit"]
    assert {row["verdict"] for row in rows} == {"violated"}
    assert all(row["counterexample"]["steps"][-1]["processes"]["accepted"] >= 1 for row in rows)
    assert "n > 3*t" in answer["automaton"]["assumptions"]


def written(tmp_path: Path, specification: str) -> str:
    text = (LIBRARY / "broadcast.ta").read_text()
    path = tmp_path / "own.ta"
    path.write_text(f"{text[: text.index('specifications')]}specifications {{ own: {specification}; }}\n}}\n")
    return str(path)


def test_what_is_unsupported_or_unknown_does_not_end_in_zero(tmp_path: Path) -> None:
    nested = written(tmp_path, "[](accepted == 0 || <>([](accepted > 0 || <>(having == 0))))")
    ended = CliRunner().invoke(command, [nested])
    assert ended.exit_code == 1
    assert "unsupported" in ended.output
    ended = CliRunner().invoke(command, [BROADCAST, "--algorithm", "acs"])
    assert (ended.exit_code, "proved" in ended.output, "unsupported" in ended.output) == (1, True, True)


def test_an_unknown_answer_ends_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Finding("first", "safety", Verdict.PROVED, "smt", 0.5)
    open_question = Finding("second", "safety", Verdict.UNKNOWN, "smt", 60.0, "no answer in 60 s")
    monkeypatch.setattr("assay.protocols.automata.verify.verify", lambda *_, **__: iter([known, open_question]))
    ended = CliRunner().invoke(command, [BROADCAST])
    assert (ended.exit_code, "unknown" in ended.output) == (1, True)


def test_one_algorithm_that_proves_it_is_enough() -> None:
    ended = CliRunner().invoke(command, [BROADCAST, "--spec", "unforgeability", "--algorithm", "all"])
    assert ended.exit_code == 0


def test_resets_are_decided_without_being_asked_how() -> None:
    ended = CliRunner().invoke(command, [str(LIBRARY / "rounds.eta"), "--spec", "unforgeability"])
    assert (ended.exit_code, "proved" in ended.output, "acs" in ended.output) == (0, True, True)


def test_answers_are_printed_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[Finding]:
        yield Finding("first", "safety", Verdict.PROVED, "smt", 0.5)
        raise BadInput("and then the machine was switched off")

    monkeypatch.setattr("assay.protocols.automata.verify.verify", interrupted)
    ended = CliRunner().invoke(command, [BROADCAST])
    assert "first" in ended.output
    assert isinstance(ended.exception, BadInput)


def test_one_size_can_be_searched(package: Package) -> None:
    answer = package.json("verify", BROADCAST, "--algorithm", "explicit", "--parameters", "n=4,t=1,f=1")
    assert [row["verdict"] for row in answer["findings"]] == ["checked", "checked"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.ta"], "cannot read absent.ta: No such file or directory"),
        ([BROADCAST, "--spec", "x"], "no specification 'x' in Broadcast; there are unforgeability, relay"),
        ([BROADCAST, "--weaken", "n >= 3*q"], "condition:1:8: unknown name 'q'"),
        ([BROADCAST, "--parameters", "n=4"], "--parameters fixes the size for '--algorithm explicit'"),
        ([BROADCAST, "--algorithm", "explicit", "--parameters", "n=four"], "expected NAME=NUMBER"),
        ([BROADCAST, "--algorithm", "explicit", "--parameters", "n=3,t=1,f=1"], "do not admit n=3, t=1, f=1"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], says: str) -> None:
    ended = CliRunner().invoke(command, arguments)
    assert isinstance(ended.exception, BadInput)
    assert says in str(ended.exception)
    assert len(str(ended.exception).splitlines()) == 1


def test_bad_input_ends_in_two(package: Package) -> None:
    ended = package.assay("verify", str(Path(__file__)), code=2)
    assert "test_verify.py:1:1: unexpected character" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
