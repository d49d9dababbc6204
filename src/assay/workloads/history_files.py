"""Files of histories: which format, line by line into operations, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from assay.record.errors import BadInput, unreadable
from assay.record.store import write_whole
from assay.workloads import edn
from assay.workloads.histories import FORMATS, Operation
from assay.workloads.history_events import TYPES, Event, EventError, events, operations

_LOG = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(\S+)\s+(.*)$", re.MULTILINE)
_NANO = 1e-9  # Jepsen's clock
_GZIP = b"\x1f\x8b"
_CALLS = {"call": "invoke", "callevent": "invoke", "invoke": "invoke", "0": "invoke"}
_RETURNS = {"return": "ok", "returnevent": "ok", "ok": "ok", "1": "ok"}
_PORCUPINE_KV = {0: "read", 1: "write", 2: "append"}  # the numbers of the operations in its tests


def read(path: Path, format: str | None = None) -> list[Operation]:
    """Read a history in a format of :data:`assay.workloads.histories.FORMATS`, told from the content unless given."""
    if format is not None and format not in FORMATS:
        raise BadInput(f"no format '{format}'; there are {', '.join(FORMATS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise BadInput(f"{path} is a directory; name the history in it, as in {path / 'history.edn'}") from None
    except UnicodeDecodeError as error:
        if error.object[:2] == _GZIP:
            raise BadInput(f"{path} is compressed; unpack it first: gunzip -k {path}") from None
        raise BadInput(f"{path}: not text (byte {error.start}); a history is JSON lines, EDN or a log") from None
    except OSError as error:
        raise unreadable(path, error) from None
    chosen = format or _sniff(text)
    if chosen is None:
        raise BadInput(f"{path}: not a history in any format known ({', '.join(FORMATS)})")
    try:
        logged = [] if chosen == "jsonl" else list(_READERS[chosen](text))
        history = list(_rows(text)) if chosen == "jsonl" else operations(logged)
    except (EventError, edn.EdnError) as error:
        raise BadInput(f"{path}:{error.line}: {error}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deep") from None
    if not history and not logged:  # what only a nemesis did is a history, in which no client did anything
        raise BadInput(f"{path}: no operations in it")
    return history


def _sniff(text: str) -> str | None:
    head = text.lstrip()[:4096]
    if _LOG.search(head):
        return "porcupine-log"
    if re.match(r'[\[{]\s*(\{\s*)?"', head):
        if head.startswith("{") and re.search(r'"(invoke|complete)"\s*:', head.split("\n")[0]):
            return "jsonl"
        return "jepsen-json" if re.search(r'"type"\s*:', head) else "porcupine-json" if head[0] == "[" else None
    return "jepsen-edn" if re.match(r"[\[({]|;|#", head) and ":" in head else None


# ------------------------------------------------------------------------------------------------ ours

_FIELDS = Operation._fields


def _rows(text: str) -> Iterator[Operation]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _row(number, _json(line, number))


def _row(line: int, row: Any) -> Operation:
    if not isinstance(row, dict):
        raise EventError(line, "an object with the fields of an operation would be right")
    if unknown := row.keys() - set(_FIELDS):
        raise EventError(line, f"no field '{min(unknown)}'; there are {', '.join(_FIELDS)}")
    if missing := {"process", "f", "invoke"} - row.keys():
        raise EventError(line, f"'{min(missing)}' is missing")
    process, f, status = row["process"], row["f"], row.get("status", "ok")
    if not isinstance(process, int) or isinstance(process, bool) or not isinstance(f, str):
        raise EventError(line, "'process' must be an integer and 'f' a string")
    if status not in TYPES[1:]:
        raise EventError(line, f"status {status!r}; ok, fail or info would be right")
    invoke = _seconds(line, "invoke", row["invoke"])
    complete = math.inf if row.get("complete") is None else _seconds(line, "complete", row["complete"])
    if complete < invoke:
        raise EventError(line, f"completes at {complete}, before it is invoked at {invoke}")
    if complete == math.inf and status == "ok":
        raise EventError(line, "'ok' without 'complete'; an operation that never returned is 'info'")
    key, value, result = (_plain(row.get(name)) for name in ("key", "value", "result"))
    return Operation(process, f, key, value, result, invoke, complete, status)


def _seconds(line: int, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise EventError(line, f"'{name}' is {value!r}; seconds would be right")
    return float(value)


def _json(text: str, line: int) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EventError(line, f"not JSON: {error}") from None


def _plain(value: Any) -> Any:
    """JSON back into values: sets and maps with keys that are no strings are written under a tag."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"#set"} and isinstance(value["#set"], list):
            return frozenset(_frozen(_plain(item)) for item in value["#set"])
        if value.keys() == {"#map"} and isinstance(value["#map"], list) and all(map(_is_pair, value["#map"])):
            return {_frozen(_plain(key)): _plain(item) for key, item in value["#map"]}
        return {key: _plain(item) for key, item in value.items()}
    return value


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return tuple((key, _frozen(item)) for key, item in value.items()) if isinstance(value, dict) else value


