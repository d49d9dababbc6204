"""Prompts on some engines, answers on others: the hand-over as vLLM's connectors speak it, with engines that check."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from assay.live.server import JSON, Exchange
from tests.live.fake_engines import FakeEngine, ask, balanced, chat, run, settings, until
from tests.live.test_poison import RARELY, Frail

CHAT = "/v1/chat/completions"
LONG = "the same beginning " * 60


class Prefiller(FakeEngine):
    """Computes prompts, keeps their blocks until somebody fetches them, and answers with where they are."""

    kept: int = 0

    def answer(self, exchange: Exchange) -> None:
        body = json.loads(exchange.body)
        wanted = body["kv_transfer_params"]
        assert wanted["do_remote_decode"] is True and wanted["do_remote_prefill"] is False
        assert body["max_tokens"] == 1 and body["stream"] is False and "stream_options" not in body
        self.kept += 1
        handed = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": self.name,
            "remote_block_ids": [[self.kept]], "remote_host": "127.0.0.1", "remote_port": 5600,
        }  # fmt: skip
        exchange.reply(200, [JSON], json.dumps({"choices": [], "kv_transfer_params": handed}).encode())


class Decoder(FakeEngine):
    """Answers; remembers whose blocks it was told to fetch."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.fetched: list[str | None] = []

    def answer(self, exchange: Exchange) -> None:
        told = json.loads(exchange.body).get("kv_transfer_params")
        assert told is None or (told["do_remote_prefill"] and told["remote_block_ids"])
        self.fetched.append(told and told["remote_engine_id"])
        super().answer(exchange)


async def four() -> list[FakeEngine]:
    made: list[FakeEngine] = [Prefiller("p0"), Prefiller("p1"), Decoder("d0"), Decoder("d1")]
    return [await engine.start() for engine in made]


def shared(made: list[FakeEngine], **more) -> dict:
    listed = [{"url": e.url, "name": e.name, "role": "prefill" if isinstance(e, Prefiller) else "decode"} for e in made]
    return {"engine": listed, **more}


def test_a_prompt_is_computed_on_one_engine_and_answered_by_another(tmp_path):
    async def test():
        made = await four()
        log = tmp_path / "log"
        async with Running(settings(made, **shared(made, log=str(log)))) as running:
            for n in range(6):
                asked = chat(LONG + str(n), stream=n % 2 == 0, max_tokens=40)
                status, fields, body = await ask(running.port, "POST", CHAT, asked, x_request_id=f"r{n}")
                assert status == 200 and fields["x-assay-engine"] in ("d0", "d1") and b'"from"' in body
                assert fields["x-assay-prefill"] in ("p0", "p1")
            prompts = [exchange for engine in made[:2] for exchange in engine.asked]
            answers = [exchange for engine in made[2:] for exchange in engine.asked]
            assert len(prompts) == len(answers) == 6
            ids = [exchange.head.fields[b"x-request-id"] for exchange in (*prompts, *answers)]
            assert sorted(ids[:6]) == sorted(ids[6:]) == [b"r%d" % n for n in range(6)]
            assert {json.loads(exchange.body)["max_tokens"] for exchange in answers} == {40}
            assert [name for engine in made[2:] for name in engine.fetched].count(None) == 0
            # The policy chose both ends: the prompts begin alike, so they went to one engine, which had them.
            assert sorted(len(engine.asked) for engine in made[:2]) == [0, 6]
            assert len(running.gateway.placing.decisions) == 12 and balanced(running)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(lines) == 6 and all(line["prefill"].startswith("p") for line in lines)
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("how", ["500", "breaks"])
def test_where_no_engine_computes_prompts_any_more_one_that_answers_does_both(how):
    def fail(exchange):
        if how == "500":
            exchange.refuse(500, "no")
        else:
            exchange._connection.transport.close()

    async def test():
        made = await four()
        for engine in made[:2]:
            engine.behave = fail
        async with Running(settings(made, **shared(made, failures=2))) as running:
            for n in range(8):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert status == 200 and "x-assay-prefill" not in fields
            assert None in [name for engine in made[2:] for name in engine.fetched] and balanced(running)
        for engine in made:
            await engine.stop()

    run(test())


