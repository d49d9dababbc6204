"""A cloud comes out of a file as it was written; a file that is no cloud is one line that names it."""

from __future__ import annotations

import io
import signal
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.workloads.cloud_files import read_cloud

Cloud = np.ndarray[Any, Any]

# ----------------------------------------------------------------------------------------- helpers

POINTS = np.array([[1.5, -2.25, 3.0], [0.0, 0.5, -0.125], [1e3, 2e-3, -7.0], [4.0, 5.0, 6.0]], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clouds")


def read(folder: Path, name: str, content: bytes) -> Cloud:
    path = folder / name
    path.write_bytes(content)
    return read_cloud(path)


def check(cloud: Cloud, expected: Any, dtype: Any) -> None:
    assert cloud.dtype == dtype
    assert cloud.flags.c_contiguous
    assert cloud.flags.writeable
    assert np.array_equal(cloud, np.asarray(expected, dtype))


class TookTooLong(BaseException):
    """Not an Exception, so that no reader can take it for a complaint about the file."""


@contextmanager
def at_once(seconds: float = 5.0) -> Iterator[None]:
    """What takes longer fails instead of holding up everything else."""

    def stop(*_: Any) -> None:
        raise TookTooLong(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(folder: Path, name: str, content: bytes, why: str = "") -> None:
    """The file is refused with one line that names it: at once, and without much memory."""
    path = folder / name
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with at_once(), pytest.raises(ValueError, match=why or None) as caught:
            read_cloud(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    names_it(caught.value, path)
    assert peak < 2**24 + 100 * len(content)


def names_it(error: ValueError, path: Path) -> None:
    line = str(error)
    assert line.startswith(f"{path}: ")
    assert len(line.splitlines()) == 1
    assert "; expected " in line  # what is wrong, and what would be right


def read_or_refused(folder: Path, name: str, content: bytes) -> None:
    """Whatever a file holds, it is a cloud of finite points or one line that names the file."""
    try:
        with at_once():
            cloud = read(folder, name, content)
    except ValueError as error:
        names_it(error, folder / name)
    else:
        assert cloud.ndim == 2
        assert cloud.shape[1] == 3
        assert len(cloud) >= 1
        assert cloud.dtype in (np.float32, np.float64)
        assert np.isfinite(cloud).all()


# ---------------------------------------------------------------------------------- NumPy's formats


def npy(array: Any, **more: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **more)
    return file.getvalue()


def npz(*, method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """An archive of the members as they are, be they arrays or not."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def claimed(shape: str, descr: str = "'<f4'", body: bytes = bytes(24)) -> bytes:
    """An array file whose header says what the test wants it to say."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    ("stored", "becomes"),
    [
        ("<f2", np.float32), ("<f4", np.float32), (">f4", np.float32), ("<f8", np.float64), (">f8", np.float64),
        ("i1", np.float32), ("u1", np.float32), ("<i2", np.float32), ("<u2", np.float32),
        ("<i4", np.float64), ("<i8", np.float64), ("<u8", np.float64),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [3, 4, 7])
def test_npy_keeps_every_digit_and_drops_further_columns(
    folder: Path, stored: str, becomes: type, order: Any, columns: int
) -> None:
    array = np.asarray(np.arange(5 * columns).reshape(5, columns) * 3, dtype=stored, order=order)
    check(read(folder, "a.npy", npy(array)), array[:, :3], becomes)


@given(
    hnp.arrays(
        st.sampled_from([np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)]),
        st.tuples(st.integers(1, 9), st.integers(3, 5)),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
@settings(max_examples=60, deadline=None)
def test_npy_and_npz_give_back_what_was_written(folder: Path, array: Cloud) -> None:
    becomes = np.float64 if array.dtype == np.float64 else np.float32
    check(read(folder, "a.npy", npy(array)), array[:, :3], becomes)
    check(read(folder, "a.npz", npz(**{"arr_0.npy": npy(array)})), array[:, :3], becomes)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_its_first_array_of_three_or_more_columns(folder: Path, save: Callable[..., None]) -> None:
    file = io.BytesIO()
    save(file, times=np.arange(4.0), pairs=np.ones((4, 2)), xyz=POINTS, other=POINTS + 1)
    check(read(folder, "a.npz", file.getvalue()), POINTS, np.float32)


def test_endings_may_be_in_capitals(folder: Path) -> None:
    check(read(folder, "SCAN.NPY", npy(POINTS)), POINTS, np.float32)


BAD_NPY = {
    "empty file": b"",
    "no array file": b"not an array",
    "magic only": b"\x93NUMPY",
    "unknown version": b"\x93NUMPY\x09\x00" + npy(POINTS)[8:],
    "one dimension": npy(np.arange(3.0)),
    "three dimensions": npy(np.zeros((2, 3, 3))),
    "no dimension": npy(np.float64(3)),
    "two columns": npy(np.zeros((4, 2))),
    "no points": npy(np.zeros((0, 3))),
    "objects": npy(np.array([[1, "a", None]], object), allow_pickle=True),
    "objects within records": claimed("(1, 3)", "[('x', 'O')]"),
    "complex": npy(np.zeros((2, 3), complex)),
    "truth values": npy(np.zeros((2, 3), bool)),
    "text": npy(np.full((2, 3), "1.0")),
    "dates": npy(np.zeros((2, 3), "M8[s]")),
    "records": npy(np.zeros((2, 3), [("x", "f4")])),
    "not a number": npy(np.where(np.eye(4, 3) > 0, np.nan, 1.0)),
    "infinite": npy(np.where(np.eye(4, 3) > 0, -np.inf, 1.0)),
    "data cut short": npy(POINTS)[:-1],
    "data missing": npy(POINTS)[:128],
    "header cut short": npy(POINTS)[:60],
    "header not closed": claimed("(2, 3)").replace(b", }\n", b"   \n"),
    "a billion rows": claimed("(1000000000, 3)"),
    "10**15 rows": claimed(f"({10**15}, 3)"),
    "10**30 rows": claimed(f"({10**30}, 3)"),
    "negative rows": claimed("(-2, 3)"),
    "rows that are a truth value": claimed("(True, 3)"),
    "shape of text": claimed("('2', 3)"),
    "no type": claimed("(2, 3)", "()"),
    "type None": claimed("(2, 3)", "None"),
    "deep header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 5001) + b"-" * 5000 + b"1",
    "header with a list as key": b"\x93NUMPY\x01\x00" + struct.pack("<H", 8) + b"{[]: 1}\n",
}


@pytest.mark.parametrize("content", BAD_NPY.values(), ids=BAD_NPY.keys())
def test_bad_npy(folder: Path, content: bytes) -> None:
    refused(folder, "a.npy", content)


def encrypted() -> bytes:
    return patched(npz(**{"a.npy": npy(POINTS)}), local=(6, 1), central=(8, 1))


def unknown_method() -> bytes:
    return patched(npz(**{"a.npy": npy(POINTS)}), local=(8, 99), central=(10, 99))


def patched(archive: bytes, local: tuple[int, int], central: tuple[int, int]) -> bytes:
    """The archive with one byte set in the member's own header and in the directory at the end."""
    content = bytearray(archive)
    content[local[0]] = local[1]
    content[archive.index(b"PK\x01\x02") + central[0]] = central[1]
    return bytes(content)


def damaged(method: int) -> bytes:
    """An archive with a scratch in the middle of its data."""
    content = bytearray(npz(method=method, **{"a.npy": npy(POINTS)}))
    for position in range(40, 60):
        content[position] ^= 0x5A
    return bytes(content)


BAD_NPZ = {
    "empty file": b"",
    "no archive": b"not an archive",
    "magic only": b"PK\x03\x04",
    "cut short": npz(**{"a.npy": npy(POINTS)})[:-30],
    "no member": npz(),
    "no fitting member": npz(**{"a.npy": npy(np.arange(3)), "b.npy": npy(np.zeros((2, 2)))}),
    "text member": npz(**{"readme.txt": b"hello"}),
    "member name of two lines": npz(**{"a\nb.npy": npy(np.arange(3))}),
    "objects": npz(**{"a.npy": npy(np.array([[1, "a", None]], object), allow_pickle=True)}),
    "not a number": npz(**{"a.npy": npy(POINTS * np.nan)}),
    "no points": npz(**{"a.npy": npy(np.zeros((0, 3)))}),
    "header not closed": npz(**{"a.npy": claimed("(2, 3)").replace(b", }\n", b"   \n")}),
    "a billion rows": npz(**{"a.npy": claimed("(1000000000, 3)")}),
    "a billion rows, deflated": npz(method=zipfile.ZIP_DEFLATED, **{"a.npy": claimed("(1000000000, 3)")}),
    "10**15 rows": npz(**{"a.npy": claimed(f"({10**15}, 3)")}),
    "10**30 rows": npz(**{"a.npy": claimed(f"({10**30}, 3)")}),
    "encrypted": encrypted(),
    "unknown method": unknown_method(),
    "damaged": damaged(zipfile.ZIP_STORED),
    "damaged, deflated": damaged(zipfile.ZIP_DEFLATED),
    "damaged, bzip2": damaged(zipfile.ZIP_BZIP2),
    "damaged, lzma": damaged(zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("content", BAD_NPZ.values(), ids=BAD_NPZ.keys())
def test_bad_npz(folder: Path, content: bytes) -> None:
    refused(folder, "a.npz", content)


def test_npz_passes_over_members_that_are_no_arrays(folder: Path) -> None:
    check(read(folder, "a.npz", npz(**{"readme.txt": b"hello", "a.npy": npy(POINTS)})), POINTS, np.float32)


def test_npz_unpacks_only_what_it_returns(folder: Path) -> None:
    """A member that is not wanted may be as large as it likes: 64 MiB of zeros pack into 64 KiB."""
    large = claimed("(8388608,)", "'<f8'", bytes(2**26))
    content = npz(method=zipfile.ZIP_DEFLATED, **{"times.npy": large, "xyz.npy": npy(POINTS)})
    tracemalloc.start()
    try:
        check(read(folder, "a.npz", content), POINTS, np.float32)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------- KITTI's .bin


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 20), st.just(4)), elements={"allow_nan": False}))
@settings(max_examples=40, deadline=None)
def test_bin_is_four_floats_a_point(folder: Path, rows: Cloud) -> None:
    rows = np.where(np.isfinite(rows), rows, 0).astype("<f4")
    check(read(folder, "a.bin", rows.tobytes()), rows[:, :3], np.float32)


def test_the_intensity_in_bin_may_be_anything(folder: Path) -> None:
    rows = np.c_[POINTS, np.full(4, np.nan)].astype("<f4")
    check(read(folder, "a.bin", rows.tobytes()), POINTS, np.float32)


@pytest.mark.parametrize("size", [0, 1, 12, 15, 17, 4 * 16 - 4])
def test_bin_of_another_size_is_refused(folder: Path, size: int) -> None:
    refused(folder, "a.bin", bytes(size))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bin_with_a_point_that_is_not_finite_says_which(folder: Path, value: float) -> None:
    rows = np.zeros((5, 4), "<f4")
    rows[3, 2] = value
    refused(folder, "a.bin", rows.tobytes(), why="point 3")


# --------------------------------------------------------------------------------------------- text

numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=12), st.sampled_from(" \t,;"), st.data())
@settings(max_examples=80, deadline=None)
def test_text_gives_back_what_was_written(
    folder: Path, rows: list[tuple[float, float, float]], mark: str, data: st.DataObject
) -> None:
    extra = data.draw(st.sampled_from(["", f"{mark}7"]))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\n\n", " # a note\n"]))
    first = data.draw(st.sampled_from(["", "# a note\n\n", f"x{mark}y{mark}z\n", f'"X"{mark}"Y"{mark}"Z"\n', "\ufeff"]))
    ending = data.draw(st.sampled_from(["txt", "xyz", "csv"]))
    text = first + "".join(mark.join(map(repr, row)) + extra + end for row in rows)
    check(read(folder, f"a.{ending}", text.encode()), rows, np.float64)


def test_named_columns_may_come_in_any_order(folder: Path) -> None:
    text = "time,Z,intensity,x,y\n" + "".join(f"9,{z},0.5,{x},{y}\n" for x, y, z in POINTS.tolist())
    check(read(folder, "a.csv", text.encode()), POINTS, np.float64)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no points"),
        (b"\n# nothing\n", "no points"),
        (b"x,y,z\n", "no points"),
        (b"1 2\n", "line 1: 2 columns"),
        (b"1 2 3\n\n4 5\n", "line 3: 2 columns"),
        (b"1 2 3\n4 x 6\n", "line 2: .*'x'"),
        (b"x y\n1 2\n", "line 1"),
        (b"hello world\n", "line 1"),
        (b"1 2 nan\n", "point 0"),
        (b"0 0 0\n1 inf 2\n", "point 1"),
        (b"0 0 0\n1 1e999 2\n", "point 1"),
        (b"1 2 \xff\n", "byte 4"),
        ("1 2 3\n".encode("utf-16"), "byte 0"),
        (b"1 2 " + b"9" * 5000 + b"\n", "point 0"),
    ],
)
def test_bad_text(folder: Path, text: bytes, why: str) -> None:
    for ending in ("txt", "xyz", "csv"):
        refused(folder, f"a.{ending}", text, why)


