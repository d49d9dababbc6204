"""Sequential specifications: what an object does when it is used by one process at a time.

A specification has an `initial` state and `step(state, operation)`, which says whether the operation could have
returned what it did, and the state after it. States are compared and kept, so they must be hashable. A result of None
in an operation that is ``info`` is an unknown result: anything goes.

>>> queue = SPECIFICATIONS["queue"]
>>> queue.step((1, 2), Operation(0, "dequeue", None, None, 1, 0.0, 1.0))
(True, (2,))
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.protocols.judges.judgement import frozen
from assay.record.errors import BadInput, unreadable
from assay.workloads.histories import Operation

State = Any
Step = Callable[[State, Operation], tuple[bool, State]]


@dataclass(frozen=True)
class Specification:
    """An object's meaning."""

    name: str
    initial: Any
    step: Step
    operations: frozenset[str]
    """What can be asked of it."""
    part: Callable[[Operation], Hashable] = lambda operation: frozen(operation.key)
    """Operations on different parts never matter to each other, and are judged apart."""


def _unknown(operation: Operation) -> bool:
    return operation.status == "info" and operation.result is None


def _register(state: State, operation: Operation) -> tuple[bool, State]:
    if operation.f == "read":
        return frozen(operation.result) == state or _unknown(operation), state
    if operation.f == "write":
        return True, frozen(operation.value)
    old, new = frozen(operation.value)
    if operation.result is False:
        return state != old, state
    if _unknown(operation):
        return True, new if state == old else state
    return state == old, new


def _kv(state: State, operation: Operation) -> tuple[bool, State]:
    if operation.f == "append":
        return True, state + operation.value
    if operation.f == "read":
        return (operation.result or "") == state or _unknown(operation), state
    return True, operation.value


def _set(state: State, operation: Operation) -> tuple[bool, State]:
    if operation.f == "read":
        return _unknown(operation) or frozenset(map(frozen, operation.result or ())) == state, state
    value = frozen(operation.value)
    if operation.f == "contains":
        return _unknown(operation) or operation.result == (value in state), state
    if operation.f == "add":
        return operation.result in (None, value not in state), state | {value}
    return operation.result in (None, value in state), state - {value}


def _counter(state: State, operation: Operation) -> tuple[bool, State]:
    if operation.f == "read":
        return operation.result == state or _unknown(operation), state
    step = 1 if operation.value is None else operation.value
    return True, state - step if operation.f == "decrement" else state + step


def _queue(state: State, operation: Operation) -> tuple[bool, State]:
    if operation.f == "enqueue":
        return True, (*state, frozen(operation.value))
    if _unknown(operation):
        return True, state[1:]
    if operation.result is None:
        return not state, state
    return bool(state) and state[0] == frozen(operation.result), state[1:]


def _list_append(state: State, operation: Operation) -> tuple[bool, State]:
    """Lists by key; a single operation is a transaction of one."""
    lists = dict(state)
    given = operation.value or ()
    if operation.f != "txn":
        name = "r" if operation.f == "read" else "append"
        given = [(name, operation.key, operation.value)]
    answered: Sequence[Any] = given if operation.result is None else operation.result
    if operation.f == "read":
        answered = [("r", operation.key, operation.result)]
    for (f, key, value), (_, _, seen) in zip(given, answered, strict=True):
        key = frozen(key)
        if f == "append":
            lists[key] = (*lists.get(key, ()), frozen(value))
        elif not _unknown(operation) and frozen(tuple(seen or ())) != lists.get(key, ()):
            return False, state
    return True, tuple(sorted(lists.items(), key=repr))


def balances(operation: Operation) -> dict[Any, Any]:
    """What a transfer changes, by account; {from, to, amount} or [from, to, amount].

    >>> balances(Operation(0, "transfer", None, {"from": "a", "to": "b", "amount": 5}, None, 0.0, 1.0))
    {'a': -5, 'b': 5}
    """
    if operation.result is False:
        return {}
    given = operation.value
    source, target, amount = (given["from"], given["to"], given["amount"]) if isinstance(given, dict) else given
    return {} if source == target else {source: -amount, target: amount}


def _bank(state: State, operation: Operation) -> tuple[bool, State]:
    """Accounts that may be overdrawn; what they held at first is found by :func:`settle`."""
    accounts = dict(state)
    if operation.f == "read":
        return _unknown(operation) or all(accounts.get(k, 0) == v for k, v in (operation.result or {}).items()), state
    for account, change in balances(operation).items():
        accounts[account] = accounts.get(account, 0) + change
    return True, tuple(sorted(((k, v) for k, v in accounts.items() if v), key=repr))


