"""The report site in a real browser, opened from disk: search, filters, keyboard, accessibility, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.record import catalogue
from assay.record.doctor import browser as find_browser
from assay.record.report import write_site
from tests.record.test_report import STATES, make_site

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install 'assay[test]'")
axe_api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine; apt-get install chromium"),
]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
ROOMS = Counter(paper.room for paper in catalogue.papers().values())
TOTAL = ROOMS.total()
FOCUS = "document.activeElement"
PAGES = ("index.html", "papers/lmetric.html", "papers/div.html", "papers/balanceroute.html", "papers/nitsum.html")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_site(tmp_path_factory.mktemp("browser")).as_uri()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, site: str) -> Iterator[Open]:
    """Opens a page of the site; at the end no page may have complained or asked for anything but files."""
    troubles: list[str] = []
    contexts: list[Any] = []

    def open_page(path: str = "index.html", width: int = 1280, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(("file://", "data:")) or troubles.append(request.url))
        page.goto(f"{site}/{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles


def shown(page: Any) -> set[str]:
    """The keys of the papers in sight."""
    links = page.locator(".entry:visible h3 a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    return {Path(link).stem for link in links}


def status(page: Any) -> str:
    return str(page.get_by_role("status").inner_text())


def test_search_narrows_as_one_types(visit: Open) -> None:
    page = visit()
    assert status(page) == f"All {TOTAL} papers"
    page.get_by_role("searchbox", name="Search").press_sequentially("lmet")
    assert shown(page) == {"lmetric"}
    assert status(page) == f"1 of {TOTAL} papers"
    assert page.locator(".room:visible").count() == 1
    assert f"1 of {ROOMS['serving']}" in page.locator(".room:visible header").inner_text()


@pytest.mark.parametrize(
    "query", ["multiplication MAY", "lmetric", "uncached prompt tokens", "vLLM-v1's load-only", "2603.15202"]
)
def test_search_reads_title_key_line_claim_and_number(visit: Open, query: str) -> None:
    page = visit()
    page.fill("#query", query)
    assert "lmetric" in shown(page)
    assert len(shown(page)) < 10


def test_no_match_says_so_and_offers_the_way_back(visit: Open) -> None:
    page = visit()
    page.fill("#query", "zzz no such paper")
    assert page.get_by_text("No paper matches.").is_visible()
    assert status(page) == f"0 of {TOTAL} papers"
    page.get_by_role("button", name="Clear search and filters").click()
    assert len(shown(page)) == TOTAL
    assert page.get_by_text("No paper matches.").is_hidden()


def test_rooms_and_verdicts_filter_together(visit: Open) -> None:
    page = visit()
    page.get_by_role("checkbox", name="serving").check()
    assert len(shown(page)) == ROOMS["serving"]
    page.get_by_role("checkbox", name="not reproduced 1").check()
    assert shown(page) == set()
    page.get_by_role("checkbox", name="kernels").check()
    assert shown(page) == {"radius-fps"}
    assert page.locator(".entry:visible .chips").inner_text().replace("\n", " ").startswith("✗")
    page.get_by_role("checkbox", name="reproduced 1", exact=True).check()
    assert shown(page) == {"radius-fps", "lmetric"}
    page.get_by_role("button", name="Clear all").click()
    assert len(shown(page)) == TOTAL


def test_counts_agree_with_what_the_filters_show(visit: Open) -> None:
    page = visit()
    for box in page.locator("input[name=verdict]").all():
        box.check()
        state = box.get_attribute("value")
        count = int(box.locator("xpath=..").locator(".tally").inner_text())
        assert page.locator(f".entry:visible .claim.{state.replace(' ', '-')}").count() == count
        box.uncheck()
    for key, states in STATES.items():
        for state in states.split("|"):
            page.locator(f"input[value='{state}']").check()
            assert key in shown(page)
            page.locator(f"input[value='{state}']").uncheck()


def test_the_view_is_in_the_address(visit: Open) -> None:
    page = visit()
    page.fill("#query", "serving & more?")
    page.fill("#query", "token")
    page.check("input[value=serving]")
    page.check("input[value='not built yet']")
    before = shown(page)
    assert page.url.endswith("#q=token&room=serving&verdict=not+built+yet")
    page.reload()
    assert shown(page) == before
    assert page.input_value("#query") == "token"
    page.get_by_role("button", name="Clear all").click()
    assert "#" not in page.url


def test_an_address_typed_by_hand_is_followed(visit: Open) -> None:
    page = visit("index.html#room=kernels,data")
    assert len(shown(page)) == ROOMS["kernels"] + ROOMS["data"]
    page.evaluate("location.hash = '#verdict=direction'")
    page.wait_for_function("document.getElementById('shown').textContent.startsWith('2 of')")
    assert shown(page) == {"lmetric", "taper"}
    page.evaluate("location.hash = '#main'")  # an anchor is not a view
    assert shown(page) == {"lmetric", "taper"}


def test_the_keyboard_reaches_everything_in_order(visit: Open) -> None:
    page = visit()
    reached = []
    for _ in range(1 + 1 + 1 + 5 + len(ROOMS) + 1):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"({FOCUS}).className || {FOCUS}.name || {FOCUS}.id || {FOCUS}.tagName"))
    assert reached == ["skip", "theme", "query", *["verdict"] * 5, *["room"] * len(ROOMS), "A"]
    assert page.evaluate(f"{FOCUS}.getAttribute('href')") == "papers/lmetric.html"


def test_slash_goes_to_the_search_and_escape_clears_it(visit: Open) -> None:
    page = visit()
    page.keyboard.press("/")
    assert page.evaluate(f"{FOCUS}.id") == "query"
    page.keyboard.type("a/b")
    assert page.input_value("#query") == "a/b"
    page.keyboard.press("Escape")
    assert page.input_value("#query") == ""
    assert len(shown(page)) == TOTAL
    page.keyboard.press("Escape")
    assert page.evaluate(f"{FOCUS}.id") != "query"
    page.focus("input[value=serving]")
    page.keyboard.press("Space")
    assert len(shown(page)) == ROOMS["serving"]


def test_without_scripts_it_is_a_plain_list(visit: Open) -> None:
    page = visit(java_script_enabled=False)
    assert page.locator(".entry:visible").count() == TOTAL
    assert page.locator("#query").is_hidden()
    assert page.locator(".theme").is_hidden()
    assert page.locator("input:visible").count() == 0
    assert "✗not reproduced 1" in page.locator(".choices").first.inner_text().replace("\n", "")
    page.goto(page.url.replace("index.html", "papers/lmetric.html"))
    assert page.locator(".copy").is_hidden()


def test_the_theme_follows_the_system_until_one_is_chosen(visit: Open) -> None:
    page = visit(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("input[value=light]").check()
    light = page.evaluate(ground)
    assert light != dark
    page.locator(".entry h3 a").first.click()
    assert page.evaluate(ground) == light
    page.locator("input[value=auto]").check()
    assert page.evaluate(ground) == dark


def test_links_lead_from_page_to_page(visit: Open) -> None:
    page = visit("papers/lmetric.html")
    page.locator("a[rel=next]").click()
    assert page.url.endswith("papers/taper.html")
    page.locator("a[rel=prev]").click()
    page.get_by_role("navigation", name="Breadcrumb").get_by_role("link", name="serving").click()
    assert len(shown(page)) == ROOMS["serving"]


def test_the_command_is_copied(visit: Open) -> None:
    page = visit("papers/lmetric.html", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.wait_for_function("document.querySelector('.copy').textContent !== 'Copy'")
    assert page.locator("#copied").inner_text() in ("Copied", "Selected")
    assert page.evaluate("navigator.clipboard.readText()") == "assay run lmetric --full --seeds 3 --on ray"


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_scrolls_sideways(visit: Open, path: str, width: int) -> None:
    page = visit(path, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_phone_a_chart_keeps_its_letters_and_is_swiped(visit: Open) -> None:
    page = visit("papers/lmetric.html", width=360)
    figure = page.locator(".plot")
    box = figure.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    drawing = page.locator(".plot svg")
    assert drawing.bounding_box()["width"] == float(drawing.get_attribute("width"))
    figure.evaluate("f => { f.scrollLeft = f.scrollWidth; }")
    assert drawing.evaluate("s => s.getBoundingClientRect().right") <= 360  # its far end can be reached


def test_on_a_phone_long_commands_scroll_by_themselves(visit: Open, tmp_path: Path) -> None:
    write_site(tmp_path, [catalogue.paper("div")], {})  # as it is, with its example and its command
    page = visit(width=360)
    page.goto((tmp_path / "papers" / "div.html").as_uri())
    assert page.locator("#own-input").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [*PAGES, "index.html#q=a&room=serving&verdict=reproduced", "index.html#q=zzzz"])
def test_axe_finds_nothing_serious(visit: Open, path: str, scheme: str) -> None:
    page = visit(path, color_scheme=scheme, reduced_motion="reduce")
    found = axe_api.Axe().run(page).response["violations"]
    serious = [
        (finding["id"], [node["html"][:200] for node in finding["nodes"][:3]])
        for finding in found
        if finding["impact"] in ("serious", "critical")
    ]
    assert not serious
