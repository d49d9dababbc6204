"""Labels and splits from the files people have, and the trained model into one that others read."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.data.grinnder.layers import Int64s, Network
from assay.record import reading


def read_labels(path: Path, n: int) -> Int64s:
    """A class for each node, -1 where unknown: `.npy` (whole numbers, or floats with NaN), or text with one a line."""
    values = _numbers(path)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (n,):
        raise ValueError(f"{path} has labels of shape {values.shape}; one for each of {n:,} rows of features expected")
    if values.dtype.kind == "f":
        unknown = np.isnan(values)
        values = np.where(unknown, -1, values)
        if (values != np.floor(values)).any():
            raise ValueError(f"{path} holds fractions; whole numbers from 0, or NaN where unknown, expected")
    return np.maximum(values.astype(np.int64), -1)


def read_split(path: Path, n: int) -> npt.NDArray[np.bool_]:
    """Which nodes to train on: a `.npy` of node numbers, or of a truth value a node; or text with one number a line."""
    values = _numbers(path)
    if values.dtype == np.bool_:
        if values.shape != (n,):
            raise ValueError(f"{path} has {values.shape} truth values; one for each of {n:,} nodes expected")
        return values.astype(np.bool_)
    numbers = values.reshape(-1).astype(np.int64)
    if not len(numbers) or numbers.min() < 0 or numbers.max() >= n:
        raise ValueError(f"{path} names {len(numbers)} nodes; numbers from 0 to {n - 1} expected")
    chosen = np.zeros(n, np.bool_)
    chosen[numbers] = True
    return chosen


def _numbers(path: Path) -> npt.NDArray[np.generic]:
    try:
        if path.suffix.lower() == ".npy":
            found: npt.NDArray[np.generic] = np.load(path, allow_pickle=False)
            return found
        with gzip.open(path, "rt") if path.suffix.lower() == ".gz" else path.open(encoding="utf-8") as file:
            return np.array([float(line) for line in file if line.strip() and not line.startswith("#")])
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; a .npy, or text with a number a line, expected") from None
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: {reading.no_array(error)}; a whole .npy, or text with a number a line, expected"
        ) from None


def write_model(path: Path, network: Network) -> None:
    """The weights by PyTorch Geometric's names, as `.safetensors`, `.npz` or `.pt`; whole or not at all."""
    state = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    suffix, out = path.suffix.lower(), io.BytesIO()
    if suffix == ".npz":
        np.savez(out, **{name: value.numpy() for name, value in state.items()})
    elif suffix == ".safetensors":
        from safetensors.torch import save

        out.write(save(state))
    else:
        import torch

        torch.save(state, out)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(out.getvalue())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_out(path: Path) -> None:
    """Raise a ValueError before hours of training where the model could not be written."""
    if path.suffix.lower() not in (".npz", ".safetensors", ".pt", ".pth"):
        raise ValueError(f"{path}: a model is written as .safetensors, .npz or .pt")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
