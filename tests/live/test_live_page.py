"""The page at `/`: what the gateway does now, in a real browser; and what of it is only of the last minute."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvloop")

import assay
from assay.live import top_frame
from assay.live.recent import OTHERS, Tenant
from assay.live.serve import Running
from assay.live.top_frame import convert
from assay.record.doctor import browser as find_browser
from tests.live.conftest import Listening
from tests.live.fake_engines import ask, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"


async def overview(port: int) -> dict[str, Any]:
    return json.loads((await ask(port, "GET", "/engines"))[2])


def test_the_page_needs_no_engine_and_no_key_and_holds_no_figures():
    keys = [{"tenant": "ops", "sha256": "0" * 64, "admin": True}]

    async def test():
        async with engines("a") as (a,), Running(settings([a], key=keys)) as running:
            status, fields, body = await ask(running.port, "GET", "/")
            assert status == 200 and fields["content-type"].startswith("text/html") and not a.asked
            assert b"</html>" in body and b"127.0.0.1" not in body and "frame-ancestors" in str(fields)
            assert (await ask(running.port, "GET", "/engines"))[0] == 401

    run(test())


def test_latencies_are_those_of_the_last_minute_and_unknown_where_nothing_came():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            assert (await overview(running.port))["ttft_p50"] is None
            await ask(running.port, "POST", CHAT, chat(stream=True))
            page = await overview(running.port)
            assert page["ttft_p50"] is not None and page["recent"]["statuses"] == {"200": 1}
            assert page["engines"][0]["recent"] == {"requests": 1, "errors": 0, "hit_ratio": 0.0}
            gateway = running.gateway
            for _ in range(13):  # a minute passes
                gateway.recent.tick(gateway.fleet.engines, gateway.now())
            page = await overview(running.port)
            assert page["ttft_p50"] is None and page["recent"]["statuses"] == {} and page["recent"]["requests"] == 0
            assert page["engines"][0]["recent"] == {"requests": 0, "errors": 0, "hit_ratio": None}
            assert page["statuses"] == {"200": 1}  # since the start
            assert running.gateway.counters.ttft.count == 1  # Prometheus has windows of its own

    run(test())


def test_tenants_and_changes_of_state_are_told():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b], failures=1)) as running:
            for tenant in ("acme", "acme", "zoo"):
                await ask(running.port, "POST", CHAT, chat(), x_tenant=tenant)
            a.healthy = False
            changes = running.gateway.recent.changes
            await until(lambda: any(c["engine"] == "a" and c["to"] == "down" for c in changes))
            await ask(running.port, "DELETE", "/engines/b")
            await until(lambda: any(c["engine"] == "b" and c["to"] == "gone" for c in changes))
            page = await overview(running.port)
            assert [(t["tenant"], t["requests"]) for t in page["tenants"]] == [("acme", 2), ("zoo", 1)]
            down = next(c for c in page["changes"] if c["to"] == "down")
            assert down["from"] == "up" and "503" in down["why"] and down["at"] >= 0

    run(test())


def test_names_that_clients_make_up_do_not_fill_the_memory():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            recent = running.gateway.recent
            recent.tenants.update({f"t{n}": Tenant() for n in range(1000)})
            for n in range(5):
                await ask(running.port, "POST", CHAT, chat(), x_tenant=f"new {n}")
            assert len(recent.tenants) == 1001 and recent.tenants[OTHERS].requests == 5

    run(test())


def test_scores_are_by_the_names_of_their_engines_and_blank_where_one_could_not_be_chosen():
    """The smallest one is chosen: among those that could take the request, whoever came or went since."""

    async def test():
        async with engines("a", "b", "c") as (a, b, c):
            b.models = ("other",)
            async with Running(settings([a, b, c])) as running:
                await until(lambda: all(e.models for e in running.gateway.fleet.engines))
                c.healthy = False
                await until(lambda: running.gateway.fleet.engines[2].state == "down")
                for n in range(6):
                    await ask(running.port, "POST", CHAT, chat(f"{n}", model=("m", "other")[n % 2]))
                await ask(running.port, "DELETE", "/engines/a")
                await until(lambda: len(running.gateway.fleet.engines) == 2)
                page = await overview(running.port)
                assert len(page["decisions"]) == 6
                for one in page["decisions"]:
                    known = {n: s for n, s in zip(one["engines"], one["scores"], strict=True) if s is not None}
                    assert one["engines"] == ["a", "b", "c"] and one["engine"] == min(known, key=known.__getitem__)
                    assert set(known) == {one["engine"]}
                shown = convert(page)
                of_b = next(top_frame._today(d, shown) for d in shown.decisions if d.engine == "b")
                assert of_b.scores[0] is not None and of_b.scores[1] is None  # b is the first now
                assert "eligible" not in page["decisions"][0]

    run(test())


def test_scores_are_those_that_decided_and_none_where_the_policy_chose_by_something_else():
    class Counts:
        """Goes on counting in the array that it has decided by."""

        def __init__(self) -> None:
            self.given = np.zeros(2)

        def route(self, request: Any, fleet: Any) -> int:
            i = fleet.argmin(self.given)
            self.given[i] += 1
            return i

    class Stays:
        """Looks for the least loaded engine, and takes the last one all the same."""

        def route(self, request: Any, fleet: Any) -> int:
            fleet.argmin(np.array([1.0, 2.0]))
            return 1

    async def decisions(router: Any) -> list[dict[str, Any]]:
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            running.gateway.placing.use(router, None)
            for n in range(3):
                await ask(running.port, "POST", CHAT, chat(f"{n}"))
            return (await overview(running.port))["decisions"]

    async def test():
        for one in await decisions(Counts()):
            assert one["scores"][one["engines"].index(one["engine"])] == min(one["scores"])
        assert [(one["engine"], one["scores"]) for one in await decisions(Stays())] == 3 * [("b", None)]

    run(test())


def test_pages_draw_with_values_that_browsers_know_and_write_numbers_as_people_do():
    for name in ("live/page.html", *(f"web/static/{script}.js" for script in ("live", "compare", "run"))):
        text = (Path(assay.__file__).parent / name).read_text()
        after = re.findall(r"toPrecision\(\d\)(.)", text)
        assert after == [")"] * text.count("toPrecision"), name  # of Number(…): else it writes 1.3e+2
        for value in re.findall(r'preserveAspectRatio"?[:,] *"([^"]*)"', text):
            assert value == "none" or re.fullmatch(r"x(Min|Mid|Max)Y(Min|Mid|Max)( meet| slice)?", value), (name, value)
        assert '"failed", ["note"' not in text and '"failed", "note"' not in text  # beside figures it is cut off


@pytest.mark.browser
@pytest.mark.alone
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine; apt-get install chromium")
def test_in_a_browser_it_shows_engines_decisions_tenants_and_the_canary():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    axe_api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    engine = Listening("engine", "--port", "0", "--model", "qwen3-8b", "--instant")
    gateway = None
    troubles: list[str] = []
    try:
        gateway = Listening("gateway", "--engines", engine.url, "--port", "0", "--canary", "round-robin=50%")
        port = int(gateway.url.rsplit(":", 1)[1])

        async def some() -> None:
            for n in range(6):
                body = chat(f"<b>{n}</b>", model="qwen3-8b", max_tokens=3, stream=True)
                await ask(port, "POST", CHAT, body, x_tenant="<i>acme</i>")

        asyncio.run(some())
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.goto(gateway.url)
            page.wait_for_selector("#decisions td", timeout=60_000)
            assert "1 of 1 engines up" in page.text_content("#state")
            assert "qwen3-8b" in page.text_content("#engines")
            assert "<i>acme</i>" in page.text_content("#tenants")  # as text, not as markup
            assert "Canary round-robin decides about 50 %" in page.text_content("#compare")
            assert "up" in page.text_content("#changes")
            assert page.evaluate("[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)")
            page.evaluate("""show({engines: [{name: "a", state: "down", models: ["m".repeat(60)], role: "", aboard: 1e5,
                age: 1, waiting: 9, prefill_tokens: 1e8, kv_free: 1, ttft: 100, itl: 0.12345, hit_ratio: 1, errors: 1e6,
                requests: 1, note: "vLLM: found running; missing hits; start the engine with --x ".repeat(9)}],
                decisions: [], tenants: [], changes: [], policy: "p", requests: 1})""")
            edges = page.evaluate("[...document.querySelectorAll('#notes li')].map(e => [e.scrollWidth, e.clientWidth, "
                                  "e.getBoundingClientRect().right])")  # fmt: skip
            assert len(edges) == 1 and all(wide <= room and right <= 1280 for wide, room, right in edges)
            found = axe_api.Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            browser.close()
    finally:
        engine.stop()
        if gateway is not None:
            gateway.stop()
    assert not [trouble for trouble in troubles if "favicon" not in trouble], troubles
