"""Real engines as processes: started on a free port, killed, started again."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.live.real import install

START = 900.0  # seconds: vLLM imports torch in three processes, and machines may be busy
MODEL = "qwen3-0.6b"  # what the tiny model calls itself: a mock engine, which takes over from it, wants a known name


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Real:
    """One engine. Its ports stay its own over restarts."""

    kind = ""
    metric = ""  # how many requests it has, in its metrics

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def settings(self) -> dict[str, object]:
        """As an `[[engine]]` names it."""
        return {"url": self.url, "name": self.kind}

    def start(self) -> None:
        """Until it answers."""
        more = {
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "XDG_CACHE_HOME": str(install.HOME / "cache"),
        }  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
        with (self.folder / f"{self.kind}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        until = time.monotonic() + START
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.kind} did not start: {self.log()[-2000:]}")
            time.sleep(0.25)

    def log(self) -> str:
        return (self.folder / f"{self.kind}.log").read_text(errors="replace")

    def healthy(self) -> bool:
        return self.get("/health")[0] == 200

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def busy(self) -> float:
        """Requests that it computes."""
        _, page = self.get("/metrics")
        lines = [line.split() for line in page.decode().splitlines() if line.startswith(self.metric)]
        return sum(float(line[-1]) for line in lines)

    def cores(self) -> list[int]:
        """The processes that compute: without them it is an empty shell."""
        assert self.process is not None
        return [self.process.pid]

    def signal(self, number: signal.Signals) -> None:
        """To what computes."""
        for pid in self.cores():
            os.kill(pid, number)

    def stop(self) -> None:
        """All of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            self.process = None


class LlamaCpp(Real):
    """llama-server."""

    kind, metric = "llama.cpp", "llamacpp:requests_processing"

    def command(self) -> list[str]:
        words = ["--model", str(install.GGUF), "--alias", MODEL, "--host", "127.0.0.1", "--port", str(self.port)]
        return [str(install.SERVER), *words, "--metrics", "--jinja", "-np", "4", "-c", "16384", "-t", "1"]


class Vllm(Real):
    """vLLM on a CPU, with KV events."""

    kind, metric = "vllm", "vllm:num_requests_running"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))

    def settings(self) -> dict[str, object]:
        return super().settings() | {"events": self.events, "replay": self.replay}

    def command(self) -> list[str]:
        told = f'"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "{self.events}"'
        told += f', "replay_endpoint": "{self.replay}"'
        words = ["serve", str(install.CHECKPOINT), "--served-model-name", MODEL, "--host", "127.0.0.1"]
        words += ["--port", str(self.port), "--max-model-len", "4096", "--max-num-seqs", "8", "--dtype", "float32"]
        words += [
            "--enforce-eager",
            "--block-size",
            "32",
            "--enable-prompt-tokens-details",
            "--enable-auto-tool-choice",
        ]
        words += ["--tool-call-parser", "hermes", "--kv-events-config", f"{{{told}}}"]
        return [str(install.PYTHON.with_name("vllm")), *words]

    def cores(self) -> list[int]:
        """The engine core and its worker: children of the process that answers."""
        assert self.process is not None
        found = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in found.splitlines()]
        ours = [row for row in rows if len(row) == 3 and int(row[1]) == self.process.pid]
        return [int(row[0]) for row in ours if row[2].startswith("VLLM::")]


KINDS = {"llama.cpp": (LlamaCpp, install.SERVER), "vllm": (Vllm, install.CHECKPOINT)}
