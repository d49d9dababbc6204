"""Who may ask for what: other sites, other names, wrong tokens, files that are too large or not what they seem."""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import shlex
import socket
import stat
import threading
import zipfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette")

from assay.web import files, live_view
from assay.web.security import kept_token, private_folder
from tests.web.conftest import Bench, environment, until

RUN = {"key": "div"}
OCTETS = "application/octet-stream"


def test_another_site_may_change_nothing(bench: Bench) -> None:
    for heads in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{bench.port + 1}"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        for path in ("/api/runs", "/api/comparisons", "/api/files?name=a.csv"):
            assert bench.json("POST", path, RUN, **heads)[0] == 403
    assert bench.json("DELETE", "/api/jobs/abc", origin="http://evil.example")[0] == 403
    assert bench.json("GET", "/api/jobs")[1] == []


def test_a_form_of_another_site_cannot_send_json(bench: Bench) -> None:
    """What needs no question beforehand (text/plain, forms) is not taken, even without an origin."""
    body = json.dumps(RUN).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert bench.json("POST", "/api/runs", body, content_type=kind)[0] == 415
        assert bench.json("POST", "/api/files?name=a", body, content_type=kind)[0] == 415


def test_a_name_that_points_here_is_not_ours(bench: Bench) -> None:
    assert bench.ask("GET", "/", host=f"evil.example:{bench.port}")[0] == 421
    for host in (f"localhost:{bench.port}", f"127.0.0.1:{bench.port}", f"[::1]:{bench.port}"):
        assert bench.ask("GET", "/api/jobs", host=host)[0] == 200


def test_pages_admit_no_foreign_script_and_no_frame(bench: Bench) -> None:
    for path in ("/", "/papers/div.html", "/compare", "/live"):
        status, heads, body = bench.ask("GET", path)
        policy = heads["content-security-policy"]
        assert status == 200 and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert b"<script>" not in body and b"style=" not in body and b"http-equiv" not in body
        assert heads["x-content-type-options"] == "nosniff" and "server" not in heads


def _upload(bench: Bench) -> str:
    """The first lines of a request that brings a file."""
    return (
        f"POST /api/files?name=a HTTP/1.1\r\nhost: 127.0.0.1:{bench.port}\r\ncontent-type: {OCTETS}\r\n"
        f"authorization: Bearer {bench.token}\r\n"
    )


def test_a_gigabyte_is_refused_by_what_it_says_before_it_comes(bench: Bench) -> None:
    with socket.create_connection(("127.0.0.1", bench.port), timeout=60) as link:
        head = _upload(bench)
        link.sendall(f"{head}content-length: {1 << 30}\r\n\r\n".encode())
        assert link.recv(65536).startswith(b"HTTP/1.1 413")


def test_what_does_not_say_how_long_it_is_is_counted(bench: Bench, tmp_path: Path) -> None:
    def endless():
        for _ in range(64):
            yield b"x" * (1 << 20)

    sent = 0
    with socket.create_connection(("127.0.0.1", bench.port), timeout=60) as link:
        head = _upload(bench)
        link.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        try:
            for part in endless():
                link.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                sent += len(part)
            link.sendall(b"0\r\n\r\n")
            answer = link.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            answer = b"HTTP/1.1 413"
    assert answer.startswith(b"HTTP/1.1 413")
    assert not any(path.name.startswith(".") for path in _kept(bench))


def _kept(bench: Bench) -> list[Path]:
    home = Path(f"/proc/{bench.process.pid}/cwd").resolve()
    return list((home / "web" / "files").glob("*"))


@pytest.mark.parametrize("kind", ["gz", "npz", "lzma", "zst"])
def test_a_small_file_that_unpacks_into_a_large_one_is_refused(bench: Bench, tmp_path: Path, kind: str) -> None:
    bomb = tmp_path / f"bomb.{kind}"
    if kind == "gz":
        with gzip.open(bomb, "wb", compresslevel=9) as file:
            for _ in range(100):
                file.write(b"\0" * (1 << 20))
    elif kind == "lzma":
        bomb.write_bytes(lzma.compress(b"\0" * (100 << 20), lzma.FORMAT_ALONE, preset=0))
    elif kind == "zst":
        arrow = pytest.importorskip("pyarrow", reason="pip install 'assay[data]'")
        with arrow.CompressedOutputStream(str(bomb), "zstd") as packed:
            for _ in range(100):
                packed.write(b"\0" * (1 << 20))
    else:
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr("a.npy", b"\0" * (100 << 20))
    assert bomb.stat().st_size < 1 << 20
    status, told = bench.drop(bomb)
    assert status == 400 and "unpacks into more than" in told["error"]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_broken_archive_is_one_line(bench: Bench, tmp_path: Path, kind: str) -> None:
    broken = tmp_path / f"broken.{kind}"
    if kind == "zst":
        pytest.importorskip("pyarrow", reason="pip install 'assay[data]'")
        broken.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 40)
    else:
        broken.write_bytes(gzip.compress(b"a,b\n1,2\n" * 1000)[:40])
    status, told = bench.drop(broken)
    assert status == 400 and "cannot be unpacked" in told["error"]


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "..\\..\\x.csv", "/etc/passwd", "....//x", "a\0b", "‮gpj.exe", "x" * 5000]
)
def test_a_files_name_is_only_a_name(bench: Bench, tmp_path: Path, name: str) -> None:
    file = tmp_path / "plain.csv"
    file.write_text("a,b\n1,2\n")
    status, told = bench.drop(file, name)
    assert status == 201
    digest, _, plain = told["file"].partition("/")
    assert plain == told["name"] and set(plain) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
    )
    assert (Path(f"/proc/{bench.process.pid}/cwd") / "web" / "files" / digest / plain).is_file()


