"""What only one engine has goes to that one: answers that are gone on from, files, batches; and forms name models."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvloop")

from assay.live import kept, multipart
from assay.live.serve import Running
from assay.live.server import JSON, Exchange
from tests.live.fake_engines import EVENT_STREAM, Client, FakeEngine, ask, balanced, chat, engines, run, settings, until

RESPONSES = "/v1/responses"
DONE = b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'


class Keeper(FakeEngine):
    """Keeps answers, files and batches under names of its own making, and knows no others."""

    def __init__(self, name: str, models: tuple[str, ...] = ("m",)) -> None:
        super().__init__(name, models)
        self.things: dict[str, dict] = {}
        self.behave = self.keep

    def keep(self, exchange: Exchange) -> None:
        path = exchange.head.path.decode()
        if exchange.head.method == b"POST" and path.count("/") == 2:
            self.make(exchange, path.rsplit("/", 1)[1])
            return
        thing = self.things.get(path.split("/")[3])
        if thing is None:
            exchange.refuse(404, "no such thing")
        else:
            exchange.reply(200, [JSON], json.dumps(thing).encode())

    def make(self, exchange: Exchange, kind: str) -> None:
        body = json.loads(exchange.body) if exchange.body.startswith(b"{") else {}
        before = body.get("previous_response_id") or body.get("input_file_id")
        if before and before not in self.things:
            exchange.refuse(404, "no such thing")
            return
        name = f"{kind}_{self.name}_{len(self.things)}"
        thing = self.things[name] = {"id": name, "from": self.name}
        if kind == "batches":
            self.things[thing.setdefault("output_file_id", f"{name}_out")] = {"id": f"{name}_out", "from": self.name}
        if body.get("stream"):
            exchange.begin(b"200 OK", [EVENT_STREAM])
            first = {"type": "response.created", "response": {"object": "response", "id": name, "output": []}}
            exchange.write(b"event: response.created\ndata: " + json.dumps(first).encode() + b"\n\n")
            exchange.write(b'event: response.output_text.delta\ndata: {"delta":"So"}\n\n')
            exchange.finish(DONE)
        else:
            exchange.reply(200, [JSON], json.dumps(thing).encode())


async def keepers(count: int) -> list[Keeper]:
    return [await Keeper(f"e{n}").start() for n in range(count)]


def said(body: bytes) -> dict:
    if body.startswith(b"event"):
        return json.loads(body.split(b"\n")[1][6:])["response"]
    return json.loads(body)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_gone_on_from_and_asked_for_where_it_is(count, stream):
    async def test():
        made = await keepers(count)
        async with Running(settings(made, policy="round-robin")) as running:
            for n in range(2 * count):
                body = json.dumps({"model": "m", "input": f"hello {n}", "stream": stream}).encode()
                status, fields, answer = await ask(running.port, "POST", RESPONSES, body)
                assert status == 200
                name, home = said(answer)["id"], fields["x-assay-engine"]
                more = json.dumps({"model": "m", "input": "more", "previous_response_id": name}).encode()
                for method, path, sent in (
                    ("POST", RESPONSES, more), ("GET", f"{RESPONSES}/{name}", b""),
                    ("POST", f"{RESPONSES}/{name}/cancel", b""), ("DELETE", f"{RESPONSES}/{name}", b""),
                ):  # fmt: skip
                    status, fields, _ = await ask(running.port, method, path, sent)
                    assert (status, fields["x-assay-engine"]) == (200, home), (method, path)
            assert balanced(running)
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("count", [2, 8])
def test_what_is_older_than_the_gateway_is_looked_for(count):
    async def test():
        made = await keepers(count)
        made[-1].things["resp_old"] = {"id": "resp_old"}
        async with Running(settings(made, policy="round-robin", failures=1)) as running:
            more = json.dumps({"model": "m", "input": "more", "previous_response_id": "resp_old"}).encode()
            for method, path, body in (("GET", f"{RESPONSES}/resp_old", b""), ("POST", RESPONSES, more)):
                status, fields, _ = await ask(running.port, method, path, body)
                assert (status, fields["x-assay-engine"]) == (200, made[-1].name)
            assert (await ask(running.port, "GET", f"{RESPONSES}/resp_nowhere"))[0] == 404
            assert all(e.state == "up" and not e.errors for e in running.gateway.fleet.engines) and balanced(running)
        for engine in made:
            await engine.stop()

    run(test())


def test_files_and_batches_stay_together():
    async def test():
        made = await keepers(4)
        async with Running(settings(made, policy="round-robin")) as running:
            for _ in range(6):
                _, fields, body = await ask(running.port, "POST", "/v1/files", b"--x\r\n", content_type="text/plain")
                home, name = fields["x-assay-engine"], json.loads(body)["id"]
                asked = json.dumps({"input_file_id": name, "endpoint": "/v1/chat/completions"}).encode()
                status, fields, body = await ask(running.port, "POST", "/v1/batches", asked)
                assert (status, fields["x-assay-engine"]) == (200, home)
                batch = json.loads(body)
                for path in (f"batches/{batch['id']}", f"files/{batch['output_file_id']}/content"):
                    status, fields, _ = await ask(running.port, "GET", f"/v1/{path}")
                    assert (status, fields["x-assay-engine"]) == (200, home)
        for engine in made:
            await engine.stop()

    run(test())


def test_what_one_tenant_keeps_no_other_can_ask_for():
    keys = [{"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("acme", "zoo")]

    async def test():
        (a,) = await keepers(1)
        async with Running(settings([a], key=keys)) as running:
            body = json.dumps({"model": "m", "input": "hello"}).encode()
            name = said((await ask(running.port, "POST", RESPONSES, body, x_api_key="acme"))[2])["id"]
            asked = len(a.asked)
            more = json.dumps({"model": "m", "input": "more", "previous_response_id": name}).encode()
            for method, path, sent in (("GET", f"{RESPONSES}/{name}", b""), ("DELETE", f"{RESPONSES}/{name}", b""),
                                       ("POST", RESPONSES, more)):  # fmt: skip
                assert (await ask(running.port, method, path, sent, x_api_key="zoo"))[0] == 404
            assert len(a.asked) == asked and balanced(running)
            assert (await ask(running.port, "GET", f"{RESPONSES}/{name}", x_api_key="acme"))[0] == 200
        await a.stop()

    run(test())


def test_it_waits_for_its_engine_and_is_not_answered_by_another():
    async def test():
        a, b = await keepers(2)
        async with Running(settings([a, b], inflight=1, policy="round-robin")) as running:
            body = json.dumps({"model": "m", "input": "hello"}).encode()
            made = said((await ask(running.port, "POST", RESPONSES, body))[2])
            home, other = (a, b) if made["from"] == "e0" else (b, a)
            home.behave = lambda exchange: None
            more = json.dumps({"model": "m", "input": "more", "previous_response_id": made["id"]}).encode()
            first = asyncio.create_task(ask(running.port, "POST", RESPONSES, more))
            await until(lambda: len(home.asked) == 2)
            second = asyncio.create_task(ask(running.port, "POST", RESPONSES, more))
            await until(lambda: running.gateway.placing.waiting == 1)
            home.behave = home.keep
            home.keep(home.asked[1])
            assert [(await task)[1]["x-assay-engine"] for task in (first, second)] == [home.name] * 2
            assert not other.asked
        for engine in (a, b):
            await engine.stop()

    run(test())


def test_it_is_asked_for_by_the_name_that_its_own_engine_has_for_the_model():
    """An alias stands for several: where the first is full the second answers, and the next turn is the second's."""

    async def test():
        big, small = await Keeper("big", ("big",)).start(), await Keeper("small", ("small",)).start()
        alias = [{"name": "assistant", "to": ["big", "small"]}]
        async with Running(settings([big, small], inflight=1, model=alias)) as running:
            await until(lambda: all(e.models for e in running.gateway.fleet.engines))
            body = json.dumps({"model": "assistant", "input": "hello"}).encode()
            big.behave = lambda exchange: None
            first = asyncio.create_task(ask(running.port, "POST", RESPONSES, body))
            await until(lambda: big.asked)
            _, fields, answer = await ask(running.port, "POST", RESPONSES, body)
            assert fields["x-assay-engine"] == "small"
            big.behave = big.keep
            big.keep(big.asked[0])
            assert (await first)[0] == 200
            asked = {"model": "assistant", "input": "more", "previous_response_id": said(answer)["id"]}
            status, fields, _ = await ask(running.port, "POST", RESPONSES, json.dumps(asked).encode())
            assert (status, fields["x-assay-engine"]) == (200, "small")
            assert json.loads(small.asked[-1].body) == asked | {"model": "small"}
            small.behave = lambda exchange: exchange._connection.transport.close()  # not big: it has no such thing
            before = len(big.asked)
            assert (await ask(running.port, "POST", RESPONSES, json.dumps(asked).encode()))[0] == 502
            assert len(big.asked) == before and json.loads(small.asked[-1].body)["model"] == "small"
        for engine in (big, small):
            await engine.stop()

    run(test())


