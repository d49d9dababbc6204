"""The engines as a policy sees them, live: the gateway's own counts, always fresh, and what the engines say.

The gateway knows exactly what it sent and what came back: requests on board, prompt tokens not answered yet, tokens
streamed, times. That comes first. What only an engine knows (how many of its requests wait, how full its memory is,
what its cache holds) is asked for now and then, and `age` says how long ago; in between, what is sent and what comes
back moves it on. A policy that weighs waiting requests would otherwise avoid an engine for a queue long gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.live.prefix_index import Corrections, PrefixIndex
from assay.live.upstream import Address, Pool
from assay.serving.interface import Fleet, Floats, Ints, Request
from assay.sim.llm_cost import StepCost

UNSURE = 16  # of a prompt that no answer has come to, at most this part of an engine's blocks is taken for cached
SMOOTHING = 0.1  # weight of the newest observation in the moving averages of times
NO_PATH = np.zeros(0, np.uint64)

STARTING, UP, DOWN, DRAINING = "starting", "up", "down", "draining"


@dataclass(eq=False)
class Engine:
    """One engine: where it is, how it fares."""

    address: Address
    pool: Pool
    name: str = ""
    key: bytes = b""  # what it wants in Authorization; empty: what the client sent
    tp: int = 1
    cost: StepCost | None = None  # where its layout is known, for policies that predict
    events: str = ""  # where it publishes KV events
    state: str = UP
    number: int = -1  # its place in the fleet
    aboard: int = 0  # requests sent and not answered
    limit: int = 256  # of them at once
    room: int = 0  # of them at present: one, while it has to show that it can
    trial: bool = False  # its health was fine while it failed requests: health alone does not bring it back
    blocks: int = 65536  # that its cache is thought to hold
    corrections: Corrections = field(default_factory=lambda: Corrections(65536))
    models: tuple[str, ...] = ()
    failures: int = 0  # in a row
    downs: int = 0  # how often it went down: what it failed before says nothing about it afterwards
    doubted: set[Any] = field(default_factory=set)  # requests that others failed with, and that it has not begun
    watched: frozenset[Any] = frozenset()  # of them those that were there at the last health check
    trust: int = 1  # how many of them it may have at once
    retry: float = float("-inf")  # when a broken circuit is tried again
    added: float = float("-inf")  # since when it is here
    answered: bool = False  # at least once: before that it may still be starting
    well: bool = True  # as its last health check said
    family: str = ""
    role: str = ""  # prefill: it computes prompts for others; decode: it takes them over
    bootstrap: int = 0  # of SGLang: the port where a decoding engine fetches the prompts that this one computes
    replay: str = ""  # where missed events can be asked for
    source: str = ""  # who said that it is there, where nobody wrote it down
    note: str = ""  # what its metrics lack, or why it is down
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    prompt: int = 0  # tokens of the prompts it was sent
    matched: int = 0  # of them thought to be cached there
    hits: int = 0  # prompt tokens that its answers called cached
    asked: int = 0  # prompt tokens of the answers that said
    seen: float = field(default=float("-inf"), repr=False)  # when its metrics were last read
    header: bytes = field(default=b"", repr=False)  # its name as a client sees it
    host: bytes = field(default=b"", repr=False)  # what it is asked with, after the target

    def __post_init__(self) -> None:
        self.room = self.limit
        self.rename(self.name)
        self.host = b" HTTP/1.1\r\nhost: " + self.address.authority

    def rename(self, name: str) -> None:
        """What it is called from now on."""
        self.name = name
        self.header = b"x-assay-engine: " + name.encode()

    @property
    def open(self) -> bool:
        """Whether it may be given one more."""
        return self.state == UP and self.aboard < self.room

    @property
    def dead(self) -> bool:
        """Whether it is known to be: nobody listens, or its health fails."""
        return self.state != UP or not self.well


class LiveFleet(Fleet):
    """The engines in arrays: this gateway's own counts, and with them what somebody else sends to the same engines."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.engines: list[Engine] = []
        self.names: tuple[str, ...] = ()  # of the engines, by number
        self.scale = 1.0  # an engine's tokens for one of ours
        self.paths: dict[int | str, NDArray[np.uint64]] = {}  # of requests under way
        self.scores: Any = None  # what the last decision went by
        self.slots: Ints = np.zeros(0, np.int64)
        self._fresh: Ints = np.zeros(0, np.int64)  # of those that wait, who came since the engine was last heard of
        self._silent: Ints = np.zeros(0, np.int64)  # requests without a token yet
        self._others: Ints = np.zeros(0, np.int64)  # requests that somebody else sent
        self._free: Floats = np.zeros(0)  # share of its memory that an engine called free,
        self._kv_then: Ints = np.zeros(0, np.int64)  # what its sequences held then,
        self._room: Floats = np.zeros(0)  # and the tokens that its memory has room for
        self._matched: int | str | None = None
        self._hits: Ints = np.zeros(0, np.int64)
        self._resize(lambda old: old)

    @property
    def age(self) -> Floats:  # type: ignore[override]
        """Seconds since each engine's metrics were read; infinite where it has none."""
        return np.array([self.now - engine.seen for engine in self.engines])

    # ---------------------------------------------------------------------------------- what policies ask

    def match(self, request: Request) -> Ints:
        """Leading prompt tokens that each engine probably has in its cache."""
        if request.id != self._matched:
            self.index.match(self.paths.get(request.id, NO_PATH), self.now, self._hits)
            if self.scale != 1.0:
                self._hits[:] = self._hits * self.scale
            self._matched = request.id
        return self._hits

    def look_up(self, request: Request, tokens: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """The path of a prompt; what each engine has of it is known then, for as long as nothing else is asked."""
        path = self.index.look_up(tokens, self.now, self._hits)
        if self.scale != 1.0:
            self._hits[:] = self._hits * self.scale
        self._matched = request.id
        return path

    def known(self, matched: int) -> int:
        """Whole blocks of the index that so many matched tokens are."""
        return round(matched / self.scale / self.index.block)

    def forget(self, i: int) -> None:
        """Engine i has nothing in its cache any more."""
        self.index.clear(i)
        self._matched = None

    def cache_changed(self) -> None:
        """Somebody else told the index something."""
        self._matched = None

    def argmin(self, score: Any, *ties: Any, alone: int = -1) -> int:
        """As `Fleet.argmin`, and remembers the scores for whoever looks on."""
        self.scores = score.copy() if isinstance(score, np.ndarray) else score  # a policy may go on counting in it
        return super().argmin(score, *ties, alone=alone)

    @property
    def kv_free(self) -> Floats:
        """As each engine said last, less what its sequences took since and more what they gave back.

        All of it where nobody is on board.
        """
        grown = (self.kv_tokens - self._kv_then) / self._room
        return np.where(self.batch_size > 0, np.clip(self._free - grown, 0.0, 1.0), 1.0)

    @kv_free.setter
    def kv_free(self, share: Floats) -> None:
        self._free[:], self._kv_then[:] = share, self.kv_tokens

    # --------------------------------------------------------------------------------- what becomes of requests

    def sent(self, i: int, request: Request, new: int) -> None:
        """A request goes to engine i, which will compute `new` of its prompt tokens.

        An idle engine begins with it at once. A busy one looks at its queue between two iterations: until something
        comes from it, the request waits.
        """
        if self.running[i] or self.waiting[i]:
            self.waiting[i] += 1
            self._fresh[i] += 1
        else:
            self.running[i] = 1
        self._silent[i] += 1
        self.prefill_tokens[i] += new
        path = self.paths.get(request.id)
        if path is not None and len(path):
            most = self.engines[i].blocks // UNSURE
            self.index.insert(i, path if len(path) <= most else path[:most], self.now)
            self._matched = None

    def refused(self, i: int, request: Request, known: int) -> None:
        """Engine i did not take a request: all but the blocks that it had before is not cached there."""
        path = self.paths.get(request.id)
        if path is not None and known < len(path):
            self.index.remove(i, path[known : known + 1])
            self._matched = None

    def began(self, i: int, request: Request, new: int, ttft: float | None) -> None:
        """The first token of a request is there: engine i has its prompt."""
        self.prefill_tokens[i] -= new
        self.kv_tokens[i] += request.prompt
        self._silent[i] -= 1
        path = self.paths.get(request.id)
        if path is not None and len(path) > self.engines[i].blocks // UNSURE:
            self.index.insert(i, path, self.now)
            self._matched = None
        self._stepped(i)
        if ttft is not None:
            known = self.ttft[i]
            self.ttft[i] = known + SMOOTHING * (ttft - known) if known else ttft

    def streamed(self, i: int, tokens: int, gap: float) -> None:
        """More tokens, `gap` seconds after the last."""
        self.kv_tokens[i] += tokens
        if self._fresh[i]:
            self._stepped(i)
        known = self.itl.item(i)  # a number of Python's own: what is done with one of NumPy's takes three times as long
        self.itl[i] = known + SMOOTHING * (gap - known) if known else gap

    def _stepped(self, i: int) -> None:
        """An iteration of engine i is over: who came during it is taken in, unless the queue was longer before."""
        waiting, fresh = self.waiting.item(i), self._fresh.item(i)
        if not waiting and not fresh:
            return
        left = 0 if waiting == fresh else waiting
        self._fresh[i] = 0
        self._wait(i, left, waiting + self.running.item(i))

    def _wait(self, i: int, waiting: int, load: int) -> None:
        """So many of `load` wait; of this gateway's at most those without a token."""
        if waiting:
            waiting = min(waiting, self._silent.item(i) + self._others.item(i), load)
        self.waiting[i] = waiting
        self.running[i] = load - waiting
        if self._fresh.item(i) > waiting:
            self._fresh[i] = waiting

    def ended(self, i: int, request: Request, held: int, new: int) -> None:
        """A request is off engine i: it held `held` tokens, or had still `new` to compute."""
        waiting = self.waiting.item(i)
        load = waiting + self.running.item(i)
        if new:  # it had no token, so it is one of those that wait, if any does
            self._silent[i] -= 1
            waiting = max(waiting - 1, 0)
        self.kv_tokens[i] -= held
        self.prefill_tokens[i] -= new
        self._wait(i, waiting, max(load - 1, 0))

    def told(self, i: int, waiting: int, load: int, aboard: int) -> None:
        """Engine i says that `waiting` of `load` requests wait, when this gateway had `aboard` there."""
        self._others[i] = max(load - aboard, 0)
        self._wait(i, waiting, int(self.engines[i].aboard + self._others[i]))

    def told_free(self, i: int, share: float, room: float) -> None:
        """Engine i says which share of its KV memory is free; it has room for so many tokens, infinite if unknown."""
        self._free[i], self._kv_then[i], self._room[i] = share, self.kv_tokens[i], room

    # --------------------------------------------------------------------------------------------- who is there

    def add(self, engine: Engine, blocks: int | None = None) -> None:
        """One more engine."""
        engine.number = len(self.engines)
        self.engines.append(engine)
        self.index.add(blocks)
        self._resize(lambda old: np.append(old, old.dtype.type(0)))
        self._free[-1], self._room[-1], self.tp[-1] = 1.0, np.inf, engine.tp
        self.slots[-1] = engine.limit

    def drop(self, engine: Engine) -> None:
        """One engine less; those after it move up."""
        gone = engine.number
        self.engines.remove(engine)
        for number, left in enumerate(self.engines):
            left.number = number
        self.index.drop(gone)
        self._resize(lambda old: np.delete(old, gone))

    def called(self) -> None:
        """Somebody came, went, or has another name."""
        self.names = tuple(engine.name for engine in self.engines)

    def _resize(self, change: Any) -> None:
        self.called()
        names = {"running": np.int64, "waiting": np.int64, "prefill_tokens": np.int64, "kv_tokens": np.int64,
                 "itl": np.float64, "ttft": np.float64, "tp": np.int64, "slots": np.int64, "_fresh": np.int64,
                 "_silent": np.int64, "_others": np.int64, "_free": np.float64, "_kv_then": np.int64,
                 "_room": np.float64}  # fmt: skip
        for name, kind in names.items():
            setattr(self, name, change(getattr(self, name, np.zeros(0, kind))))
        self._hits = np.zeros(len(self.running), np.int64)
        self._matched = None
        costs = [engine.cost for engine in self.engines if engine.cost is not None]
        self.costs = costs if len(costs) == len(self.engines) else ()
