"""Requests as JSON lines: `assay gateway`, Mooncake, Bailian, other logs; and plain-text logs of vLLM and SGLang."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.workloads.request_formats import LABELS, Layout
from assay.workloads.request_rows import LENGTH, LENGTH_MAX, TIME, Rows, length, moment, show

_Length = Annotated[int, msgspec.Meta(ge=0, le=LENGTH_MAX)]
_Time = Annotated[float, msgspec.Meta(ge=0)]
_Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_IDS = "a list of whole numbers of 64 bits"
_EXPECTED = {
    "timestamp": TIME, "input_length": LENGTH, "output_length": LENGTH, "hash_ids": _IDS,
    "time": TIME, "prompt_tokens": LENGTH, "completion_tokens": LENGTH,
}  # fmt: skip


class _Mooncake(msgspec.Struct, gc=False):
    timestamp: _Time
    input_length: _Length
    output_length: _Length
    hash_ids: msgspec.Raw  # most of the file: made numbers by a compiled loop, not one object each


class _Bailian(msgspec.Struct, gc=False):
    timestamp: _Time
    input_length: _Length
    output_length: _Length
    hash_ids: msgspec.Raw
    chat_id: _Id
    parent_chat_id: _Id = -1
    type: str = ""


class _Gateway(msgspec.Struct, gc=False):
    """A line of `assay.live.access_log`, as far as a trace needs it; what is at its default is not written there."""

    time: _Time
    id: str  # of the run, a dash, of the request
    endpoint: str
    status: int
    e2e: _Time = 0.0
    prompt_tokens: _Length = 0
    completion_tokens: _Length = 0
    session: str = ""
    tenant: str = ""
    tier: str = ""
    model: str = ""
    block: _Time = 0.0
    hash_ids: msgspec.Raw = msgspec.Raw(b"[]")


_TYPED: dict[str, msgspec.json.Decoder[Any]] = {
    "assay": msgspec.json.Decoder(_Gateway),
    "mooncake": msgspec.json.Decoder(_Mooncake),
    "bailian": msgspec.json.Decoder(_Bailian),
}
_LIST = msgspec.json.Decoder(list[_Id])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def read_lines(rows: Rows, layout: Layout, chunks: Iterator[bytes], limit: int | None) -> None:
    """Read JSON lines into `rows`, a chunk at a time."""
    decoder = _TYPED.get(layout.format, _ANY)
    store = _store_typed if layout.format in _TYPED else _store
    sizes = [_getter(layout.columns[ours]) for ours in ("prompt", "output")]

    def other(record: Any) -> bool:  # logs say other things, too
        return isinstance(record, dict) and all(get(record) is None for get in sizes)

    for line, records in _records(rows, decoder, chunks, limit, other):
        if records:
            store(rows, layout, line, records)


Numbered = tuple[list[int], list[Any]]
Other = Callable[[Any], bool]


def _records(
    rows: Rows, decoder: msgspec.json.Decoder[Any], chunks: Iterator[bytes], limit: int | None, other: Other
) -> Iterator[Numbered]:
    """The records of each chunk with the numbers of their lines; the limit does not count `other` ones."""
    before = 0
    for chunk in chunks:
        left = None if limit is None else limit - rows.read
        if left is not None and left <= 0:
            return
        count = chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        try:
            records = decoder.decode_lines(chunk) if left is None or count <= left else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            records = []
        if len(records) == count:
            rows.read += count
            yield list(range(before + 1, before + count + 1)), records
        else:  # a blank or a bad line, or the last of those wanted: one by one
            yield _one_by_one(rows, decoder, chunk, before, left, other)
        before += count


def _one_by_one(
    rows: Rows, decoder: msgspec.json.Decoder[Any], chunk: bytes, before: int, left: int | None, other: Other
) -> Numbered:
    numbers, records = list[int](), list[Any]()
    for number, line in enumerate(chunk.split(b"\n"), before + 1):
        if not line.strip():
            continue
        if left is not None and left <= 0:
            break
        rows.read += 1
        try:
            records.append(decoder.decode(line))
            numbers.append(number)
            left = left if left is None or other(records[-1]) else left - 1
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rows.wrong(f"line {number}", *_explain(line, error))
            left = None if left is None else left - 1
    return numbers, records


def _explain(line: bytes, error: Exception) -> tuple[str, str]:
    """What is wrong with a line, and what would be right."""
    place = re.search(r"missing required field `(\w+)`|at `\$\.(\w+)", str(error))
    try:
        row = _ANY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        row = None
    if place is None or not isinstance(row, dict):
        return f"{line[:30].decode(errors='replace')!r} is not a whole JSON object ({error})", "one object a line"
    name = place.group(1) or place.group(2)
    return f"{name} {show(row.get(name))}", _EXPECTED.get(name, "the published type")


def _store_typed(rows: Rows, layout: Layout, lines: list[int], records: list[Any]) -> None:
    ids, counts = parse_lists(b"".join([bytes(r.hash_ids) for r in records]), len(records))
    if len(counts) != len(records):  # some list holds more than whole numbers, or larger ones
        records, whole = _with_lists(rows, lines, records)
        counts = np.fromiter(map(len, whole), np.int64, count=len(whole))
        ids = np.fromiter(chain.from_iterable(whole), np.int64, count=int(counts.sum()))
    n = len(records)
    rows.add(ids=ids, counts=counts)
    if layout.format == "assay":
        _add_gateway(rows, records)
        return
    rows.add(
        arrival=np.fromiter([r.timestamp for r in records], np.float64, count=n),
        prompt=np.fromiter([r.input_length for r in records], np.int64, count=n),
        output=np.fromiter([r.output_length for r in records], np.int64, count=n),
    )
    if layout.format == "bailian":
        rows.add(
            chat=np.fromiter([r.chat_id for r in records], np.int64, count=n),
            parent=np.fromiter([r.parent_chat_id for r in records], np.int64, count=n),
            category=rows.codes("category", [r.type for r in records]),
        )


def _add_gateway(rows: Rows, records: list[_Gateway]) -> None:
    n = len(records)
    status = np.fromiter([r.status for r in records], np.int64, count=n)
    output = np.fromiter([r.completion_tokens for r in records], np.int64, count=n)
    rows.add(
        arrival=np.fromiter([r.time for r in records], np.float64, count=n),
        prompt=np.fromiter([r.prompt_tokens for r in records], np.int64, count=n),
        output=np.where(status == 200, output, 0),
        status=status,
        service=np.fromiter([r.e2e for r in records], np.float64, count=n),
        width=np.fromiter([r.block for r in records], np.float64, count=n),
        run=rows.codes("run", [r.id.partition("-")[0] for r in records]),
        category=rows.codes("category", [r.endpoint for r in records]),
        **{name: rows.codes(name, [getattr(r, name) for r in records]) for name in LABELS if name != "category"},
    )


def _with_lists(rows: Rows, lines: list[int], records: list[Any]) -> tuple[list[Any], list[list[int]]]:
    """The records whose lists are lists of whole numbers, and the lists."""
    kept, lists = list[Any](), list[list[int]]()
    for line, record in zip(lines, records, strict=True):
        try:
            lists.append(_LIST.decode(record.hash_ids))
            kept.append(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            wrong = bytes(record.hash_ids)[:30].decode(errors="replace")
            rows.wrong(f"line {line}", f"hash_ids is {wrong}", _IDS)
    return kept, lists


def parse_lists(text: bytes, lists: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of JSON lists that follow one another, and how many each has; no counts where some item is none.

    >>> [column.tolist() for column in parse_lists(b"[1, 22][][-3]", 3)]
    [[1, 22, -3], [2, 0, 1]]
    >>> [column.tolist() for column in parse_lists(b"[1, 2.5]", 1)]
    [[], []]
    """
    ids, counts = _parse(np.frombuffer(text, np.uint8), lists)
    return ids, counts


