"""What of assay runs on this machine and can be looked at: who listens leaves a note, and the workbench reads it.

    $ASSAY_HOME/live/<kind>-<pid>

A note is worth nothing once its process is gone; whoever finds such a one removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from pathlib import Path

from assay.record.errors import AssayError
from assay.record.store import home, write_whole

KINDS = ("gateway", "watch")
_LONGEST = 300  # characters of a note


def announce(kind: str, url: str) -> None:
    """Leave a note until this process ends; where none can be written, it does without."""
    place = _folder() / f"{kind}-{os.getpid()}"
    with contextlib.suppress(AssayError, OSError):
        write_whole(place, url.encode())
        atexit.register(lambda: place.unlink(missing_ok=True))


def announced(kind: str) -> list[str]:
    """Where those of a kind that still live answer."""
    found = []
    for place in sorted(_folder().glob(f"{kind}-*")):
        with contextlib.suppress(OSError, ValueError):
            if _alive(int(place.name.rpartition("-")[2])):
                found.append(place.read_text(encoding="utf-8", errors="replace")[:_LONGEST])
            else:
                place.unlink(missing_ok=True)
    return found


def _folder() -> Path:
    return home() / "live"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
