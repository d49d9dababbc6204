"""`assay compare doppler` on the user's own graph or torch module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.compare import command

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command's, of a policy that learned at one rate only: how well it does is looked at elsewhere."""
    pytest.importorskip("torch")
    from assay.training.doppler import policy

    monkeypatch.setattr(policy, "RATES", policy.RATES[:1])

    def asked(*options: str) -> Any:
        found = CliRunner().invoke(command, ["doppler", *options, "--devices", "2", "--episodes", "24", "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    return asked


def test_the_users_own_graph_is_placed_beside_rivals(answer: Callable[..., Any]) -> None:
    found = answer("--graph", str(EXAMPLES / "operators.json"))
    assert {"doppler", "critical path", "enumerative", "round robin", "single device", "drawn"} <= {
        row["placer"] for row in found["table"]
    }
    assert found["graph"]["operators"] == 16
    assert len(found["placement"]) == 2
    assert "critical-path list scheduling" in found["why"]


def test_the_users_own_torch_module_is_traced_and_placed(answer: Callable[..., Any]) -> None:
    found = answer("--module", f"{EXAMPLES / 'towers.py'}:Towers", "--shape", "64x512")
    assert found["graph"]["operators"] == 12
    assert "towers_0" in json.dumps(found["placement"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}", "a list 'nodes' expected"),
        ("[", "not JSON"),
        ('{"nodes": [{"seconds": 1}]}', "node 1 needs a name of its own"),
        ('{"nodes": [{"name": "a", "seconds": 1}, {"name": "a", "seconds": 1}]}', "node 2 needs a name"),
        ('{"nodes": [{"name": "a", "seconds": -1}]}', "seconds is -1"),
        ('{"nodes": [{"name": "a"}]}', "flops is None"),
        ('{"nodes": [{"name": "a", "seconds": 1, "inputs": ["b"]}]}', "reads 'b', which is not there"),
        ('{"nodes": [{"name": "a", "seconds": 1, "inputs": ["a"]}]}', "wait for each other"),
        ('{"nodes": [{"name": "a", "seconds": 1, "inputs": 3}]}', "inputs is 3; a list of names expected"),
        ('{"nodes": [{"name": "a", "seconds": 1, "inputs": [["a"]]}]}', "a list of names expected"),
        ('{"nodes": [{"name": "a", "seconds": 1}]}', "2 to 2000 can be placed"),
    ],
)
def test_what_is_no_graph_is_said_in_one_line(refused: Any, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "graph.json").write_text(content)
    assert says in refused("compare", "doppler", "--graph", str(tmp_path / "graph.json"))


def test_what_is_no_module_is_said_in_one_line(refused: Any, tmp_path: Path) -> None:
    module = f"{EXAMPLES / 'towers.py'}:Towers"
    assert "either --graph" in refused("compare", "doppler")
    assert "needs --shape" in refused("compare", "doppler", "--module", module)
    assert "numbers joined by x" in refused("compare", "doppler", "--module", module, "--shape", "a,b")
    assert "cannot be traced on 64x7" in refused("compare", "doppler", "--module", module, "--shape", "64x7")