def _tagged(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"#set": sorted((_tagged(item) for item in value), key=repr)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not value.keys() & {"#set", "#map"}:
            return {key: _tagged(item) for key, item in value.items()}
        return {"#map": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    return value


# -------------------------------------------------------------------------------------- Jepsen, Porcupine


def _edn_events(text: str) -> Iterator[Event]:
    for line, value in edn.read_all(text):
        for item in value if isinstance(value, list) else (value,):
            yield _jepsen(line, item)


def _json_events(text: str) -> Iterator[Event]:
    if text.lstrip().startswith("["):
        for item in _json(text, 1):
            yield _jepsen(1, item)
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _jepsen(number, _json(line, number))


def _jepsen(line: int, item: Any) -> Event:
    if not isinstance(item, Mapping):
        raise EventError(line, "a map with type, process, f and value would be right")
    if item.get("type") not in TYPES:
        raise EventError(line, f"type {item.get('type')!r}; invoke, ok, fail or info would be right")
    process, f, time = item.get("process"), item.get("f"), item.get("time")
    if isinstance(process, bool) or not isinstance(process, int | str):
        raise EventError(line, f"process {process!r}; a number would be right")
    if not isinstance(f, str):
        raise EventError(line, f"f is {f!r}; the name of an operation would be right")
    if isinstance(time, bool) or not isinstance(time, int | float | None) or not abs(time or 0) < 1e300:
        raise EventError(line, f"time {time!r}; nanoseconds would be right")
    return Event(line, process, item["type"], f, item.get("value"), item.get("key"), time and time * _NANO)


def _log_events(text: str) -> Iterator[Event]:
    for number, line in enumerate(text.split("\n"), 1):
        match = _LOG.search(line.rstrip())
        if not match:
            continue  # other loggers write to the same file
        process, kind, f, rest = match.groups()
        try:
            value = next(iter(edn.read_all(rest)), (1, None))[1]
        except edn.EdnError as error:
            raise EventError(number, str(error)) from None
        if kind == "fail" and f == "cas" and isinstance(value, list):  # it was compared, and found different
            kind, value = "ok", False
        yield Event(number, int(process) if process.isdigit() else process.lstrip(":"), kind, f, value)


def _call_events(text: str) -> Iterator[Event]:
    items = _json(text, 1)
    if not isinstance(items, list):
        raise EventError(1, "a list of call and return events would be right")
    calls: dict[Any, tuple[int, str, Any, Any]] = {}
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise EventError(1, f"event {number}: an object with kind, id, client and value would be right")
        fields = {name.lower(): value for name, value in item.items()}
        kind = str(fields.get("kind")).lower()
        call, client = fields.get("id"), fields.get("clientid", fields.get("client", 0))
        if kind not in _CALLS and kind not in _RETURNS:
            raise EventError(1, f"event {number}: kind {fields.get('kind')!r}; call or return would be right")
        if not isinstance(call, int | str) or not isinstance(client, int):
            raise EventError(1, f"event {number}: 'id' and 'client' must be numbers")
        value = fields.get("value")
        if kind in _CALLS:
            calls[call] = client, *_asked(number, fields if "op" in fields or "f" in fields else value)
            client, f, key, given = calls[call]
            yield Event(1, client, "invoke", f, given, key, call=("call", call))
        elif call not in calls:
            raise EventError(1, f"event {number}: returns from call {call}, which never began")
        else:
            client, f, key, _ = calls.pop(call)
            back = value.get("value", value.get("ok")) if isinstance(value, dict) else value
            yield Event(1, client, "ok", f, back, key, call=("call", call))


def _asked(number: int, asked: Any) -> tuple[str, Any, Any]:
    fields = {name.lower(): value for name, value in asked.items()} if isinstance(asked, dict) else {}
    f = fields.get("op", fields.get("f"))
    f = _PORCUPINE_KV.get(f, f) if isinstance(f, int) else f
    if not isinstance(f, str):
        raise EventError(1, f"event {number}: a value with 'op', 'key' and 'value' would be right")
    return f, fields.get("key"), fields.get("value")


_READERS: dict[str, Callable[[str], Iterator[Event]]] = {
    "jepsen-edn": _edn_events,
    "jepsen-json": _json_events,
    "porcupine-log": _log_events,
    "porcupine-json": _call_events,
}


# ---------------------------------------------------------------------------------------------- writing


def write(path: Path, history: Sequence[Operation], format: str = "jsonl") -> None:
    """Write a history in one of the formats, whole or not at all. Porcupine's log knows registers only."""
    if format not in FORMATS:
        raise BadInput(f"no format '{format}'; there are {', '.join(FORMATS)}")
    lines = _jsonl(history) if format == "jsonl" else _WRITERS[format](history)
    write_whole(path, ("\n".join(lines) + "\n").encode())


def _jsonl(history: Sequence[Operation]) -> Iterator[str]:
    for operation in history:
        row = {name: _tagged(value) for name, value in operation._asdict().items()}
        if row["complete"] == math.inf:
            row["complete"] = None
        yield msgspec.json.encode(row).decode()


def _jepsen_maps(history: Sequence[Operation]) -> Iterator[dict[str, Any]]:
    keyed = any(operation.key is not None for operation in history)
    for index, event in enumerate(events(history)):
        value = [event.key, event.value] if keyed else event.value
        time = round((event.time or 0.0) / _NANO)
        yield {
            "index": index, "type": event.type, "process": event.process, "f": event.f, "value": value, "time": time,
        }  # fmt: skip


def _edn_lines(history: Sequence[Operation]) -> Iterator[str]:
    for item in _jepsen_maps(history):
        names = {name: f":{item[name]}" for name in ("type", "f")}
        parts = (f":{name} {names.get(name) or edn.write(value)}" for name, value in item.items())
        yield "{" + ", ".join(parts) + "}"


def _json_lines(history: Sequence[Operation]) -> Iterator[str]:
    for item in _jepsen_maps(history):
        yield msgspec.json.encode(item, enc_hook=list).decode()


def _log_lines(history: Sequence[Operation]) -> Iterator[str]:
    for event in events(history):
        failed = event.f == "cas" and event.type == "ok" and event.value is False
        kind = "fail" if failed else event.type
        value = history[event.call].value if event.f == "cas" else event.value
        yield f"INFO  jepsen.util - {event.process}\t:{kind}\t:{event.f}\t{edn.write(value)}"


def _call_lines(history: Sequence[Operation]) -> Iterator[str]:
    rows = []
    for event in events(history):
        if event.type in ("fail", "info"):
            continue  # Porcupine has no such events: a call that does not return is one that may have happened
        if history[event.call].status == "fail":
            continue
        asked = {"op": event.f, "key": event.key, "value": event.value}
        kind, value = ("call", asked) if event.type == "invoke" else ("return", {"value": event.value})
        rows.append({"kind": kind, "client": event.process, "id": event.call, "value": value})
    yield "[" + ",\n ".join(msgspec.json.encode(row, enc_hook=list).decode() for row in rows) + "]"


_WRITERS: dict[str, Callable[[Sequence[Operation]], Iterator[str]]] = {
    "jepsen-edn": _edn_lines,
    "jepsen-json": _json_lines,
    "porcupine-log": _log_lines,
    "porcupine-json": _call_lines,
}
