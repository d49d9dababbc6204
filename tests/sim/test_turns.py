"""Short turns on the processor are asked for, where the system knows such a thing."""

from __future__ import annotations

import ctypes
import platform
import threading

import pytest

from assay.sim import turns

READS = {"x86_64": 315, "aarch64": 275}  # sched_getattr


def asked(turn: int = turns.TURN) -> tuple[bool, int]:
    """In a thread of its own, which nobody else is: whether the system understood, and the turn it has then."""
    found: list[tuple[bool, int]] = []

    def ask() -> None:
        understood, room = turns.ask(turn), ctypes.create_string_buffer(turns._ATTRIBUTES.size)
        number = READS.get(platform.machine())
        if number is not None and ctypes.CDLL(None).syscall(number, 0, room, len(room), 0) == 0:
            found.append((understood, turns._ATTRIBUTES.unpack(room.raw)[5]))
        else:
            found.append((understood, -1))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def test_a_system_that_understands_gives_short_turns() -> None:
    understood, turn = asked()
    version = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    if not understood or turn < 0 or version < (6, 12):
        pytest.skip("needs Linux 6.12")
    assert turn == turns.TURN
    assert asked(turns.USUAL)[1] > turns.TURN


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert not turns.ask()
