"""`assay compare entrain` on the user's own samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.training.entrain.compare import why

EXAMPLE = Path(__file__).parents[3] / "examples" / "multimodal.jsonl"


def test_the_users_own_samples_are_compared_and_the_answer_says_who_wins() -> None:
    found = CliRunner().invoke(command, ["entrain", "--input", str(EXAMPLE), "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert {"entrain", "disttrain", "dip", "in order"} <= {row["system"] for row in answer["table"]}
    assert "times as long" in answer["why"]
    assert answer["split"]["encoder_stages"] + answer["split"]["language_stages"] == 8


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("{}\n", [], "line 1: should be"),
        ("", [], "no samples in it"),
        ('{"text_tokens": 3}\n', ["--stages", "7"], "does not divide the 64 devices"),
        ('{"text_tokens": 3}\n', ["--batch", "500"], "should be a multiple of 128"),
        ('{"text_tokens": 3}\n', ["--encoder", "clip"], "unknown encoder"),
        ('{"text_tokens": 3}\n', ["--model", "llama-9"], "unknown model"),
        ('{"text_tokens": 3}\n', ["--tp", "8", "--batch", "32", "--mbs", "4", "--encoder", "2x30x5"], "tp8"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    refused: Any, tmp_path: Any, content: str, options: list[str], says: str
) -> None:
    (tmp_path / "mine.jsonl").write_text(content)
    assert says in refused("compare", "entrain", "--input", str(tmp_path / "mine.jsonl"), *options)


def test_texts_alone_are_compared_too(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text_tokens": 900}\n{"text_tokens": 90}\n')
    found = CliRunner().invoke(command, ["entrain", "--input", str(tmp_path / "mine.jsonl"), "--json"])
    assert found.exit_code == 0, found.output


def test_what_does_not_fit_is_said() -> None:
    nothing = [{"system": "entrain", "step": None}]
    assert "nothing fits" in why(nothing, {})
    one = [{"system": "dip", "step": 1.0}, *nothing]
    assert why(one, {}) == "dip alone fits into memory."
