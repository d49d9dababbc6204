"""The gateway: who answers, what a client sees when engines fail, and that the books balance."""

from __future__ import annotations

import asyncio
import json
from time import monotonic

import pytest

pytest.importorskip("uvloop")

from assay.live import gateway
from assay.live.serve import Running
from tests.live.fake_engines import EVENT_STREAM, Client, FakeEngine, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"


def test_an_answer_comes_back_byte_for_byte_and_says_who_gave_it():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            status, fields, body = await ask(running.port, "POST", CHAT, chat())
            assert (status, body) == (200, b'{"from": "a", "usage": {"prompt_tokens": 8, "completion_tokens": 3}}')
            assert fields["x-assay-engine"] == "a" and fields["content-type"] == "application/json"
            status, fields, body = await ask(running.port, "POST", CHAT, chat(stream=True))
            assert body.count(b"data: ") == 4 and body.endswith(b"data: [DONE]\n\n")
            assert balanced(running)

    run(test())


def test_the_engine_receives_the_body_as_it_was_sent_and_no_connection_headers():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            odd = b'{ "model":"m",  "messages":[{"role":"user","content":"\\u00e9"}], "x": 1e400 }'
            await ask(running.port, "POST", CHAT + "?v=1", odd, connection="keep-alive, x-drop", x_drop="1", x_keep="2")
            got = a.asked[0]
            assert got.body == odd and got.head.target == CHAT.encode() + b"?v=1"
            assert got.head.fields[b"x-keep"] == b"2" and b"x-drop" not in got.head.fields
            assert got.head.fields[b"host"] == b"127.0.0.1:%d" % a.port

    run(test())


def test_a_prompt_goes_where_its_beginning_is_cached():
    async def test():
        async with engines("a", "b") as made, Running(settings(made)) as running:
            long = "the same beginning " * 50
            first = (await ask(running.port, "POST", CHAT, chat(long + "1")))[1]["x-assay-engine"]
            later = [
                (await ask(running.port, "POST", CHAT, chat(long + str(n))))[1]["x-assay-engine"] for n in range(5)
            ]
            assert later == [first] * 5
            other = [
                (await ask(running.port, "POST", CHAT, chat(f"{n} " + long)))[1]["x-assay-engine"] for n in range(6)
            ]
            assert set(other) == {"a", "b"}

    run(test())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["at once", "after the head", "in the middle of the first event"])
def test_an_engine_that_dies_before_the_first_byte_is_never_noticed(stream, when):
    def die(exchange):
        if when != "at once":
            exchange.begin(b"200 OK", [EVENT_STREAM])
            if when != "after the head":
                exchange.write(b'data: {"half')
            exchange._connection.transport.write(exchange._head)
        exchange._connection.transport.close()

    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            a.behave = die
            for n in range(8):
                status, fields, body = await ask(running.port, "POST", CHAT, chat(str(n), stream=stream))
                assert status == 200 and fields["x-assay-engine"] == "b" and b'"from"' in body
            assert balanced(running) and running.gateway.counters.retries >= 1

    run(test())


def test_an_engine_that_dies_in_the_middle_of_a_stream_ends_it_in_an_error_event():
    def die(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')
        exchange.write(b'data: {"n":1}\n\ndata: {"ha')
        asyncio.get_running_loop().call_later(0.05, exchange._connection.transport.close)

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = die
            status, _, body = await ask(running.port, "POST", CHAT, chat(stream=True))
            events = [json.loads(event[6:]) for event in body.decode().split("\n\n") if event]
            assert status == 200 and events[:2] == [{"n": 0}, {"n": 1}] and len(events) == 3
            assert events[2]["error"]["code"] == 502
            assert b"[DONE]" not in body and balanced(running)

    run(test())


@pytest.mark.parametrize(
    "path, kind",
    [(CHAT, [EVENT_STREAM, b"content-encoding: gzip"]), ("/api/chat", [b"content-type: application/x-ndjson"])],
)
def test_a_stream_that_cannot_be_read_here_goes_on_piece_by_piece_and_is_cut_where_it_breaks(path, kind):
    """Compressed events, and whatever another path streams: nothing is held back, and nothing is written into it."""

    def begin(exchange):
        exchange.begin(b"200 OK", kind)
        exchange.write(b"\x1f\x8b one")

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running, Client(running.port) as client:
            a.behave = begin
            client.send("POST", path, chat(stream=True))
            status, fields = await asyncio.wait_for(client.head(), 120)
            assert status == 200 and fields["transfer-encoding"] == "chunked"
            assert await asyncio.wait_for(client.chunk(), 120) == b"\x1f\x8b one"
            a.asked[0].write(b"two")
            assert await asyncio.wait_for(client.chunk(), 120) == b"two"
            a.asked[0].cut()
            assert await asyncio.wait_for(client.reader.read(), 120) == b""
            await until(lambda: balanced(running))

    run(test())


def test_a_failing_engine_is_left_alone_until_its_health_is_back():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b], failures=2)) as running:
            a.healthy = False
            await until(lambda: running.gateway.fleet.engines[0].state == "down")
            asked = len(a.asked)
            for _ in range(4):
                assert (await ask(running.port, "POST", CHAT, chat()))[1]["x-assay-engine"] == "b"
            assert len(a.asked) == asked
            a.healthy = True
            await until(lambda: running.gateway.fleet.engines[0].state == "up")

    run(test())


