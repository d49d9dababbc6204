"""Engines that come and go by themselves, over real sockets: a file, DNS, and what a Kubernetes API server streams."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvloop")

from assay.live.discovery import srv
from assay.live.serve import Running
from assay.live.server import JSON, Exchange, Server
from assay.record.errors import BadInput
from tests.live.fake_engines import ask, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"


def names(running: Running) -> list[str]:
    return [e.name for e in running.gateway.fleet.engines if e.state == "up"]


def discovering(source: str, **more) -> dict:
    return {"discover": [{"source": source, "every": 0.02, **more}]}


def test_a_source_that_is_none_is_refused():
    async def test():
        async with engines("a") as (a,):
            with pytest.raises(BadInput, match="kubernetes:app=vllm"):
                async with Running(settings([a], **discovering("consul:vllm"))):
                    pass

    run(test())


def test_engines_of_a_watched_file_join_and_are_drained_and_nobody_else_is(tmp_path, capsys):
    async def test():
        async with engines("a", "b", "c") as (a, b, c):
            path = tmp_path / "engines.toml"

            def write(*listed) -> None:
                path.write_text("\n".join(f'[[engine]]\nurl = "{e.url}"\nname = "{e.name}"' for e in listed))

            write(b)
            async with Running(settings([a], **discovering(f"file:{path}", limit=7))) as running:
                assert names(running) == ["a", "b"]  # before it listens
                assert [e.limit for e in running.gateway.fleet.engines] == [256, 7]
                held = []
                b.behave = held.append
                a.behave = lambda exchange: exchange.refuse(503, "not now")
                under_way = asyncio.create_task(ask(running.port, "POST", CHAT, chat()))
                await until(lambda: held)
                write(c)
                await until(lambda: "c" in names(running) and "b" not in names(running))
                b.answer(held[0])
                assert (await under_way)[1]["x-assay-engine"] == "b"  # what it had begun is answered
                await until(lambda: [e.name for e in running.gateway.fleet.engines] == ["a", "c"])
                path.write_text("[[engine]]\nurl = 7")
                sources = lambda: running.gateway.roster.sources[0]  # noqa: E731
                await until(lambda: sources().problem)
                assert names(running) == ["a", "c"]
                page = json.loads((await ask(running.port, "GET", "/engines"))[2])
                assert page["sources"][0]["problem"]
                write(b, c)
                await until(lambda: names(running) == ["a", "c", "b"])
                assert not sources().problem
            assert capsys.readouterr().err.count("its engines stay as they are") == 1

    run(test())


# ------------------------------------------------------------------------------------------------------------ DNS


class NameServer(asyncio.DatagramProtocol):
    """Answers with `records`; cuts datagrams short where told to, and then goes on over TCP."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, str]] = []  # priority, port, host
        self.asked = self.streamed = 0
        self.short, self.code = False, 0

    def reply(self, message: bytes, short: bool) -> bytes:
        self.asked += 1
        flags = 0x8180 | (0x0200 if short else 0) | self.code
        records = [] if short or self.code else self.records
        body = message[12:]
        for priority, port, host in records:
            target = b"".join(bytes([len(label)]) + label.encode() for label in host.split(".")) + b"\0"
            value = struct.pack(">HHH", priority, 10, port) + target
            body += b"\xc0\x0c" + struct.pack(">HHIH", 33, 1, 5, len(value)) + value
        return message[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + body

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, source) -> None:
        self.transport.sendto(self.reply(data, self.short), source)

    async def stream(self, reader, writer) -> None:
        message = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        self.streamed += 1
        reply = self.reply(message, False)
        writer.write(len(reply).to_bytes(2, "big") + reply)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def name_server():
    loop = asyncio.get_running_loop()
    server = NameServer()
    tcp = await asyncio.start_server(server.stream, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", port))
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        transport.close()
        tcp.close()


@pytest.mark.parametrize("short", [False, True])
def test_engines_of_a_name_join_and_leave_with_its_records(short):
    async def test():
        async with engines("a", "b", "c") as (a, b, c), name_server() as (server, at):
            server.short = short
            server.records = [(1, a.port, "localhost"), (1, b.port, "localhost"), (9, c.port, "localhost")]
            told = discovering("srv:_vllm._tcp.engines.example", at=at)
            async with Running(settings([], **told)) as running:
                await until(lambda: len(names(running)) == 2)  # the third is of a worse priority
                assert bool(server.streamed) == short
                assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
                server.records = [(1, a.port, "localhost"), (1, c.port, "localhost")]
                await until(lambda: names(running) == [f"localhost:{a.port}", f"localhost:{c.port}"])
                server.code = 2  # the name server itself is in trouble: nobody is drained
                await until(lambda: "error 2" in running.gateway.roster.sources[0].problem)
                assert len(names(running)) == 2
                server.code = 3  # no such name: nobody is there any more
                await until(lambda: not running.gateway.fleet.engines)

    run(test())


@given(st.binary(max_size=80))
def test_whatever_a_name_server_says_is_read_or_refused(tail):
    for reply in (tail, struct.pack(">HHHHHH", 7, 0x8180, 1, 2, 0, 0) + tail):
        try:
            found = srv.answer(reply, 7)
        except OSError:
            continue
        assert all(host and 0 < port < 65536 for host, port in found)


# ---------------------------------------------------------------------------------------------------- Kubernetes


def piece(name: str, version: int, *endpoints: dict, port: int, deleted: bool = False) -> dict:
    """An EndpointSlice as an API server writes it."""
    return {
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "llm", "resourceVersion": str(version), "labels": {"app": "vllm"}},
        "addressType": "IPv4", "endpoints": list(endpoints),
        "ports": [{"name": "metrics", "port": 1, "protocol": "TCP"}, {"name": "http", "port": port, "protocol": "TCP"}],
    }  # fmt: skip


