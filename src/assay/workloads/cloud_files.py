"""Point clouds in the files people have: ``.npy``, ``.npz``, KITTI ``.bin``, ``.ply`` and columns of text.

:func:`read_cloud` gives an ``(n, 3)`` array. It never unpickles or runs anything, allocates no more than the file can
fill, and every complaint is one ``ValueError`` line that names the file, the place, what is wrong and what would be
right.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import unreadable

Cloud = NDArray[np.float32] | NDArray[np.float64]


def _bad(path: Path, where: str, wrong: str, right: str) -> ValueError:
    return ValueError(f"{path}: {where}: {wrong}; expected {right}")


def read_cloud(path: str | os.PathLike[str]) -> Cloud:
    """Points of a file as an ``(n, 3)`` array; extra columns are dropped.

    ``.npy`` and ``.npz`` (first array with three or more columns), KITTI ``.bin`` (float32 x, y, z,
    intensity), ``.ply`` (ascii or binary), and text columns in ``.txt``, ``.xyz`` or ``.csv``.
    The result is float32 where the file holds no more than that, else float64.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "two.xyz"
    ...     _ = file.write_text("0 0 0\\n1 2 3\\n")
    ...     read_cloud(file).tolist()
    [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
    """
    path = Path(path)
    readers = {
        ".npy": _read_npy, ".npz": _read_npz, ".bin": _read_bin, ".ply": _read_ply,
        ".txt": _read_text, ".xyz": _read_text, ".csv": _read_text,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise _bad(path, "file name", f"unknown ending {path.suffix!r}", "one of " + " ".join(readers))
    try:
        cloud = reader(path)
    except OSError as error:
        raise ValueError(str(unreadable(path, error))) from error
    if len(cloud) == 0:
        raise _bad(path, "body", "no points", "at least one")
    finite = np.isfinite(cloud).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise _bad(path, f"point {row}", f"not finite: {cloud[row].tolist()}", "finite x, y, z")
    return cloud


def _narrow(table: NDArray[Any], single: bool) -> Cloud:
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is complained about as such
        if single:
            return np.array(table, dtype=np.float32, order="C")
        return np.array(table, dtype=np.float64, order="C")


class _Array(NamedTuple):
    """What the header of a ``.npy`` stream says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def _npy_header(file: IO[bytes]) -> _Array:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        head = _Array(*np.lib.format.read_array_header_1_0(file))
    elif version == (2, 0):
        head = _Array(*np.lib.format.read_array_header_2_0(file))
    else:
        raise ValueError(f"format version {version}")
    if not all(type(side) is int and side >= 0 for side in head.shape):
        raise ValueError(f"shape {head.shape}")
    return head


def _npy_cloud(path: Path, where: str, file: IO[bytes], head: _Array, room: int) -> Cloud:
    """First three columns as float32 or float64, whichever holds them; ``room`` bytes may follow the header."""
    if len(head.shape) != 2 or head.shape[1] < 3:
        raise _bad(path, where, f"array of shape {head.shape}", "shape (n, 3) or more columns")
    if head.dtype.kind not in "fiu":
        raise _bad(path, where, f"array of type {head.dtype}", "real numbers")
    size = math.prod(head.shape) * head.dtype.itemsize
    data = file.read(size) if size <= room else b""
    if len(data) < size:
        raise _bad(path, where, "cut short", f"{size} bytes for an array of shape {head.shape}")
    table = np.frombuffer(data, head.dtype, math.prod(head.shape)).reshape(
        head.shape, order="F" if head.fortran else "C"
    )
    return _narrow(table[:, :3], np.can_cast(head.dtype, np.float32, "safe"))


def _check_magic(path: Path, magic: bytes, right: str) -> None:
    with path.open("rb") as file:
        begin = file.read(len(magic))
    if begin != magic:
        raise _bad(path, "first bytes", repr(begin), f"{magic!r} ({right})")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _read_npy(path: Path) -> Cloud:
    _check_magic(path, b"\x93NUMPY", "a NumPy array file")
    with path.open("rb") as file:
        try:
            head = _npy_header(file)
        except OSError:
            raise
        except Exception as error:  # NumPy evaluates the header as Python text, which fails in many ways
            raise _bad(path, "npy header", _reason(error), "a complete numeric .npy file") from error
        return _npy_cloud(path, "array", file, head, path.stat().st_size - file.tell())


def _read_npz(path: Path) -> Cloud:
    want = "an .npz archive with a numeric array of shape (n, 3) or more columns"
    _check_magic(path, b"PK", "a NumPy archive")
    names = []
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                names.append(info.filename)
                if not info.filename.endswith(".npy"):
                    continue
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"member {info.filename!r} is packed by a method NumPy does not use")
                if info.compress_size > path.stat().st_size:
                    raise ValueError(f"member {info.filename!r} is larger than the file")
                with archive.open(info) as file:
                    head = _npy_header(file)
                    if len(head.shape) == 2 and head.shape[1] >= 3:
                        return _npy_cloud(path, f"array {info.filename!r}", file, head, info.file_size)
    except OSError:
        raise
    except Exception as error:  # damaged archives fail in many ways, and so do NumPy headers
        if isinstance(error, ValueError) and str(error).startswith(f"{path}: "):
            raise
        raise _bad(path, "npz data", _reason(error), want) from error
    raise _bad(path, "npz data", f"no fitting array among {names}", want)


