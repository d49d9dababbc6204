"""Engines that are killed, stopped, slowed and restarted at random behind a gateway, and a client that checks.

Every request must end in exactly one of two ways: the complete answer, which is known beforehand because the mock
engine's text is a function of the prompt, or a clean error. All of it is real processes and real sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import msgspec

from assay.live.mock_text import answer_text, digest
from assay.live.tokens import ByteTokens, Message
from tests.live.conftest import Listening

MODEL = "qwen3-8b"
START = 180.0
PATIENCE = 120.0  # seconds after which a request counts as forgotten
MODELS = {"one": "one", "two": "two", "either": "one"}  # what is asked for in a mixed storm, and who may answer
MIXED = ("error:0.02:500", "spoil:0.02", "spoil:0.02:0")  # beside the others
FAULTS = ("error:0.02", "disconnect:0.02", "refuse:0.01", "hang:0.003", "slow:0.02:5")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Engine:
    """One mock engine on a port of its own, which comes back there after it was killed."""

    number: int
    options: tuple[str, ...]
    port: int = field(default_factory=free_port)
    faults: tuple[str, ...] = FAULTS
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        mixed = "--served-model-name" in self.options
        faults = [word for fault in (*self.faults, *(MIXED if mixed else ())) for word in ("--fault", fault)]
        command = [
            sys.executable,
            "-m",
            "assay.cli.main",
            "engine",
            "--model",
            MODEL,
            "--port",
            str(self.port),
            *faults,
        ]
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stopped = False

    def wait(self) -> None:
        """Until it listens: the first start on a machine compiles for long, and only what runs can be killed."""
        until = monotonic() + START
        while monotonic() < until and self.process is not None and self.process.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return
            sleep(0.05)
        raise TimeoutError(f"engine {self.number} does not listen")

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


async def havoc(engines: list[Engine], random: random.Random, log: Counter[str]) -> None:
    """At most all but one engine in trouble at a time: an engine is killed and restarted, or stopped and continued."""
    while True:
        await asyncio.sleep(random.uniform(0.1, 0.5))
        engine = random.choice(engines)
        dead = engine.process is None or engine.process.poll() is not None
        if dead:
            log["restarted"] += 1
            engine.start()
        elif engine.stopped:
            engine.signal(signal.SIGCONT)
            engine.stopped = False
        elif sum(e.stopped or e.process.poll() is not None for e in engines if e.process) < len(engines) - 1:
            if log["killed"] <= log["stopped"]:
                log["killed"] += 1
                engine.kill()
            else:
                log["stopped"] += 1
                engine.signal(signal.SIGSTOP)
                engine.stopped = True


@dataclass
class Report:
    """How requests ended."""

    ends: Counter[str] = field(default_factory=Counter)
    havoc: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes of the gateway, now and then
    files: list[int] = field(default_factory=list)
    files_left: int = 0  # when all clients had gone
    seconds: float = 0.0
    asked: int = 0
    overview: dict = field(default_factory=dict)
    by_name: dict[str, str] = field(default_factory=dict)  # how each request ended for its client


class Connection:
    """One kept-alive connection, on which nothing but the answers asked for may arrive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = False

    async def ask(self, body: bytes, name: str = "-", *lines: str) -> tuple[int, bytes]:
        """Status and body of one answer; ConnectionError where the connection broke instead."""
        if not self._open:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._open = True
        head = ("POST /v1/chat/completions HTTP/1.1", "host: x", f"x-request-id: {name}", *lines)
        self._writer.write("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
        answer_head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in answer_head[1:] if line)
        status = int(answer_head[0].split(" ")[1])
        if "content-length" in fields:
            answer = await self._reader.readexactly(int(fields["content-length"]))
        else:
            pieces = []
            while size := int((await self._reader.readline()).strip(), 16):
                pieces.append((await self._reader.readexactly(size + 2))[:-2])
            await self._reader.readline()
            answer = b"".join(pieces)
        if fields.get("connection") == "close":
            self.close()
        return status, answer

    def close(self) -> None:
        if self._open:
            self._writer.close()
        self._open = False


def expected(text: str, tokens: int) -> str:
    row = ByteTokens().chat([Message("user", text)])
    return answer_text(digest(0, row), tokens)


