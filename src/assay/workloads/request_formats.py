"""Which format a file of requests has, told from its content, and which column means what.

A :class:`Layout` is the answer: the format's name, how its rows are read, and for each of our fields the column (or
path of keys) that holds it. Published formats are known by their columns; any other table or log is read by the names
people give such columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from assay.record.errors import BadInput

LABELS = ("session", "tier", "tenant", "model", "category")
_NAMES = {  # by the letters alone: PromptTokens, prompt_tokens and "prompt tokens" are one
    "arrival": "timestamp arrival arrivedat arrivaltime arrivaltimestamp arrivals receivedat requesttime starttime"
    " createdat created datetime time ts date timestampms arrivalms arrivaltimems starttimems",
    "prompt": "prompttokens inputlength inputtokens contexttokens numprefilltokens requesttokens promptlength promptlen"
    " inputlen isl prompttokencount inputtokencount nprompttokens numprompttokens numinputtokens prefilltokens"
    " tokensin prefilllen",
    "output": "completiontokens outputlength outputtokens generatedtokens numdecodetokens responsetokens outputlen osl"
    " completiontokencount outputtokencount ncompletiontokens numcompletiontokens numoutputtokens generationtokens"
    " numgenerationtokens decodetokens responselength completionlength tokensout decodelen",
    "session": "sessionid session conversationid conversation threadid",
    "tier": "tier servicetier priority slo sloclass",
    "tenant": "tenant tenantid user userid customer customerid organization organisation org team",
    "model": "model modelname deployment modelid",
    "category": "logtype category task tasktype type kind endpoint",
    "ids": "hashids blockhashes blockids blockhashids prefixhashes",
}
SYNONYMS = {name: words.split() for name, words in _NAMES.items()}


@dataclass(frozen=True)
class Layout:
    """How to read a file: `kind` is csv, jsonl, json or log; `columns` says where each of our fields lies."""

    format: str
    kind: str
    columns: Mapping[str, str] = field(default_factory=dict)
    separator: str = ","
    unit: str | None = None  # in which such arrivals are published; the rows may say otherwise
    block: int = 0  # tokens of a block; 0: told from the rows
    chained: bool = True


_AZURE = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
_BURST = {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"}
_BURST_MORE = {"model": "Model", "category": "Log Type", "session": "Session ID", "service": "Elapsed time"}
_VIDUR = {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
_HASHED = {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "ids": "hash_ids"}
_BAILIAN = {**_HASHED, "session": "parent_chat_id", "category": "type"}
_GATEWAY = {
    "arrival": "time", "prompt": "prompt_tokens", "output": "completion_tokens", "ids": "hash_ids",
    "session": "session", "tenant": "tenant", "tier": "tier", "model": "model", "category": "endpoint",
}  # fmt: skip
_GATEWAY_KEYS = {"time", "id", "endpoint", "status", "e2e"}  # those that are in nearly every line

KNOWN = {
    "mooncake": Layout("mooncake", "jsonl", _HASHED, unit="ms", block=512),
    "bailian": Layout("bailian", "jsonl", _BAILIAN, unit="s", block=16, chained=False),
    "assay": Layout("assay", "jsonl", _GATEWAY, unit="s"),  # the log of `assay gateway`
    "azure": Layout("azure", "csv", _AZURE),
    "burstgpt": Layout("burstgpt", "csv", _BURST | _BURST_MORE, unit="s"),
    "vidur": Layout("vidur", "csv", _VIDUR, unit="s"),
    "sharegpt": Layout("sharegpt", "json"),
    "openai": Layout("openai", "jsonl"),
    "log": Layout("log", "log"),
}
FORMATS = (*KNOWN, "csv", "jsonl")


def letters(name: str) -> str:
    """A column's name without case and punctuation.

    >>> letters("Prompt tokens") == letters("prompt_tokens") == "prompttokens"
    True
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def infer(columns: Iterable[str]) -> dict[str, str]:
    """Our field -> the column that holds it, by the names people use; nested keys are joined by dots.

    >>> infer(["ts", "usage.prompt_tokens", "usage.completion_tokens", "latency"])
    {'arrival': 'ts', 'prompt': 'usage.prompt_tokens', 'output': 'usage.completion_tokens'}
    """
    best: dict[str, tuple[int, int, str]] = {}
    for column in columns:
        name = letters(column.rsplit(".", 1)[-1])
        for ours, words in SYNONYMS.items():
            if name in words:
                rank = (words.index(name), column.count("."), column)
                best[ours] = min(best.get(ours, rank), rank)
    return {ours: best[ours][2] for ours in SYNONYMS if ours in best}


