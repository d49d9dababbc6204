"""`assay compare ncclz`: a field of your own summed over shaped links, by every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput, unreadable
from assay.training import ncclz
from assay.training.ncclz import rivals
from assay.training.ncclz.links import link

TIE = 0.05  # of the seconds: what coding the same frames again changes
RAW = (".f32", ".dat", ".bin")  # as SDRBench has them
MOST = 1 << 26  # numbers
UNITS = {"seconds": "s", "wall": "s", "computed": "s", "ratio": "", "error": "", "bound": ""}
SHOWN = ["method", "seconds", "wall", "computed", "ratio", "error", "bound", "frames"]


@click.command(epilog="Example:  assay compare ncclz --input examples/field.npy --links 1gbit --eps 1e-4")
@click.option(
    "--input", "path", required=True, type=click.Path(path_type=Path),
    help="An array of floats as .npy, or plain float32 as .f32, .dat or .bin (as SDRBench has them).",
)  # fmt: skip
@click.option("--links", default="1gbit", show_default=True, help="Their speed: 100mbit, 1gbit, 2.5gbit, ...")
@click.option("--eps", type=float, default=1e-4, show_default=True, help="Most that a rank's number may be off.")
@click.option("--relative", is_flag=True, help="--eps is a share of the field's range.")
@click.option("--ranks", type=click.IntRange(2, 8), default=2, show_default=True, help="Processes in the ring.")
def command(path: Path, links: str, eps: float, relative: bool, ranks: int) -> dict[str, Any]:
    """Sum your own field over links of your speed: plain, by NCCLZ, and by earlier compressing collectives."""
    return compare(path, links, eps, relative=relative, ranks=ranks)


def compare(
    path: Path, links: str = "1gbit", eps: float = 1e-4, *, relative: bool = False, ranks: int = 2
) -> dict[str, Any]:
    """Every method on the field; each further rank has it shifted by a share, so that no two sum the same numbers.

    Raises:
        BadInput: no such file, no floats in it, no speed of a link, or no error bound.
    """
    from assay.training.ncclz.race_job import Race, raced

    x, on = read(path), link(links, shaped=True)
    finite = x[np.isfinite(x)]
    span = float(finite.max()) - float(finite.min()) if len(finite) else 0.0
    bound = eps * span if relative else eps
    if not 0 < bound < np.inf:
        raise BadInput(f"--eps {eps:g}{' of a range of 0' if relative and eps > 0 else ''}: should be above 0")
    data = np.stack([np.roll(x, rank * len(x) // ranks) for rank in range(ranks)])
    race = Race("", bound, on, tuple(rivals.METHODS), len(x))
    found = raced([race], ranks, data)[0]
    table = [_row(name, row) for name, row in found.items()]
    table.sort(key=lambda row: float(row["seconds"]))
    return {
        "field": {"numbers": len(x), "range": span, "finite": len(finite) / len(x), "eps": bound, "ranks": ranks,
                  "links": links},
        "table": table, "units": UNITS, "shown": SHOWN, "trust": ncclz.trust, "why": _why(found, table, on.bandwidth),
    }  # fmt: skip


def read(path: Path) -> NDArray[np.float32]:
    """The numbers of a file, flat.

    Raises:
        BadInput: what is wrong with it.
    """
    try:
        if path.suffix.lower() in RAW:
            if path.stat().st_size % 4:
                raise BadInput(f"{path}: {path.stat().st_size} bytes are no whole number of float32")
            found: Any = np.fromfile(path, np.float32)
        else:
            found = np.load(path, allow_pickle=False, mmap_mode="r")
    except OSError as error:
        raise unreadable(path, error, f"give .npy, or float32 as {', '.join(RAW)}") from error
    except (ValueError, EOFError) as error:
        raise BadInput(
            f"{path}: no array: {reading.no_array(error)}; give .npy, or float32 as {', '.join(RAW)}"
        ) from error
    kind = getattr(found, "dtype", None)  # an archive of several arrays has none
    if kind is None or kind.kind != "f":
        raise BadInput(f"{path}: holds {kind or 'no single array'}, should be an array of floats")
    if not 0 < found.size <= MOST:
        raise BadInput(f"{path}: {found.size} numbers, should be 1 to {MOST}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(found, np.float32).reshape(-1)


def _row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    used = [f"{row[coder]} {coder}" for coder in ("raw", "fixed", "huffman") if row[coder]]
    keys = ("seconds", "wall", "computed", "ratio", "error", "bound", "coded", "predict", "outliers", "same")
    frames = ", ".join(used) if used else ("" if row["coded"] else "not coded")
    return {"method": name, **{key: row[key] for key in keys}, "frames": frames}


def _why(found: dict[str, dict[str, Any]], table: list[dict[str, Any]], bandwidth: float) -> str:
    plain, ours = found["plain"], found["ncclz"]
    times = plain["seconds"] / ours["seconds"]
    first = table[0]
    lead = f"ncclz takes {1 / times:.2f} of the plain ring's seconds"
    if not ours["coded"]:
        return f"ncclz sent the floats as they are: at {bandwidth * 8e-9:g} Gb/s coding them would not pay. {lead}."
    limit = "its coding" if ours["computed"] > 0.7 * ours["seconds"] else "the wire"
    tied = ours["seconds"] <= (1 + TIE) * first["seconds"]
    rank = "none is quicker by more than a tie" if tied else f"{first['method']} is quicker still"
    return f"{lead}, {ours['ratio']:.1f} times fewer bytes; {limit} takes most of them; {rank}."
