"""The study's pieces at small size, and the user's own model by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from assay.cli.compare import command
from assay.training import shardtensor

EXAMPLE = Path(__file__).parents[3] / "examples" / "field_model.py"


@pytest.mark.slow
def test_a_rank_takes_its_share_of_memory_and_the_weights() -> None:
    found = shardtensor.memory(2, {"unet": (64, 32, 64)}, seed=5)
    ours, single = (found[f"unet, {name}"] for name in ("shardtensor", "single"))
    assert ours["peak"] <= single["peak"] / 2 + 2 * ours["weights"]
    theirs = found["unet, dtensor"]
    assert theirs["runs"] or "\n" not in theirs["refused"]


@pytest.mark.slow
def test_training_in_stretches_is_training_in_one_piece() -> None:
    found = shardtensor.training(2, (16, 16), steps=4, seed=1)
    assert found["shardtensor"]["loss"] == pytest.approx(found["single"]["loss"], rel=1e-3)
    assert found["single"]["loss"] < found["single"]["first"]


@pytest.mark.parametrize("sizes", [[64, 36], pytest.param([37, 27, 36], marks=pytest.mark.slow)])
def test_the_users_own_model_runs_unmodified_and_the_answer_says_so(sizes: list[int]) -> None:
    asked = ["shardtensor", "--model", f"{EXAMPLE}:job", "--shares", ",".join(map(str, sizes)), "--json"]
    found = CliRunner().invoke(command, asked)
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["model"]["sizes"] == sizes
    assert answer["model"]["apart"] < 1e-5
    assert [row["rows"] for row in answer["table"]] == sizes
    assert all(row["sent"] > 0 for row in answer["table"])
    assert all(row["of_one"] < (row["rows"] + 10) / 100 for row in answer["table"])


def test_what_the_users_model_lacks_is_named_in_one_line(refused: Any, tmp_path: Path) -> None:
    asked = "compare", "shardtensor", "--model"
    assert "does not support fft_rfft2" in refused(*asked, f"{EXAMPLE}:spectral")
    assert "2 to 8 expected" in refused(*asked, f"{EXAMPLE}:job", "--shares", "1")
    assert "has 4 dimensions" in refused(*asked, f"{EXAMPLE}:job", "--dim", "7")
    assert "37,27,36 expected" in refused(*asked, f"{EXAMPLE}:job", "--shares", "a,b")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def job():\n    return 3\n")
    assert "should give (nn.Module, a tensor)" in refused(*asked, f"{wrong}:job")
