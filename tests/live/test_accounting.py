"""Accounts that are true: a log on a full disk, tokens that were computed and no others, streams that break off."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import threading
from pathlib import Path

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from assay.live import access_log, top_frame
from assay.live.access_log import AccessLog, Line
from assay.live.api import ends
from assay.live.recent import OTHERS, Tenant
from assay.live.serve import Running
from tests.live.fake_engines import EVENT_STREAM, Client, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"So"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":77,"completion_tokens":1}}\n\n'


class Disk:
    """A disk with so much room; what is written past it is written in part, or not at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room, self._write = room, os.write
        monkeypatch.setattr(access_log.os, "write", self.write)

    def write(self, file: int, data: bytes) -> int:
        if not Path(f"/proc/self/fd/{file}").is_file():
            return self._write(file, data)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrote = self._write(file, data[: self.room])
        self.room -= wrote
        return wrote


def line(n: int) -> Line:
    return Line(time=float(n), id=f"r-{n}", endpoint="chat", status=200, session="x" * 100)


def rows(path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_full_disk_costs_lines_that_are_counted_and_none_in_half(monkeypatch, tmp_path):
    monkeypatch.setattr(access_log, "_KEPT", 100_000)
    said: list[str] = []
    disk = Disk(monkeypatch, 1000)
    log = AccessLog(str(tmp_path / "log"), tell=said.append)
    for n in range(6000):  # more than is kept
        log.add(line(n))
        if n % 50 == 0:
            log.flush()
    log.flush()
    assert log.lost > 500 and log.problem and len(said) == 1 and "No space left" in said[0]
    disk.room = 1 << 30
    for n in range(6000, 6010):
        log.add(line(n))
    log.close()
    found = [int(row["id"][2:]) for row in rows(tmp_path / "log")]  # every row can be read, the torn one too
    assert found == sorted(set(found)) and found[-10:] == list(range(6000, 6010)) and not log.problem
    assert len(found) + log.lost == 6010


def test_a_reader_that_does_not_read_holds_nobody_up(tmp_path):
    reader, writer = os.pipe()
    log = AccessLog(f"/dev/fd/{writer}", tell=(said := []).append)

    def write() -> None:
        for number in range(1000):
            log.add(Line(1.0, f"{number:04d}", "chat", 200, path="x" * 1000))
        log.flush()

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive() and said and "its reader does not read" in said[0]
    text = b""
    while log.problem or not text:
        text += os.read(reader, 1 << 20)
        log.flush()
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while more := os.read(reader, 1 << 20):
            text += more
    log.close()
    os.close(writer), os.close(reader)
    found = [json.loads(line)["id"] for line in text.splitlines()]
    assert len(found) + log.lost == 1000 and found == [f"{number:04d}" for number in range(len(found))]


@pytest.mark.parametrize("moved", ["", "old", "new"], ids=["the same file", "another file", "another name"])
def test_a_log_that_is_opened_anew_while_the_disk_is_full_keeps_what_waits(monkeypatch, tmp_path, moved):
    disk = Disk(monkeypatch, 1000)
    path = tmp_path / "log"
    log = AccessLog(str(path), tell=lambda text: None)
    for n in range(20):
        log.add(line(n))
    log.flush()
    if moved == "old":
        path.rename(tmp_path / "old")
    elif moved:  # to another disk, say
        path = tmp_path / "new"
    later = AccessLog(str(path), tell=lambda text: None)
    later.follow(log)
    disk.room = 1 << 20
    later.close()
    found = [int(row["id"][2:]) for row in rows(path)]
    if moved:
        whole = (tmp_path / ("old" if moved == "old" else "log")).read_text().count("\n")
        assert later.lost == 1 and whole + 1 + len(found) == 20
    else:
        assert later.lost == 0 and found == list(range(20))


def test_lines_that_are_lost_are_shown_in_the_metrics_the_view_and_once_on_standard_error(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(access_log, "_KEPT", 2000)
    disk = Disk(monkeypatch, 0)

    async def test():
        log = tmp_path / "log"
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            for n in range(40):
                assert (await ask(running.port, "POST", CHAT, chat(str(n))))[0] == 200
                running.gateway.log.flush()
            lost = running.gateway.log.lost
            assert 0 < lost < 40
            page = (await ask(running.port, "GET", "/metrics"))[2].decode()
            assert f"assay_gateway_log_lost_total {float(lost)}" in page
            overview = json.loads((await ask(running.port, "GET", "/engines"))[2])
            assert overview["log_lost"] == lost and "No space left" in overview["log_error"]
            shown = top_frame.convert(overview)
            assert shown.log_lost == lost
            disk.room = 1 << 20
            await ask(running.port, "POST", CHAT, chat("again"))
        assert len(rows(log)) + lost == 41

    run(test())
    told = [text for text in capsys.readouterr().err.splitlines() if "log" in text]
    assert len(told) == 1 and "No space left" in told[0]


def test_what_waits_for_room_when_the_gateway_stops_is_not_lost_without_a_word(monkeypatch, tmp_path, capsys):
    Disk(monkeypatch, 0)

    async def test():
        async with engines("a") as (a,), Running(settings([a], log=str(tmp_path / "log"))) as running:
            for n in range(3):
                await ask(running.port, "POST", CHAT, chat(str(n)))
        assert running.gateway.log.lost == 3 and not running.gateway.log.on

    run(test())
    assert "3 lines of the access log that waited for room are lost" in capsys.readouterr().err


def test_what_was_lost_is_remembered_when_the_settings_are_read_again(monkeypatch, tmp_path):
    """The log is opened anew then; the count is the gateway's."""
    monkeypatch.setattr(access_log, "_KEPT", 0)
    Disk(monkeypatch, 0)
    log = AccessLog(str(tmp_path / "log"), tell=lambda text: None)
    for n in range(3):
        log.add(line(n))
    later = AccessLog("")
    later.follow(log)
    assert later.lost == 3


def streams(*pieces: bytes):
    def behave(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        for piece in pieces:
            exchange.write(piece)
        exchange.finish()

    return behave


@pytest.mark.parametrize(
    "pieces, whole",
    [
        ((TOKEN, b"data: [DONE]\n\n"), True),
        ((TOKEN, STOP), True),
        ((TOKEN, STOP, USAGE), True),
        ((TOKEN, TOKEN), False),
        ((TOKEN, USAGE), False),
        ((TOKEN, b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n'), False),
        ((TOKEN, b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}]}\n\n'), False),
        ((TOKEN, b"data: [DO"), False),
        ((), False),
    ],
)
def test_a_stream_that_ends_before_it_says_so_is_logged_as_cut_and_passed_on_as_it_came(pieces, whole, tmp_path):
    async def test():
        log = tmp_path / "log"
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            a.behave = streams(*pieces)
            status, _, body = await ask(running.port, "POST", CHAT, chat(stream=True))
            assert status == 200 and body == b"".join(pieces) and balanced(running)
            assert running.gateway.fleet.engines[0].errors == (not whole)
        (row,) = rows(log)
        assert row["status"] == (200 if whole else 502) and ("cut" in row.get("error", "")) != whole

    run(test())


@pytest.mark.parametrize(
    "endpoint, last, whole",
    [
        ("messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n', True),
        ("messages", b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"}}\n\n', True),
        ("messages", b'event: content_block_delta\ndata: {"delta":{"text":"So"}}\n\n', False),
        ("responses", b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n', True),
        ("responses", b'event: response.output_text.delta\ndata: {"delta":"response.completed"}\n\n', False),
        ("completion", b'data: {"choices":[{"text":"x","finish_reason": "length"}]}\n\n', True),
        ("other", b"anything", True),
    ],
)
def test_each_api_has_an_end_of_its_own(endpoint, last, whole):
    assert ends(endpoint, last) == whole


def test_the_line_of_a_prompt_that_was_refused_is_short(tmp_path):
    async def test():
        log = tmp_path / "log"
        more = {"max_body": 64 << 20, "queue": 0, "inflight": 1, "log": str(log)}
        async with engines("a") as (a,), Running(settings([a], **more)) as running:
            a.behave = lambda exchange: None
            async with Client(running.port) as first:
                first.send("POST", CHAT, chat())
                await until(lambda: a.asked)
                assert (await ask(running.port, "POST", CHAT, chat("a word " * 4_000_000)))[0] == 429
                a.behave = a.answer
                a.answer(a.asked[0])
                assert (await first.answer())[0] == 200
        assert max(len(text) for text in log.read_text().splitlines()) < 8000

    run(test())


def samples(page: bytes) -> dict:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(page.decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def summed(found: dict, name: str, **labels: str) -> float:
    return sum(v for (n, *named), v in found.items() if n == name and labels.items() <= dict(named).items())


def test_tokens_are_counted_where_they_were_computed_and_the_view_and_the_metrics_agree():
    async def test():
        more = {"queue": 0, "inflight": 1}
        async with engines("a") as (a,), Running(settings([a], **more)) as running:
            a.behave = streams(TOKEN, STOP, USAGE)
            await ask(running.port, "POST", CHAT, chat(stream=True), x_tenant="acme")
            held = []
            a.behave = held.append
            first = asyncio.create_task(ask(running.port, "POST", CHAT, chat(), x_tenant="zoo"))
            await until(lambda: held)
            for _ in range(5):  # refused: they cost nobody anything
                assert (await ask(running.port, "POST", CHAT, chat("long " * 5000), x_tenant="acme"))[0] == 429
            a.answer(held[0])
            await first
            found = samples((await ask(running.port, "GET", "/metrics"))[2])
            page = json.loads((await ask(running.port, "GET", "/engines"))[2])
            for row in page["tenants"]:
                name = row["tenant"]
                assert summed(found, "assay_gateway_prompt_tokens_total", tenant=name) == row["prompt_tokens"]
                assert summed(found, "assay_gateway_completion_tokens_total", tenant=name) == row["completion_tokens"]
                assert summed(found, "assay_gateway_requests_total", tenant=name) == row["requests"]
            tenants = {row["tenant"]: row for row in page["tenants"]}
            assert (tenants["acme"]["prompt_tokens"], tenants["zoo"]["prompt_tokens"]) == (77, 8)
            by = {"model": "m", "tenant": "acme", "engine": "a"}
            assert summed(found, "assay_gateway_prompt_tokens_total", **by) == 77
            assert summed(found, "assay_gateway_time_to_first_token_seconds_count", **by) == 1
            assert summed(found, "assay_gateway_requests_total", model="m", tenant="acme", status="429") == 5

    run(test())


def test_who_leaves_in_the_middle_of_a_stream_has_had_its_tokens():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:

            def begin(exchange):
                exchange.begin(b"200 OK", [EVENT_STREAM])
                exchange.write(TOKEN * 5)

            a.behave = begin
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat(stream=True), x_tenant="acme")
                await client.head()
                await client.chunk()
            await until(lambda: balanced(running))
            counters = running.gateway.counters
            assert counters.of_tenants() == {"acme": (counters.prompt_tokens, 5)} and counters.prompt_tokens > 0

    run(test())


def test_names_that_clients_make_up_do_not_fill_the_metrics():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            running.gateway.recent.tenants.update({f"t{n}": Tenant() for n in range(1000)})
            a.behave = lambda exchange: exchange.refuse(404, "no such model")
            for n in range(30):
                await ask(running.port, "POST", CHAT, chat(model=f"model {n}" + "x" * 300), x_tenant=f"new {n}" * 50)
            found = samples((await ask(running.port, "GET", "/metrics"))[2])
            assert summed(found, "assay_gateway_requests_total", model=OTHERS, tenant=OTHERS) == 30
            assert sum(name == "assay_gateway_requests_total" for name, *_ in found) == 1

    run(test())
