"""What a result depends on: the code its study runs, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import assay
from assay.record import catalogue, sources

SOURCE = Path(assay.__file__).parent
KERNELS = [path for path in SOURCE.rglob("*.py") if b"njit" in path.read_bytes()]
BUILT = [paper for paper in catalogue.papers().values() if catalogue.is_built(paper)]


class Sources:
    """A small package whose files are written by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def changes(self, place: str, module: str) -> bool:
        """Whether a change of the file makes results of the module stale."""
        before = sources.digest(module)
        path = self.root / place
        path.write_text(path.read_text() + "# more\n")
        return sources.digest(module) != before


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setattr(sources, "_PACKAGE", tmp_path / "assay")
    return Sources(tmp_path / "assay")


def test_imports_for_type_checkers_are_not_run(tree: Sources) -> None:
    tree.write(
        "data/mine.py",
        "import typing\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from assay.sim.types import Thing\n"
        "if typing.TYPE_CHECKING:\n    from assay.sim.types import Other\nelse:\n    from assay.sim import instead\n",
    )
    for name in ("types", "instead"):
        tree.write(f"sim/{name}.py", "")
    assert not tree.changes("sim/types.py", "assay.data.mine")
    assert tree.changes("sim/instead.py", "assay.data.mine")


def test_of_the_record_only_what_makes_estimates_counts(tree: Sources) -> None:
    tree.write(
        "data/mine.py",
        "from assay.record import measures, report\nfrom assay.record.errors import BadInput\n"
        "def trial():\n    from assay.record.timing import interleave\n",
    )
    for name in ("report", "errors", "timing", "wording"):
        tree.write(f"record/{name}.py", "")
    tree.write("record/measures.py", "from assay.record import intervals, wording\n")
    tree.write("record/intervals.py", "")
    counted = {n for n in ("report", "errors", "timing", "wording", "measures", "intervals")
               if tree.changes(f"record/{n}.py", "assay.data.mine")}  # fmt: skip
    assert counted == {"measures", "intervals", "timing"}


def test_a_rooms_public_name_counts_where_it_lives(tree: Sources) -> None:
    tree.write("data/mine.py", "from assay.data import simulate\n")
    tree.write("data/__init__.py", "")
    tree.write(
        "data/__init__.pyi", "from assay.data.engine import run as simulate\nfrom assay.data.other import x as x\n"
    )
    tree.write("data/engine.py", "")
    tree.write("data/other.py", "")
    assert tree.changes("data/engine.py", "assay.data.mine")
    assert not tree.changes("data/other.py", "assay.data.mine")


def test_relative_imports_are_followed(tree: Sources) -> None:
    tree.write("data/mine/__init__.py", "from . import parts\nfrom ..sim.clock import tick\n")
    tree.write("data/mine/parts.py", "from .deep import x\n")
    tree.write("data/mine/deep.py", "")
    tree.write("sim/clock.py", "")
    for place in ("data/mine/parts.py", "data/mine/deep.py"):
        assert tree.changes(place, "assay.data.mine"), place


@pytest.mark.parametrize("paper", BUILT, ids=lambda paper: paper.key)
def test_no_result_depends_on_how_results_are_shown(paper) -> None:
    files = {path.relative_to(SOURCE).as_posix() for path in sources._closure(paper.module, sources._measured)}
    assert {file for file in files if file.startswith(("cli/", "web/"))} == set()
    assert {file for file in files if file.startswith("record/")} <= set(sources._MEASURING)


def test_compiled_functions_read_nothing_of_the_record() -> None:
    """So that a change there compiles nothing anew."""
    read = []
    for path in KERNELS:
        tree = ast.parse(path.read_bytes())
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("assay.record")
            for alias in node.names
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any("njit" in ast.unparse(d) for d in function.decorator_list):
                used = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
                read += [f"{path.relative_to(SOURCE)}: {function.name} reads {name}" for name in used & names]
    assert read == []


def test_every_compiled_function_is_kept_by_its_closure() -> None:
    direct = [
        path.relative_to(SOURCE).as_posix()
        for path in KERNELS
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom) and node.module == "numba" and any(a.name == "njit" for a in node.names)
    ]
    assert direct == [], "from assay.sim.compiled import njit: Numba's own does not notice a change in other modules"
