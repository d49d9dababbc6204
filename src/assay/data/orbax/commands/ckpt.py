"""`assay data ckpt`: save, restore, inspect, compare, convert and verify training states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.data.engine.segments import digest
from assay.data.orbax import files, verifying
from assay.data.orbax.checkpointer import Checkpointer
from assay.data.orbax.tree import Leaf, as_kind
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Watched

SHOWN = 40  # arrays that a table lists


@click.group(epilog="Example:  assay data ckpt inspect examples/state.safetensors")
def command() -> None:
    """Training states: in a store of checkpoints, or in files of safetensors, npz, pt, Hugging Face, DCP and Orbax.

    A state is named by its file or folder, or by a store and a step: ckpts@1200; without @, what was saved last.
    """


@command.command(epilog="Example:  assay data ckpt save examples/state.safetensors --store ckpts --step 100")
@click.argument("state")
@click.option("--store", required=True, help="A folder, or the address of a store: s3://bucket/run7.")
@click.option("--step", type=click.IntRange(0), required=True, help="The step it is the state of.")
@click.option("--keep", type=click.IntRange(1), help="Let all but those saved last go, so many.")
def save(state: str, store: str, step: int, keep: int | None) -> dict[str, Any]:
    """Save STATE as a checkpoint: durable and checked, or not at all."""
    found = files.read(state)
    leaves, skeleton = files.renamed(found)
    progress, total = click.get_current_context().obj, max(1, _size(leaves)["bytes"])
    ck = Checkpointer(Watched(open_store(store), lambda done: progress(min(done, total), total)), keep=keep)
    wait(ck.inside.save(step, leaves, skeleton, meta={files.META: found.beside} if found.beside else None))
    if keep is not None:
        wait(ck.inside.collect())
    return {
        "saved": _size(leaves) | {"step": step, "store": store},
        "steps": {"there": ", ".join(map(str, ck.steps()))},
    }


@command.command(epilog="Example:  assay data ckpt restore examples/state.safetensors --out state.npz")
@click.argument("state")
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help=".safetensors or .npz.")
@click.option("--only", multiple=True, help="A path, such as model/layers; may be repeated.")
def restore(state: str, out: Path, only: tuple[str, ...]) -> dict[str, Any]:
    """Write STATE, or parts of it, to a file; every byte is checked on the way where it comes from a store."""
    progress = click.get_current_context().obj
    leaves = files.read(state, only, progress)
    files.write(out, leaves, progress)
    return {"written": _size(leaves) | {"to": str(out)}}


@command.command(epilog="Example:  assay data ckpt inspect examples/state.safetensors")
@click.argument("state")
def inspect(state: str) -> dict[str, Any]:
    """What STATE consists of."""
    place, step = files.place_of(state)
    if files.is_ours(place):
        ck = Checkpointer(place)
        table = ck.inspect(int(step) if step.isdecimal() else None)
        rows = [_row(a.path, a.dtype, a.shape, a.nbytes) for a in table.arrays]
        total = {"arrays": len(rows), "bytes": sum(row["bytes"] for row in rows)}
        facts = total | {"step": table.step, "pieces": len(table.pieces), "ranks": table.world}
        listed = {"checkpoints": {"steps": ", ".join(map(str, ck.steps()))}}
    else:
        leaves = files.read(state)
        rows = [_row(leaf.path, leaf.dtype, leaf.shape, len(leaf.views[0][1])) for leaf in leaves]
        facts, listed = _size(leaves), _beside(leaves.beside)
    rows.sort(key=lambda row: -row["bytes"])
    more = (
        {"why": f"The largest {SHOWN} of {len(rows)} arrays; --json has the numbers of all."}
        if len(rows) > SHOWN
        else {}
    )
    return {state: facts, **listed, "table": rows[:SHOWN], **more}


@command.command(epilog="Example:  assay data ckpt diff examples/state.safetensors examples/state.safetensors")
@click.argument("one")
@click.argument("other")
def diff(one: str, other: str) -> dict[str, Any]:
    """Which arrays of ONE and OTHER differ, and by how much."""
    states = files.read(one), files.read(other)
    left, right = ({leaf.path: leaf for leaf in state} for state in states)
    rows = [
        {"array": path, "is": "only in the first", "largest_difference": None} for path in left if path not in right
    ]
    rows += [
        {"array": path, "is": "only in the second", "largest_difference": None} for path in right if path not in left
    ]
    rows += [row for path in left if path in right if (row := _difference(path, left[path], right[path])) is not None]
    same = len(set(left) & set(right)) - sum(
        row["is"] not in ("only in the first", "only in the second") for row in rows
    )
    beside = [{path: files.as_text(path, value) for path, value in state.beside.items()} for state in states]
    values = [
        {
            "array": path,
            "is": " and ".join(each.get(path, "nothing")[:40] for each in beside),
            "largest_difference": None,
        }
        for path in sorted(beside[0] | beside[1])
        if beside[0].get(path) != beside[1].get(path)
    ]
    said = [f"{len(rows)} arrays differ."] * bool(rows) + [f"{len(values)} values beside them differ."] * bool(values)
    return {
        "arrays": {"the_same": same, "different": len(rows)}, "table": [*rows, *values][:SHOWN],
        "why": " ".join(said) or "They are the same.",
    }  # fmt: skip


@command.command(epilog="Example:  assay data ckpt convert examples/state.safetensors state.npz")
@click.argument("state")
@click.argument("to", type=click.Path(path_type=Path, dir_okay=False))
def convert(state: str, to: Path) -> dict[str, Any]:
    """Write STATE as the file TO, .safetensors or .npz."""
    progress = click.get_current_context().obj
    leaves = files.read(state, progress=progress)
    files.write(to, leaves, progress)
    return {"written": _size(leaves) | {"to": str(to)}}


@command.command(epilog="Example:  assay data ckpt verify examples/state.safetensors")
@click.argument("state")
@click.option(
    "--manifest", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Of what was there once."
)
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="A manifest of what is there now.")
def verify(state: str, manifest: Path | None, write: Path | None) -> dict[str, Any]:
    """Which files of STATE are missing, cut or damaged, or not those of a manifest; which arrays it holds. Exit code 1.

    STATE is a folder of Hugging Face, torch.distributed.checkpoint or Orbax, a file, or a store of ours; every byte is
    read.
    """
    found = verifying.verify(state, manifest)
    if write is not None and not found.wrong:
        verifying.write_manifest(write, state)
    table = [{"file": one.file, "is": one.what, "arrays": one.arrays} for one in found.wrong]
    rows = table or [_row(*row) for row in found.arrays]
    more = f" The first {SHOWN} of {len(rows)} rows are shown." if len(rows) > SHOWN else ""
    unread = f" {found.unread}" if found.unread else ""
    why = f"{len(table)} files or arrays are wrong." if table else "Everything is there, and whole."
    facts = {"kind": found.kind, "files": found.files, "arrays": len(found.arrays), "wrong": len(table)}
    return {state: facts, "table": rows[:SHOWN], "why": why + unread + more, "fails": bool(table)}


def _size(leaves: list[Leaf]) -> dict[str, Any]:
    return {"arrays": len(leaves), "bytes": sum(len(leaf.views[0][1]) for leaf in leaves)}


def _beside(values: dict[str, Any]) -> dict[str, Any]:
    """What is no array, as facts."""
    return (
        {"beside": {path: files.as_text(path, value) for path, value in list(values.items())[:SHOWN]}} if values else {}
    )


def _row(path: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> dict[str, Any]:
    return {"array": path, "dtype": dtype, "shape": " × ".join(map(str, shape)) or "scalar", "bytes": nbytes}


def _difference(path: str, one: Leaf, other: Leaf) -> dict[str, Any] | None:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return {
            "array": path,
            "is": f"{one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}",
            "largest_difference": None,
        }
    if digest(one.views[0][1]) == digest(other.views[0][1]):
        return None
    pair = [_numbers(leaf) for leaf in (one, other)]
    return {"array": path, "is": "changed", "largest_difference": float(np.abs(pair[0] - pair[1]).max())}


def _numbers(leaf: Leaf) -> Any:
    data = np.frombuffer(leaf.views[0][1], np.uint8)
    found = as_kind(data, leaf.kind, leaf.dtype, leaf.shape)
    return np.asarray(found.double() if hasattr(found, "double") else found, np.float64)
