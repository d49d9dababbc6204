"""One gateway for a file of hostile tests, and silence in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("h11")
pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from tests.live.hostile import Live


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Neither warnings nor tracebacks, whatever happens."""
    yield
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(head_time=0.4, body_time=0.4) as live:
        yield live


@pytest.fixture
def fresh(live: Live) -> Live:
    live.forget()
    return live
