"""`assay compare moe-folding`: who lays the user's mixture of experts out best on the user's cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim.models import model
from assay.training.engine import cluster as clusters
from assay.training.engine.planning import TIE, parts, trust
from assay.training.engine.step import Outcome
from assay.training.interface import Job
from assay.training.moe_folding.methods import best_of_each, fitting, possible

SHOWN = ["method", "layout", "schedule", "mbs", "recompute", "zero", "step", "mfu", "memory", "bubble", "exchange",
         "experts"]  # fmt: skip


@click.command(epilog="Example:  assay compare moe-folding --model qwen2-57b-a14b --cluster 64xh100:ib400 --batch 256")
@click.option("--model", "name", required=True, help="A model with experts, or its config.json.")
@click.option("--cluster", "machines", required=True, help="COUNTxDEVICE[:ibGb/s], or a TOML file.")
@click.option("--batch", type=click.IntRange(1), default=256, show_default=True, help="Sequences of a step.")
@click.option("--seq", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of a sequence.")
@click.option("--micro", type=click.IntRange(1), default=4, show_default=True, help="Sequences of a microbatch, most.")
def command(name: str, machines: str, batch: int, seq: int, micro: int) -> dict[str, Any]:
    """Attention and experts on one mesh or on two, and FSDP: everyone's best layout of your own model and cluster."""
    return compare(name, machines, Job(batch, seq), micro, click.get_current_context().obj)


def compare(
    name: str, machines: str, job: Job, micro: int = 4, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Every method's best plan, the fastest first, the ranks its experts are spread over, and why.

    >>> compare("qwen3-30b-a3b", "8xh200", Job(16, 4096), micro=1)["table"][0]["method"]
    'folded'

    Raises:
        BadInput: a model without experts, or nothing fits.
    """
    shape, cluster = model(name), clusters.read(machines)
    if shape.experts is None:
        raise BadInput(f"--model {shape.name} has no experts to fold; choose one that has, such as qwen2-57b-a14b")
    plans = possible(shape, cluster, job, micro)
    found = {key: one for key, one in best_of_each(fitting(shape, cluster, job, plans, progress)).items() if one}
    if not found:
        raise BadInput(
            f"no plan of {shape.name} fits {cluster.ranks} x {cluster.device.name} with {job.batch} sequences; use "
            "more ranks, or a batch that is a multiple of them"
        )
    ranked = sorted(found.items(), key=lambda pair: pair[1].step)
    return {
        "job": {"model": shape.name, "cluster": cluster.name, "batch": job.batch, "seq": job.seq, "plans": len(plans)},
        "table": [{"method": key, **one.row(), "experts": _where(one)} for key, one in ranked],
        "none_fits": [key for key in ("folded", "unfolded", "tp+ep+dp", "fsdp+ep", "fsdp") if key not in found],
        "why": why(found), "trust": trust(cluster), "units": {"step": "s", "memory": "bytes a rank"}, "shown": SHOWN,
    }  # fmt: skip


def _where(one: Outcome) -> str:
    """Over how many ranks and nodes an all-to-all goes."""
    group = one.plan.layout.experts.groups("ep")[0]
    if len(group) == 1:
        return "all on every rank"
    nodes = len({rank // one.cluster.per_node for rank in group.tolist()})
    return f"on {len(group)} ranks, {nodes} node{'s' if nodes > 1 else ''}"


def why(found: dict[str, Outcome]) -> str:
    """Whether folding pays, and from which seconds its lead comes."""
    folded, plain = found.get("folded"), found.get("unfolded")
    if folded is None:
        return "Only with all weights sharded (FSDP) does a plan fit; nothing is folded."
    if plain is None:
        return f"Without folding nothing fits; {folded.plan.name} does ({_where(folded)})."
    slower = plain.step / folded.step - 1
    if slower < TIE:
        said = f"Folding brings {100 * slower:.1f} %, less than the model knows: {plain.plan.name} will do"
    else:
        saved = {name: seconds - parts(folded)[name] for name, seconds in parts(plain).items()}
        most = max(saved, key=lambda key: saved[key])
        said = (
            f"Folding saves {100 * (1 - folded.step / plain.step):.1f} % of a step, {saved[most]:.2g} s of {most}: "
            f"experts {_where(folded)} in place of {_where(plain)}"
        )
    rest = {key: one for key, one in found.items() if key not in ("folded", "unfolded")}
    key = min(rest, key=lambda name: rest[name].step) if rest else None
    if key is None:
        return f"{said}."
    return f"{said}; {key} takes {rest[key].step / folded.step:.2f} times as long as folded."
