"""Requests on board of the mock engine: each token leaves at the time the simulator gives it.

Times are absolute, so being late does not add up. On a core of its own an iteration's first token leaves 0.2 ms after
its simulated time and each further one 11 us later, most of which is the kernel's: with 1, 32 and 200 streams the last
one is 0.2, 0.5 and 2.4 ms late in the median and 0.4, 1.0 and 3.8 ms in the 99th percentile. How late tokens do leave
is at `/metrics`, as `assay:token_lateness_seconds`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from assay.live import mock_text as text
from assay.live import mock_wire as wire
from assay.live.mock_api import Invalid
from assay.live.mock_clock import Alarm, Clock
from assay.live.mock_faults import Fault, Faults
from assay.live.mock_metrics import Metrics, Steps
from assay.live.mock_text import Answer
from assay.live.mock_wire import Events, Usage
from assay.live.server import JSON, REASONS, Exchange
from assay.live.tokens import Tokens

if TYPE_CHECKING:
    from assay.live.kv_events import Event, Publisher
    from assay.serving.engine.online import OnlineInstance
    from assay.serving.fleet import Instance
    from assay.serving.interface import Order

MOST_SEQUENCES = 256  # of one request: prompts times n
_LATER = 0.01  # seconds from the last bytes of a broken answer to the end of its connection


@dataclass(frozen=True)
class Settings:
    """What an engine is. `instance` None: it answers at once."""

    model: str
    instance: Instance | None = None
    block: int = 16
    max_model_len: int = 131_072
    speed: float = 1.0
    seed: int = 0
    prefix_caching: bool = True
    prompt_details: bool = False
    kv_events: str | None = None
    kv_replay: str | None = None
    faults: tuple[str, ...] = ()
    order: Order | None = None

    def online(self) -> OnlineInstance | None:
        """The instance, with nobody on board."""
        if self.instance is None:
            return None
        from assay.serving.engine.online import OnlineInstance

        return OnlineInstance(
            self.instance, block=self.block, slots=max(1024, 4 * self.instance.max_seqs), longest=self.max_model_len,
            prefix_cache=self.prefix_caching, order=self.order, events=self.kv_events is not None,
        )  # fmt: skip


class Sequence:
    """One answer under way."""

    __slots__ = ("answer", "at", "call", "framing", "last", "leads", "slot", "written")

    def __init__(self, call: Call, answer: Answer, framing: Events | None = None) -> None:
        self.call, self.answer, self.framing = call, answer, framing  # without a framing it is no stream
        self.at = self.written = 0  # tokens that came, and that were written
        self.last = 0.0
        self.leads = True  # the first of its prompt: the others of `n` find what it computed
        self.slot = -1


@dataclass(slots=True, eq=False)
class Call:
    """One request."""

    exchange: Exchange
    rows: list[Tokens]  # prompts
    whole: Callable[[Usage], bytes]  # the answer that comes at once
    stream: bool = False
    farewell: Callable[[Usage], bytes] = lambda usage: wire.DONE  # what a stream ends with
    failure: Callable[[str], bytes] = wire.failure  # what one ends with that went wrong
    sequences: list[Sequence] = field(default_factory=list)
    open: int = 0  # sequences not written to their end
    cached: int = 0
    arrival: float = 0.0
    slow: float = 1.0
    cut_at: int = -1  # tokens after which the connection breaks
    spoil_at: int = -1  # tokens after which an error is reported in the stream

    def usage(self, tell_cached: bool) -> Usage:
        """What it took."""
        said = sum(len(sequence.answer.tokens) for sequence in self.sequences)
        return Usage(sum(map(len, self.rows)), said, self.cached if tell_cached else None)


class Board:
    """The instance, its clock and who is on board. Needs a running loop; `close` when done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.faults = Faults(list(settings.faults), settings.seed)
        self.instance = settings.online()
        self.clock = Clock(settings.speed)
        self.publisher = _publisher(settings)
        self._alarm = Alarm(self.clock, self._ring)
        self._sequences: dict[int, Sequence] = {}  # by slot
        self._loop = asyncio.get_running_loop()
        self.arrived = 0.0  # when the request that is being read was here; reading it takes no simulated time

    def close(self) -> None:
        """Stop the clock."""
        self._alarm.close()
        if self.publisher is not None:
            self.publisher.close()

    # -------------------------------------------------------------------------------------------------- coming

    def submit(self, call: Call) -> None:
        """Put a request on board, unless something befalls it. Raises Invalid where there is no room."""
        count = len(call.sequences)
        if count > MOST_SEQUENCES:
            raise Invalid(f"{count} sequences in one request; there may be {MOST_SEQUENCES}")
        if self.instance is not None and self.instance.free_slots < count:
            raise Invalid("the queue is full", None, 503)
        fault = self.faults.next()
        if fault is not None:
            self.metrics.faults[fault.kind] += 1
            if self._befall(call, fault):
                return
        call.open = count
        call.exchange.left = partial(self._gone, call)
        call.arrival = self.arrived
        if call.stream:
            call.exchange.begin(REASONS[200], wire.EVENTS)
        if self.instance is None:
            self._at_once(call)
            return
        each = count // len(call.rows)
        for number, sequence in enumerate(call.sequences):
            prompt, sequence.leads = call.rows[number // each], number % each == 0
            sequence.slot = self.instance.submit(prompt, sequence.answer.tokens, call.arrival)
            self._sequences[sequence.slot] = sequence
        self._alarm.set(self.instance.next)

    def _befall(self, call: Call, fault: Fault) -> bool:
        """Whether that was all there is to say to the request."""
        kind, exchange = fault.kind, call.exchange
        if kind == "crash":
            os._exit(1)
        if kind == "error":
            exchange.refuse(int(fault.value), "a fault that was asked for")
        elif kind == "refuse":
            exchange.cut()
        elif kind == "slow":
            call.slow = fault.value
        elif kind == "disconnect":
            call.cut_at = len(call.sequences[0].answer.tokens) // 2
        elif kind == "spoil" and call.stream:
            call.spoil_at = int(fault.value * len(call.sequences[0].answer.tokens))
        elif kind == "spoil":
            exchange.refuse(500, "a fault that was asked for")
        return exchange.done or kind == "hang"

    def _at_once(self, call: Call) -> None:
        for sequence in call.sequences:
            self.metrics.ended[_reason(sequence)] += 1
            for _ in sequence.answer.pieces:
                self._write(sequence)

    # ------------------------------------------------------------------------------------------ tokens and their end

    def _ring(self) -> None:
        """The end of an iteration, or of several."""
        instance, clock, sequences = self.instance, self.clock, self._sequences
        assert instance is not None
        for emission in instance.advance(clock.now()):
            moment = emission.time
            for slot in emission.slots.tolist():
                sequence = sequences.get(slot)
                if sequence is not None:
                    self._token(sequence, moment)
            self.metrics.lateness.add((clock.now() - moment) / clock.speed)
        self.publish()
        self._alarm.set(instance.next)

    def _token(self, sequence: Sequence, moment: float) -> None:
        """A token came at `moment`."""
        call, speed = sequence.call, self.clock.speed
        if sequence.at:
            self.metrics.itl.add((moment - sequence.last) / speed)
        else:
            self.metrics.ttft.add((moment - call.arrival) / speed)
        sequence.last = moment
        sequence.at += 1
        if sequence.at == len(sequence.answer.pieces):
            self._ended(sequence)
        if call.slow == 1.0:
            self._write(sequence)
        else:
            due = self.clock.wall(call.arrival + call.slow * (moment - call.arrival))
            self._loop.call_later(max(due - time.monotonic(), 0.0), self._write, sequence)

    def _ended(self, sequence: Sequence) -> None:
        """The instance is done with a sequence."""
        assert self.instance is not None
        progress, metrics, speed = self.instance.progress(sequence.slot), self.metrics, self.clock.speed
        del self._sequences[sequence.slot]
        sequence.call.cached += progress.cached * sequence.leads
        metrics.e2e.add((progress.finish - progress.arrival) / speed)
        metrics.queue.add((progress.admitted - progress.arrival) / speed)
        metrics.prefill.add((progress.first - progress.admitted) / speed)
        metrics.decode.add((progress.finish - progress.first) / speed)
        metrics.ended[_reason(sequence)] += 1

    def _gone(self, call: Call) -> None:
        """Nobody waits for the answer any more."""
        if self.instance is None:
            return
        now = self.clock.now()
        for sequence in call.sequences:
            if self._sequences.get(sequence.slot) is sequence:
                del self._sequences[sequence.slot]
                self.instance.cancel(sequence.slot, now)
                self.metrics.ended["abort"] += 1
        self._alarm.set(self.instance.next)

    # ------------------------------------------------------------------------------------------------- to a client

    def _write(self, sequence: Sequence) -> None:
        """A token's event leaves; with the last one, the rest of the answer."""
        call, i = sequence.call, sequence.written
        sequence.written += 1
        if call.stream and 0 <= call.cut_at <= i:
            self._gone(call)
            self._loop.call_later(_LATER, call.exchange.cut)
            return
        if 0 <= call.spoil_at <= i:  # as vLLM does: 200, an error among the events, and the end as always
            self._gone(call)
            call.exchange.finish(call.failure("a fault that was asked for"))
            return
        call.open -= sequence.written == len(sequence.answer.pieces)
        if sequence.framing is not None:
            data = sequence.framing.chunk(i)
            if call.open:
                call.exchange.write(data)
            else:
                call.exchange.finish(data + call.farewell(call.usage(self.settings.prompt_details)))
        elif not call.open:
            self._reply(call)

    def _reply(self, call: Call) -> None:
        """The answer as a whole, or half of it and the end of the connection."""
        exchange, body = call.exchange, call.whole(call.usage(self.settings.prompt_details))
        if call.cut_at < 0:
            exchange.reply(200, [JSON], body)
            return
        exchange.begin(REASONS[200], [JSON])
        exchange.write(body[: len(body) // 2])
        self._loop.call_later(_LATER, exchange.cut)

    # --------------------------------------------------------------------------------------------- what can be seen

    def page(self) -> bytes:
        """The metrics page."""
        settings, instance = self.settings, self.instance
        gauges = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
        names = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")
        counters, steps, room = dict.fromkeys(names, 0.0), Steps(), 0
        if instance is not None and settings.instance is not None:
            totals, room = instance.totals, settings.instance.room
            gauges = dict(zip(gauges, map(float, (instance.running, instance.waiting, instance.kv_usage)), strict=True))
            counters = dict(zip(names, map(float, totals[1:]), strict=True))
            computed = totals.prefix_queries - totals.prefix_hits + totals.generation_tokens
            steps = Steps(computed, totals.iterations)
        config = {
            "block_size": settings.block, "num_gpu_blocks": room // settings.block,
            "enable_prefix_caching": settings.prefix_caching,
        }  # fmt: skip
        return self.metrics.page(settings.model, gauges, counters, config, steps)

    def reset_cache(self) -> None:
        """Forget every block that no running request holds."""
        if self.instance is not None:
            self.instance.reset_cache()
            self.publish()

    def publish(self) -> None:
        """Tell whoever listens what came into the cache and what left it."""
        if self.publisher is None or self.instance is None:
            return
        from assay.live.kv_events import Batch

        events = _events(self.instance)
        if events:
            self.publisher.publish(Batch(time.time(), events))


def _publisher(settings: Settings) -> Publisher | None:
    if settings.kv_events is None:
        return None
    from assay.live.kv_events import Publisher

    return Publisher(settings.kv_events, replay_endpoint=settings.kv_replay)


def _events(instance: OnlineInstance) -> list[Event]:
    """What changed in the cache, as vLLM says it."""
    from assay.live.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
    from assay.serving.engine.online import Removed, Stored

    events: list[Event] = []
    for change in instance.changes():
        if isinstance(change, Stored):
            tokens = change.tokens.tolist()
            events.append(BlockStored([*change.words], change.before, tokens, instance.block, medium="GPU"))
        elif isinstance(change, Removed):
            events.append(BlockRemoved([*change.words], "GPU"))
        else:
            events.append(AllBlocksCleared())
    return events


def _reason(sequence: Sequence) -> str:
    return "length" if sequence.answer.finish == "length" else "stop"  # a call ends as a stop does


def warm_up(settings: Settings) -> None:
    """Load every compiled function before the first request, which else would wait for it."""
    if settings.instance is None:
        return
    small = replace(settings.instance, kv_tokens=64 * settings.block, max_seqs=min(4, settings.instance.max_seqs))
    online = replace(settings, instance=small, max_model_len=32 * settings.block, order=None).online()
    assert online is not None
    tokens = text.words(1, 4 * settings.block)
    slots = [online.submit(tokens, text.words(n, 4), 0.0) for n in range(3)]
    online.advance(online.next)
    online.cancel(slots[1], online.next)
    while online.next < math.inf:
        online.advance(online.next)
    online.reset_cache()
    if settings.kv_events is not None:
        online.changes()
