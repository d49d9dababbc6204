"""What torch wrote: `.pt` files, and the folders of torch.distributed.checkpoint, read without torch and run by nobody.

Both describe tensors in a pickle. It is read into records of what it asks for (:mod:`assay.workloads.plain_pickle`);
those of the few classes that torch itself writes are tensors and plain data here, every other one is refused by name.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.data.orbax.tree import DEEPEST, itemsize, joined
from assay.record.errors import BadInput, unreadable
from assay.workloads import plain_pickle
from assay.workloads.plain_pickle import Inert

_META = "torch.distributed.checkpoint."
_STORAGE = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8",
}  # fmt: skip
MOST = 5_000_000  # values of a tree: a few that hold each other many times would be more than there is memory
STRETCHED = 1 << 30  # bytes that one number, expanded, may become
_PLAIN = "arrays, numbers, text, dicts and lists expected; load it where its classes are, and save these alone"


@dataclass(frozen=True, eq=False)
class Tensor:
    """Numbers in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


Value = Any  # a Tensor, a number, text, None, or dicts and lists of these


def is_archive(path: Path) -> bool:
    """Whether a file is torch's of today, a zip archive; before 1.6 it was a row of pickles."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def load(path: Path) -> Value:
    """What `torch.save` wrote."""
    return _archive(_mapped(path), str(path))


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:
        return memoryview(b"")  # nothing can be mapped of an empty file
    except OSError as error:
        raise unreadable(path, error) from error


def _archive(data: memoryview, source: str) -> Value:
    """A zip archive: the pickle, and a file for each storage."""
    try:
        with zipfile.ZipFile(io.BufferedReader(_File(data))) as packed:
            entries = {info.filename.partition("/")[2]: info for info in packed.infolist()}
            if "data.pkl" not in entries:
                raise BadInput(f"{source} is no file of torch.save: it has no data.pkl")
            if "byteorder" in entries and packed.read(entries["byteorder"]) != b"little":
                raise BadInput(f"{source} was written on a machine with the other order of bytes; save it on this one")
            tree = plain_pickle.loads(packed.read(entries["data.pkl"]), source, inert=True)

            def storage(name: str) -> memoryview:
                info = entries[f"data/{name}"]
                if info.compress_type != zipfile.ZIP_STORED:
                    return memoryview(packed.read(info))
                (named, more) = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
                start = info.header_offset + 30 + named + more
                return data[start : start + info.file_size]

            return _Reading(storage, source).value(tree, ())
    except (zipfile.BadZipFile, KeyError, EOFError, struct.error, NotImplementedError) as error:
        why = " ".join(str(error).split())
        raise BadInput(f"{source} was cut or is damaged: {why}") from error


class _File(io.RawIOBase):
    """Bytes as a file, where they lie."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = max(0, offset + (0, self.at, len(self.data))[whence])
        return self.at

    def readinto(self, into: Any) -> int:
        found = self.data[self.at : self.at + len(into)]
        into[: len(found)] = found
        self.at += len(found)
        return len(found)