def judge(status: int, answer: bytes, stream: bool, text: str, tokens: int) -> str:
    """complete, clean error, or what is wrong."""
    truth = expected(text, tokens)
    if status != 200:
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            if msgspec.json.decode(answer)["error"]["message"]:
                return f"error {status}"
        return f"status {status} without an error: {answer[:80]!r}"
    if not stream:
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            said = msgspec.json.decode(answer)["choices"][0]["message"]["content"]
            return "complete" if said == truth else f"another answer: {said[:40]!r} for {truth[:40]!r}"
        return f"not an answer: {answer[:80]!r}"
    events = answer.split(b"\n\n")
    if events.pop() != b"":
        return f"half an event at the end: {answer[-80:]!r}"
    done = events and events[-1] == b"data: [DONE]"
    try:
        pieces = [msgspec.json.decode(event[6:]) for event in events if event != b"data: [DONE]"]
    except msgspec.DecodeError:
        return f"a broken event in {answer[-200:]!r}"
    failed = bool(pieces) and "error" in pieces[-1]
    said = "".join(p["choices"][0]["delta"].get("content") or "" for p in pieces if p.get("choices"))
    if done and not failed:
        return "complete" if said == truth else f"another answer: {said[:40]!r} for {truth[:40]!r}"
    if failed and truth.startswith(said):  # the gateway's has no [DONE] after it, an engine's own has
        return "error event"
    return f"neither complete nor an error: {answer[-120:]!r}"


@dataclass
class Work:
    """So many requests, and on until the storm has killed and stopped: a fast machine is done before it began."""

    requests: int
    report: Report
    over: bool = False
    mixed: bool = False

    def next(self) -> int | None:
        """The number of the next request; None where there is no more to do."""
        hit = self.report.havoc["killed"] and self.report.havoc["stopped"]
        if self.over or (self.report.asked >= self.requests and hit):
            return None
        self.report.asked += 1
        return self.report.asked


async def client(port: int, work: Work, seed: int, report: Report, cancel: float) -> None:
    """Ask until the work is done; now and then leave in the middle."""
    draw = random.Random(f"{seed}/{id(report)}/{report.asked}")
    connection = Connection(port)
    while (number := work.next()) is not None:
        stream, tokens = number % 2 == 0, 4 + number % 13
        text = f"request {number} of run {seed}: " + "a common beginning, " * (number % 40)
        model = list(MODELS)[number % 3] if work.mixed else MODEL
        ask = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens,
               "ignore_eos": True, "stream": stream}  # fmt: skip
        patience = draw.uniform(0.0, 0.05) if draw.random() < cancel else PATIENCE
        try:
            name = f"{seed}-{number}"
            status, answer = await asyncio.wait_for(connection.ask(json.dumps(ask).encode(), name), patience)
            end = judge(status, answer, stream, text, tokens)
            wrong = {"one": b'"model":"two"', "two": b'"model":"one"'}.get(model)
            if wrong and wrong in answer:
                end = f"the answer of another model than {model}"
        except TimeoutError:
            connection.close()
            connection = Connection(port)
            end = "left" if patience < PATIENCE else "forgotten"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            connection.close()
            connection = Connection(port)
            end = f"the connection broke: {type(error).__name__}"
        report.ends[end] += 1
        report.by_name[f"{seed}-{number}"] = end
        if end not in ("complete", "error event", "left") and not end.startswith("error "):
            report.wrong.append(f"request {number}: {end}")
    connection.close()