def test_where_the_answering_engine_fails_the_prompt_is_handed_over_anew():
    async def test():
        made = await four()
        made[2].behave = lambda exchange: exchange._connection.transport.close()
        async with Running(settings(made, **shared(made, failures=100, policy="round-robin"))) as running:
            for n in range(4):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert status == 200 and fields["x-assay-engine"] == "d1" and fields["x-assay-prefill"]
            assert sum(engine.kept for engine in made[:2]) > 4  # once more for each that failed
            assert balanced(running)
        for engine in made:
            await engine.stop()

    run(test())


def test_a_refusal_of_the_prompt_is_the_client_s_and_a_client_that_leaves_frees_both():
    async def test():
        made = await four()
        async with Running(settings(made, **shared(made))) as running:
            for engine in made[:2]:
                engine.behave = lambda exchange: exchange.refuse(400, "too long")
            status, _, body = await ask(running.port, "POST", CHAT, chat())
            assert status == 400 and b"too long" in body and not made[2].asked and not made[3].asked
            for engine in made[:2]:
                engine.behave = lambda exchange: None
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat()))
            await until(lambda: any(e.aboard for e in running.gateway.fleet.engines[:2]))
            asking.cancel()
            await until(lambda: balanced(running))
        for engine in made:
            await engine.stop()

    run(test())


def test_what_is_no_prompt_goes_to_no_engine_that_only_computes_them():
    async def test():
        made = await four()
        async with Running(settings(made, **shared(made))) as running:
            for _ in range(4):
                _, fields, _ = await ask(running.port, "POST", "/v1/embeddings", b'{"model": "m", "input": "x"}')
                assert fields["x-assay-engine"].startswith("d")
                _, fields, _ = await ask(running.port, "GET", "/version")
                assert fields["x-assay-engine"].startswith("d")
        for engine in made:
            await engine.stop()

    run(test())


# ------------------------------------------------------------------------------------------------ as SGLang does it

BOOTSTRAP = 8998


class Rooms:
    """Where prompts wait for whoever decodes: what SGLang's bootstrap server and its transfers amount to."""

    def __init__(self) -> None:
        self.prompts: dict[int, Exchange] = {}
        self.answers: dict[int, tuple[Exchange, FakeEngine]] = {}
        self.met = 0

    def meet(self, room: int) -> None:
        """Both are there: the first says that it is done, the second answers."""
        if room in self.prompts and room in self.answers:
            self.met += 1
            self.prompts.pop(room).reply(200, [JSON], b'{"choices": [], "usage": {"prompt_tokens": 9}}')
            exchange, engine = self.answers.pop(room)
            FakeEngine.answer(engine, exchange)


class SglangEngine(FakeEngine):
    """Half of a pair, which waits for the other half."""

    def __init__(self, name: str, rooms: Rooms) -> None:
        super().__init__(name)
        self.rooms, self.told = rooms, []

    def answer(self, exchange: Exchange) -> None:
        body = json.loads(exchange.body)
        if "bootstrap_room" not in body:  # all of it here
            super().answer(exchange)
            return
        room = body["bootstrap_room"]
        assert body["bootstrap_host"] == "127.0.0.1" and body["bootstrap_port"] == BOOTSTRAP and 0 <= room < 2**63
        self.told.append(room)
        if self.name.startswith("p"):
            self.rooms.prompts[room] = exchange
        else:
            self.rooms.answers[room] = (exchange, self)
        self.rooms.meet(room)


async def pairs() -> tuple[Rooms, list[FakeEngine]]:
    rooms = Rooms()
    return rooms, [await SglangEngine(name, rooms).start() for name in ("p0", "p1", "d0", "d1")]


def roles(made: list[FakeEngine], **more) -> dict:
    kinds = {"p": {"role": "prefill", "bootstrap": BOOTSTRAP}, "d": {"role": "decode"}}
    return {"engine": [{"url": e.url, "name": e.name, **kinds[e.name[0]]} for e in made], **more}


