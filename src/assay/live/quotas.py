"""What each key may use: requests and tokens a minute, requests at once, and a budget a day that outlives the process.

A minute's allowance comes evenly: what is not used gathers up to one minute's worth. A prompt is paid for when it is
let in, an answer when it is over, since nobody knows before how long it will be; so an answer may leave a debt, which
the next ones wait for. A day is one of UTC.

>>> bucket = Bucket(60.0, 0.0)
>>> [bucket.take(30.0, now) for now in (0.0, 0.0, 0.0, 30.0)]
[True, True, False, True]
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import sys
import threading
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import IO, TYPE_CHECKING

import msgspec

from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.live.keys import Key, Keys
    from assay.live.relay import Relay
    from assay.live.settings import PriceSettings

DAY = 86_400.0
EVERY = 1.0  # seconds between two notes of what was spent
ANY = "*"  # the price of models that have none of their own


@dataclass(frozen=True)
class Allowance:
    """Of one key; zero: as much as it likes."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    parallel: int = 0
    tokens_per_day: int = 0
    dollars_per_day: float = 0.0

    @property
    def daily(self) -> bool:
        """Whether a restart must not forget what was used."""
        return bool(self.tokens_per_day or self.dollars_per_day)


UNLIMITED = Allowance()


@dataclass(frozen=True)
class Refusal:
    """Why a request is not let in, and after how many seconds it may be."""

    of: str  # the limit's name
    why: str
    wait: float
    kind: str = "rate_limit_exceeded"

    @property
    def lines(self) -> tuple[bytes, ...]:
        """For the head of the answer."""
        return (b"retry-after: %d" % max(math.ceil(self.wait), 1),)


class Bucket:
    """So many a minute; none where the rate is zero."""

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self._left, self._at = rate, rate, now

    def left(self, now: float) -> float:
        """What may be taken now."""
        self._left = min(self._left + max(now - self._at, 0.0) * self.rate / 60.0, self.rate)
        self._at = now
        return self._left

    def take(self, count: float, now: float) -> bool:
        """Take so many, if they are there; no fraction of one is missed for a rounding."""
        if self.rate and self.left(now) < count - 1e-6:
            return False
        self._left -= count
        return True

    def give(self, count: float, now: float) -> None:
        """Back what was not used; less than nothing: more was used than was taken."""
        self._left = min(self.left(now) + count, self.rate)

    def wait(self, count: float, now: float) -> float:
        """Seconds until so many are there."""
        return max(count - self.left(now), 0.0) * 60.0 / self.rate

    def change(self, rate: float, now: float) -> None:
        """Another rate from now on; what was used stays used."""
        if rate != self.rate:
            left = self.left(now) if self.rate else 0.0
            self._left, self.rate = min(left + rate - self.rate, rate), rate


@dataclass(eq=False)
class Purse:
    """What one key has used."""

    name: str  # tells keys of one tenant apart, and says nothing about them
    tenant: str
    allowance: Allowance
    requests: Bucket
    tokens: Bucket
    running: int = 0
    promised: int = 0  # tokens of prompts that are under way,
    promised_dollars: float = 0.0  # and what they cost
    day: int = 0
    spent_tokens: int = 0
    spent_dollars: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)

    def uses(self, now: float) -> dict[str, float]:
        """How much of each limit is used, by its name."""
        return {
            "requests_per_minute": self.requests.rate - self.requests.left(now),
            "tokens_per_minute": self.tokens.rate - self.tokens.left(now), "parallel": float(self.running),
            "tokens_per_day": float(self.spent_tokens), "dollars_per_day": self.spent_dollars,
        }  # fmt: skip

    def lines(self, now: float) -> tuple[bytes, ...]:
        """As OpenAI's API says what is left."""
        said: list[bytes] = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket.rate:
                left = bucket.left(now)
                said += (
                    b"x-ratelimit-limit-%b: %d" % (name, bucket.rate),
                    b"x-ratelimit-remaining-%b: %d" % (name, max(math.floor(left + 1e-6), 0)),
                    b"x-ratelimit-reset-%b: %b" % (name, duration(bucket.wait(bucket.rate, now)).encode()),
                )
        return tuple(said)


def duration(seconds: float) -> str:
    """As OpenAI writes it.

    >>> [duration(s) for s in (0.0, 0.0121, 1.5, 20.0, 366.0)]
    ['0s', '13ms', '1.5s', '20s', '6m6s']
    """
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1e3) / 1e3, 60.0)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


