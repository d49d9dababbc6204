"""Keys and tenants: nobody gets further than his key, nobody sees another's bytes."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("h11")
pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from assay.live.settings import KeySettings
from tests.live.hostile import (
    PATIENCE,
    STREAM_HEAD,
    Client,
    Live,
    Raw,
    chunk,
    get,
    post,
    until,
    whole,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- paths and keys

ADMIN, TENANT, ENGINE = "admin-secret-5fe1", "tenant-secret-77aa", "engine-secret-c0de"


def known(key: str, **more: Any) -> KeySettings:
    return KeySettings(more.pop("tenant", "acme"), sha256=hashlib.sha256(key.encode()).hexdigest(), **more)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    log = tmp_path_factory.mktemp("log") / "access.jsonl"
    keys = (known(ADMIN, admin=True, tenant="operator"), known(TENANT))
    with Live(keys=(ENGINE,), key=keys, log=str(log), passthrough=("/other",)) as live:
        live.log = log  # type: ignore[attr-defined]
        yield live


def bearer(key: str | bytes) -> bytes:
    return b"Authorization: Bearer " + (key.encode() if isinstance(key, str) else key)


PATHS = rb"""
    /engines /engines/ /engines/x /engines?x /metrics /metrics?x=/health /v1/models /v1/chat/completions / /health/
    /engines/../v1 /engines/.. //engines /./engines /health/../engines /v1/../metrics /openapi.json/../metrics
    /%2e%2e/engines /v1/..%2fengines /engines%2f /%65ngines /v1/%2E%2E/metrics /metrics%00 /metrics%20 /%6detrics
    /health%2f..%2fmetrics /%252e%252e/engines /% /%zz \engines /\engines /x\..\engines /%5cengines /engines;x=1
    /engines#x /ENGINES /metrics/ /metrics/.
