"""Run a gateway: listen, look after the engines, stop in good order."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from assay.live.gateway import Gateway
from assay.live.quotas import EVERY
from assay.live.recent import STEP
from assay.live.relay import RETRY
from assay.live.reload import renew
from assay.live.roster import Roster
from assay.live.server import Server
from assay.live.settings import Settings
from assay.record.errors import AssayError, BadInput
from assay.record.store import home
from assay.serving.engine import components
from assay.sim import pages, turns

_SWEEP = 0.1  # seconds between two looks for requests that take too long
_FLUSH = 0.25  # seconds a log line waits at most


class Running:
    """A gateway that listens. `async with Running(settings) as running: running.port`."""

    def __init__(self, settings: Settings) -> None:
        self.gateway = Gateway(settings)
        refused = self.gateway.counters.refused
        self.server = Server(self.gateway.answer, settings.limits, lambda status: refused.update((status,)))
        self.server.outbox = self.gateway.outbox  # to clients and engines alike
        self.port = 0
        self._ticking: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> Settings:
        """Those that count now."""
        return self.gateway.settings

    async def __aenter__(self) -> Running:
        gateway, settings = self.gateway, self.settings
        gateway.warm()
        if settings.budgets or settings.port:
            gateway.quotas.path = Path(settings.budgets or home() / "gateway" / f"budgets-{settings.port}.json")
        if settings.budgets:  # the other one has the port in its name
            gateway.quotas.hold()
        gateway.quotas.load()
        gateway.roster = Roster(gateway)
        for engine in settings.engine:
            if gateway.roster.add(engine) is None:
                raise BadInput(f"engine {engine.url} is named twice")
        if settings.engine:
            _check_needs(gateway)
        gateway.roster.check_sources(settings.discover)
        gateway.roster.discover(settings.discover)
        if settings.otel:
            from assay.live.spans import Spans

            gateway.spans = Spans(settings.otel)
        gateway.placing.warm()
        await gateway.roster.first_look(settings.connect)
        gateway.recent.look(gateway.fleet.engines, gateway.now())
        try:
            self.port = await self.server.start(settings.host, settings.port, tls_context(settings))
        except OSError as error:
            gateway.roster.close()
            raise AssayError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
        self._every(_SWEEP, gateway.sweep)
        self._every(STEP, lambda: gateway.recent.tick(gateway.fleet.engines, gateway.now()))
        self._every(_FLUSH, lambda: gateway.log.flush())  # another log may take its place
        loop = asyncio.get_running_loop()
        self._every(EVERY, lambda: gateway.quotas.note(lambda do: loop.run_in_executor(None, do)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> int:
        """Take no more, let what runs end; the number of clients that had to be cut off."""
        gateway = self.gateway
        gateway.draining = True
        self.server.draining = True
        for relay in (*gateway.placing.queue, *gateway.placing.held.values()):
            relay.give_up(503, "the gateway is about to stop", RETRY)
        grace = self.settings.grace
        ending = asyncio.get_running_loop().call_later(max(grace - 1.0, 0.5 * grace), self._give_up)
        cut = await self.server.drain(grace)
        ending.cancel()
        for task in self._ticking:
            task.cancel()
        gateway.roster.close()
        gateway.log.close()
        gateway.quotas.note()
        gateway.quotas.release()
        if gateway.spans is not None:
            gateway.spans.close()
        return cut

    def hurry(self) -> None:
        """End what still runs in errors, and wait for no client: where it is being stopped, that is over now."""
        self._give_up()
        self.server.hurry()

    def _give_up(self) -> None:
        """The grace is nearly over: end what still runs in errors that clients can read."""
        for relay in list(self.gateway.relays):
            relay.give_up(503, "the gateway stops")

    def _every(self, seconds: float, do: Callable[[], None]) -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(seconds)
                do()

        self._ticking.add(asyncio.get_running_loop().create_task(tick()))


def _check_needs(gateway: Gateway) -> None:
    """A policy that cannot work without a signal is refused, with what would supply it."""
    routers = {gateway.settings.policy: gateway.placing.router}
    if gateway.shadow is not None:
        routers[gateway.settings.shadow] = gateway.shadow.router
    for name, router in routers.items():
        if components.missing(router, gateway.fleet):
            gateway.roster.close()
            raise BadInput(
                f"policy '{name}' wants to know the engines' step times: give every [[engine]] of --config its layout, "
                'such as layout = "h200:qwen3-32b"'
            )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The certificate that clients see, where there is one."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        names = f"{Path(settings.tls_cert).name}, {Path(settings.tls_key).name}"
        raise BadInput(f"cannot use the TLS certificate ({names}): {error.strerror or error}") from error
    return context


async def run(
    settings: Settings, ready: Callable[[Running], None], reread: Callable[[], Settings] | None = None
) -> int:
    """Serve until told to stop; SIGHUP reads the settings anew. The number of clients cut off at the end."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running = Running(settings)
    guard = running.gateway.placing.guard
    if threading.current_thread() is threading.main_thread():
        guard.install()
    async with running:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if reread is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda: renew(running, reread))
        turns.ask()
        gc.collect()
        gc.freeze()  # what was imported stays: looking through it again and again would hold up answers
        gc.set_threshold(20_000, 20, 20)  # requests leave no cycles behind; there is little to find
        pages.gather()
        ready(running)
        await stop.wait()
        for number in (signal.SIGTERM, signal.SIGINT):  # a second one does not wait
            loop.add_signal_handler(number, running.hurry)
        cut = await running.stop()
        guard.remove()
        return cut
