"""`assay compare ultraep`: expert balancers side by side on the user's own routing counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.errors import BadInput
from assay.sim.models import model
from assay.training import ultraep
from assay.training.interface import ExpertBalancer, Hosts, Ints
from assay.training.ultraep.rivals import Eplb, EplbPlus, Lplb, Nobody
from assay.training.ultraep.step_time import pace
from assay.workloads import routing

UNITS = {"training_tokens_per_second": "tokens/s", "prefill_tokens_per_second": "tokens/s", "plan": "s"}
LARGEST = 2**28  # counts [source, expert, rank] of one microbatch: two gigabytes
TIE = ultraep.UltraEP.precision  # below it UltraEP itself does not look


@click.command(epilog="Example:  assay compare ultraep --input examples/routing.npy --slots 2")
@click.option(
    "--input", "path", required=True, type=click.Path(path_type=Path),
    help="Counts [source rank, expert] or [microbatch, source, expert] as .npy or .csv; or a .parquet of indices.",
)  # fmt: skip
@click.option("--ranks", type=click.IntRange(2, 4096), help="Ranks that share the experts.  [rows of the matrix, or 8]")
@click.option("--experts", type=click.IntRange(1), help="Of a parquet: how many there are.  [as its indices need]")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True, help="Of a parquet: tokens a rank.")
@click.option("--slots", type=click.IntRange(1, 64), default=ultraep.SLOTS, show_default=True, help="Copies a rank.")
@click.option("--least", type=click.IntRange(1), default=1024, show_default=True, help="Tokens a copy should get.")
@click.option("--model", "name", default=ultraep.MODEL, show_default=True, help="For throughput: a model with experts.")
@click.option("--device", "on", default=ultraep.DEVICE, show_default=True, help="For throughput: a device.")
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Microbatches at most.")
def command(
    path: Path, ranks: int | None, experts: int | None, tokens: int, slots: int, least: int, name: str, on: str,
    limit: int,
) -> dict[str, Any]:  # fmt: skip
    """Expert balancers on your own routing: how busy the busiest rank is, with how many copies, at what pace."""
    loads = routing.read(path, ranks=ranks or 0, tokens=tokens, experts=experts or 0, limit=limit)
    return compare(loads, slots=slots, least=least, name=name, on=on, progress=click.get_current_context().obj)


def compare(
    loads: Ints, *, slots: int = ultraep.SLOTS, least: int = 1024, name: str = ultraep.MODEL, on: str = ultraep.DEVICE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every balancer on the same microbatches, those that look back with the window that is best in hindsight.

    >>> loads = routing.drifting(8, 32, 4, 4096, imbalance=2.0, microbatches=6, seed=0)
    >>> sorted(row["balancer"] for row in compare(loads)["table"])
    ['eplb', 'eplb+', 'lplb', 'none', 'ultraep']
    """
    ranks, experts = loads.shape[1:]
    if experts % ranks:
        raise BadInput(f"{experts} experts on {ranks} ranks: a multiple expected, equally many a rank")
    if loads[0].size * ranks > LARGEST:
        raise BadInput(f"{experts} experts on {ranks} ranks are too many to follow one by one; fewer expected")
    shape = model(name)
    if shape.experts is None:
        raise BadInput(f"--model {shape.name} has no experts; choose one that has, such as deepseek-v3")
    # The file's tokens, in the model's shape: throughput is that of ranks with as many tokens as the file's have.
    tokens = max(1, round(float(loads.sum(axis=(1, 2)).mean()) / ranks / shape.experts.top_k))
    hosts, rack = Hosts.dealt(experts, ranks, slots), pace(name, on, ranks, tokens, experts)
    history = 1 if len(loads) > 1 else 0
    contenders = _contenders(least, len(loads) - history, ranks)
    steps = {}
    for done, (balancer, choices) in enumerate(contenders.items()):
        progress(done, len(contenders))
        found = [ultraep.follow(choice, loads, hosts, history, rack) for choice in choices]
        steps[balancer] = min(found, key=lambda one: float(one["after"].to_numpy().mean()))
    table = [{"balancer": balancer} | _row(found, ranks * tokens) for balancer, found in steps.items()]
    table.sort(key=lambda row: row["busiest_mean"])
    facts = {"microbatches": len(loads), "judged": len(loads) - history, "ranks": ranks, "experts": experts}
    before = {"busiest_mean": float(np.mean([routing.uneven(load, ranks) for load in loads[history:]]))}
    return {
        "routing": facts | before, "rack": {"device": on, "model": shape.name, "tokens": tokens}, "table": table,
        "units": UNITS, "why": why(table, {key: found["after"].to_list() for key, found in steps.items()}),
        "trust": ultraep.trust, "shown": list(table[0]),
    }  # fmt: skip


def _row(steps: pl.DataFrame, tokens: int) -> dict[str, Any]:
    """Means over the microbatches."""
    mean = {name: float(steps[name].to_numpy().mean()) for name in ("after", "copies", *ultraep.PHASES)}
    paces = {f"{phase}_tokens_per_second": tokens / mean[phase] for phase in ultraep.PHASES}
    return {"busiest_mean": mean["after"], "busiest_max": steps["after"].max(), "copies_mean": mean["copies"], **paces}


def _contenders(least: int, judged: int, ranks: int) -> dict[str, list[ExpertBalancer]]:
    """Each balancer with the settings that it may be at its best with; EPLB also by nodes of eight."""
    windows = [window for window in ultraep.WINDOWS if window <= max(judged, 1)]
    nodes = [1, ranks // 8] if ranks % 8 == 0 and ranks > 8 else [1]
    return {
        "ultraep": [ultraep.UltraEP(least)],
        "none": [Nobody()],
        "eplb": [Eplb(window, nodes=n) for window in windows for n in nodes],
        "eplb+": [EplbPlus()],
        "lplb": [Lplb(window) for window in windows],
    }


def why(table: list[dict[str, Any]], after: dict[str, list[float]]) -> str:
    """Who is most even, by how much, and whether that is more than nothing."""
    first, second, *_ = table
    one, other = first["balancer"], second["balancer"]
    ends = intervals.ratio(after[other], after[one])
    values = f"{first['busiest_mean']:.3f} and {second['busiest_mean']:.3f} times the mean"
    if ends.value < 1 + TIE or (ends.n > 1 and ends.low < 1.0):
        said = f"{one} and {other} tie: their busiest ranks have {values} on average, too close to tell apart."
    else:
        sure = f" ({ends.n} microbatches, 95 % interval {ends.low:.2f} … {ends.high:.2f})" if ends.n > 1 else ""
        said = (
            f"{one} is most even: the busiest ranks of {one} and {other} have {values}, {other}'s is {ends.value:.2f} "
            f"times as busy{sure}."
        )
    return f"{said} {_fastest(table)}"


def _fastest(table: list[dict[str, Any]]) -> str:
    """Who would train fastest by the model, where the weights of copies are on the way, too."""
    pace_of = {row["balancer"]: row["training_tokens_per_second"] for row in table}
    best = max(pace_of, key=lambda name: pace_of[name])
    said = f"By the model {best} would train fastest, {pace_of[best] / pace_of['none']:.2f} times as fast as none"
    if best == "ultraep":
        return f"{said}."
    share = pace_of["ultraep"] / pace_of[best]
    return f"{said}; ultraep at {share:.2f} of that: plans and weights of copies cost more than they save here."
