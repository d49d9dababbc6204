"""One request on its way: from a client to an engine, and the answer back, byte for byte.

Until the first byte of an answer has gone to the client, everything that goes wrong with an engine is tried again on
another one, and the client never notices. So the head of an answer is held back until its first token is there, and
an answer that is not streamed until it is whole. After the first byte there is no second try: a stream ends in an
error event, between two events.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.live import api, kept
from assay.live.asking import message
from assay.live.companion import Companion, room
from assay.live.engines import NO_PATH, Engine
from assay.live.http1 import CHUNKED, UNTIL_CLOSE, ResponseHead
from assay.live.large import Short
from assay.live.quotas import Purse
from assay.live.server import Exchange, error_body
from assay.live.upstream import Pool, Upstream
from assay.serving.interface import Finished, Request

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

RETRIED = frozenset((500, 502, 503, 504))  # an engine in trouble; another one may be fine
STUMBLED = 500  # a request may make every engine say so: that breaks a circuit where another one can answer it
FULL = 429
HELD = 8 << 20  # bytes of an answer that are kept until it is whole
EVENT = 1 << 20  # bytes of an event that are kept until it is whole
EARLY = 1 << 16  # bytes of events before the first token that are kept until it is there
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")  # of an event, in each of the three ways to end a line
_ITEM = b"event: response.output_item"  # of /v1/responses: from here on it is an answer, if not yet a text
RETRY = (b"retry-after: 1",)
NO_RETRY = (b"x-should-retry: false",)  # the libraries of OpenAI and Anthropic ask again twice unless told not to
NOBODY: frozenset[Engine] = frozenset()
_KEEPING = ("responses", "other")  # endpoints where engines may keep what they answer
LOST = 2  # engines that may fail with a request aboard: it may be what they fail of, and is not sent to a third
_NO_REASON: Mapping[Engine, tuple[str, int]] = {}
LEFT = 499  # the client went away first: nginx's number for it


class Relay:
    """The life of one request. Ends once: in an answer, in an error, or because the client left."""

    __slots__ = (
        "_early", "_ended", "_fault", "_final", "_held", "_kv", "_most", "_named", "_pieces", "_tail", "_torn",
        "announced", "arm", "arrival", "asked", "bereft", "called", "companion", "cost", "deadline", "due", "endpoint",
        "engine", "error", "exchange", "failed", "first", "full", "gateway", "head", "keeper", "key", "known", "last",
        "load", "lost", "matched", "method", "name", "names", "new", "own", "paid", "path", "placed", "prefilled",
        "purse", "reference", "request", "sent", "short", "stage", "status", "streaming", "stumbled", "tenant",
        "tokens", "transfer", "tries", "upstream", "usage", "wanted",
    )  # fmt: skip

    def __init__(
        self, gateway: Gateway, exchange: Exchange, request: Request, endpoint: str, now: float, name: bytes = b"-"
    ) -> None:
        self.gateway = gateway
        self.exchange = exchange
        self.request = request
        self.names: tuple[str, ...] = ()  # of models that may answer it, where it asked for none of an engine's own
        self.asked = ""  # which one it asked for then
        self.full = ""  # what becomes of it where the first of them is full: overflow, wait, refuse
        self.reference = ""  # the name of what an engine keeps, where it goes on from that,
        self.keeper: Engine | None = None  # and the engine, where that is known
        self.stage = ""  # prefill, then decode, where two engines share the work
        self.transfer: dict[str, Any] | None = None  # fields that tell the second where the first keeps the prompt
        self.companion: Companion | None = None  # of SGLang: the first, while the second is asked
        self.announced = False  # whether its answer has said what it is called
        self.prefilled = ""  # the name of the first
        self.arm = False  # whether the canary decides about it
        self.name = name  # its id, as clients and engines see it
        self.method = exchange.head.method
        self.endpoint = endpoint
        self.tenant = request.tenant
        self.called = ""  # as the metrics name the tenant
        self.purse: Purse | None = None  # of its key, where that is limited,
        self.paid = 0  # the tokens taken from it,
        self.cost = 0.0  # and the dollars
        self.arrival = now
        self.deadline = now + gateway.settings.deadline
        self.due = self.deadline  # when the sweep looks at it
        self.key = now  # its place in the queue
        self.short: Short | None = None  # of a large request what is small
        self.own = 1  # tokens of the prompt, as the gateway counts them
        self.load = (0, 0, 0)  # on the engine when it was sent: running, KV tokens, prompt tokens not computed
        self.wanted = False  # a stream is
        self.path = NO_PATH
        self.engine: Engine | None = None
        self.upstream: Upstream | None = None
        self.failed = NOBODY  # engines that did not answer it
        self.stumbled: Mapping[Engine, tuple[str, int]] = _NO_REASON  # of them those that had it, and what became of it
        self.lost = 0  # how many died, hung up or fell silent while they had it
        self.bereft = False  # one of them is known to have died
        self.tries = 0
        self.sent: float | None = None  # when the first engine was asked
        self.placed = now  # when the present one was
        self.matched = 0  # prompt tokens that the engine was thought to have,
        self.known = 0  # and whole blocks of the prefix index
        self.new = 0  # prompt tokens to compute, until the first token
        self.first: float | None = None  # when tokens came; any reading of a clock is one, 0 too
        self.last = now
        self.tokens = 0
        self.usage: api.Usage | None = None
        self.head: ResponseHead | None = None
        self.streaming = False
        self.status = 0
        self.error = ""
        self._pieces: list[bytes] = []
        self._held = 0
        self._most = HELD  # bytes that are held
        self._tail = b""
        self._named = endpoint in api.NAMED_EVENTS
        self._early = b""  # events before the first token
        self._final = b""  # the last piece that came: it tells whether the stream was whole,
        self._ended = False  # unless one before it did
        self._fault = 0  # the status of an error that came in the middle of a stream
        self._torn = False  # an event was too large to be kept until it is whole
        self._kv = 0  # tokens counted as held on the engine
        exchange.left = self.gone
        exchange.resume = self.pace

    # ------------------------------------------------------------------------------------------ to an engine

    def ask(self, engine: Engine, now: float, fresh: bool = False) -> None:
        """Send it to an engine."""
        settings = self.gateway.settings
        self.engine, self.placed = engine, now
        self.sent = now if self.sent is None else self.sent
        self.head = None
        # An answer that is not streamed has its first byte at its end, however long that takes.
        self.due = min(self.deadline, now + settings.first_byte) if self.wanted else self.deadline
        if self.stage == "prefill" and engine.bootstrap:
            self._ask_both(engine)
        else:
            self.upstream = engine.pool.ask(self, message(self, engine), fresh)

    def _ask_both(self, engine: Engine) -> None:
        """SGLang: while one engine computes the prompt, another one is asked for the answer."""
        self.transfer = room(engine)
        self.companion = Companion(self, engine, message(self, engine))
        self.engine, self.stage, self.prefilled, self.new = None, "decode", engine.name, 0
        self.tries -= 1  # nothing has failed
        self.gateway.placing.admit(self, again=True)

    def unreachable(self, pool: Pool, why: str) -> None:
        """A connection that was to be opened for it is not to be had: the engine never had it."""
        engine = self.engine
        if engine is not None and engine.pool is pool and self.upstream is None:
            engine.errors += 1
            self.tries -= pool.refused  # those who are found dead are found only once
            self.retry(why)
            self.gateway.unreachable(engine, why)

    def connected(self, upstream: Upstream) -> bool:
        """A connection that was opened for it is there; False where it is not wanted any more."""
        if self.exchange.done or self.engine is None or upstream not in self.engine.pool.all or self.upstream:
            return False
        self.upstream = upstream
        return True

    # ------------------------------------------------------------------------------------------ from an engine

    def answered(self, head: ResponseHead) -> None:
        """The head of the answer."""
        if self.engine is not None:
            self.engine.answered = True
        if head.status == 404 and self.reference and self.keeper is None and self._another():
            self.tries -= 1  # it is looked for, and this one has not failed
            self._drop_upstream()
            self.retry("the engine has no such thing")
            return
        if (head.status in RETRIED or head.status == FULL) and self._another():
            self._decline(head.status, f"the engine answered {head.line.decode('latin-1')}")
            return
        self.head = head
        events = head.fields.get(b"content-type", b"").startswith(b"text/event-stream")
        coded = head.fields.get(b"content-encoding", b"identity").lower() != b"identity"
        self.streaming = events and not coded
        # Compressed events cannot be told apart, and what comes piece by piece on a path that is not known may be a
        # stream of any kind: held until it is whole, it would be none.
        if (events and coded) or (self.endpoint == "other" and head.length in (CHUNKED, UNTIL_CLOSE)):
            self._most = 0
        if self.streaming:
            self.due = min(self.deadline, self.gateway.now() + self.gateway.settings.silence)

    def _decline(self, status: int, why: str) -> None:
        """The engine says that it cannot: another one is asked."""
        if status != FULL and self.engine is not None:
            self.blame(self.engine, why)
        self._drop_upstream()
        if status != FULL and self.engine is not None:
            self._leave_when_known(self.engine, why, False)  # some say so before they die, as vLLM does
        else:
            self.retry(why)

    def blame(self, engine: Engine, why: str) -> None:
        """An engine failed it; whether that is the engine's fault shows when another one answers it."""
        if engine not in self.stumbled:  # one request counts once
            engine.errors += 1
        self.stumbled = {**self.stumbled, engine: (why, engine.downs)}

    def payload(self, data: bytes) -> None:
        """A piece of the answer."""
        gateway = self.gateway
        now = gateway.now()
        due = now + gateway.settings.silence
        self.due = due if due < self.deadline else self.deadline
        if not self.streaming:
            self._keep(data, now)
            return
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if not data.endswith(b"\n\n"):
            data = self._whole_events(data)
            if not data:
                return
        if self._named:
            tokens = api.named_tokens(data)
            if self.endpoint == "responses" and self.engine is not None and not self.announced:
                self.announced = gateway.kept.streams(data, self.engine, self.tenant)
        else:  # one with each event
            tokens = data.count(b"\ndata:") + data.startswith(b"data:") - data.endswith(b"data: [DONE]\n\n")
            if self.first is None and tokens > 0 and self.endpoint == "chat":
                tokens -= api.begins_with_role(data)
        # Looked for in every event of every stream: without the first letters it takes half the time.
        if b'rror":' in data and (fault := api.streamed_error(data)):
            tokens -= 1
            if self._failed(*fault):
                return
        if b'"usage":' in data:
            self.usage = api.streamed_usage(data, self.usage)
            self._ended = api.ends(self.endpoint, self._final)  # what comes before it may have been the end
        self._final = data
        # Clients first: what is to be written down can wait.
        if tokens > 0 and self.first is None:
            self._first(tokens, data, now)
            return
        if self.exchange.started or self._ripe(data):
            self.exchange.write(self._early + data if self._early else data)
            self._early = b""
        if tokens > 0:
            self._count(tokens, now)

    def _ripe(self, data: bytes) -> bool:
        """Whether the answer begins: its first token is there, or an error, or too much else to keep."""
        known = len(self._early) + len(data)
        if self.first is None and not self._fault and known < EARLY and _ITEM not in data:
            self._early += data
            return False
        self._begin()
        return True

    def _failed(self, status: int, why: str) -> bool:
        """An error came among the events of the stream; whether another engine is asked."""
        why = f"the engine reported an error in its stream: {why[:300]}"
        if self.first is None and (status >= STUMBLED or status == FULL) and self._another():
            self._decline(STUMBLED if status >= STUMBLED else status, why)
            return True
        if not self._fault:
            self._fault, self.error = status, why
            if self.engine is not None and status >= STUMBLED:
                self.engine.errors += 1
        return False

    def _whole_events(self, data: bytes) -> bytes:
        """Up to the end of the last whole event; the rest waits, unless it is enormous."""
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        if len(data) - cut > EVENT:
            self._torn = True
            return data
        self._tail = data[cut:]
        return data[:cut]

    def _first(self, tokens: int, data: bytes, now: float) -> None:
        """The first tokens came."""
        self.first = now
        self.tokens += tokens
        if not self.exchange.started:
            self._begin()
        self.exchange.write(self._early + data)
        self._early = b""
        self._began(now)

    def _count(self, events: int, now: float) -> None:
        """So many more tokens came."""
        engine, gateway = self.engine, self.gateway
        assert engine is not None
        self.tokens += events
        gap = (now - self.last) / events
        gateway.fleet.streamed(engine.number, events, gap)
        self._kv += events
        gateway.counters.itl.observe(gap)
        if gateway.shadow is not None:
            gateway.shadow.streamed(self, events, gap)
        self.last = now

    def _began(self, now: float) -> None:
        """The first token is there."""
        assert self.engine is not None
        self.first = self.last = now
        gateway = self.gateway
        self._kv = self.request.prompt
        # Of an answer that came whole nobody knows when its first token was there.
        gateway.fleet.began(self.engine.number, self.request, self.new, now - self.placed if self.streaming else None)
        self.new = 0
        if self.streaming:
            self.called = gateway.recent.name(self.tenant)
            gateway.counters.began(now - self.arrival, gateway.model(self), self.called, self.engine.name)
        gateway.began(self)

    def _keep(self, data: bytes, now: float) -> None:
        """An answer that is not streamed is held until it is whole; a very long one goes on as it comes."""
        if not self.exchange.started:
            self._pieces.append(data)
            self._held += len(data)
            if self._held <= self._most:
                return
            data, self._pieces = b"".join(self._pieces), []
            self._begin()
        if self.first is None:
            self._began(now)
        self.exchange.write(data)

    def _begin(self) -> None:
        assert self.head is not None
        if self.streaming and not self._torn:
            self.exchange.nothing = b":\n\n"  # a comment, between two events
        self.exchange.begin(self.head.line, self._lines())

    def _lines(self) -> list[bytes]:
        assert self.head is not None and self.engine is not None
        kept, fields = self.head.kept, self.head.fields
        if b"x-request-id" in fields or (self.gateway.origins is not None and b"access-control-allow-origin" in fields):
            own = (b"x-request-id:", b"access-control-") if self.gateway.origins else (b"x-request-id:",)
            kept = [line for line in kept if not line[:16].lower().startswith(own)]  # the gateway says it itself
        more = [b"x-assay-prefill: " + self.prefilled.encode()] if self.prefilled else []
        return [*kept, self.engine.header, *more]

    def complete(self) -> None:
        """The answer is whole."""
        self.upstream = None
        head, exchange = self.head, self.exchange
        if head is None or exchange.done:
            return
        now = self.gateway.now()
        if self.stage == "prefill" and head.status == 200:
            self._hand_over(b"".join(self._pieces))
            return
        if exchange.started:
            exchange.finish(self._tail)
        elif self.streaming:  # a stream without a token
            self._begin()
            exchange.finish(self._early + self._tail)
        else:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            exchange.reply(head.status, self._lines(), body, head.line)
            if head.status == 200 and self.request.prompt:
                self.usage = api.usage(body)
            keeps = self.endpoint in _KEEPING and head.status == 200 and kept.concerns(exchange.head.path)
            if keeps and self.engine is not None:
                self.gateway.kept.answered(body, self.engine, self.tenant)
        if self.streaming and not self._fault and not (self._ended or api.ends(self.endpoint, self._final)):
            self._fault, self.error = 502, "cut: the engine's stream ended without [DONE] and without a finish reason"
            if self.engine is not None:
                self.engine.errors += 1
        if self._fault:
            self._end(self._fault, now)
            return
        if head.status < 300 and self.first is None:
            self._began(now)
        elif head.status < STUMBLED and self.engine is not None:
            self.gateway.well(self.engine)
        self._end(head.status, now)

    def _hand_over(self, answer: bytes) -> None:
        """An engine has computed the prompt: another one goes on from there, or begins anew where nothing was kept."""
        engine, gateway = self.engine, self.gateway
        assert engine is not None
        gateway.fleet.began(engine.number, self.request, self.new, None)
        engine.failures, self.new, self._kv = 0, 0, self.request.prompt
        self._off(engine)
        kept = api.handed_over(answer)
        self.stage, self.transfer = "decode", None if kept is None else {"kv_transfer_params": kept}
        self.prefilled = engine.name
        self.tries -= 1  # nothing has failed
        self._forget()
        gateway.placing.admit(self, again=True)
        gateway.placing.room(engine)

    def _forget(self) -> None:
        """Nothing of an engine's answer counts any more."""
        self._pieces, self._held, self._most, self._tail, self.head = [], 0, HELD, b"", None
        self._early, self.streaming = b"", False
        self._final, self._ended = b"", False

    # ------------------------------------------------------------------------------------------ what goes wrong

    def broken(self, why: str, stale: bool) -> None:
        """The connection to the engine failed."""
        self.upstream = None
        if self.exchange.done or self.engine is None:
            return
        if stale and not self.exchange.started:  # the engine had closed it already: that says nothing about the engine
            self.ask(self.engine, self.gateway.now(), fresh=True)
            return
        engine = self.engine
        self.blame(engine, why)
        if self.exchange.started:
            self.gateway.roster.look(engine)
            self.give_up(502, f"the engine failed in the middle of its answer: {why}")
        else:
            # It was not asked what the client asked: one that lives may have failed with the hand-over itself.
            self._leave_when_known(engine, why, self.stage != "prefill")

    def _leave_when_known(self, engine: Engine, why: str, lost: bool) -> None:
        """Off an engine that failed, as soon as it is known whether that is dead: one that lives keeps all else."""
        self.due = self.deadline
        self.gateway.roster.when_known(engine, self.placed, lambda: self._leave(engine, why, lost))

    def bereave(self, engine: Engine, lost: bool) -> None:
        """An engine failed with it aboard (`lost`), or died."""
        died = engine.dead
        self.bereft |= died
        self.lost += lost or died

    def retry(self, why: str) -> None:
        """Ask another engine: the client has seen nothing yet."""
        engine = self.engine
        if self.exchange.done or engine is None:
            return
        self._drop_upstream()
        self._drop_companion()
        self._off(engine)
        self.failed |= {engine}
        self._forget()
        placing = self.gateway.placing
        if self.stage == "decode" or (self.stage and not placing.able(self)):
            self.stage, self.transfer = placing.stage(self), None  # what was kept for it may be gone
        if self.lost >= LOST:
            self.give_up(
                502, f"engines failed twice while they had this request, and no third is asked: {why}", NO_RETRY
            )
            placing.room(engine)
            return
        if not placing.able(self):
            placing.fall_back(self)
            for failed in (frozenset((engine,)), NOBODY):  # all have failed it: whoever else is up gets a second chance
                self.failed = failed
                if placing.able(self):
                    break
        if self._asks_again():
            self.gateway.counters.retries += 1
            placing.admit(self, again=True)
        elif placing.starting(self) and not placing.able(self):  # nobody is up yet, and somebody may be soon
            self.failed = NOBODY
            self.tries = 0
            placing.admit(self, again=True)
        else:
            self._nobody_left(why)
        placing.room(engine)  # that it left

    def anew(self, why: str) -> None:
        """The engine that was to compute its prompt did not: from the beginning, at whoever else can."""
        self.companion = None
        engine, placing = self.engine, self.gateway.placing
        if engine is None:  # nobody has been asked for the answer yet
            self.tries += 1
        else:
            self._drop_upstream()
            self._off(engine)
            self._forget()
        placing.left(self)
        self.stage, self.transfer, self.prefilled = placing.stage(self), None, ""
        if self.lost < LOST and self._asks_again():
            self.gateway.counters.retries += 1
            placing.admit(self, again=True)
        else:
            self._nobody_left(why)
        placing.room(engine)

    def abandon(self, why: str) -> None:
        """Its engine is down: ask another one at once rather than wait for silence."""
        self._drop_upstream()
        self.gateway.later(self._leave, self.engine, why)

    def _leave(self, engine: Engine | None, why: str, lost: bool = True) -> None:
        """Off the engine that it was on when that went down, unless something else took it off meanwhile."""
        if engine is not None and self.engine is engine:
            self.bereave(engine, lost)
            self.retry(why)

    def _nobody_left(self, why: str) -> None:
        more = NO_RETRY if self.gateway.placing.spares(self) else ()
        self.give_up(502, f"the engine failed, and there is no other to ask: {why}", more)

    def _asks_again(self) -> bool:
        """Whether there is somebody left to ask, or is worth waiting for."""
        placing = self.gateway.placing
        return self.tries < self.gateway.settings.attempts and (placing.able(self) or placing.spares(self))

    def _another(self) -> bool:
        """Whether the client can still be spared, and there is an engine that was not tried."""
        gateway = self.gateway
        if self.exchange.started or self.tries >= gateway.settings.attempts:
            return False
        return gateway.placing.another(self)

    def late(self, now: float) -> None:
        """The sweep found that it takes too long."""
        if now >= self.deadline:
            self._drop_upstream()
            self.give_up(504, f"no complete answer within {self.gateway.settings.deadline:g} s")
        elif self.engine is None and self.gateway.placing.able(self):
            self.due = self.deadline  # one came up, and is full: now it waits for its turn
        elif self.engine is None and self.gateway.placing.spares(self):
            why = "an engine died while it had this request, and no second one is up: it is not sent to the last"
            self.give_up(503, why, (b"retry-after: %d" % ceil(self.gateway.settings.pause), *NO_RETRY))
        elif self.engine is None:
            self.give_up(503, "no engine that could answer is up", RETRY)
        else:
            waited = now - (self.placed if self.first is None else self.last)
            self._drop_upstream()
            self.broken(f"no byte for {waited:.1f} s", False)

    def give_up(self, status: int, why: str, more: tuple[bytes, ...] = (), kind: str = "") -> None:
        """End it in an error that the client can read."""
        exchange = self.exchange
        if exchange.done:
            return
        self.error = why
        self._drop_upstream()
        if not exchange.started:
            exchange.refuse(status, why, kind, more)
        elif self.streaming:
            end = b"\n\n" if self._torn else b""  # of the event that is under way
            name = b"event: error\n" if self._named else b""
            exchange.finish(end + name + b"data: " + error_body(why, "server_error", status) + b"\n\n")
        else:
            exchange.cut()
        self._end(status, self.gateway.now())

    def gone(self) -> None:
        """The client left: so may the engine."""
        self._drop_upstream()
        self.error = "the client left"
        self._end(LEFT, self.gateway.now())

    def pace(self, go: bool) -> None:
        """The client is slow, or caught up: so is the engine's answer read."""
        if self.upstream is not None:
            self.upstream.pace(go)
            now = self.gateway.now()
            self.due = min(self.deadline, now + self.gateway.settings.silence) if go else self.deadline

    def _drop_upstream(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.drop()

    def _drop_companion(self) -> None:
        companion, self.companion = self.companion, None
        if companion is not None:
            companion.drop()

    # ------------------------------------------------------------------------------------------ the end

    def _off(self, engine: Engine) -> None:
        """It is no longer on an engine."""
        self.gateway.off(self, engine, self._kv)
        self.engine = None
        self.new = self._kv = 0

    def _end(self, status: int, now: float) -> None:
        self.status, self.last = status, now
        engine = self.engine
        if status != 200:
            self._drop_companion()
        if engine is not None:
            self._off(engine)
        self.engine = engine  # for the log
        self.gateway.ended(self, now)

    def used(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer that an engine computed, as it counts them where it says.

        Of what was refused or failed before its first token nothing; who leaves meanwhile has had the prompt computed.
        """
        usage = self.usage
        if self.endpoint == "other" or (self.first is None and (self.status != LEFT or self.sent is None)):
            return 0, 0
        if usage is None:
            return self.request.prompt, self.tokens
        output = usage.output if usage.completion_tokens is None else usage.completion_tokens
        prompt = usage.prompt_tokens or usage.prompt or self.request.prompt
        return prompt, self.tokens if output is None else output

    def finished(self, now: float) -> Finished:
        """What became of it, for components that learn."""
        assert self.engine is not None and self.first is not None
        usage = self.usage
        output, cached = (usage.output, usage.cached) if usage else (None, None)
        return Finished(
            self.tokens if output is None else output, self.first - self.arrival, now - self.arrival,
            self.matched if cached is None else cached, self.engine.number,
        )  # fmt: skip


def hash_ids(path: np.ndarray[tuple[int], np.dtype[np.uint64]], every: int) -> list[int]:
    """The path for the log: the hash of each `every`-th block, which stands for all before it, in 40 bits.

    Where the path ends between two of these, the rest has no id: one for less than a whole block would be read as one.
    40 bits are short to write, exact in every JSON reader, and enough: an id only tells apart what goes on differently
    from the same beginning.
    """
    ids: list[int] = (path[every - 1 :: every] >> np.uint64(24)).tolist()
    return ids