def form(model: str, boundary: str = "xYz", audio: bytes = b"\x00\xff" * 5000, last: bool = True) -> bytes:
    named = f'content-disposition: form-data; name="model"\r\n\r\n{model}'.encode()
    sound = b'Content-Disposition: form-data; name="file"; filename="model"\r\ncontent-type: audio/wav\r\n\r\n' + audio
    parts = [sound, named] if last else [named, sound]
    mark = f"--{boundary}".encode()
    return b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"


@pytest.mark.parametrize("last", [True, False])
def test_a_form_goes_to_an_engine_that_has_its_model_by_its_own_name_or_an_alias(last):
    async def test():
        a, b = await FakeEngine("a", ("chat",)).start(), await FakeEngine("b", ("whisper",)).start()
        for engine in (a, b):
            engine.behave = lambda exchange: exchange.reply(200, [JSON], b"{}")
        alias = [{"name": "ear", "to": ["whisper"]}]
        async with Running(settings([a, b], model=alias)) as running:
            kind = 'multipart/form-data; boundary="xYz"'
            for _ in range(3):
                body = form("whisper", last=last)
                path = "/v1/audio/transcriptions"
                status, fields, _ = await ask(running.port, "POST", path, body, content_type=kind)
                assert (status, fields["x-assay-engine"]) == (200, "b") and b.asked[-1].body == body
                status, fields, _ = await ask(running.port, "POST", path, form("ear", last=last), content_type=kind)
                assert (status, fields["x-assay-engine"]) == (200, "b") and b.asked[-1].body == body
            assert not a.asked and balanced(running)
        for engine in (a, b):
            await engine.stop()

    run(test())


