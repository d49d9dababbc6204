"""The workbench in a real Chromium: the record, a study run and cancelled, two at once, pages for everybody.

`ASSAY_SHOTS=docs/workbench python -m pytest tests/web` also draws the pictures of docs/workbench.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.record import catalogue
from assay.web.security import opener
from tests.web.browsing import BROWSER, Open, shot
from tests.web.conftest import Bench, Gated, until

axe_api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")

pytestmark = [pytest.mark.alone, *BROWSER]
SMALL = "?limit=200&fleet=2xh200%3Aqwen3-8b&policies=lmetric%2Cround-robin"


def test_div_is_run_from_the_page_to_its_verdict(bench: Bench, visit: Open) -> None:
    page = visit(bench, "/papers/div.html")
    assert page.text_content("#claims") == "Claims"  # nothing was measured here yet
    page.fill("[name=seeds]", "2")
    assert page.text_content(".run code") == "assay run div --seeds 2" and "seeds=2" in page.url
    page.click(".go")
    page.wait_for_selector(".progress .cases li")
    page.wait_for_selector("#claims:has-text('Claims and answers')")
    assert page.locator(".claims .chip.reproduced").count() >= 1 and page.locator(".plot svg").count() == 1
    page.locator("#plot").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#plot').scrollIntoView({behavior: 'instant'})")
    shot(page, "paper")
    page.goto(bench.url + "/?x=1#q=div")
    assert page.locator(".forest li:visible .tree").count() >= 1
    assert page.locator(".entry:visible .headline").first.inner_text().endswith("reproduced")
    page.locator(".forest a").first.click()  # through to the paper
    page.wait_for_selector("section[aria-labelledby=runs] tbody tr")


def test_a_private_page_leads_to_the_workbench(bench: Bench, visit: Open, tmp_path: Path) -> None:
    page = visit(bench).context.browser.new_context().new_page()
    page.goto(opener(tmp_path, f"{bench.url}/compare?token={bench.token}").as_uri())
    page.wait_for_selector("h1:has-text('Compare')")
    assert page.url == f"{bench.url}/compare"
    page.context.close()


def test_the_record_holds_every_paper_and_filters_in_the_address(bench: Bench, visit: Open) -> None:
    page = visit(bench)
    assert page.locator(".entry").count() == len(catalogue.papers())
    page.fill("#query", "lmetric")
    assert page.locator(".entry:visible").count() == 1 and page.url.endswith("#q=lmetric")
    page.reload()
    assert page.locator(".entry:visible").count() == 1
    page.locator(".entry:visible a").first.click()
    page.wait_for_url("**/papers/lmetric.html")


def test_a_study_is_cancelled_and_resumed_and_two_browsers_see_it(gated: Gated, visit: Open) -> None:
    first, second = visit(gated, "/papers/third-paper.html?seeds=2"), visit(gated, "/papers/third-paper.html")
    first.click(".go")
    until(lambda: len(gated.trials) >= 2)
    for page in (first, second):  # the other browser follows the same run
        page.wait_for_selector(".cases li >> nth=1")
    second.click(".stop")
    for page in (first, second):
        page.wait_for_selector(".progress.ended .told:has-text('2 finished cases are kept')")
    gated.gate.touch()
    first.click(".go")
    first.wait_for_selector("section[aria-labelledby=provenance] dd:has-text('2 cases from an interrupted run')")
    assert len(gated.trials) == 6
    assert first.locator(".claims .chip").count() >= 2
    second.reload()
    assert second.locator("section[aria-labelledby=runs] tbody tr").count() == 1


def test_a_page_whose_scripts_come_slowly_follows_what_runs(gated: Gated, visit: Open) -> None:
    first = visit(gated, "/papers/third-paper.html")
    first.click(".go")
    late = first.context.new_page()
    listed: list[str] = []
    late.on("response", lambda answer: listed.append(answer.url) if answer.url.endswith("/api/jobs") else None)

    def after_a_while(route: Any) -> None:
        for _ in range(20):
            late.wait_for_timeout(100)
            if listed:  # what runs would be known before anybody listens
                break
        route.continue_()

    late.route("**/static/run.js", after_a_while)
    late.goto(f"{gated.url}/papers/third-paper.html")
    late.wait_for_selector(".progress:not([hidden])")


def test_seven_tabs_on_a_running_study_leave_room_for_its_cancel(gated: Gated, visit: Open) -> None:
    """A browser has six connections for all its tabs of an address: no tab may keep one."""
    first = visit(gated, "/papers/third-paper.html")
    first.fill("[name=seeds]", "2")
    first.click(".go")
    first.wait_for_selector(".progress .cases li")
    tabs = [first.context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.goto(f"{gated.url}/papers/third-paper.html")
        tab.wait_for_selector(".progress .cases li")
    tabs[-1].click(".run .stop")
    for tab in (first, *tabs):
        tab.wait_for_selector(".progress .told:has-text('finished cases are kept')")


PAGES = ("/", "/papers/div.html", "/compare", "/compare/serving" + SMALL, "/live")


@pytest.mark.parametrize(
    ("width", "scheme"), [(1200, "dark"), (390, "light"), pytest.param(1200, "light", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious_dark_light_and_on_a_phone(
    bench: Bench, visit: Open, path: str, width: int, scheme: str
) -> None:
    page = visit(bench, path, width, color_scheme=scheme, reduced_motion="reduce")
    if "serving" in path:
        page.wait_for_selector(".chart svg")
    found = axe_api.Axe().run(page)
    serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
    assert not serious, [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in serious]
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{path} is {wide} pixels too wide at {width}"
    if path == "/" and width < 600:
        shot(page, "record-phone", width)


def test_pages_are_small(bench: Bench) -> None:
    for path in ("/", "/papers/lmetric.html", "/papers/div.html", "/compare", "/compare/serving", "/live"):
        status, _, body = bench.ask("GET", path)
        assert status == 200 and len(body) < 1 << 20, path


@pytest.mark.timed
@pytest.mark.parametrize("path", PAGES)
def test_the_first_paint_comes_within_a_second(bench: Bench, visit: Open, path: str) -> None:
    page = visit(bench, path)
    page.reload()
    paint = "performance.getEntriesByType('paint').find(one => one.name === 'first-contentful-paint')?.startTime"
    until(lambda: page.evaluate(paint))
    assert page.evaluate(paint) < 1000.0
