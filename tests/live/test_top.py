"""The live view: what one frame shows, what is read, and what is said where nothing can be."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from assay.cli import main as cli
from assay.cli.top import command
from assay.live import top
from assay.live.top_frame import Reading, convert, frame
from assay.record.errors import AssayError, BadInput

ENGINE = {
    "name": "gpu-0.llm:8000", "url": "http://gpu-0.llm:8000", "state": "up", "models": ["m"], "family": "vllm",
    "note": "vLLM: found running; missing hits; start the engine with --enable-prefix-caching", "aboard": 31,
    "running": 28, "waiting": 3, "prefill_tokens": 4096, "kv_tokens": 70000, "kv_free": 0.25, "itl": 0.021,
    "ttft": 0.34, "age": 0.4, "requests": 1000, "errors": 2, "tokens": 5, "hit_ratio": 0.5, "blocks": 12,
    "recent": {"requests": 100, "errors": 2, "hit_ratio": 0.83},
}  # fmt: skip
DECISION = {
    "request": 7, "engine": "gpu-1.llm:8000", "prompt": 2010, "matched": 1504, "scores": [811.0, 64.0], "at": 0.25,
    "shadow": "gpu-0.llm:8000",
}  # fmt: skip
SHADOW = {
    "policy": "vllm-v1", "decisions": 1200, "agreement": 0.63, "errors": 0, "match_ratio": 0.41,
    "match_ratio_real": 0.73, "load_spread": 1.12, "load_spread_real": 1.31, "aboard": {"gpu-0.llm:8000": 3},
}  # fmt: skip
PAGE: dict[str, Any] = {
    "policy": "lmetric", "order": "weighted", "queue": 5, "requests": 2000, "retries": 3, "policy_errors": 0,
    "policy_error": "", "ttft_p50": 0.1, "ttft_p99": 2.5, "itl_p50": 0.025, "itl_p99": 0.05, "scale": 1.0,
    "statuses": {"200": 99990, "429": 8, "502": 2},
    "recent": {"seconds": 60.0, "requests": 2000, "retries": 3, "statuses": {"200": 1990, "429": 8, "502": 2}},
    "engines": [ENGINE, ENGINE | {"name": "gpu-1.llm:8000", "requests": 1000}],
    "decisions": [DECISION], "shadow": SHADOW,
}  # fmt: skip


def drawn(
    page: dict[str, Any], width: int = 140, height: int = 40, before: tuple[Reading, ...] = (), **more: str
) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(frame(Reading(10.0, convert(page)), before, width, height, **more))
    return console.export_text()


def fleet(count: int, **changes: Any) -> dict[str, Any]:
    engines = [ENGINE | {"name": f"gpu-{i}.llm:8000"} | changes for i in range(count)]
    decision = DECISION | {"scores": [float(count - i) for i in range(count)], "engine": f"gpu-{count - 1}.llm:8000"}
    return PAGE | {"engines": engines, "decisions": [decision] * 12}


# ------------------------------------------------------------------------------------------------ the frame


def test_counts_are_of_the_last_minute_and_what_nobody_said_is_unknown() -> None:
    text = drawn(PAGE)
    assert "in the last minute: retries 3   answers  200 1,990" in text and "99,990" not in text
    assert "83%" in text and "50%" not in text and "err/min" in text and "prefill tok" in text
    quiet = PAGE | {"recent": {"seconds": 60.0, "requests": 0, "retries": 0, "statuses": {}}}
    quiet["engines"] = [ENGINE | {"recent": {"requests": 0, "errors": 0, "hit_ratio": None}}]
    assert "retries 0   answers  0" in drawn(quiet)
    older = {name: value for name, value in PAGE.items() if name != "recent"}  # a gateway that does not say
    assert "retries –   answers  –" in drawn(older)


def test_a_frame_says_what_the_gateway_does() -> None:
    text = drawn(PAGE, title="http://127.0.0.1:8000")
    for said in ("lmetric", "order weighted", "2 of 2 engines up", "http://127.0.0.1:8000", "queue 5", "retries 3",
                 "200 1,990", "429 8", "502 2", "p50 ≤ 100 ms p99 ≤ 2.5 s", "p50 ≤ 25 ms p99 ≤ 50 ms"):  # fmt: skip
        assert said in text
    row = next(line for line in text.splitlines() if line.startswith("gpu-0"))
    for said in ("● up", " 31 ", " 28 ", " 3 ", "4096", "75%", "83%", "340 ms", "21 ms", "start it with --enable"):
        assert said in row


def test_rates_are_those_since_the_last_reading() -> None:
    earlier = PAGE | {"requests": 1900, "engines": [ENGINE | {"requests": 900}]}
    text = drawn(PAGE, before=(Reading(8.0, convert(earlier)),))
    assert " 50/s" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("gpu-")]
    assert "50" in rows[0]
    assert "–" in rows[1]  # it was not there before


def test_a_gateway_that_was_started_anew_has_no_rate_yet() -> None:
    assert "–/s" in drawn(PAGE, before=(Reading(9.0, convert(PAGE | {"requests": 9999})),))


def test_the_chosen_engine_is_marked_and_the_shadow_named() -> None:
    text = drawn(PAGE)
    line = next(line for line in text.splitlines() if "1504/2010" in line)
    assert line.split() == ["250", "ms", "1", "1504/2010", "811", "▸64", "0"]
    assert "vllm-v1 agrees in 63% of 1200 decisions" in text
    assert ["lmetric", "73%", "1.31"] in [line.split() for line in text.splitlines()]
    assert ["vllm-v1", "41%", "1.12"] in [line.split() for line in text.splitlines()]


def test_the_smallest_score_that_stands_out_is_one_of_an_engine_in_service() -> None:
    down = ENGINE | {"name": "gpu-2.llm:8000", "state": "down"}
    page = PAGE | {"engines": [*PAGE["engines"], down], "decisions": [DECISION | {"scores": [811.0, 64.0, 1.0]}]}
    console = Console(width=140, file=io.StringIO(), record=True, force_terminal=True, color_system="standard")
    console.print(frame(Reading(0.0, convert(page)), (), 140))
    text = console.export_text(styles=True)
    assert re.search(r"\x1b\[1;32m *▸64\x1b", text)
    assert re.search(r"\x1b\[2m *1\x1b", text)  # faint: of an engine that is down


def test_scores_of_a_fleet_that_has_changed_since_are_nobodys() -> None:
    page = PAGE | {"decisions": [DECISION | {"scores": [1.0, 2.0, 3.0]}]}
    line = next(line for line in drawn(page).splitlines() if "1504/2010" in line)
    assert line.split()[4:] == ["–", "–", "0"]


def test_a_policy_that_gives_no_scores_is_shown_without() -> None:
    assert "the policy gave none" in drawn(PAGE | {"decisions": [DECISION | {"scores": None}]})


def test_a_failing_policy_and_a_silent_gateway_are_said_at_the_top() -> None:
    text = drawn(PAGE | {"policy_errors": 4, "policy_error": "KeyError: 3"}, trouble="no gateway at http://x: refused")
    assert "the policy failed 4 times: KeyError: 3" in text
    assert "✗ no gateway at http://x: refused" in text


@pytest.mark.parametrize("width", [80, 140])
def test_64_engines_are_shortened_and_those_in_trouble_stay(width: int) -> None:
    page = fleet(64)
    page["engines"][50] |= {"state": "down", "note": "cannot connect: refused", "aboard": 0}
    text = drawn(page, width)
    assert "… and 52 more" in text
    assert "✗ down" in text
    assert "cannot connect: refused" in text


@pytest.mark.parametrize("count", [0, 1, 4, 13, 64])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (140, 40), (200, 60)])
def test_a_frame_fits_its_terminal(count: int, width: int, height: int) -> None:
    lines = drawn(fleet(count), width, height).splitlines()
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width


def test_names_that_are_too_long_lose_what_they_have_in_common() -> None:
    names = [f"vllm-qwen3-32b-prod-{i}.vllm.models.svc.cluster.local:8000" for i in range(2)]
    text = drawn(PAGE | {"engines": [ENGINE | {"name": name} for name in names]}, 80)
    assert [line.split()[0] for line in text.splitlines() if "● up" in line] == ["0", "1"]


def test_nothing_that_is_said_steers_the_terminal() -> None:
    engine = ENGINE | {"name": "gpu\x1b[2J", "state": "down", "note": "bad\x1b]0;title\x07\nline"}
    text = drawn(PAGE | {"engines": [engine], "policy": "a\x1bb", "policy_errors": 1, "policy_error": "\x9b31m"})
    assert "\x1b" not in text and "\x07" not in text and "\x9b" not in text
    assert "gpu·[2J" in text


def none_anywhere(value: Any) -> st.SearchStrategy[Any]:
    """The same value, with None or nothing for any of its fields; what only lists name stays."""
    if isinstance(value, dict):
        fields = {name: st.none() | none_anywhere(inner) for name, inner in value.items()}
        return st.fixed_dictionaries({}, optional=fields)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return st.lists(none_anywhere(value[0]), max_size=3)
    if isinstance(value, list):
        return st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3)
    return st.just(value)


pages = none_anywhere(PAGE | {"statuses": None}).map(lambda page: page | {"engines": page.get("engines") or []})


@settings(max_examples=150, deadline=None)
@given(pages, pages, st.sampled_from([20, 40, 80, 140]), st.integers(1, 60))
def test_whatever_a_reading_leaves_open_a_frame_is_drawn(
    page: dict[str, Any], earlier: dict[str, Any], width: int, height: int
) -> None:
    text = drawn(page, width, height, before=(Reading(9.0, convert(earlier)),))
    assert text.startswith("assay gateway")
    assert max(len(line) for line in text.splitlines()) <= width


# ------------------------------------------------------------------------------------------------ reading


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server with one answer, and the headers of what it was asked."""
    asked: list[dict[str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_once_prints_one_frame() -> None:
    with answering(200, json.dumps(PAGE).encode()) as (url, asked):
        ran = CliRunner().invoke(command, [url, "--once"])
    assert ran.exit_code == 0, ran.output
    assert "2 of 2 engines up" in ran.output
    assert url in ran.output
    assert [request["path"] for request in asked] == ["/engines"]


def test_without_a_terminal_it_is_once() -> None:
    with answering(200, json.dumps(PAGE).encode()) as (url, asked):
        assert CliRunner().invoke(command, [url]).exit_code == 0
    assert len(asked) == 1


def test_json_is_the_reading_as_it_came() -> None:
    with answering(200, json.dumps(PAGE).encode()) as (url, _):
        ran = CliRunner().invoke(command, [url, "--json"])
    assert json.loads(ran.output) == PAGE


def test_the_key_comes_from_the_environment() -> None:
    with answering(200, json.dumps(PAGE).encode()) as (url, asked):
        ran = CliRunner().invoke(command, [url, "--once", "--key-env", "A_KEY"], env={"A_KEY": "secret"})
    assert ran.exit_code == 0
    assert asked[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "body", "words", "code"),
    [
        (401, b"{}", "--key-env NAME", 2),
        (403, b"{}", "admin = true", 2),
        (404, b"{}", "not an assay gateway", 1),
        (200, b"<html>", "not an assay gateway", 1),
        (200, b'{"engines": 3}', "not an assay gateway", 1),
    ],
)
def test_other_answers_are_one_line_with_the_cure(
    status: int, body: bytes, words: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as (url, _):
        failed = CliRunner().invoke(command, [url, "--once"])
        monkeypatch.setattr("sys.argv", ["assay", "top", url, "--once"])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert isinstance(failed.exception, AssayError)
    assert words in str(failed.exception)
    assert end.value.code == code
    assert capsys.readouterr().err.count("\n") == 1


def test_a_wrong_key_is_called_so() -> None:
    with answering(401, b"{}") as (url, _), pytest.raises(BadInput, match="does not take this key"):
        top.Source(url, "secret").read()


def test_no_gateway_says_how_to_start_one() -> None:
    with answering(200, b"{}") as (url, _):
        pass
    with pytest.raises(AssayError, match=r"no gateway at .*; start one with 'assay gateway'"):
        top.Source(url).read()


def test_a_key_that_is_not_set_is_bad_input() -> None:
    ran = CliRunner().invoke(command, ["--key-env", "NOT_SET_ANYWHERE"])
    assert isinstance(ran.exception, BadInput)
    assert "NOT_SET_ANYWHERE is not set" in str(ran.exception)


def test_a_key_that_no_header_can_hold_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no header may have"):
        top.Source("http://127.0.0.1:8000", "two\nlines")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:port", "//"])
def test_what_is_no_address_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput, match="no address of a gateway"):
        top.Source(url)


# ------------------------------------------------------------------------------------------------ a view of its own


def test_a_view_ends_with_whoever_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    with answering(200, json.dumps(PAGE).encode()) as (url, _):
        view = top.start(url, "A_KEY", insecure=True)
    assert view.args[1:] == ["-m", "assay.cli.main", "top", url, "--key-env", "A_KEY", "--insecure"]  # type: ignore[index]
    ((end, started),) = registered
    end(started)
    assert started is view
    assert view.poll() is not None


def test_a_canary_is_shown_with_what_follows() -> None:
    canary = {"policy": "vllm-v1", "share": 0.1, "requests": 120, "requests_usual": 1080, "verdict": "no difference"}
    text = drawn(PAGE | {"canary": canary})
    assert "canary vllm-v1 decides about 10" in text and "no difference" in text


def test_tenants_and_changes_of_state_have_a_line_each() -> None:
    tenants = [{"tenant": "acme", "requests": 20_000, "failed": 1}, {"tenant": "", "requests": 3, "failed": 0}]
    changes = [{"engine": "gpu-0", "to": "down", "at": 90.0}, {"engine": "gpu-0", "to": "up", "at": 2.0}]
    text = drawn(PAGE | {"tenants": tenants, "changes": changes})
    assert "tenants  acme 20k   (none) 3" in text and "changes  gpu-0 up 2.0 s ago   gpu-0 down 90 s ago" in text
    assert "tenants" not in drawn(PAGE | {"tenants": tenants[:1]})
