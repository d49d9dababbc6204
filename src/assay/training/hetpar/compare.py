"""`assay compare hetpar`: the user's two grids beside the best single layout, and what crosses between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim.encoders import vision
from assay.sim.models import model
from assay.training import hetpar
from assay.training.engine.cluster import Cluster
from assay.training.engine.cluster import read as read_cluster
from assay.training.engine.costs import RECOMPUTE
from assay.training.engine.planning import TIE
from assay.training.hetpar import pace
from assay.training.hetpar.boundary import Batch, Side, between, side

UNITS = {"step": "s", "memory": "bytes a rank", "flops": "FLOP/s a GPU", "tokens": "tokens/s", "forward": "bytes",
         "backward": "bytes", "gathered": "bytes"}  # fmt: skip
LARGEST = 1024  # ranks


@click.command(epilog='Example:  assay compare hetpar --encoder dp8 --llm "tp2 cp4" --context 32768')
@click.option(
    "--encoder", "seeing", required=True, help="The encoder's grid: sizes of tp, cp, pp, dp, as in 'tp2 dp4'."
)
@click.option("--llm", "speaking", required=True, help="The language model's grid.")
@click.option("--apart", is_flag=True, help="The encoder has GPUs of its own; else both lie on the same ones.")
@click.option(
    "--vision", "eye", default="clip-vit-l", show_default=True, help="An encoder's name, or LAYERSxHIDDENxHEADS."
)
@click.option("--model", "name", default="llama-2-7b", show_default=True, help="A model's name, or its config.json.")
@click.option(
    "--context", type=click.IntRange(256, 1 << 20), default=32768, show_default=True, help="Tokens a sequence."
)
@click.option(
    "--images", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Their share of the tokens."
)
@click.option("--patches", type=click.IntRange(1, 65536), default=576, show_default=True, help="Of an image.")
@click.option("--batch", type=click.IntRange(1, 1 << 16), help="Sequences a step.  [16 of every copy]")
@click.option(
    "--machines", default="8xh100", show_default=True, help="COUNTxDEVICE[:ibGb/s] or TOML; as many as needed."
)
def command(
    seeing: str, speaking: str, apart: bool, eye: str, name: str, context: int, images: float, patches: int,
    batch: int | None, machines: str,
) -> dict[str, Any]:  # fmt: skip
    """Your two grids, encoder and language model: what crosses between them, and their pace beside one layout's."""
    encoder = side(seeing)
    llm = side(speaking, first=encoder.grid.ranks if apart else 0, tp="tokens", zigzag=True)
    work = pace.Work(vision(eye), model(name), context, batch or 16 * llm.layout.dp, images, patches)
    return compare(work, encoder, llm, apart=apart, on=read_cluster(machines),
                   progress=click.get_current_context().obj)  # fmt: skip


