"""A user's own tiles: npz and GeoTIFFs, and one line where they are not what they should be."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.training.d2ar import series


def tiff(image: np.ndarray, *, deflate: bool, planar: int, rows: int, end: str = "<", predictor: int = 1) -> bytes:
    """A plain GeoTIFF, written field by field."""
    bands, height, width = image.shape
    stored = np.concatenate([image[..., :1], np.diff(image, axis=-1)], -1) if predictor == 2 else image
    stored = stored.astype(image.dtype.newbyteorder(end))
    planes = [stored[k : k + 1] for k in range(bands)] if planar == 2 else [stored]
    strips = [plane[:, y : y + rows].transpose(1, 2, 0).tobytes() for plane in planes for y in range(0, height, rows)]
    strips = [zlib.compress(strip) for strip in strips] if deflate else strips
    at, places = 8, []
    for strip in strips:
        places.append(at)
        at += len(strip)
    kind = {"u": 1, "i": 2, "f": 3}[image.dtype.kind]
    fields = {
        256: ("I", [width]), 257: ("I", [height]), 258: ("H", [8 * image.dtype.itemsize] * bands),
        259: ("H", [8 if deflate else 1]), 273: ("I", places), 277: ("H", [bands]), 278: ("I", [rows]),
        279: ("I", [len(strip) for strip in strips]), 284: ("H", [planar]), 317: ("H", [predictor]),
        339: ("H", [kind] * bands), 33922: ("d", [0.0, 0.0, 0.0, 11.5, 48.25, 0.0]),
    }  # fmt: skip
    more, entries, after = b"", b"", at + 2 + 12 * len(fields) + 4
    for tag, (letter, values) in fields.items():
        data = struct.pack(f"{end}{len(values)}{letter}", *values)
        where = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(end + "I", after + len(more))
        more += data if len(data) > 4 else b""
        entries += struct.pack(end + "HHI", tag, {"H": 3, "I": 4, "d": 12}[letter], len(values)) + where
    head = (b"II" if end == "<" else b"MM") + struct.pack(end + "HI", 42, at)
    return head + b"".join(strips) + struct.pack(end + "H", len(fields)) + entries + b"\0\0\0\0" + more


@given(st.booleans(), st.sampled_from([1, 2]), st.sampled_from([3, 7, 40]), st.sampled_from("<>"),
       st.sampled_from(["u1", "u2", "i2", "f4"]))  # fmt: skip
def test_plain_geotiffs_are_read_as_they_were_written(
    deflate: bool, planar: int, rows: int, end: str, kind: str
) -> None:
    image = np.random.default_rng(rows).integers(0, 100, (3, 40, 33)).astype(kind)
    predictor = 2 if kind == "u2" else 1
    data = tiff(image, deflate=deflate, planar=planar, rows=rows, end=end, predictor=predictor)
    found, corner = series._plain(data)
    assert np.array_equal(found, image) and corner == (11.5, 48.25)


def test_a_folder_of_geotiffs_is_a_series(tmp_path: Path) -> None:
    for month in range(1, 8):
        image = np.full((4, 40, 64), 1000 * month, np.uint16)
        path = tmp_path / f"T32UPU_2023{month:02d}15T102031.tif"
        path.write_bytes(tiff(image, deflate=True, planar=1, rows=8))
    found = series.read(tmp_path)
    assert found.images.shape == (7, 4, 32, 64) and (found.lat, found.lon) == (48.25, 11.5)
    assert found.images[2].max() == pytest.approx(0.3) and np.all(np.diff(found.days) > 0)
    (tmp_path / "T32UPU_20230901T102031.tif").write_bytes(b"II*\0" + b"\xff" * 30)
    with pytest.raises(BadInput, match=r"tifffile|no TIFF"):
        series.read(tmp_path)


def test_an_npz_is_a_series_whatever_its_dates_look_like(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((6, 3, 32, 32)).astype(np.float32)
    dates = np.array([f"2024-0{k}-01" for k in (3, 2, 1, 4, 5, 6)])
    np.savez(tmp_path / "a.npz", images=images, dates=dates, lat=1.0, lon=2.0)
    found = series.read(tmp_path / "a.npz")
    assert np.array_equal(found.images[0], images[2]) and found.lat == 1.0
    assert series.day_of("2004-12-31", tmp_path) == 4 * 365 + 364  # a leap year's last day stays in it


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"pictures": np.zeros(3)}, "images"), ({"images": np.zeros((6, 3, 32, 32)), "dates": np.arange(4)}, "4 dates"),
        ({"images": np.zeros((6, 3, 8, 32)), "dates": np.arange(6)}, "32 x 32"),
        ({"images": np.zeros((3, 3, 32, 32)), "dates": np.arange(3)}, "6 or more"),
        ({"images": np.full((6, 3, 32, 32), np.nan), "dates": np.arange(6)}, "not finite"),
        ({"images": np.zeros((6, 3, 32, 32)), "dates": np.array(["today"] * 6)}, "no date"),
    ],
)  # fmt: skip
def test_bad_series_are_told_in_a_line(
    arrays: dict[str, np.ndarray], told: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    assert told in refused("compare", "d2ar", "--tiles", str(tmp_path / "bad.npz"))


def test_no_file_is_told_too(refused: Callable[..., str]) -> None:
    assert "cannot read" in refused("compare", "d2ar", "--tiles", "nowhere.npz")