""".split()
OPERATORS = (b"assay_gateway_", b'"policy"', b'"engines":[')


@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE", b"PUT", b"OPTIONS", b"TRACE", b"x"])
def test_without_a_key_no_path_leads_anywhere(locked: Live, method: bytes) -> None:
    locked.forget()
    for path in PATHS:
        answer = locked.ask(get(path, method=method))
        page = path == b"/" and method == b"GET"  # which has nothing in it but the question for a key
        assert answer.status == 200 if page else answer.status in (400, 401, 405, 501), path
        assert not any(mark in answer.body for mark in OPERATORS), path
    assert locked.received == []


def test_a_tenant_reaches_no_page_of_the_operator_by_any_detour(locked: Live) -> None:
    for path in PATHS:
        for method in (b"GET", b"DELETE", b"HEAD"):
            answer = locked.ask(get(path, bearer(TENANT), b"x-test: 1", method=method), method.decode())
            assert not any(mark in answer.body for mark in OPERATORS), path
            if path.partition(b"?")[0] in (b"/engines", b"/metrics", b"/engines/", b"/engines/x"):
                assert answer.status == 401, path
    assert len(locked.running.gateway.fleet.engines) == 1


def test_without_a_key_there_are_the_gateways_health_and_its_description(locked: Live) -> None:
    assert locked.ask(get(b"/health"), "GET").status == 200
    assert b"openapi" in locked.ask(get(b"/openapi.json"), "GET").body


def test_with_keys_but_no_admin_among_them_nobody_is_the_operator() -> None:
    with Live(key=(known(TENANT),)) as live:
        for line in (b"x: y", bearer(TENANT)):
            for path in (b"/metrics", b"/engines"):
                assert live.ask(get(path, line), "GET").status == 401
            body = b'{"url": "http://127.0.0.1:1"}'
            assert live.ask(post(body, line, path=b"/engines")).status == 401


def test_without_keys_the_operator_is_whoever_sits_here_and_no_web_page_and_no_proxy(fresh: Live) -> None:
    assert fresh.ask(get(b"/engines"), "GET").status == 200
    for line in (b"Origin: https://evil.example", b"X-Forwarded-For: 1.2.3.4", b"Via: 1.1 proxy"):
        body = b'{"url": "http://127.0.0.1:1"}'
        assert fresh.ask(post(body, line, b"Content-Type: text/plain", path=b"/engines")).status == 403


WRONG = [b"Bearer wrong", b"Bearer", b"Bearer ", b"bearer", b"", b"Basic " + TENANT.encode(), TENANT.encode(),
         b"Bearer " + TENANT.encode()[:-1], b"Bearer " + TENANT.encode() + b"x", b"Bearer " + b"x" * 30_000,
         b"Bearer \xff\xfe\xe9", "Bearer ключ".encode(), b"Bearer " + TENANT.upper().encode(), b"Bearer null",
         b"Bearer " + ENGINE.encode(), b"Bearer " + hashlib.sha256(TENANT.encode()).hexdigest().encode()]  # fmt: skip


@pytest.mark.parametrize("shown", WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_wrong_key_opens_nothing(locked: Live, shown: bytes) -> None:
    locked.forget()
    answer = locked.ask(post(b"{}", b"Authorization: " + shown))
    assert (answer.status, answer.fields["www-authenticate"]) == (401, "Bearer")
    assert locked.received == []
    assert locked.ask(get(b"/metrics", b"Authorization: " + shown), "GET").status == 401


def test_keys_stay_where_they_belong(locked: Live) -> None:
    locked.forget()
    answers = [
        locked.ask(post(b'{"model": "m"}', bearer(TENANT))),
        locked.ask(post(b'{"stream": true}', b"AUTHORIZATION:Bearer   " + TENANT.encode())),
        locked.ask(get(b"/other", bearer(TENANT)), "GET"),
        locked.ask(post(b"not json", bearer(TENANT), b"Proxy-Authorization: Bearer " + TENANT.encode())),
    ]
    pages = [locked.ask(get(path, bearer(ADMIN)), "GET") for path in (b"/metrics", b"/engines")]
    assert [answer.status for answer in answers + pages] == [200] * 6
    errors = [locked.talk(get(b"/", bearer(TENANT), bearer(TENANT))), locked.talk(bearer(TENANT) + b"\r\n\r\n")]
    locked.running.gateway.log.flush()
    logged = locked.log.read_bytes()  # type: ignore[attr-defined]
    assert len(logged.splitlines()) >= 4
    shown = b"".join([str((a.fields, a.body)).encode() for a in answers + pages] + errors + [logged])
    for secret in (TENANT, ADMIN, ENGINE):
        assert secret.encode() not in shown
    for message in locked.received:
        assert b"authorization: Bearer " + ENGINE.encode() in message
        assert TENANT.encode() not in message
        assert message.lower().count(b"authorization") == 1


def test_an_engine_cannot_be_named_with_what_would_change_requests_to_it(fresh: Live) -> None:
    urls = [b"http://127.0.0.1:1/a b", "http://127.0.0.1:1/é".encode(), b"http://127.0.0.1:99999", b"file:///etc/passwd",
            b"http://[::1", rb"http://127.0.0.1:1\u0000", rb"http://127.0.0.1:1/\r\nx: y", b""]  # fmt: skip
    bodies = [b'{"url": "%b"}' % url for url in urls]
    bodies += [b'{"url": 5}', b"[" * 100_000, b"", b"\xff", b'{"url": "http://a:1", "key": "env:NOT_SET_AT_ALL"}']
    for body in bodies:
        assert fresh.ask(post(body, path=b"/engines")).status == 400, body[:40]
    assert len(fresh.running.gateway.fleet.engines) == 1


def test_tenants_never_see_each_others_bytes() -> None:
    """Through failing engines, retries, kept connections and clients that leave in the middle."""
    dice = random.Random(1)

    async def moody(engine: Raw, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        mood = dice.random()
        said = whole(body)
        if b'"stream"' in body:
            said = STREAM_HEAD + b"".join(chunk(b"data: %b\n\n" % body) for _ in range(3)) + b"0\r\n\r\n"
        if mood < 0.15:
            writer.write(said[: dice.randrange(len(said))])
            writer.close()
        else:
            cut = dice.randrange(len(said))
            writer.write(said[:cut])
            await asyncio.sleep(dice.random() * 0.005)
            writer.write(said[cut:])

    secrets = {"red": "red-key-1", "blue": "blue-key-2"}
    wrong: list[tuple[bytes, bytes]] = []
    whole_ones: list[str] = []

    def tenant(live: Live, name: str, number: int) -> None:
        own, client = random.Random(number), Client(live.port)
        for n in range(40):
            stream = b', "stream": true' if own.random() < 0.5 else b""
            body = b'{"prompt": "%b-%d-%d"%b}' % (name.encode(), number, n, stream)
            client.send(post(body, bearer(secrets[name])))
            if own.random() < 0.2:
                client.socket.close()
                client = Client(live.port)
                continue
            answer = client.answer()
            if not stream and answer.status == 200 and answer.body != body:
                wrong.append((body, answer.body))
            events = answer.body.split(b"\n\n")[:-1] if stream else []
            wrong.extend((body, event) for event in events if event != b"data: " + body and b'"error"' not in event)
            whole_ones.append(name)
            if answer.fields.get("connection") == "close" or not answer.complete:
                client.socket.close()
                client = Client(live.port)
        client.socket.close()

    keys = tuple(known(key, tenant=name) for name, key in secrets.items())
    with Live(moody, moody, moody, key=keys, attempts=3) as live:
        threads = [threading.Thread(target=tenant, args=(live, ("red", "blue")[n % 2], n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
        until(lambda: not live.running.gateway.relays, "all are answered or given up")
        assert all(engine.aboard == 0 for engine in live.running.gateway.fleet.engines)
        assert not any(secret.encode() in message for secret in secrets.values() for message in live.received)
        for engine in live.engines:
            engine.strays.clear()  # of clients that left while their request was sent
    assert wrong == []
    assert len(whole_ones) > 150