class _Reading:
    """Records of one pickle, as what they stand for."""

    def __init__(self, storage: Callable[[str], memoryview], source: str) -> None:
        self.storage, self.source = storage, source
        self.seen: set[int] = set()
        self.count = 0

    def value(self, node: Any, keys: tuple[Any, ...]) -> Value:
        """A record, and all below it."""
        self.count += 1
        if self.count > MOST:
            raise BadInput(f"{self.source}: more than {MOST:,} values; a tree of tensors expected")
        if len(keys) > DEEPEST or id(node) in self.seen:
            raise BadInput(f"{self.source}: '{joined(keys[:5])}' is nested too deep, or holds itself; a tree expected")
        if isinstance(node, dict | list | tuple):
            self.seen.add(id(node))
            try:
                if isinstance(node, dict):
                    return {self.key(key, keys): self.value(child, (*keys, key)) for key, child in node.items()}
                return [self.value(child, (*keys, number)) for number, child in enumerate(node)]
            finally:
                self.seen.discard(id(node))
        return self.record(node, keys) if isinstance(node, Inert) else node

    def key(self, key: Any, keys: tuple[Any, ...]) -> str | int:
        """Of a dict."""
        if not isinstance(key, str | int):
            raise BadInput(f"{self.source}: '{joined(keys)}' has a key that is neither text nor an integer")
        return key

    def record(self, node: Inert, keys: tuple[Any, ...]) -> Value:
        """What a class of torch's or Python's own stands for."""
        name, args = node.name, node.args
        try:
            if name == "torch._utils._rebuild_parameter" and args:
                return self.value(args[0], keys)
            if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3") and args:
                return self.tensor(args)
            if name in ("collections.OrderedDict", "builtins.dict", "collections.defaultdict") and args is not None:
                return self.value(node.items, keys)
            if name in ("argparse.Namespace", "types.SimpleNamespace") and isinstance(node.state, dict):
                return self.value(node.state, keys)
            if name in ("torch.Size", "builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset"):
                return self.value([*(args[0] if args else ()), *node.values], keys)
            if name.startswith("pathlib.") and args is not None:
                return str(Path(*args))
            if name in ("torch.device", "torch.serialization._get_layout") and args:
                return ":".join(map(str, args))
            if name.startswith("torch.") and args is None:
                return name  # a type of numbers
            if (array := _of_numpy(node)) is not None:
                return array
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise BadInput(f"{self.source}: '{joined(keys)}' is a damaged {name}: {error}") from error
        raise BadInput(f"{self.source}: '{joined(keys)}' is a {name}; {_PLAIN}")

    def tensor(self, args: tuple[Any, ...]) -> Tensor:
        """Of a storage, where it begins there, its shape, and its steps."""
        _, kind, key, _, _ = args[0].args[0]
        start, shape, steps = int(args[1]), _sizes(args[2]), _sizes(args[3])
        dtype = _STORAGE[kind.name.rpartition(".")[2]]
        if len(args) > 6 and isinstance(args[6], Inert):  # v3: the storage has no type of its own
            dtype = args[6].name.removeprefix("torch.")
        size, raw = itemsize(dtype), self.storage(str(key))
        volume = math.prod(shape) * size
        if volume > max(len(raw), STRETCHED):
            raise ValueError(f"its {len(raw)} bytes would become {volume}")
        last = start + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if start < 0 or min((0, *shape, *steps)) < 0 or (volume and (last + 1) * size > len(raw)):
            raise ValueError(f"its storage has {len(raw)} bytes")
        if not volume:
            return Tensor(dtype, shape, memoryview(b""))
        items = np.frombuffer(raw, np.uint8)[start * size : (last + 1) * size]
        view = np.lib.stride_tricks.as_strided(
            items, (*shape, size), (*(step * size for step in steps), 1), writeable=False
        )
        return Tensor(dtype, shape, np.ascontiguousarray(view).reshape(-1).data)


def _sizes(of: Any) -> tuple[int, ...]:
    listed: Any = (of.args or ((),))[0] if isinstance(of, Inert) else of
    return tuple(int(n) for n in listed)


def _of_numpy(node: Inert) -> Value:
    """An array or a number of NumPy's, which generators and schedulers keep; None where it is something else."""
    last = node.name.rpartition(".")[2]
    if not node.name.startswith(("numpy.core.multiarray.", "numpy._core.multiarray.")) or not node.args:
        return None
    if last == "scalar":
        return np.frombuffer(_bytes(node.args[1]), _dtype(node.args[0]))[0].item()
    if last != "_reconstruct":
        return None
    _, shape, dtype, columns, data = node.state
    array = np.frombuffer(_bytes(data), _dtype(dtype)).reshape(_sizes(shape), order="F" if columns else "C")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return Tensor(str(array.dtype), array.shape, array.reshape(-1).view(np.uint8).data)


def _dtype(node: Inert) -> np.dtype[Any]:
    (name, *_) = node.args or ("O",)
    made = np.dtype(name)
    if made.kind not in "biufc":
        raise ValueError(f"numbers expected, not {made}")
    found: np.dtype[Any] = made.newbyteorder(node.state[1]) if node.state and node.state[1] in "<>" else made
    return found


def _bytes(of: Any) -> bytes:
    if isinstance(of, Inert) and of.name == "_codecs.encode" and of.args:
        return str(of.args[0]).encode("latin-1")
    if not isinstance(of, bytes):
        raise TypeError("bytes expected")
    return of


# ------------------------------------------------------------------------------ folders of torch.distributed.checkpoint


class Stored(NamedTuple):
    """A part of a tensor, or a value, in a file of the folder."""

    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Folder:
    """What the metadata of a folder name: tensors, values by themselves, and where all of it lies."""

    path: Path
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # type and shape, by name
    values: tuple[str, ...]
    stored: dict[str, list[Stored]]
    lost: tuple[str, ...]  # parts of tensors that lie nowhere

    def files(self) -> dict[str, int]:
        """How long each file must be, at least."""
        need: dict[str, int] = {}
        for parts in self.stored.values():
            for part in parts:
                need[part.file] = max(need.get(part.file, 0), part.offset + part.length)
        return dict(sorted(need.items()))