def _read_bin(path: Path) -> Cloud:
    size = path.stat().st_size
    if size % 16:
        wrong = f"{size} bytes, {size % 16} beyond the last whole point"
        raise _bad(path, "file size", wrong, "a multiple of 16 (float32 x, y, z, intensity)")
    return np.ascontiguousarray(np.fromfile(path, dtype="<f4").reshape(-1, 4)[:, :3], dtype=np.float32)


def _read_text(path: Path) -> Cloud:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(path, f"byte {error.start}", "not text", "columns of numbers in UTF-8") from error
    numbers: list[int] = []
    rows: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = _cells(line.split("#", 1)[0].strip())
        if words:
            numbers.append(number)
            rows.append(words)
    pick = [0, 1, 2]
    if rows and not _is_number(rows[0][0]):  # a line of column names
        names = [word.strip("\"'/").lower() for word in rows[0]]
        if not {"x", "y", "z"} <= set(names):
            wrong = f"neither numbers nor column names x, y, z: {' '.join(rows[0])[:40]!r}"
            raise _bad(path, f"line {numbers[0]}", wrong, "at least three numbers")
        pick = [names.index(axis) for axis in "xyz"]
        del numbers[0], rows[0]
    cloud = np.empty((len(rows), 3))
    for i, words in enumerate(rows):
        try:
            cloud[i] = [float(words[j]) for j in pick]
        except IndexError:
            wrong = f"{len(words)} columns"
            raise _bad(path, f"line {numbers[i]}", wrong, f"at least {max(pick) + 1}") from None
        except ValueError as error:
            raise _bad(path, f"line {numbers[i]}", str(error), "numbers") from None
    return cloud


def _cells(line: str) -> list[str]:
    """Columns by comma or semicolon where there is one, so that an empty cell stays one; else by white space."""
    mark = "," if "," in line else ";"
    return [cell.strip() for cell in line.split(mark)] if mark in line else line.split()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


# --------------------------------------------------------------------------- PLY

PLY_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2",
    "ushort": "u2", "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip


class _Property(NamedTuple):
    name: str
    kind: str  # NumPy code of the value, or of a list's items
    length: str  # NumPy code of a list's length; empty for a plain value


class _Element(NamedTuple):
    name: str
    size: int
    properties: list[_Property]


def _declare(element: _Element, new: _Property) -> None:
    """Add a property; a name may occur once, and the length of a list is a whole number."""
    if new.length.startswith("f") or new.name in [p.name for p in element.properties]:
        raise ValueError
    element.properties.append(new)


def _ply_header(path: Path, data: bytes) -> tuple[str, list[_Element], int]:
    """Format, elements and the position of the body."""
    layout, elements, at, number = "", list[_Element](), 0, 0
    while True:
        stop = data.find(b"\n", at)
        if stop < 0:
            raise _bad(path, "header", "cut short", "a line end_header")
        words = data[at:stop].decode("latin-1").split()
        at, number = stop + 1, number + 1
        where = f"header line {number}"
        if number == 1 and words != ["ply"]:
            raise _bad(path, where, "not a PLY file", "the word ply")
        try:
            if words[:1] == ["end_header"]:
                break
            if words[:1] == ["format"]:
                layout = {"ascii": "ascii", "binary_little_endian": "<", "binary_big_endian": ">"}[words[1]]
            elif words[:1] == ["element"]:
                elements.append(_Element(words[1], int(words[2]), []))
                if elements[-1].size < 0:
                    raise ValueError
            elif words[:2] == ["property", "list"]:
                _declare(elements[-1], _Property(words[4], PLY_TYPES[words[3]], PLY_TYPES[words[2]]))
            elif words[:1] == ["property"]:
                _declare(elements[-1], _Property(words[2], PLY_TYPES[words[1]], ""))
            elif number > 1 and words and words[0] not in ("comment", "obj_info"):
                raise ValueError
        except (KeyError, IndexError, ValueError):
            right = "format, element NAME COUNT, property TYPE NAME or property list TYPE TYPE NAME"
            raise _bad(path, where, f"cannot read {' '.join(words)[:60]!r}", right) from None
    if not layout:
        raise _bad(path, "header", "no format line", "format ascii or binary_..._endian 1.0")
    return layout, elements, at


