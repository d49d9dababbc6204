"""`assay traces get`: resumed, checked, written whole or not at all; against a server of our own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.record import traces
from assay.record.errors import BadInput, StoreFailed
from assay.record.fetch import FetchFailed, fetch
from assay.record.traces import File, Trace
from assay.record.types import NotMeasured

CONTENT = bytes(range(256)) * 1000


@dataclass
class Served:
    """What a server holds, how it misbehaves, and what it was asked."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)  # so many bytes of each next answer, then the connection ends
    ranges: bool = True
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


class Handler(BaseHTTPRequestHandler):
    """Files with ranges, redirects, and answers that end too early."""

    def __init__(self, served: Served, *given: Any) -> None:
        self.served = served
        super().__init__(*given)

    def do_GET(self) -> None:
        wanted, served = self.path.lstrip("/"), self.served
        if wanted.startswith("http:"):  # asked as a proxy
            wanted = wanted.split("/", 3)[-1]
            served.asked.append(("proxy", None))
        served.asked.append((wanted, self.headers["Range"]))
        if to := served.moved.get(wanted):
            self.send_response(302)
            self.send_header("Location", to)
            self.end_headers()
            return
        content = served.files.get(wanted)
        if content is None:
            self.send_error(404)
            return
        begin = int(self.headers["Range"][6:-1]) if served.ranges and self.headers["Range"] else 0
        if begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        self.wfile.write(content[begin:][: served.cut.pop(0) if served.cut else None])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, found))
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path / "none"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "traces"


def trace(served: Served, contents: dict[str, bytes] | None = None) -> Trace:
    contents = contents or {"chat.csv": CONTENT}
    served.files |= contents
    files = tuple(
        File(path, served.url(path), len(content), hashlib.sha256(content).hexdigest())
        for path, content in contents.items()
    )
    return Trace("chat", "chats", "here", "MIT", files)


def test_a_trace_is_fetched_and_found(served: Served, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, seen = trace(served), []
    assert fetch(wanted, progress=lambda done, total: seen.append((done, total))) == home / "chat.csv"
    assert (home / "chat.csv").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert traces.find("chat.csv") == home / "chat.csv"
    assert wanted.path == home / "chat.csv"
    fetch(wanted)
    assert len(served.asked) == 1, "what is there and right is not fetched again"


def test_a_connection_that_ends_early_is_resumed_at_once(served: Served, home: Path) -> None:
    served.cut = [1000, 5000]
    fetch(trace(served))
    assert (home / "chat.csv").read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=1000-", "bytes=6000-"]


def test_what_breaks_off_again_and_again_is_kept_for_the_next_time(served: Served, home: Path) -> None:
    wanted = trace(served)
    served.cut = [1000, 1000, 1000]
    with pytest.raises(FetchFailed, match="3,000 of 256,000 bytes are kept, and the next try goes on there"):
        fetch(wanted)
    assert not (home / "chat.csv").exists()
    fetch(wanted)
    assert (home / "chat.csv").read_bytes() == CONTENT
    assert served.asked[-1] == ("chat.csv", "bytes=3000-")


def test_a_server_that_does_not_resume_begins_anew(served: Served, home: Path) -> None:
    served.cut, served.ranges = [1000], False
    fetch(trace(served))
    assert (home / "chat.csv").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (CONTENT[:-1] + b"?", "not the file that was published: SHA-256"),
        (CONTENT + b"?", "longer than the 256,000 bytes"),
        (CONTENT[:-1], "255,999 of 256,000 bytes"),
        (None, "404 Not Found"),
    ],
)
def test_what_is_not_the_file_is_not_written(served: Served, home: Path, content: bytes | None, line: str) -> None:
    wanted = trace(served)
    del served.files["chat.csv"]
    if content is not None:
        served.files["chat.csv"] = content
    with pytest.raises(FetchFailed, match=line):
        fetch(wanted)
    assert not (home / "chat.csv").exists()
    served.files["chat.csv"] = CONTENT
    fetch(wanted)
    assert (home / "chat.csv").read_bytes() == CONTENT, "nothing wrong stays behind"


def test_a_trace_of_several_files_takes_its_place_whole(served: Served, home: Path) -> None:
    wanted = trace(served, {"noise/a.csv": b"a" * 10, "noise/b.csv": b"b" * 10})
    del served.files["noise/b.csv"]
    with pytest.raises(FetchFailed, match="404"):
        fetch(wanted)
    assert not (home / "noise").exists()
    served.files["noise/b.csv"] = b"b" * 10
    assert fetch(wanted) == home / "noise"
    assert sorted(path.name for path in (home / "noise").iterdir()) == ["a.csv", "b.csv"]
    assert [path for path, _ in served.asked].count("noise/a.csv") == 1, "what had come is not asked for again"


