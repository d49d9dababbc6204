"""The benchmarks use the room as a user does: by its public names and its papers, never by a paper's own modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import assay
from assay.record import catalogue

ROOT = Path(__file__).parents[2]
ROOM = Path(assay.__file__).parent / "protocols"
PAPERS = {paper.key.replace("-", "_") for paper in catalogue.papers().values() if paper.room == "protocols"}
PRIVATE = {
    f"assay.protocols.{path.parent.name}.{path.stem}"
    for path in ROOM.glob("*/*.py")
    if path.parent.name in PAPERS and path.stem != "__init__"
}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py")))
def test_a_benchmark_imports_no_private_module_of_a_paper(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / name).read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert imported & PRIVATE == set()
