"""Whether a checkpoint is whole, ours or somebody else's: files that are missing, cut, damaged or changed, and arrays.

A folder's own description says which files it should have and how long they are; torch's archives carry checksums of
their own, Orbax's pages and our pieces, too. Hugging Face's files carry none: a manifest, made when they were right,
tells a change there.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.data.orbax import files, orbax_files, torch_files
from assay.data.orbax.checkpointer import Checkpointer
from assay.data.orbax.tree import itemsize
from assay.data.store.blocking import wait
from assay.record.errors import BadInput, unreadable

BLOCK = 1 << 20
Row = tuple[str, str, tuple[int, ...], int]  # path, type, shape, bytes


@dataclass(frozen=True)
class Wrong:
    """A file that is not as it should be, and which arrays lie in it (of a store of ours: which rule that breaks)."""

    file: str
    what: str
    arrays: str = ""


@dataclass
class Found:
    """What a checkpoint holds, and what is wrong with it."""

    kind: str
    files: int = 0
    arrays: list[Row] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    unread: str = ""  # what could not be looked at, and why


def verify(name: str, manifest: Path | None = None) -> Found:
    """Read all of a checkpoint; what is wrong is in the answer, never an error.

    Raises:
        BadInput: there is nothing, or nothing that is known here; the manifest is none.
    """
    place, step = files.place_of(name)
    if files.is_ours(place):
        if manifest is not None:
            raise BadInput("--manifest is for files and folders of others; our stores keep digests of their own")
        return _ours(place, step)
    path = Path(place)
    if not path.exists():
        raise unreadable(name, right=files.EXPECTED)
    kind = files.kind_of(path)
    found = Found(kind, len(_listed(path)))
    look: Callable[[Path, Found], None] = {"dcp": _dcp, "hugging-face": _hugging_face, "orbax": _orbax,
                                           "orbax-items": _orbax_items}.get(kind, _file)  # fmt: skip
    try:
        look(path, found)
    except BadInput as error:
        found.wrong.append(Wrong(str(path), str(error)))
    if manifest is not None:
        found.wrong += _changed(path, manifest, {one.file for one in found.wrong})
    return found


def _ours(place: str, step: str) -> Found:
    ck = Checkpointer(place)
    found = Found("assay")
    found.wrong = [Wrong(place, one.detail, one.rule) for one in wait(ck.inside.check())]
    if ck.steps():
        table = ck.inspect(int(step) if step.isdecimal() else None)
        found.files = len({piece.object for piece in table.pieces})
        found.arrays = [(one.path, one.dtype, one.shape, one.nbytes) for one in table.arrays]
    return found


def _file(path: Path, found: Found) -> None:
    if found.kind in ("pt", "npz") and (bad := _bad_crc(path)):
        found.wrong.append(Wrong(path.name, bad))
        return
    found.arrays += _rows(files.read(str(path)))


def _rows(state: files.State) -> list[Row]:
    return [(leaf.path, leaf.dtype, leaf.shape, len(leaf.views[0][1])) for leaf in state]


def _bad_crc(path: Path) -> str:
    """What a zip archive says of its own bytes; nothing where it is right, or no archive."""
    try:
        with zipfile.ZipFile(path) as packed:
            bad = packed.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        return "" if not torch_files.is_archive(path) else f"was cut, or is damaged: {error}"
    return f"is damaged: {bad} does not have its checksum" if bad else ""


def _hugging_face(folder: Path, found: Found) -> None:
    for name, tensors in files.shards(folder).items():
        some = ", ".join(sorted(tensors)[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
        if not (folder / name).is_file():
            found.wrong.append(Wrong(name, "is missing", some))
            continue
        try:
            state = files.read(str(folder / name))
        except BadInput as error:
            found.wrong.append(Wrong(name, str(error), some))
            continue
        found.arrays += _rows(state)
        if absent := sorted(tensors - {leaf.path for leaf in state}):
            found.wrong.append(Wrong(name, f"lacks {len(absent)} arrays that the index says", ", ".join(absent[:3])))


def _dcp(path: Path, found: Found) -> None:
    folder = torch_files.folder(path)
    found.wrong += [Wrong(".metadata", f"{one}: lies nowhere", one) for one in folder.lost]
    found.arrays = [
        (name, dtype, shape, itemsize(dtype) * _volume(shape)) for name, (dtype, shape) in folder.tensors.items()
    ]
    within: dict[str, list[torch_files.Stored]] = {}
    for parts in folder.stored.values():
        for one in parts:
            within.setdefault(one.file, []).append(one)
    for name, need in folder.files().items():
        here = within[name]
        some = ", ".join(sorted({one.name for one in here})[:3])
        if not (path / name).is_file():
            found.wrong.append(Wrong(name, "is missing", some))
        elif (size := (path / name).stat().st_size) < need:
            lost = sorted({one.name for one in here if one.offset + one.length > size})
            found.wrong.append(Wrong(name, f"was cut: {size:,} of {need:,} bytes or more", ", ".join(lost[:3])))
        else:
            found.wrong += _parts(folder, here)


def _volume(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _parts(folder: torch_files.Folder, parts: list[torch_files.Stored]) -> Iterator[Wrong]:
    """Each part by its own checksums, and by what the metadata say of it."""
    for one in parts:
        try:
            if bad := torch_files.damage(folder, one):
                yield Wrong(one.file, f"is damaged: {bad} does not have its checksum", one.name)
            elif one.name in folder.tensors:
                torch_files.fitting(folder, one, folder.tensors[one.name][0])
        except BadInput as error:
            yield Wrong(one.file, str(error), one.name)


def _orbax_items(path: Path, found: Found) -> None:
    items = [item for item in sorted(path.iterdir()) if (item / "_METADATA").is_file()]
    if not items:
        found.wrong.append(Wrong(str(path), "has no item with arrays: no _METADATA below it"))
    for item in items:
        _orbax(item, found)


def _orbax(path: Path, found: Found) -> None:
    """Every array that the description names, read whole; without tensorstore, the description alone."""
    known = orbax_files.names(path)
    try:
        store = orbax_files.library(path)
    except BadInput as error:
        found.unread = f"No array was read: {error}."
        return
    for name, how in known.items():
        try:
            _, dtype, shape, data = orbax_files.array(store, path, name, how)
        except BadInput as error:
            found.wrong.append(Wrong(path.name, str(error), name))
        else:
            found.arrays.append((name, dtype, shape, len(data)))


# ---------------------------------------------------------------------------------------------------------- manifests


def _listed(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in sorted(path.rglob("*")) if one.is_file()]


def _digest(path: Path) -> str:
    seen = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            seen.update(block)
    return seen.hexdigest()


def write_manifest(to: Path, name: str) -> None:
    """The files that are there, their lengths and digests, as JSON; whole or not at all."""
    path = Path(name)
    if not path.exists():
        raise BadInput(f"{name} is a store of ours, which keeps digests of its own; --write is for files and folders")
    top = path if path.is_dir() else path.parent
    listed = [one for one in _listed(path) if one.resolve() != to.resolve()]
    rows = {one.relative_to(top).as_posix(): {"bytes": one.stat().st_size, "sha256": _digest(one)} for one in listed}
    aside = to.with_name(f".{to.name}.half")
    try:
        aside.write_text(json.dumps({"files": rows}, indent=1) + "\n")
        aside.replace(to)
    except OSError as error:
        raise BadInput(f"cannot write {to}: {error.strerror}") from error


def _changed(path: Path, manifest: Path, known: set[str]) -> Iterator[Wrong]:
    """What is not as the manifest has it; of files that are known to be wrong, nothing more."""
    try:
        said: dict[str, Any] = json.loads(manifest.read_bytes())["files"]
        rows = {str(name): (int(row["bytes"]), str(row["sha256"])) for name, row in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{manifest} is no manifest: {error}; 'assay data ckpt verify DIR --write FILE' makes one"
        ) from error
    top = path if path.is_dir() else path.parent
    for name, (size, digest) in rows.items():
        if name in known:
            continue
        if not (top / name).is_file():
            yield Wrong(name, "is missing, and in the manifest")
        elif (now := (top / name).stat().st_size) < size:
            yield Wrong(name, f"was cut: {now:,} of the manifest's {size:,} bytes")
        elif now != size or _digest(top / name) != digest:
            yield Wrong(name, "has changed since the manifest")
    listed = {one.relative_to(top).as_posix() for one in _listed(path) if one.resolve() != manifest.resolve()}
    for name in sorted(listed - set(rows)):
        yield Wrong(name, "is new since the manifest")
