"""Small files of the user's, read whole: what cannot be read is told in the same few phrases everywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, unreadable


def text(path: Path, right: str = "", largest: int = 256 << 20) -> str:
    """The text of a file in UTF-8, with or without a byte-order mark; `right` says what it should hold.

    Raises:
        BadInput: it is not there, is larger than `largest` bytes, or is no text.
    """
    also = f"; {right}" if right else ""
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise unreadable(path, error, right) from error
    if len(content) > largest:
        raise BadInput(f"{path}: larger than {largest:,} bytes{also}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not text (byte {error.start} is no UTF-8){also}") from error


def toml(path: Path, right: str = "", largest: int = 16 << 20) -> dict[str, Any]:
    """The tables of a TOML file; `right` says what it should hold.

    Raises:
        BadInput: it cannot be read, or is no TOML.
    """
    held = text(path, right, largest)
    try:
        return tomllib.loads(held)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not TOML ({' '.join(str(error).split())})") from error


def no_array(error: Exception) -> str:
    """Why NumPy could not read a file, in a few words, and never its advice to unpickle what it does not know.

    >>> no_array(ValueError("This file contains pickled (object) data. If you trust the file you can load it"))
    "not in NumPy's format"
    """
    why = " ".join(str(error).split())[:120] or type(error).__name__
    return "not in NumPy's format" if "pickle" in why else why
