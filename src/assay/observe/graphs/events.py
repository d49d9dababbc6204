"""What PyTorch records for Chakra: the host's graph (`ExecutionTraceObserver`) and the times (profiler, Kineto JSON).

Both are JSON, of the same steps and one rank; the two know each other's operations by the record function id.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.record.errors import BadInput
from assay.workloads.json_scan import MISSING
from assay.workloads.kineto_file import Recording, phases, read_file
from assay.workloads.kineto_scan import WORDS

LARGEST = 2 << 30  # bytes, unpacked
Name = int | str | None  # what profilers name streams and threads by


@dataclass(slots=True)
class Args:
    """What the profiler says of an event, as far as the linker asks."""

    external: int | None = None
    record: int | None = None
    correlation: int | None = None
    stream: Name = None
    wait_on: Name = None  # the stream that was waited for, and the call that recorded the event
    recorded_by: int | None = None
    group: Name = None
    collective: str | None = None
    sent: int | None = None
    received: int | None = None
    dtype: str | None = None
    given: Any = None  # the values of its arguments, tensors left blank


@dataclass(slots=True)
class Event:
    """One event; times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Name = None
    tid: Name = None
    args: Args = field(default_factory=Args)


@dataclass
class Profile:
    """A profiler's file: its spans, and what it says of the job."""

    events: list[Event]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The rank it says it is of."""
        rank = self.about.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def groups(self) -> dict[str, int]:
        """The size of each process group it names."""
        config = self.about.get("pg_config")
        listed = config if isinstance(config, list) else []
        return {str(g["pg_name"]): g.get("pg_size") or 0 for g in listed if isinstance(g, dict) and "pg_name" in g}

    @property
    def members(self) -> list[Any] | None:
        """The ranks of the only process group; None where there are several, or nobody tells."""
        config = self.about.get("pg_config")
        ranks = config[0].get("ranks") if isinstance(config, list) and len(config) == 1 else None
        return ranks if isinstance(ranks, list) else None


class Tensors(msgspec.Struct):
    """Arguments or results: values, shapes and types, in step."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []


class Attr(msgspec.Struct):
    """A named value of an operation."""

    name: str = ""
    type: str = ""
    value: Any = None


class Operation(msgspec.Struct):
    """A node of the host's graph."""

    id: int
    name: str = ""
    ctrl_deps: int | list[int] = 0
    inputs: Tensors = msgspec.field(default_factory=Tensors)
    outputs: Tensors = msgspec.field(default_factory=Tensors)
    attrs: list[Attr] = []

    @property
    def record(self) -> int | None:
        """The record function id."""
        found = next((attr.value for attr in self.attrs if attr.name == "rf_id"), None)
        return found if isinstance(found, int) else None


class HostGraph(msgspec.Struct):
    """The file of an `ExecutionTraceObserver`."""

    nodes: list[Operation]
    schema: str = ""


def read_profile(path: str | Path) -> Profile:
    """A Kineto JSON file, gzipped or not, by the reader of all of them (:mod:`assay.workloads.kineto_file`)."""
    recording = read_file(Path(path), detailed=True)
    if recording.cut is not None:
        cure = "'assay trace FILE --convert whole.json' keeps the events before it"
        raise BadInput(f"{path}: truncated at byte {recording.cut}; {cure}")
    about = recording.about.get("distributedInfo")
    return Profile(list(_spans(recording)), about if isinstance(about, dict) else {})


def _spans(recording: Recording) -> Iterator[Event]:
    """Every whole span, as an object: the linker puts them together one by one."""
    rows = np.flatnonzero(phases(recording, "X") & (recording["ts"] != MISSING))
    texts = [*recording.strings, None]  # -1: not named

    def words(name: str) -> Iterator[str | None]:
        return (texts[code] for code in recording[name][rows].tolist())

    def numbers(name: str) -> Iterator[int | None]:
        return (None if code == MISSING else code for code in recording[name][rows].tolist())

    def either(name: str) -> Iterator[Name]:
        codes = recording[name][rows].tolist()
        return (None if code == MISSING else recording.word(code) if code <= WORDS else code for code in codes)

    given = {text: _decoded(text) for text in {texts[code] for code in np.unique(recording["given"][rows]).tolist()}}
    said = zip(
        numbers("external"), numbers("record"), numbers("correlation"), either("stream"), either("wait_on"),
        numbers("recorded_by"), either("group"), words("collective"), numbers("sent"), numbers("received"),
        words("dtype"), (given[text] for text in words("given")), strict=True,
    )  # fmt: skip
    times = zip(recording["ts"][rows].tolist(), recording["dur"][rows].tolist(), strict=True)
    for cat, name, (ts, dur), pid, tid, args in zip(
        words("cat"), words("name"), times, either("pid"), either("tid"), said, strict=True
    ):
        lasted = 0 if dur == MISSING else dur
        yield Event("X", cat or "", name or "", ts / 1000, lasted / 1000, pid, tid, Args(*args))


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return None


