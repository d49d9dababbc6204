"""Hundreds of streams for as long as one likes, while an operator does everything an operator does, and engines die.

Engines are killed and come back, stall, are added and drained, by request and by the settings; keys are revoked, the
settings are broken and mended, the log is moved away. Every stream ends once: whole, as the mock engine's text is known
beforehand, or in an error for which something that was done to its own engine is the reason. `python -m tests.live.soak
SECONDS [STREAMS [SEED]]` says every minute how it stands.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time

import numpy as np

from tests.live.chaos import MODEL, PATIENCE, Connection, Engine, judge, usage_of
from tests.live.conftest import Listening

TENANTS = ("red", "green", "blue", "grey")
LIMITS = "requests_per_minute = 1000000\ntokens_per_minute = 1000000000\nparallel = 100000\ntokens_per_day = 1000000000"
LEAST = 3  # engines that are always well
SILENCE = 10.0
BROKEN = (
    lambda text: text[: len(text) // 2] + '\n[[engine]\nurl = "http',
    lambda text: "nonsense = 1\n" + text,
    lambda text: 'policy = "no-such-policy"\n' + text,
    lambda text: text + '\n[[key]]\ntenant = "x"\nsha256 = "abc"',
    lambda text: text + '\n[[engine]]\nurl = "ftp://127.0.0.1:1"',
    lambda text: 'key_file = "there-is-none.toml"\n' + text,
    lambda text: 'canary = "vllm-v1=1000%"\n' + text,
    lambda text: 'port = "eight"\n' + text,
    lambda text: "\0\x01\x02",
    lambda text: 'log = "/no/such/folder/log"\n' + text,
)  # fmt: skip


@dataclass
class Soak:
    """What was done, and how requests ended."""

    streams: int
    seed: int
    speed: float
    ends: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # by the operator, and to engines
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes of the gateway, every few seconds
    files: list[int] = field(default_factory=list)
    seconds: float = 0.0
    asked: int = 0
    over: bool = False
    trouble: list[tuple[str, float, float]] = field(default_factory=list)  # which engine, from when, until when
    requests: dict[str, tuple[str, float, float]] = field(default_factory=dict)  # that did not end well: how, and when
    whole: set[str] = field(default_factory=set)
    overview: dict = field(default_factory=dict)
    running: float = 0.0  # requests that the limits of keys count as under way when all is over

    @property
    def growth(self) -> float:
        """Bytes that the gateway took more in the last quarter than in the second one, in the median."""
        quarter = len(self.memory) // 4
        return float(np.median(self.memory[-quarter:]) - np.median(self.memory[quarter : 2 * quarter]))


class House:
    """The gateway, its engines, its settings, and who does things to them."""

    def __init__(self, soak: Soak, folder: Path) -> None:
        self.soak, self.folder, self.draw = soak, folder, random.Random(soak.seed)
        self.options = ("--speed", str(soak.speed), "--kv-tokens", "65536")
        self.engines: list[Engine] = []  # all there ever were
        self.named: list[Engine] = []  # in the settings
        self.added: list[Engine] = []  # by request
        self.ill: set[int] = set()  # that are dead or stalled
        self.turns = 0  # of keys
        self.keys = {tenant: f"{tenant}-0" for tenant in TENANTS}
        self.revoked: list[str] = []  # for good
        self.changing: set[str] = set()  # keys that count until the settings are read
        self.log = folder / "access.jsonl"
        self.config = folder / "gateway.toml"
        self.spoiled = False
        for _ in range(5):
            self.named.append(self.new())
        self.write()
        self.gateway: Listening

    def new(self) -> Engine:
        engine = Engine(len(self.engines), self.options, faults=())
        self.engines.append(engine)
        engine.start()
        engine.wait()
        return engine

    def settings(self) -> str:
        lines = [
            'policy = "lmetric"', 'order = "fair"', 'shadow = "vllm-v1"', 'canary = "round-robin=10%"', "blocks = 4096",
            f'log = "{self.log}"', f'budgets = "{self.folder / "budgets.json"}"', f"silence = {SILENCE}",
            "first_byte = 30.0", "connect = 5.0", "probe = 1.0", "pause = 2.0", "start = 60.0", "wait = 20.0",
            "policy_time = 5.0", "inflight = 64",
        ]  # fmt: skip
        lines += [f'[[engine]]\nurl = "{e.url}"\nname = "e{e.number}"' for e in self.named]
        for tenant, key in (*self.keys.items(), ("operations", "operations")):
            more = "admin = true" if tenant == "operations" else LIMITS
            lines.append(f'[[key]]\ntenant = "{tenant}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}')
        return "\n".join(lines)

    def write(self, text: str | None = None) -> None:
        self.config.write_text(self.settings() if text is None else text)

    @property
    def well(self) -> list[Engine]:
        return [e for e in (*self.named, *self.added) if e.number not in self.ill]

    # -------------------------------------------------------------------------------------- what is done

    async def hang_up(self, word: str) -> None:
        """SIGHUP, until standard error says what came of it."""
        before = len(self.gateway.lines)
        self.gateway.process.send_signal(signal.SIGHUP)
        until = monotonic() + PATIENCE
        while monotonic() < until:
            await asyncio.sleep(0.05)
            lines = "".join(self.gateway.lines[before:])
            if "settings read again" in lines or "the settings stay as they are" in lines:
                if word not in lines or "Traceback" in lines:
                    self.soak.wrong.append(f"after SIGHUP '{word}' was expected, not: {lines}")
                return
        self.soak.wrong.append("SIGHUP was not answered")

    def request(self, method: str, path: str, body: bytes | None = None) -> int:
        request = urllib.request.Request(f"{self.gateway.url}{path}", body, method=method)
        request.add_header("authorization", "Bearer operations")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def overview(self) -> dict:
        return json.loads(self.page("/engines"))

    def page(self, path: str) -> bytes:
        request = urllib.request.Request(f"{self.gateway.url}{path}", headers={"x-api-key": "operations"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    async def kill(self) -> None:
        engine = self.draw.choice(self.well)
        self.ill.add(engine.number)
        began = time()
        engine.kill()
        await asyncio.sleep(self.draw.uniform(0.5, 6.0))
        engine.start()
        await asyncio.to_thread(engine.wait)
        self.ill.discard(engine.number)
        self.soak.trouble.append((f"e{engine.number}", began, time()))

    async def stall(self) -> None:
        engine = self.draw.choice(self.well)
        self.ill.add(engine.number)
        began = time()
        engine.signal(signal.SIGSTOP)
        await asyncio.sleep(self.draw.uniform(1.0, 1.5 * SILENCE))
        engine.signal(signal.SIGCONT)
        self.soak.trouble.append((f"e{engine.number}", began, time() + SILENCE))
        self.ill.discard(engine.number)

    async def add(self) -> None:
        engine = await asyncio.to_thread(self.new)
        body = json.dumps({"url": engine.url, "name": f"e{engine.number}"}).encode()
        if await asyncio.to_thread(self.request, "POST", "/engines", body) != 201:
            self.soak.wrong.append(f"e{engine.number} was not added")
        self.added.append(engine)
        if len(self.added) > 2:
            await self.drain(self.added[0])

    async def drain(self, engine: Engine | None = None) -> None:
        """By request; what it has it may end. One of the settings is in them again when it is gone."""
        engine = engine or self.draw.choice(self.well)
        if engine.number in self.ill:
            return
        self.ill.add(engine.number)  # nothing else is done to it now
        if await asyncio.to_thread(self.request, "DELETE", f"/engines/e{engine.number}") != 202:
            self.soak.wrong.append(f"e{engine.number} was not drained")
        await self.gone(engine)
        if engine in self.named:
            body = json.dumps({"url": engine.url, "name": f"e{engine.number}"}).encode()
            if await asyncio.to_thread(self.request, "POST", "/engines", body) != 201:
                self.soak.wrong.append(f"e{engine.number} did not come again")
        else:
            self.added.remove(engine)
            engine.kill()
        self.ill.discard(engine.number)

    async def gone(self, engine: Engine) -> None:
        until = monotonic() + PATIENCE
        while f"e{engine.number}" in {e["name"] for e in (await asyncio.to_thread(self.overview))["engines"]}:
            if monotonic() > until:
                self.soak.wrong.append(f"e{engine.number} is still there")
                return
            await asyncio.sleep(0.2)

    async def replace(self) -> None:
        """Another engine in the place of one, by the settings; those that were added by request go with them."""
        new = await asyncio.to_thread(self.new)
        while self.ill:
            await asyncio.sleep(0.1)
        old, left = self.named[0], list(self.added)
        self.named = [*self.named[1:], new]
        self.ill |= {e.number for e in (old, *left)}
        self.added = []
        self.write()
        await self.hang_up("settings read again")
        for engine in (old, *left):
            await self.gone(engine)
            engine.kill()
            self.ill.discard(engine.number)

    async def revoke(self) -> None:
        tenant = self.draw.choice(TENANTS)
        old = self.keys[tenant]
        self.turns += 1
        self.changing |= {old, f"{tenant}-{self.turns}"}
        self.keys[tenant] = f"{tenant}-{self.turns}"
        await self.same()
        self.write()
        await self.hang_up("settings read again")
        self.changing.clear()
        self.revoked.append(old)

    async def break_settings(self) -> None:
        self.write(BROKEN[self.soak.done["break"] % len(BROKEN)](self.settings()))
        await self.hang_up("the settings stay as they are")
        await asyncio.sleep(self.draw.uniform(0.0, 2.0))
        await self.same()
        self.write()
        await self.hang_up("settings read again")

    async def same(self) -> None:
        """Engines that came by request go when the settings are read again: they are drained before."""
        for engine in list(self.added):
            while engine.number in self.ill:
                await asyncio.sleep(0.1)
            await self.drain(engine)

    async def move_log(self) -> None:
        await self.same()
        self.log.rename(self.log.with_suffix(f".{self.soak.done['move']}"))
        await self.hang_up("settings read again")

    def rounds(self, names: tuple[str, ...]) -> Iterator[str]:
        """All of them in each round, in another order every time: what takes long is not done seldom."""
        while True:
            yield from self.draw.sample(names, len(names))

    async def work(self, pause: float) -> None:
        """One thing after the other; killing and stalling beside the rest."""
        turns: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "add": self.add, "drain": self.drain, "revoke": self.revoke, "break": self.break_settings,
            "replace": self.replace, "move": self.move_log,
        }  # fmt: skip
        harm: dict[str, Callable[[], Coroutine[None, None, None]]] = {"kill": self.kill, "stall": self.stall}
        doing: set[asyncio.Task[None]] = set()
        next_harm, next_turn = self.rounds(("kill", "stall", "kill")), self.rounds(tuple(turns))
        try:
            while not self.soak.over:
                await asyncio.sleep(pause * self.draw.uniform(0.5, 1.5))
                if len(self.well) > LEAST:
                    name = next(next_harm)
                    self.soak.done[name] += 1
                    doing.add(asyncio.create_task(harm[name]()))
                    await asyncio.sleep(0.0)
                name = next(next_turn)
                if name != "drain" or len(self.well) > LEAST:
                    await turns[name]()
                    self.soak.done[name] += 1
        except Exception as error:
            self.soak.wrong.append(f"the operator failed: {type(error).__name__}: {error}")
        await asyncio.gather(*doing)

    # ------------------------------------------------------------------------------------- who asks

    async def ask(self, port: int, number: int) -> None:
        """One client: a stream after the other."""
        soak, draw, connection = self.soak, random.Random(f"{self.soak.seed}/{number}"), Connection(port)
        await asyncio.sleep(draw.uniform(0.0, 2.0))
        while not soak.over:
            soak.asked += 1
            name, tokens = f"r{soak.asked}", draw.randrange(8, 128)
            old = draw.random() < 0.02 and bool(self.revoked)
            key = draw.choice(self.revoked) if old else self.keys[draw.choice(TENANTS)]
            changing = key in self.changing
            text = f"request {name} of {number}: " + "a common beginning, " * draw.randrange(40)
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens,
                    "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
            leaves = draw.random() < 0.03
            began = time()
            try:
                patience = draw.uniform(0.0, 3.0) if leaves else PATIENCE
                asking = connection.ask(json.dumps(body).encode(), name, f"authorization: Bearer {key}")
                status, answer = await asyncio.wait_for(asking, patience)
                end = judge(status, answer, True, text, tokens)
            except TimeoutError:
                connection.close()
                end = "left" if leaves else "forgotten"
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                connection.close()
                end = f"the connection broke: {type(error).__name__}"
            changing |= key in self.changing or (not old and key in self.revoked)
            if old and end not in ("error 401", "left"):
                soak.wrong.append(f"{name}: {key} is revoked, and yet {end}, asked at {began:.1f}")
            elif end == "error 401" and not (old or changing):
                soak.wrong.append(f"{name}: {key} was refused")
            elif end not in ("complete", "error event", "left") and not end.startswith("error "):
                soak.wrong.append(f"{name}: {end}")
            soak.ends[end] += 1
            if end == "complete":
                soak.whole.add(name)
            elif end not in ("error 401", "left"):
                soak.requests[name] = end, began, time()
        connection.close()


def rows(house: House) -> dict[str, list[dict]]:
    """The access log, with all files that were moved away."""
    logged: dict[str, list[dict]] = {}
    for path in sorted(house.folder.glob("access.*")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            logged.setdefault(row.get("request_id", row["id"]), []).append(row)
    return logged


def explain(house: House) -> None:
    """Every error has its reason: its own engine was in trouble then, or two were; and the log says the same."""
    soak, logged = house.soak, rows(house)
    for name in soak.whole:
        statuses = [row["status"] for row in logged.get(name, [])]
        if statuses != [200]:
            soak.wrong.append(f"{name} was whole, and the log has {statuses}")
    for name, (end, began, ended) in soak.requests.items():
        then = [engine for engine, since, until in soak.trouble if since <= ended and until >= began - 1.0]
        rows_of = logged.get(name, [])
        row = rows_of[0] if rows_of else {}
        if len(rows_of) != 1:
            soak.wrong.append(f"{name} ended in '{end}', and the log has {len(rows_of)} rows of it")
        elif end == "error event" and row["engine"] not in then:
            soak.wrong.append(f"{name}: {row['error']} on {row['engine']}, to which nothing was done")
        elif end == "error 502" and len(set(then)) < 2:
            soak.wrong.append(f"{name}: {row['error']}; only {then} were in trouble")
        elif end not in ("error event", "error 502"):
            soak.wrong.append(f"{name}: {end}: {row['error']}")


async def watch(house: House, every: float, say: Callable[[str], None] | None) -> None:
    pid, soak, began, last = house.gateway.process.pid, house.soak, monotonic(), monotonic()
    while True:
        memory, files = usage_of(pid)
        soak.memory.append(memory)
        soak.files.append(files)
        if say and monotonic() - last >= 60.0:
            last = monotonic()
            ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
            say(f"{last - began:.0f} s: {dict(soak.ends)} {dict(soak.done)} {memory >> 20} MiB, {files} files, "
                f"gateway {ticks / os.sysconf('SC_CLK_TCK'):.0f} s of processor; wrong: {soak.wrong[:3]}")  # fmt: skip
        await asyncio.sleep(every)


async def _run(house: House, seconds: float, pause: float, say: Callable[[str], None] | None) -> None:
    soak, port, began = house.soak, int(house.gateway.url.rsplit(":", 1)[1]), monotonic()
    beside = asyncio.create_task(watch(house, min(5.0, seconds / 40), say))
    operator = asyncio.create_task(house.work(pause))
    asking = [asyncio.create_task(house.ask(port, n)) for n in range(soak.streams)]
    while monotonic() - began < seconds and not operator.done():
        await asyncio.sleep(0.2)
    soak.over = True
    await asyncio.gather(*asking, operator)
    soak.seconds = monotonic() - began
    beside.cancel()
    until = monotonic() + PATIENCE
    while monotonic() < until:
        soak.overview = await asyncio.to_thread(house.overview)
        if not any(engine["aboard"] for engine in soak.overview["engines"]):
            break
        await asyncio.sleep(0.5)


def parallel(house: House) -> float:
    lines = house.page("/metrics").decode().splitlines()
    used = [line for line in lines if line.startswith("assay_gateway_key_used{") and 'of="parallel"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in used)


def run(
    seconds: float, streams: int = 200, seed: int = 0, *, speed: float = 0.1, pause: float = 4.0,
    say: Callable[[str], None] | None = None,
) -> Soak:  # fmt: skip
    """So many streams at a time for so long."""
    soak = Soak(streams, seed, speed)
    with tempfile.TemporaryDirectory() as folder:
        house = House(soak, Path(folder))
        try:
            house.gateway = Listening("gateway", "--config", str(house.config), "--port", "0")
            try:
                asyncio.run(_run(house, seconds, pause, say))
                soak.running = parallel(house)
            finally:
                house.gateway.stop()
            explain(house)
            if any("Traceback" in line for line in house.gateway.lines):
                soak.wrong.append("".join(house.gateway.lines)[-4000:])
        finally:
            for engine in house.engines:
                with suppress(ProcessLookupError):
                    engine.signal(signal.SIGCONT)
                engine.kill()
    return soak


if __name__ == "__main__":
    lasts, many, first = (*map(int, sys.argv[1:]), *(3600, 200, 0)[len(sys.argv) - 1 :])
    print(f"{lasts} s, {many} streams, seed {first}", flush=True)
    soak = run(float(lasts), many, first, say=lambda text: print(text, flush=True))
    print(f"{soak.seconds:.0f} s, {soak.asked} asked: {dict(soak.ends)} {dict(soak.done)}")
    every = max(len(soak.memory) // 30, 1)
    print(f"MiB: {[m >> 20 for m in soak.memory[::every]]}, growth {soak.growth / 2**20:.2f} MiB")
    print(f"files: {soak.files[::every]}")
    aboard = [engine["aboard"] for engine in soak.overview["engines"]]
    print(f"aboard {aboard}, queue {soak.overview['queue']}, parallel {soak.running}")
    print(f"{len(soak.wrong)} wrong", *soak.wrong[:50], sep="\n")
