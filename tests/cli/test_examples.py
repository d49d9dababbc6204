"""`assay examples DIR`: what shown commands run on, for who installed assay and has no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import assay
from assay.cli.examples import SHIPPED, command
from assay.record.errors import BadInput


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(command, [str(folder), *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_all_of_them_are_written_and_again_without_a_word(tmp_path: Path) -> None:
    assert "README.md says what they are" in write(tmp_path / "examples")
    assert files(tmp_path / "examples") == files(SHIPPED)
    told = json.loads(write(tmp_path / "examples", "--json"))
    assert set(told["files"]) == set(files(SHIPPED))


def test_a_file_of_the_users_is_not_overwritten_and_nothing_else_is_written(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("my own")
    with pytest.raises(BadInput, match=r"mine\.py is there and differs"):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    assert files(tmp_path) == {"mine.py": b"my own"}


def test_a_missing_example_names_the_command_that_writes_it(refused: Callable[..., str]) -> None:
    assert "'assay examples examples' writes" in refused("compare", "serving", "--trace", "examples/chats.jsonl")


def test_a_written_example_runs_outside_of_a_checkout(tmp_path: Path) -> None:
    write(tmp_path / "examples")
    environment = os.environ | {
        "PYTHONPATH": str(Path(assay.__file__).parents[1]),
        "ASSAY_HOME": str(tmp_path / "home"),
    }
    line = [sys.executable, "-m", "assay.cli.main", "check", "examples/history.edn", "--json"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and json.loads(done.stdout), done.stderr