# ---------------------------------------------------------------------------------------------- PLY

SCALARS = {
    "char": "b", "int8": "b", "uchar": "B", "uint8": "B", "short": "h", "int16": "h", "ushort": "H", "uint16": "H",
    "int": "i", "int32": "i", "uint": "I", "uint32": "I", "float": "f", "float32": "f", "double": "d", "float64": "d",
}  # fmt: skip
FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
every_format = pytest.mark.parametrize("layout", FORMATS)


@dataclass
class Element:
    """An element of a PLY file: its properties are ``(type, name)`` or ``(length type, item type, name)``."""

    name: str
    properties: Sequence[tuple[str, ...]]
    rows: Sequence[Sequence[Any]]
    claims: int | None = None  # how many rows the header says there are, if that is not the truth

    def header(self) -> str:
        lines = [f"element {self.name} {len(self.rows) if self.claims is None else self.claims}\n"]
        return "".join(lines + [f"property {'list ' * (len(p) == 3)}{' '.join(p)}\n" for p in self.properties])

    def body(self, layout: str) -> bytes:
        return b"".join(self.row(row, layout) + b"\n" * (layout == "ascii") for row in self.rows)

    def row(self, row: Sequence[Any], layout: str) -> bytes:
        flat: list[tuple[str, Any]] = []
        for kinds, value in zip(self.properties, row, strict=True):
            if len(kinds) == 3:
                flat += [(kinds[0], len(value)), *((kinds[1], item) for item in value)]
            else:
                flat.append((kinds[0], value))
        if layout == "ascii":
            return " ".join(repr(value) for _, value in flat).encode()
        return b"".join(struct.pack(FORMATS[layout] + SCALARS[kind], value) for kind, value in flat)


