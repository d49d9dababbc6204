"""What the makers share: who makes which file, and how numbers and rows are written."""

from __future__ import annotations

import csv
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

Rows = list[list[Any]]
Maker = Callable[[Random], str | bytes]
FILES: dict[str, Maker] = {}
NUMBERS = {"e": "<f2", "f": "<f4", "H": "<u2", "i": "<i4", "q": "<i8"}  # NumPy's names of struct's codes


def makes(name: str) -> Callable[[Maker], Maker]:
    """Note that a function makes the file of this name."""

    def note(function: Maker) -> Maker:
        FILES[name] = function
        return function

    return note


def lines(rows: Iterator[Any] | list[Any]) -> str:
    """JSON, one value a line."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def table(rows: Rows) -> str:
    """CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def npy(rows: list[Any], shape: tuple[int, ...] = (), kind: str = "f") -> bytes:
    """NumPy's format, single precision unless `kind` is another code; `shape` where it is not that of the rows."""
    flat = [value for row in rows for value in (row if isinstance(row, list) else [row])]
    shape = shape or ((len(rows), len(rows[0])) if isinstance(rows[0], list) else (len(rows),))
    head = f"{{'descr': '{NUMBERS[kind]}', 'fortran_order': False, 'shape': {shape}, }}"
    head = head.ljust(-(10 + len(head) + 1) % 64 + len(head)) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(flat)}{kind}", *flat)
    )


def npz(arrays: Mapping[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    """Arrays by name, each as `npy` writes it, without the time of day that would make two runs differ."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), array, packing)
    return out.getvalue()
