"""Start a job with a watcher's address in its environment, and pass its output on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from assay.live.monitor import MARK, VARIABLE
from assay.record.errors import BadInput

GRACE = 10.0  # seconds that a job has to end when it is asked to
_LONGEST = 8192  # bytes of a line that is passed on at once


class Job:
    """A command that runs while it is watched. Its exit code is what matters in the end, ours does not change it."""

    def __init__(
        self, command: Sequence[str], place: str, tell: Callable[[str], None] | None = None, output: int | None = None
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments.
            place: what `ASSAY_WATCH` shall be.
            tell: gets the job's output line by line; otherwise the job writes where this process does.
            output: a file descriptor for the job's standard output, where nobody is told.
        """
        out: int | None = subprocess.PIPE if tell else output
        environment = {name: value for name, value in os.environ.items() if name != MARK} | {VARIABLE: place}
        try:
            self._process = subprocess.Popen(
                list(command),
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT if tell else None,
            )
        except OSError as error:
            raise BadInput(f"cannot start '{command[0]}': {(error.strerror or '').lower()}") from error
        self._reader: threading.Thread | None = None
        if tell is not None and self._process.stdout is not None:
            self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout, tell), daemon=True)
            self._reader.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def forward(self, number: int, _: Any = None) -> None:
        """Send it a signal that was meant for it."""
        if self.running:
            self._process.send_signal(number)

    def code(self) -> int:
        """Its exit code as a shell gives it; waits for it."""
        code = self._process.wait()
        if self._reader is not None:
            self._reader.join(1.0)
        return 128 - code if code < 0 else code

    def end(self) -> None:
        """Do not leave it behind, nor its ranks: ask, then force. A frozen rank hears no launcher that asks it."""
        if not self.running:
            return
        ranks = _descendants(self._process.pid)
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        for pid, began in ranks:
            if _began(pid) == began:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _about(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: the state, the parent, ...; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(") ")[2].split()
    except OSError:
        return []


def _began(pid: int) -> str:
    """When a process began: with its number it is that process, and no later one."""
    fields = _about(pid)
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _descendants(pid: int) -> list[tuple[int, str]]:
    """Children, their children and so on, with when they began; none where the system does not tell."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _about(int(folder.name)):
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        left += children
        found += [(child, _began(child)) for child in children]
    return found


def _pass_on(stream: IO[bytes], tell: Callable[[str], None]) -> None:
    with stream:
        while line := stream.readline(_LONGEST):
            tell(line.decode(errors="replace").rstrip("\r\n"))
