"""States in the files people have: safetensors (also Hugging Face's shards), npz, pt, Orbax's folders, our stores.

Nothing that is read is ever run: a `.pt` is opened with torch's `weights_only`, and the metadata of a folder of
torch.distributed.checkpoint, which are a pickle, are refused.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.orbax.checkpointer import Checkpointer
from assay.data.orbax.tree import Leaf, flatten, itemsize
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Watched
from assay.record import reading
from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Where nobody watches."""


SAFE = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
_HEADER = 100 << 20  # bytes of a header that nobody writes on purpose
AT_ONCE = 16 << 20  # bytes that are written between two words about it
EXPECTED = "a .safetensors, .npz or .pt, a folder of Hugging Face or Orbax, or a store of ours (FOLDER@STEP) expected"


def read(name: str, only: tuple[str, ...] = (), progress: Progress = silent) -> list[Leaf]:
    """The arrays of a state, by path; those at or below one of the paths `only`, where it names any."""
    place, _, step = name.partition("@")
    if "://" in place or (Path(place) / "log").is_dir():
        return _ours(place, step, only, progress)
    return chosen(_of_others(name), only)


def _of_others(name: str) -> list[Leaf]:
    place, _, _ = name.partition("@")
    path = Path(place)
    if not path.exists():
        raise unreadable(name, right=EXPECTED)
    if (path / "model.safetensors.index.json").is_file():
        return list(_shards(path))
    if path.suffix == ".safetensors":
        return list(_safetensors(path))
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in (".pt", ".pth", ".bin"):
        return _pt(path)
    if (path / ".metadata").is_file():
        cure = "load it with torch.distributed.checkpoint and save it with assay.data.Checkpointer"
        raise BadInput(
            f"{name} is torch's distributed checkpoint, whose metadata are a pickle and could run code; {cure}"
        )
    if any((path / mark).exists() for mark in ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")):
        return _orbax(path)
    raise BadInput(f"{name} is no state that is known here; {EXPECTED}")


def _ours(place: str, step: str, only: tuple[str, ...], progress: Progress) -> list[Leaf]:
    """From a store of ours, where only what is wanted is read."""
    if step and not step.isdecimal():
        raise BadInput(f"'{step}' is no step; {place}@STEP with a number expected")
    total = 1
    store = Watched(open_store(place), lambda done: progress(min(done, total), total))
    inside = Checkpointer(store).inside
    table = wait(inside.table(int(step) if step else None))
    wanted = [array for array in table.arrays if _among(_name(array.path), only)]
    if not wanted:
        raise _nothing(only)
    total = max(1, sum(array.nbytes for array in wanted))
    paths = {array.path for array in wanted}
    _, found, _ = wait(inside.read(table, paths.__contains__, lambda array: None))
    leaves = []
    for path, (target, *_) in found.items():
        array = target.array
        leaves.append(Leaf(_name(path), array.kind, array.dtype, array.shape, ((target.box, target.into),), True))
    return leaves


def _name(path: str) -> str:
    """A path of the store as a file has it, where a slash is a letter like others."""
    return path.replace("~1", "/").replace("~0", "~")


def _named(tree: Any) -> list[Leaf]:
    return [replace(leaf, path=_name(leaf.path)) for leaf in flatten(tree)[0]]


def _leaf(path: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> Leaf:
    return Leaf(path, "torch", dtype, shape, ((((0,) * len(shape), shape), data),), True)


def _safetensors(path: Path) -> Iterator[Leaf]:
    """By the format's own description: the length of a header, the header in JSON, the bytes."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < 8:
            raise BadInput(f"{path} is no safetensors file: it has {size} bytes")
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (length,) = struct.unpack("<Q", whole[:8])
    if length > min(size - 8, _HEADER):
        raise BadInput(f"{path} is no safetensors file, or was cut: its header would have {length} bytes")
    try:
        header = json.loads(bytes(whole[8 : 8 + length]))
        rows = {name: row for name, row in header.items() if name != "__metadata__"}
        found = [(name, SAFE[row["dtype"]], tuple(row["shape"]), *row["data_offsets"]) for name, row in rows.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: its header is not safetensors': {type(error).__name__} {error}") from error
    body = whole[8 + length :]
    for name, dtype, shape, start, end in found:
        if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * itemsize(dtype):
            raise BadInput(f"{path} was cut or is damaged: '{name}' would lie at {start} to {end} of {len(body)} bytes")
        yield _leaf(name, dtype, shape, body[start:end])


def _shards(folder: Path) -> Iterator[Leaf]:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
        files = sorted({Path(name).name for name in index.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{folder}: its index is not Hugging Face's: {type(error).__name__} {error}") from error
    for name in files:
        if not (folder / name).is_file():
            raise unreadable(folder / name, right="the index names it")
        yield from _safetensors(folder / name)


def _npz(path: Path) -> list[Leaf]:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as found:
            return _named({name: found[name] for name in found.files})
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise BadInput(f"{path} is no npz of plain arrays: {reading.no_array(error)}") from error


def _pt(path: Path) -> list[Leaf]:
    import pickle

    try:
        import torch
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(f"reading {path}", error)) from error
    try:
        return _named(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        why = " ".join(str(error).split())[:200] or "it ends too early"
        raise BadInput(f"{path} is no state of tensors alone: {why}") from error


def _orbax(path: Path) -> list[Leaf]:
    try:
        import orbax.checkpoint as ocp
    except ModuleNotFoundError as error:
        raise BadInput(f"reading Orbax's folder {path} needs orbax-checkpoint; pip install orbax-checkpoint") from error
    try:
        return _named(ocp.PyTreeCheckpointer().restore(path.absolute()))
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise BadInput(f"{path} is no whole checkpoint of Orbax: {' '.join(str(error).split())[:200]}") from error


def write(path: Path, leaves: list[Leaf], progress: Progress = silent) -> None:
    """A state as safetensors or npz, by the name's end; whole or not at all."""
    parts: list[memoryview | bytes]
    if path.suffix == ".safetensors":
        parts = list(_as_safetensors(leaves))
    elif path.suffix == ".npz":
        parts = [_as_npz(leaves)]
    else:
        raise BadInput(f"cannot write {path}: a name that ends in .safetensors or .npz expected")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        total, done = sum(map(len, parts)), 0
        with aside.open("wb") as file:
            for part in parts:
                for start in range(0, len(part), AT_ONCE):
                    done += file.write(memoryview(part)[start : start + AT_ONCE])
                    progress(done, total)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)


def _as_safetensors(leaves: list[Leaf]) -> Iterator[memoryview | bytes]:
    names = {ours: theirs for theirs, ours in SAFE.items()}
    header: dict[str, Any] = {}
    at = 0
    for leaf in leaves:
        if leaf.dtype not in names:
            raise BadInput(f"safetensors has no {leaf.dtype}, which '{leaf.path}' is; write an .npz")
        size = len(leaf.views[0][1])
        row = {"dtype": names[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [at, at + size]}
        header[leaf.path] = row
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    yield from (leaf.views[0][1] for leaf in leaves)


def _as_npz(leaves: list[Leaf]) -> bytes:
    import io

    from assay.data.orbax.tree import as_kind

    arrays = {
        leaf.path: as_kind(np.frombuffer(leaf.views[0][1], np.uint8), "numpy", leaf.dtype, leaf.shape)
        for leaf in leaves
    }
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def chosen(leaves: list[Leaf], only: tuple[str, ...]) -> list[Leaf]:
    """Those at or below one of the paths; all where none is named."""
    found = [leaf for leaf in leaves if _among(leaf.path, only)]
    if only and not found:
        raise _nothing(only)
    return found


def _among(path: str, only: tuple[str, ...]) -> bool:
    return not only or any(f"{path}/".startswith(f"{one}/") for one in only)


def _nothing(only: tuple[str, ...]) -> BadInput:
    return BadInput(f"nothing lies at {', '.join(only) or 'all'}; 'assay data ckpt inspect' lists what there is")


def renamed(leaves: list[Leaf]) -> tuple[list[Leaf], Any]:
    """Leaves of a flat file as a tree of one level, for a store."""
    flat = [replace(leaf, path=leaf.path.replace("~", "~0").replace("/", "~1")) for leaf in leaves]
    return flat, ["d", [[leaf.path, ["a", new.path]] for leaf, new in zip(leaves, flat, strict=True)]]
