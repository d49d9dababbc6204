"""A gateway as it runs: what engines tell it, TLS, spans, signals, its log."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import socket
import ssl
import threading

import numpy as np
import pytest

pytest.importorskip("uvloop")

from assay.live.kv_events import Publisher
from assay.live.reload import renew
from assay.live.roster import Fetch
from assay.live.serve import Running, run
from assay.live.settings import convert
from assay.record.errors import AssayError, BadInput
from tests.live.fake_engines import EVENT_STREAM, Client, FakeEngine, ask, chat, engines, settings, until

CHAT = "/v1/chat/completions"
VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 5
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1
"""


def test_what_an_engine_says_of_itself_reaches_the_policy():
    """Eight requests are there, of which this gateway sent none: somebody else uses the engine, too."""

    def answer(engine):
        take = engine.server.answer

        def with_metrics(exchange):
            if exchange.head.path == b"/metrics":
                exchange.reply(200, [b"content-type: text/plain"], VLLM)
            else:
                take(exchange)

        return with_metrics

    async def test():
        async with engines("a") as (a,):
            a.server.answer = answer(a)
            async with Running(settings([a])) as running:
                fleet = running.gateway.fleet
                await until(lambda: fleet.running[0])
                assert fleet.running.tolist() == [5] and fleet.waiting.tolist() == [3]
                assert fleet.kv_free.tolist() == [0.75]
                fleet.now = running.gateway.now()
                assert 0.0 <= fleet.age[0] < 5.0
                assert fleet.engines[0].blocks == 1000 and fleet.engines[0].family == "vllm"

    asyncio.run(test())


