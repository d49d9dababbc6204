"""`assay compare shardtensor`: your own model and sample, in one piece and in stretches on real processes."""

from __future__ import annotations

from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim import own_code
from assay.sim.ranks import RankFailed
from assay.training import shardtensor
from assay.training.shardtensor.job import on_ranks, sizes_of

MOST = 8
UNITS = {"memory": "bytes", "sent": "bytes", "rows": "of the cut dimension"}


@click.command(epilog="Example:  assay compare shardtensor --model examples/field_model.py:job --shares 37,27,36")
@click.option(
    "--model", "source", required=True, metavar="FILE.py:FUNCTION",
    help="A function that gives a plain nn.Module and one sample (a tensor) for it.",
)  # fmt: skip
@click.option("--shares", default="1,1", show_default=True, help="Of the ranks, such as 37,27,36; up to eight.")
@click.option("--dim", type=int, default=2, show_default=True, help="The dimension along which the sample is cut.")
def command(source: str, shares: str, dim: int) -> dict[str, Any]:
    """Your own unmodified model on several processes: same numbers? how much memory a rank? which call is lacking?"""
    try:
        parts = [float(word) for word in shares.split(",")]
    except ValueError:
        raise BadInput(f"--shares {shares}; numbers such as 37,27,36 expected") from None
    if not 2 <= len(parts) <= MOST:
        raise BadInput(f"--shares gives {len(parts)} ranks; 2 to {MOST} expected")
    return compare(source, parts, dim)


def compare(source: str, shares: list[float], dim: int = 2) -> dict[str, Any]:
    """A row for every rank.

    Raises:
        BadInput: no such function, what it gives is no model with a sample, or the model calls what is not supported.
    """
    sample = _built(source)[1]
    if not -sample.ndim <= dim < sample.ndim:
        raise BadInput(f"--dim {dim}; the sample of {source} has {sample.ndim} dimensions")
    length = int(sample.shape[dim])
    sizes = sizes_of(length, shares)
    try:
        found = on_ranks(len(shares), _own, source, shares, dim)
    except RankFailed as error:
        raise BadInput(f"{source} did not run on {len(shares)} processes: {str(error).splitlines()[0]}") from error
    refused = next((part["refused"] for part in found if "refused" in part), None)
    if refused is not None:
        raise BadInput(refused)
    table = [
        {"rank": rank, "rows": part["rows"], "memory": part["peak"], "of_one": part["peak"] / part["alone"],
         "sent": part["sent"]}
        for rank, part in enumerate(found)
    ]  # fmt: skip
    apart = max(max(part["output"], part["gradients"]) for part in found)
    allowed = min(part["allowed"] for part in found)
    fullest = max(row["of_one"] for row in table)
    return {
        "model": {
            "weights": found[0]["weights"], "length": length, "dimension": dim, "sizes": list(sizes), "apart": apart,
            "rounding": allowed,
        },
        "table": table, "units": UNITS, "trust": shardtensor.trust,
        "shown": ["rank", "rows", "memory", "of_one", "sent"],
        "fails": ""
        if apart <= allowed
        else f"{source} in stretches is not what it is in one piece: outputs or gradients differ by {apart:.1g} of the "
        f"largest, rounding explains {allowed:.1g}; whatever draws at random must not: give the model in eval()",
        "why": f"Outputs and gradients are those of one process to {apart:.1g} of the largest; the fullest rank takes "
        f"{fullest:.0%} of one device's memory.",
    }  # fmt: skip


def _built(source: str) -> Any:
    import torch

    found = own_code.load(source)()
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], torch.nn.Module)
            and isinstance(found[1], torch.Tensor)):  # fmt: skip
        raise BadInput(f"{source} should give (nn.Module, a tensor)")
    return found


def _own(source: str, shares: list[float], dim: int) -> Any:
    from assay.training.shardtensor import measured

    return measured.own(lambda: _built(source), shares, dim)