def read_host(path: str | Path) -> HostGraph:
    """The JSON file of an `ExecutionTraceObserver`, gzipped or not."""
    path = Path(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = zlib.decompressobj(wbits=31).decompress(content, LARGEST)
    except (OSError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: {error}") from None
    try:
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=HostGraph)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise BadInput(f"{path}: truncated at byte {len(content)}") from None
        right = "an execution trace of PyTorch has a list 'nodes'"
        raise BadInput(f"{path}: {str(error)[:160]}; {right}") from None


# --------------------------------------------------------------------------------------------- what names mean

_OPERATIONS = (
    (r"reduce_?scatter", 7), (r"all_?reduce", 0), (r"all_?gather", 2), (r"all_?to_?all", 6), (r"broadcast", 5),
    (r"barrier", 9), (r"reduce", 1), (r"gather", 3), (r"scatter", 4),
)  # fmt: skip
_COMM = re.compile(r"^(gloo|mpi|ucc|nccl):|^(nccl|rccl)\w*Kernel", re.IGNORECASE)
_SYNC = re.compile(r"synchroni[sz]e", re.IGNORECASE)
_WAIT = re.compile(r"StreamWaitEvent$")
_RECORD = re.compile(r"EventRecord(WithFlags)?$")
_RUNTIME = re.compile(r"_?(runtime|driver)$", re.IGNORECASE)


def synchronises(name: str) -> bool:
    """Whether a call of any vendor says that it waits for the device.

    >>> synchronises("hipDeviceSynchronize"), synchronises("aclrtSynchronizeStream"), synchronises("cudaMalloc")
    (True, True, False)
    """
    return _SYNC.search(name) is not None


def makes_wait(name: str) -> bool:
    """Whether a call lets a stream wait for an event.

    >>> makes_wait("musaStreamWaitEvent"), makes_wait("cudaEventRecord")
    (True, False)
    """
    return _WAIT.search(name) is not None


def records(name: str) -> bool:
    """Whether a call records an event behind what a stream was given.

    >>> records("cudaEventRecordWithFlags"), records("cudaEventQuery")
    (True, False)
    """
    return _RECORD.search(name) is not None


def on_host(cat: str) -> bool:
    """Whether events of this category are the host's: operators, and calls of any vendor's runtime or driver.

    >>> on_host("cpu_op"), on_host("xpu_runtime"), on_host("cuda_driver"), on_host("kernel"), on_host("cuda_sync")
    (True, True, True, False, False)
    """
    return cat in ("cpu_op", "operator") or _RUNTIME.search(cat) is not None


def is_comm(name: str) -> bool:
    """Whether an event is communication itself, not the call that asks for it.

    >>> is_comm("gloo:all_reduce"), is_comm("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), is_comm("c10d::allreduce_")
    (True, True, False)
    """
    return bool(_COMM.match(name))


def is_step(name: str) -> bool:
    """Whether an event marks a training step."""
    return name.startswith("ProfilerStep")


def operation(name: str) -> int | None:
    """The collective that a name speaks of, as Chakra numbers them; None for sends, receives and other words.

    >>> operation("gloo:all_reduce"), operation("ncclDevKernel_ReduceScatter_Sum_f16"), operation("nccl:send 0->1")
    (0, 7, None)
    """
    return next((number for word, number in _OPERATIONS if re.search(word, name, re.IGNORECASE)), None)


def peer(call: Event, members: Sequence[Any]) -> tuple[int, int] | None:
    """The rank that a call of send or receive names, and the tag; None where its arguments were not recorded.

    A group numbers its own `members`; a receive from anyone names nobody.

    >>> peer(Event(name="c10d::send", args=Args(given=["", "", "1", "7"])), [4, 6])
    (6, 7)
    """
    if call.name not in ("c10d::send", "c10d::recv_") or not isinstance(call.args.given, list):
        return None
    numbers = [int(word) for word in call.args.given if isinstance(word, str) and word.isdecimal() and len(word) < 10]
    if len(numbers) != 2 or numbers[0] >= len(members):
        return None
    rank = members[numbers[0]]
    return (rank, numbers[1]) if type(rank) is int and rank >= 0 else None


def storages(values: Any) -> set[int]:
    """The storages of the tensors among an operation's values: [tensor, storage, offset, elements, bytes, device].

    >>> sorted(storages([[[4, 5, 0, 64, 4, "cpu"], [6, 7, 0, 64, 4, "cpu"]], 3, "x"]))
    [5, 7]
    """
    return {tensor[1] for tensor in _tensors(values)}


def nbytes(inputs: Tensors) -> int:
    """The bytes of all tensors among the inputs, by their shapes.

    >>> nbytes(Tensors([[4, 5, 0, 99, 4, "cpu"]], [[2, 3]], ["Tensor(float)"]))
    24
    """
    total = 0
    for tensor, shape in zip(_tensors(inputs.values), _shapes(inputs.values, inputs.shapes), strict=False):
        count = 1
        for side in shape:
            count *= side
        total += count * tensor[4]
    return total


def _is_tensor(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 6 and all(type(part) is int for part in value[:5])


def _tensors(values: Any) -> list[list[Any]]:
    if _is_tensor(values):
        return [values]
    return [found for value in values for found in _tensors(value)] if isinstance(values, list) else []


def _shapes(values: Any, shapes: Any) -> list[list[int]]:
    if _is_tensor(values):
        return [shapes if isinstance(shapes, list) and all(type(side) is int for side in shapes) else [0]]
    if not isinstance(values, list) or not isinstance(shapes, list):
        return []
    return [shape for value, own in zip(values, shapes, strict=False) for shape in _shapes(value, own)]
