"""A user's own tiles: repeat visits of one place, as an npz or as GeoTIFFs whose names hold the date.

An npz has `images` [date, band, y, x] (whole numbers as Sentinel-2's, 10,000 for a reflectance of 1, or reflectances),
`dates` (such as 2024-05-31, or days), and may have `lat` and `lon`. GeoTIFFs are read here where they are plain: strips
or tiles, uncompressed or deflated, one kind of number; others by tifffile, where that is installed.
"""

from __future__ import annotations

import datetime
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput, unreadable
from assay.training.d2ar.archive import YEAR, Archive

EPOCH = datetime.date(2000, 1, 1)
SCALE = 10_000
MOST = 1 << 28  # numbers of a series
CURE = "give an .npz with images [date, band, y, x] and dates, or a folder of GeoTIFFs whose names hold the date"
_KINDS = {(1, 8): "u1", (1, 16): "u2", (2, 16): "i2", (1, 32): "u4", (3, 32): "f4"}


def read(path: Path, tile: int = 32) -> Archive:
    """All visits, in order of time, cut to whole tiles.

    Raises:
        BadInput: what is wrong, and what would be right.
    """
    try:
        images, days, lat, lon = _folder(path) if path.is_dir() else _npz(path)
    except OSError as error:
        raise unreadable(path, error, CURE) from error
    if images.ndim != 4 or len(images) != len(days):
        raise BadInput(f"{path}: images of {images.shape} and {len(days)} dates; {CURE}")
    if not 0 < images.size <= MOST or images.dtype.kind not in "uif":
        raise BadInput(f"{path}: {images.size} values of {images.dtype}, should be 1 to {MOST} numbers; {CURE}")
    height, width = (side // tile * tile for side in images.shape[2:])
    if not height or not width:
        raise BadInput(
            f"{path}: scenes of {images.shape[2]} x {images.shape[3]} pixels, should be {tile} x {tile} or more"
        )
    if len(set(days.tolist())) < 6:
        raise BadInput(
            f"{path}: {len(set(days.tolist()))} dates, should be 6 or more: the archive is what decoding rests on"
        )
    scale = SCALE if images.dtype.kind in "ui" else 1
    order = np.argsort(days, kind="stable")
    cut = images[order, :, :height, :width].astype(np.float32) / np.float32(scale)
    if not np.isfinite(cut).all():
        raise BadInput(f"{path}: values that are not finite; fill them first")
    return Archive(cut, days[order], lat, lon)


def _npz(path: Path) -> tuple[NDArray[Any], NDArray[np.int64], float, float]:
    try:
        with np.load(path, allow_pickle=False) as found:
            if not {"images", "dates"} <= set(found.files):
                raise BadInput(f"{path}: holds {', '.join(found.files)}; {CURE}")
            spot = [float(found[name]) if name in found.files else 0.0 for name in ("lat", "lon")]
            return found["images"], _days(found["dates"], path), spot[0], spot[1]
    except (ValueError, zipfile.BadZipFile, EOFError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is no .npz ({reading.no_array(error)}); {CURE}") from error


def _days(dates: NDArray[Any], path: Path) -> NDArray[np.int64]:
    if dates.dtype.kind in "iu":
        return dates.astype(np.int64)
    return np.array([day_of(str(date), path) for date in dates.tolist()], np.int64)


def day_of(text: str, path: Path) -> int:
    """Days of a date, in years of 365 days; the first one of digits like 20240531 or 2024-05-31.

    >>> day_of("T32UPU_20000201T102031_B02.tif", Path("x"))
    31
    """
    found = re.search(r"(?<!\d)((?:19|20)\d\d)-?(\d\d)-?(\d\d)", text)
    try:
        date = datetime.date(*(int(part) for part in found.groups())) if found else None
    except ValueError:
        date = None
    if date is None:
        raise BadInput(f"{path}: no date in {text!r}; write it as 20240531 or 2024-05-31")
    return (date.year - EPOCH.year) * YEAR + min(date.timetuple().tm_yday - 1, YEAR - 1)


def _folder(path: Path) -> tuple[NDArray[Any], NDArray[np.int64], float, float]:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".tif", ".tiff"))
    if not files:
        raise BadInput(f"{path}: no .tif in it; {CURE}")
    found = [geotiff(file) for file in files]
    shapes = {image.shape for image, _ in found}
    if len(shapes) > 1:
        raise BadInput(f"{path}: scenes of different shapes {sorted(shapes)}; cut them to the same bands and pixels")
    lon, lat = found[0][1]
    return np.stack([image for image, _ in found]), np.array([day_of(f.name, f) for f in files], np.int64), lat, lon