def _read_ply(path: Path) -> Cloud:
    data = path.read_bytes()
    layout, elements, at = _ply_header(path, data)
    names = [element.name for element in elements]
    if "vertex" not in names:
        raise _bad(path, "header", f"elements {names}", "an element named vertex")
    before, vertex = elements[: names.index("vertex")], elements[names.index("vertex")]
    kinds = {p.name: p.kind for p in vertex.properties if not p.length}
    missing = [axis for axis in "xyz" if axis not in kinds]
    if missing:
        raise _bad(path, "element vertex", f"no property {', '.join(missing)}", "scalar properties x, y, z")
    single = all(np.can_cast(kinds[axis], np.float32, "safe") for axis in "xyz")
    read = _ply_ascii if layout == "ascii" else _ply_binary
    table = read(path, data, at, layout, before, vertex)
    return _narrow(table, single)


def _short(path: Path, element: _Element, row: int) -> ValueError:
    wrong = f"the file ends in row {row} of {element.size}"
    return _bad(path, f"element {element.name}", wrong, "as many rows as the header says")


def _ply_ascii(
    path: Path, data: bytes, at: int, layout: str, before: list[_Element], vertex: _Element
) -> NDArray[np.float64]:
    words = data[at:].split()
    pos = 0
    out = np.empty((min(vertex.size, len(words)), 3))
    for element in [*before, vertex]:
        keep = ["xyz".find(p.name) if not p.length and element is vertex and len(p.name) == 1 else -1
                for p in element.properties]  # fmt: skip
        width = len(element.properties)  # at least so many words a row; none: nothing to read
        if element.size * width > len(words) - pos:
            raise _short(path, element, (len(words) - pos) // width)
        for row in range(element.size if width else 0):
            try:
                for p, axis in zip(element.properties, keep, strict=True):
                    if axis >= 0:
                        out[row, axis] = float(words[pos])
                    items = int(words[pos]) if p.length else 0
                    if items < 0:
                        raise ValueError
                    pos += 1 + items
            except IndexError:
                raise _short(path, element, row) from None
            except ValueError:
                wrong = f"cannot read {words[pos][:20].decode('latin-1')!r}"
                raise _bad(
                    path, f"element {element.name}, row {row}", wrong, "a number (list lengths: 0 or more)"
                ) from None
        if pos > len(words):
            raise _short(path, element, element.size - 1)
    return out


def _ply_binary(
    path: Path, data: bytes, at: int, layout: str, before: list[_Element], vertex: _Element
) -> NDArray[np.float64]:
    for element in before:
        at = _ply_skip(path, data, at, layout, element)
    if any(p.length for p in vertex.properties):
        return _ply_rows(path, data, at, layout, vertex)
    width = sum(np.dtype(p.kind).itemsize for p in vertex.properties)
    if at + width * vertex.size > len(data):
        raise _short(path, vertex, (len(data) - at) // width)
    fields, offset = [], 0
    for p in vertex.properties:
        if p.name in ("x", "y", "z"):
            fields.append((p.name, layout + p.kind, offset))
        offset += np.dtype(p.kind).itemsize
    dtype = np.dtype({
        "names": [f[0] for f in fields], "formats": [f[1] for f in fields],
        "offsets": [f[2] for f in fields], "itemsize": width,
    })  # fmt: skip
    table = np.frombuffer(data, dtype=dtype, count=vertex.size, offset=at)
    return np.stack([table[axis].astype(np.float64) for axis in "xyz"], axis=1)


def _ply_skip(path: Path, data: bytes, at: int, layout: str, element: _Element) -> int:
    """Position after an element that is not wanted."""
    if any(p.length for p in element.properties):
        for row in range(element.size):
            at = _ply_row(path, data, at, layout, element, row, {})
        return at
    at += element.size * sum(np.dtype(p.kind).itemsize for p in element.properties)
    if at > len(data):
        raise _short(path, element, element.size - 1)
    return at


def _ply_rows(path: Path, data: bytes, at: int, layout: str, vertex: _Element) -> NDArray[np.float64]:
    """Vertices whose rows differ in length, one by one."""
    rows = []
    for row in range(vertex.size):
        values = dict.fromkeys("xyz", 0.0)
        at = _ply_row(path, data, at, layout, vertex, row, values)
        rows.append([values[axis] for axis in "xyz"])
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _ply_row(
    path: Path, data: bytes, at: int, layout: str, element: _Element, row: int, values: dict[str, float]
) -> int:
    """Read one row from ``at``: scalars named in ``values`` are stored there; return its end."""
    for p in element.properties:
        kind = np.dtype(layout + (p.length or p.kind))
        if at + kind.itemsize > len(data):
            raise _short(path, element, row)
        value = np.frombuffer(data, dtype=kind, count=1, offset=at)[0]
        at += kind.itemsize
        if p.length:
            if value < 0:
                raise _bad(path, f"element {element.name}, row {row}", f"list of {value} items", "0 or more")
            at += int(value) * np.dtype(p.kind).itemsize
            if at > len(data):
                raise _short(path, element, row)
        elif p.name in values:
            values[p.name] = float(value)
    return at
