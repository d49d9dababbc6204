"""Chakra execution traces, read and written without loss: the protobuf stream (`.et`, `.et.gz`) and the JSON layout.

- :func:`read` gives a :class:`Graph` (columns; names interned); :func:`read_all` all of an archive or a list of files;
- :func:`write` writes one, in the format that the suffix names;
- :func:`frame` turns graphs into the room's telemetry.

What is written is what was read: every field, known or not, and byte for byte where the file was written as protobuf's
own libraries write (fields by number, defaults left out, lists packed). Graphs are not judged here; whether one can be
run is for :mod:`assay.observe.graphs.replay` to say. A file that breaks off, or lies about a length, is refused with
the byte at which it does.

>>> graph = Graph.of([1, 2], ["forward", "all_reduce"], [COMP, COLL], data_deps=[[], [1]], duration_micros=[50, 9])
>>> again = decode(encode(graph))
>>> again.names, again.data_deps[1].tolist(), encode(again) == encode(graph)
(['forward', 'all_reduce'], [1], True)

- Sridharan et al., "Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution Traces",
  arXiv:2305.14516 (the format), and arXiv:2605.11333.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from assay.record.errors import BadInput, unreadable
from assay.record.store import write_whole
from assay.workloads import chakra_attributes as attributes
from assay.workloads import chakra_encode as encoder
from assay.workloads import chakra_json
from assay.workloads import chakra_wire as wire
from assay.workloads.chakra_frame import frame
from assay.workloads.chakra_graph import (
    COLL,
    COLLECTIVES,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    RECV,
    SEND,
    TYPES,
    Graph,
    Interned,
    Rows,
    interned,
)  # fmt: skip

__all__ = [
    "COLL", "COLLECTIVES", "COMP", "MEM_LOAD", "MEM_STORE", "METADATA", "RECV", "SEND", "TYPES", "Graph", "Interned",
    "Rows", "decode", "encode", "frame", "read", "read_all", "write",
]  # fmt: skip

MOST_NODES = 30_000_000  # about 2 GB of columns
LARGEST = 4 << 30  # bytes of one trace, unpacked
_FREE = 256 << 20  # up to here any file may expand; beyond, no more than
_JSON = re.compile(rb'\s*(\{\s*("(?:[^"\\]|\\.){0,999}"\s*:|\}\s*$))')  # a brace alone may be a length of 123
_EXPANSION = 200  # times its size: ten times what traces do, a fifth of what zeros do


def read(path: str | Path) -> Graph:
    """The trace in a file: `.et` or JSON, plain, gzipped, or alone in a tar archive.

    Raises:
        BadInput: no such file, not a Chakra trace, or broken; the line names the byte.
    """
    graphs = read_all([path])
    if len(graphs) != 1:
        found = ", ".join(Path(graph.source).name for graph in graphs[:4])
        raise BadInput(f"{path}: holds {len(graphs)} traces ({found}); one was expected: unpack it and choose")
    return graphs[0]


def read_all(paths: str | Path | Iterable[str | Path]) -> list[Graph]:
    """All traces of some files, archives opened; each knows its rank from its name (`job.3.et`) where that has one."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    return [graph for path in given for graph in _read_file(Path(path))]


def _read_file(path: Path) -> list[Graph]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    content = _unpacked(content, str(path))
    if content[257:262] == b"ustar":
        return _read_archive(content, str(path))
    return [decode(content, str(path))]


def _read_archive(content: bytes, source: str) -> list[Graph]:
    graphs = []
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                wanted = re.search(r"\.(et|json)(\.gz)?$", member.name) and not Path(member.name).name.startswith("._")
                if wanted and member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None  # of a plain file
                    name = f"{source}:{member.name}"
                    graphs.append(decode(_unpacked(file.read(), name), name))
    except (tarfile.TarError, EOFError) as error:
        raise BadInput(f"{source}: a broken tar archive ({error})") from None
    if not graphs:
        raise BadInput(f"{source}: no .et or .json file is in this archive")
    return graphs


