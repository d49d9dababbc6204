"""Memory that stays is gathered into large pages, where the system can; nothing in it changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from assay.sim import pages

PROGRAM = """
import mmap
from assay.sim import pages

room = mmap.mmap(-1, 4 * pages.LARGE, flags=mmap.MAP_PRIVATE)
for at in range(0, len(room), 4096):
    room[at : at + 8] = at.to_bytes(8, "little")
gathered = pages.gather()
assert all(room[at : at + 8] == at.to_bytes(8, "little") for at in range(0, len(room), 4096))
print(gathered)
"""


def test_what_lies_in_gathered_memory_is_still_there() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert int(said) % pages.LARGE == 0
    if int(said) == 0:
        pytest.skip("this system gathers no pages")
    assert int(said) >= 3 * pages.LARGE  # the ends of the room may not be whole pages


def test_memory_of_files_and_of_several_processes_is_left_alone() -> None:
    lines = [
        "7f0000000000-7f0000800000 rw-p 00000000 00:00 0",
        "7f0001000000-7f0001800000 rw-s 00000000 00:01 9 /dev/zero (deleted)",
        "7f0002000000-7f0002800000 rw-p 00000000 08:01 9 /usr/lib/a name",
        "7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0 [stack]",
    ]
    assert pages.private(lines) == [(0x7F0000000000, 0x7F0000800000)]


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert pages.gather() == 0
