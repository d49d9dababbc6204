"""Processes forked from one that has loaded what they import, and nothing else.

The standard library keeps one such server a process: whoever asks first says what it loads, and everybody later
inherits that. Here every list of imports has a server of its own, for processes whose memory is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

_SERVERS: dict[tuple[str, ...], Any] = {}
_LOCK = threading.Lock()


def start_forked(process: Any, imports: Sequence[str]) -> None:
    """Start a process of the `forkserver` context from the server that has loaded just these modules."""
    from multiprocessing import forkserver  # not everywhere

    with _LOCK:
        key = tuple(imports)
        if key not in _SERVERS:
            _SERVERS[key] = forkserver.ForkServer()
            _SERVERS[key].set_forkserver_preload(list(imports))
        usual = forkserver.connect_to_new_process
        forkserver.connect_to_new_process = _SERVERS[key].connect_to_new_process
        try:
            process.start()
        finally:
            forkserver.connect_to_new_process = usual
