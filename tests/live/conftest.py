"""Processes of the command line that listen: what they print when they are ready says where."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

_URL = re.compile(r"assay \w+ on (https?://\S+):")
_PATIENCE = 240.0  # seconds: the first start may have to compile


class Listening:
    """`assay engine`, `assay gateway`, …: a process and its URL."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "assay.cli.main", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_PATIENCE) or not self.url:
            self.stop()
            raise RuntimeError(f"{' '.join(arguments)} did not start: {''.join(self.lines)}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = _URL.match(line)
            if found:
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        """End it as a service manager would; its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(15.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(5.0)
        return code


@pytest.fixture(scope="session")
def engine_process() -> Iterator[Callable[..., str]]:
    """`engine_process("--speed", "10")` is the URL of a mock engine; equal ones are started once."""
    pytest.importorskip("uvloop")
    running: dict[tuple[str, ...], Listening] = {}

    def start(*arguments: str) -> str:
        if arguments not in running:
            running[arguments] = Listening("engine", "--port", "0", *arguments)
        return running[arguments].url

    yield start
    for process in running.values():
        process.stop()