def test_cached_tokens_that_were_not_there_shrink_what_a_cache_is_thought_to_hold():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:

            def forgetful(exchange):
                usage = {"prompt_tokens": 255, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
                exchange.reply(200, [b"content-type: application/json"], json.dumps({"usage": usage}).encode())

            a.behave = forgetful
            before = running.gateway.fleet.engines[0].blocks
            for _ in range(4):
                await ask(running.port, "POST", CHAT, chat("the same text again " * 50))
            assert running.gateway.fleet.engines[0].blocks < before
            assert running.gateway.fleet.engines[0].hits == 0

    asyncio.run(test())


def test_prompts_are_counted_as_the_engine_counts_them():
    """Its answers say twice as many tokens as four bytes each: the gateway learns the factor."""

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = lambda exchange: exchange.reply(
                200, [], json.dumps({"usage": {"prompt_tokens": 2 * 253, "completion_tokens": 1}}).encode()
            )
            for n in range(60):
                await ask(running.port, "POST", CHAT, chat(f"{n:04d}" + "x" * 996))
            assert running.gateway.fleet.scale == pytest.approx(2.0, rel=0.1)

    asyncio.run(test())


@pytest.fixture
def certificate(tmp_path):
    """A certificate that signed itself."""
    pytest.importorskip("cryptography")
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert, secret = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return str(cert), str(secret)


def test_https_to_clients_and_to_engines(certificate):
    """One gateway before another: the outer one checks the inner one's certificate."""
    cert, key = certificate

    async def test():
        async with engines("a") as (a,), Running(settings([a], tls_cert=cert, tls_key=key)) as inner:
            through = {"engine": [{"url": f"https://localhost:{inner.port}"}], "port": 0, "engine_ca": cert}
            async with Running(convert(through, "test")) as outer:
                status, _, body = await ask(outer.port, "POST", CHAT, chat(stream=True))
                assert status == 200 and body.endswith(b"data: [DONE]\n\n")
            context = ssl.create_default_context(cafile=cert)
            reader, writer = await asyncio.open_connection("localhost", inner.port, ssl=context)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b'"status":"ok"' in await reader.read()
            writer.close()

    asyncio.run(test())


def test_a_look_at_an_engine_that_is_cancelled_ends_though_its_connection_breaks_at_the_same_moment():
    """As when the gateway stops: on Python 3.11 `asyncio.wait_for` forgets the cancellation, and the look goes on."""

    async def test():
        async with engines("a") as (a,), Running(settings([a], probe=60.0)) as running:
            a.behave = lambda exchange: None  # it never answers
            fetch = Fetch(running.gateway.fleet.engines[0], b"/health")
            looking = asyncio.ensure_future(fetch.within(30.0))
            await asyncio.sleep(0)
            looking.cancel()
            fetch.broken("the connection is closed", False)
            with pytest.raises(asyncio.CancelledError):
                await looking

    asyncio.run(test())


@pytest.mark.parametrize("wrong", ["none.pem", "key.pem"])
def test_a_wrong_certificate_is_said_in_one_line(certificate, wrong, tmp_path):
    async def test():
        with pytest.raises(BadInput, match="TLS certificate"):
            await Running(
                settings(
                    [], engine=[{"url": "http://127.0.0.1:1"}], tls_cert=str(tmp_path / wrong), tls_key=certificate[1]
                )
            ).__aenter__()

    asyncio.run(test())


@pytest.mark.parametrize("wrong", ["none.pem", "key.pem"])
def test_certificates_for_engines_that_are_none_are_said_in_one_line(certificate, wrong, tmp_path):
    async def test():
        told = settings([], engine=[{"url": "https://127.0.0.1:1"}], engine_ca=str(tmp_path / wrong))
        with pytest.raises(BadInput, match=rf"engine_ca \(.*{wrong}\)"):
            await Running(told).__aenter__()

    asyncio.run(test())


def test_a_tls_client_that_keeps_a_connection_and_never_says_goodbye_does_not_hold_up_the_end(certificate):
    """It is no client that was cut off, either: it waited for nothing."""
    cert, key = certificate
    context = ssl.create_default_context(cafile=cert)

    def idle(port):
        plain = socket.create_connection(("localhost", port))
        client = context.wrap_socket(plain, server_hostname="localhost")
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        return client

    async def test():
        async with engines("a") as (a,):
            running = Running(settings([a], tls_cert=cert, tls_key=key, grace=3600.0))
            async with running:
                client = await asyncio.to_thread(idle, running.port)
                assert await asyncio.wait_for(running.stop(), 120) == 0
                client.close()

    asyncio.run(test())


def test_spans_reach_a_collector_and_continue_the_client_s_trace():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    got = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"

    async def test():
        url = f"http://127.0.0.1:{collector.server_port}"
        async with engines("a") as (a,), Running(settings([a], otel=url)) as running:
            await ask(running.port, "POST", CHAT, chat(), traceparent=f"00-{trace}-00f067aa0ba902b7-01")
            onward = a.asked[0].head.fields[b"traceparent"].decode()
            assert onward.split("-")[1] == trace and onward.split("-")[2] != "00f067aa0ba902b7"

    asyncio.run(test())
    collector.shutdown()
    assert got and got[0][0] == "/v1/traces" and bytes.fromhex(trace) in got[0][1] and b"assay.engine" in got[0][1]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    (span,) = ExportTraceServiceRequest.FromString(got[0][1]).resource_spans[0].scope_spans[0].spans
    told = {fact.key: fact.value.int_value for fact in span.attributes}
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (8, 3)  # as the engine counted


def test_a_collector_that_is_down_does_not_hold_up_the_end(monkeypatch):
    """Its exporter would try again for a minute."""
    spans = pytest.importorskip("assay.live.spans")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setattr(spans, "_LAST", 0.05)
    ended = []

    async def test():
        async with engines("a") as (a,), Running(settings([a], otel="http://127.0.0.1:1")) as running:
            exporter = running.gateway.spans._exporter
            export = exporter.export
            monkeypatch.setattr(exporter, "export", lambda batch: ended.append(export(batch)))
            await ask(running.port, "POST", CHAT, chat())

    asyncio.run(test())
    assert [result.name for result in ended] == ["FAILURE"]


def test_a_port_that_is_taken_is_said_in_one_line():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            with pytest.raises(AssayError, match="cannot listen on"):
                await Running(settings([a], port=running.port)).__aenter__()

    asyncio.run(test())


def test_a_policy_that_needs_costs_is_refused_unless_layouts_are_given():
    async def test():
        async with engines("a") as (a,):
            with pytest.raises(BadInput, match="layout"):
                await Running(settings([a], policy="predicted-ttft")).__aenter__()
            with pytest.raises(BadInput, match="layout"):
                await Running(settings([a], shadow="predicted-ttft")).__aenter__()
            known = [{"url": a.url, "layout": "h200:qwen3-8b"}]
            async with Running(settings([a], policy="predicted-ttft", engine=known)) as running:
                assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
                assert not running.gateway.counters.policy_errors

    asyncio.run(test())


def test_sighup_rereads_the_engines_and_sigterm_stops():
    async def test():
        async with engines("a", "b") as (a, b):
            seen = []
            running = []
            later = settings([b])
            task = asyncio.create_task(run(settings([a]), running.append, lambda: later))
            await until(lambda: running)
            os.kill(os.getpid(), signal.SIGHUP)
            fleet = running[0].gateway.fleet
            await until(lambda: [e.name for e in fleet.engines] == ["b"])
            seen.append((await ask(running[0].port, "POST", CHAT, chat()))[1]["x-assay-engine"])
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(task, 120) == 0
            assert seen == ["b"]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"key": "env:ASSAY_TEST_NOT_SET"}, "ASSAY_TEST_NOT_SET is not set"),
        ({"key": "two words"}, "without spaces"),
        ({"events": "nonsense"}, "an endpoint of KV events"),
        ({"layout": "nonsense"}, "nonsense"),
    ],
)
def test_engines_of_which_one_cannot_be_added_change_nothing(wrong, why, capsys):
    if "events" in wrong:
        pytest.importorskip("zmq")

    async def test():
        async with engines("a", "b", "c") as (a, b, c), Running(settings([a, b])) as running:
            named = [{"url": b.url}, {"url": c.url}, {"url": "http://127.0.0.1:1", **wrong}]
            renew(running, lambda: convert({"engine": named}, "test"))
            assert [(e.name, e.state) for e in running.gateway.fleet.engines] == [("a", "up"), ("b", "up")]
            told = capsys.readouterr()
            assert why in told.err and told.err.endswith("the settings stay as they are\n")
            assert told.out == "" and told.err.count("\n") == 1  # the access log may be on standard output

    asyncio.run(test())


