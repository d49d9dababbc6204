"""The commands that README, CONTRIBUTING, the docs or a paper's `own_input` show, each in the room it is about.

`tests/<room>/test_documented.py` runs those of a room as they are written, `tests/test_commands.py` the others. What
cannot be run in a test is named below with the reason, and what would serve forever is given an end: a command that is
neither runs, or fails its test. Commands run in one process, in a repository of their own with the examples.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest

from assay.cli.main import assay as command_line
from assay.record import catalogue
from assay.record.types import ROOMS

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
    "--gemm ",  # dear: readers and kernels of these have quick tests of their own
    "--mla ",
    "--numbers 1000000000000 ",
    "recover demo",  # tests/training/recover/test_kills.py shows a smaller one
)
"""Commands that take long, by what is in them: they run with `make slow`."""


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
def shown() -> dict[str, str]:
    """Every command, once, and the room whose page or paper shows it first; "" where that is no room's."""
    found: dict[str, str] = {}
    for page in sorted(PAGES, key=lambda page: page.stem not in ROOMS):  # a room's own page before the README
        for command in written(page):
            found.setdefault(command, page.stem if page.stem in ROOMS else "")
    for key, command in own_inputs().items():
        found.setdefault(command, catalogue.paper(key).room)
    return found


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


def commands(room: str) -> list[object]:
    """Those of a room that run in a test."""
    chosen = [command for command, of in shown().items() if of == room and not command.startswith(tuple(ELSEWHERE))]
    return [
        pytest.param(command, marks=pytest.mark.slow) if any(part in command for part in LONG) else command
        for command in chosen
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the examples and one commit."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "examples"]):
        subprocess.run([*git, *words], check=True)
    return folder


def check(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command as it is written, beside the examples."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for module, extra in (("verify", "z3"), ("torchrun", "torch"), ("trace examples/run --metrics", "yaml")):
        if module in command:
            pytest.importorskip(extra)
    code = perform(command)
    assert code in ((0, 1) if command.startswith(FINDS) else (0,))
