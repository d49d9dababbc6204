"""Engines that come and go by themselves: from a watched file, from DNS, from Kubernetes.

Each source says which engines there are now, again and again. What it names and is not here is added, what it named
before and does not name any more is drained. A source that cannot be read changes nothing, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from assay.live.settings import DiscoverSettings, EngineSettings
from assay.live.upstream import Address
from assay.record.errors import AssayError, BadInput

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

Found = tuple[EngineSettings, ...]
_EVERY = 60.0  # seconds between two complaints about a source
_AGAIN = (0.5, 10.0)  # seconds until a source that failed is read again: at first, at most


def source(settings: DiscoverSettings) -> Callable[[], AsyncIterator[Found]]:
    """What reads a source: one set of engines after the other. BadInput where there is no such source."""
    kind, _, rest = settings.source.partition(":")
    if kind == "file" and rest:
        from assay.live.discovery.files import watch

        return lambda: watch(rest, settings)
    if kind == "srv" and rest:
        from assay.live.discovery.srv import resolve

        return lambda: resolve(rest, settings)
    if kind == "kubernetes" and rest:
        from assay.live.discovery.kubernetes import slices

        return lambda: slices(rest, settings)
    raise BadInput(
        f"discover: '{settings.source}': write file:/etc/assay/engines.toml, srv:_vllm._tcp.example.org "
        "or kubernetes:app=vllm"
    )


def engine(settings: DiscoverSettings, host: str, port: int, name: str = "") -> EngineSettings:
    """One engine of a source, with all that the settings say of its engines."""
    shown = f"[{host}]" if ":" in host else host
    return EngineSettings(
        f"{settings.scheme}://{shown}:{port}", name, settings.key, settings.tp, settings.layout,
        settings.events.replace("{host}", shown), settings.replay.replace("{host}", shown), settings.limit,
        settings.role,
        settings.bootstrap,
    )  # fmt: skip


class Source:
    """One source, read as long as the gateway runs."""

    def __init__(self, gateway: Gateway, settings: DiscoverSettings) -> None:
        self.settings, self._gateway = settings, gateway
        self._read = source(settings)
        self.problem = ""
        self.engines = 0
        self._first = asyncio.Event()
        self._told = float("-inf")
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def first(self, seconds: float) -> None:
        """Wait until it was read once, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._first.wait()

    def close(self) -> None:
        """Read it no more; its engines stay."""
        self._task.cancel()

    async def _follow(self) -> None:
        pause = _AGAIN[0]
        while True:
            try:
                async for found in self._read():
                    self._gateway.roster.renew(found, self.settings.source)
                    self.problem, self.engines, pause = "", len(found), _AGAIN[0]
                    self._first.set()
            except (AssayError, OSError, ValueError) as error:
                self._complain(str(error) or type(error).__name__)
            except Exception as error:  # whatever a source says must not end the reading
                self._complain(f"{type(error).__name__}: {error}")
            self._first.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN[1])

    def _complain(self, why: str) -> None:
        self.problem = why
        now = self._gateway.now()
        if now - self._told >= _EVERY:
            self._told = now
            print(f"assay: {self.settings.source}: {why}; its engines stay as they are", file=sys.stderr, flush=True)

    def report(self) -> dict[str, Any]:
        """How it fares."""
        return {"source": self.settings.source, "engines": self.engines, "problem": self.problem}


def address(text: str, port: int) -> tuple[str, int]:
    """Host and port of a server that the settings name.

    >>> address("10.0.0.2", 53), address("[::1]:5353", 53)
    (('10.0.0.2', 53), ('::1', 5353))
    """
    found = Address.of(f"http://{text}" if ":" in text.rpartition("]")[2] else f"http://{text}:{port}")
    return found.host, found.port
