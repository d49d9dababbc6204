"""What can go wrong with a node, as strategies that wrap it: crash, omission, delay, lies, coalitions.

>>> parse("crash:at=3")
Crash(at=3.0, recover=inf, amnesia=False)
>>> compose(When(lambda ctx: ctx.now > 50, Crash()), Equivocate(kinds=("prepare",)))  # doctest: +ELLIPSIS
Composed(faults=(When(...), Equivocate(kinds=('prepare',), half=None, ...)))

Faults are plain values: the same objects run in simulation and over sockets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from assay.protocols.interface import Ctx, Fault, Message, NodeId, Tag, Through
from assay.protocols.kernel.meter import kind_of

Pairs = Iterable[tuple[NodeId, Message]]


@dataclass
class Crash(Fault):
    """Does nothing from `at` on; comes back at `recover` with what is on its disk, or with nothing (`amnesia`)."""

    at: float = 0.0
    recover: float = math.inf
    amnesia: bool = False

    def on_start(self, ctx: Ctx) -> None:
        """Sets the clock for the return."""
        if self.recover < math.inf and ctx.now < self.recover:
            ctx.timer(self.recover - ctx.now, ("fault", "recover"))

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """Back again."""
        self.at = math.inf  # under an adversary the alarm may come before its time; down is over in any case
        return "forget" if self.amnesia else "recover"

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """Only while it is up."""
        if ctx.now < self.at:
            step()


@dataclass
class Halt(Fault):
    """Stops for good after so many messages to others, perhaps in the middle of a broadcast; it never says a wrong one.

    >>> parse("halt:after=3")
    Halt(after=3, sent=0)
    """

    after: int = 0
    sent: int = 0

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """The first ones."""
        if to == ctx.id:
            return ((to, msg),)
        self.sent += 1
        return ((to, msg),) if self.sent <= self.after else ()

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """Only while it is up."""
        if self.sent <= self.after:
            step()


@dataclass
class Omit(Fault):
    """Loses this share of what it sends and of what it receives."""

    send: float = 0.5
    receive: float = 0.0

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Lost at random."""
        return () if ctx.rng.random() < self.send else ((to, msg),)

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Pairs:
        """Lost at random."""
        return () if ctx.rng.random() < self.receive else ((src, msg),)


@dataclass
class Silence(Fault):
    """Never sends to these nodes (to anyone but itself, where none are named); otherwise behaves."""

    to: Collection[NodeId] | None = None
    kinds: Collection[str] | None = None

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Not to them."""
        met = (self.to is None and to != ctx.id) or (self.to is not None and to in self.to)
        return () if met and (self.kinds is None or kind_of(msg) in self.kinds) else ((to, msg),)


@dataclass
class Delay(Fault):
    """Holds back what it sends for so long."""

    seconds: float = 1.0
    kinds: Collection[str] | None = None
    held: dict[int, tuple[NodeId, Message]] = field(default_factory=dict)
    count: int = 0

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Kept for later."""
        if self.kinds is not None and kind_of(msg) not in self.kinds:
            return ((to, msg),)
        self.held[self.count] = (to, msg)
        ctx.timer(self.seconds, ("fault", self.count))
        self.count += 1
        return ()

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """Now it goes out."""
        if tag in self.held:
            ctx.send(*self.held.pop(tag))
        return None


def flip(msg: Message) -> Message:
    """The message with its last field made another one of the same type.

    >>> flip(("echo", 3, True)), flip(("echo", 0)), flip(("echo", b"ab")), flip(("ping",))
    (('echo', 3, False), ('echo', 1), ('echo', b'\\x9eb'), ('ping',))
    """
    if msg[0] == "/":
        return (*msg[:2], flip(msg[2]))
    return msg if len(msg) < 2 else (*msg[:-1], _other(msg[-1]))


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() if value in (0, 1):
            return 1 - value
        case int():
            return value + 1
        case float():
            return -value if value else 1.0
        case bytes():
            return bytes([value[0] ^ 0xFF]) + value[1:] if value else b"\xff"
        case str():
            return value + "'"
        case tuple():
            return (*value[:-1], _other(value[-1])) if value else ("'",)
    return "'"


