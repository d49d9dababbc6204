"""Which engines there are and how they fare: added and drained at run time, probed, their metrics and events read."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import ssl
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from assay.live import signals
from assay.live.discovery import Source
from assay.live.discovery import source as find_source
from assay.live.engines import DOWN, DRAINING, STARTING, UP, Engine
from assay.live.http1 import ResponseHead
from assay.live.kv_events import Batch, Mirror, Subscriber
from assay.live.prefix_index import Corrections
from assay.live.settings import DiscoverSettings, EngineSettings, from_environment
from assay.live.upstream import Address, Pool, Upstream
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

_PAGE = 4 << 20  # bytes of an engine's page that are read
_STARTS = 0.25  # seconds between two looks at an engine that has not answered yet


class Fetch:
    """GET a page of an engine, beside its requests."""

    method = b"GET"

    def __init__(self, engine: Engine, path: bytes) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._size = 0
        self._status = 0
        self._upstream: Upstream | None = None
        address = engine.address
        key = b"authorization: Bearer %b\r\n" % engine.key if engine.key else b""
        message = b"GET %b%b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (address.prefix, path, address.authority, key)
        self._upstream = engine.pool.ask(self, message)

    async def within(self, seconds: float) -> tuple[int, bytes]:
        """Status and body; OSError where there is none in time."""
        try:
            async with asyncio.timeout(seconds):  # `wait_for` would lose a cancellation that an answer comes with
                return await self._answer
        except TimeoutError:
            if self._upstream is not None and self._upstream.asker is self:
                self._upstream.drop()
            raise

    def connected(self, upstream: Upstream) -> bool:
        """The engine is there."""
        self._upstream = upstream
        return not self._answer.done()

    def unreachable(self, pool: Pool, why: str) -> None:
        """It is not."""
        self.broken(why, False)

    def answered(self, head: ResponseHead) -> None:
        """The head."""
        self._status = head.status

    def payload(self, data: bytes) -> None:
        """A piece."""
        self._size += len(data)
        if self._size <= _PAGE:
            self._pieces.append(data)
        elif self._upstream is not None:
            self._upstream.drop()
            self.broken("the page is too long", False)

    def complete(self) -> None:
        """All of it."""
        if not self._answer.done():
            self._answer.set_result((self._status, b"".join(self._pieces)))

    def broken(self, why: str, stale: bool) -> None:
        """The connection failed."""
        if not self._answer.done():
            self._answer.set_exception(ConnectionError(why))


class Roster:
    """The engines of a gateway, each with a task that looks after it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: dict[Engine, asyncio.Task[None]] = {}
        self._looks: dict[Engine, asyncio.Task[bool]] = {}
        self._leaving: dict[asyncio.Task[bool], list[tuple[float, Callable[[], None]]]] = {}
        self._subscribers: dict[Engine, Subscriber] = {}
        self._mirrors: dict[Engine, Mirror] = {}
        self._loaded: dict[Engine, signals.Reading] = {}
        self.sources: list[Source] = []
        self._unseen: set[Engine] = set()  # that nobody has looked at yet
        self._all_seen = asyncio.Event()
        ca = gateway.settings.engine_ca
        try:
            self._tls = ssl.create_default_context(cafile=ca) if ca else None
        except OSError as error:  # what is no certificate is of this kind, too
            raise BadInput(f"cannot use engine_ca ({ca}): {error.strerror or error}; it wants PEM") from error

    def add(self, settings: EngineSettings, source: str = "") -> Engine | None:
        """One more engine, at once; None where it is there already. BadInput where it cannot be.

        One that was to go, and has not gone yet, stays as it was.
        """
        gateway = self._gateway
        address = Address.of(settings.url)
        present = next((e for e in gateway.fleet.engines if e.address.url == address.url), None)
        if present is not None and present.source != source and present.state != DRAINING:
            return None  # it is somebody else's
        if present is not None:
            present.source = source
            self._change(present, settings)
            if present.state != DRAINING:
                return None
            present.state = UP if present.answered else STARTING  # where it is not up, that shows when it is asked
            gateway.placing.changed()
            return present
        engine = Engine(
            address, Pool(address, self._tls, gateway.settings.connect, outbox=gateway.outbox),
            self._name(settings, address), _key(settings),
            settings.tp, _cost(settings.layout), settings.events, limit=settings.limit or gateway.settings.inflight,
            blocks=gateway.settings.blocks, corrections=Corrections(gateway.settings.blocks, gateway.index.block),
            state=STARTING, added=gateway.now(), role=settings.role, bootstrap=settings.bootstrap,
            replay=settings.replay, source=source,
        )  # fmt: skip
        if settings.events:  # first: it may fail, and then there is no such engine
            self._subscribe(engine, settings)
        gateway.fleet.add(engine)
        if gateway.shadow is not None:
            gateway.shadow.add(engine, None)
        self._unseen.add(engine)
        self._tasks[engine] = asyncio.get_running_loop().create_task(self._look_after(engine))
        gateway.placing.changed()
        return engine

    def _change(self, engine: Engine, settings: EngineSettings) -> None:
        """What is said of an engine that is here already counts from now on."""
        if (settings.events, settings.replay) != (engine.events, engine.replay):
            self._listen(engine, settings)  # first: it may fail
        if settings.name and settings.name != engine.name:
            engine.rename(self._name(settings, engine.address))
            self._gateway.fleet.called()
        engine.key, engine.tp, engine.cost = _key(settings), settings.tp, _cost(settings.layout)
        on_trial = engine.room < engine.limit
        engine.limit = settings.limit or self._gateway.settings.inflight
        engine.room = engine.room if on_trial else engine.limit
        self._gateway.fleet.slots[engine.number] = engine.limit
        self._gateway.fleet.tp[engine.number] = engine.tp
        if (engine.role, engine.bootstrap) != (settings.role, settings.bootstrap):
            engine.role, engine.bootstrap = settings.role, settings.bootstrap
            self._gateway.placing.changed()

    def _listen(self, engine: Engine, settings: EngineSettings) -> None:
        """Where an engine tells of its cache has changed: what was heard at the old place counts no more."""
        old = self._subscribers.pop(engine, None)
        if settings.events:
            self._subscribe(engine, settings)
        else:
            self._mirrors.pop(engine, None)
        if old is not None:
            old.close()
        engine.events, engine.replay = settings.events, settings.replay
        self._gateway.fleet.forget(engine.number)
        if engine.state == UP:
            self._catch_up(engine)

    def check_sources(self, named: Iterable[DiscoverSettings]) -> None:
        """BadInput where there is no such source."""
        for settings in named:
            find_source(settings)

    def check(self, named: Iterable[EngineSettings]) -> None:
        """BadInput where one of them cannot be."""
        for settings in named:
            Address.of(settings.url)
            _key(settings)
            _cost(settings.layout)

    def discover(self, named: Iterable[DiscoverSettings]) -> None:
        """Follow these sources; what another one had named, and none of these does, is drained."""
        kept = {source.settings: source for source in self.sources}
        for settings, source in kept.items():
            if settings not in named:
                source.close()
                if settings.source not in {other.source for other in named}:
                    self.renew((), settings.source)
        self.sources = [kept.get(settings) or Source(self._gateway, settings) for settings in named]

    async def first_look(self, seconds: float) -> None:
        """Wait until every source was read and every engine asked once, or so long: else all go to the first one up."""
        for source in self.sources:
            await source.first(seconds)
        if not self._unseen:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._all_seen.wait()

    def renew(self, named: Iterable[EngineSettings], source: str = "") -> None:
        """Add the engines that are named and not here, drain those of the same source that are not named any more.

        BadInput where one of them cannot be added; then all is as it was.
        """
        wanted = {Address.of(settings.url).url: settings for settings in named}
        added: list[Engine] = []
        try:
            for settings in wanted.values():
                engine = self.add(settings, source)
                added += [engine] if engine is not None else []
        except BadInput:
            for engine in added:
                self.drain(engine)
            raise
        for present in list(self._gateway.fleet.engines):
            if present.source == source and present.address.url not in wanted:
                self.drain(present)

    def _name(self, settings: EngineSettings, address: Address) -> str:
        """Its own name, or its address; never one that another has."""
        name = re.sub(r"[^A-Za-z0-9._:-]", "-", settings.name or f"{address.host}:{address.port}")[:100]
        taken = {e.name for e in self._gateway.fleet.engines}
        return name if name not in taken else next(n for k in range(2, 10**6) if (n := f"{name}-{k}") not in taken)

    def drain(self, engine: Engine) -> None:
        """Send it nothing more; when it has answered all, it is gone."""
        engine.state = DRAINING
        self.settle(engine)

    def settle(self, engine: Engine) -> None:
        """Let a drained engine go."""
        if engine.state == DRAINING and engine.aboard == 0 and engine.number >= 0:
            number = engine.number
            gateway = self._gateway
            gateway.fleet.drop(engine)
            engine.number = -1
            if gateway.shadow is not None:
                gateway.shadow.drop(number)
            task = self._tasks.pop(engine, None)
            if task is not None:
                task.cancel()
            self._mirrors.pop(engine, None)
            self._loaded.pop(engine, None)
            subscriber = self._subscribers.pop(engine, None)
            if subscriber is not None:
                subscriber.close()
            engine.pool.close()
            gateway.placing.changed()

    def close(self) -> None:
        """Stop looking after all of them."""
        for source in self.sources:
            source.close()
        for task in self._tasks.values():
            task.cancel()
        for look in self._looks.values():
            look.cancel()
        for subscriber in self._subscribers.values():
            subscriber.close()
        for engine in self._gateway.fleet.engines:
            engine.pool.close()

    # ------------------------------------------------------------------------------------------ one engine

    async def _look_after(self, engine: Engine) -> None:
        settings = self._gateway.settings
        next_probe = -math.inf
        while engine.number >= 0:
            now = self._gateway.now()
            try:
                if now >= next_probe or engine.state == STARTING:
                    if await self._probe(engine):
                        self._trusts(engine)
                    next_probe = now + settings.probe
                if engine.state == UP:
                    await self._scrape(engine)
            except Exception as error:  # whatever an engine says must not end the looking
                engine.note = f"{type(error).__name__}: {error}"
            self._unseen.discard(engine)
            if not self._unseen:
                self._all_seen.set()
            if engine.state == UP:
                engine.note = self._of_no_use(engine) or engine.note
            self.settle(engine)
            await asyncio.sleep(min(settings.scrape, settings.probe, _STARTS if engine.state == STARTING else math.inf))

    def look(self, engine: Engine) -> asyncio.Task[bool] | None:
        """It hung up on a request, or is silent: whether it is still there is to be known now."""
        if engine.state != UP or engine.number < 0:
            return None
        task = self._looks.get(engine)
        if task is None:
            task = self._looks[engine] = asyncio.get_running_loop().create_task(self._probe(engine))
            task.add_done_callback(lambda _: self._looks.pop(engine))
        return task

    def when_known(self, engine: Engine, since: float, leave: Callable[[], None]) -> None:
        """An engine failed what it has had `since` then: that leaves when it is known whether the engine is dead.

        Many do where it is, and the one that came last is the likeliest to be what it died of: so the oldest go first,
        and are answered before that takes the next engine.
        """
        look = self.look(engine)
        if look is None:
            leave()
            return
        if look not in self._leaving:
            self._leaving[look] = []
            look.add_done_callback(self._known)
        self._leaving[look].append((since, leave))

    def _known(self, look: asyncio.Task[bool]) -> None:
        for _, leave in sorted(self._leaving.pop(look), key=itemgetter(0)):
            leave()

    def _trusts(self, engine: Engine) -> None:
        """Its health is good, and it has had some requests for a while that others failed with: twice as many may come.

        Else one at a time would have to be answered first, which takes long where a busy engine died.
        """
        survived = engine.watched & engine.doubted
        if survived:
            engine.trust *= 2
            for relay in survived:
                self._gateway.cleared(engine, relay)
        engine.watched = frozenset(engine.doubted)

    async def _probe(self, engine: Engine) -> bool:
        """Is it there? It gets nothing until it first answers, nor after enough failures until it answers again."""
        gateway = self._gateway
        try:
            status, _ = await Fetch(engine, b"/health").within(max(gateway.settings.connect, gateway.settings.probe))
            well = status < 500
            why = f"/health answers {status}"
        except OSError as error:
            well, why = False, str(error) or "no answer to /health"
        better, engine.well = well and not engine.well, well
        if well and (not engine.models or engine.state in (STARTING, DOWN)):
            await self._ask_models(engine)  # before it is sent anything: it may not have what the first one asks for
        engine.answered |= well
        if engine.state == STARTING:
            self._starts(engine, well, why)
        elif engine.state == DOWN:
            engine.trial &= well  # where its health is bad, its health tells
            if well and gateway.now() >= engine.retry:
                self._back(engine)
        elif not well and engine.state == UP:
            gateway.unreachable(engine, why, trial=False)
        elif better:  # the last one beside it is not the last any more
            gateway.placing.room()
        return well

    def _back(self, engine: Engine) -> None:
        """Its circuit is closed again; where it failed in spite of good health, by one request at a time at first."""
        engine.state, engine.note, engine.failures, engine.room = UP, "", 0, engine.limit
        engine.pool.refused = False
        if engine.trial:
            engine.note, engine.room = "on trial: one request at a time until one is answered", 1
            engine.failures = self._gateway.settings.failures - 1
        mirror = self._mirrors.get(engine)
        if mirror is not None:  # it may have started anew, with nothing in its cache
            mirror.engine = engine.number
            mirror.forget()
        self._catch_up(engine)
        self._gateway.placing.changed()

    def _catch_up(self, engine: Engine) -> None:
        """It is up: ask for the events that were published before anybody listened."""
        subscriber = self._subscribers.get(engine)
        if subscriber is not None:
            subscriber.catch_up()

    def _starts(self, engine: Engine, well: bool, why: str) -> None:
        """An engine that has never answered: perhaps it loads weights or compiles, and will."""
        gateway = self._gateway
        if well:
            engine.state, engine.note = UP, ""
            self._catch_up(engine)
            gateway.placing.changed()
        elif gateway.now() - engine.added >= gateway.settings.start:
            gateway.mark_down(engine, why)
        else:
            engine.note = f"has not answered yet: {why}"

    async def _ask_models(self, engine: Engine) -> None:
        try:
            status, body = await Fetch(engine, b"/v1/models").within(self._gateway.settings.connect)
            listed = msgspec.json.decode(body).get("data", []) if status == 200 else []
            models = tuple(str(model["id"]) for model in listed)
        except (OSError, msgspec.DecodeError, AttributeError, KeyError, TypeError):
            models = ()
        if models != engine.models:
            engine.models = models
            self._gateway.placing.changed()

    async def _scrape(self, engine: Engine) -> None:
        gateway = self._gateway
        aboard = engine.aboard
        try:
            status, body = await Fetch(engine, b"/metrics").within(gateway.settings.connect)
        except OSError:
            return
        reading = signals.read(body) if status == 200 else None
        if reading is None or not reading.family or engine.number < 0:
            return
        i, fleet = engine.number, gateway.fleet
        engine.family, engine.seen = reading.family, gateway.now()
        if reading.running is not None and reading.waiting is not None:
            fleet.told(i, int(reading.waiting), int(reading.running + reading.waiting), aboard)
        if reading.kv_usage is not None:
            fleet.told_free(i, 1.0 - reading.kv_usage, reading.kv_tokens or math.inf)
        if reading.kv_tokens and engine not in self._loaded:
            blocks = max(int(reading.kv_tokens / fleet.scale) // gateway.index.block, 1)
            gateway.index.resize(i, blocks)
            engine.blocks, engine.corrections = blocks, Corrections(blocks, gateway.index.block)
        self._loaded[engine] = reading
        engine.note = engine.note or signals.report(reading)

    def _of_no_use(self, engine: Engine) -> str:
        """Why its KV events, where it publishes any, do not tell what its cache holds."""
        mirror, subscriber = self._mirrors.get(engine), self._subscribers.get(engine)
        if mirror is None or subscriber is None:
            return ""
        if subscriber.problem:
            return f"KV events: {subscriber.problem}"
        if not self._gateway.settings.tokenizer:
            return "KV events speak of token ids: without 'tokenizer' no prompt is found in them"
        return mirror.reason

    def _subscribe(self, engine: Engine, settings: EngineSettings) -> None:
        gateway = self._gateway
        mirror = Mirror(gateway.index, engine.number)

        def receive(batch: Batch, gap: bool) -> None:
            if engine.number < 0:
                return
            mirror.engine = engine.number
            if gap:
                mirror.forget()
            mirror.apply(batch, gateway.now())
            gateway.fleet.cache_changed()

        self._subscribers[engine] = Subscriber(settings.events, receive, replay_endpoint=settings.replay or None)
        self._mirrors[engine] = mirror


def _key(settings: EngineSettings) -> bytes:
    """What the engine wants to be shown; BadInput where that would not be one word in a head."""
    what = f"engine {settings.url}"
    env = settings.key.startswith("env:")
    key = from_environment(settings.key[4:], what) if env else settings.key.encode()
    if not re.fullmatch(rb"[!-~]*", key):
        raise BadInput(f"{what}: its key must be letters, digits and signs of ASCII, without spaces or line breaks")
    return key


def _cost(layout: str) -> Any:
    if not layout:
        return None
    from assay.serving.fleet import parse

    return parse(f"1x{layout}").instances[0].cost
