"""The workbench as a real process, in a home of its own, and a browser in front of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from assay.record.doctor import browser as find_browser
from tests.conftest import Package, copied

PATIENCE = 180.0  # seconds: the first start of a version compiles
_URL = re.compile(r"assay web on http://(\S+?):(\d+)/\?token=(\S+) ")

# A paper whose cases wait until a file lets them go: what happens meanwhile is decided, not timed.
GATED = '''\
"""Gated: a case is worth its size plus its seed, and waits for its gate.

A paper small enough to see through, for the workbench's own tests.
"""
import os
import time

from assay.record.measures import mean
from assay.record.types import Claim, Evidence

evidence = Evidence.MODEL
use_when = "Testing the workbench."
avoid_when = "Anything else."


def trial(size, seed):
    gate = os.environ.get("TRIAL_GATE", "")
    while gate and size > 1 and not os.path.exists(gate):
        time.sleep(0.02)
    with open(os.environ["TRIAL_LOG"], "a") as file:
        file.write(f"{size} {seed}\\n")
    return {"worth": size + seed}


def study(lab):
    return lab.run(trial, [{"size": size} for size in (1, 2, 3)])


def plot(table):
    import altair as alt
    return alt.Chart(table).mark_point().encode(x="size:Q", y="worth:Q")


claims = [Claim("large", mean("worth", size=3)), Claim("small", mean("worth", size=1))]
'''

# The limit on code of one's own is half a minute: longer than a test may spin.
IMPATIENT = "from assay.cli import main; from assay.web import comparisons; comparisons.CODE_LIMIT = {}; main.main()"


class Bench:
    """`assay web` as a process; with `code_limit`, code of one's own may take so many seconds."""

    def __init__(
        self, environment: dict[str, str], *arguments: str, folder: Path | None = None, code_limit: float | None = None
    ) -> None:
        program = ["-m", "assay.cli.main"] if code_limit is None else ["-c", IMPATIENT.format(code_limit)]
        command = [sys.executable, *program, "web", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._given = environment.get("ASSAY_WEB_TOKEN", "")
        self.host, self.port, self.token = "", 0, ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(PATIENCE) or not self.port:
            self.stop()
            raise RuntimeError(f"assay web did not start: {''.join(self.lines)}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := _URL.match(line):
                self.host, self.port, self.token = found[1], int(found[2]), self._given or found[3]
                self._ready.set()
        self._ready.set()

    def stop(self) -> str:
        """End it; all that it ever said."""
        self.process.terminate()
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10.0)
        return "".join(self.lines)

    def ask(self, method: str, path: str, body: Any = None, **heads: str) -> tuple[int, dict[str, str], bytes]:
        """One request, with the token unless heads say otherwise; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        fields = {"authorization": f"Bearer {self.token}"}
        fields |= {name.replace("_", "-"): value for name, value in heads.items()}
        if body is not None and not isinstance(body, bytes):
            body, fields = json.dumps(body).encode(), {"content-type": "application/json"} | fields
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, **heads: str) -> tuple[int, Any]:
        status, _, content = self.ask(method, path, body, **heads)
        return status, json.loads(content)

    def drop(self, path: Path, name: str = "") -> tuple[int, Any]:
        """Hand a file over."""
        from urllib.parse import quote

        return self.json(
            "POST", f"/api/files?name={quote(name or path.name)}", path.read_bytes(),
            content_type="application/octet-stream",
        )  # fmt: skip

    def wait(self, job: str) -> Any:
        """A job when it has ended."""
        return until(
            lambda: found if (found := self.json("GET", f"/api/jobs/{job}")[1])["state"] != "running" else None
        )


def until(happens: Callable[[], Any]) -> Any:
    """What it returns, once that is something."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := happens():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def environment(home: Path, **more: str) -> dict[str, str]:
    return os.environ | {"ASSAY_HOME": str(home)} | more


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A workbench that may run pasted code; at its end it has said nothing but where it was."""
    home = tmp_path_factory.mktemp("home")
    bench = Bench(environment(home), "--allow-code", "--max-upload", "8", folder=home)
    yield bench
    said = bench.stop()
    assert said.count("\n") == 1 and said.startswith("assay web on "), said


class Gated(Bench):
    """A workbench with a paper whose cases wait for a gate."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.gate, self.log = package.root / "gate", package.root / "trials"
        self.log.touch()
        super().__init__(package.environment(TRIAL_GATE=str(self.gate), TRIAL_LOG=str(self.log)), folder=package.root)

    @property
    def trials(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    package = copied(tmp_path / "package")
    package.add(source=GATED)
    bench = Gated(package)
    yield bench
    bench.gate.touch()
    bench.stop()


def mooncake(path: Path, count: int = 300) -> Path:
    """A trace in Mooncake's published format: chats that grow turn by turn, a dozen at a time, and come in bursts."""
    random, now, chats, rows = Random(7), 0.0, [[at] for at in range(12)], []
    for at in range(count):
        now += random.expovariate(1 / 25.0)
        chat = random.randrange(12)
        chats[chat] = [1000 * chat] if len(chats[chat]) > 16 else [*chats[chat], 100_000 + at, 200_000 + at]
        blocks = len(chats[chat])
        rows.append(
            {"timestamp": int(now), "input_length": 512 * blocks, "output_length": random.randrange(10, 160),
             "hash_ids": list(chats[chat])}
        )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; pip install 'assay[test]'"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end none may have complained, or asked for anything beyond its server."""
    troubles: list[str] = []
    contexts: list[Any] = []

    def open_page(bench: Bench, path: str = "/", width: int = 1200, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: _trouble(troubles, message))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", lambda r: r.url.startswith((bench.url, "data:", "blob:")) or troubles.append(r.url))
        page.goto(f"{bench.url}{path}{'&' if '?' in path else '?'}token={bench.token}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles


def _trouble(troubles: list[str], message: Any) -> None:
    """What a page complains of; refusals and absence it tells people itself, and the browser tells them here, too."""
    told = ("the server responded with a status of 4", "net::ERR_CONNECTION_REFUSED")
    if message.type in ("error", "warning") and not any(one in message.text for one in told):
        troubles.append(message.text)
