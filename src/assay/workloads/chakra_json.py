"""The JSON layout of Chakra traces: one object with a list `workload_graph` of plain nodes.

    {"workload_graph": [{"Id": 216, "Name": "aten::mm", "NodeType": 4, "ctrlDeps": [3], "data_deps": [],
                         "runtime": 318, "is_cpu_op": true}, …], "workload_name": "resnet"}

Keys beside these become attributes (of the trace, outside the list), so the layout turns into protobuf and back. Which
keys a node has, and in which order, is remembered: a missing `runtime` is not written back as 0. What protobuf holds
and this layout has no word for (tensors, fields nobody knows, typed attributes) goes into a key `wire`, in base64.

>>> text = b'{"workload_graph": [{"Id": 1, "Name": "a", "NodeType": 4, "data_deps": [], "flops": 2.5}]}'
>>> graph = decode(text)
>>> graph.attributes(0), json.loads(encode(graph)) == json.loads(text)
({'flops': 2.5}, True)
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.workloads import chakra_attributes as attributes
from assay.workloads import chakra_wire as wire
from assay.workloads.chakra_graph import Graph, Interned, Rows

NODES = "workload_graph"
LARGEST = 512 << 20  # bytes; the protobuf form of as many nodes has a tenth of it
_ID, _NAME, _TYPE, _START = "Id", "Name", "NodeType", "start_time_micros"
_RUNTIME, _CTRL, _DATA, _WIRE = "runtime", ("ctrlDeps", "ctrl_deps"), ("data_deps", "dataDeps"), "wire"
_COLUMNS = (_ID, _NAME, _TYPE, _START, _RUNTIME, *_CTRL, *_DATA, _WIRE)
_NONE = object()
_AS_TEXT = "json"  # the doc string of an attribute that holds a value as JSON text, because protobuf has no such type


def decode(content: bytes, source: str = "trace", rank: int | None = None) -> Graph:
    """A trace from the text of a JSON file."""
    whole = _parse(content, source)
    nodes = whole.get(NODES)
    if not isinstance(nodes, list):
        raise BadInput(f"{source}: no list '{NODES}' is in it; a Chakra trace in JSON has its nodes there")
    orders: dict[tuple[str, ...], int] = {}
    order = np.zeros(len(nodes), np.int32)
    ids, names, kinds, starts, durations = [], [], [], [], []
    ctrl, data, tails = [], [], []
    for i, node in enumerate(nodes):
        if not isinstance(node, dict):
            raise BadInput(f"{source}: {NODES}[{i}] is no object")
        place = f"{source}: {NODES}[{i}]"
        order[i] = orders.setdefault(tuple(node), len(orders))
        ids.append(_number(node.get(_ID), 2**64, f"{place}: '{_ID}'"))
        kinds.append(_number(node.get(_TYPE, 0), 2**31, f"{place}: '{_TYPE}'"))
        names.append(_text(node.get(_NAME, ""), f"{place}: '{_NAME}'"))
        starts.append(_time(node.get(_START)))
        durations.append(_time(node.get(_RUNTIME)))
        ctrl.append(_ids(node, _CTRL, place))
        data.append(_ids(node, _DATA, place))
        tails.append(_tail(node, wire.ATTR, place))
    octets = np.frombuffer(b"".join(tails), np.uint8)
    tail = Rows(np.concatenate([[0], np.cumsum([len(part) for part in tails])]).astype(np.int64), octets)
    name = Interned.of(names)
    header = _tail({key: value for key, value in whole.items() if key != NODES}, 2, source)
    return Graph(
        np.array(ids, np.uint64), name.codes, name.values, np.array(kinds, np.int32), np.array(starts, np.uint64),
        np.array(durations, np.uint64), Rows.of(ctrl), Rows.of(data), tail, header, rank, source,
        (tuple(whole), *orders), order,
    )  # fmt: skip


def _parse(content: bytes, source: str) -> dict[str, Any]:
    if len(content) > LARGEST:
        raise BadInput(f"{source}: {len(content)} bytes of JSON; at most {LARGEST} are read, use .et for larger traces")
    try:
        whole = json.loads(content)
    except json.JSONDecodeError as error:
        within = error.msg.startswith("Unterminated string")  # its place is where the string begins
        cut = "truncated" if within or error.pos >= len(error.doc.rstrip()) - 1 else "no JSON"
        raise BadInput(f"{source}: {cut}: at character {error.pos} (line {error.lineno}): {error.msg}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: no UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{source}: no JSON of a trace: {str(error)[:80]}") from None
    if not isinstance(whole, dict):
        raise BadInput(f"{source}: an object with a list '{NODES}' was expected")
    return whole


def _number(value: Any, below: int, place: str) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise BadInput(f"{place} is {str(value)[:40]!r}; a whole number from 0 to {below - 1} was expected")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{place} is {str(value)[:40]!r}; text was expected")
    return value


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _time(value: Any) -> int:
    """Microseconds for the column; what does not fit there stays an attribute too (see `_tail`)."""
    if _is_time(value):
        return int(value)
    return round(value) if isinstance(value, float) and 0 <= value < 2**53 else 0


def _ids(node: Mapping[str, Any], keys: tuple[str, ...], place: str) -> list[int]:
    found = next(((key, node[key]) for key in keys if key in node), None)
    if found is None:
        return []
    key, value = found
    if not isinstance(value, list):
        raise BadInput(f"{place}: '{key}' is {str(value)[:40]!r}; a list of node ids was expected")
    return [_number(item, 2**64, f"{place}: an id in '{key}'") for item in value]


def _tail(node: Mapping[str, Any], field: int, place: str) -> bytes:
    out = b""
    if _WIRE in node:
        try:
            out = base64.b64decode(node[_WIRE], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{place}: '{_WIRE}' is no base64 text") from None
        code, at = wire.check(np.frombuffer(out, np.uint8), 0, len(out))
        if code:
            raise BadInput(f"{place}: '{_WIRE}' is no protobuf: at its byte {at} {wire.WHY[code]}")
    taken = _COLUMNS if field == wire.ATTR else (_WIRE,)
    for key, value in node.items():
        if key not in taken or (key in (_RUNTIME, _START) and not _is_time(value)):
            out += attributes.sized(field, _attribute(key, value))
    return out


def _attribute(name: str, value: Any) -> bytes:
    sample = value if isinstance(value, list) and value else [value]
    plain = len({type(item) for item in sample}) == 1 and isinstance(sample[0], bool | int | float | str)
    if plain and value != [] and all(type(item) is not int or -(2**63) <= item < 2**63 for item in sample):
        return attributes.encode(name, value)
    return attributes.encode(name, json.dumps(value), "string", _AS_TEXT)


# ------------------------------------------------------------------------------------------------- writing


def encode(graph: Graph) -> bytes:
    """The trace as JSON text; what came from such a file goes back as it was, key by key."""
    names, starts, durations = graph.names, graph.start_micros.tolist(), graph.duration_micros.tolist()
    nodes = []
    for i in range(len(graph)):
        extra = _extra(graph.tail[i].tobytes(), wire.ATTR)
        full: dict[str, Any] = {
            _ID: int(graph.id[i]), _NAME: names[graph.name[i]], _TYPE: int(graph.type[i]),
            **dict.fromkeys(_CTRL, graph.ctrl_deps[i].tolist()), **dict.fromkeys(_DATA, graph.data_deps[i].tolist()),
            _START: starts[i], _RUNTIME: durations[i],
        }  # fmt: skip
        nodes.append(_ordered(full | extra, _keys(graph, i, full, extra)))
    header = _extra(graph.metadata or b"", 2)
    order = graph.keys[0] if graph.keys else (NODES, *header)
    whole = {key: nodes if key == NODES else header[key] for key in order if key == NODES or key in header}
    return json.dumps(whole, indent=4).encode()


def _keys(graph: Graph, i: int, full: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Those the node was read with, else the usual ones; and whatever has come since, so that nothing is dropped."""
    if graph.key_order is not None:
        keys = graph.keys[1 + graph.key_order[i]]
    else:
        keys = (_ID, _NAME, _TYPE, *_CTRL[: bool(full[_CTRL[0]])], _DATA[0])
    told = {key for pair in (_CTRL, _DATA) if set(pair) & set(keys) for key in pair}
    new = [key for key in (_CTRL[0], _DATA[0], _START, _RUNTIME) if full[key] and key not in told and key not in keys]
    return (*keys, *new, *(key for key in extra if key not in keys))


