"""`assay verify`: what a person or a script sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.cli.verify import command
from assay.protocols import taco
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