def test_requests_that_one_hung_engine_let_down_together_are_each_asked_elsewhere_once():
    """The first that is late breaks the circuit, which takes the others off the engine; they are late as well."""

    async def test():
        more = {"failures": 1, "policy": "round-robin", "pause": 600.0}
        async with engines("a", "b", "c") as (a, b, c), Running(settings([a, b, c], **more)) as running:
            a.behave = lambda exchange: None
            asking = [
                asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n), stream=True))) for n in range(18)
            ]
            await until(lambda: sum(task.done() for task in asking) == 12 and len(a.asked) == 6)
            for relay in running.gateway.relays:
                relay.due = 0.0  # the time for its first byte is over
            answers = await asyncio.gather(*asking)
            assert all(status == 200 and body.count(b"[DONE]") == 1 for status, _, body in answers)
            assert len(a.asked) == 6 and len(b.asked) + len(c.asked) == 18
            assert b.left + c.left == 0 and balanced(running)

    run(test())


def test_a_server_error_is_tried_elsewhere_and_passed_on_where_all_agree():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            a.behave = lambda exchange: exchange.refuse(500, "a stumbled")
            b.behave = lambda exchange: exchange.refuse(500, "b stumbled")
            for n in range(9):
                status, _, body = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert status == 500 and b"stumbled" in body
            assert [e.state for e in running.gateway.fleet.engines] == ["up", "up"]  # the request's fault, maybe
            assert balanced(running)

    run(test())


def test_an_engine_that_stumbles_where_others_do_not_gets_nothing_until_one_request_shows_that_it_can():
    async def test():
        quick = {"failures": 2, "pause": 0.1, "policy": "round-robin"}
        async with engines("a", "b") as (a, b), Running(settings([a, b], **quick)) as running:
            first = running.gateway.fleet.engines[0]
            a.behave = lambda exchange: exchange.refuse(500, "always")
            async with asyncio.timeout(120):
                while first.state == "up":
                    assert (await ask(running.port, "POST", CHAT, chat()))[1]["x-assay-engine"] == "b"
            assert "500" in first.note
            asked = len(a.asked)
            assert asked == 2
            await until(lambda: first.state == "up")  # its health is fine: it gets one
            assert first.room == 1 and "trial" in first.note
            async with asyncio.timeout(120):
                while first.state == "up":
                    assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
            assert len(a.asked) == asked + 1
            a.behave = a.answer
            await until(lambda: first.state == "up")
            async with asyncio.timeout(120):
                while first.trial:
                    assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
            assert first.room == first.limit and balanced(running)

    run(test())


def test_an_engine_that_is_full_sends_a_request_elsewhere_if_there_is_an_elsewhere():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            a.behave = lambda exchange: exchange.refuse(429, "too many", more=(b"retry-after: 7",))
            for n in range(4):
                assert (await ask(running.port, "POST", CHAT, chat(str(n))))[1]["x-assay-engine"] == "b"
            b.behave = a.behave
            status, fields, _ = await ask(running.port, "POST", CHAT, chat())
            assert (status, fields["retry-after"]) == (429, "7")
            assert [e.state for e in running.gateway.fleet.engines] == ["up", "up"] and a.asked and balanced(running)

    run(test())


def test_client_errors_are_the_engine_s_own():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            for engine in (a, b):
                engine.behave = lambda exchange: exchange.refuse(404, "no such model")
            status, _, body = await ask(running.port, "POST", CHAT, chat())
            assert status == 404 and b"no such model" in body and len(a.asked) + len(b.asked) == 1

    run(test())