@dataclass
class Equivocate(Fault):
    """Says one thing to some and another to the rest: `half` (the upper half of all nodes) gets a forged copy.

    A forgery that is to hold up to scrutiny is `signed` instead: it may use the node's context, and its key.
    """

    kinds: Collection[str] | None = None
    half: Collection[NodeId] | None = None
    forge: Callable[[Message], Message] = flip
    signed: Callable[[Ctx, Message], Message] | None = None

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Forged for the half."""
        if self.kinds is not None and kind_of(msg) not in self.kinds:
            return ((to, msg),)
        lied_to = to in self.half if self.half is not None else to >= (ctx.n + 1) // 2
        if not lied_to or to == ctx.id:
            return ((to, msg),)
        return ((to, self.signed(ctx, msg) if self.signed is not None else self.forge(msg)),)


@dataclass
class Lie(Fault):
    """Says the same wrong thing to everybody."""

    kinds: Collection[str] | None = None
    forge: Callable[[Message], Message] = flip

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Forged."""
        lies = to != ctx.id and (self.kinds is None or kind_of(msg) in self.kinds)
        return ((to, self.forge(msg) if lies else msg),)


@dataclass
class Replayed(Fault):
    """Sends an old message again with every new one, now and then: `share` is how often."""

    share: float = 0.5
    old: list[tuple[NodeId, Message]] = field(default_factory=list)

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterator[tuple[NodeId, Message]]:
        """The message, and perhaps an old one."""
        yield to, msg
        if self.old and ctx.rng.random() < self.share:
            yield self.old[int(ctx.rng.integers(len(self.old)))]
        self.old.append((to, msg))
        del self.old[:-256]


@dataclass
class Chaos(Fault):
    """Anything at any time: drops, forges, doubles, misdirects and replays, each with this chance."""

    share: float = 0.2
    forge: Callable[[Message], Message] = flip
    old: list[Message] = field(default_factory=list)

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterator[tuple[NodeId, Message]]:
        """Whatever the dice say."""
        drop, lie, double, astray, replay = (ctx.rng.random(5) < self.share).tolist()
        self.old.append(msg)
        del self.old[:-64]
        said = self.forge(msg) if lie else msg
        if not drop:
            yield to, said
        if double:
            yield to, self.forge(said)
        if astray and ctx.peers:
            yield ctx.peers[int(ctx.rng.integers(len(ctx.peers)))], said
        if replay:
            yield to, self.old[int(ctx.rng.integers(len(self.old)))]


@dataclass
class Eclipse(Fault):
    """A victim hears nobody but the given nodes."""

    friends: Collection[NodeId] = ()

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Pairs:
        """Only friends."""
        return ((src, msg),) if src in self.friends or src == ctx.id else ()


@dataclass
class Coalition(Fault):
    """Faulty nodes that share a memory: in rounds each sees, before it acts, what all correct nodes send."""

    memory: dict[str, Any] = field(default_factory=dict)

    def on_peek(self, ctx: Ctx, traffic: Sequence[tuple[NodeId, NodeId, Message]]) -> None:
        """Remembers the round's traffic for all members."""
        self.memory["traffic"] = list(traffic)

    def __deepcopy__(self, memo: dict[int, Any]) -> Coalition:
        return type(self)(self.memory)  # the memory stays shared


@dataclass
class When(Fault):
    """A fault that acts only while the condition holds."""

    condition: Callable[[Ctx], bool]
    fault: Fault

    def on_start(self, ctx: Ctx) -> None:
        """As the fault."""
        self.fault.on_start(ctx)

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Through the fault, if it is time."""
        return self.fault.on_send(ctx, to, msg) if self.condition(ctx) else ((to, msg),)

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Pairs:
        """Through the fault, if it is time."""
        return self.fault.on_recv(ctx, src, msg) if self.condition(ctx) else ((src, msg),)

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """Through the fault, if it is time."""
        self.fault.on_step(ctx, step) if self.condition(ctx) else step()

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """The fault's own."""
        return self.fault.on_timer(ctx, tag)

    def on_peek(self, ctx: Ctx, traffic: Sequence[tuple[NodeId, NodeId, Message]]) -> None:
        """The fault's own."""
        self.fault.on_peek(ctx, traffic)