def test_a_redirect_is_followed(served: Served, home: Path) -> None:
    wanted = trace(served)
    served.files["elsewhere"] = served.files.pop("chat.csv")
    served.moved["chat.csv"] = served.url("elsewhere")
    fetch(wanted)
    assert (home / "chat.csv").read_bytes() == CONTENT


def test_a_mirror_serves_the_same_names_and_is_checked_alike(served: Served, home: Path) -> None:
    wanted = trace(served, {"noise/a b.csv": b"a"})
    served.files = {"mirror/noise/a%20b.csv": b"x"}
    with pytest.raises(FetchFailed, match="not the file that was published"):
        fetch(wanted, mirror=served.url("mirror/"))
    served.files = {"mirror/noise/a%20b.csv": b"a"}
    fetch(wanted, mirror=served.url("mirror"))
    assert (home / "noise/a b.csv").read_bytes() == b"a"
    with pytest.raises(BadInput, match="--mirror file:///tmp: give an address such as"):
        fetch(wanted, mirror="file:///tmp")


def test_a_proxy_is_asked_for_the_whole_address(served: Served, home: Path) -> None:
    wanted = trace(served)
    fetch(wanted, proxy=served.url(""))
    assert ("proxy", None) in served.asked
    assert (home / "chat.csv").read_bytes() == CONTENT


def test_nobody_there_is_one_line(home: Path) -> None:
    gone = Trace("gone", "", "", "", (File("gone.csv", "http://127.0.0.1:1/gone.csv", 3, "0" * 64),))
    with pytest.raises(FetchFailed, match=r"gone.csv: .*refused; another source: --mirror URL"):
        fetch(gone)


def test_a_home_that_cannot_be_written_is_one_line(served: Served, home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(StoreFailed, match=r"cannot write .* set ASSAY_HOME to another folder"):
        fetch(trace(served))


def test_a_trace_without_a_checksum_says_where_it_is() -> None:
    with pytest.raises(BadInput, match=r"no checksum of it is known; it is at github.com/HPMLL/BurstGPT"):
        fetch(traces.named("burstgpt-1"))


def test_two_at_once_do_not_write_one_file(served: Served, home: Path) -> None:
    import fcntl

    wanted = trace(served)
    part = home / ".partial" / wanted.files[0].sha256
    part.parent.mkdir(parents=True)
    with part.open("a+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FetchFailed, match="another 'assay traces get'"):
            fetch(wanted)


# ------------------------------------------------------------------------------------------ the catalogue


def test_the_catalogue_names_every_file_once() -> None:
    files = [file for one in traces.published() for file in one.files]
    assert len({file.path for file in files}) == len(files)
    assert len({one.name for one in traces.published()}) == len(traces.published())
    for file in files:
        assert bool(file.url) == bool(file.sha256) == bool(file.size)
        if file.url:
            assert file.url.startswith("https://")
            assert len(bytes.fromhex(file.sha256)) == 32
        assert not Path(file.path).is_absolute()
        assert ".." not in Path(file.path).parts


@pytest.mark.traces
def test_what_lies_at_hand_is_what_the_catalogue_says(public_traces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_TRACES", public_traces)  # the other tests of this file have none
    there = [(base / f.path, f) for base in traces.folders() for t in traces.published() for f in t.files if f.sha256]
    there = [(path, file) for path, file in there if path.exists()]
    if not there:
        pytest.skip("no public trace is at hand: assay traces get --all")
    for path, file in there:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256, path


def test_a_missing_trace_names_the_command_that_brings_it() -> None:
    with pytest.raises(NotMeasured, match="not at hand: azure-vm-noise; run: assay traces get azure-vm-noise"):
        traces.find("azure_vm_noise")
    with pytest.raises(NotMeasured, match=r"not at hand: burstgpt-2; burstgpt-2: it is at .* set ASSAY_TRACES"):
        traces.find("BurstGPT_2.csv")
    with pytest.raises(NotMeasured, match=r"put mine.csv into a folder and set ASSAY_TRACES to that"):
        traces.find("mine.csv")
    with pytest.raises(BadInput, match="no published trace has the name 'azure'; did you mean azure-"):
        traces.named("azure")


def test_the_command_says_what_it_fetches(served: Served, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from assay.cli.main import assay as command_line

    wanted = traces.named("taco")
    served.files = {file.path: b"?" * file.size for file in wanted.files}
    given = ["traces", "get", "taco", "--mirror", served.url(""), "--json"]
    assert command_line.main(given, standalone_mode=False) == 1
    out, err = capfd.readouterr()
    (row,) = json.loads(out)
    assert (row["name"], row["licence"], row["size"]) == ("taco", "Apache 2.0", wanted.size)
    assert "not the file that was published" in row["error"]
    assert "not the file that was published" in err
    command_line.main([*given[:-1]], standalone_mode=False)
    shown = capfd.readouterr().out
    assert "taco: github.com/cispa/TACO" in shown
    assert wanted.files[0].sha256 in shown