XYZ = [("float", "x"), ("float", "y"), ("float", "z")]
FACES = Element("face", [("uchar", "int", "vertex_indices"), ("uchar", "flags")], [([0, 1, 2], 9), ([], 8)])
CAMERA = Element("camera", [("double", "focus")], [(0.5,)])


def vertices(properties: Sequence[tuple[str, ...]] = XYZ, points: Cloud = POINTS, **more: Any) -> Element:
    """The points under a choice and order of properties; those that are not x, y or z get some value."""

    def value(kinds: tuple[str, ...], point: Sequence[float]) -> Any:
        if kinds[-1] in ("x", "y", "z") and len(kinds) == 2:
            return point["xyz".index(kinds[-1])]
        return [1, 2, 3][: int(abs(point[0])) % 4] if len(kinds) == 3 else 7

    rows = [[value(kinds, point) for kinds in properties] for point in points.tolist()]
    return Element("vertex", properties, rows, **more)


def ply(layout: str, *elements: Element, notes: str = "") -> bytes:
    header = f"ply\nformat {layout} 1.0\n{notes}{''.join(e.header() for e in elements)}end_header\n"
    return header.encode() + b"".join(e.body(layout) for e in elements)


@dataclass
class Shuffled:
    """Properties of a vertex in some order, and the type its coordinates should come out in."""

    properties: list[tuple[str, ...]]
    dtype: Any = field(default=np.float32)