def test_a_client_that_leaves_frees_the_engine():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = lambda exchange: None
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat())
                await until(lambda: a.asked)
            await until(lambda: a.left == 1)
            await until(lambda: balanced(running))
            assert running.gateway.counters.requests["chat", 499] == 1

    run(test())


def test_a_silent_engine_is_given_up_for_another_and_silence_in_a_stream_ends_it():
    def half(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')

    async def test():
        async with (
            engines("a", "b") as (a, b),
            Running(settings([a, b], failures=100, policy="round-robin")) as running,
        ):

            def time_is_over():
                for relay in running.gateway.relays:
                    relay.due = 0.0

            a.behave = lambda exchange: time_is_over()
            for n in range(4):
                assert (await ask(running.port, "POST", CHAT, chat(str(n), stream=True)))[1]["x-assay-engine"] == "b"
            assert a.asked
            a.behave = b.behave = half
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat(stream=True)))
            await until(lambda: any(relay.exchange.started for relay in running.gateway.relays))
            time_is_over()
            _, _, body = await asking
            assert b'"error"' in body and b"no byte for" in body and balanced(running)

    run(test())


def test_a_deadline_ends_in_504():
    async def test():
        async with engines("a") as (a,), Running(settings([a], deadline=0.3)) as running:
            a.behave = lambda exchange: None
            status, _, body = await ask(running.port, "POST", CHAT, chat())
            assert status == 504 and b"0.3 s" in body and balanced(running)

    run(test())


def test_requests_beyond_what_engines_may_have_wait_and_beyond_the_queue_get_429():
    async def test():
        async with engines("a") as (a,), Running(settings([a], inflight=2, queue=3)) as running:
            held = []
            a.behave = held.append
            asking = [asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n)))) for n in range(7)]
            await until(lambda: sum(task.done() for task in asking) == 2)
            refused = [task.result() for task in asking if task.done()]
            assert [status for status, *_ in refused] == [429, 429]
            assert all(fields["retry-after"] == "1" for _, fields, _ in refused)
            await until(lambda: len(held) == 2)  # sent at once, but the engine may be late to see them
            assert len(running.gateway.placing.queue) == 3
            while not all(task.done() for task in asking):
                while held:
                    a.answer(held.pop())
                await asyncio.sleep(0.01)
            assert sorted(task.result()[0] for task in asking) == [200] * 5 + [429] * 2
            assert balanced(running)

    run(test())


def test_a_flood_of_one_tenant_does_not_turn_another_away():
    async def test():
        async with engines("a") as (a,), Running(settings([a], inflight=1, queue=4, order="fair")) as running:
            held = []
            a.behave = held.append
            flood = [
                asyncio.create_task(ask(running.port, "POST", CHAT, chat(str(n)), x_tenant="loud")) for n in range(9)
            ]
            await until(lambda: sum(task.done() for task in flood) == 4)
            quiet = asyncio.create_task(ask(running.port, "POST", CHAT, chat("quiet"), x_tenant="quiet"))
            await until(lambda: sum(task.done() for task in flood) == 5)  # one of the loud ones made room
            order = []
            while not all(task.done() for task in [*flood, quiet]):
                while held:
                    exchange = held.pop(0)
                    order.append(b"quiet" in exchange.body)
                    a.answer(exchange)
                await asyncio.sleep(0.01)
            assert quiet.result()[0] == 200
            assert order.index(True) <= 2  # fair: not behind all of the flood

    run(test())


def test_with_no_engine_up_a_request_waits_a_little_and_then_gets_503():
    async def test():
        async with engines("a") as (a,), Running(settings([a], failures=1)) as running:
            port = a.port
            await a.stop()
            await until(lambda: running.gateway.fleet.engines[0].state == "down")
            status, fields, _ = await ask(running.port, "POST", CHAT, chat())
            assert status == 503 and fields["retry-after"] == "1"
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat()))
            await asyncio.sleep(0.05)
            again = await FakeEngine("a").start(port)
            assert (await asking)[0] in (200, 503)
            await until(lambda: running.gateway.fleet.engines[0].state == "up")
            assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
            await again.stop()

    run(test())


