"""Hostile requests over real sockets: one request goes on as it was meant, or nothing does."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("h11")
pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from assay.live import api
from tests.live.hostile import (
    EVENTS,
    PATIENCE,
    Live,
    Raw,
    chunk,
    echo,
    get,
    post,
    resident,
    statuses,
    until,
    whole,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ smuggling

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
TE = b"Transfer-Encoding: chunked"


def framed(*lines: bytes, body: bytes = b"", first: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: a", *lines, b"", b""]) + body


SMUGGLED = {
    "a length and chunks": framed(b"Content-Length: 6", TE, body=b"0\r\n\r\n" + HIDDEN),
    "chunks and a length": framed(TE, b"Content-Length: 60", body=b"0\r\n\r\n" + HIDDEN),
    "two lengths": framed(b"Content-Length: 0", b"Content-Length: %d" % len(HIDDEN), body=HIDDEN),
    "a list of lengths": framed(b"Content-Length: 0, %d" % len(HIDDEN), body=HIDDEN),
    "a length with a sign": framed(b"Content-Length: +0", body=HIDDEN),
    "a length with a blank": framed(b"Content-Length: 0 0", body=HIDDEN),
    "a length in hexadecimal": framed(b"Content-Length: 0x0", body=HIDDEN),
    "chunked, identity": framed(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + HIDDEN),
    "vertical tab, chunked": framed(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n" + HIDDEN),
    "xchunked": framed(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + HIDDEN),
    "two codings": framed(TE, b"Transfer-Encoding: identity", body=b"0\r\n\r\n" + HIDDEN),
    "chunks in HTTP/1.0": framed(TE, body=b"0\r\n\r\n" + HIDDEN, first=b"POST /v1/completions HTTP/1.0"),
    "a blank before the colon": framed(b"Content-Length : %d" % len(HIDDEN), body=HIDDEN),
    "a folded coding": framed(b"Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n" + HIDDEN),
    "a line that ends in LF": framed(b"X: y\nContent-Length: %d" % len(HIDDEN), body=HIDDEN),
    "all lines end in LF": framed(b"Content-Length: 0").replace(b"\r\n", b"\n") + HIDDEN.replace(b"\r\n", b"\n"),
    "a bare CR": framed(b"X: y\rContent-Length: %d" % len(HIDDEN), body=HIDDEN),
    "NUL": framed(b"X: \0", b"Content-Length: 0", body=HIDDEN),
    "a chunk's extension with CR LF": framed(TE, body=b"5;a=\r\nGET \r\n0\r\n\r\n" + HIDDEN),
    "a chunk's extension with LF": framed(TE, body=b"1;a\n\r\nx\r\n0\r\n\r\n" + HIDDEN),
    "a chunk's size that overflows": framed(TE, body=b"10000000000000001\r\nx\r\n0\r\n\r\n" + HIDDEN),
    "a negative chunk": framed(TE, body=b"-1\r\nx\r\n0\r\n\r\n" + HIDDEN),
    "a chunk's size with 0x": framed(TE, body=b"0x0\r\n\r\n" + HIDDEN),
    "a trailer that tells a length": framed(TE, body=b"0\r\nContent-Length: 34\r\n\r\n" + HIDDEN),
    "two blanks in the request line": framed(b"Content-Length: 0", first=b"GET  /v1/models HTTP/1.1", body=HIDDEN),
    "a whole address": framed(b"Content-Length: 0", first=b"GET http://b/v1/models HTTP/1.1", body=HIDDEN),
    "host and port": framed(first=b"CONNECT b:443 HTTP/1.1", body=HIDDEN),
    "a second line in the target": framed(first=b"GET /x HTTP/1.1\r\nHost: b\r\n\r\nGET /smuggled HTTP/1.1 HTTP/1.1"),
    "a line break in the target": framed(first=b"GET /x\rHost:b HTTP/1.1", body=HIDDEN),
    "an upgrade": framed(b"Connection: upgrade", b"Upgrade: h2c", first=b"PRI * HTTP/2.0", body=HIDDEN),
}  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLED)
def test_nothing_is_smuggled(fresh: Live, name: str) -> None:
    said = fresh.talk(SMUGGLED[name])
    meant = [message for message in fresh.received if not message.startswith(b"GET /x ")]
    assert meant == []
    assert len(statuses(said)) <= 2, "at most one answer and one refusal"
    assert 400 <= statuses(said)[-1] <= 505
    assert b"<reset>" not in said


def test_a_request_hidden_in_a_body_stays_in_the_body(fresh: Live) -> None:
    bodies = [HIDDEN, b"0\r\n\r\n" + HIDDEN, b"\r\n" + HIDDEN]
    with fresh.client(b"".join(post(body) for body in bodies)) as client:
        assert [client.answer().body for _ in bodies] == bodies
    assert [message.partition(b"\r\n\r\n")[2] for message in fresh.received] == bodies
    assert all(message.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n") for message in fresh.received)


def test_a_chunked_body_goes_on_with_one_length_and_without_its_trailers(fresh: Live) -> None:
    body = chunk(b"abc") + chunk(HIDDEN) + b"0;x=y\r\nX-Trailer: 1\r\n\r\n"
    answer = fresh.ask(framed(TE, b"Trailer: X-Trailer", b"Connection: X-Mine", b"X-Mine: 1", body=body))
    assert answer.body == b"abc" + HIDDEN
    (message,) = fresh.received
    head = message.partition(b"\r\n\r\n")[0].lower()
    assert head.count(b"content-length: %d" % len(answer.body)) == head.count(b"content-length") == 1
    assert b"transfer-encoding" not in head
    assert b"trailer" not in head
    assert b"x-mine" not in head


# --------------------------------------------------------------------------------------------- slow and large


def test_slow_heads_and_slow_bodies_end_in_408_while_others_are_served(fresh: Live) -> None:
    slow = [
        fresh.client(data) for data in (b"GET / HTTP/1.1\r\nX: ", post(b"x" * 100)[:-99], framed(TE, body=b"5\r\na"))
    ]
    silent = fresh.client(b"P")
    began = time.monotonic()
    open_ones = set(slow)
    while open_ones and time.monotonic() < began + PATIENCE:
        for client in list(open_ones):
            try:
                client.send(b"1")
            except OSError:
                open_ones.discard(client)
        assert fresh.well()
        time.sleep(0.02)
    assert not open_ones, "one is still served after its time"
    assert statuses(silent.rest()) == [408]
    for client in slow:
        client.socket.close()
    silent.socket.close()


def test_idle_clients_beyond_the_limit_do_not_keep_a_good_one_out() -> None:
    with Live(connections=20) as live:
        idle = [live.client(b"GET / HTTP/1.1\r\n" if n % 2 else b"") for n in range(60)]
        for _ in range(5):
            assert live.well()
        assert len(live.running.server.connections) <= 21
        for client in idle:
            client.socket.close()


def test_a_large_head_is_431_and_a_large_body_413_at_once(fresh: Live) -> None:
    for head in (b"X: " + b"y" * 40_000, b"\r\n".join([b"X: y"] * 150)):
        assert fresh.ask(get(b"/", head), "GET").status == 431
    for line in (b"Content-Length: 104857600", b"Content-Length: 104857600\r\nExpect: 100-continue"):
        answer = fresh.ask(framed(line))
        assert (answer.status, answer.fields["connection"]) == (413, "close")
    assert fresh.received == []


def test_who_goes_on_sending_after_a_bad_head_can_still_read_why(fresh: Live) -> None:
    with fresh.client(b"GET  / HTTP/1.1\r\n\r\n") as client:
        for _ in range(16):
            client.send(bytes(1 << 16))
        assert client.answer().status == 400


def test_a_hundred_megabytes_in_chunks_take_no_more_memory_than_the_limit() -> None:
    with Live(max_body=1 << 20) as live:
        live.well()
        live.forget()
        piece, sent, before = chunk(bytes(1 << 16)), 0, resident()
        with live.client(framed(TE)) as client:
            try:
                for _ in range(1600):
                    client.send(piece)
                    sent += len(piece)
                    assert resident() - before < 48 << 20  # others' threads have some of it
            except OSError:  # it was told, and cut off
                assert sent > 1 << 20
                return
            assert client.answer().status == 413
        assert live.received == []


def test_a_client_that_reads_nothing_of_a_large_answer_stops_the_engine_and_is_dropped() -> None:
    wrote: list[int] = []

    async def large(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if b"large" not in body:
            return await echo(engine, head, body, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
        for _ in range(16384):  # more than the system's buffers take anywhere
            writer.write(bytes(1 << 16))
            await writer.drain()
            wrote.append(1 << 16)
        return None

    with Live(large, stall_time=1.0) as live:
        live.well()
        before = resident()
        with live.client(post(b"large")) as client:
            until(lambda: sum(wrote) > 8 << 20, "the engine begins")
            gone = live.engines[0].gone
            until(lambda: live.engines[0].gone > gone, "the engine is told that nobody reads")
            assert sum(wrote) < 512 << 20, "it was stopped before its end"
            assert resident() - before < 64 << 20
            assert live.well()
            assert not client.answer().complete


def test_a_slow_client_gets_all_of_a_large_answer() -> None:
    async def large(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"0123456789abcdef" * (1 << 20)))
        await writer.drain()

    with Live(large, stall_time=PATIENCE) as live, live.client(post(b"{}")) as client:
        time.sleep(0.3)
        assert client.answer().body == b"0123456789abcdef" * (1 << 20)


# ------------------------------------------------------------------------------------------ well-formed, unusual


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("line", [b"Connection: close", b"Connection: keep-alive"])
def test_a_client_of_http_1_0_is_answered_without_chunks(fresh: Live, stream: bool, line: bytes) -> None:
    body = b'{"stream": true}' if stream else b"{}"
    with fresh.client(post(body, line).replace(b"HTTP/1.1", b"HTTP/1.0")) as client:
        if stream or line.endswith(b"close"):
            head, _, said = client.rest().partition(b"\r\n\r\n")
            assert said == (b"".join(EVENTS) if stream else body)
            assert b"transfer-encoding" not in head
            assert b"connection: close" in head
        else:
            assert client.answer().body == body
            client.send(post(b"more"))
            assert client.answer().body == b"more"


def test_an_answer_to_head_has_no_body_and_the_connection_goes_on(fresh: Live) -> None:
    async def empty(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        kind = b"" if b"plain" in head else b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n")

    with Live(empty) as streams:
        for live in (fresh, streams):
            with live.client(get(b"/x", method=b"HEAD") + get(b"/plain", method=b"HEAD")) as client:
                assert [client.answer("HEAD").status for _ in range(2)] == [200, 200]
                client.send(get(b"/health"))
                assert client.answer("GET").body.startswith(b'{"status"')


def test_requests_sent_ahead_are_answered_in_order(fresh: Live) -> None:
    async def uneven(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05 / int(body))
        writer.write(whole(body))

    with Live(uneven, uneven) as live, live.client(b"".join(post(b"%d" % n) for n in (1, 2, 3))) as client:
        client.send(post(b"4"))
        assert [client.answer().body for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_who_expects_100_is_asked_for_the_body(fresh: Live) -> None:
    with fresh.client(framed(b"Content-Length: 5", b"Expect: 100-continue")) as client:
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"hello")
        assert client.answer().body == b"hello"


def test_a_client_that_closes_has_left_and_its_engine_is_told() -> None:
    async def hang(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if b"hang" not in body:
            await echo(engine, head, body, writer)
        else:
            assert engine.reader is not None
            await engine.reader.read()  # until nobody is there
            writer.close()

    with Live(hang) as live:
        live.well()
        with live.client(post(b"hang")) as client:
            until(lambda: any(b"hang" in message for message in live.received), "the engine is asked")
            gone = live.engines[0].gone
            client.socket.close()
            until(lambda: live.engines[0].gone > gone, "the engine is told")
            until(lambda: not live.running.gateway.relays, "nothing is left of it")
        live.forget()
        assert live.well()


BODIES = {
    "invalid UTF-8": b'{"prompt": "\xff\xfe", "messages": [{"role": "user", "content": "\xc3\x28"}]}',
    "invalid UTF-8 in what is passed over": b'{"prompt": "\xff", "tools": "\xff", "input": "\xff"}',
    "not JSON": b"{'prompt': None}",
    "nothing": b"",
    "deep lists": b"[" * 100_000,
    "a deep prompt": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep tools": b'{"messages": [], "tools": ' + b'{"a":[' * 50_000 + b"]}" * 50_000 + b"}",
    "huge numbers": b'{"prompt": 1e999999, "max_tokens": ' + b"9" * 5000 + b"}",
    "a huge number as the prompt": b'{"prompt": ' + b"9" * 5000 + b"}",
    "huge token ids": b'{"prompt": [1, -1, 99999999999999999999], "max_tokens": 9223372036854775808}',
    "large limits": b'{"prompt": "x", "max_tokens": 9223372036854775807}',
    "negative limits": b'{"prompt": "x", "max_tokens": -5}',
    "wrong types": b'{"model": 5, "messages": {"role": []}, "stream": "yes", "user": [1], "prompt": {"a": true}}',
    "wrong types inside": b'{"messages": [null, 1, "x", {"role": null}, {"role": "user", "content": [[1]]}]}',
    "mixed prompts": b'{"prompt": ["x", 1, null, [1, "y"], {}]}',
    "duplicate names": b'{"model": "a", "model": "b", "messages": [], "messages": [{"role": "user", "content": "x"}]}',
    "half a surrogate pair": b'{"model": "\\ud800", "user": "\\udfff", "prompt": "\\ud800"}',
    "NUL everywhere": b'{"model": "\\u0000", "user": "\\u0000", "messages": [{"role": "\\u0000"}]}',
    "an enormous name of a model": b'{"model": "' + b"m" * 1_000_000 + b'"}',
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "very many token ids": b'{"model": "m", "prompt": [' + b"7," * 300_000 + b"7]}",
    "very many messages": b'{"model": "m", "messages": [' + b'{"role": "user"},' * 60_000 + b'{"role": "user"}]}',
    "not a number": b'{"prompt": NaN, "max_tokens": Infinity}',
}


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"])
@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_sound_request_goes_on_byte_for_byte(fresh: Live, name: str, path: bytes) -> None:
    """It is the engine that knows what is wrong with it."""
    answer = fresh.ask(post(BODIES[name], path=path))
    assert (answer.status, answer.body) == (200, BODIES[name])
    assert [message.partition(b"\r\n\r\n")[2] for message in fresh.received] == [BODIES[name]]


@pytest.mark.parametrize("name", ["very many token ids", "very many messages"])
def test_very_many_values_are_not_read_while_everybody_waits_but_the_model_is(name: str) -> None:
    assert api.read(BODIES[name]) is None
    assert api.outline(BODIES[name]).model == "m"


def test_long_texts_and_images_are_read() -> None:
    text = "A sentence, as people write them; {some} of it in braces. " * 50_000
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 500_000}}
    messages = [{"role": "user", "content": text[:200_000]}, {"role": "user", "content": [image]}]
    ask = api.read(json.dumps({"model": "m", "messages": messages}).encode())
    assert ask is not None
    assert len(ask.messages) == 2


# ------------------------------------------------------------------------------------------------ everything


VALID = [post(b'{"model": "m", "messages": []}'), get(b"/health"), framed(TE, body=chunk(b"abc") + b"0\r\n\r\n"),
         post(b'{"stream": true}'), get(b"/engines"), get(b"/x", b"Expect: 100-continue"),
         get(b"/metrics", method=b"HEAD")]  # fmt: skip
BITS = [b"\r\n", b"\n", b"\0", b" ", b":", b"\xff", b"\r\n\r\n", b"0", b"-", b"chunked", b"Content-Length: 5\r\n",
        b"HTTP/1.1", b"Transfer-Encoding: chunked\r\n", b"../", b"%2e", b"x" * 40_000]  # fmt: skip


@st.composite
def noise(draw: st.DrawFn) -> list[bytes]:
    """What a fuzzer sends on one connection, in pieces."""
    data = draw(
        st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(VALID), min_size=1, max_size=3).map(b"".join))
    )
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(BITS)) + data[at + draw(st.integers(0, 3)) :]
    cut = draw(st.integers(0, len(data)))
    return [data[:cut], data[cut:]]


def test_noise_on_a_connection_harms_nobody(fresh: Live) -> None:
    with fresh.client() as good:

        @given(noise(), st.booleans())
        @settings(max_examples=200, deadline=None)
        def fuzz(pieces: list[bytes], abrupt: bool) -> None:
            with fresh.client() as client:
                try:
                    for piece in pieces:
                        client.send(piece)
                    if not abrupt:
                        client.socket.shutdown(socket.SHUT_WR)
                        said = client.rest()
                        assert said.startswith(b"HTTP/1.1 ") or said in (b"", b"<reset>")
                        assert 500 not in statuses(said)
                except OSError:
                    pass
            good.send(post(b"%d" % len(pieces[0])))
            assert good.answer().body == b"%d" % len(pieces[0])

        fuzz()
    assert fresh.well()
    until(lambda: not fresh.running.gateway.relays, "all are forgotten")
    assert fresh.running.server.held == 0
    assert all(engine.aboard == 0 for engine in fresh.running.gateway.fleet.engines)


# ----------------------------------------------------------------------------------------------------------- TLS


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of our own for 127.0.0.1."""
    pytest.importorskip("cryptography")
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, secret


def test_over_tls_requests_refusals_and_noise_end_as_without(tmp_path: Path) -> None:
    cert, secret = certificate(tmp_path)
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    with Live(tls_cert=str(cert), tls_key=str(secret)) as live:
        for data, status in (
            (post(b"hello"), 200),
            (b"GET  / HTTP/1.1\r\n\r\n", 400),
            (framed(b"Content-Length: 99999999"), 413),
        ):
            with live.client() as client:
                client.socket = context.wrap_socket(client.socket)  # type: ignore[assignment]
                client.send(data)
                assert client.answer().status == status
        with live.client(get(b"/health")) as client:  # not TLS at all
            assert b"HTTP/1.1 200" not in client.rest()
