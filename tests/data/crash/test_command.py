"""`assay data crash`: one component, or a row for each there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.commands import crash
from assay.record.errors import BadInput


def told(*words: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(command, ["crash", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    answer: dict[str, Any] = json.loads(done.output)
    return answer


def test_all_has_a_row_for_each_that_can_be_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = crash.known()
    assert {"orbax", "safecloud", "append-log"} <= set(everything)
    monkeypatch.setattr(crash, "known", lambda: {key: everything[key] for key in ("orbax", "append-log")})
    answer = told("--all", "--ops", "12", "--mixes", "2")
    assert [row["component"] for row in answer["table"]] == ["orbax", "append-log"]
    for row in answer["table"]:
        assert row["violations"] == 0 < row["crashes"] < row["crashes"] + row["while_recovering"]
        assert row["must_hold"].endswith(".")
    assert answer["why"].startswith("Nothing was lost: 2 components")


def test_a_component_that_loses_something_fails_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "known", lambda: {"broken": "somewhere"})
    monkeypatch.setattr(crash, "named", lambda component: "tests.data.crash.broken:PromisesEarly")
    answer = told("--all", "--ops", "6", "--mixes", "0", code=1)
    assert answer["table"][0]["violations"] > 0
    assert "assay data crash broken --ops 6 --seed 0 --at" in answer["why"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name what is to be crashed: .*append-log"),
        (["orbax", "--all"], "leave one of them out"),
        (["nothing"], "no component 'nothing' can be crashed"),
    ],
)
def test_what_cannot_be_crashed_is_told_in_a_line(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CliRunner().invoke(command, ["crash", *words], catch_exceptions=False)


@pytest.mark.slow
def test_two_at_once_in_real_processes_find_the_same_and_leave_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "assay.cli.main", "data", "crash", "append-log", "--ops", "4", "--mixes", "1"]
    words += ["--processes", "2", "--json"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    both = [subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE) for _ in range(2)]
    answers = [json.loads(one.communicate()[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    found = [answer["append-log"] | {"seconds": 0} for answer in answers]
    assert found[0] == found[1] and found[0]["real_processes"] == 2
    assert not list(tmp_path.iterdir())