def _whole(_: Operation) -> Hashable:
    return None


def _lists_part(operation: Operation) -> Hashable:
    return None if operation.f == "txn" else frozen(operation.key)


def _make(name: str, initial: Any, step: Step, operations: str, **more: Any) -> Specification:
    return Specification(name, initial, step, frozenset(operations.split()), **more)


SPECIFICATIONS = {
    item.name: item
    for item in (
        _make("register", None, _register, "read write"),
        _make("cas-register", None, _register, "read write cas"),
        _make("kv", "", _kv, "read write append"),
        _make("set", frozenset(), _set, "read add remove contains"),
        _make("counter", 0, _counter, "read add increment decrement"),
        _make("queue", (), _queue, "enqueue dequeue"),
        _make("list-append", (), _list_append, "read append txn", part=_lists_part),
        _make("bank", (), _bank, "read transfer", part=_whole),
    )
}


def guess(history: Sequence[Operation]) -> Specification:
    """The specification that a history seems to be about, by the names of its operations and what reads return."""
    asked = {operation.f for operation in history}
    seen = [operation.result for operation in history if operation.f == "read" and operation.result is not None]
    collections = any(isinstance(result, list | tuple | set | frozenset) for result in seen)
    if "transfer" in asked:
        name = "bank"
    elif asked & {"enqueue", "dequeue"}:
        name = "queue"
    elif "txn" in asked or ("append" in asked and not any(isinstance(result, str) for result in seen)):
        name = "list-append"
    elif "append" in asked:
        name = "kv"
    elif asked & {"contains", "remove"} or ("add" in asked and collections):
        name = "set"
    elif asked & {"add", "increment", "decrement"}:
        name = "counter"
    else:
        name = "cas-register" if "cas" in asked else "register"
    return check(SPECIFICATIONS[name], history)


def settle(specification: Specification, history: Sequence[Operation]) -> Specification:
    """The specification with the initial state that the history implies: a bank's first balances.

    Raises:
        BadInput: nobody read the accounts before money moved.

    """
    if specification.name != "bank" or specification.initial != ():
        return specification
    transfers = [operation for operation in history if operation.f == "transfer" and operation.status != "fail"]
    first = min((operation.invoke for operation in transfers), default=math.inf)
    known: dict[Any, Any] = {}
    for operation in history:
        if operation.f == "read" and operation.status == "ok" and operation.complete < first:
            known |= operation.result
    moved = {account for operation in transfers for account in balances(operation)}
    read = {account for item in history if item.f == "read" and item.status == "ok" for account in item.result}
    if missing := sorted((moved | read) - known.keys(), key=repr):
        raise BadInput(
            f"nobody knows what account {missing[0]!r} held at first; a read before the first transfer, or the "
            "specification bank:AMOUNT, would be right"
        )
    return replace(specification, initial=_accounts(known))


def _accounts(known: dict[Any, Any]) -> Hashable:
    return tuple(sorted(((account, amount) for account, amount in known.items() if amount), key=repr))


def bank(amount: float, history: Sequence[Operation]) -> Specification:
    """A bank whose accounts all held the same amount at first."""
    accounts: set[Any] = set()
    for operation in history:
        accounts |= balances(operation).keys() if operation.f == "transfer" else (operation.result or {}).keys()
    return replace(SPECIFICATIONS["bank"], initial=_accounts(dict.fromkeys(accounts, amount)))


def check(specification: Specification, history: Sequence[Operation]) -> Specification:
    """The specification, if it knows every operation of the history and their arguments have its form.

    Raises:
        BadInput: naming the operation that it does not know.

    """
    for i, operation in enumerate(history):
        if specification.operations and operation.f not in specification.operations:
            known = ", ".join(sorted(specification.operations))
            name = specification.name
            raise BadInput(f"operation #{i} is '{operation.f}'; a {name} knows {known}, --spec brings another object")
        if problem := _malformed(specification.name, operation):
            raise BadInput(f"operation #{i}: {problem}")
    return specification