@given(st.text(max_size=20), st.binary(max_size=200), st.booleans())
def test_a_form_is_read_as_the_standard_library_reads_it(name, audio, last):
    from email.parser import BytesParser

    name = "".join(letter for letter in name if letter.isprintable()).strip()
    body = form(name, "b0und", audio, last)
    found = BytesParser().parsebytes(b"content-type: multipart/form-data; boundary=b0und\r\n\r\n" + body)
    parts = {part.get_param("name", header="content-disposition"): part for part in found.get_payload()}
    if "model" in parts and b"--b0und" not in audio:
        assert multipart.model(body, b"multipart/form-data; boundary=b0und") == name


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_what_is_no_form_is_none(body, kind):
    assert b"".join(multipart.edited(body, kind, "m")) == body or multipart.model(body, kind) != ""
    kept.asked(kind, body)


@pytest.mark.parametrize("alias", [False, True])
def test_models_are_listed_while_an_engine_has_never_been_up_or_is_full_and_503_where_none_is(alias):
    more = {"model": [{"name": "assistant", "to": ["m"]}]} if alias else {}

    async def test():
        async with engines("a") as (a,):
            listed = [{"url": a.url, "name": "a"}, {"url": "http://127.0.0.1:9", "name": "never"}]
            quick = {"engine": listed, "start": 600.0, "inflight": 1, **more}
            async with Running(settings([], **quick)) as running:
                await until(lambda: running.gateway.fleet.engines[0].state == "up")
                for full in (False, True):
                    if full:
                        a.behave = lambda exchange: None
                        client = await Client(running.port).__aenter__()
                        client.send("POST", "/v1/chat/completions", chat())
                        await until(lambda: a.asked and a.asked[-1].head.method == b"POST")
                    else:
                        a.behave = lambda exchange: exchange.reply(200, [JSON], b'{"data":[{"id":"m"}]}')
                    status, _, body = await ask(running.port, "GET", "/v1/models")
                    assert status == 200 and "m" in [model["id"] for model in json.loads(body)["data"]]
            async with Running(settings([], **quick | {"engine": listed[1:]})) as running:
                status, fields, _ = await ask(running.port, "GET", "/v1/models")
                assert (status, fields["retry-after"]) == (503, "1") and not running.gateway.relays

    run(test())