def flatten(row: Mapping[str, Any], depth: int = 3, before: str = "") -> dict[str, Any]:
    """Nested objects as one, keys joined by dots.

    >>> flatten({"a": 1, "b": {"c": 2}})
    {'a': 1, 'b.c': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and depth:
            flat |= flatten(value, depth - 1, f"{before}{key}.")
        else:
            flat[before + str(key)] = value
    return flat


def sniff(name: str, head: bytes, format: str | None = None) -> Layout:
    """The layout of a file that begins with `head`.

    Raises BadInput where it is none we read.
    """
    if format is not None and format not in FORMATS:
        raise BadInput(f"unknown format '{format}'; expected one of {', '.join(FORMATS)}")
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not begin:
        raise BadInput(f"{name} is empty; expected a trace of requests")
    if format in KNOWN and KNOWN[format].kind != "csv":
        layout = KNOWN[format]
    elif format in (None, "jsonl") and begin[:1] in b"{[" and not re.match(rb"\[\d{4}-", begin):
        layout = _sniff_json(name, begin)
    elif format in (None, "log") and _looks_like_log(begin):
        layout = KNOWN["log"]
    elif format == "jsonl":
        raise BadInput(f"{name} line 1: {begin[:30].decode(errors='replace')!r} is not JSON; expected an object a line")
    else:
        layout = _sniff_csv(name, begin, format)
    if layout.format in ("sharegpt", "openai"):
        return Layout(layout.format, "json" if begin[:1] == b"[" else "jsonl")
    return layout


def _sniff_json(name: str, begin: bytes) -> Layout:
    if begin[:1] == b"[":
        kind = "openai" if b'"messages"' in begin and b'"conversations"' not in begin else "sharegpt"
        if b'"conversations"' in begin or b'"messages"' in begin:
            return KNOWN[kind]
        raise BadInput(f"{name}: a JSON list of neither conversations nor messages; expected one object a line")
    keys: dict[str, Any] = {}
    lines = begin.splitlines()
    for line in lines[: max(1, min(50, len(lines) - 1))]:  # the last may be cut; a log mixes kinds of lines
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            keys |= flatten(row)
    if keys.keys() >= _GATEWAY_KEYS:
        return KNOWN["assay"]
    if "hash_ids" in keys and "timestamp" in keys:
        return KNOWN["bailian" if "chat_id" in keys else "mooncake"]
    if "conversations" in keys:
        return KNOWN["sharegpt"]
    if {"messages", "body.messages", "request.messages"} & keys.keys():
        return KNOWN["openai"]
    found = infer(keys)
    if {"timestamp", "input_length", "output_length"} <= keys.keys():  # as AIPerf and Dynamo write Mooncake's columns
        return Layout("jsonl", "jsonl", found, unit="ms")
    if {"prompt", "completion"} <= keys.keys() and "output" not in found:
        return KNOWN["openai"]
    return _complete(name, Layout("jsonl", "jsonl", found), keys)


def _looks_like_log(begin: bytes) -> bool:
    return re.search(rb"Received request |completion_tokens['\"]?\s*[:=]", begin) is not None and begin[:1] != b"{"


def _sniff_csv(name: str, begin: bytes, format: str | None) -> Layout:
    line = begin.splitlines()[0]
    try:
        header = line.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{name}: neither JSON nor text; expected a trace in one of {', '.join(FORMATS)}") from None
    separator = max(",;\t|", key=header.count)
    try:
        columns = [cell.strip() for cell in next(csv.reader([header], delimiter=separator))]
    except (csv.Error, StopIteration):
        columns = []
    for layout in (KNOWN["azure"], KNOWN["burstgpt"], KNOWN["vidur"]):
        needs = [layout.columns[ours] for ours in ("arrival", "prompt", "output")]
        if format in (None, layout.format) and set(needs) <= set(columns):
            there = {ours: theirs for ours, theirs in layout.columns.items() if theirs in columns}
            return Layout(layout.format, "csv", there, separator, layout.unit)
    if format not in (None, "csv"):
        raise BadInput(
            f"{name} line 1: not the columns of {format}; expected {', '.join(KNOWN[format].columns.values())}"
        )
    found = {ours: theirs for ours, theirs in infer(columns).items() if ours != "ids"}
    return _complete(name, Layout("csv", "csv", found, separator), columns)


def _complete(name: str, layout: Layout, columns: Iterable[str]) -> Layout:
    missing = [ours for ours in ("arrival", "prompt", "output") if ours not in layout.columns]
    if missing:
        seen = ", ".join(str(column) for column in columns)[:120] or "no columns"
        right = "; ".join(f"{ours}: {', '.join(SYNONYMS[ours][:3])}" for ours in missing)
        raise BadInput(f"{name}: no column for {' and '.join(missing)} among {seen}; expected names such as {right}")
    return layout
