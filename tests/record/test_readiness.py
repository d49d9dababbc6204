"""Before anything runs: which papers can run here, what the others lack, and the command for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.record import catalogue, extras, readiness, traces
from assay.record.extras import EXTRAS, Extra

BUILT = [paper for paper in catalogue.papers().values() if catalogue.is_built(paper)]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without extras and traces."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path / "none"))
    monkeypatch.setattr(extras, "_importable", lambda module: False)


def test_what_papers_declare_exists() -> None:
    names = {extra.name for extra in EXTRAS}
    for paper in BUILT:
        assert set(catalogue.declared(paper.key, "needs")) <= names, paper.key
        for name in catalogue.declared(paper.key, "replays"):
            traces.named(name)


def test_a_paper_that_needs_nothing_runs_anywhere(bare: None) -> None:
    assert readiness.readiness(catalogue.paper("div")) == readiness.Readiness(catalogue.paper("div"))


def test_each_cure_is_named_once(bare: None) -> None:
    lines = readiness.cures([readiness.readiness(paper) for paper in BUILT])
    assert len(lines) == 2
    assert lines[0].count("pip install") == 1
    assert "cannot run without the extras" in lines[0]
    assert "dooly" in lines[0]
    assert "some claims stay open without a trace: " in lines[1]
    assert "assay traces get" in lines[1]
    assert "lmetric" in lines[1]


def test_nothing_lacks_where_all_is_there(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_importable", lambda module: True)
    assert not Extra("torch", ("torch",), "").missing
    assert readiness.cures([readiness.readiness(catalogue.paper("dooly"))]) == []


def run_record(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from assay.cli.main import assay as command_line

    return int(command_line.main(["record", "--run", *words], standalone_mode=False) or 0)


def test_record_runs_what_can_run_and_ends_with_a_line_a_paper(
    bare: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from assay.record import runner
    from assay.record.errors import StudyFailed

    ran = []

    def run(key: str, **_: Any) -> Any:
        ran.append(key)
        if key == "lmetric":
            raise StudyFailed("lmetric failed: no luck")
        return type("Result", (), {"headline": "2 of 3", "seconds": 4.2})()

    monkeypatch.setattr(runner, "run", run)
    assert run_record(monkeypatch, "--room", "serving") == 1
    out, err = capfd.readouterr()
    assert "dooly" not in ran, "what it lacks is known beforehand"
    assert "lmetric" in ran
    told = {line.split("  ")[0].strip(): line for line in out.splitlines() if "  " in line}
    assert told["dooly"].endswith("not run: needs torch")
    assert told["lmetric"].endswith("failed: lmetric failed: no luck")
    assert told["sidp"].endswith("2 of 3 in 4 s")
    assert "cannot run without" in err
    run_record(monkeypatch, "--room", "kernels", "--json")
    assert json.loads(capfd.readouterr().out), "the lines do not disturb what machines read"


def test_somebody_at_a_terminal_is_asked_first(
    bare: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import click

    from assay.record import runner

    monkeypatch.setattr(runner, "run", lambda key, **_: pytest.fail("it was not to start"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: False)
    with pytest.raises(click.Abort):
        run_record(monkeypatch, "--room", "kernels")