def endpoint(name: str, ready: bool | None = True, terminating: bool = False) -> dict:
    conditions = {"ready": ready, "serving": ready, "terminating": terminating}
    return {"addresses": ["127.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


class ApiServer:
    """Lists, and streams what a test puts into it, as recorded from a real one: chunked, one JSON object a line."""

    def __init__(self) -> None:
        self.server = Server(self._answer)
        self.items: list[dict] = []
        self.version = 10
        self.watches: list[Exchange] = []
        self.lists = 0
        self.asked: list[bytes] = []
        self.status = 200

    async def start(self) -> str:
        return f"http://127.0.0.1:{await self.server.start('127.0.0.1', 0)}"

    def _answer(self, exchange: Exchange) -> None:
        target = exchange.head.target
        self.asked.append(target)
        assert exchange.head.fields[b"authorization"] == b"Bearer pod-token"
        assert target.startswith(b"/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices?labelSelector=app%3Dvllm")
        if self.status != 200:
            exchange.refuse(self.status, "forbidden")
        elif b"watch=1" in target:
            self.watches.append(exchange)
            exchange.begin(b"200 OK", [JSON])
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"name": "", "resourceVersion": str(self.version)}}}
            self.tell(bookmark)
        else:
            self.lists += 1
            listed = {"kind": "EndpointSliceList", "metadata": {"resourceVersion": str(self.version)}}
            exchange.reply(200, [JSON], json.dumps({**listed, "items": self.items}).encode())

    def tell(self, *events: dict) -> None:
        data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        half = len(data) // 2  # what is one event need not be one packet
        self.watches[-1].write(data[:half])
        self.watches[-1].write(data[half:])


def test_engines_follow_the_slices_of_a_label_and_survive_all_that_a_watch_does(tmp_path):
    token = tmp_path / "token"
    token.write_text("pod-token\n")

    async def test():
        async with engines("a", "b", "c") as (a, b, c):
            api = ApiServer()
            told = {"at": await api.start(), "token": str(token), "port": "http"}
            api.items = [piece("s1", 9, endpoint("vllm-0"), endpoint("loading", ready=False), port=a.port)]
            async with Running(settings([], **discovering("kubernetes:llm/app=vllm", **told))) as running:
                assert names(running) == ["vllm-0"]  # before it listens
                assert (await ask(running.port, "POST", CHAT, chat()))[1]["x-assay-engine"] == "vllm-0"
                await until(lambda: api.watches)
                api.tell({"type": "ADDED", "object": piece("s2", 11, endpoint("vllm-1", None), port=b.port)})
                await until(lambda: names(running) == ["vllm-0", "vllm-1"])
                ending = piece("s1", 12, endpoint("vllm-0", terminating=True), port=a.port)
                api.tell({"type": "MODIFIED", "object": ending})
                await until(lambda: names(running) == ["vllm-1"])
                api.watches[-1].finish()  # its time is over: from where it was
                await until(lambda: len(api.watches) == 2)
                assert b"resourceVersion=12" in api.asked[-1] and api.lists == 1
                api.items, api.version = [piece("s3", 20, endpoint("vllm-2"), port=c.port)], 20
                gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
                api.tell({"type": "ERROR", "object": gone})  # it has forgotten: all of them again
                await until(lambda: names(running) == ["vllm-2"])
                assert api.lists == 2
                await until(lambda: len(api.watches) == 3)
                api.status = 403
                api.watches[-1].cut()  # the API server restarts, and the right is gone
                source = running.gateway.roster.sources[0]
                await until(lambda: "needs a Role" in source.problem)
                assert names(running) == ["vllm-2"]
                api.status = 200
                await until(lambda: not source.problem)
                await until(lambda: len(api.watches) == 4)
                api.tell({"type": "DELETED", "object": piece("s3", 30, port=c.port)})
                await until(lambda: not running.gateway.fleet.engines)
            await api.server.drain(0.01)

    run(test())


def test_outside_of_a_cluster_it_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def test():
        async with engines("a") as (a,), Running(settings([a], **discovering("kubernetes:app=vllm"))) as running:
            assert "KUBERNETES_SERVICE_HOST" in running.gateway.roster.sources[0].problem
            assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200

    run(test())


def test_the_role_may_do_what_the_gateway_does_and_no_more():
    yaml = pytest.importorskip("yaml")
    from tests.live.test_deploy import DEPLOY

    _, role, binding = yaml.safe_load_all((DEPLOY / "kubernetes-discovery.yaml").read_text())
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