@st.composite
def shuffled(draw: st.DrawFn) -> Shuffled:
    kinds = draw(st.sampled_from([("float",) * 3, ("float32",) * 3, ("double",) * 3, ("float", "float64", "float")]))
    extra = draw(
        st.lists(
            st.sampled_from(
                [("uchar", "red"), ("int16", "ring"), ("double", "time"), ("uint", "xy"), ("uchar", "short", "echoes")]
            ),
            unique=True,
        )
    )
    properties = draw(st.permutations([*zip(kinds, "xyz", strict=True), *extra]))
    wide = any(kind in ("double", "float64") for kind in kinds)
    return Shuffled(properties, np.float64 if wide else np.float32)


@given(
    st.sampled_from(sorted(FORMATS)),
    shuffled(),
    st.lists(st.sampled_from([FACES, CAMERA, Element("void", [], [])]), max_size=3),
    st.lists(st.sampled_from([FACES, CAMERA]), max_size=2),
    st.sampled_from(["", "comment made by hand\n", "obj_info element vertex 9\ncomment\n"]),
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(-(2.0**60), 2.0**60, width=32)),
)
@settings(max_examples=200, deadline=None)
def test_ply_gives_back_what_was_written(
    folder: Path, layout: str, shape: Shuffled, before: list[Element], after: list[Element], notes: str, points: Cloud
) -> None:
    content = ply(layout, *before, vertices(shape.properties, points), *after, notes=notes)
    check(read(folder, "a.ply", content), points, shape.dtype)
    body = content.index(b"end_header\n")
    windows = content[:body].replace(b"\n", b"\r\n") + content[body:].replace(b"end_header\n", b"end_header\r\n", 1)
    check(read(folder, "a.ply", windows), points, shape.dtype)


