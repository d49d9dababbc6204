"""Pickles that hold nothing but data: dicts, lists, tuples, text, numbers. Everything else is refused, unopened.

The standard unpickler is a machine that calls what the file names. This one has no such instruction: no classes, no
functions, no reduce, no build. Dumps of torch's Flight Recorder need none of them. Nor can a small file ask for much
memory: lengths are checked against what is there, and the memo holds only what was put in.

Where a reader knows the classes of a format, `inert=True` reads what asks for one as an :class:`Inert` record of what
it asks for. Still nothing is imported and nothing called: who reads the record decides what it means.

>>> import pickle
>>> loads(pickle.dumps({"version": "2.10", "ranks": (0, 1), "entries": [None, True, 1.5, -7, 2**70]}))
{'version': '2.10', 'ranks': (0, 1), 'entries': [None, True, 1.5, -7, 1180591620717411303424]}
>>> loads(pickle.dumps(print))
Traceback (most recent call last):
    ...
assay.record.errors.BadInput: pickle: offset 30: asks for a class or a function; only plain data are read
>>> loads(pickle.dumps(range(3)), inert=True)
Inert(name='builtins.range', args=(0, 3, 1), state=None, items={}, values=[])
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay.record.errors import BadInput

_MARK = object()
_LONGEST_INTEGER = 1024  # bytes
_MOST = 20_000_000  # values: a gigabyte or two
_CALLS = frozenset(
    b"cioRb\x81\x82\x83\x84\x92\x93PQ\x97\x98"
)  # globals, instances, reduce, build, extensions, persistent


@dataclass(eq=False)
class Inert:
    """What a pickle asks for and does not get: something by this name, called with these arguments, if it was.

    >>> loads(b"cos\\nsystem\\n(X\\x05\\x00\\x00\\x00falsetR.", inert=True)
    Inert(name='os.system', args=('false',), state=None, items={}, values=[])
    """

    name: str
    args: tuple[Any, ...] | None = None  # None: named, not called
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)


class _Refused(Exception):  # noqa: N818
    """What is wrong, without the place."""


class _Machine:
    """The stack, the marks and the memo while one pickle is read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, size: int) -> bytes:
        """The next bytes, which must be there."""
        if size < 0 or self.at + size > len(self.data):
            raise _Refused("ends in the middle of a value")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str) -> int:
        """The next fixed-width integer."""
        return int(struct.unpack(code, self.take(struct.calcsize(code)))[0])

    def pop(self) -> Any:
        """The topmost value."""
        if not self.stack or self.stack[-1] is _MARK:
            raise _Refused("takes a value from an empty stack")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """All values above the last mark, which goes."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise _Refused("has no mark where one is needed")

    def top(self, kind: type) -> Any:
        """The topmost value, of this type, or what a record of something else holds of it."""
        if self.stack and type(self.stack[-1]) is Inert:
            return self.stack[-1].items if kind is dict else self.stack[-1].values
        if not self.stack or type(self.stack[-1]) is not kind:
            raise _Refused(f"adds to something that is no {kind.__name__}")
        return self.stack[-1]

    def line(self) -> str:
        """The bytes up to the end of the line, as text."""
        end = self.data.find(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode() if end >= 0 else self.take(len(self.data)).decode()

    def text(self, size: int) -> str:
        """The next so many bytes as text; halves of surrogate pairs are let through."""
        return self.take(size).decode("utf-8", "surrogatepass")

    def integer(self, size: int) -> int:
        """A long integer of so many bytes."""
        if size > _LONGEST_INTEGER:
            raise _Refused(f"holds an integer of {size:,} bytes")
        return int.from_bytes(self.take(size), "little", signed=True)

    def items(self, flat: list[Any]) -> None:
        """Key, value, key, value into the dict on top."""
        if len(flat) % 2:
            raise _Refused("has a key without a value")
        target = self.top(dict)
        for place in range(0, len(flat), 2):
            if not isinstance(flat[place], str | int | float | bool | bytes | Inert | None):
                raise _Refused("has a key that is neither text nor a number")
            target[flat[place]] = flat[place + 1]

    def recall(self, place: int) -> Any:
        """What was put into the memo there."""
        if place not in self.memo:
            raise _Refused(f"recalls entry {place} of its memo, which was never put there")
        return self.memo[place]

    def put(self, place: int) -> None:
        """The topmost value into the memo."""
        if not self.stack or self.stack[-1] is _MARK:
            raise _Refused("remembers nothing")
        self.memo[place] = self.stack[-1]


def _tuple(machine: _Machine, size: int) -> tuple[Any, ...]:
    return tuple(machine.pop() for _ in range(size))[::-1]


def _two(machine: _Machine) -> list[Any]:
    return list(_tuple(machine, 2))


_PUSH: dict[int, Callable[[_Machine], Any]] = {
    ord("("): lambda m: _MARK,
    ord("}"): lambda m: {},
    ord("]"): lambda m: [],
    ord(")"): lambda m: (),
    ord("d"): lambda m: _dict(m.to_mark()),
    ord("l"): lambda m: m.to_mark(),
    ord("t"): lambda m: tuple(m.to_mark()),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("N"): lambda m: None,
    0x88: lambda m: True,
    0x89: lambda m: False,
    ord("K"): lambda m: m.number("<B"),
    ord("M"): lambda m: m.number("<H"),
    ord("J"): lambda m: m.number("<i"),
    0x8A: lambda m: m.integer(m.number("<B")),
    0x8B: lambda m: m.integer(m.number("<i")),
    ord("G"): lambda m: struct.unpack(">d", m.take(8))[0],
    0x8C: lambda m: m.text(m.number("<B")),
    ord("X"): lambda m: m.text(m.number("<I")),
    0x8D: lambda m: m.text(m.number("<Q")),
    ord("U"): lambda m: m.text(m.number("<B")),
    ord("C"): lambda m: m.take(m.number("<B")),
    ord("B"): lambda m: m.take(m.number("<I")),
    ord("h"): lambda m: m.recall(m.number("<B")),
    ord("j"): lambda m: m.recall(m.number("<I")),
}
_DO: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),  # protocol
    0x95: lambda m: m.take(8),  # frame: its content follows all the same
    ord("q"): lambda m: m.put(m.number("<B")),
    ord("r"): lambda m: m.put(m.number("<I")),
    0x94: lambda m: m.put(len(m.memo)),
    ord("s"): lambda m: m.items(_two(m)),
    ord("u"): lambda m: m.items(m.to_mark()),
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("e"): lambda m: _append(m, m.to_mark()),
    ord("0"): lambda m: m.pop(),
}


def _called(machine: _Machine, count: int = 2) -> Inert:
    what, *args = _tuple(machine, count)
    if type(what) is not Inert or what.args is not None or not all(isinstance(one, tuple | dict) for one in args):
        raise _Refused("calls what is no class and no function")
    return Inert(what.name, tuple(args[0]) + tuple(args[1:]))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    if not machine.stack or type(machine.stack[-1]) is not Inert:
        raise _Refused("sets the state of what has none")
    machine.stack[-1].state = state


def _by_name(machine: _Machine) -> Inert:
    module, name = _two(machine)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _Refused("names a class by what is no text")
    return Inert(f"{module}.{name}")


# What only a reader of records knows: classes, calls, states, and what lies outside of the pickle.
_INERT: dict[int, Callable[[_Machine], Any]] = {
    ord("c"): lambda m: Inert(f"{m.line()}.{m.line()}"),
    0x93: _by_name,
    ord("R"): _called,
    0x81: _called,
    0x92: lambda m: _called(m, 3),
    ord("Q"): lambda m: Inert("persistent", (m.pop(),)),
    0x8F: lambda m: Inert("builtins.set", ()),
}
_INERT_DO: dict[int, Callable[[_Machine], Any]] = {ord("b"): _build, 0x90: lambda m: _append(m, m.to_mark())}


def _append(machine: _Machine, values: list[Any]) -> None:
    machine.top(list).extend(values)


def _dict(flat: list[Any]) -> dict[Any, Any]:
    holder = _Machine(b"")
    holder.stack.append({})
    holder.items(flat)
    made: dict[Any, Any] = holder.stack[0]
    return made


def loads(data: bytes, source: str = "pickle", *, inert: bool = False) -> Any:
    """The value in a pickle of plain data; with `inert`, also of records of what it would call.

    Raises:
        BadInput: it is cut off, broken, or asks for anything but data; the message gives the offset.
    """
    machine = _Machine(data)
    stack = machine.stack
    push, change = (_PUSH | _INERT, _DO | _INERT_DO) if inert else (_PUSH, _DO)
    begin = made = 0
    try:
        while True:
            begin = machine.at
            opcode = machine.take(1)[0]
            if opcode == 0x2E:  # the stop sign
                break
            make = push.get(opcode)
            if make is not None:
                stack.append(make(machine))
                made += 1
                if made > _MOST:
                    raise _Refused(f"holds more than {_MOST:,} values")
            elif (do := change.get(opcode)) is not None:
                do(machine)
            elif opcode in _CALLS:
                raise _Refused("asks for a class or a function; only plain data are read")
            else:
                raise _Refused(f"has the instruction 0x{opcode:02x}, which plain data do not need")
        if len(stack) != 1 or stack[0] is _MARK:
            raise _Refused(f"ends with {len(stack)} values instead of one")
    except _Refused as wrong:
        raise BadInput(f"{source}: offset {begin}: {wrong}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{source}: offset {begin}: text that is not UTF-8") from None
    return stack[0]