def _malformed(name: str, operation: Operation) -> str | None:
    value, result, ok = operation.value, operation.result, operation.status == "ok"
    if operation.f == "cas" and not (isinstance(value, list | tuple) and len(value) == 2):
        return f"cas {value!r}; a pair (old, new) would be right"
    if name == "kv" and operation.f != "read" and not isinstance(value, str):
        return f"{operation.f} {value!r}; a string would be right"
    if name == "set" and operation.f == "read" and ok and not _is_collection(result):
        return f"a read of the set returned {result!r}; the set would be right"
    if name == "counter" and not isinstance(result if operation.f == "read" and ok else value, int | float | None):
        return f"{operation.f} of a counter with {value!r} → {result!r}; a number would be right"
    if name == "bank":
        return _malformed_bank(operation)
    if name == "list-append" and operation.f == "read" and ok and not isinstance(result, list | tuple | None):
        return f"a read of a list returned {result!r}; a list would be right"
    return _malformed_txn(operation) if operation.f == "txn" else None


def _is_collection(value: Any) -> bool:
    return value is None or isinstance(value, list | tuple | set | frozenset)


def _malformed_bank(operation: Operation) -> str | None:
    value, result = operation.value, operation.result
    if operation.f == "transfer":
        fields = isinstance(value, dict) and {"from", "to", "amount"} <= value.keys()
        listed = isinstance(value, list | tuple) and len(value) == 3
        amount = value["amount"] if fields else value[2] if listed else None
        return None if isinstance(amount, int | float) else f"transfer {value!r}; from, to and amount would be right"
    if operation.status == "ok" and not isinstance(result, dict):
        return f"a read of the bank returned {result!r}; a map from account to balance would be right"
    return None


def _malformed_txn(operation: Operation) -> str | None:
    for part in (operation.value, operation.result):
        if part is not None and not (isinstance(part, list | tuple) and all(map(_is_micro, part))):
            return "a transaction is a list of [append, key, value] and [r, key, list]"
    if operation.value is None:
        return "a transaction without operations"
    if operation.result is not None and len(operation.result) != len(operation.value):
        return "a transaction that answered more or fewer operations than were asked"
    if operation.status == "ok" and operation.result is None and any(m[0] != "append" for m in operation.value):
        return "a transaction that returned without saying what it read"
    return None


def _is_micro(item: Any) -> bool:
    if not isinstance(item, list | tuple) or len(item) != 3:
        return False
    return item[0] == "append" or (item[0] in ("r", "read") and isinstance(item[2], list | tuple | None))


def load(name: str) -> Specification:
    """A specification by its name, or a user's own as ``FILE.py:Spec``: a class or object with `initial` and `step`.

    Raises:
        BadInput: what is missing.

    """
    if name in SPECIFICATIONS:
        return SPECIFICATIONS[name]
    file, _, member = name.rpartition(":")
    if not file.endswith(".py"):
        raise BadInput(f"no specification '{name}'; there are {', '.join(SPECIFICATIONS)}, or FILE.py:Spec")
    if not Path(file).is_file():
        raise unreadable(file)
    description = importlib.util.spec_from_file_location("assay_user_specification", file)
    if description is None or description.loader is None:
        raise BadInput(f"{file} is not Python")
    module = importlib.util.module_from_spec(description)
    try:
        description.loader.exec_module(module)
        found = getattr(module, member)
        found = found() if isinstance(found, type) else found
        part = _watched(file, "part", found.part, _hashed) if hasattr(found, "part") else _whole
        step = _watched(file, "step", found.step, _stepped)
        return Specification(name, _hashed(found.initial), step, frozenset(), part)
    except AttributeError as error:
        raise BadInput(f"{name}: {error}; a class with 'initial' and 'step(state, operation)' would be right") from None
    except Exception as error:  # the user's own module may raise anything
        raise BadInput(f"{file} cannot be used: {error}") from None


def _watched(file: str, name: str, call: Callable[..., Any], form: Callable[[Any], Any]) -> Callable[..., Any]:
    """The user's own function, which may raise anything and return anything."""

    def watched(*given: Any) -> Any:
        try:
            return form(call(*given))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise BadInput(f"{file}: '{name}' fails on {given[-1].f} {given[-1].value!r}: {what}") from None

    return watched


def _stepped(answer: Any) -> tuple[bool, State]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"returned {answer!r}; (whether it fits, the state after it) would be right")
    return bool(answer[0]), _hashed(answer[1])


def _hashed(value: Any) -> Any:
    """States are remembered: what cannot be hashed is refused."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"{value!r} cannot be remembered; a tuple or a frozenset would be right") from None
    return value
