"""`assay compare kernels --mla dump.npz`: MLA decode side by side on the user's own latents."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import click
import numba
import numpy as np

from assay.kernels.engine import asking, machine, runner
from assay.kernels.etap_mla import KERNEL, OURS, bounds, contenders, cost
from assay.kernels.etap_mla.cpu import Problem, problem
from assay.record import reading
from assay.record.errors import BadInput

WANTED = "latent [batch, length, 576] and query [batch, heads, 576], and may have lengths [batch] and scale"


def read_dump(path: Path) -> Problem:
    """A decode step from an .npz: latents side by side, queries, lengths."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, TypeError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise BadInput(
            f"{path}: no .npz of plain arrays ({reading.no_array(error)}); it should hold {WANTED}"
        ) from None
    if missing := [name for name in ("latent", "query") if name not in arrays]:
        raise BadInput(f"{path}: no array '{missing[0]}'; it should hold {WANTED}")
    if arrays["latent"].dtype.kind == "V" or arrays["latent"].dtype == np.uint16:
        raise BadInput(f"{path}: 'latent' looks like bfloat16, which .npz cannot name; save it as float16 or float32")
    scale = arrays.get("scale")
    if scale is not None and scale.size != 1:
        raise BadInput(f"{path}: 'scale' should be one number")
    try:
        return problem(
            arrays["query"], arrays["latent"], arrays.get("lengths"), None if scale is None else scale.item()
        )
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


@click.command(epilog="Example:  assay compare kernels --mla examples/latents.npz --machine h200")
@click.option("--mla", "path", required=True, type=click.Path(path_type=Path), help=f"An .npz with {WANTED}.")
@asking.options
def command(path: Path, rounds: int, where: str, plot: Path | None) -> dict[str, Any]:
    """MLA decode on your own latents: who is fastest here, and on which GPUs padding your heads would cost time."""
    asked = read_dump(path)
    if not asked.tokens:
        raise BadInput(f"{path}: all lengths are 0")
    here, heads = machine.here(), asked.query.shape[1]
    outcome = runner.measure(KERNEL, asked, contenders(numba.get_num_threads()), here, rounds)
    facts = {"file": str(path), "sequences": len(asked.lengths), "heads": heads, "tokens": asked.tokens,
             "longest": int(asked.lengths.max()), "cache_bytes": 2 * 576 * asked.tokens}  # fmt: skip
    told = asking.answer(outcome, here, cost(asked), facts, OURS, where, plot)
    for row in told["table"]:
        if row["backend"] in ("triton", "cuda"):  # the limit is the processor's
            row |= {"fraction": None, "bound_by": "GPU"}
    roofs = [bounds.roof(name) for name in ("h20", "h200", "h100", "a100")]
    told["gpus"] = [
        {"gpu": on.name, "ridge": on.ridge, "padded": bounds.intensity("padded", heads),
         "transposed": bounds.intensity("transposed", heads), "padding_costs": bounds.gain(heads, on),
         "source": "measured" if on.name == "h200" else on.source}
        for on in roofs
    ]  # fmt: skip
    told["why"] += (
        f" With {heads} heads in half precision, " + "; ".join(bounds.reason(heads, on) for on in roofs[:2]) + "."
    )
    return told