@every_format
@pytest.mark.parametrize(("kind", "dtype"), [("uchar", np.float32), ("short", np.float32), ("int", np.float64)])
def test_ply_of_whole_coordinates(folder: Path, layout: str, kind: str, dtype: Any) -> None:
    element = Element("vertex", [(kind, axis) for axis in "xyz"], [(1, 2, 3), (4, 5, 6)])
    check(read(folder, "a.ply", ply(layout, element)), [(1, 2, 3), (4, 5, 6)], dtype)


@given(st.sampled_from(sorted(FORMATS)), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_ply_cut_short_anywhere_is_refused(folder: Path, layout: str, lists: bool, data: st.DataObject) -> None:
    properties = [("uchar", "red"), *XYZ, *([("uchar", "short", "echoes")] if lists else [])]
    content = ply(layout, FACES, CAMERA, vertices(properties))
    if layout == "ascii":  # of its last number some digits may be missing unseen
        content = content[: content.rstrip().rindex(b" ") + 1]
        end = len(content)
    else:
        end = len(content) - 1
    path = folder / "a.ply"
    path.write_bytes(content[: data.draw(st.integers(0, end))])
    with at_once(), pytest.raises(ValueError) as caught:
        read_cloud(path)
    names_it(caught.value, path)


FLOAT_LENGTH = Element("odd", [("float", "int", "list")], [])
MANY = 10**15
BAD_PLY: dict[str, Callable[[str], bytes]] = {
    "empty file": lambda layout: b"",
    "no ply": lambda layout: b"hello\n" * 10,
    "no end of header": lambda layout: f"ply\nformat {layout} 1.0\n".encode(),
    "no format": lambda layout: ply(layout, vertices()).replace(b"format", b"comment", 1),
    "unknown format": lambda layout: ply(layout, vertices()).replace(layout.encode(), b"binary_middle_endian", 1),
    "unknown line": lambda layout: ply(layout, vertices(), notes="colour blue\n"),
    "unknown type": lambda layout: ply(layout, vertices()).replace(b"property float x", b"property quad x"),
    "property of nothing": lambda layout: ply(layout, vertices(), notes="property float x\n"),
    "property without name": lambda layout: ply(layout, vertices()).replace(b"property float x", b"property float"),
    "count that is no number": lambda layout: ply(layout, vertices()).replace(b"vertex 4", b"vertex many"),
    "count below zero": lambda layout: ply(layout, vertices(claims=-1)),
    "count of 5000 digits": lambda layout: ply(layout, vertices()).replace(b"vertex 4", b"vertex " + b"9" * 5000),
    "no vertex": lambda layout: ply(layout, FACES),
    "no points": lambda layout: ply(layout, vertices(points=POINTS[:0])),
    "no z": lambda layout: ply(layout, vertices(XYZ[:2])),
    "x is a list": lambda layout: ply(layout, vertices([("uchar", "float", "x"), *XYZ[1:]])),
    "x twice": lambda layout: ply(layout, vertices([("float", "x"), *XYZ])),
    "one row more than there is": lambda layout: ply(layout, vertices(claims=5)),
    "10**15 rows": lambda layout: ply(layout, vertices(claims=MANY)),
    "10**15 rows with lists": lambda layout: ply(layout, vertices([*XYZ, ("uchar", "int", "l")], claims=MANY)),
    "10**15 rows before": lambda layout: ply(layout, Element("camera", [("float", "f")], [], MANY), vertices()),
    "10**15 lists before": lambda layout: ply(layout, Element("f", [("int", "int", "l")], [], MANY), vertices()),
    "10**30 rows": lambda layout: ply(layout, vertices(claims=10**30)),
    "not a number": lambda layout: ply(layout, vertices(points=POINTS * np.float32(np.nan))),
    "infinite": lambda layout: ply(layout, vertices(points=np.where(POINTS == 4, np.inf, POINTS))),
}  # fmt: skip


@every_format
@pytest.mark.parametrize("bad", BAD_PLY.values(), ids=BAD_PLY.keys())
def test_bad_ply(folder: Path, layout: str, bad: Callable[[str], bytes]) -> None:
    refused(folder, "a.ply", bad(layout))


@every_format
def test_ply_with_countless_rows_of_nothing_is_no_hang(folder: Path, layout: str) -> None:
    """Rows without properties take no room, so any number of them fits."""
    content = ply(layout, Element("void", [], [], claims=MANY), vertices())
    read_or_refused(folder, "a.ply", content)


@pytest.mark.parametrize("length", [float("nan"), float("inf"), -1.0, 1.5, 3e38])
def test_ply_with_a_list_of_impossible_length(folder: Path, length: float) -> None:
    for layout in ("binary_little_endian", "binary_big_endian"):
        lists = Element("odd", [("float", "length")], [(length,)])  # written as a number, declared as a list
        content = ply(layout, lists, vertices()).replace(b"property float length", b"property list float uchar items")
        refused(folder, "a.ply", content)


@pytest.mark.parametrize("word", ["one", "-1", "0x10", "1.5.2", "é"])
def test_ply_with_a_word_for_a_number(folder: Path, word: str) -> None:
    content = ply("ascii", FACES, vertices()).replace(b"3 0 1 2 9", f"{word} 0 1 2 9".encode())
    refused(folder, "a.ply", content, why="element face, row 0")


def test_ply_whose_numbers_do_not_fit_their_type(folder: Path) -> None:
    refused(folder, "a.ply", ply("ascii", vertices()).replace(b"1000.0", b"1e300"), why="point 2")


# ------------------------------------------------------------------------------------ whatever comes

BEGINNINGS = {
    ".npy": [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", claimed("(2, 3)", body=b"")],
    ".npz": [b"", b"PK", b"PK\x03\x04", b"PK\x05\x06"],
    ".bin": [b""],
    ".ply": [b"", b"ply\n", ply("ascii", vertices(claims=2))[:96], ply("binary_little_endian", vertices())[:130]],
    ".txt": [b"", b"1 2 3\n"],
    ".xyz": [b"", b"x y z\n"],
    ".csv": [b"", b"x,y,z\n"],
}


@given(st.sampled_from(sorted(BEGINNINGS)), st.binary(max_size=300), st.data())
@settings(max_examples=400, deadline=None)
def test_random_bytes_are_a_cloud_or_one_line(folder: Path, ending: str, noise: bytes, data: st.DataObject) -> None:
    read_or_refused(folder, f"a{ending}", data.draw(st.sampled_from(BEGINNINGS[ending])) + noise)


GOOD = {
    "a.npy": npy(POINTS),
    "b.npz": npz(**{"a.npy": npy(POINTS)}),
    "c.npz": npz(method=zipfile.ZIP_DEFLATED, **{"a.npy": npy(POINTS)}),
    "d.ply": ply("ascii", FACES, CAMERA, vertices()),
    "e.ply": ply("binary_little_endian", FACES, CAMERA, vertices([("uchar", "int", "l"), *XYZ])),
    "f.ply": ply("binary_big_endian", FACES, CAMERA, vertices()),
    "g.csv": b"x,y,z\n1,2,3\n4,5,6\n",
    "h.bin": bytes(64),
}


@given(
    st.sampled_from(sorted(GOOD)),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 2**16)),
)
@settings(max_examples=500, deadline=None)
def test_a_good_file_with_damage_is_a_cloud_or_one_line(
    folder: Path, name: str, damage: list[tuple[int, int]], length: int | None
) -> None:
    content = bytearray(GOOD[name])
    for position, value in damage:
        content[position % len(content)] = value
    read_or_refused(folder, name, bytes(content[: None if length is None else length % len(content)]))


