"""`assay compare hexiseq` on the user's own machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.compare import command

EXAMPLE = Path(__file__).parents[3] / "examples" / "mixed.toml"


def test_the_users_own_machines_are_compared_and_the_plan_is_told() -> None:
    found = CliRunner().invoke(command, ["hexiseq", "--cluster", str(EXAMPLE), "--seq", "65536", "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    systems = ("hexiseq", "usp", "ring", "ulysses", "compute only", "slow left out", "random moves")
    assert {row["system"] for row in answer["table"]} == set(systems)
    assert answer["table"][0]["system"] == "hexiseq"
    assert sum(row["of_sequence"] for row in answer["plan"]) == pytest.approx(1.0)
    assert "times equal shares" in answer["why"]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", [], "no [[machines]]"),
        ("[[machines]]\ndevice = 'h100'\nnodes = 1\n", [], "no network; add outside"),
        ("speed = 3\n[[machines]]\n", [], "unknown field 'speed'"),
        ("outside = 3\n[[machines]]\ndevice = 'h100'\nnodes = 1\n", [], "outside should be"),
        ("{N}[[machines]]\ndevice = 'h100'\n", [], "'nodes' is missing"),
        ("{N}[[machines]]\ndevice = 'h101'\nnodes = 1\n", [], "unknown device 'h101'"),
        ("{N}[[machines]]\ndevice = 'h100'\nnodes = 1\nattention = 2\n", [], "attention is 2"),
        ("{N}[[machines]]\ndevice = 'h100'\nnodes = 2\nper_node = 0.5\n", [], "'per_node' is missing or no int"),
        ("{N}[[machines]]\ndevice = 'h100'\nnodes = 1\nper_node = 1\n", [], "2 to 1024 can be compared"),
        ("{N}[[machines]]\ndevice = 'h100'\nnodes = 2\n", ["--model", "deepseek-v3"], "not all layers are full"),
        ("{N}[[machines]]\ndevice = 'l4'\nnodes = 1\n", ["--seq", "8000000"], "take a shorter sequence"),
        ("not toml", [], "not TOML"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    refused: Any, tmp_path: Path, content: str, options: list[str], says: str
) -> None:
    text = content.replace("{N}", "outside = { bandwidth = 25e9, latency = 8e-6 }\n")
    (tmp_path / "mixed.toml").write_text(text)
    assert says in refused("compare", "hexiseq", "--cluster", str(tmp_path / "mixed.toml"), *options)


def test_machines_can_be_named_without_a_file(refused: Any) -> None:
    assert "COUNTxDEVICE" in refused("compare", "hexiseq", "--cluster", "eight h100")
    assert "whole nodes" in refused("compare", "hexiseq", "--cluster", "12xh100")
