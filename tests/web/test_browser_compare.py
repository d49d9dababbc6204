"""Comparisons in a real Chromium: files that are dropped, sliders, policies that are pasted, the keyboard alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.browsing import BROWSER, Open, answers, at_rest, drop, shot
from tests.web.conftest import Bench, mooncake, until

pytestmark = [pytest.mark.alone, *BROWSER]
WORKS = """class Mine:
    key = "mine"
    def route(self, request, fleet):
        return fleet.argmin(fleet.batch_size)
"""
RAISES = "class Bad:\n    def route(self, request, fleet):\n        return 1 / 0\n"
NEVER = "class Slow:\n    def route(self, request, fleet):\n        while True:\n            pass\n"
SMALL = "?limit=200&fleet=2xh200%3Aqwen3-8b&policies=lmetric%2Cround-robin"


def test_a_dropped_trace_is_compared_and_the_slider_moved_ten_times(bench: Bench, visit: Open, tmp_path: Path) -> None:
    page = visit(bench, "/compare/serving" + SMALL)
    answers(page, 1)
    drop(page, mooncake(tmp_path / "mooncake.jsonl"))
    page.wait_for_selector(".dropped li:has-text('mooncake.jsonl')")
    answers(page, 2)
    assert "lmetric" in page.text_content(".why") and "--trace" in page.text_content(".same code")
    page.wait_for_selector(".chart svg")
    shot(page, "compare", height=760)
    shown = set()
    for move in range(10):
        page.focus("[data-part=rate]")
        page.keyboard.press("ArrowRight" if move < 8 else "ArrowLeft")
        answers(page, 3 + move)
        shown.add(page.text_content(".contest"))
    assert page.input_value("#f-rate") == "x2.83" and "rate=x2.83" in page.url
    assert "--rate x2.83" in page.text_content(".same code") and len(shown) >= 7
    again = visit(bench, page.url.removeprefix(bench.url))  # the link reopens the view
    answers(again, 1)
    assert again.text_content(".same code") == page.text_content(".same code")
    assert again.text_content(".why") == page.text_content(".why")
    for part, word in (("count", "--fleet 3xh200:qwen3-8b"), ("ttft", "--slo ttft=0.1")):
        before = int(page.get_attribute(".told", "data-answers"))
        page.focus(f"[data-part={part}]")
        page.keyboard.press("ArrowRight")
        answers(page, before + 1)
        assert word in page.text_content(".same code")


def test_policies_that_work_raise_and_never_return_are_each_one_message(bench: Bench, visit: Open) -> None:
    page = visit(bench, "/compare/serving" + SMALL)
    answers(page, 1)
    page.click(".editor summary")

    def tries(code: str) -> None:
        page.fill("#code", code)
        page.evaluate("document.querySelector('.told').textContent = ''")
        page.click(".try")
        until(lambda: page.text_content(".told").strip() not in ("", "comparing …"))
        at_rest(page)

    tries(WORKS)
    assert "Mine" in page.text_content(".contest")
    shot(page, "policy")
    tries(RAISES)
    assert "ZeroDivisionError" in page.text_content(".told.bad") and "\n" not in page.text_content(".told")
    tries(NEVER)
    assert "the time limit" in page.text_content(".told.bad")
    tries("print('nothing')")
    assert "a class with a method route" in page.text_content(".told.bad")
    page.click(".ask .go")  # and the server lives
    page.wait_for_selector(".told:has-text('answered in')")


def test_with_the_keyboard_alone(bench: Bench, visit: Open) -> None:
    page = visit(bench, "/compare")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/compare/serving":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare/serving")
    answers(page, 1)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.part") == "rate":
            break
    page.keyboard.press("ArrowRight")
    answers(page, 2)
    assert page.input_value("#f-rate") == "x1.19"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


@pytest.mark.timed
def test_a_slider_is_answered_within_a_second_on_ten_thousand_requests(
    bench: Bench, visit: Open, tmp_path: Path
) -> None:
    page = visit(bench, "/compare/serving")
    answers(page, 1)
    drop(page, mooncake(tmp_path / "many.jsonl", 10_000))
    answers(page, 2)
    seconds = []
    for move in range(10):
        page.focus("[data-part=rate]")
        page.keyboard.press("ArrowRight")
        answers(page, 3 + move)
        seconds.append(float(page.get_attribute(".told", "data-seconds")))
    assert sorted(seconds)[5] < 1.0, seconds
