"""SIGHUP: all of the file counts anew, but for what is named; a policy that fails or blocks harms nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("uvloop")

from assay.live import serve
from assay.live.settings import read_file
from tests.live.conftest import Listening
from tests.live.fake_engines import Client, ask, balanced, chat, engines, run, until

CHAT = "/v1/chat/completions"


def key(name: str, tenant: str = "acme", **more: str) -> str:
    lines = [f'tenant = "{tenant}"', f'sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"']
    return "\n".join(["[[key]]", *lines, *(f'{k} = "{v}"' for k, v in more.items())])


class Config:
    """A settings file that changes."""

    def __init__(self, path: Path, made: list) -> None:
        self.path, self._made = path, made

    def write(self, *lines: str, tables: tuple[str, ...] = (), port: int = 0) -> None:
        quick = [f"port = {port}", "probe = 0.05", "scrape = 0.05", "wait = 0.5", "start = 5.0", "grace = 1.0"]
        named = [f'[[engine]]\nurl = "{engine.url}"\nname = "{engine.name}"' for engine in self._made]
        self.path.write_text("\n".join([*quick, *lines, *named, *tables]))


async def reloaded(started: list) -> None:
    """Send the signal, and let its handler run."""
    done = asyncio.Event()
    os.kill(os.getpid(), signal.SIGHUP)
    asyncio.get_running_loop().call_later(0.2, done.set)
    await done.wait()


def test_keys_policy_limits_and_log_are_read_again_and_what_is_not_is_named(tmp_path, capsys):
    async def test():
        async with engines("a", "b") as made:
            config = Config(tmp_path / "gateway.toml", made)
            config.write(f'log = "{tmp_path / "one"}"', 'policy = "lmetric"', tables=(key("old"), key("stays")))
            started: list = []
            task = asyncio.create_task(
                serve.run(read_file(config.path), started.append, lambda: read_file(config.path))
            )
            await until(lambda: started)
            port, gateway = started[0].port, started[0].gateway
            async with Client(port) as kept:  # a connection that shows a key that is revoked meanwhile
                assert (await kept.ask("POST", CHAT, chat(), authorization="Bearer old"))[0] == 200
                assert (await kept.ask("POST", CHAT, chat(), authorization="Bearer new"))[0] == 401
                config.write(
                    f'log = "{tmp_path / "two"}"', 'policy = "round-robin"', "inflight = 7", "queue = 5",
                    "deadline = 9.0", "block = 32", tables=(key("new", tier="gold"), key("stays")), port=9999,
                )  # fmt: skip
                await reloaded(started)
                assert (await kept.ask("POST", CHAT, chat(), authorization="Bearer old"))[0] == 401
                assert (await kept.ask("POST", CHAT, chat(), authorization="Bearer new"))[0] == 200
            found = {(await ask(port, "POST", CHAT, chat(), x_api_key="new"))[1]["x-assay-engine"] for _ in range(4)}
            assert found == {"a", "b"}  # by turns: lmetric would have gone where the prompt is cached
            assert {e.limit for e in gateway.fleet.engines} == {e.room for e in gateway.fleet.engines} == {7}
            assert gateway.placing.queue.limit == 5 and gateway.settings.deadline == 9.0
            assert gateway.settings.port == 0 and gateway.index.block == 16
            told = capsys.readouterr().err
            assert "needs a restart: port, block" in told and "key" in told and told.count("\n") == 1
            config.write('policy = "nonsense"', tables=(key("other"),))
            await reloaded(started)
            assert "nonsense" in capsys.readouterr().err
            assert (await ask(port, "POST", CHAT, chat(), x_api_key="new"))[0] == 200  # nothing has changed
            assert balanced(started[0])
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 120)
        assert len((tmp_path / "one").read_text().splitlines()) == 1
        lines = [json.loads(line) for line in (tmp_path / "two").read_text().splitlines()]
        assert len(lines) == 6 and lines[0]["tier"] == "gold"

    run(test())


def test_who_waits_for_a_policy_that_chooses_from_a_pool_is_not_lost_with_it(tmp_path):
    async def test():
        async with engines("a") as made:
            config = Config(tmp_path / "gateway.toml", made)
            config.write('policy = "balanceroute"', "inflight = 1")
            started: list = []
            task = asyncio.create_task(
                serve.run(read_file(config.path), started.append, lambda: read_file(config.path))
            )
            await until(lambda: started)
            placing, held = started[0].gateway.placing, []
            made[0].behave = held.append
            asking = [asyncio.create_task(ask(started[0].port, "POST", CHAT, chat(str(n)))) for n in range(3)]
            await until(lambda: len(placing.held) == 2)
            config.write('policy = "vllm-v1"', "inflight = 1")
            await reloaded(started)
            assert not placing.held and len(placing.queue) == 2
            while not all(asked.done() for asked in asking):
                while held:
                    made[0].answer(held.pop())
                await asyncio.sleep(0.01)
            assert [asked.result()[0] for asked in asking] == [200] * 3 and balanced(started[0])
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 120)

    run(test())


def test_what_is_said_of_an_engine_that_is_there_counts_from_the_reload_on(tmp_path, capsys):
    """Its name, its role, where it tells of its cache: without a restart, and without losing what it has on board."""
    zmq = pytest.importorskip("zmq")

    def publisher() -> tuple[object, str]:
        socket = zmq.Context.instance().socket(zmq.PUB)
        return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    async def test():
        (one, first), (two, second) = publisher(), publisher()
        async with engines("a", "b") as made:
            path = tmp_path / "gateway.toml"

            def write(*more: str) -> None:
                quick = ["port = 0", "probe = 0.05", "scrape = 0.05", 'policy = "round-robin"']
                path.write_text("\n".join([*quick, f'[[engine]]\nurl = "{made[1].url}"\nname = "b"',
                                           f'[[engine]]\nurl = "{made[0].url}"', *more]))  # fmt: skip

            write('name = "a"', f'events = "{first}"')
            started: list = []
            task = asyncio.create_task(serve.run(read_file(path), started.append, lambda: read_file(path)))
            await until(lambda: started)
            port, gateway = started[0].port, started[0].gateway
            engine = next(e for e in gateway.fleet.engines if e.name == "a")
            subscribers = gateway.roster._subscribers
            await until(lambda: subscribers[engine]._connected)
            held: list = []
            made[0].behave = held.append
            asking = [asyncio.create_task(ask(port, "POST", CHAT, chat(str(n)))) for n in range(2)]
            await until(lambda: held)  # one of them is on board, and stays there
            write('name = "left"', 'role = "decode"', f'events = "{second}"')
            await reloaded(started)
            await until(lambda: engine.name == "left")
            assert engine.role == "decode" and engine.events == second and engine.aboard == 1
            await until(lambda: subscribers[engine]._connected and subscribers[engine].problem == "")
            assert "engine" in capsys.readouterr().err
            made[0].answer(held[0])
            assert {(await asked)[0] for asked in asking} == {200}
            made[0].behave = made[0].answer
            found = {(await ask(port, "POST", CHAT, chat()))[1]["x-assay-engine"] for _ in range(4)}
            assert found == {"left", "b"} and balanced(started[0])
            write('name = "left"', 'events = "nonsense"')  # cannot be: nothing changes
            await reloaded(started)
            assert engine.role == "decode" and engine.events == second and "nonsense" in capsys.readouterr().err
            write('name = "left"')
            await reloaded(started)
            await until(lambda: engine not in subscribers and engine.role == engine.events == "")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 120)
        one.close(0)
        two.close(0)

    run(test())


POLICY = """
import time

