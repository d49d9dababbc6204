"""Every command that README, CONTRIBUTING, the docs or a paper's `own_input` shows is run here as it is written.

What cannot be run in a test is named below with the reason, and what would serve forever is given an end: a command
that is neither runs, or fails this test. Commands run in one process, in a repository of their own with the examples.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest

from assay.cli.main import assay as command_line
from assay.record import catalogue
from assay.record.errors import AssayError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BUILT = [key for key, paper in catalogue.papers().items() if catalogue.is_built(paper)]

ELSEWHERE = {
    "make demo": "CI runs it on a fresh clone",
    "make test": "this is it",
    "make docs": "runs every example; tests/test_docs.py has its parts",
    ". .venv/bin/activate": "the tests' own environment stands for it",
    "pip install": "needs a network; CI installs",
    "vllm serve": "needs a GPU",
    "python -m sglang.launch_server": "needs a GPU",
    "assay traces get": "needs a network; tests/record/test_fetch.py has a server of its own",
    "assay traces mooncake-conversation": "needs a public trace",
    "assay record --run": "runs every study; tests/record/test_readiness.py",
    "assay gateway --engines": "serves: the whole block is run below",
    "assay engine": "serves: the whole block is run below",
    "assay web": "serves until it is stopped; tests/web",
    "assay top": "reads what the block below serves",
    "curl": "asks what the block below serves, or a gateway with keys",
    "key=": "openssl makes a key of one's own",
    "printf": "its checksum",
}
"""What begins like this is not run by itself, and why."""

ENDING = {
    "assay watch --host 0.0.0.0": "assay watch --host 127.0.0.1 --port 0 --seconds 0.2 --once",
    "assay watch /scratch/run7": "assay watch scratch/run7 --seconds 0.2 --once",
    "assay watch /scratch/run7 --once --json": "assay watch scratch/run7 --once --json --seconds 0.2",
    "assay watch --json | jq .suspects": "assay watch --port 0 --json --once --seconds 0.2",
    "assay watch --metrics-port 9400": "assay watch --port 0 --metrics-port 0 --once --seconds 0.2",
}
"""What would run for ever, or on another machine's folder, and the same with an end."""

FINDS = ("assay protocol run examples/flood.py", "assay protocol search", "assay check", "assay hang")
"""Commands that end with 1 because they found what they look for in the examples."""

LONG = (
    "assay run ",
    "assay bench compare",
    "assay watch run",
    "assay watch --seconds 600 run",
    "--find capacity",
    "--live",
)


def written(page: Path) -> list[str]:
    """The commands of a page's `sh` blocks, one each: continued lines joined, comments left out."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#\s.*$", "", f" {line}").strip().removesuffix("&").strip()
            found += [command] if command else []
    return found


@cache
def own_inputs() -> dict[str, str]:
    """The command of every paper that takes a user's input, read off its source."""
    values = {key: catalogue._assigned(key, "own_input") for key in BUILT}
    texts = {key: ast.literal_eval(value) for key, value in values.items() if value is not None}
    return {key: text for key, text in texts.items() if text}


@cache
def shown() -> list[str]:
    """Every command, once."""
    return list(dict.fromkeys([*(c for page in PAGES for c in written(page)), *own_inputs().values()]))


COMMANDS = [command for command in shown() if not command.startswith(tuple(ELSEWHERE))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the examples and one commit."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "examples"]):
        subprocess.run([*git, *words], check=True)
    return folder


def perform(command: str) -> int:
    """Run one command in this process; its exit code."""
    words = shlex.split(ENDING.get(command, command))
    words = [
        str(name) for word in words for name in (sorted(Path().glob(word)) if "/*" in word or "-*" in word else [word])
    ]
    if words[:2] == ["python", "-c"]:
        exec(words[2], {})
        return 0
    # A bound on a whole process, which `data gnn` has without being asked, or a number of threads, which Numba fixes
    # for one: this process has done other things before.
    if "--memory" in words or words[1:3] in (["data", "gnn"], ["compare", "kernels"]):
        return subprocess.run([sys.executable, "-m", "assay.cli.main", *words[1:]], check=False).returncode
    assert words[0] == "assay", f"what is this? {command}; run it, or say in ELSEWHERE why not"
    try:
        return int(command_line.main(words[1:], prog_name="assay", standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:
        return int(end.code or 0)


def marked(command: str) -> object:
    return pytest.param(command, marks=pytest.mark.slow) if any(part in command for part in LONG) else command


@pytest.mark.parametrize("command", [marked(command) for command in COMMANDS])
def test_it_runs_as_it_is_written(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for module, extra in (("verify", "z3"), ("torchrun", "torch"), ("trace examples/run --metrics", "yaml")):
        if module in command:
            pytest.importorskip(extra)
    code = perform(command)
    assert code in ((0, 1) if command.startswith(FINDS) else (0,))


def test_every_reason_not_to_run_something_is_still_needed() -> None:
    for prefix in ELSEWHERE:
        assert any(command.startswith(prefix) for command in shown()), prefix
    assert set(ENDING) <= set(shown())


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
    namespace: dict[str, object] = {"__name__": "make", "__file__": str(ROOT / "examples" / "make.py")}
    exec(compile((ROOT / "examples" / "make.py").read_text(encoding="utf-8"), "make.py", "exec"), namespace)
    namespace["make"](tmp_path)  # type: ignore[operator]
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
