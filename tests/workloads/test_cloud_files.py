"""A cloud comes out of a file as it was written; a file that is no cloud is one line that names it."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.workloads.cloud_files import read_cloud
from tests.workloads.cloud_checks import POINTS, Cloud, check, names_it, read, read_or_refused, refused
from tests.workloads.test_ply import CAMERA, FACES, XYZ, ply, vertices

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