def usage_of(pid: int) -> tuple[int, int]:
    """Bytes of memory and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def watch(pid: int, report: Report) -> None:
    while True:
        memory, files = usage_of(pid)
        report.memory.append(memory)
        report.files.append(files)
        await asyncio.sleep(0.5)


def run(
    requests: int, *, seed: int = 0, count: int = 3, clients: int = 48, seconds: float = 1e9,
    options: tuple[str, ...] = ("--instant",), cancel: float = 0.03, log: Path | None = None, mixed: bool = False,
) -> Report:  # fmt: skip
    """Send so many requests through a gateway whose engines are in trouble."""
    draw = random.Random(seed)
    served = [("--served-model-name", ("one", "two")[number % 2]) if mixed else () for number in range(count)]
    engines = [Engine(number, (*options, *served[number])) for number in range(count)]
    folder = Path(tempfile.mkdtemp())
    config = folder / "gateway.toml"
    # Patient enough that a busy machine costs seconds, not answers; all of it less than a client's own patience.
    lines = ["first_byte = 10.0", "silence = 10.0", "deadline = 50.0", "probe = 0.3", "pause = 0.5", "failures = 3",
             "attempts = 3", "connect = 5.0", "wait = 40.0", "start = 40.0", "policy_time = 10.0",
             f'log = "{log}"' if log else ""]  # fmt: skip
    if mixed:
        lines.append('canary = "vllm-v1=20%"\n[[model]]\nname = "either"\nto = ["one", "two"]')
    lines += [f'[[engine]]\nurl = "{engine.url}"\nname = "e{engine.number}"' for engine in engines]
    config.write_text("\n".join(lines))
    report = Report()
    for engine in engines:
        engine.start()
    for engine in engines:
        engine.wait()
    gateway = Listening("gateway", "--config", str(config), "--port", "0")
    try:
        asyncio.run(_run(gateway, engines, requests, seed, clients, seconds, cancel, draw, report, mixed))
        report.overview = _overview(gateway)
    finally:
        for engine in engines:
            engine.signal(signal.SIGCONT)
            engine.kill()
        gateway.stop()
    first = next((number for number, line in enumerate(gateway.lines) if "Traceback" in line or "Error" in line), None)
    if first is not None:
        report.wrong.append("".join(gateway.lines[max(0, first - 2) : first + 40]))
    return report


async def come_and_go(url: str, engines: list[Engine], log: Counter[str]) -> None:
    """One engine after the other is drained, and joins again."""

    def tell(method: str, path: str, body: bytes | None = None) -> None:
        asked = urllib.request.Request(f"{url}/engines{path}", body, method=method)
        with suppress(urllib.error.URLError):
            urllib.request.urlopen(asked, timeout=10).close()

    for turn in itertools.count():
        engine = engines[turn % len(engines)]
        await asyncio.sleep(0.4)
        await asyncio.to_thread(tell, "DELETE", f"/e{engine.number}")
        await asyncio.sleep(0.4)
        body = json.dumps({"url": engine.url, "name": f"e{engine.number}"}).encode()
        await asyncio.to_thread(tell, "POST", "", body)
        log["joined"] += 1


async def _run(gateway, engines, requests, seed, clients, seconds, cancel, draw, report, mixed) -> None:
    port, pid = int(gateway.url.rsplit(":", 1)[1]), gateway.process.pid
    began = monotonic()
    beside = [asyncio.create_task(havoc(engines, draw, report.havoc)), asyncio.create_task(watch(pid, report))]
    if mixed:
        beside.append(asyncio.create_task(come_and_go(gateway.url, engines, report.havoc)))
    work = Work(requests, report, mixed=mixed)
    asking = [asyncio.create_task(client(port, work, seed, report, cancel)) for _ in range(clients)]
    while not all(task.done() for task in asking):
        await asyncio.sleep(0.2)
        work.over = monotonic() - began > seconds
    for task in beside:
        task.cancel()
    await asyncio.gather(*asking)
    report.seconds = monotonic() - began
    for engine in engines:  # all of them back, so that whatever is still under way can end
        engine.signal(signal.SIGCONT)
    await asyncio.sleep(3.0)
    memory, report.files_left = usage_of(pid)
    report.memory.append(memory)


def _overview(gateway: Listening) -> dict:
    with urllib.request.urlopen(f"{gateway.url}/engines", timeout=10) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    found = run(int(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(found.ends, found.havoc, f"{found.seconds:.0f} s")
    print(
        "memory",
        [m >> 20 for m in found.memory[:: max(len(found.memory) // 10, 1)]],
        "files",
        found.files[:: max(len(found.files) // 10, 1)],
    )
    print("aboard", [engine["aboard"] for engine in found.overview["engines"]], "queue", found.overview["queue"])
    print("\n".join(found.wrong[:20]))
