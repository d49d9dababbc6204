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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.protocols.judges.judgement import WRITES, frozen
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
    own: Mapping[Hashable, Any] = field(default_factory=dict)
    """What certain parts begin with, instead of `initial`."""
    held: Callable[[Hashable], Any] = lambda key: None
    """Of registers that transactions read and write together: what each holds at first."""

    def first(self, part: Hashable) -> Any:
        """What a part begins with."""
        return self.own.get(part, self.initial)


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


def _rw_register(defaults: Callable[[Hashable], Any]) -> Step:
    """Registers by key, read and written by transactions; a single operation is a transaction of one."""

    def step(state: State, operation: Operation) -> tuple[bool, State]:
        values = dict(state)
        for f, name, said in _micro(operation):
            key = frozen(name)
            if f in WRITES:
                values[key] = frozen(said)
            elif not _unknown(operation) and values.get(key, defaults(key)) != frozen(said):
                return False, state
        return True, tuple(sorted(values.items(), key=repr))

    return step


def _micro(operation: Operation) -> Sequence[Sequence[Any]]:
    if operation.f == "txn":
        return (operation.value if operation.result is None else operation.result) or ()
    read = operation.f == "read"
    return [("r" if read else "w", operation.key, operation.result if read else operation.value)]


def _mutex(state: State, operation: Operation) -> tuple[bool, State]:
    """A lock: held or not; whoever has it, anybody may give it back. An acquire that answers false did not get it."""
    if operation.f == "acquire" and operation.result is False:
        return state, state
    return state == (operation.f == "release"), operation.f == "acquire"


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
        _make("rw-register", (), _rw_register(lambda _: None), "read write txn", part=_whole),
        _make("multi-register", (), _rw_register(lambda _: None), "read write txn", part=_whole),
        _make("mutex", False, _mutex, "acquire release"),
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
    elif asked & {"acquire", "release"}:
        name = "mutex"
    elif writes_registers(history):
        name = "rw-register"
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


def writes_registers(history: Sequence[Operation]) -> bool:
    """Whether the transactions of a history read and write registers, rather than append to lists.

    Transactions that only read say so by what they read: a register need not hold a list.
    """
    given = [item for item in history if item.f == "txn" for part in (item.value, item.result) if _is_list(part)]
    micro = [m for item in given for part in (item.value, item.result) if _is_list(part) for m in part if _is_list(m)]
    if any(m and m[0] == "append" for m in micro):
        return False
    return any(len(m) == 3 and (m[0] in WRITES or not isinstance(m[2], list | tuple | None)) for m in micro)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def beginning(specification: Specification, given: Any) -> Specification:
    """The specification with what the objects hold at first: one value for all, or a map from key to value.

    >>> beginning(SPECIFICATIONS["register"], {"x": 1}).first("x")
    1
    """
    name = specification.name
    own = {frozen(key): frozen(value) for key, value in given.items()} if isinstance(given, dict) else {}
    if name in ("register", "cas-register"):
        return replace(specification, own=own) if own else replace(specification, initial=frozen(given))
    if name in ("rw-register", "multi-register"):
        start = None if own else frozen(given)

        def held(key: Hashable) -> Any:
            return own.get(key, start)

        return replace(specification, held=held, step=_rw_register(held))
    forms: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any]]] = {
        "counter": ((int, float), lambda value: value), "kv": (str, lambda value: value),
        "set": ((list, tuple), lambda value: frozenset(map(frozen, value))), "queue": ((list, tuple), frozen),
        "mutex": (bool, lambda value: value),
    }  # fmt: skip
    if name not in forms:
        raise BadInput(f"--initial does not fit a {name}; registers, counters, sets, queues, kv and mutex take it")
    kind, form = forms[name]
    values = list(own.values()) if own else [given]
    if not all(isinstance(value, kind) for value in values) or (name == "counter" and isinstance(given, bool)):
        raise BadInput(f"--initial {given!r} is no beginning of a {name}")
    if own:
        return replace(specification, own={key: form(value) for key, value in own.items()})
    return replace(specification, initial=form(given))


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
    registers = name in ("rw-register", "multi-register")
    return _malformed_txn(operation, registers) if operation.f == "txn" else None


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


def _malformed_txn(operation: Operation, registers: bool) -> str | None:
    form, right = (_is_access, "[w, key, value] and [r, key, value]") if registers else (_is_micro, _MICRO)
    for part in (operation.value, operation.result):
        if part is not None and not (isinstance(part, list | tuple) and all(map(form, part))):
            return f"a transaction is a list of {right}"
    if operation.value is None:
        return "a transaction without operations"
    if operation.result is not None and len(operation.result) != len(operation.value):
        return "a transaction that answered more or fewer operations than were asked"
    reads = any(m[0] in ("r", "read") for m in operation.value)
    if operation.status == "ok" and operation.result is None and reads:
        return "a transaction that returned without saying what it read"
    return None


_MICRO = "[append, key, value] and [r, key, list]"


def _is_access(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 3 and (item[0] in WRITES or item[0] in ("r", "read"))


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