def test_options_name_neither_files_nor_code_of_this_machine(bench: Bench) -> None:
    for options in (
        {"trace": ["/etc/passwd"]}, {"trace": ["../../x"]}, {"trace": ["~/x"]}, {"fleet": ["/etc/hosts"]},
        {"trace": ["file:../../../etc/passwd"]}, {"trace": ["file:" + "0" * 24 + "/../x"]},
        {"policies": ["--plot"]}, {"plot": ["x.svg"]}, {"policy": ["os:abort"]},
    ):  # fmt: skip
        status, told = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options})
        assert status == 400 and told["error"], options
    for options in ({"policies": ["os:abort"]}, {"order": ["os:abort"], "policies": ["lmetric"]}):
        status, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options})
        assert status == 201
        ended = bench.wait(job["id"])
        assert ended["state"] == "failed" and "does not run here" in ended["message"], ended


def test_code_runs_only_where_it_was_allowed(tmp_path: Path) -> None:
    closed = Bench(environment(tmp_path / "home"), folder=tmp_path)
    try:
        code = "class Mine:\n    def route(self, request, fleet):\n        return 0\n"
        status, told = closed.json("POST", "/api/comparisons", {"name": "serving", "code": code})
        assert status == 400 and "--allow-code" in told["error"]
        assert b'id="code"' not in closed.ask("GET", "/compare/serving")[2]
    finally:
        closed.stop()


@pytest.fixture
def tokened(tmp_path: Path) -> Bench:
    bench = Bench(environment(tmp_path / "home", ASSAY_WEB_TOKEN="the-secret-token"), folder=tmp_path)
    yield bench
    bench.stop()


def refuses_strangers(bench: Bench) -> None:
    """Whoever reaches the port, another user of this machine too, is told and given nothing without the token."""
    wrong = f"assay-token-{bench.port}=wrong"
    for path in ("/", "/api/jobs", "/static/bench.js", "/openapi.json", "/api/live", "/?token=wrong", "/?token="):
        for heads in ({}, {"authorization": "Bearer wrong"}, {"cookie": wrong}, {"cookie": "\x80=;;"}):
            assert bench.ask("GET", path, **{"authorization": ""} | heads)[0] == 401, (path, heads)
    for path, body in (("/api/runs", RUN), ("/api/comparisons", {"name": "serving", "code": "x"}), ("/api/live", {})):
        assert bench.json("POST", path, body, authorization="")[0] == 401
    assert bench.json("DELETE", "/api/jobs/abc", authorization="")[0] == 401


def test_a_given_token_is_asked_for(tokened: Bench) -> None:
    refuses_strangers(tokened)
    assert tokened.ask("GET", "/api/jobs", authorization="Bearer the-secret-token")[0] == 200


def test_on_this_machine_a_token_is_asked_for_too(bench: Bench) -> None:
    refuses_strangers(bench)


def test_the_token_is_the_same_after_a_restart_and_no_other_user_can_read_it(tmp_path: Path) -> None:
    home = tmp_path / "home" / "web"
    first = kept_token(home)
    assert kept_token(home) == first and len(first) >= 32
    assert stat.S_IMODE(home.stat().st_mode) == 0o700 and stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    (home / "token").chmod(0o644)  # whoever made it so, others may have read it
    assert kept_token(home) != first and stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    (home / "token").write_text("")
    assert kept_token(home) != ""
    with ThreadPoolExecutor(8) as threads:  # started at once, over a folder that is new
        assert len(set(threads.map(kept_token, [tmp_path / "new" / "web"] * 8))) == 1


def test_another_users_folder_is_no_place_for_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").mkdir(mode=0o777)
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "web").stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "web")
    assert kept_token(tmp_path / "web") != kept_token(tmp_path / "web") and not list((tmp_path / "web").iterdir())


def test_the_token_stands_in_no_command_line_when_a_browser_is_opened(tmp_path: Path) -> None:
    """Every user of a machine can read those."""
    opens = tmp_path / "bin" / "xdg-open"
    opens.parent.mkdir()
    aside, asked = (shlex.quote(str(tmp_path / name)) for name in ("aside", "asked"))
    opens.write_text(f'#!/bin/sh\necho "$@" > {aside} && mv {aside} {asked}\n')
    opens.chmod(0o755)
    home = tmp_path / "home"
    bench = Bench(environment(home, PATH=f"{opens.parent}:{os.environ['PATH']}"), "--open", folder=tmp_path)
    try:
        until((tmp_path / "asked").exists)
        page = Path((tmp_path / "asked").read_text().strip())
        assert page.parent == home / "web" and bench.token not in str(page)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600 and f"{bench.url}/?token={bench.token}" in page.read_text()
    finally:
        bench.stop()
    assert not page.exists()


