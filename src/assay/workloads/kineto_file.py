"""A Kineto or Chrome trace file as columns: read once, in pieces, never held as a whole.

The file may be gzipped; `traceEvents` may stand anywhere in the object, or be all of the file (a bare array). A file
that ends early keeps the whole events before the cut, and says so. Anything else that is not JSON is refused with the
byte at which it stops being so.

>>> import io
>>> text = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 5, "dur": 1.25}], "distributedInfo": {"rank": 3}}'
>>> recording = read_stream(io.BytesIO(text), "x.json")
>>> recording.rank, recording.strings[recording["name"][0]], recording["dur"].tolist(), recording.cut
(3, 'a', [1250], None)
>>> read_stream(io.BytesIO(text[:50]), "x.json").cut
50
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.workloads.json_scan import MISSING, key_end, skip_value
from assay.workloads.kineto_scan import DETAILS, FIELDS, WORDS, Strings, scan
from assay.workloads.kineto_window import Progress, Stream, Unpacked, Window

_ROWS = 1 << 16  # of one flush
_NARROW = {"ph": np.int8, "cat": np.int32, "name": np.int32, "collective": np.int32, "dtype": np.int32,
           "label": np.int32, "ranks": np.int32, "given": np.int32, "grid": np.int32}  # fmt: skip
_KEPT = ("distributedInfo", "deviceProperties", "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceName")
_RANK = tuple(re.compile(text, re.IGNORECASE) for text in (r"rank[-_. ]?(\d+)", r"worker[-_. ]?(\d+)", r"^(\d+)[._-]"))


@dataclass(frozen=True)
class Recording:
    """The events of one file: a column for each of `kineto_scan.FIELDS`, in the order of the file.

    Times are nanoseconds. `MISSING` stands for what an event does not say, -1 for a string that it does not name.
    """

    name: str
    columns: dict[str, NDArray[Any]]
    strings: list[str]
    about: dict[str, Any]
    """What the file says of itself: `distributedInfo` and the like."""
    cut: int | None
    """Where the file ends although it should go on."""
    notes: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.columns["ph"])

    def word(self, code: int) -> str:
        """A process, thread or stream, which may be a number or a word."""
        if code == MISSING:
            return "?"
        return self.strings[WORDS - code] if code <= WORDS else str(code)

    @property
    def rank(self) -> int | None:
        """What the file says, else its name."""
        said = self.about.get("distributedInfo")
        told = said.get("rank") if isinstance(said, dict) else None
        if isinstance(told, int) and told >= 0:
            return told
        name = Path(self.name).name  # a date may stand before the rank: the plainest word decides
        found = next((found for pattern in _RANK if (found := pattern.search(name))), None)
        return int(found[1]) if found else None

    @property
    def ranks(self) -> int:
        """How many ranks the file says there are; 1 where it does not."""
        said = self.about.get("distributedInfo")
        told = said.get("world_size") if isinstance(said, dict) else None
        return told if isinstance(told, int) and 0 < told < 1 << 20 else 1


class _Columns:
    """Rows as they come, packed into columns piece by piece."""

    def __init__(self, detailed: bool = False) -> None:
        self.detailed = detailed
        self.fields = [name for name in FIELDS if detailed or name not in DETAILS]
        self.rows = np.empty((_ROWS, len(FIELDS)), np.int64)
        self.count = 0
        self.strings = Strings()
        self.parts: list[dict[str, NDArray[Any]]] = []

    def flush(self) -> None:
        taken = self.rows[: self.count]
        self.parts.append({name: _packed(name, taken[:, FIELDS.index(name)]) for name in self.fields})
        self.count = 0

    def all(self) -> dict[str, NDArray[Any]]:
        self.flush()
        made = {}
        for name in self.fields:
            made[name] = np.concatenate([part.pop(name) for part in self.parts])  # popped: never two copies of all
        return made


def _packed(name: str, values: NDArray[np.int64]) -> NDArray[Any]:
    kind = _NARROW.get(name)
    if kind is None:
        return values.copy()
    return np.where(values == MISSING, 0 if name == "ph" else -1, values).astype(kind)


def read_file(path: Path, progress: Progress | None = None, detailed: bool = False) -> Recording:
    """Read a `.json` or `.json.gz` file; gzip is told by its first bytes. `detailed`: with `kineto_scan.DETAILS`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed:
                at = progress and (lambda done, _: progress(done, size))
                return read_stream(raw, str(path), progress=at, detailed=detailed)
            told = progress and (lambda done, _: progress(raw.tell(), size))
            return read_stream(Unpacked(raw), str(path), packed=size, progress=told, detailed=detailed)
    except OSError as error:
        raise unreadable(path, error, "a profiler trace would be right") from None


