"""Clouds in PLY: any layout, any order of properties; what is no such file is one line that names it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.workloads.cloud_files import read_cloud
from tests.workloads.cloud_checks import POINTS, Cloud, at_once, check, names_it, read, read_or_refused, refused

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