def test_where_another_page_led_here_with_the_token_a_page_of_ours_leads_on(tokened: Bench) -> None:
    asked = "/papers/div.html?token=the-secret-token&size=full"
    for site in ("cross-site", "same-site"):
        status, heads, body = tokened.ask("GET", asked, sec_fetch_site=site)
        assert status == 200 and "SameSite=Strict" in heads["set-cookie"] and heads["content-type"] == "text/html"
        assert b"url=/papers/div.html?size=full" in body and b"the-secret-token" not in body
    assert tokened.ask("GET", asked, sec_fetch_site="none")[0] == 303
    _, _, body = tokened.ask("GET", '/x?token=the-secret-token&y="><script>', sec_fetch_site="cross-site")
    assert b"<script>" not in body


def test_dropped_files_are_the_users_own(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    assert bench.drop(file)[0] == 201
    home = Path(f"/proc/{bench.process.pid}/cwd").resolve() / "web"
    assert [path for path in (home, *home.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a_question_in_another_pages_link_is_not_asked(bench: Bench) -> None:
    question = "/compare/serving?trace=chat&limit=60"
    for site, asks in (("cross-site", False), ("same-site", False), ("same-origin", True), ("none", True)):
        assert (b"data-asks" in bench.ask("GET", question, sec_fetch_site=site)[2]) == asks, site
    assert b"data-asks" not in bench.ask("GET", question)[2]  # who does not say where from gets the form


def test_only_what_the_owner_named_is_looked_at(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.0)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        for kind, many in (("gateway", "gateways"), ("watch", "watches")):
            [said] = bench.json("GET", f"/api/live?{kind}={url}")[1][many]
            assert said["unnamed"] and "nobody here named it" in said["error"]
        with pytest.raises(BlockingIOError):
            other.accept()  # nobody came
        assert bench.json("POST", "/api/live", {"kind": "gateway", "url": url}, origin="http://evil.example")[0] == 403
        assert bench.json("POST", "/api/live", {"kind": "gateway", "url": "http://example.org"})[0] == 400
        assert bench.json("POST", "/api/live", {"kind": "gateway", "url": url})[0] == 201
        [said] = bench.json("GET", f"/api/live?gateway={url}")[1]["gateways"]
        assert "unnamed" not in said and "nothing answers" in said["error"]
        assert other.accept()


def test_nobody_is_asked_who_neither_announced_himself_nor_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user of this machine may listen where a gateway usually does."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(live_view, "_read", lambda url, *_: asked.append(url) or {"engines": []})
    state = SimpleNamespace(places=set())
    request = SimpleNamespace(method="GET", query_params={}, headers={}, app=SimpleNamespace(state=state))
    assert json.loads(asyncio.run(live_view.now(request)).body) == {"gateways": [], "watches": []} and not asked


def test_a_large_archive_is_unpacked_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is looked through, the loop goes on: it is the loop that lets this one come to its end."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    went_on = threading.Event()
    monkeypatch.setattr(files, "check_unpacked", lambda *_: went_on.wait(60.0) or pytest.fail("the loop stood still"))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"BZh91AY"

    async def drop() -> tuple[str, int]:
        asyncio.get_running_loop().call_later(0.05, went_on.set)
        return await files.keep("large.bz2", chunks())

    assert asyncio.run(drop())[1] == 7


def test_the_token_moves_from_the_address_into_a_cookie_and_into_no_log(tokened: Bench) -> None:
    status, heads, _ = tokened.ask("GET", "/papers/div.html?token=the-secret-token&size=full")
    assert status == 303 and heads["location"] == "/papers/div.html?size=full"
    assert "HttpOnly" in heads["set-cookie"] and "SameSite=Strict" in heads["set-cookie"]
    cookie = heads["set-cookie"].partition(";")[0]
    assert tokened.ask("GET", heads["location"], cookie=cookie, authorization="")[0] == 200
    assert tokened.ask("GET", "//evil.example/?token=the-secret-token")[1]["location"].startswith("/evil")
    tokened.ask("GET", "/papers/<script>alert(1)</script>.html", cookie=cookie)
    said = tokened.stop()
    assert "the-secret-token" not in said and said.count("\n") == 1


def test_beyond_this_machine_a_token_is_made_up_and_code_is_refused(refused) -> None:
    assert "loopback only" in refused("web", "--host", "0.0.0.0", "--allow-code")


def test_only_this_machine_is_looked_at(bench: Bench) -> None:
    for url in ("http://169.254.169.254", "http://example.org:80", "file:///etc/passwd", "http://127.0.0.1@evil/", "x"):
        status, told = bench.json("GET", f"/api/live?gateway={url}")
        assert status == 400 and "this machine" in told["error"]