@given(st.text(st.sampled_from("0123456789 .,;-+eEnaifxyz#\"'\t\n\r\x0b\x1c\u2028é_"), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_cloud_or_one_line(folder: Path, text: str) -> None:
    read_or_refused(folder, "a.txt", text.encode())
    content = b"ply\nformat ascii 1.0\n" + text.encode() + vertices().header().encode() + b"end_header\n1 2 3\n"
    read_or_refused(folder, "a.ply", content)


@pytest.mark.parametrize("ending", sorted(BEGINNINGS))
def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path, ending: str) -> None:
    for path, why in ((tmp_path / f"none{ending}", "No such file"), (tmp_path / f"folder{ending}", "Is a directory")):
        if "folder" in path.name:
            path.mkdir()
        with pytest.raises(ValueError, match=why) as caught:
            read_cloud(str(path))
        names_it(caught.value, path)


@pytest.mark.parametrize("name", ["cloud", "cloud.las", "cloud.npy.gz", ".ply"])
def test_an_unknown_ending_is_refused(folder: Path, name: str) -> None:
    refused(folder, name, b"", why="unknown ending")


def test_an_empty_cell_is_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("x,y,z,i\n1,,3,9\n")
    with pytest.raises(ValueError, match="line 2"):
        read_cloud(path)
