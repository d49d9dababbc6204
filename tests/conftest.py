"""A copy of the package into which tests put papers of their own, and the command line as a real process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

import assay
from assay.cli import main as command_line

# `make test` is the same twice, and a busy machine is no failure; `make deep` looks further.
FEW, MANY = 40, 600
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True,
    max_examples=FEW,
)  # fmt: skip
settings.register_profile("deep", parent=settings.get_profile("ci"), derandomize=False, max_examples=MANY)
settings.load_profile(PROFILE)
if PROFILE == "ci":
    # It also tries numbers and words that it finds in the code that is loaded: other ones in every run, since that
    # depends on which tests a process had before.
    providers._get_local_constants = lambda: providers._local_constants

SOURCE = Path(assay.__file__).parent

THIRD_PAPER = '''\
"""Counting: a case is worth its size plus its seed.

A paper small enough to see through, for the machinery's own tests.
"""
import os
from pathlib import Path

from assay.record.measures import mean
from assay.record.types import Claim, Evidence, Kind

evidence = Evidence.MODEL
use_when = "Testing the machinery."
avoid_when = "Anything else."


def trial(size, seed):
    log = os.environ.get("TRIAL_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{size} {seed} {os.getpid()}\\n")
    trouble = os.environ.get("TRIAL_TROUBLE", "")
    if trouble == "raise" and (size, seed) == (3, 1):
        raise ValueError("the third case is\\nunlucky")
    if trouble == "import" and size == 3:
        import torch_that_is_not_there
    if trouble == "die" and (size, seed) == (3, 1):
        os.kill(os.getpid(), 9)
    if trouble == "block" and (size, seed) == (3, 1):
        with open(os.environ["TRIAL_FIFO"]) as fifo:  # until somebody writes, which nobody does
            fifo.read()
    return {"worth": size + seed}


def study(lab):
    return lab.run(trial, [{"size": size} for size in (1, 2, 3)])


claims = [
    Claim("large", mean("worth", size=3)),
    Claim("small", mean("worth", size=1)),
    Claim("twice", mean("worth", size=2), asks="Middling cases are worth more than one.", kind=Kind.RATIO, toward="up"),
]
'''

# Drawing costs more than all the rest of this study: only where the drawing is looked at.
THIRD_PLOT = """

def plot(table):
    import altair as alt
    return alt.Chart(table).mark_point().encode(x="size:Q", y="worth:Q")
"""

THIRD_ENTRY = """
[[paper]]
key = "third-paper"
room = "continuum"
title = "A Third Paper & Its <Title>"
arxiv = "2601.00001"
line = "Add the seed to the size."
claims = [
  { id = "large", kind = "ratio", value = 4.0, text = "Large cases are worth more than one." },
  { id = "small", kind = "at least", value = 120.0, unit = "points", text = "Small cases are worth a hundred." },
]
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's own number of examples is what it takes to be sure: few of them in `ci`, at least so many in `deep`."""
    bound = max if PROFILE == "deep" else min
    for item in items:
        test = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        if chosen := getattr(test, "_hypothesis_internal_use_settings", None):
            examples = bound(chosen.max_examples, settings.get_profile(PROFILE).max_examples)
            test._hypothesis_internal_use_settings = settings(chosen, max_examples=examples)


@dataclass
class Package:
    """A copy of assay's sources with a store of its own."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    def add(self, source: str = THIRD_PAPER, entry: str = THIRD_ENTRY) -> None:
        """One file and one TOML entry: all it takes to add a paper."""
        (self.root / "assay" / "continuum" / "third_paper.py").write_text(source)
        with (self.root / "assay" / "record" / "papers.toml").open("a") as file:
            file.write(entry)

    def environment(self, **more: str) -> dict[str, str]:
        paths = {"PYTHONPATH": str(self.root), "ASSAY_HOME": str(self.home)}
        return os.environ | paths | {key: str(value) for key, value in more.items()}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay.cli.main", *arguments],
            env=self.environment(**environment), cwd=self.root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def assay(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end and check the exit code."""
        process = self.start(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in out + err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, **environment: str) -> Any:
        return json.loads(self.assay(*arguments, "--json", **environment).stdout)


def copied(root: Path) -> Package:
    """A copy of the package that tests may change."""
    copy = root / "assay"
    copy.mkdir(parents=True)
    for path in SOURCE.iterdir():
        if path.name in ("continuum", "data", "record"):  # what tests write to; the rest is a link, of a thousand files
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name != "__pycache__":
            (copy / path.name).symlink_to(path)
    return Package(root)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return copied(tmp_path)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command line in this process and an empty folder, for input that it must refuse: the one line it says.

    A process of its own takes a second and a half to start, most of which would be spent on importing.
    """

    def run(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["assay", *arguments])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` brings its own
        with pytest.raises(SystemExit) as end:
            command_line.main()
        said = capsys.readouterr().err.strip()
        assert end.value.code == 2 and len(said.splitlines()) == 1, said
        return said

    return run


@pytest.fixture
def with_third(package: Package) -> Package:
    package.add()
    return package


@pytest.fixture(autouse=True)
def public_traces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of public traces, for tests marked `traces`; the others see none."""
    folder = os.environ["ASSAY_PUBLIC_TRACES"]
    if request.node.get_closest_marker("traces"):
        if not folder:
            pytest.skip("no public traces are at hand: assay traces get --all, or set ASSAY_TRACES to their folder")
        monkeypatch.setenv("ASSAY_TRACES", folder)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's store."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