def geotiff(path: Path) -> tuple[NDArray[Any], tuple[float, float]]:
    """A scene [band, y, x], and the map position of its corner (longitude and latitude where the file has degrees).

    Raises:
        BadInput: not a TIFF, or one that only tifffile reads, which is not installed.
    """
    data = path.read_bytes()
    try:
        return _plain(data)
    except (struct.error, ValueError, KeyError, zlib.error, IndexError) as error:
        try:
            import tifffile  # type: ignore[import-not-found, unused-ignore]

            image = np.atleast_3d(tifffile.imread(path))
            return (np.moveaxis(image, -1, 0) if image.shape[-1] <= image.shape[0] else image), (0.0, 0.0)
        except ImportError:
            raise BadInput(
                f"{path}: not a plain GeoTIFF ({error}); pip install tifffile imagecodecs, or save it with deflate"
            ) from error
        except Exception as other:
            raise BadInput(f"{path}: no TIFF: {other}") from other


def _plain(data: bytes) -> tuple[NDArray[Any], tuple[float, float]]:
    end = {b"II": "<", b"MM": ">"}.get(data[:2])
    if end is None or struct.unpack(end + "H", data[2:4])[0] != 42:
        raise ValueError("no classic TIFF")
    field = _fields(data, end)
    width, height, bands = field[256][0], field[257][0], field.get(277, (1,))[0]
    depth, planar, how = field.get(258, (8,)), field.get(284, (1,))[0], field.get(259, (1,))[0]
    if len(set(depth)) > 1 or how not in (1, 8, 32946) or field.get(317, (1,))[0] not in (1, 2):
        raise ValueError(f"compression {how}, bits {depth}")
    kind = np.dtype(end + _KINDS[field.get(339, (1,))[0], depth[0]])
    if not 0 < width * height * bands <= MOST:
        raise ValueError(f"{width} x {height} pixels")
    tiled = 322 in field
    high, wide = (field[323][0], field[322][0]) if tiled else (min(field.get(278, (height,))[0], height), width)
    begins, sizes = (field[324], field[325]) if tiled else (field[273], field[279])
    each = 1 if planar == 2 else bands
    out = np.zeros((bands, height, width), kind.newbyteorder("="))
    across, down = -(-width // wide), -(-height // high)
    for at, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        band, rest = divmod(at, across * down)
        y, x = rest // across * high, rest % across * wide
        rows = high if tiled else min(high, height - y)
        raw = data[begin : begin + size]
        room = rows * wide * each * kind.itemsize
        raw = raw if how == 1 else zlib.decompressobj().decompress(raw, room)
        block = np.frombuffer(raw[:room], kind).reshape(rows, wide, each)
        if field.get(317, (1,))[0] == 2:  # differences along a row
            block = np.cumsum(block, 1, dtype=kind.newbyteorder("="))
        part = block[: height - y, : width - x].transpose(2, 0, 1)
        chosen = slice(band, band + 1) if planar == 2 else slice(None)
        out[chosen, y : y + part.shape[1], x : x + part.shape[2]] = part
    corner = field.get(33922)
    return out, (corner[3], corner[4]) if corner and len(corner) > 4 else (0.0, 0.0)


def _fields(data: bytes, end: str) -> dict[int, tuple[Any, ...]]:
    """The first directory's fields that are whole numbers or doubles."""
    at = struct.unpack(end + "I", data[4:8])[0]
    count = struct.unpack(end + "H", data[at : at + 2])[0]
    found = {}
    for k in range(count):
        entry = data[at + 2 + 12 * k : at + 14 + 12 * k]
        tag, kind, many = struct.unpack(end + "HHI", entry[:8])
        letter = {1: "B", 3: "H", 4: "I", 12: "d"}.get(kind)
        if letter is None:
            continue
        size = many * struct.calcsize(letter)
        if size > len(data):
            raise ValueError(f"field {tag} is longer than the file")
        where = entry[8:12] if size <= 4 else data[(begin := struct.unpack(end + "I", entry[8:])[0]) : begin + size]
        found[tag] = struct.unpack(f"{end}{many}{letter}", where[:size])
    return found