def test_an_engine_named_again_while_it_is_drained_stays():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            b.behave = lambda exchange: None
            fleet = running.gateway.fleet
            fleet.engines[0].state = "down"
            fleet.engines[0].retry = float("inf")
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat())
                await until(lambda: b.asked)
                renew(running, lambda: settings([a]))
                assert [e.state for e in fleet.engines] == ["down", "draining"]
                renew(running, lambda: settings([a, b]))
                assert [e.state for e in fleet.engines] == ["down", "up"]
                b.answer(b.asked[0])
                assert (await client.answer())[0] == 200
                b.behave = b.answer
                assert (await client.ask("POST", CHAT, chat()))[1]["x-assay-engine"] == "b"

    asyncio.run(test())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(number, tmp_path):
    """Clients still read why, and the log has it."""
    log = tmp_path / "access.jsonl"

    def begin(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')

    async def test():
        async with engines("a") as (a,):
            a.behave = begin
            running = []
            task = asyncio.create_task(run(settings([a], grace=3600.0, log=str(log)), running.append))
            await until(lambda: running)
            async with Client(running[0].port) as client:
                client.send("POST", CHAT, chat(stream=True))
                await client.head()
                await client.chunk()
                os.kill(os.getpid(), number)
                await until(lambda: running[0].gateway.draining)
                assert not task.done()
                os.kill(os.getpid(), number)
                assert b"the gateway stops" in await asyncio.wait_for(client.chunk(), 120)
                assert await asyncio.wait_for(task, 120) == 0

    asyncio.run(test())
    assert json.loads(log.read_text())["error"] == "the gateway stops"


def test_kv_events_without_a_tokenizer_are_said_to_be_of_no_use():
    pytest.importorskip("zmq")

    async def test():
        async with engines("a") as (a,):
            publisher = Publisher("tcp://127.0.0.1:0")
            named = [{"url": a.url, "events": publisher.endpoint}]
            async with Running(settings([a], engine=named)) as running:
                await until(lambda: "tokenizer" in running.gateway.fleet.engines[0].note)
            publisher.close()

    asyncio.run(test())


def test_an_engine_that_moved_up_and_comes_back_clears_its_own_cache_and_no_other():
    pytest.importorskip("zmq")

    async def test():
        async with engines("a", "b", "c") as made:
            named = [{"url": e.url, "name": e.name} for e in made]
            named[1]["events"] = "tcp://127.0.0.1:1"
            async with Running(settings(made, engine=named)) as running:
                gateway = running.gateway
                fleet, index = gateway.fleet, gateway.index
                gateway.roster.drain(fleet.engines[0])
                b, c = fleet.engines
                for engine in (b, c):
                    index.insert(engine.number, index.hashes(np.arange(64, dtype=np.uint32), 0), gateway.now())
                gateway.mark_down(b, "a test")
                await until(lambda: b.state == "up")
                assert (index.blocks(b.number), index.blocks(c.number)) == (0, 4)

    asyncio.run(test())


def test_the_log_says_what_became_of_every_request_and_nothing_that_was_said(tmp_path):
    log = tmp_path / "access.jsonl"

    def die(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')
        asyncio.get_running_loop().call_later(0.02, exchange._connection.transport.close)

    async def test():
        async with engines("a") as (a,), Running(settings([a], log=str(log))) as running:
            words = "a secret sentence " * 20
            await ask(running.port, "POST", CHAT, chat(words, user="u1"), authorization="Bearer sk-private")
            await ask(running.port, "POST", CHAT, chat(words + "more", stream=True), x_tenant="acme", x_tier="batch")
            a.behave = die
            await ask(running.port, "POST", CHAT, chat(stream=True))

    asyncio.run(test())
    text = log.read_text()
    first, second, third = (json.loads(line) for line in text.splitlines())
    assert "secret" not in text and "private" not in text
    assert (first["status"], first["prompt_tokens"], first["completion_tokens"], first["session"]) == (200, 8, 3, "u1")
    assert (second["tenant"], second["tier"], second["stream"]) == ("acme", "batch", True)
    shared = np.array(first["hash_ids"][:4]) == np.array(second["hash_ids"][:4])
    assert shared.all() and second["matched_tokens"] >= 64
    assert third["error"] and third["engine"] == "a"


def test_requests_wait_for_an_engine_that_has_not_started_yet():
    """Ready means ready: until an engine first answers, nobody is told that it failed."""

    async def test():
        async with engines("a") as (a,):
            await a.stop()
            async with Running(settings([a], start=30.0)) as running:
                asked = asyncio.create_task(ask(running.port, "POST", CHAT, chat("hello")))
                await until(lambda: running.gateway.fleet.engines[0].state == "starting")
                status, _, body = await ask(running.port, "GET", "/engines")
                (row,) = json.loads(body)["engines"]
                assert status == 200 and row["state"] == "starting" and "has not answered yet" in row["note"]
                assert not asked.done()
                late = await FakeEngine("late").start(a.port)
                status, *_ = await asyncio.wait_for(asked, 120)
                assert status == 200
                assert running.gateway.fleet.engines[0].errors == 0
                await late.stop()

    asyncio.run(test())