class _Noted(msgspec.Struct):
    """A day's spending, as it lies on disk."""

    day: int
    spent: dict[str, tuple[int, float]]  # tokens and dollars, by key


class Quotas:
    """The purses of all keys that have a limit."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._purses: dict[bytes, Purse] = {}
        self._prices: dict[str, PriceSettings] = {}
        self._noted: dict[str, tuple[int, float]] = {}
        self._day = 0
        self._dirty = False
        self._writing: Future[None] | None = None
        self._held: IO[str] | None = None
        self._disk = threading.Lock()
        self._notes = self._written = 0
        self.clock = time
        self.problem = ""  # why what was spent cannot be noted

    @property
    def purses(self) -> list[Purse]:
        """All that are limited now."""
        return [purse for purse in self._purses.values() if purse.allowance != UNLIMITED]

    def hold(self) -> None:
        """Keep the file to this gateway until `release`; two would write over what each other noted."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._held = self.path.with_name(f".{self.path.name}.lock").open("w")
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise BadInput(f"another gateway notes in {self.path} what keys have spent: stop it first, or name another "
                           "file in 'budgets'") from None  # fmt: skip
        except OSError:
            return  # who cannot write there says so when there is something to note

    def release(self) -> None:
        """Others may note there from now on."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def load(self) -> None:
        """What was spent today before this process was; BadInput where the file is none of ours."""
        if self.path is None or not self.path.exists():
            return
        try:
            noted = msgspec.json.decode(self.path.read_bytes(), type=_Noted)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if not any(purse.allowance.daily for purse in self.purses):
                return
            raise BadInput(f"{self.path} does not say what keys have spent ({error}): remove it, and the day begins "
                           "anew, or name another file in 'budgets'") from error  # fmt: skip
        self._day, self._noted = noted.day, noted.spent
        for purse in self._purses.values():
            self._recall(purse)

    def renew(self, keys: Keys, prices: Iterable[PriceSettings], now: float) -> None:
        """Other limits from now on; what was used is not forgotten."""
        self._prices = {price.model: price for price in prices}
        named = {key.digest: key for key in keys.known}
        for digest, purse in self._purses.items():
            self._limit(purse, named[digest].allowance if digest in named else UNLIMITED, now)
        for digest, key in named.items():
            if digest not in self._purses and key.allowance != UNLIMITED:
                name = hashlib.sha256(digest).hexdigest()[:12]
                purse = Purse(name, key.tenant, UNLIMITED, Bucket(0.0, now), Bucket(0.0, now), day=self._today())
                self._purses[digest] = purse
                self._limit(purse, key.allowance, now)
                self._recall(purse)

    def of(self, key: Key) -> Purse | None:
        """A key's, where it is limited."""
        return self._purses.get(key.digest) if key.allowance != UNLIMITED else None

    def enter(self, purse: Purse, now: float) -> Refusal | None:
        """One more request; or why not. What only the head tells: nothing is read for who may ask nothing."""
        allowed = purse.allowance
        if allowed.parallel and purse.running >= allowed.parallel:
            return _refuse(purse, "parallel", f"{allowed.parallel} requests of this key are under way", 1.0)
        if refusal := self._spent(purse):
            return refusal
        if not purse.requests.take(1, now):
            why = f"this key may ask {allowed.requests_per_minute} times a minute"
            return _refuse(purse, "requests_per_minute", why, purse.requests.wait(1, now))
        purse.running += 1
        return None

    def pay(self, relay: Relay, purse: Purse, now: float) -> Refusal | None:
        """Its prompt; or why not."""
        allowed, prompt = purse.allowance, relay.request.prompt
        cost = self._price(relay.request.model, prompt, 0) if allowed.dollars_per_day else 0.0
        if refusal := self._spent(purse, prompt, cost):
            return refusal
        if not purse.tokens.take(prompt, now):
            wait = purse.tokens.wait(min(prompt, purse.tokens.rate), now)
            long = f", and its prompt has {prompt:,}" if prompt > purse.tokens.rate else ""
            why = f"this key may use {allowed.tokens_per_minute:,} tokens a minute{long}"
            return _refuse(purse, "tokens_per_minute", why, wait)
        relay.paid, relay.cost = prompt, cost
        purse.promised += prompt
        purse.promised_dollars += cost
        return None

    def ended(self, relay: Relay, now: float) -> None:
        """It is over: what it really took is taken."""
        purse, paid = relay.purse, relay.paid
        assert purse is not None
        purse.running -= 1
        purse.promised -= paid
        # Where nothing is under way any more, nothing is promised, whatever was rounded on the way.
        purse.promised_dollars = purse.promised_dollars - relay.cost if purse.promised else 0.0
        prompt, output = relay.used()
        if purse.tokens.rate and (paid or prompt or output):
            purse.tokens.give(paid - prompt - output, now)
        if prompt or output:
            self._turn(purse)
            purse.spent_tokens += prompt + output
            purse.spent_dollars += self._price(relay.request.model, prompt, output)
            self._dirty = self._dirty or purse.allowance.daily

    def note(self, later: Callable[[Callable[[], None]], Future[None]] | None = None) -> None:
        """Write down what was spent, whole or not at all; with `later` nobody waits for the disk."""
        if not self._dirty or self.path is None or (later is not None and self._writing and not self._writing.done()):
            return
        self._dirty = False
        today = self._today()
        spent = self._noted if self._day == today else {}
        spent |= {p.name: (p.spent_tokens, p.spent_dollars) for p in self._purses.values() if p.day == today}
        self._day, self._noted = today, spent
        data = msgspec.json.encode(_Noted(today, spent))
        self._notes += 1
        number = self._notes
        if later is None:
            self._write(number, data)
        else:
            self._writing = later(lambda: self._write(number, data))

    def _write(self, number: int, data: bytes) -> None:
        """One at a time, and none over a later one: the last note may overtake the one that a thread writes."""
        with self._disk:
            if number > self._written:
                self._written = number
                self._write_whole(data)

    def _write_whole(self, data: bytes) -> None:
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            try:
                with aside.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(self.path)
            finally:
                with contextlib.suppress(OSError):
                    aside.unlink()
            self.problem = ""
        except OSError as error:
            known, self.problem = self.problem, f"what keys spent cannot be noted in {self.path}: {error.strerror}"
            self._dirty = True
            if not known:
                print(f"assay: {self.problem}; a restart would forget it", file=sys.stderr, flush=True)

    def _spent(self, purse: Purse, prompt: int = 0, cost: float = 0.0) -> Refusal | None:
        allowed = purse.allowance
        self._turn(purse)
        left = DAY - self.clock() % DAY
        used = purse.spent_tokens + purse.promised
        if allowed.tokens_per_day and (used >= allowed.tokens_per_day or used + prompt > allowed.tokens_per_day):
            why = f"this key has used what it may today: {allowed.tokens_per_day:,} tokens"
            return _refuse(purse, "tokens_per_day", why, left, "insufficient_quota")
        dollars = purse.spent_dollars + purse.promised_dollars
        if allowed.dollars_per_day and (dollars >= allowed.dollars_per_day or dollars + cost > allowed.dollars_per_day):
            why = f"this key has used what it may today: ${allowed.dollars_per_day:,.2f}"
            return _refuse(purse, "dollars_per_day", why, left, "insufficient_quota")
        return None

    def _price(self, model: str, prompt: int, output: int) -> float:
        price = self._prices.get(model) or self._prices.get(ANY)
        return 0.0 if price is None else (prompt * price.prompt + output * price.answer) / 1e6

    def _today(self) -> int:
        return int(self.clock() // DAY)

    def _turn(self, purse: Purse) -> None:
        """A new day begins with nothing spent."""
        if purse.day != (today := self._today()):
            purse.day, purse.spent_tokens, purse.spent_dollars = today, 0, 0.0

    def _recall(self, purse: Purse) -> None:
        if self._day == self._today() and purse.name in self._noted:
            purse.day = self._day
            purse.spent_tokens, purse.spent_dollars = self._noted[purse.name]

    def _limit(self, purse: Purse, allowance: Allowance, now: float) -> None:
        purse.allowance = allowance
        purse.requests.change(float(allowance.requests_per_minute), now)
        purse.tokens.change(float(allowance.tokens_per_minute), now)


def _refuse(purse: Purse, of: str, why: str, wait: float, kind: str = "rate_limit_exceeded") -> Refusal:
    purse.refused[of] += 1
    return Refusal(of, why, wait, kind)
