"""The result store: one JSON file per finished run, and its plot beside it.

    $ASSAY_HOME/results/<key>/<started>-<size>-<random>.json
    $ASSAY_HOME/results/<key>/<started>-<size>-<random>.svg

Files are written whole or not at all, and no two runs share a name, so runs at the same time cannot disturb each
other. A file that cannot be read is skipped with one line; it never hides the others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from assay.record import catalogue, sources, verdicts
from assay.record.errors import BadInput, StoreFailed
from assay.record.types import Result, Stated


class StoreWarning(UserWarning):
    """A stored file was skipped; the text names it and the cure."""


def home() -> Path:
    """`$ASSAY_HOME`, else the user's data directory."""
    if chosen := os.environ.get("ASSAY_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "assay"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "assay"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees all of it or nothing."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise StoreFailed(
            f"cannot write {path}: {error.strerror}; free space or choose another folder (ASSAY_HOME for the store)"
        ) from error
    # The rename must survive a power cut too; not every file system lets a directory be synced.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save(result: Result) -> Path:
    """Store a result; its plot may be written beside it with the suffix .svg."""
    name = f"{result.started.replace(':', '').replace('-', '')}-{result.size}-{secrets.token_hex(4)}.json"
    path = home() / "results" / result.key / name
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=1))
    return path


def stored(key: str) -> Iterator[tuple[Path, Result]]:
    """Every readable result of a paper, the newest first, judged anew from its stored estimates."""
    folder = home() / "results" / key
    try:
        paths = sorted((p for p in folder.glob("*.json") if not p.name.startswith(".")), reverse=True)
    except OSError as error:
        warnings.warn(f"cannot read the store {folder}: {error.strerror}", StoreWarning, stacklevel=2)
        return
    for path in paths:
        try:
            found = read(key, path)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            warnings.warn(f"skipped the corrupt result {path} ({error}); delete it", StoreWarning, stacklevel=2)
            continue
        yield path, found


def read(key: str, path: Path) -> Result:
    """A stored result, judged anew from its estimates; raises OSError or MsgspecError where it cannot be read."""
    found = msgspec.json.decode(path.read_bytes(), type=Result)
    if not found.cases:
        found = replace(found, cases=_leading(found.table))
    return verdicts.judged_anew(found, _sentences(key), catalogue.renamed().get(key, {}))


def _leading(table: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns before the seed: older results tell their case's columns by that order alone."""
    names = list(dict.fromkeys(name for row in table for name in row))
    return tuple(names[: names.index("seed")]) if "seed" in names else ()


def _sentences(key: str) -> tuple[Stated, ...]:
    try:
        return catalogue.paper(key).claims
    except BadInput:  # a paper that has left the record
        return ()


def latest(key: str) -> tuple[Path, Result] | None:
    """The newest readable result of a paper."""
    return next(stored(key), None)


def standing(key: str) -> tuple[Path, Result] | None:
    """What the record shows of a paper: its newest result at full size if that is of today's code, else its newest."""
    version, newest = "", None
    for path, result in stored(key):
        newest = newest or (path, result)
        if result.size == "full":
            version = version or sources.digest(catalogue.paper(key).module)
            if result.source == version:
                return path, result
    return newest