def read_stream(
    stream: Stream, name: str, *, packed: int | None = None, progress: Progress | None = None, detailed: bool = False
) -> Recording:
    """Read an open file. `packed`: how many bytes it unpacks from."""
    window, columns = Window(stream, name, packed, progress), _Columns(detailed)
    about: dict[str, Any] = {}
    first = window.next()
    if window.text[window.at : min(window.at + 3, window.end)].tobytes() == codecs.BOM_UTF8:  # editors put it there
        window.at += 3
        first = window.next()
    if first == 0x5B:  # '[': the array alone
        window.at += 1
        found, whole = True, _events(window, columns)
    elif first == 0x7B:
        window.at += 1
        found, whole = _object(window, columns, about)
    else:
        raise BadInput(
            f"{name}: not a profiler trace, which is JSON and begins with '{{' or '['; "
            "request traces are for 'assay traces'"
        )
    cut = None if whole else window.offset(window.end)
    if not found:
        raise BadInput(f"{name}: {_stranger(about, cut)}")
    if whole and window.next() is not None:
        raise BadInput(f"{name}: something follows the end of the trace at byte {window.offset(window.at)}")
    return Recording(name, columns.all(), columns.strings.all(), about, cut)


def _stranger(about: dict[str, Any], cut: int | None) -> str:
    if cut is not None:
        return f"ends at byte {cut}, before any 'traceEvents'"
    keys = about.get("keys", ())
    if "traceEvents" in keys:
        return "its 'traceEvents' is no list; a list of events would be right"
    there = ", ".join(list(keys)[:4]) or "nothing"
    return f"has no 'traceEvents' (it has {there}): not a profiler trace; request traces are for 'assay traces'"


def _object(window: Window, columns: _Columns, about: dict[str, Any]) -> tuple[bool, bool]:
    """Read the top-level object: were there events, and was it whole."""
    found = False
    keys = about.setdefault("keys", [])
    while True:
        letter = window.next()
        if letter is None:
            return found, False
        if letter == 0x7D:
            window.at += 1
            return found, True
        if letter == 0x2C and keys:
            window.at += 1
            continue
        text = window.passed(key_end)
        if text is None or window.next() is None:
            return found, False
        key = text[1 : text.rindex(b'"')].decode("utf-8", "replace")
        if len(keys) < 100:
            keys.append(key)
        if key == "traceEvents" and window.next() == 0x5B:
            window.at += 1
            found = True
            if not _events(window, columns):
                return found, False
            continue
        value = window.passed(skip_value)
        if value is None:
            return found, False
        if key in _KEPT:
            about[key] = _decoded(value)


def _decoded(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return None


def _events(window: Window, columns: _Columns) -> bool:
    """Read the array whose bracket was just passed; False if the stream ends within."""
    while True:
        found = scan(window.text, window.at, window.end, columns.rows, columns.count, columns.strings, columns.detailed)
        window.at, columns.count = found.position, found.rows
        if found.fault is not None:
            window.refuse(found.fault)
        if found.ended:
            return True
        if found.full:
            columns.flush()
        elif not window.more():
            return False


def phases(recording: Recording, letters: str) -> NDArray[np.bool_]:
    """Which events are of one of these phases: X a whole span, B and E its ends, i an instant, M a name."""
    return np.isin(recording["ph"], np.frombuffer(letters.encode(), np.int8))