def folder(path: Path) -> Folder:
    """A folder's metadata, read without running any of them.

    Raises:
        BadInput: they are cut, or no metadata of torch.distributed.checkpoint.
    """
    source = str(path / ".metadata")
    try:
        whole = plain_pickle.loads((path / ".metadata").read_bytes(), source, inert=True)
    except OSError as error:
        raise unreadable(source, error) from error
    try:
        if whole.name != f"{_META}metadata.Metadata":
            raise ValueError(f"it is a {whole.name}")
        state = whole.state
        tensors, values, chunks = {}, [], {}
        for name, one in state["state_dict_metadata"].items():
            if one.name == f"{_META}metadata.BytesStorageMetadata":
                values.append(str(name))
                continue
            properties = one.state["properties"].state
            kind = properties["dtype"] if isinstance(properties, dict) else properties[0]
            tensors[str(name)] = (kind.name.removeprefix("torch."), _sizes(one.state["size"]))
            chunks[str(name)] = {
                _sizes(chunk.state["offsets"]): _sizes(chunk.state["sizes"]) for chunk in one.state["chunks"]
            }
        return _laid(path, tensors, tuple(values), chunks, state["storage_data"])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(f"{source} is no metadata of torch.distributed.checkpoint: {error}") from error


def _laid(
    path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], values: tuple[str, ...],
    chunks: dict[str, dict[tuple[int, ...], tuple[int, ...]]], storage: Any,
) -> Folder:  # fmt: skip
    """Where the parts lie; those that lie nowhere, or leave holes, are lost."""
    stored: dict[str, list[Stored]] = {}
    for index, info in storage.items():
        name, at = str(index.state["fqn"]), index.state.get("offset")
        start = _sizes(at) if at is not None else ()
        shape = chunks.get(name, {}).get(start, ())
        where = info.state
        if where.get("transform_descriptors"):
            raise BadInput(f"{path}: '{name}' was packed by {where['transform_descriptors']}; save it without")
        file = str(where["relative_path"])
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise BadInput(f"{path}: '{name}' would lie in {file}, outside of the folder")
        stored.setdefault(name, []).append(Stored(name, start, shape, file, int(where["offset"]), int(where["length"])))
    lost = [name for name in values if name not in stored]
    for name, (_, shape) in tensors.items():
        there = {part.start for part in stored.get(name, ())}
        lost += [f"{name} at {start}" for start in chunks[name] if start not in there]
        if sum(math.prod(size) for size in chunks[name].values()) != math.prod(shape):
            lost.append(f"{name}: its parts are not all of {shape}")
    return Folder(path, tensors, values, stored, tuple(lost))


def part(at: Folder, one: Stored) -> Value:
    """A part, or a value, as torch.save wrote it there."""
    file = at.path / one.file
    whole = _mapped(file)
    if one.offset < 0 or one.offset + one.length > len(whole):
        raise BadInput(
            f"{file} was cut: '{one.name}' would lie at {one.offset} to {one.offset + one.length} of {len(whole)} bytes"
        )
    return _archive(whole[one.offset : one.offset + one.length], f"{file} ('{one.name}')")


def damage(at: Folder, one: Stored) -> str:
    """Which entry of a part's archive does not have its own checksum; nothing where all have."""
    whole = _mapped(at.path / one.file)
    try:
        with zipfile.ZipFile(io.BufferedReader(_File(whole[one.offset : one.offset + one.length]))) as packed:
            return packed.testzip() or ""
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise BadInput(f"{at.path / one.file} was cut or is damaged: {error}") from error


def fitting(at: Folder, one: Stored, dtype: str) -> Tensor:
    """A part of a tensor, of the type and shape that the metadata say."""
    found = part(at, one)
    if not isinstance(found, Tensor) or (found.dtype, found.shape) != (dtype, one.shape):
        raise BadInput(f"{at.path / one.file}: '{one.name}' is not the {dtype}{list(one.shape)} that the metadata say")
    return found


def contents(at: Folder) -> Iterator[tuple[str, Value]]:
    """Every tensor whole, and every value, by name."""
    if at.lost:
        raise BadInput(
            f"{at.path} is not whole: {', '.join(at.lost[:3])} lies nowhere; 'assay data ckpt verify' says all"
        )
    for name in at.values:
        yield name, part(at, at.stored[name][0])
    for name, (dtype, shape) in at.tensors.items():
        yield name, _joined(at, name, dtype, shape)


def _joined(at: Folder, name: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of its parts."""
    size = itemsize(dtype)
    parts = at.stored.get(name, [])
    if math.prod(shape) * size > sum(one.length for one in parts):
        raise BadInput(f"{at.path}: '{name}' would be {dtype}{list(shape)}, and less than that lies there")
    out = np.empty((*shape, size), np.uint8)
    for one in parts:
        found = fitting(at, one, dtype)
        if len(parts) == 1 and one.shape == shape:
            return found
        box = tuple(slice(a, a + n) for a, n in zip(one.start, one.shape, strict=True))
        out[box] = np.frombuffer(found.data, np.uint8).reshape(*one.shape, size)
    return Tensor(dtype, shape, out.reshape(-1).data)
