"""What replicated key-value stores share: the state machine with its sessions, and the clients that ask.

>>> store = Store()
>>> store.apply((9, 1, "write", "x", 5)), store.apply((9, 2, "cas", "x", (5, 6)))
(None, True)
>>> store.apply((9, 2, "cas", "x", (5, 6)))  # the same request again: answered from the session, not done twice
True

A client asks one operation at a time and gives each a number; it repeats a request under the same number until it is
answered. Its calls and returns make the history that the judges read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from assay.protocols.interface import Ctx, Node, NodeId, Tag
from assay.protocols.kernel.run import Outcome

Command = tuple[NodeId, int, str, Any, Any]
"""Client, number of the request, what to do (`read`, `write`, `cas`, `append`), key, value."""
Ask = tuple[str, Any, Any]
FUNCTIONS = ("read", "write", "cas", "append")


class Store:
    """The state machine: the same commands in the same order give the same state and the same answers."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.answers: dict[NodeId, tuple[int, Any]] = {}
        """Of each client: the number of its last request, and what it was told."""

    def answered(self, client: NodeId, number: int) -> bool:
        """Whether this request, or a later one of the client, was executed."""
        return client in self.answers and number <= self.answers[client][0]

    def apply(self, command: Command) -> Any:
        """Execute a command once; a repeated one gets the answer it got before."""
        client, number, f, key, value = command
        if self.answered(client, number):
            return self.answers[client][1] if number == self.answers[client][0] else None
        result = self._execute(f, key, value)
        self.answers[client] = (number, result)
        return result

    def _execute(self, f: str, key: Any, value: Any) -> Any:
        now = self.values.get(key)
        if f == "read":
            return now
        if f == "write":
            self.values[key] = value
        elif f == "append":
            self.values[key] = (*(now if isinstance(now, tuple) else ()), value)
        elif f == "cas" and isinstance(value, tuple) and len(value) == 2:
            if now == value[0]:
                self.values[key] = value[1]
            return bool(now == value[0])
        return None

    def snapshot(self) -> tuple[Any, ...]:
        """The state as plain values, equal for equal states."""
        in_order = sorted(self.values.items(), key=repr)
        return tuple(in_order), tuple((client, *last) for client, last in sorted(self.answers.items()))

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Back to a snapshot."""
        values, answers = snapshot
        self.values = dict(values)
        self.answers = {client: (number, result) for client, number, result in answers}


def is_command(value: Any) -> bool:
    """Whether a value that came over the network has the shape of a command.

    >>> is_command((4, 1, "read", "x", None)), is_command((4, 1)), is_command("read")
    (True, False, False)
    """
    return (
        isinstance(value, tuple) and len(value) == 5 and isinstance(value[0], int) and isinstance(value[1], int)
        and value[2] in FUNCTIONS
    )  # fmt: skip


class Client(Node, ABC):
    """Asks its operations one after the other. Subclasses say how to ask, and call `finish` with the answer."""

    def __init__(self, operations: Sequence[Ask], patience: float = 0.5) -> None:
        """After `patience` seconds without an answer the request is sent again."""
        self.operations = tuple(operations)
        self.patience = patience
        self.number = 0
        self.waiting = False
        self.operation = -1

    def start(self, ctx: Ctx) -> None:
        """The first operation."""
        self._next(ctx)

    def _next(self, ctx: Ctx) -> None:
        if self.number < len(self.operations):
            self.operation = ctx.invoke(*self.operations[self.number])
            self.number += 1
            self.waiting = True
            self.ask(ctx)
            ctx.timer(self.patience, ("retry", self.number))

    @abstractmethod
    def ask(self, ctx: Ctx) -> None:
        """Send the present request, number `number`, for the first time."""

    def insist(self, ctx: Ctx) -> None:
        """Send it again."""
        self.ask(ctx)

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """No answer yet: once more."""
        if self.waiting and tag == ("retry", self.number):
            self.insist(ctx)
            ctx.timer(self.patience, tag)

    def finish(self, ctx: Ctx, result: Any) -> None:
        """The answer is there; on to the next operation."""
        self.waiting = False
        ctx.complete(self.operation, result)
        self._next(ctx)


def finished(outcome: Outcome) -> bool:
    """Whether all operations are complete: for `until`, which is asked after a client has begun its next one."""
    return all(operation.status == "ok" for operation in outcome.operations)
