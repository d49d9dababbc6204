"""`assay compare cuco`: a program of one's own, a model behind an endpoint, and a candidate built again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from assay.cli.main import assay
from assay.record.errors import BadInput
from assay.training.cuco import host, safe
from assay.training.cuco.compare import compare, endpoint
from assay.training.cuco.targets import Gemm
from tests.sim.test_agent import chat, of, server

__all__ = ["server"]  # a fixture


@pytest.fixture
def program(tmp_path: Path) -> str:
    text = (
        "from dataclasses import dataclass\nfrom assay.training.cuco.targets import Gemm\n\n"
        "@dataclass(frozen=True)\nclass Mine(Gemm):\n    rows: int = 4\n    width: int = 32\n"
    )
    (tmp_path / "mine.py").write_text(text)
    return f"{tmp_path / 'mine.py'}:Mine"


def test_a_model_may_refuse_talk_nonsense_and_be_wrong_and_only_what_verifies_is_kept(
    server: Any, program: str, tmp_path: Path
) -> None:
    good = safe(Gemm()) | {"scope": "chunk", "depth": 8}
    wrong = [host(Gemm()) | {"scope": "none"}, good | {"scope": "arrival", "chunk": 1, "depth": 1}, good | {"chunk": 5}]
    answers = [chat(None, refusal="no"), b"garbage", chat("{}"), *(chat(json.dumps(one)) for one in [*wrong, good])]
    server.answers = [(200, answer) for answer in answers]
    path = tmp_path / "found.jsonl"
    found = compare(program, 8, "10gbit", 1, path, endpoint(of(server), "tuner"))
    about = found["program"]
    assert (about["refused_answers"], about["wrong"], about["uncompilable"]) >= (3, 2, 1)
    kept = [json.loads(line)["directive"] for line in path.read_text().splitlines()]
    assert good in kept and not any(one in kept for one in wrong)
    told = json.loads(server.asked[-1][1]["messages"][1]["content"])
    assert any(one["failed"] == "verify" and one["why"] for one in told["tried"])  # feedback of the cascade


def test_a_program_of_ones_own_is_searched_and_a_candidate_comes_back_from_the_database(
    program: str, tmp_path: Path
) -> None:
    path, run = tmp_path / "found.jsonl", CliRunner()
    words = ["compare", "cuco", "--program", program, "--budget", "5", "--rounds", "1", "--database", str(path)]
    found = run.invoke(assay, [*words, "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.output)
    assert {"host-driven", "found"} <= {row["version"] for row in answer["table"]}
    first = json.loads(path.read_text().splitlines()[0])
    again = run.invoke(assay, ["compare", "cuco", "--database", str(path), "--again", str(first["id"]), "--json"])
    assert again.exit_code == 0 and "passes again" in json.loads(again.output)["why"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--program NAME"), (["--again", "1"], "needs --database"), (["--program", "nosuch"], "one of gemm"),
        (["--program", "gemm", "--link", "fast"], "is no link"),
        (["--database", "nosuch.jsonl", "--again", "1"], "cannot read"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(words: list[str], why: str) -> None:
    found = CliRunner().invoke(assay, ["compare", "cuco", *words])
    assert isinstance(found.exception, BadInput) and found.exception.exit_code == 2
    assert why in str(found.exception) and "\n" not in str(found.exception)
