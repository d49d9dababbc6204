"""Run a mock engine: listen, answer, stop in good order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable

from assay.live.mock_board import Settings, warm_up
from assay.live.mock_engine import Engine
from assay.live.server import Limits, Server
from assay.record.errors import AssayError

GRACE = 5.0  # seconds that answers under way have when it is told to stop


class Running:
    """An engine that listens. `async with Running(settings, "127.0.0.1", 0) as running: running.port`."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        self.settings, self.host, self.port = settings, host, port
        self.engine: Engine
        self.server: Server

    async def __aenter__(self) -> Running:
        self.engine = Engine(self.settings)
        self.server = Server(self.engine.answer, Limits())
        try:
            self.port = await self.server.start(self.host, self.port)
        except OSError as error:
            self.engine.close()
            raise AssayError(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, grace: float = 0.0) -> None:
        """Take no more, let what runs end."""
        if self.engine.draining:
            return
        self.engine.draining = True
        await self.server.drain(grace)
        self.engine.close()


async def run(settings: Settings, host: str, port: int, ready: Callable[[Running], None]) -> None:
    """Serve until told to stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    warm_up(settings)
    running = Running(settings, host, port)
    async with running:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        # A collection that walks over all compiled code takes longer than many a token.
        gc.collect()
        gc.freeze()
        ready(running)
        await stop.wait()
        with contextlib.suppress(ValueError):
            for number in (signal.SIGTERM, signal.SIGINT):  # a second one does not wait
                loop.remove_signal_handler(number)
        await running.stop(GRACE)
