"""Read a trace of requests to language models, in whatever format it was published or logged.

Mooncake and Bailian JSON lines (with prefix blocks), the log of `assay gateway` (likewise), Azure, BurstGPT and Vidur
tables, ShareGPT and OpenAI conversations, logs of engines, and any CSV or JSON lines whose columns have telling names;
plain, `.gz` or `.zst`. The content tells the format, not the name. `Source` says which column was taken for what, and
what became of every row.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.record.traces import lacking
from assay.sim.random import stream
from assay.workloads import prefixes as trees
from assay.workloads import time_units
from assay.workloads.closed_loop import closed
from assay.workloads.public_traces import PUBLIC, named
from assay.workloads.request_chats import BLOCK, read_chats
from assay.workloads.request_formats import LABELS, Layout, sniff
from assay.workloads.request_lines import LOG_BLOCK, read_lines, read_log
from assay.workloads.request_rows import Rows
from assay.workloads.request_tables import read_table
from assay.workloads.requests import Blocks, Floats, Ints, Prefixes, Requests, Source

_COLUMNS = ("arrival", "prompt", "output", "counts", "chat", "parent", "status", "run", "width", "service")
_CHUNK = 1 << 20  # bytes of text held at a time
_HEAD = 1 << 16
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


def read(
    path: str | os.PathLike[str],
    format: str | None = None,
    dejitter: bool = False,
    limit: int | None = None,
    skip_bad: bool = False,
    time_unit: str | None = None,
) -> Requests:
    """The requests of a file, or of a published trace by its name ("mooncake-conversation").

    `dejitter` spreads arrivals that were rounded to a coarse clock. `limit` reads the first rows only. A row that
    cannot be read is BadInput, naming file, line and field; with `skip_bad` it is left out and counted. Rows without
    output (failures) are always left out and counted. `time_unit` (s, ms, us, ns) says what numbers in the arrival
    column count; without it their name or their size tells, or else it is guessed from the rows (`Source.times`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.csv")
    ...     _ = file.write_text("time_s,ts,prompt_tokens,completion_tokens\\n0,0.5,100,5\\n1,2.5,20,0\\n2,3,20,7\\n")
    ...     trace = read(file)
    >>> trace.arrival.tolist(), trace.prompt.tolist(), trace.source.refused
    ([0.0, 2.5], [100, 20], 1)
    >>> trace.source.mapping["output"]
    'completion_tokens'
    """
    file = _find(path)
    head = _head(file)
    if b'"traceEvents"' in head or b'"schemaVersion"' in head:
        raise BadInput(f"{file.name}: a profiler's trace; 'assay trace' reads it, this wants requests to an LLM")
    layout = sniff(file.name, head, format)
    rows = Rows(file.name, skip_bad)
    if layout.format in ("sharegpt", "openai"):
        read_chats(rows, layout, _chunks(file), limit)
    elif layout.kind == "csv":
        read_table(rows, layout, file, limit)
    elif layout.kind == "log":
        read_log(rows, _chunks(file), limit)
    else:
        read_lines(rows, layout, _chunks(file), limit)
    return _finish(rows, layout, dejitter, None if time_unit is None else time_units.chosen(time_unit))


def _find(path: str | os.PathLike[str]) -> Path:
    public = named(str(path))
    file = Path(path)
    if public and not file.exists():
        if public.path is None:
            raise BadInput(lacking([public.file]))
        return public.path
    if not file.exists() and not file.suffix and os.sep not in str(path):
        raise BadInput(f"no file or trace '{path}'; traces by name: {', '.join(p.name for p in PUBLIC)}")
    return file


# ------------------------------------------------------------------------------- bytes


def _head(path: Path) -> bytes:
    """The first bytes of the text, enough to tell the format."""
    head = b""
    for block in _text(path, _HEAD):
        head += block
        if len(head) >= _HEAD:
            break
    return head[:_HEAD]


def _chunks(path: Path) -> Iterator[bytes]:
    """The text in pieces of whole lines."""
    rest: list[bytes] = []
    for number, piece in enumerate(_text(path, _CHUNK)):
        block = piece.removeprefix(b"\xef\xbb\xbf") if number == 0 else piece
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, block[:cut]])
            rest = []
        rest.append(block[cut:])
    if any(rest):
        yield b"".join(rest)


def _text(path: Path, size: int) -> Iterator[bytes]:
    """The file's bytes, unpacked where they are packed."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic == b"\x28\xb5\x2f\xfd":
                yield from _unzstd(path)
                return
            packed = gzip.GzipFile(fileobj=file) if magic[:2] == b"\x1f\x8b" else file
            while block := packed.read(size):
                yield block
    except (EOFError, zlib.error, pl.exceptions.PolarsError) as error:
        raise BadInput(
            f"{path.name}: cannot unpack it ({' '.join(str(error).split())[:100]}); expected a whole file"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _unzstd(path: Path) -> Iterator[bytes]:
    """Polars unpacks Zstandard, so no further library is needed; what it gives are lines."""
    for table in pl.scan_lines(path).collect_batches(chunk_size=10_000, maintain_order=True):
        yield "\n".join(table.to_series().fill_null("")).encode() + b"\n"


# ------------------------------------------------------------------------------- from rows to requests


def _finish(rows: Rows, layout: Layout, dejitter: bool, asked: str | None) -> Requests:
    columns = {name: rows.column(name) for name in (*_COLUMNS, *LABELS)}
    ids = rows.column("ids")
    notes = [*rows.notes, *_losses(rows)]
    arrival, prompt, output = (columns.pop(name) for name in ("arrival", "prompt", "output"))
    if arrival is None or prompt is None or output is None or not len(arrival):
        raise BadInput(f"{rows.name} holds no request{_because(notes)}; expected at least one row")
    kept = (prompt > 0) & (output > 0)
    notes += _unanswered(rows, columns, output) if layout.format == "assay" else _silent(output)
    if nothing := int(((prompt == 0) & (output > 0)).sum()):
        notes.append(f"{nothing:,} rows refused: no prompt tokens")
    if not kept.any():
        raise BadInput(f"{rows.name} holds no request{_because(notes)}; expected rows with prompt and output tokens")
    links = None
    if columns["chat"] is not None and columns["parent"] is not None:
        links = _parents(columns["chat"], columns["parent"])
    unit = _unit(rows, layout, asked, arrival, output, columns["session"] if links is None else trees.sessions(links))
    order = np.flatnonzero(kept)
    times = arrival[order]
    if (np.diff(times) < 0).any():
        if layout.format != "assay":  # a gateway writes when an answer ends
            notes.append("arrivals were not in order: sorted")
        by_time = np.argsort(times, kind="stable")
        order, times = order[by_time], times[by_time]
    times = (times - times[0]) * unit.scale
    if dejitter:
        times, note = spread(times)
        notes.append(note)
    trace: dict[str, Any] = {"prompt": prompt[order].astype(np.int32), "output": output[order].astype(np.int32)}
    models = columns["model"]
    if layout.format == "assay" and (models is None or len(np.unique(models[order])) < 2):
        columns["model"] = None  # nothing to tell apart, and each fleet has its own name
        layout = replace(layout, columns={ours: theirs for ours, theirs in layout.columns.items() if ours != "model"})
    trace |= _labels(
        rows, {name: column[order] for name, column in columns.items() if column is not None and name in LABELS}
    )
    links = None
    if columns["chat"] is not None and columns["parent"] is not None:
        links = _parents(columns["chat"][order], columns["parent"][order])
        trace["session"] = trees.sessions(links)
    block = 0
    if ids is not None and columns["counts"] is not None and len(ids):
        block = _block(layout, prompt, columns["counts"], columns["width"])
        trace |= _prefixes(layout, ids, columns["counts"], order, block, trace, links)
    source = Source(
        rows.name, layout.format, _mapping(layout, unit.told, block), rows.read, len(order), rows.read - len(order),
        tuple(notes), unit.sentence(), unit.also,
    )  # fmt: skip
    requests = Requests(arrival=times, source=source, **trace)
    if "session" not in trace:
        return requests
    service = columns["service"][order] if columns["service"] is not None else None
    if layout.format in ("sharegpt", "openai"):
        service = np.zeros(len(order))  # between turns stand think times, not gaps
    return closed(requests, service, links)


def _because(notes: list[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _losses(rows: Rows) -> list[str]:
    notes = []
    if rows.bad:
        more = f" and {rows.bad - len(rows.complaints):,} more" if rows.bad > len(rows.complaints) else ""
        notes.append(f"{rows.bad:,} rows refused as malformed: {' | '.join(rows.complaints)}{more}")
    other = rows.column("other")
    if other is not None:
        notes.append(f"{int(other.sum()):,} lines are no requests (neither prompt nor output): passed over")
    return notes


def _silent(output: NDArray[np.int64]) -> list[str]:
    silent = int((output == 0).sum())
    return [f"{silent:,} rows refused: no output tokens (failures)"] if silent else []


def _unanswered(rows: Rows, columns: dict[str, NDArray[Any] | None], output: NDArray[np.int64]) -> list[str]:
    """What a gateway's log says of requests without output, and of how many runs it is."""
    status, endpoint, run = columns["status"], columns["category"], columns["run"]
    assert status is not None and endpoint is not None and run is not None
    failed, silent = status != 200, (status == 200) & (output == 0)
    notes = []
    if failed.any():
        codes, counts = np.unique(status[failed], return_counts=True)
        answers = ", ".join(f"{code} ({count:,})" for code, count in zip(codes, counts, strict=True))
        notes.append(f"{int(failed.sum()):,} rows refused: answered {answers}")
    if silent.any():
        names, counts = list(rows.names["category"]), np.bincount(endpoint[silent])
        asked = ", ".join(f"{names[code]} ({counts[code]:,})" for code in np.flatnonzero(counts))
        notes.append(f"{int(silent.sum()):,} rows refused: no output tokens: {asked}")
    runs = len(np.unique(run[output > 0]))
    if runs > 1:
        notes.append(f"{runs} runs of the gateway: each names blocks anew, so prompts of two runs share nothing here")
    return notes


def _unit(
    rows: Rows, layout: Layout, asked: str | None, arrival: Floats, output: NDArray[np.int64], session: Ints | None
) -> time_units.Unit:
    """What a number in the arrival column counts: the user says, or the column's name, or the rows do."""
    if rows.unit or layout.format in ("sharegpt", "openai"):
        if asked is not None:
            raise BadInput(f"--time-unit {asked}: {rows.name} has {rows.unit or 'no times'}, not numbers; leave it out")
        return time_units.Unit("s", told=rows.unit or "s")
    if asked is not None:
        return time_units.Unit(asked, told=asked)
    if layout.format in ("assay", "log"):  # who writes them writes seconds
        return time_units.Unit("s", told="s since 1970" if float(arrival.max()) > 1e8 else "s")
    name = time_units.named(layout.columns.get("arrival", ""))
    if name is not None:
        return time_units.Unit(name, told=name)
    hint = {"mooncake": 2.0, "jsonl": 1.0}.get(layout.format, math.inf)  # other formats' columns are theirs alone
    return time_units.guessed(arrival, output, session, layout.unit, hint)


def _mapping(layout: Layout, unit: str, block: int) -> dict[str, str]:
    if layout.format in ("sharegpt", "openai"):
        tokens = "text, a token for 4 bytes"
        return {
            "prompt": tokens,
            "output": tokens,
            "prefixes": "text in blocks of 64 bytes (16 tokens)",
            "session": "conversation",
        }
    if layout.format == "log":
        return {"arrival": "time of the line", "prompt": "prompt_tokens or prompt_token_ids",
                "output": "completion_tokens or max_tokens"}  # fmt: skip
    mapping = dict(layout.columns)
    mapping["arrival"] += f" ({unit})"
    ids = mapping.pop("ids", None)
    if ids is not None and block:
        how = "an id stands for all before it" if layout.chained else "an id stands for its block alone: chained"
        mapping["prefixes"] = f"{ids} (blocks of {block} tokens; {how})"
    return mapping


def _labels(rows: Rows, columns: dict[str, Ints]) -> dict[str, Any]:
    """The labels of the requests, numbered among those that occur: a model that nobody served is none of the trace."""
    plural = {"tier": "tiers", "tenant": "tenants", "model": "models", "category": "categories"}
    found: dict[str, Any] = {}
    for name, codes in columns.items():
        if (codes >= 0).any():
            found[name] = codes
            if name in plural:
                used = np.unique(codes[codes >= 0])
                names = list(rows.names[name])
                found[name] = np.where(codes >= 0, np.searchsorted(used, codes), codes).astype(codes.dtype)
                found[plural[name]] = tuple(names[code] for code in used)
    return found


def _parents(chat: NDArray[np.int64], parent: NDArray[np.int64]) -> Ints:
    """The row that each row continues, by the ids of the conversation; -1: none, or none earlier in the file."""
    by_id = np.argsort(chat, kind="stable")
    at = np.minimum(np.searchsorted(chat[by_id], parent), len(chat) - 1)
    before = by_id[at]
    right = (chat[before] == parent) & (before < np.arange(len(chat)))
    return np.where(right, before, -1).astype(np.int32)


def _block(
    layout: Layout, prompt: NDArray[np.int64], counts: NDArray[np.int64], widths: NDArray[np.float64] | None
) -> int:
    """Tokens of a block: what the format says if the rows agree, else what they agree on."""
    told = np.empty(0) if widths is None else widths[(counts > 0) & (widths > 0)]
    if len(told):  # a gateway counts tokens in its own way, and says how many of the engine's an id stands for
        return max(round(float(np.median(told))), 1)
    if layout.format in ("sharegpt", "openai", "log"):
        return BLOCK if layout.format != "log" else LOG_BLOCK
    sizes = [layout.block] * (layout.block > 0) + [size for size in _BLOCKS if size != layout.block]
    fits = [float((counts == -(-prompt // size)).mean()) for size in sizes]
    return sizes[0] if fits[0] >= 0.5 else sizes[int(np.argmax(fits))]


def _prefixes(
    layout: Layout, ids: NDArray[np.int64], counts: NDArray[np.int64], order: NDArray[np.int64], block: int,
    trace: dict[str, Any], links: Ints | None,
) -> dict[str, Any]:  # fmt: skip
    """The tree of segments of the rows that were kept, in their order; and the blocks by content, where they are."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    if len(order) != len(counts) or (np.diff(order) != 1).any():
        ids = np.concatenate([ids[starts[r] : starts[r + 1]] for r in order])
        starts = np.concatenate([[0], np.cumsum(counts[order])])
    text = layout.format in ("sharegpt", "openai")
    chained = layout.chained and not text and layout.format != "log"
    if text or (layout.format == "assay" and "session" in trace):
        links = trees.previous(trace["session"])
    answers = None if links is None else (links, trace["output"])
    tree: Prefixes = trees.chains(ids, starts, block, trace["prompt"], chained, answers)
    return {"prefixes": tree} | ({} if chained else {"blocks": Blocks(ids, starts, block)})


# ------------------------------------------------------------------------------- coarse clocks


def spread(arrival: Floats, seed: int = 0) -> tuple[Floats, str]:
    """Arrivals that a coarse clock rounded down, spread at random within its ticks, in the same order; and a note.

    >>> times, note = spread(np.array([0.0, 0.0, 3.0, 3.0, 6.0, 6.0]))
    >>> note, bool((np.diff(times) > 0).all()), bool(times[1] < 3.0 <= times[2])
    ('arrivals spread uniformly within the 3 s of the clock they were rounded to', True, True)
    """
    ticks, which = np.unique(arrival, return_inverse=True)
    if len(ticks) < 2 or len(arrival) < 1.2 * len(ticks):
        return arrival, "arrivals are not rounded to a coarse clock: left as they are"
    gaps = np.diff(ticks)
    quantum = float(np.median(gaps))
    room = np.minimum(np.append(gaps, quantum), quantum)
    drawn = arrival + stream(seed, "dejitter", len(arrival)).random(len(arrival)) * room[which]
    times = np.sort(drawn)  # ticks do not overlap, so sorting only orders within each
    return times, f"arrivals spread uniformly within the {quantum:.3g} s of the clock they were rounded to"
