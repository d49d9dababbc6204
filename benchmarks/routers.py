"""How each router is installed, started, asked and stopped. A name is a program and, after a colon, its policy."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PEERS = HERE.parent / ".cache" / "peers"
KEY = f"sk-{secrets.token_hex(24)}"  # of this run; sent to every router, though only LiteLLM asks for one
START = 120.0  # seconds that a program may take to its first answer
TICKS = os.sysconf("SC_CLK_TCK")


class UnavailableError(Exception):
    """A router that cannot be installed or does not start; its text is one line that says why."""


@dataclass(frozen=True)
class Launch:
    """What a start is told."""

    bin: Path
    policy: str
    engines: Sequence[str]
    port: int
    folder: Path


def assay(launch: Launch) -> list[str]:
    words = ["gateway", "--engines", ",".join(launch.engines), "--port", str(launch.port)]
    return [str(launch.bin / "assay"), *words, "--policy", launch.policy or "lmetric"]


def vllm_router(launch: Launch) -> list[str]:
    words = ["--host", "127.0.0.1", "--port", str(launch.port), "--worker-urls", *launch.engines]
    words += ["--policy", launch.policy or "round_robin", "--log-level", "warning"]
    return [str(launch.bin / "vllm-router"), *words, "--prometheus-port", str(free_port())]


def sglang_router(launch: Launch) -> list[str]:
    words = ["launch", "--host", "127.0.0.1", "--port", str(launch.port), "--worker-urls", *launch.engines]
    words += ["--policy", launch.policy or "round_robin", "--log-level", "warn"]
    return [str(launch.bin / "sglang-router"), *words, "--prometheus-port", str(free_port())]


def litellm(launch: Launch) -> list[str]:
    """One worker, no database, a key (it refuses to start without one); JSON is YAML enough for its file."""
    models = [
        {
            "model_name": "instant",
            "litellm_params": {"model": "openai/instant", "api_base": f"{url}/v1", "api_key": "-"},
        }
        for url in launch.engines
    ]
    settings = {"model_list": models, "router_settings": {"routing_strategy": launch.policy or "simple-shuffle"}}
    settings |= {"general_settings": {"master_key": KEY}}
    config = launch.folder / "litellm.yaml"
    config.write_text(json.dumps(settings))
    words = ["--config", str(config), "--host", "127.0.0.1", "--port", str(launch.port), "--telemetry", "False"]
    return [str(launch.bin / "litellm"), *words]


COMMANDS: dict[str, Callable[[Launch], list[str]]] = {
    "assay": assay,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "litellm": litellm,
}
# Log lines cost time, so every program writes warnings only; LiteLLM would fetch its price list from the network.
QUIET = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}


def environment(name: str) -> Path:
    """The folder of a program's commands: ours, or that of an environment of its own, made on first use."""
    if name == "assay":
        return Path(sys.executable).parent
    folder = PEERS / name
    if not (folder / "ready").exists():
        listed = HERE / "envs" / f"{name}.txt"
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(listed)]
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                said = (ended.stderr.strip() or ended.stdout.strip() or str(ended.returncode)).splitlines()
                raise UnavailableError(f"{name}: no environment: {said[-1][:300]}")
        (folder / "ready").touch()
    return folder / "bin"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass(frozen=True)
class Running:
    """A program that answers."""

    name: str
    urls: Sequence[str]
    processes: Sequence[subprocess.Popen[bytes]]

    def cpu(self) -> float:
        """Processor seconds so far of the processes and all they started."""
        groups = {process.pid for process in self.processes}
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[2]) in groups:
                ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS

    def stop(self) -> None:
        """The whole process groups; by force where asking is not enough."""
        for kind, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            for process in self.processes:
                try:
                    os.killpg(process.pid, kind)
                except ProcessLookupError:
                    continue
            until = time.monotonic() + patience
            for process in self.processes:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue


def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=os.environ | QUIET
        )


def engines(count: int, folder: Path) -> Running:
    """So many instant engines: what "direct" asks."""
    script = str(HERE / "peers" / "instant_engine.py")
    ports = [free_port() for _ in range(count)]
    logs = [folder / f"engine-{port}.log" for port in ports]
    processes = [spawn([sys.executable, script, str(port)], log) for port, log in zip(ports, logs, strict=True)]
    running = Running("direct", [f"http://127.0.0.1:{port}" for port in ports], processes)
    return ready(running, logs)


def router(name: str, urls: Sequence[str], folder: Path) -> Running:
    """The named program in front of the engines, after its first right answers."""
    program, _, policy = name.partition(":")
    port = free_port()
    command = COMMANDS[program](Launch(environment(program), policy, urls, port, folder))
    log = folder / f"{name.replace(':', '-')}.log"
    if not Path(command[0]).exists():
        raise UnavailableError(f"{name}: no command {command[0]}")
    return ready(Running(name, [f"http://127.0.0.1:{port}"], [spawn(command, log)]), [log])


def ready(running: Running, logs: Sequence[Path]) -> Running:
    """Waits for right answers at every address; stops the program where none come."""
    until = time.monotonic() + START
    try:
        for url, process, log in zip(running.urls, running.processes, logs, strict=True):
            while why := wrong(url):
                if process.poll() is not None or time.monotonic() > until:
                    said = log.read_text(errors="replace").strip().splitlines()
                    raise UnavailableError(f"{running.name}: {said[-1][:300] if said else why}")
                time.sleep(0.1)
    except BaseException:
        running.stop()
        raise
    return running


def wrong(url: str) -> str:
    """Why the answers at an address are not those of an engine; empty where they are."""
    try:
        whole, stream = post(url, stream=False), post(url, stream=True)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    if b"Eight words are enough" not in whole:
        return f"answer {whole[:200]!r}"
    found = len(re.findall(rb"@\d{19}@\d{19}", stream))
    return "" if found == 3 and b"data: [DONE]" in stream else f"stream {stream[:200]!r}"


def post(url: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": "[3 events, first 0.01, gap 0.01] Hello."}]
    body = json.dumps({"model": "instant", "messages": messages, "stream": stream, "max_tokens": 8})
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse().read()
    finally:
        connection.close()
