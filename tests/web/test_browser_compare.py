"""Comparisons in a real Chromium: files that are dropped, sliders, policies that are pasted, the keyboard alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.browsing import BROWSER, Open, answers, at_rest, drop, shot
from tests.web.conftest import Bench, environment, mooncake, until

pytestmark = [pytest.mark.alone, *BROWSER]
WORKS = """class Mine:
    key = "mine"
    def route(self, request, fleet):
        return fleet.argmin(fleet.batch_size)
"""
RAISES = "class Bad:\n    def route(self, request, fleet):\n        return 1 / 0\n"
NEVER = "class Slow:\n    def route(self, request, fleet):\n        while True:\n            pass\n"
SMALL = "?limit=200&fleet=2xh200%3Aqwen3-8b&policies=lmetric%2Cround-robin"


@pytest.mark.parametrize(
    ("moves", "back", "rate", "differ"),
    [(2, 1, "x1.19", 2), pytest.param(8, 2, "x2.83", 7, marks=pytest.mark.slow)],
)
def test_a_dropped_trace_is_compared_and_the_slider_moved(
    moves: int, back: int, rate: str, differ: int, bench: Bench, visit: Open, tmp_path: Path
) -> None:
    page = visit(bench, "/compare/serving" + SMALL)
    answers(page, 1)
    drop(page, mooncake(tmp_path / "mooncake.jsonl"))
    page.wait_for_selector(".dropped li:has-text('mooncake.jsonl')")
    answers(page, 2)
    assert "lmetric" in page.text_content(".why") and "--trace" in page.text_content(".same code")
    page.wait_for_selector(".chart svg")
    shot(page, "compare", height=760)
    shown = set()
    for move in range(moves + back):
        page.focus("[data-part=rate]")
        page.keyboard.press("ArrowRight" if move < moves else "ArrowLeft")
        answers(page, 3 + move)
        shown.add(page.text_content(".contest"))
    assert page.input_value("#f-rate") == rate and f"rate={rate}" in page.url
    assert f"--rate {rate}" in page.text_content(".same code") and len(shown) >= differ
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


def test_policies_that_work_and_that_raise_are_each_one_message(bench: Bench, visit: Open) -> None:
    page = _editor(bench, visit)
    _try(page, WORKS)
    assert "Mine" in page.text_content(".contest")
    shot(page, "policy")
    _try(page, RAISES)
    assert "ZeroDivisionError" in page.text_content(".told.bad") and "\n" not in page.text_content(".told")
    _try(page, "print('nothing')")
    assert "a class with a method route" in page.text_content(".told.bad")
    page.click(".ask .go")  # and the server lives
    page.wait_for_selector(".told:has-text('answered in')")


def test_a_policy_that_never_returns_is_one_message_and_the_server_lives(visit: Open, tmp_path: Path) -> None:
    bench = Bench(environment(tmp_path / "home"), "--allow-code", folder=tmp_path, code_limit=3.0)
    try:
        page = _editor(bench, visit)
        _try(page, NEVER)
        assert "stopped after 3 s, the time limit" in page.text_content(".told.bad")
        page.click(".ask .go")
        page.wait_for_selector(".told:has-text('answered in')")
    finally:
        bench.stop()


def _editor(bench: Bench, visit: Open) -> Any:
    """The page on which a policy is pasted."""
    page = visit(bench, "/compare/serving" + SMALL)
    answers(page, 1)
    page.click(".editor summary")
    return page


def _try(page: Any, code: str) -> None:
    """Paste a policy, and wait for what the page says about it."""
    page.fill("#code", code)
    page.evaluate("document.querySelector('.told').textContent = ''")
    page.click(".try")
    until(lambda: page.text_content(".told").strip() not in ("", "comparing …"))
    at_rest(page)


def test_a_drop_takes_the_place_of_what_was_and_a_bad_file_can_be_taken_out(
    bench: Bench, visit: Open, tmp_path: Path
) -> None:
    page = visit(bench, "/compare/serving" + SMALL)
    answers(page, 1)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"no": "request"}\n')
    drop(page, bad)
    page.wait_for_selector(".told.bad")
    assert page.locator(".answer *").count() == 0  # what stood there answered another question
    assert page.locator(".dropped li").all_inner_texts()[0].startswith("bad.jsonl")
    drop(page, mooncake(tmp_path / "good.jsonl"))
    answers(page, 2)
    assert [text.split()[0] for text in page.locator(".dropped li").all_inner_texts()] == ["good.jsonl×"] or [
        text.partition("×")[0].strip() for text in page.locator(".dropped li").all_inner_texts()
    ] == ["good.jsonl"]
    page.click(".dropped button")
    assert page.locator(".dropped li").count() == 0 and "trace=" not in page.url


def test_a_comparison_is_listed_on_every_page_and_two_reloads_lock_nobody_out(bench: Bench, visit: Open) -> None:
    never = {"name": "serving", "code": NEVER, "options": {"trace": ["chat"], "limit": ["60"], "policies": ["lmetric"]}}
    _, job = bench.json("POST", "/api/comparisons", never)
    page = visit(bench, "/")
    page.wait_for_selector(".running:has-text('serving (comparison)')")
    page.click(".running button")
    until(lambda: bench.json("GET", f"/api/jobs/{job['id']}")[1]["state"] == "stopped")
    page.wait_for_selector(".running", state="hidden")
    page = visit(bench, "/compare/serving" + SMALL)
    for _ in range(4):
        page.reload()
    answers(page, 1)


def test_another_pages_link_gets_no_answer(bench: Bench, chromium: Any) -> None:
    """To a browser localhost and 127.0.0.1 are two sites."""
    page = chromium.new_context().new_page()
    try:
        page.goto(f"{bench.url}/compare?token={bench.token}")
        jobs = bench.json("GET", "/api/jobs")[1]
        link = f"http://localhost:{bench.port}/compare/serving{SMALL}"
        page.evaluate("(to) => { document.body.innerHTML = `<a href='${to}'>look</a>`; }", link)
        page.click("a")
        page.wait_for_url(link)
        assert "a token is needed" in page.content()  # it does not even get the cookie
        assert bench.json("GET", "/api/jobs")[1] == jobs
    finally:
        page.context.close()


def test_a_question_that_a_link_brought_waits_for_a_click(bench: Bench, visit: Open) -> None:
    """As the server answers who comes from elsewhere and has the cookie: a page of another port of this machine."""
    page = visit(bench, "/compare")
    page.route(
        "**/compare/serving?*", lambda route: route.fulfill(body=_from_elsewhere(route), content_type="text/html")
    )
    jobs = bench.json("GET", "/api/jobs")[1]
    page.goto(bench.url + "/compare/serving" + SMALL)
    page.wait_for_selector(".told:has-text('press Compare')")
    assert page.input_value("#f-fleet") == "2xh200:qwen3-8b"
    assert bench.json("GET", "/api/jobs")[1] == jobs
    page.click(".ask .go")
    answers(page, 1)


def _from_elsewhere(route: Any) -> str:
    return route.fetch(headers=route.request.headers | {"sec-fetch-site": "same-site"}).text()


def test_after_a_restart_the_page_says_so_and_goes_on(visit: Open, tmp_path: Path) -> None:
    first = Bench(environment(tmp_path / "home"), "--allow-code", folder=tmp_path)
    try:
        page = _editor(first, visit)
        page.fill("#code", NEVER)
        page.click(".try")
        until(lambda: any(job["state"] == "running" for job in first.json("GET", "/api/jobs")[1]))
    finally:
        first.stop()
    page.wait_for_selector(".told:has-text('does not answer')")
    second = Bench(environment(tmp_path / "home"), "--port", str(first.port), folder=tmp_path)
    try:
        assert second.token == first.token
        page.wait_for_selector(
            ".told:has-text('code of your own runs only after')"
        )  # it asked the new one, who may not
        page.click(".ask .go")
        page.wait_for_selector(".told:has-text('answered in')")
    finally:
        second.stop()


def test_with_the_keyboard_alone(bench: Bench, visit: Open) -> None:
    page = visit(bench, "/compare")
    page.route("**/api/comparisons", lambda route: route.continue_(post_data=_small(route.request.post_data_json)))
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


def _small(asked: dict[str, Any]) -> dict[str, Any]:
    """A question of a page that was opened without one, asked of a few requests."""
    small = {"limit": ["200"], "fleet": ["2xh200:qwen3-8b"], "policies": ["lmetric,round-robin"]}
    return asked | {"options": asked["options"] | small}


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