def test_a_slow_client_slows_its_engine_down_and_nobody_else():
    """What the gateway holds stays small however long the answer is: it does not read on until the client does.

    The gateway is asked, not how much the system's buffers between the three took, which is another on every machine.
    """
    piece = b"data: " + b"x" * 10_000 + b"\n\n"
    wrote, stuck = [], asyncio.Event()

    def flood(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        ready = asyncio.Event()
        ready.set()
        exchange.resume = lambda go: ready.set() if go else ready.clear()

        async def pour():
            while not stuck.is_set() and len(wrote) < 20_000:  # more than any buffer: a gateway that reads on fails
                wrote.append(piece)
                exchange.write(piece)
                await asyncio.sleep(0)
                while not ready.is_set() and not stuck.is_set():
                    await asyncio.sleep(0.001)
            exchange.finish()

        pouring.append(asyncio.create_task(pour()))

    pouring: list[asyncio.Task[None]] = []

    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b], silence=600.0)) as running:
            a.behave = b.behave = flood
            async with Client(running.port) as slow:
                slow.send("POST", CHAT, chat(stream=True))
                await slow.head()
                (relay,) = running.gateway.relays
                await until(lambda: not relay.upstream.transport.is_reading())
                (client,) = (c for c in running.server.connections if c.exchange is relay.exchange)
                assert client.transport.get_write_buffer_size() < 1 << 20
                a.behave, b.behave = a.answer, b.answer
                assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
                await until(lambda: not relay.upstream.transport.is_reading())  # still, or again
                stuck.set()
                total = 0
                while piece_read := await slow.chunk():
                    total += len(piece_read)
                assert total == len(wrote) * len(piece)
            await until(lambda: balanced(running))

    run(test())


def test_engines_come_and_go_while_requests_run():
    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a])) as running:
            held = []
            a.behave = held.append
            first = asyncio.create_task(ask(running.port, "POST", CHAT, chat("1")))
            await until(lambda: held)
            status, _, body = await ask(
                running.port, "POST", "/engines", json.dumps({"url": b.url, "name": "b"}).encode()
            )
            assert status == 201 and json.loads(body)["name"] == "b"
            assert (await ask(running.port, "POST", "/engines", json.dumps({"url": b.url}).encode()))[0] == 409
            assert (await ask(running.port, "POST", "/engines", b'{"url": "ftp://x"}'))[0] == 400
            assert (await ask(running.port, "DELETE", "/engines/nobody"))[0] == 404
            status, _, body = await ask(running.port, "DELETE", "/engines/a")
            assert status == 202 and json.loads(body)["aboard"] == 1
            for n in range(4):
                assert (await ask(running.port, "POST", CHAT, chat(str(n))))[1]["x-assay-engine"] == "b"
            a.answer(held[0])
            assert (await first)[1]["x-assay-engine"] == "a"
            await until(lambda: [e.name for e in running.gateway.fleet.engines] == ["b"])
            assert (await ask(running.port, "POST", CHAT, chat()))[1]["x-assay-engine"] == "b"
            assert balanced(running)

    run(test())


def test_models_decide_who_is_eligible_and_are_listed_together():
    async def test():
        async with engines("a", "b") as (a, b):
            b.models = ("other",)
            async with Running(settings([a, b])) as running:
                await until(lambda: all(e.models for e in running.gateway.fleet.engines))
                for n in range(3):
                    assert (await ask(running.port, "POST", CHAT, chat(str(n), model="other")))[1][
                        "x-assay-engine"
                    ] == "b"
                    assert (await ask(running.port, "POST", CHAT, chat(str(n), model="m")))[1]["x-assay-engine"] == "a"
                _, _, body = await ask(running.port, "GET", "/v1/models")
                assert {model["id"] for model in json.loads(body)["data"]} == {"m", "other"}

    run(test())


def test_stopping_lets_running_answers_end_and_refuses_new_ones():
    async def test():
        async with engines("a") as (a,):
            held = []
            a.behave = held.append
            running = Running(settings([a], grace=5.0))
            async with running, Client(running.port) as kept:
                kept.send("POST", CHAT, chat())
                await until(lambda: held)
                stopping = asyncio.create_task(running.stop())
                await asyncio.sleep(0.05)
                with pytest.raises(OSError):
                    await ask(running.port, "GET", "/health")
                a.answer(held[0])
                status, _fields, _ = await kept.answer()
                assert status == 200
                assert await stopping == 0

    run(test())