class Odd:
    def route(self, request, fleet):
        if "raise" in request.text:
            raise ValueError("no idea")
        if "sleep" in request.text:
            time.sleep(3600)
        while "spin" in request.text:
            pass
        return 0
"""


@pytest.mark.alone
@pytest.mark.parametrize("how", ["raise", "sleep", "spin"])
def test_a_policy_that_raises_or_blocks_holds_up_nobody_and_says_so_once(how, tmp_path):
    """With real processes: where the policy's time is measured, so is the time of everything else."""
    (tmp_path / "odd.py").write_text(POLICY)
    (tmp_path / "gateway.toml").write_text("policy_time = 1.5\n")

    async def test(url: str, lines: list[str]) -> None:
        port = int(url.rsplit(":", 1)[1])
        assert (await ask(port, "POST", CHAT, chat("well", model="qwen3-8b", max_tokens=2)))[0] == 200
        began = monotonic()
        asking = [ask(port, "POST", CHAT, chat(how, model="qwen3-8b", max_tokens=2)) for _ in range(6)]
        health = ask(port, "GET", "/health")
        *answers, healthy = await asyncio.gather(*asking, health)
        assert [status for status, *_ in answers] == [200] * 6 and healthy[0] == 200
        assert monotonic() - began < 60.0  # three times 1.5 s, and then it is not asked; generous for any machine
        page = json.loads((await ask(port, "GET", "/engines"))[2])
        assert page["policy_errors"] == 6
        await until(lambda: any("a component failed on request" in line for line in lines))

    engine = Listening("engine", "--port", "0", "--model", "qwen3-8b", "--instant")
    gateway = None
    try:
        gateway = Listening(
            "gateway", "--engines", engine.url, "--port", "0", "--policy", f"{tmp_path}/odd.py:Odd",
            "--config", str(tmp_path / "gateway.toml"),
        )  # fmt: skip
        asyncio.run(asyncio.wait_for(test(gateway.url, gateway.lines), 120))
    finally:
        engine.stop()
        if gateway is not None:
            assert gateway.stop() == 0
    told = [line for line in gateway.lines if "failed" in line]
    assert len(told) == 1 and "model 'qwen3-8b'" in told[0]
    assert ("no idea" if how == "raise" else "longer than 1.5 s") in told[0]
