"""The gateway: the policy that won in simulation, in front of real engines.

`Gateway.answer` is called with every request. It finds out who asks and what for, lets the policy choose among the
engines that can take it, and sends a `Relay` on its way. One process holds all counts; two gateways before the same
engines would each see half of the load.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.live import admin, api, canary, kept, keys, large, multipart
from assay.live.access_log import EVERY, AccessLog, Line
from assay.live.canary import Canary
from assay.live.companion import Companion
from assay.live.counters import OTHERS, Counters
from assay.live.engines import DOWN, UP, Engine, LiveFleet
from assay.live.kept import Kept
from assay.live.origins import Origins
from assay.live.outbox import Outbox
from assay.live.placing import Placing
from assay.live.prefix_index import PrefixIndex
from assay.live.quotas import ANY, Purse, Quotas
from assay.live.recent import Recent
from assay.live.relay import LEFT, Relay, hash_ids
from assay.live.server import Exchange
from assay.live.settings import Settings
from assay.live.shadow import Shadow
from assay.live.tokens import ByteTokens, TokenizerTokens
from assay.record.errors import BadInput
from assay.serving.engine import components
from assay.serving.interface import Request

_LONGEST = 256  # letters of a name that somebody else chose
_ID = 200  # bytes of a request's id
_LONG = 2048  # letters of a text that are looked at to tell conversations apart
_REFUSED = 256  # blocks of a prompt that the log has where it was not answered: who sends it fills no disk with it
_WORD = re.compile(rb"[!-~]+")
_HASHED = 1 << 18  # tokens of a prompt; what comes after them is hardly in any cache


class Gateway:
    """All state of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = keys.read(settings.key, priced(settings))
        self.quotas = Quotas()
        self.origins = Origins(settings.origins) if settings.origins else None
        self.tokenizer: Any = TokenizerTokens(settings.tokenizer) if settings.tokenizer else ByteTokens()
        self.index = PrefixIndex(settings.block, settings.blocks, settings.ttl)
        self.fleet = LiveFleet(self.index)
        self.placing = Placing(self)
        self.relays: set[Relay] = set()
        self._reading: set[asyncio.Task[None]] = set()  # large requests
        self._beside = ThreadPoolExecutor(1, "reading")  # one: prompts of megabytes take turns, not all processors
        self.companions: set[Companion] = set()
        self.counters = Counters()
        self.recent = Recent(self.counters)
        self.log = AccessLog(settings.log)
        self.aliases = {model.name: model for model in settings.model}
        self.canary = new_canary(settings)
        self.shadow = Shadow(components.router(settings.shadow), settings) if settings.shadow else None
        self.kept = Kept()
        self.outbox = Outbox()
        self.draining = False
        self.now = monotonic  # a loop counts in milliseconds, which is too coarse
        self.roster: Any = None  # set when it runs
        self.spans: Any = None  # where tracing is on
        self._numbers = itertools.count()
        self.quotas.renew(self.keys, settings.price, self.now())
        self._salt = os.urandom(4).hex().encode()

    def warm(self) -> None:
        """Load what is compiled, or compile it where this version never ran: not while the first client waits."""
        index = PrefixIndex(self.index.block)
        number, hits = index.add(), np.zeros(1, np.int64)
        path = index.look_up(np.zeros(2 * index.block, np.uint32), 0.0, hits)
        index.insert(number, path, 0.0)
        index.match(path, 1.0, hits)
        index.resize(0, 1)
        index.remove(0, path)

    # ------------------------------------------------------------------------------------------ requests

    def answer(self, exchange: Exchange) -> None:
        """A client asks."""
        head = exchange.head
        number = next(self._numbers)
        given = head.fields.get(b"x-request-id")
        name = self._salt + b"-%d" % number if given is None else self._name(given, number)
        exchange.lines = (b"x-request-id: " + name,)
        if self.origins is not None and (origin := head.fields.get(b"origin")) is not None:
            exchange.lines += self.origins.lines(origin)
            if self.origins.preflight(exchange):
                return
        endpoint = api.ENDPOINTS.get(head.path)
        if endpoint is None:
            if admin.answer(self, exchange):
                return
            endpoint = "other"
        key = self.keys.find(head.fields) if self.keys else None
        if self.keys and key is None:
            self._refuse(exchange, endpoint, 401, "a valid API key is needed", (b"www-authenticate: Bearer",))
            return
        if endpoint == "other" and not self.passes(head.method, head.path):
            self._refuse(exchange, endpoint, 404, "no such path")
            return
        if endpoint != "other" and head.method != b"POST":
            self._refuse(exchange, endpoint, 405, "ask with POST", (b"allow: POST",))
            return
        now = self.now()
        request = Request(number, now, 0)
        fields = head.fields
        if key is not None:
            request.tenant, request.tier = key.tenant, key.tier
        elif b"x-tenant" in fields or b"x-tier" in fields:  # without keys, whoever asks says who they are
            request.tenant = fields.get(b"x-tenant", b"").decode("latin-1")
            request.tier = fields.get(b"x-tier", b"").decode("latin-1")
        relay = Relay(self, exchange, request, endpoint, now, name)
        self.relays.add(relay)
        if self.spans is not None:
            self.spans.begin(relay)
        if key is not None and (purse := self.quotas.of(key)) is not None and not self._enter(relay, purse):
            return
        if len(exchange.body) > large.LARGE and (endpoint != "other" or exchange.body.startswith(b"{")):
            self._later(self._read_large(relay))
        else:
            self._read(relay)
            if relay.purse is None and endpoint != "other" and not relay.reference:  # nearly always
                self.placing.admit(relay)
            else:
                self._understood(relay)

    def _later(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(reading)
        self._reading.add(task)  # the loop itself keeps no hold on a task
        task.add_done_callback(self._reading.discard)

    async def _read_large(self, relay: Relay) -> None:
        """Read what would hold up everybody else if it were read at once; give way after every piece."""
        exchange = relay.exchange
        steps = large.read(exchange.body, relay.endpoint, self.tokenizer, _HASHED)
        value: Any = None
        try:
            while True:
                try:
                    step = steps.send(value)
                except StopIteration as done:
                    read, relay.short = done.value
                    break
                if step is None:
                    await asyncio.sleep(0)
                else:
                    value = await asyncio.get_running_loop().run_in_executor(self._beside, step)
                if exchange.done:  # the client left, or it took too long
                    return
            if isinstance(read, large.Asked):
                self._asked(relay, read.ask, read.row, read.count)
            else:
                self._outlined(relay, read)
            self._understood(relay)
        except Exception as error:
            exchange.fail(error)

    def _understood(self, relay: Relay) -> None:
        if (relay.reference or relay.endpoint == "other") and not self._knows(relay):
            return
        if relay.purse is not None and not self._pay(relay, relay.purse):
            return
        self.placing.admit(relay)

    def _knows(self, relay: Relay) -> bool:
        """Where what it asks for is kept, if it asks for such a thing; False where that is not for its tenant."""
        exchange = relay.exchange
        if relay.endpoint == "other":
            body = exchange.body if relay.short is None else b"" if relay.short.many else relay.short.small
            relay.reference = kept.asked(exchange.head.path, body)
        place = self.kept.find(relay.reference) if relay.reference else None
        if place is None:
            return True
        relay.keeper = place.engine
        if relay.names:  # it knows what it keeps by its own model's name
            has = (name for name in relay.names if name in place.engine.models)
            relay.request.model = next(has, relay.request.model)
        if self.keys and place.tenant != relay.tenant:
            relay.give_up(404, f"there is no '{relay.reference}'", kind="not_found_error")
            return False
        return True

    def _pay(self, relay: Relay, purse: Purse) -> bool:
        """Whether its key has the tokens of its prompt left."""
        now, refusal = self.now(), None
        if relay.endpoint != "other":
            refusal = self.quotas.pay(relay, purse, now)
        relay.exchange.lines += purse.lines(now)
        if refusal is not None:
            relay.give_up(429, refusal.why, refusal.lines, refusal.kind)
        return refusal is None

    def _enter(self, relay: Relay, purse: Purse) -> bool:
        """Whether its key may ask at all."""
        refusal = self.quotas.enter(purse, relay.arrival)
        if refusal is None:
            relay.purse = purse
            return True
        relay.exchange.lines += purse.lines(relay.arrival)
        relay.give_up(429, refusal.why, refusal.lines, refusal.kind)
        return False

    def passes(self, method: bytes, path: bytes) -> bool:
        """Whether a path that is not the gateway's may be asked of engines: with keys only one that is listed.

        Some of them concern all tenants, such as those that empty caches.
        """
        listed = self.settings.passthrough
        if api.OPEN.fullmatch(b"%b %b" % (method, path)):
            return listed is not False
        if isinstance(listed, bool):
            return listed and not self.keys
        asked = path.decode("latin-1")
        return any(asked.startswith(p[:-1]) if p.endswith("*") else asked == p for p in listed)

    def _name(self, given: bytes, number: int) -> bytes:
        """The request's id: the client's own, if it is one word of reasonable length."""
        if len(given) <= _ID and _WORD.fullmatch(given):
            return given
        return self._salt + b"-%d" % number

    def named(self, request: Request) -> str:
        """A request as the log calls it."""
        return f"{self._salt.decode()}-{request.id}"

    def _refuse(self, exchange: Exchange, endpoint: str, status: int, why: str, more: tuple[bytes, ...] = ()) -> None:
        self.counters.answered(endpoint, status, "", "")
        exchange.refuse(status, why, "authentication_error" if status == 401 else "", more)

    def _read(self, relay: Relay) -> None:
        """What the policy may know of a request."""
        body = relay.exchange.body
        ask = api.read(body, relay.endpoint) if relay.endpoint != "other" else None
        if ask is not None:
            self._asked(relay, ask, *api.tokens(ask, relay.endpoint, self.tokenizer))
            return
        kind = relay.exchange.head.fields.get(b"content-type", b"")
        if kind[:9].lower() == b"multipart":  # audio, most of all
            self._outlined(relay, api.Outline(multipart.model(body, kind)))
        elif relay.endpoint != "other" or body.startswith(b"{"):  # whatever it is, it may say which model it is for
            self._outlined(relay, api.outline(body))
        else:
            self._outlined(relay, api.Outline())

    def _outlined(self, relay: Relay, outline: api.Outline) -> None:
        """It was not read: the engine will say what is wrong with it."""
        relay.request.prompt = max(len(relay.exchange.body) // 4, 1)
        relay.wanted = relay.endpoint != "other" and bool(outline.stream)
        self._for(relay, outline.model)

    def _asked(self, relay: Relay, ask: api.Ask, row: NDArray[np.uint32], count: int) -> None:
        """It was read, and its prompt has so many tokens."""
        fields, request = relay.exchange.head.fields, relay.request
        session = fields.get(b"x-session-id")
        if session is not None:
            request.session = _session(session.decode("latin-1"))
        relay.wanted = bool(ask.stream)
        relay.reference = ask.previous_response_id or ""
        request.model = ask.model
        if self.aliases:
            self._for(relay, ask.model)
        request.max_tokens = ask.limit
        request.category = relay.endpoint
        relay.own = max(count, 1)
        request.prompt = max(int(count * self.fleet.scale), 1)
        self.fleet.now = relay.arrival
        relay.path = self.fleet.look_up(request, row if len(row) <= _HASHED else row[:_HASHED])
        if ask.messages:
            request.text = ask.messages[-1].text
        if request.session is None:
            request.session = _session(ask.user) if ask.user else _conversation(ask)

    def _for(self, relay: Relay, model: str) -> None:
        """The model that is to answer: the one asked for, or one of those that its name stands for."""
        relay.request.model = model
        if model in self.aliases:
            alias = self.aliases[model]
            relay.asked, relay.names, relay.full = model, alias.to, alias.full
            relay.request.model = self.placing.best(relay.names)

    # ------------------------------------------------------------------------------------------ what becomes of it

    def began(self, relay: Relay) -> None:
        """Its first token is there."""
        if relay.engine is not None:
            relay.engine.failures = 0
            if relay.engine.trial:
                self.well(relay.engine)
            if relay.lost:
                self.cleared(relay.engine, relay)
        if relay.stumbled:
            for engine, (why, downs) in relay.stumbled.items():  # on what others can do
                if engine.downs == downs:
                    self.suspect(engine, why)
        if self.shadow is not None:
            self.shadow.began(relay)

    def well(self, engine: Engine) -> None:
        """An engine answered as it should."""
        engine.failures = 0
        if engine.trial:
            engine.trial, engine.room, engine.note = False, engine.limit, ""
            self.later(self.placing.room, engine)

    def off(self, relay: Relay, engine: Engine, held: int) -> None:
        """It is no longer on an engine."""
        engine.aboard -= 1
        if relay.lost:
            self.cleared(engine, relay)
        if engine.number >= 0:
            if relay.new and relay.status != LEFT:  # it had no token, and not because the client left
                self.fleet.refused(engine.number, relay.request, relay.known)
            self.fleet.ended(engine.number, relay.request, held, relay.new)

    def cleared(self, engine: Engine, relay: Relay) -> None:
        """A request that engines failed with is not what this one fails with, or has left it: the next may come."""
        if relay in engine.doubted:
            engine.doubted.discard(relay)
            # Where the last one is spared, others wait for one that has nothing of the kind.
            self.later(self.placing.room, None if self.settings.spare_last else engine)

    def suspect(self, engine: Engine, why: str, trial: bool = True) -> None:
        """An engine failed what another one answered, or its health; enough of that in a row breaks its circuit.

        A request that it failed says nothing about it as long as no other engine answers that: the request may be what
        is wrong. Where its health is good it keeps what it has, since it may well answer that.
        """
        engine.failures += 1
        if engine.failures >= self.settings.failures and engine.state == UP:
            engine.trial = trial
            self.mark_down(engine, why)
            if not trial:
                self._abandon(engine, why)

    def unreachable(self, engine: Engine, why: str, trial: bool = True) -> None:
        """No connection could be opened; where nobody listens any more, one try is enough to know.

        An engine that is told to stop may listen no more and still answer what it has: whatever nobody else could take
        stays there. The connections of one that died break by themselves.
        """
        if not engine.pool.refused or engine.state != UP:
            self.suspect(engine, why, trial)
            return
        engine.trial = engine.well = False
        self.mark_down(engine, why)
        self._abandon(engine, why, lambda relay: self.placing.able(relay, True) or bool(relay.names))

    def mark_down(self, engine: Engine, why: str) -> None:
        """Send nothing more to an engine, count on nothing in its cache."""
        engine.state, engine.note, engine.trust = DOWN, why, 1
        engine.downs += 1
        engine.retry = self.now() + self.settings.pause
        if engine.number >= 0:
            self.fleet.forget(engine.number)
        self.placing.changed()

    def _abandon(self, engine: Engine, why: str, which: Callable[[Relay], bool] = lambda relay: True) -> None:
        """It is known to be dead: ask others for what it has not begun."""
        for relay in sorted((relay for relay in self.relays if relay.engine is engine), key=lambda relay: relay.placed):
            if not relay.exchange.started and relay.upstream is not None and which(relay):
                relay.abandon(why)
        for companion in [companion for companion in self.companions if companion.engine is engine]:
            companion.abandon(why)

    def later(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call when the present call is over."""
        asyncio.get_running_loop().call_soon(do, *arguments)

    def ended(self, relay: Relay, now: float) -> None:
        """It is answered, or given up, or the client left."""
        self.relays.discard(relay)
        self.placing.left(relay)
        counters = self.counters
        tenant = self.recent.ended(relay)
        model = relay.request.model
        if model not in self.placing.lanes.models:
            model = self.model(relay)
        counters.answered(relay.endpoint, relay.status, model, tenant)
        prompt, output = relay.used()
        if relay.purse is not None:
            self.quotas.ended(relay, now)
        engine = relay.engine
        if engine is not None and (prompt or output):
            engine.tokens += output
            counters.used(prompt, output, model, tenant, engine.name)
        if relay.status == 200:
            counters.e2e.observe(now - relay.arrival)
            self._learn(relay, now)
        if self.shadow is not None:
            self.shadow.ended(relay)
        if self.canary is not None:
            self.canary.ended(relay, now)
        if self.spans is not None:
            self.spans.end(relay)
        if self.log.on:
            self._write(relay, now)
        if not self.draining or self.relays:
            self.placing.room(relay.engine)

    def model(self, relay: Relay) -> str:
        """What metrics call a request's model: one that engines have, or answer for; else it may be any word at all."""
        name = relay.request.model
        if not name or name in self.placing.lanes.models:
            return name
        return self.counters.models.of(name) if relay.engine is not None and relay.first is not None else OTHERS

    def _learn(self, relay: Relay, now: float) -> None:
        engine, usage = relay.engine, relay.usage
        if engine is None or relay.endpoint == "other":
            return
        done = relay.finished(now)
        if usage is not None and (prompt := usage.prompt):
            self._calibrate(relay, engine, prompt, usage.cached)
        for part in self.placing.learners(relay.arm):
            try:
                self.placing.guard.call(part.finished, relay.request, done)
            except Exception as error:
                self.placing.complain(error, relay.request)

    def _calibrate(self, relay: Relay, engine: Engine, prompt: int, cached: int | None) -> None:
        """Compare what the gateway thought with what the engine counted."""
        fleet = self.fleet
        ours = relay.own
        if ours >= 64:  # of short prompts the chat template is the larger part
            fleet.scale += 0.05 * (prompt / ours - fleet.scale)
            if abs(fleet.scale - 1.0) < 1e-3:
                fleet.scale = 1.0
        if cached is not None and engine.number >= 0:
            engine.asked += prompt
            engine.hits += cached
            if not engine.events:  # an engine that tells every change needs no guess
                self._correct(engine, int(relay.matched / fleet.scale), int(cached / fleet.scale))

    def _correct(self, engine: Engine, predicted: int, cached: int) -> None:
        blocks = engine.corrections.capacity(engine.blocks, predicted, cached)
        if blocks != engine.blocks:
            engine.blocks = blocks
            self.index.resize(engine.number, blocks)

    def _write(self, relay: Relay, now: float) -> None:
        request, engine, usage = relay.request, relay.engine, relay.usage
        prompt = usage.prompt if usage and usage.prompt else request.prompt
        counted = usage.output if usage and usage.output is not None else relay.tokens
        first = None if relay.status == LEFT else relay.first
        name, made = relay.name.decode(), self.named(request)
        self.log.add(
            Line(
                time=round(time() - (now - relay.arrival), 6), id=made, request_id=name if name != made else "",
                endpoint=relay.endpoint, path=_path(relay), status=relay.status, engine=engine.name if engine else "",
                model=request.model[:_LONGEST], asked=relay.asked[:_LONGEST], canary=relay.arm, prefill=relay.prefilled,
                tenant=request.tenant[:_LONGEST], tier=request.tier[:_LONGEST],
                session=_text(request.session)[:_LONGEST], stream=relay.streaming, prompt_tokens=prompt,
                completion_tokens=counted if relay.status == 200 else 0,
                cached_tokens=usage.cached if usage else None, matched_tokens=relay.matched,
                max_tokens=request.max_tokens, tries=relay.tries,
                queue=round(relay.sent - relay.arrival, 6) if relay.sent is not None else 0.0,
                ttft=None if first is None else round(first - relay.arrival, 6), e2e=round(now - relay.arrival, 6),
                running=relay.load[0], kv_tokens=relay.load[1], prefill_tokens=relay.load[2],
                placed=round(relay.placed - relay.arrival, 6) if relay.tries > 1 else 0.0,
                error=relay.error, block=round(self.index.block * EVERY * prompt / relay.own, 3),
                hash_ids=hash_ids(relay.path if relay.status == 200 else relay.path[:_REFUSED], EVERY),
            )
        )  # fmt: skip

    def sweep(self) -> None:
        """Look for requests that take too long."""
        now = self.now()
        self.recent.look(self.fleet.engines, now)
        for relay in [relay for relay in self.relays if relay.due < now]:
            relay.late(now)
        for companion in [companion for companion in self.companions if companion.due < now]:
            companion.drop()
        if self.placing.held:
            self.placing.assign()


def priced(settings: Settings) -> bool:
    """Whether every model has a price."""
    return any(price.model == ANY for price in settings.price)


def new_canary(settings: Settings) -> Canary | None:
    """The policy that gets a share of the traffic, where the settings name one."""
    if not settings.canary:
        return None
    policy, share = canary.read(settings.canary)
    routers = components.router(policy), components.router(settings.policy)
    if any(hasattr(router, "assign") for router in routers):
        raise BadInput("canary: both policies must decide about one request at a time; one of them wants a pool")
    return Canary(policy, share, routers[0], settings.policy)


def _conversation(ask: api.Ask) -> int | None:
    """A name for a conversation: the first thing that its user said; of something long, how it begins and ends."""
    for message in ask.messages:
        if message.role == "user":
            said = message.content if isinstance(message.content, str) else message.text
            if len(said) > _LONG:
                return hash((len(said), said[: _LONG // 2], said[-_LONG // 2 :])) & 0x7FFFFFFFFFFFFFFF
            return hash(said) & 0x7FFFFFFFFFFFFFFF
    return None


def _session(name: str) -> int | str:
    """A session as traces have it, where it is a number: what a policy makes of it is then the same here and there.

    >>> _session("42"), _session("042"), _session("a")
    (42, '042', 'a')
    """
    return int(name) if name.isdecimal() and name.isascii() and len(name) < 19 and str(int(name)) == name else name


def _path(relay: Relay) -> str:
    """What was asked for, where the endpoint does not say it; without a query, which may hold anything."""
    return relay.exchange.head.path[:_LONGEST].decode("latin-1") if relay.endpoint == "other" else ""


def _text(session: int | str | None) -> str:
    return "" if session is None else str(session)
