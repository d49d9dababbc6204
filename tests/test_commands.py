"""What is shown to people runs: commands of no room, the examples, Python on the pages, and what serves.

Commands of a room are run by `tests/<room>/test_documented.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from assay.record.errors import AssayError
from assay.record.types import ROOMS
from tests.documented import ELSEWHERE, ENDING, PAGES, ROOT, check, commands, own_inputs, perform, place, shown, written

__all__ = ["place"]  # a fixture


@pytest.mark.parametrize("command", commands(""))
def test_it_runs_as_it_is_written(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(command, place, monkeypatch)


def test_a_room_that_shows_commands_runs_them() -> None:
    for room in ROOMS:
        assert not commands(room) or (ROOT / "tests" / room / "test_documented.py").exists(), room


def test_every_reason_not_to_run_something_is_still_needed() -> None:
    for prefix in ELSEWHERE:
        assert any(command.startswith(prefix) for command in shown()), prefix
    assert set(ENDING) <= shown().keys()


def test_commands_are_written_one_way() -> None:
    for page in PAGES:
        commands = written(page)
        assert not [command for command in commands if command.startswith(".venv/bin/assay")], page.name
        assert not [command for command in commands if re.search(r"\b(my|mine)\.(jsonl|csv|ta)\b", command)], page.name


@pytest.mark.parametrize("key", sorted(own_inputs()))
def test_a_papers_own_input_is_a_command_on_an_example(key: str) -> None:
    command = own_inputs()[key]
    assert command.startswith(("assay ", "python -c "))
    for path in re.findall(r"examples/[\w./-]*\w", command):
        assert (ROOT / path).exists(), path


def test_the_examples_are_what_their_programme_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples" / "make.py", tmp_path], check=True)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    for path in sorted(made):
        assert (tmp_path / path).read_bytes() == (ROOT / "examples" / path).read_bytes(), path
        assert (tmp_path / path).stat().st_size <= 200_000, path
    kept = {p.relative_to(ROOT / "examples") for p in (ROOT / "examples").rglob("*") if p.is_file()}
    strange = {p for p in kept - made if p.suffix != ".py" and "__pycache__" not in p.parts}
    assert {str(p) for p in strange} <= {"bench.toml", "README.md"}, "what is not made is written by hand, and small"


def python_blocks() -> list[object]:
    pages = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("kernels", "observe", "serving"))]
    return [
        pytest.param(block, id=f"{page.stem}{number}")
        for page in pages
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_python_runs_as_it_is_written(block: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.chdir(place)
    known = {"cloud": np.random.default_rng(0).random((2000, 3)), "opinions": [1, 5, 3]}
    known["networkx_graph"] = [(0, 1), (1, 2), (2, 0)]
    exec(block, known)


# ------------------------------------------------------------------------------------------------ what serves


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/gateway.md"])
def test_engines_and_gateway_answer_the_curl_that_follows_them(page: str, tmp_path: Path) -> None:
    """The whole block in a shell, on free ports: ready means ready, however long the engines take to start."""
    pytest.importorskip("uvloop")
    if not shutil.which("curl") or not shutil.which("bash"):
        pytest.skip("curl and bash are needed")
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "assay engine" in block and "curl" in block]
    for port in ("8000", "8001", "8002"):
        block = re.sub(rf"\b{port}\b", str(free_port()), block)
    gateway = re.search(r"http://127.0.0.1:(\d+)/v1", block)
    assert gateway
    block = block.replace("--policy lmetric &", f"--policy lmetric --port {gateway[1]} &")
    block = block.replace("assay top ", f"assay top http://127.0.0.1:{gateway[1]} ")
    own = tmp_path / "assay"
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m assay.cli.main "$@"\n')
    own.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    shell = f"trap 'kill $(jobs -p); wait' EXIT\n{block}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=400, env=environment)
    assert "[DONE]" in done.stdout, done.stdout + done.stderr
    assert "502" not in done.stdout


def free_port() -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_error_is_no_traceback(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(AssayError, match=r"cannot read examples/nothing.jsonl: No such file or directory"):
        perform("assay compare serving --trace examples/nothing.jsonl --fleet 1xh200:qwen3-8b")
