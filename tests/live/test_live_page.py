"""The page at `/`: what the gateway does now, in a real browser; and what of it is only of the last minute."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("uvloop")

from assay.live.recent import OTHERS, Tenant
from assay.live.serve import Running
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
            page = browser.new_page()
            page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.goto(gateway.url)
            page.wait_for_selector("#decisions td", timeout=60_000)
            assert "1 of 1 engines up" in page.text_content("#state")
            assert "qwen3-8b" in page.text_content("#engines")
            assert "<i>acme</i>" in page.text_content("#tenants")  # as text, not as markup
            assert "Canary round-robin decides about 50 %" in page.text_content("#compare")
            assert "up" in page.text_content("#changes")
            found = axe_api.Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            browser.close()
    finally:
        engine.stop()
        if gateway is not None:
            gateway.stop()
    assert not [trouble for trouble in troubles if "favicon" not in trouble], troubles
