"""States in the files people have: safetensors (also Hugging Face's folders), npz, pt, folders of
torch.distributed.checkpoint and of Orbax, our stores.

Nothing that is read is ever run: what torch pickles is read as records (:mod:`assay.data.orbax.torch_files`). What is
no array (an epoch, arguments, safetensors' `__metadata__`) is kept beside the arrays, as JSON has it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.orbax import orbax_files, torch_files
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
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64",
}  # fmt: skip
INDEX = ".safetensors.index.json"  # how the name of Hugging Face's index ends
_HEADER = 100 << 20  # bytes of a header that nobody writes on purpose
AT_ONCE = 16 << 20  # bytes that are written between two words about it
EXPECTED = (
    "a .safetensors, .npz or .pt, a folder of Hugging Face, torch.distributed.checkpoint or Orbax, or a store of ours "
    "(FOLDER@STEP) expected"
)
META = "__metadata__"  # where safetensors and our .npz have what is no array


class State(list[Leaf]):
    """The arrays of a state, and what lies beside them: values that JSON has, by path."""

    def __init__(self, leaves: Iterable[Leaf] = (), beside: Mapping[str, Any] | None = None) -> None:
        super().__init__(leaves)
        self.beside = dict(beside or {})


def place_of(name: str) -> tuple[str, str]:
    """A state's file, folder or store, and the step behind the last @; what is there by the whole name is that.

    >>> place_of("runs/ckpts@1200"), place_of("s3://bucket/run7")
    (('runs/ckpts', '1200'), ('s3://bucket/run7', ''))
    """
    place, at, step = name.rpartition("@")
    if not at or "/" in step or ("://" not in name and Path(name).exists()):
        return name, ""
    return place, step


def is_ours(place: str) -> bool:
    """Whether it is a store of checkpoints."""
    return "://" in place or (Path(place) / "log").is_dir()


def read(name: str, only: tuple[str, ...] = (), progress: Progress = silent) -> State:
    """The arrays of a state, by path; those at or below one of the paths `only`, where it names any."""
    place, step = place_of(name)
    if is_ours(place):
        return _ours(place, step, only, progress)
    if not Path(place).exists():
        raise unreadable(name, right=EXPECTED)
    return chosen(_READERS[kind_of(Path(place))](Path(place)), only)


def kind_of(path: Path) -> str:
    """Whose file or folder it is, by its name and what lies in it."""
    if path.is_dir():
        if (path / ".metadata").is_file():
            return "dcp"
        if (path / "_METADATA").is_file() or (path / "manifest.ocdbt").is_file():
            return "orbax"
        if (path / "_CHECKPOINT_METADATA").is_file():
            return "orbax-items"
        if any(path.glob("*.safetensors")) or any(path.glob(f"*{INDEX}")):
            return "hugging-face"
    elif kind := {".safetensors": "safetensors", ".npz": "npz", ".pt": "pt", ".pth": "pt", ".bin": "pt"}.get(
        path.suffix
    ):
        return kind
    raise BadInput(f"{path} is no state that is known here; {EXPECTED}")


def _ours(place: str, step: str, only: tuple[str, ...], progress: Progress) -> State:
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
    beside = _values(table.skeleton, ()) | table.meta.get(META, {})
    return State(leaves, {path: value for path, value in beside.items() if _among(path, only)})


def _values(node: Any, keys: tuple[Any, ...]) -> dict[str, Any]:
    """What a skeleton has of numbers and text, by path."""
    tag, inside = node
    if tag == "d":
        return {path: value for key, child in inside for path, value in _values(child, (*keys, key)).items()}
    if tag in "ltn":
        children = inside[2] if tag == "n" else inside
        return {path: value for i, child in enumerate(children) for path, value in _values(child, (*keys, i)).items()}
    return {"/".join(map(str, keys)): int(inside, 16) if tag == "i" else inside} if tag in "vi" else {}


def _name(path: str) -> str:
    """A path of the store as a file has it, where a slash is a letter like others."""
    return path.replace("~1", "/").replace("~0", "~")


def _named(tree: Any) -> list[Leaf]:
    return [replace(leaf, path=_name(leaf.path)) for leaf in flatten(tree)[0]]


def _leaf(path: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> Leaf:
    return Leaf(path, "torch", dtype, shape, ((((0,) * len(shape), shape), data),), True)


def _safetensors(path: Path) -> State:
    """By the format's own description: the length of a header, the header in JSON, the bytes."""
    try:
        opened = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with opened as file:
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
        if strange := sorted({str(row["dtype"]) for row in rows.values()} - set(SAFE)):
            raise BadInput(f"{path} has numbers of type {', '.join(strange)}, which nothing here reads; cast them")
        found = [(name, SAFE[row["dtype"]], tuple(row["shape"]), *row["data_offsets"]) for name, row in rows.items()]
        beside = {str(name): value for name, value in (header.get(META) or {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: its header is not safetensors': {type(error).__name__} {error}") from error
    body, leaves = whole[8 + length :], []
    for name, dtype, shape, start, end in found:
        if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * itemsize(dtype):
            raise BadInput(f"{path} was cut or is damaged: '{name}' would lie at {start} to {end} of {len(body)} bytes")
        leaves.append(_leaf(name, dtype, shape, body[start:end]))
    return State(leaves, beside)


def shards(folder: Path) -> dict[str, set[str]]:
    """Which tensors an index says are in which file of Hugging Face's folder; without an index, its files."""
    indices = sorted(folder.glob(f"*{INDEX}"))
    if not indices:
        return {path.name: set() for path in sorted(folder.glob("*.safetensors"))}
    said: dict[str, set[str]] = {}
    try:
        for path in indices:
            for tensor, name in json.loads(path.read_bytes())["weight_map"].items():
                said.setdefault(Path(name).name, set()).add(tensor)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{folder}: its index is not Hugging Face's: {type(error).__name__} {error}") from error
    return dict(sorted(said.items()))


def _hugging_face(folder: Path) -> State:
    """One or many files of safetensors."""
    found: dict[str, Leaf] = {}
    beside: dict[str, Any] = {}
    for name, tensors in shards(folder).items():
        if not (folder / name).is_file():
            raise unreadable(folder / name, right="the index names it")
        state = _safetensors(folder / name)
        if absent := tensors - {leaf.path for leaf in state}:
            raise BadInput(f"{folder / name} has no '{min(absent)}', which the index says; fetch the folder again")
        if twice := {leaf.path for leaf in state} & set(found):
            raise BadInput(f"{folder}: '{min(twice)}' is in two of its files; name one of them")
        found |= {leaf.path: leaf for leaf in state}
        beside |= state.beside
    return State(found.values(), beside)


def _npz(path: Path) -> State:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as found:
            beside = json.loads(str(found[META])) if META in found.files and found[META].dtype.kind == "U" else {}
            return State(_named({name: found[name] for name in found.files if name != META or not beside}), beside)
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise BadInput(f"{path} is no npz of plain arrays: {reading.no_array(error)}") from error


def of_torch(named: Iterable[tuple[str, Any]]) -> State:
    """Values by name, of trees of tensors, numbers and text."""
    state = State()
    for name, value in named:
        _into(state, value, (name,) if name else ())
    return state


def _into(state: State, value: Any, keys: tuple[Any, ...]) -> None:
    path = "/".join(map(str, keys))
    if isinstance(value, torch_files.Tensor):
        state.append(_leaf(path, value.dtype, value.shape, value.data))
    elif isinstance(value, dict | list) and value:
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            _into(state, child, (*keys, key))
    else:
        state.beside[path] = value


def _dcp(folder: Path) -> State:
    return of_torch(torch_files.contents(torch_files.folder(folder)))


def _pt(path: Path) -> State:
    if torch_files.is_archive(path):
        return of_torch([("", torch_files.load(path))])
    return _old_pt(path)


def _old_pt(path: Path) -> State:
    """As torch wrote before 1.6."""
    import pickle

    try:
        import torch
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(f"reading {path}", error)) from error
    try:
        leaves, skeleton = flatten(torch.load(path, map_location="cpu", weights_only=True))
        return State([replace(leaf, path=_name(leaf.path)) for leaf in leaves], _values(skeleton, ()))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        why = " ".join(str(error).split())[:200] or "it ends too early"
        raise BadInput(f"{path} is no state of tensors alone: {why}") from error


def _orbax(path: Path) -> State:
    return State(_leaf(name, dtype, shape, data) for name, dtype, shape, data in orbax_files.contents(path))


def _orbax_items(path: Path) -> State:
    """A step of Orbax's manager: a folder for each item, of which those with arrays are one state."""
    items = [item for item in sorted(path.iterdir()) if (item / "_METADATA").is_file()]
    if not items:
        raise BadInput(f"{path} has no item of Orbax with arrays; name the folder that has a _METADATA")
    if len(items) == 1:
        return _orbax(items[0])
    return State(replace(leaf, path=f"{item.name}/{leaf.path}") for item in items for leaf in _orbax(item))


_READERS: dict[str, Callable[[Path], State]] = {
    "safetensors": _safetensors, "npz": _npz, "pt": _pt, "hugging-face": _hugging_face, "dcp": _dcp, "orbax": _orbax,
    "orbax-items": _orbax_items,
}  # fmt: skip


def write(path: Path, leaves: list[Leaf], progress: Progress = silent) -> None:
    """A state as safetensors or npz, by the name's end; whole or not at all. What lies beside the arrays goes along."""
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
    beside = leaves.beside if isinstance(leaves, State) else {}
    header: dict[str, Any] = {META: {name: as_text(name, value) for name, value in beside.items()}} if beside else {}
    at = 0
    for leaf in leaves:
        if leaf.path == META:
            raise BadInput(f"an array is called {META}, which safetensors keeps for itself; write an .npz")
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


def as_text(path: str, value: Any) -> str:
    """JSON; text as it is."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        raise BadInput(
            f"'{path}' is {type(value).__name__}, which JSON has not; name what to write with --only"
        ) from None


def _as_npz(leaves: list[Leaf]) -> bytes:
    import io

    from assay.data.orbax.tree import as_kind

    arrays = {
        leaf.path: as_kind(np.frombuffer(leaf.views[0][1], np.uint8), "numpy", leaf.dtype, leaf.shape)
        for leaf in leaves
    }
    if isinstance(leaves, State) and leaves.beside:
        for path, value in leaves.beside.items():
            as_text(path, value)
        arrays[META] = np.array(json.dumps(leaves.beside))
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def chosen(state: State, only: tuple[str, ...]) -> State:
    """Those at or below one of the paths; all where none is named."""
    found = [leaf for leaf in state if _among(leaf.path, only)]
    if only and not found:
        raise _nothing(only)
    return State(found, {path: value for path, value in state.beside.items() if _among(path, only)})


def _among(path: str, only: tuple[str, ...]) -> bool:
    return not only or any(f"{path}/".startswith(f"{one}/") for one in only)


def _nothing(only: tuple[str, ...]) -> BadInput:
    return BadInput(f"nothing lies at {', '.join(only) or 'all'}; 'assay data ckpt inspect' lists what there is")


def renamed(leaves: list[Leaf]) -> tuple[list[Leaf], Any]:
    """Leaves of a flat file as a tree of one level, for a store."""
    flat = [replace(leaf, path=leaf.path.replace("~", "~0").replace("/", "~1")) for leaf in leaves]
    return flat, ["d", [[leaf.path, ["a", new.path]] for leaf, new in zip(leaves, flat, strict=True)]]
