"""`assay demo`: one screen that somebody understands who has read no paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli import demo
from assay.record.types import Answer, Evidence, Kind, Result, Verdict

ANSWER = Answer("It is fast.", 2.0, 2.1, 1.9, 2.3, 5, Verdict.REPRODUCED, Evidence.REAL, id="fast", kind=Kind.RATIO)
RESULT = Result("div", Evidence.REAL, "quick", 1.0, {}, [], (ANSWER,))


def answer(low: float) -> dict[str, Any]:
    rows = [
        {"policy": "mine", "ttft_mean": 0.3, "led_by": None, "led_by_low": None, "led_by_high": None},
        {"policy": "theirs", "ttft_mean": 0.4, "led_by": 0.25, "led_by_low": low, "led_by_high": 0.31},
        {"policy": "slow", "ttft_mean": 0.9, "led_by": 0.67, "led_by_low": 0.6, "led_by_high": 0.7},
    ]
    return {"requests": 25_000, "traces": 5, "table": rows, "trust": "The model was off by 27 %."}


def screen(low: float = 0.18, width: int = 80, plain: bool = False) -> str:
    pictures = [Path("report/index.html"), Path("report/compare.svg")]
    return "\n".join(demo.screen(answer(low), [RESULT], pictures, width, plain))


def test_it_says_who_won_by_how_much_and_how_sure_that_is() -> None:
    said = screen()
    assert "mine: answers begin 25 % sooner than with theirs, the next best." in " ".join(said.split())
    assert "the lead would be 18 to 31 % (95 % interval)" in " ".join(said.split())
    assert "The model was off by 27 %." in " ".join(said.split())
    assert "the same 25,000 requests" in " ".join(said.split())


def test_a_difference_inside_the_interval_is_a_tie() -> None:
    said = " ".join(screen(low=-0.02).split())
    assert "Nobody: mine and theirs tie." in said
    assert "The difference of 25 % could as well be −2 to 31 %" in said
    assert "sooner" not in said


def test_the_bars_are_as_long_as_the_waits() -> None:
    bars = {line.split()[0]: line.count("█") for line in screen(width=100).splitlines() if "█" in line}
    assert list(bars) == ["mine", "theirs", "slow"]
    assert bars["slow"] == pytest.approx(3 * bars["mine"], abs=1)


def test_it_tells_where_the_pictures_are_and_what_to_type_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "report/index.html, report/compare.svg" in screen()
    assert "compare serving --trace my.jsonl" in screen()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "chats.jsonl").touch()
    assert "compare serving --trace examples/chats.jsonl" in screen()


@pytest.mark.parametrize("width", [64, 80, 96])
def test_it_fits_one_screen(width: int) -> None:
    lines = screen(width=width).splitlines()
    assert len(lines) <= 28
    assert max(map(len, lines)) <= max(width, 72)


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert screen(low=-0.02, plain=True).isascii()


def test_the_command_compares_runs_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def study(key: str) -> Result:
        ran.append(key)
        return RESULT

    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(demo, "_compare", lambda html: (answer(0.18), html / "compare.svg"))
    monkeypatch.setattr(demo, "_study", study)
    monkeypatch.setattr("assay.record.report.write_site", lambda folder, papers, results: ran.append(folder.name))
    said = CliRunner().invoke(demo.command, ["--html", str(tmp_path / "site")])
    assert said.exit_code == 0, said.output
    assert ran == [*demo.STUDIES, "site"]
    assert "mine: answers begin 25 % sooner" in said.output
