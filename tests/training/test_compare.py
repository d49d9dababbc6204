"""`assay compare training`: who is fastest on the user's own model, cluster and documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.training.baselines.assigners import ASSIGNERS
from tests.test_commands import ROOT

WORDS = ("training", "--model", "llama-3-8b", "--cluster", "8xh100", "--batch", "32", "--json")


def compared(*words: str) -> dict[str, Any]:
    ended = CliRunner().invoke(command, [*WORDS, *words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    answer: dict[str, Any] = json.loads(ended.output)
    return answer


def test_a_schedule_of_ones_own_runs_beside_the_others() -> None:
    answer = compared("--policy", f"{ROOT}/examples/schedule.py:Eager")
    rows = {row["policy"]: row for row in answer["table"]}
    assert {"gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe", "eager"} == set(rows)
    assert all(row["fits"] for row in rows.values())
    assert rows["eager"]["step"] == pytest.approx(rows["1f1b"]["step"], rel=0.02)  # links are fast here
    assert rows["eager"]["memory"] > rows["1f1b"]["memory"]
    assert answer["table"][0]["policy"] in answer["why"]
    assert "assumed" in answer["why"] or answer["table"][0]["policy"] == "eager"


def test_planners_answer_from_what_they_asked_for() -> None:
    rows = {row["policy"]: row for row in compared("--what", "planners")["table"]}
    assert rows["exhaustive"]["step"] == min(row["step"] for row in rows.values())
    assert rows["random"]["asked"] == rows["bayes"]["asked"] < 0.2 * rows["exhaustive"]["asked"]


def test_assigners_differ_by_documents(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.jsonl"
    lengths.write_text("".join(f"{100 + 97 * i % 3900}\n" for i in range(40)))
    rows = {row["policy"]: row for row in compared("--what", "assigners", "--lengths", str(lengths))["table"]}
    assert rows["longest-first"]["step"] < rows["round-robin"]["step"]
    lengths.write_text("1000\n")
    same = [row["step"] for row in compared("--what", "assigners", "--lengths", str(lengths))["table"]]
    assert same[0] == pytest.approx(same[1])


@pytest.mark.parametrize("key", ASSIGNERS)
def test_every_sample_is_assigned_once_and_within_bounds(key: str) -> None:
    work = np.random.default_rng(0).random(37)
    places = ASSIGNERS[key]().assign(work, 3, 4)
    assert places.shape == (37, 2)
    assert (places >= 0).all() and (places < (3, 4)).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--what", "assigners"), "give --lengths"),
        (("--what", "planners", "--policy", f"{ROOT}/examples/schedule.py:Eager"), "has no method 'search'"),
        (("--policy", "nothing.py:Mine"), "cannot read nothing.py"),
    ],
)
def test_bad_words(refused: Callable[..., str], words: tuple[str, ...], message: str) -> None:
    assert message in refused("compare", *WORDS, *words)