class _Inside(Through):
    """The context of one of several faults: timers remember whose they are, what it sends meets the outer faults."""

    __slots__ = ("faults", "place")

    def __init__(self, under: Ctx, faults: tuple[Fault, ...], place: int) -> None:
        super().__init__(under)
        self.faults, self.place = faults, place

    def timer(self, delay: float, tag: Tag) -> None:
        self.under.timer(delay, ("fault", (self.place, tag[1])))

    def send(self, to: NodeId, msg: Message) -> None:
        for target, what in _outwards(self.under, self.faults, self.place + 1, [(to, msg)]):
            self.under.send(target, what)


def _outwards(
    ctx: Ctx, faults: tuple[Fault, ...], first: int, pairs: list[tuple[NodeId, Message]]
) -> list[tuple[NodeId, Message]]:
    for place in range(first, len(faults)):
        inside = _Inside(ctx, faults, place)
        pairs = [kept for pair in pairs for kept in faults[place].on_send(inside, *pair)]
    return pairs


@dataclass
class Composed(Fault):
    """Several faults, one around the other: the first sees what the node sends first."""

    faults: tuple[Fault, ...]

    def on_start(self, ctx: Ctx) -> None:
        """All start."""
        for place, fault in enumerate(self.faults):
            fault.on_start(_Inside(ctx, self.faults, place))

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Pairs:
        """Through one after the other."""
        return _outwards(ctx, self.faults, 0, [(to, msg)])

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Pairs:
        """Through one after the other, the last first."""
        pairs: list[tuple[NodeId, Message]] = [(src, msg)]
        for fault in reversed(self.faults):
            pairs = [kept for pair in pairs for kept in fault.on_recv(ctx, *pair)]
        return pairs

    def on_step(self, ctx: Ctx, step: Callable[[], None]) -> None:
        """If all of them let it."""
        for fault in self.faults:
            step = _bound(fault, ctx, step)
        step()

    def on_timer(self, ctx: Ctx, tag: Tag) -> str | None:
        """The one who set it."""
        place, inner = tag
        fault: Fault = self.faults[place]
        return fault.on_timer(_Inside(ctx, self.faults, place), inner)

    def on_peek(self, ctx: Ctx, traffic: Sequence[tuple[NodeId, NodeId, Message]]) -> None:
        """All look."""
        for fault in self.faults:
            fault.on_peek(ctx, traffic)


def _bound(fault: Fault, ctx: Ctx, step: Callable[[], None]) -> Callable[[], None]:
    return lambda: fault.on_step(ctx, step)


def compose(*faults: Fault) -> Fault:
    """Several faults as one."""
    return faults[0] if len(faults) == 1 else Composed(faults)


KINDS: dict[str, type[Fault]] = {
    "crash": Crash, "halt": Halt, "omit": Omit, "silence": Silence, "delay": Delay, "equivocate": Equivocate,
    "lie": Lie, "replay": Replayed, "chaos": Chaos,
}  # fmt: skip


def parse(text: str) -> Fault:
    """A fault from `kind:option=value:…`, as on the command line; `kinds=a+b` names kinds of messages.

    >>> parse("equivocate:kinds=prepare+commit").kinds
    ('prepare', 'commit')
    """
    name, *options = text.split(":")
    if name not in KINDS:
        raise ValueError(f"no fault '{name}'; one of {', '.join(KINDS)} expected")
    kind = KINDS[name]
    known = {one.name: one for one in fields(kind) if one.name in _READ}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if key not in known or not equals:
            raise ValueError(f"fault '{text}': no option '{key}'; {', '.join(f'{one}=' for one in known)} expected")
        try:
            values[key] = _READ[key](value)
        except ValueError:
            raise ValueError(f"fault '{text}': {key} cannot be '{value}'") from None
    if values.get("recover", math.inf) <= values.get("at", 0.0) < math.inf:
        raise ValueError(f"fault '{text}': it must crash (at=) before it recovers")
    return kind(**values)


def _moment(text: str) -> float:
    """From 0 on; "inf" is never."""
    value = float(text)
    if not value >= 0:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = _moment(text)
    if value == math.inf:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+"))


_READ: dict[str, Callable[[str], Any]] = {
    "at": _moment, "after": _count, "recover": _moment, "amnesia": lambda text: text not in ("", "0", "no", "false"),
    "send": _share, "receive": _share, "seconds": _seconds, "share": _share, "kinds": _names, "half": _numbers,
    "to": _numbers,
}  # fmt: skip