@njit(cache=True, nogil=True)
def _parse(text: Any, lists: int) -> Any:
    ids = np.empty(len(text) // 2 + 1, np.int64)  # a number takes a digit and a mark
    counts = np.zeros(lists, np.int64)
    none = np.empty(0, np.int64)
    found, which, value, digits, sign = 0, -1, 0, 0, 1
    inside = False
    for c in text:
        if 48 <= c <= 57:
            value = value * 10 + (c - 48)
            digits += 1
            if digits > 18 or not inside:  # nineteen digits may not fit: left to the careful way
                return none, none
        elif c == 44 or c == 93:  # , ]
            if digits:
                ids[found] = sign * value
                found += 1
                counts[which] += 1
            value, digits, sign = 0, 0, 1
            inside = c == 44
        elif c == 91:  # [
            which += 1
            if inside or which >= lists:
                return none, none
            inside = True
        elif c == 45:
            sign = -1
        elif c not in (32, 9, 13):
            return none, none
    if which + 1 != lists:
        return none, none
    return ids[:found].copy(), counts


def _store(rows: Rows, layout: Layout, lines: list[int], records: list[Any]) -> None:
    """Records of any shape: the layout says where each field lies."""
    kept: dict[str, list[Any]] = {ours: [] for ours in layout.columns}
    other = 0
    getters = {ours: _getter(theirs) for ours, theirs in layout.columns.items()}
    for line, record in zip(lines, records, strict=True):
        if not isinstance(record, dict):
            rows.wrong(f"line {line}", f"the row {show(record)}", "an object")
            continue
        row = {ours: get(record) for ours, get in getters.items()}
        if row["prompt"] is None and row["output"] is None:
            other += 1
            continue
        problem = _check(row, layout)
        if problem:
            rows.wrong(f"line {line}", *problem)
            continue
        for ours, value in row.items():
            kept[ours].append(value)
    rows.read -= other
    _keep(rows, kept)
    if other:
        rows.parts.setdefault("other", []).append(np.array([other]))


def _check(row: dict[str, Any], layout: Layout) -> tuple[str, str] | None:
    """Turn the row's values into numbers, in place; what is wrong and what would be right, where that fails."""
    for ours, convert, right in (("arrival", moment, TIME), ("prompt", length, LENGTH), ("output", length, LENGTH)):
        value = convert(row[ours])
        if value is None:
            return f"{layout.columns[ours]} {show(row[ours])}", right
        row[ours] = value
    ids = row.get("ids", [])
    if not isinstance(ids, list) or not all(type(i) is int and -(2**63) <= i < 2**63 for i in ids):
        return f"{layout.columns['ids']} {show(ids)}", _IDS
    return None


def _keep(rows: Rows, kept: dict[str, list[Any]]) -> None:
    ids = kept.pop("ids", None)
    rows.add(arrival=np.array(kept.pop("arrival"), np.float64))
    rows.add(prompt=np.array(kept.pop("prompt"), np.int64), output=np.array(kept.pop("output"), np.int64))
    for name in LABELS:
        if name in kept:
            rows.add(**{name: rows.codes(name, [None if isinstance(v, list | dict) else v for v in kept[name]])})
    if ids is not None:
        counts = np.fromiter(map(len, ids), np.int64, count=len(ids))
        rows.add(ids=np.fromiter(chain.from_iterable(ids), np.int64, count=int(counts.sum())), counts=counts)


def _getter(path: str) -> Callable[[dict[str, Any]], Any]:
    keys = path.split(".")
    if len(keys) == 1:
        return lambda row: row.get(path)

    def get(row: dict[str, Any]) -> Any:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return row.get(path) if value is None else value  # a key may hold dots itself

    return get


_WHEN = re.compile(r"(\d{4}-)?(\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_COUNT = {
    name: re.compile(rf"{name}['\"]?\s*[:=]\s*(\d{{1,15}})")
    for name in ("prompt_tokens", "completion_tokens", "max_tokens")
}
_TOKENS = re.compile(r"prompt_token_ids['\"]?\s*[:=]\s*\[([\d,\s]*)\]")
LOG_BLOCK = 16


def read_log(rows: Rows, chunks: Iterator[bytes], limit: int | None) -> None:
    """Plain-text logs of engines; lines of other kinds are passed over.

    SGLang's finished requests (`prompt_tokens`, `completion_tokens`) and vLLM's received ones (`prompt_token_ids`, and
    `max_tokens` where the answer's length is not told).
    """
    kept: dict[str, list[Any]] = {"arrival": [], "prompt": [], "output": [], "ids": []}
    guessed, number = 0, 0
    for text in (line for chunk in chunks for line in chunk.decode(errors="replace").splitlines()):
        number += 1
        found = _log_line(text)
        if found is None:
            continue
        if limit is not None and rows.read >= limit:
            break
        rows.read += 1
        row, sure = found
        problem = _check(
            row, Layout("log", "log", {"arrival": "time", "prompt": "prompt tokens", "output": "output tokens"})
        )
        if problem:
            rows.wrong(f"line {number}", *problem)
            continue
        guessed += not sure
        for ours, value in row.items():
            kept[ours].append(value)
    _keep(rows, kept)
    if guessed:
        rows.notes.append(f"{guessed:,} outputs are max_tokens: the log does not say how long the answers were")


def _log_line(text: str) -> tuple[dict[str, Any], bool] | None:
    """A request in a line of text and whether its output is known; None where the line is none."""
    tokens, counts = _TOKENS.search(text), {name: found.search(text) for name, found in _COUNT.items()}
    if not (counts["completion_tokens"] or (counts["max_tokens"] and tokens)):
        return None
    ids = [int(word) for word in re.findall(r"\d{1,15}", tokens.group(1))] if tokens else []
    prompt = int(counts["prompt_tokens"].group(1)) if counts["prompt_tokens"] else len(ids)
    output = counts["completion_tokens"] or counts["max_tokens"]
    when = _WHEN.search(text)
    time = f"{when.group(1) or '1970-'}{when.group(2)} {when.group(3).replace(',', '.')}" if when else None
    blocks = [hash(tuple(ids[at : at + LOG_BLOCK])) for at in range(0, len(ids) - LOG_BLOCK + 1, LOG_BLOCK)]
    row = {"arrival": time, "prompt": prompt, "output": output and int(output.group(1)), "ids": blocks}
    return row, counts["completion_tokens"] is not None
