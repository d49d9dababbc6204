"""The processes of a benchmark: whatever interrupts waiting for one, nothing keeps the session from ending."""

from __future__ import annotations

import threading

import pytest

from assay.observe.bench import children, processes


def test_an_interruption_while_the_clock_is_set_leaves_no_clock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[threading.Timer] = []

    class Interrupted(threading.Timer):
        def start(self) -> None:
            super().start()
            clocks.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Timer", Interrupted)
    process = children.start(["sleep", "300"])
    try:
        with pytest.raises(KeyboardInterrupt):
            processes._wait(process, 300.0)
    finally:
        children.end(process)
    (clock,) = clocks
    clock.join(120.0)
    assert not clock.is_alive()
    assert clock.daemon  # where even cancelling is cut short, nobody waits for it