def _ordered(values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}


def _extra(message: bytes, field: int) -> dict[str, Any]:
    """The plain attributes of a node or a header by name; all the rest under `wire`."""
    out: dict[str, Any] = {}
    rest = b""
    taken = (*_CTRL, *_DATA, _ID, _NAME, _TYPE, _WIRE) if field == wire.ATTR else (NODES, _WIRE)
    for number, kind, _, body in attributes.fields(message):
        record = attributes.sized(number, body) if kind == wire.SIZED else attributes.number(number << 3 | kind) + body
        attribute = attributes.decode(body) if number == field and kind == wire.SIZED else None
        if attribute is None or attribute.name in out or attribute.name in taken:
            rest += record
            continue
        value = _value(attribute)
        if value is not _NONE and _attribute(attribute.name, value) == body:  # the value alone says all there is
            out[attribute.name] = value
        else:
            rest += record
    return out | ({_WIRE: base64.b64encode(rest).decode()} if rest else {})


def _value(attribute: attributes.Attribute) -> Any:
    """The value as JSON has it; `_NONE` for what JSON has no such value for."""
    if attribute.doc != _AS_TEXT:
        is_json = attribute.value is not None and not attribute.kind.startswith("bytes")
        return attribute.value if is_json else _NONE
    try:
        return json.loads(attribute.value)
    except (TypeError, ValueError, RecursionError):
        return _NONE
