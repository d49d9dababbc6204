"""Orbax's own checkpoints, OCDBT or Zarr, read by tensorstore, which Orbax itself writes them with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

Found = tuple[str, str, tuple[int, ...], memoryview]


def names(folder: Path) -> dict[str, dict[str, Any]]:
    """Where each array lies, by its path: how tensorstore opens it.

    Raises:
        BadInput: the folder's description is missing or damaged.
    """
    try:
        said = json.loads((folder / "_METADATA").read_bytes())
        return {
            "/".join(keys): _opened(folder, said, ".".join(keys))
            for one in said["tree_metadata"].values()
            if one["value_metadata"].get("value_type") not in ("None", "Dict", "List")
            for keys in [[str(key["key"]) for key in one["key_metadata"]]]
        }
    except OSError as error:
        raise unreadable(folder / "_METADATA", error, right="Orbax's description of the arrays expected") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{folder / '_METADATA'} is not Orbax's: {type(error).__name__} {error}") from error


def _opened(folder: Path, said: Any, name: str) -> dict[str, Any]:
    driver = "zarr3" if said.get("use_zarr3") else "zarr"
    place = {"driver": "file", "path": f"{folder.absolute()}/"}
    if said.get("use_ocdbt", (folder / "manifest.ocdbt").is_file()):
        return {"driver": driver, "kvstore": {"driver": "ocdbt", "base": place, "path": f"{name}/"}}
    return {"driver": driver, "kvstore": place | {"path": f"{place['path']}{name}/"}}


def contents(folder: Path) -> Iterator[Found]:
    """Every array, by path."""
    known = names(folder)
    store = library(folder)
    for path, how in known.items():
        yield array(store, folder, path, how)


def library(folder: Path) -> Any:
    """tensorstore."""
    try:
        import tensorstore
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(f"reading Orbax's folder {folder}", error)) from error
    return tensorstore


def array(store: Any, folder: Path, path: str, how: dict[str, Any]) -> Found:
    """One array, whole.

    Raises:
        BadInput: a file of it is missing, cut or damaged.
    """
    try:
        opened = store.open(how, open=True, read=True, recheck_cached=True).result()
        if not opened.storage_statistics(query_fully_stored=True).result().fully_stored:
            raise ValueError("a chunk of it lies nowhere")  # Zarr would read it as zeros
        found = np.asarray(opened.read().result())
    except (ValueError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise BadInput(f"{folder}: '{path}' is missing, cut or damaged: {why}") from error
    return path, str(found.dtype), found.shape, np.ascontiguousarray(found).reshape(-1).view(np.uint8).data