def test_what_outlasts_the_grace_ends_in_an_error_that_can_be_read():
    def half(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')

    async def test():
        async with engines("a") as (a,):
            a.behave = half
            running = Running(settings([a], grace=0.6))
            async with running:
                asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat(stream=True)))
                await until(lambda: running.gateway.relays and next(iter(running.gateway.relays)).first)
                await running.stop()
                status, _, body = await asking
                assert status == 200 and b'"error"' in body and b"stops" in body

    run(test())


def test_keys_say_who_asks_and_never_reach_the_engine():
    import hashlib

    keys = [
        {"tenant": "acme", "sha256": hashlib.sha256(b"right").hexdigest(), "tier": "premium"},
        {"tenant": "ops", "sha256": hashlib.sha256(b"boss").hexdigest(), "admin": True},
    ]

    async def test():
        async with engines("a") as (a,), Running(settings([a], key=keys)) as running:
            for wrong in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Basic right"},
                {"authorization": ""},
            ):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(), **wrong)
                assert status == 401 and fields["www-authenticate"] == "bearer"
            assert not a.asked
            assert (await ask(running.port, "POST", CHAT, chat(), authorization="Bearer right"))[0] == 200
            assert b"authorization" not in a.asked[0].head.fields
            for page in ("/metrics", "/engines"):
                assert (await ask(running.port, "GET", page))[0] == 401
                assert (await ask(running.port, "GET", page, authorization="Bearer right"))[0] == 401
                assert (await ask(running.port, "GET", page, authorization="Bearer boss"))[0] == 200
            assert (await ask(running.port, "GET", "/health"))[0] == 200

    run(test())


def test_without_keys_the_client_s_own_key_goes_on_to_the_engine():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            await ask(running.port, "POST", CHAT, chat(), authorization="Bearer theirs")
            assert a.asked[0].head.fields[b"authorization"] == b"Bearer theirs"

    run(test())


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_events_go_on_one_by_one_however_their_lines_end(end):
    under_way = []

    def begin(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b"data: 1" + end + b"data: 2")
        under_way.append(exchange)

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            a.behave = begin
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat(stream=True))
                await client.head()
                assert await asyncio.wait_for(client.chunk(), 120) == b"data: 1" + end
                under_way[0].finish(end)
                assert await client.chunk() == b"data: 2" + end

    run(test())


def test_metrics_count_every_answer():
    from prometheus_client.parser import text_string_to_metric_families

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            for n in range(3):
                await ask(running.port, "POST", CHAT, chat(str(n), stream=n == 2))
            await ask(running.port, "GET", "/v1/models")
            page = (await ask(running.port, "GET", "/metrics"))[2].decode()
            families = list(text_string_to_metric_families(page))
            found = {
                (sample.name, sample.labels.get("endpoint")): sample.value
                for family in families
                for sample in family.samples
            }
            assert found["assay_gateway_requests_total", "chat"] == 3
            assert found["assay_gateway_requests_total", "other"] == 1
            assert found["assay_gateway_time_to_first_token_seconds_count", None] == 1  # one of them was streamed
            assert found["assay_gateway_engine_requests_total", None] == 4
            assert all(family.type == "counter" for family in families for s in family.samples if "_total" in s.name)

    run(test())


def test_the_description_is_served_and_names_every_page():
    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            described = json.loads((await ask(running.port, "GET", "/openapi.json"))[2])
            assert "/v1/chat/completions" in described["paths"] and described["openapi"].startswith("3.")

    run(test())


@pytest.mark.parametrize("clock", [lambda: 0.0, lambda: monotonic() - 1e9], ids=["zero", "below zero"])
def test_a_clock_may_start_anywhere(clock, monkeypatch, tmp_path):
    """Monotonic clocks start where they like: a reading of 0 is one, and nothing is hours ahead of a young machine."""
    monkeypatch.setattr(gateway, "monotonic", clock)

    async def test():
        async with engines("a") as (a,), Running(settings([a], log=str(tmp_path / "log"))) as running:
            await until(lambda: running.gateway.fleet.engines[0].models)  # it was probed
            assert (await ask(running.port, "POST", CHAT, chat(stream=True)))[0] == 200
            assert balanced(running)
            return running.gateway.counters.ttft.count

    assert run(test()) == 1
    line = json.loads((tmp_path / "log").read_text())
    assert 0 <= line["ttft"] <= line["e2e"] and 0 <= line["queue"] <= line["e2e"]