def _unpacked(content: bytes, source: str) -> bytes:
    """The content, if it is gzipped unpacked; never more of it than a trace may have."""
    if content[:2] != b"\x1f\x8b":
        return content
    most = min(LARGEST, max(_FREE, _EXPANSION * len(content)))
    out = bytearray()
    try:
        with gzip.open(io.BytesIO(content)) as file:
            while piece := file.read(1 << 20):
                out += piece
                if len(out) > most:
                    raise BadInput(
                        f"{source}: {len(content)} gzipped bytes unpack to more than {most}: refused as a bomb at "
                        f"byte {most}; unpack it yourself if it is a trace"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{source}: the gzip stream is broken behind byte {len(out)} of its content ({error})") from None
    return bytes(out)


def rank_of(source: str) -> int | None:
    """The rank that a file's name tells.

    >>> rank_of("run/job.12.et.gz"), rank_of("trace.json")
    (12, None)
    """
    found = re.search(r"[._](?:rank)?_?(\d+)\.(?:et|json)(?:\.gz)?$", source)
    return int(found[1]) if found else None


def decode(content: bytes, source: str = "trace") -> Graph:
    """A trace from the bytes of an `.et` file or of a JSON one, whichever they are."""
    if not content:
        raise BadInput(f"{source}: the file is empty; a Chakra trace begins with its metadata")
    if _JSON.match(content):
        return chakra_json.decode(content, source, rank_of(source))
    buf = np.frombuffer(content, np.uint8)
    metadata, begin = _metadata(buf, source)
    code, at, n, ctrl, data, tail = wire.measure(buf, begin, MOST_NODES)
    _refuse(code, at, len(buf), source)
    ids, start, duration = (np.zeros(n, np.uint64) for _ in range(3))
    kind = np.zeros(n, np.int32)
    name = np.zeros((n, 2), np.int64)
    ctrl_deps, data_deps = (Rows(np.zeros(n + 1, np.int64), np.empty(m, np.uint64)) for m in (ctrl, data))
    tails = Rows(np.zeros(n + 1, np.int64), np.empty(tail, np.uint8))
    wire.fill(
        buf, begin, ids, kind, start, duration, name, ctrl_deps.at, ctrl_deps.values, data_deps.at, data_deps.values,
        tails.at, tails.values,
    )  # fmt: skip
    codes, names = interned(buf, name)
    return Graph(
        ids, codes, names, kind, start, duration, ctrl_deps, data_deps, tails, metadata, rank_of(source), source
    )


def _metadata(buf: wire.Bytes, source: str) -> tuple[bytes | None, int]:
    """The first message, unless it is a node already: a node has numbers (an id, or if that is 0 a type)."""
    code, body, end = wire.frame(buf, 0)
    _refuse(code, body, len(buf), source)
    code, at = wire.check(buf, body, end)
    _refuse(code, at, len(buf), source)
    at = body
    while at < end:
        number, kind, _, _, at = wire.field(buf, at, end)
        if kind == wire.VARINT and number in (wire.ID, wire.TYPE):
            return None, 0
    return buf[body:end].tobytes(), int(end)


def _refuse(code: int, at: int, size: int, source: str) -> None:
    if code:
        cut = "truncated" if code in (wire.CUT, wire.SHORT) else "not a Chakra trace, or a broken one"
        raise BadInput(f"{source}: {cut}: at byte {at} of {size} {wire.WHY[code]}")


def encode(graph: Graph) -> bytes:
    """The trace as the stream of an `.et` file."""
    head = b"" if graph.metadata is None else attributes.number(len(graph.metadata)) + graph.metadata
    octets = [name.encode("utf-8", "surrogateescape") for name in graph.names]
    name_at = np.concatenate([[0], np.cumsum([len(name) for name in octets])]).astype(np.int64)
    columns = (graph.id, graph.type, graph.start_micros, graph.duration_micros, graph.name, name_at)
    ctrl, data = graph.ctrl_deps, graph.data_deps
    sizes = encoder.sizes(*columns, ctrl.at, ctrl.values, data.at, data.values, graph.tail.at)
    out = np.empty(len(head) + encoder.total(sizes), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    encoder.emit(
        out, len(head), sizes, *columns, np.frombuffer(b"".join(octets), np.uint8),
        ctrl.at, ctrl.values, data.at, data.values, graph.tail.at, graph.tail.values,
    )  # fmt: skip
    return out.tobytes()


def write(graph: Graph, path: str | Path) -> None:
    """Write a trace whole: as `.et`, `.et.gz`, or in the JSON layout for `.json` (`.json.gz`)."""
    where = Path(path)
    inner = where.name.removesuffix(".gz")
    if inner.endswith(".json"):
        content = chakra_json.encode(graph)
    elif inner.endswith(".et"):
        content = encode(graph)
    else:
        raise BadInput(f"cannot write a Chakra trace to '{where.name}': the suffix must be .et, .json or either + .gz")
    write_whole(where, gzip.compress(content, mtime=0) if where.name.endswith(".gz") else content)