def compare(
    work: pace.Work, encoder: Side, llm: Side, *, apart: bool, on: Cluster,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """The user's grids and the best of every kind on equally many GPUs.

    >>> work = pace.Work(vision("clip-vit-l"), model("llama-2-7b"), 16384, batch=16)
    >>> found = compare(work, side("dp8"), side("cp8", tp="tokens"), apart=False, on=read_cluster("8xh100"))
    >>> sorted(row["kind"] for row in found["table"])
    ['colocated', 'images cut', 'one layout', 'yours']
    """
    _check(work, encoder, llm, apart)
    ranks = llm.grid.ranks + (encoder.grid.ranks if apart else 0)
    on = replace(on, ranks=ranks, name=f"{ranks} GPUs as of {on.name}")
    drawn = work.images(0)
    found = {"yours": _yours(work, encoder, llm, apart, on)}
    kinds = [kind for kind in pace.KINDS if kind != "separate" or ranks > on.per_node]
    for done, kind in enumerate(kinds):
        progress(done, len(kinds))
        best = pace.fastest(work, on, kind, ranks, drawn)
        if best is not None:
            found[kind] = best
    table = [
        {"kind": kind, "step": one.step, "flops": one.flops, "tokens": one.tokens, "memory": one.memory,
         "fits": one.fits, "encoder": one.encoder, "layout": one.choice.name}
        for kind, one in sorted(found.items(), key=lambda pair: (not pair[1].fits, pair[1].step))
    ]  # fmt: skip
    facts = {"encoder": work.eye.shape.name, "model": work.llm.name, "gpus": ranks, "gpu": on.device.name,
             "context": work.context, "batch": work.batch, "images": work.share}  # fmt: skip
    return {"job": facts, "boundary": _boundary(work, encoder, llm, on), "table": table, "why": why(table),
            "trust": hetpar.trust, "units": UNITS}  # fmt: skip


def _check(work: pace.Work, encoder: Side, llm: Side, apart: bool) -> None:
    """One line for what cannot be."""
    if not apart and encoder.grid.ranks != llm.grid.ranks:
        raise BadInput(
            f"--encoder is {encoder.grid.ranks} ranks and --llm {llm.grid.ranks}: on the same GPUs they are equally "
            "many; or give --apart"
        )
    if not apart and encoder.layout.pp > 1:
        raise BadInput("--encoder has pp: on shared GPUs an encoder is one stage; leave pp out, or give --apart")
    if max(encoder.grid.ranks, llm.grid.ranks) > LARGEST:
        raise BadInput(f"more than {LARGEST} ranks; smaller grids expected")
    few, many = sorted((encoder.layout.dp, llm.layout.dp))
    if apart and many % few:
        raise BadInput(f"--apart: dp{encoder.layout.dp} and dp{llm.layout.dp}; one should be a multiple of the other")
    for what, heads, layers, cut in (("--encoder", work.eye.shape.heads, work.eye.shape.layers, encoder.layout),
                                     ("--llm", work.llm.heads, work.llm.layers, llm.layout)):  # fmt: skip
        if heads % cut.tp:
            raise BadInput(f"{what}: tp{cut.tp} does not divide {heads} heads")
        if cut.pp > layers:
            raise BadInput(f"{what}: pp{cut.pp} is more than {layers} layers")
    if work.batch % llm.layout.dp:
        raise BadInput(f"--batch {work.batch} is not a multiple of dp{llm.layout.dp} of --llm")
    if work.share and work.images(0).sum() == 0:
        raise BadInput(f"--images {work.share:g}: no image of {work.patches} patches was drawn; a longer --context?")


def _yours(work: pace.Work, encoder: Side, llm: Side, apart: bool, on: Cluster) -> pace.Pace:
    """The user's grids with the recomputation that suits them: the fastest that fits, else the smallest."""
    kind = "separate" if apart else "colocated"
    again = RECOMPUTE if apart else (*RECOMPUTE, pace.WHOLE)
    tried = [
        pace.measure(work, on, pace.Choice(kind, llm.layout, encoder.layout, 1, one, other), work.images(0))
        for one, other in product(RECOMPUTE, again)
    ]
    fitting = [one for one in tried if one.fits]
    return min(fitting, key=lambda one: one.step) if fitting else min(tried, key=lambda one: one.memory)


def _boundary(work: pace.Work, encoder: Side, llm: Side, on: Cluster) -> dict[str, Any]:
    """Bytes of a microbatch: one sequence of every copy, its images before its text."""
    each, copies = max(1, round(work.share * work.most)), llm.layout.dp
    tokens = max(1, work.patches // work.eye.merge)
    samples = tuple((k * each, max(0, work.context - each * tokens)) for k in range(copies))
    batch = Batch((tokens,) * (each * copies), samples, each)
    found, item = between(encoder, llm, batch, work.llm.hidden), on.precision.item
    return {"forward": item * found.forward, "backward": item * found.backward, "gathered": item * found.gathered,
            "messages": sum(move.source != move.target for move in found.moves)}  # fmt: skip


def why(table: list[dict[str, Any]]) -> str:
    """Who is fastest, and how the user's grids fare beside it."""
    yours = next(row for row in table if row["kind"] == "yours")
    first = table[0]
    if not yours["fits"]:
        return (
            f"Your grids do not fit: {yours['memory'] / 1e9:.0f} GB a rank; {first['kind']} does ({first['layout']})."
        )
    single = [row for row in table if row["kind"] in hetpar.SINGLE]
    told = f"Your grids take {yours['step']:.3g} s a step"
    if single:
        lead = single[0]["step"] / yours["step"] - 1
        length = "as long" if abs(lead) < TIE else f"{single[0]['step']:.3g} s"
        told += f", the best single layout {length}"
    if first["kind"] != "yours" and yours["step"] > (1 + TIE) * first["step"]:
        told += f"; the fastest is {first['kind']} ({first['layout']}), {first['step']:.3g} s"
    return told.replace("%", " %") + "."