def test_sglang_s_pairs_are_asked_at_once_and_meet_in_a_room():
    async def test():
        rooms, made = await pairs()
        async with Running(settings(made, **roles(made))) as running:
            for n in range(8):
                asked = chat(LONG + str(n), stream=n % 2 == 0, max_tokens=40)
                status, fields, body = await ask(running.port, "POST", CHAT, asked)
                assert status == 200 and fields["x-assay-engine"] in ("d0", "d1") and b'"from"' in body
                assert fields["x-assay-prefill"] in ("p0", "p1")
            await until(lambda: balanced(running) and not running.gateway.companions)
            told = [room for engine in made[:2] for room in engine.told]
            assert rooms.met == len(set(told)) == 8
            assert sorted(told) == sorted(room for engine in made[2:] for room in engine.told)
            bodies = [json.loads(exchange.body) for engine in made for exchange in engine.asked]
            assert {body["max_tokens"] for body in bodies} == {40}  # both get what the client asked
            assert sorted(len(engine.told) for engine in made[:2]) == [0, 8]  # the policy chose: there they are cached
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("how", ["500", "breaks", "down"])
def test_where_sglang_s_first_half_fails_another_computes_the_prompt(how):
    async def test():
        _, made = await pairs()

        def fail(exchange: Exchange) -> None:
            if how == "500":
                exchange.refuse(500, "no")
            elif how == "breaks":
                exchange._connection.transport.close()
            else:
                made[0].healthy = False

        made[0].behave = fail
        more = roles(made, policy="round-robin", failures=2, pause=60.0)
        async with Running(settings(made, **more)) as running:
            for n in range(6):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n), stream=n % 2 == 0))
                assert status == 200 and fields["x-assay-prefill"] == "p1" and fields["x-assay-engine"].startswith("d")
            await until(lambda: balanced(running) and not running.gateway.companions)
            assert running.gateway.counters.retries >= 1
        for engine in made:
            await engine.stop()

    run(test())


def test_where_sglang_s_second_half_fails_a_new_room_is_taken_and_where_the_client_leaves_both_are_freed():
    async def test():
        _, made = await pairs()
        made[2].behave = lambda exchange: exchange._connection.transport.close()
        async with Running(settings(made, **roles(made, failures=100, policy="round-robin"))) as running:
            for n in range(4):
                status, fields, _ = await ask(running.port, "POST", CHAT, chat(str(n)))
                assert status == 200 and fields["x-assay-engine"] == "d1" and fields["x-assay-prefill"]
            await until(lambda: balanced(running) and not running.gateway.companions)
            told = [room for engine in made[:2] for room in engine.told]
            assert len(set(told)) == len(told) > 4
            for engine in made[2:]:
                engine.behave = lambda exchange: None
            asking = asyncio.create_task(ask(running.port, "POST", CHAT, chat()))
            await until(lambda: any(e.aboard for e in running.gateway.fleet.engines[2:]))
            assert len(running.gateway.companions) == 1
            asking.cancel()
            await until(lambda: balanced(running) and not running.gateway.companions)
        for engine in made:
            await engine.stop()

    run(test())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_where_the_last_engine_that_computes_prompts_is_spared_one_that_answers_does_both(kind):
    async def test():
        made = await four() if kind == "vllm" else (await pairs())[1]
        first, second = made[:2]
        first.behave = lambda exchange: Frail.die(first)
        told = (shared if kind == "vllm" else roles)(made, policy="round-robin", spare_last=True, **RARELY)
        async with Running(settings(made, **told)) as running:
            await until(lambda: all(e.state == "up" for e in running.gateway.fleet.engines))
            status, fields, _ = await ask(running.port, "POST", CHAT, chat())
            assert status == 200 and fields["x-assay-engine"].startswith("d") and "x-assay-prefill" not in fields
            assert first.dead and not second.asked
            assert (await ask(running.port, "POST", CHAT, chat("new")))[1]["x-assay-prefill"] == "p1"
            await until(lambda: balanced(running) and not running.gateway.companions)
        for engine in made:
            await engine.stop()

    run(test())
