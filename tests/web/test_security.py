"""Who may ask for what: other sites, other names, wrong tokens, files that are too large or not what they seem."""

from __future__ import annotations

import gzip
import json
import socket
import zipfile
from pathlib import Path

import pytest

from tests.web.conftest import Bench, environment

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


def test_a_gigabyte_is_refused_by_what_it_says_before_it_comes(bench: Bench) -> None:
    with socket.create_connection(("127.0.0.1", bench.port), timeout=60) as link:
        head = f"POST /api/files?name=a HTTP/1.1\r\nhost: 127.0.0.1:{bench.port}\r\ncontent-type: {OCTETS}\r\n"
        link.sendall(f"{head}content-length: {1 << 30}\r\n\r\n".encode())
        assert link.recv(65536).startswith(b"HTTP/1.1 413")


def test_what_does_not_say_how_long_it_is_is_counted(bench: Bench, tmp_path: Path) -> None:
    def endless():
        for _ in range(64):
            yield b"x" * (1 << 20)

    sent = 0
    with socket.create_connection(("127.0.0.1", bench.port), timeout=60) as link:
        head = f"POST /api/files?name=a HTTP/1.1\r\nhost: 127.0.0.1:{bench.port}\r\ncontent-type: {OCTETS}\r\n"
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


@pytest.mark.parametrize("kind", ["gz", "npz"])
def test_a_small_file_that_unpacks_into_a_large_one_is_refused(bench: Bench, tmp_path: Path, kind: str) -> None:
    bomb = tmp_path / f"bomb.{kind}"
    if kind == "gz":
        with gzip.open(bomb, "wb", compresslevel=9) as file:
            for _ in range(100):
                file.write(b"\0" * (1 << 20))
    else:
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr("a.npy", b"\0" * (100 << 20))
    assert bomb.stat().st_size < 1 << 20
    status, told = bench.drop(bomb)
    assert status == 400 and "unpacks into more than" in told["error"]


def test_a_broken_archive_is_one_line(bench: Bench, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gz"
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


def test_with_a_token_nothing_is_told_without_it(tokened: Bench) -> None:
    for path in ("/", "/api/jobs", "/static/bench.js", "/openapi.json"):
        for heads in ({}, {"authorization": "Bearer wrong"}, {"cookie": "assay-token=wrong"}, {"cookie": "\x80=;;"}):
            assert tokened.ask("GET", path, **heads)[0] == 401
    assert tokened.ask("GET", "/?token=wrong")[0] == 401
    assert tokened.ask("GET", "/api/jobs", authorization="Bearer the-secret-token")[0] == 200


def test_the_token_moves_from_the_address_into_a_cookie_and_into_no_log(tokened: Bench) -> None:
    status, heads, _ = tokened.ask("GET", "/papers/div.html?token=the-secret-token&size=full")
    assert status == 303 and heads["location"] == "/papers/div.html?size=full"
    assert "HttpOnly" in heads["set-cookie"] and "SameSite=Strict" in heads["set-cookie"]
    cookie = heads["set-cookie"].partition(";")[0]
    assert tokened.ask("GET", heads["location"], cookie=cookie)[0] == 200
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
