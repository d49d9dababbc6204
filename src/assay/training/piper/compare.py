"""`assay compare piper`: meshes of the user's mixture of experts on the user's cluster, and how its all-to-alls go."""

from __future__ import annotations

from typing import Any

import click

from assay.record.errors import BadInput
from assay.sim.models import Model, model
from assay.training.engine import cluster as clusters
from assay.training.engine.cluster import Cluster
from assay.training.engine.planning import TIE, parts
from assay.training.engine.step import Outcome
from assay.training.interface import Job
from assay.training.piper import trust
from assay.training.piper.machine import Machine
from assay.training.piper.network import MOST, Network
from assay.training.piper.resources import fitting, possible, traffic

SHOWN = ["method", "layout", "schedule", "mbs", "recompute", "step", "mfu", "memory", "bubble", "exchange",
         "all_to_all"]  # fmt: skip


@click.command(epilog="Example:  assay compare piper --model examples/moe.json --cluster 64xmi250x --cards 4 --group 8")
@click.option("--model", "name", required=True, help="A model with experts, or its config.json.")
@click.option("--cluster", "machines", required=True, help="COUNTxDEVICE[:ibGb/s], or a TOML file.")
@click.option("--batch", type=click.IntRange(1), default=256, show_default=True, help="Sequences of a step.")
@click.option("--seq", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of a sequence.")
@click.option("--cards", type=click.IntRange(1), help="Network cards of a node.  [one a device]")
@click.option("--group", type=click.IntRange(1), help="Nodes of a dragonfly group.  [all: no cables between groups]")
@click.option(
    "--taper", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True,
    help="What leaves a group over what its nodes can inject.",
)  # fmt: skip
@click.option("--micro", type=click.IntRange(1), default=2, show_default=True, help="Sequences of a microbatch, most.")
def command(
    name: str, machines: str, batch: int, seq: int, cards: int | None, group: int | None, taper: float, micro: int
) -> dict[str, Any]:
    """Stages and expert parallelism, flat expert parallelism and TED on your own model, all-to-alls flat or by HALO."""
    cluster = clusters.read(machines)
    return compare(name, cluster, Job(batch, seq), machine_of(cluster, cards, group, taper), micro)


def machine_of(cluster: Cluster, cards: int | None = None, group: int | None = None, taper: float = 0.5) -> Machine:
    """The cluster's links as a machine whose traffic can be played.

    >>> machine_of(clusters.read("16xh100:ib400"), cards=4).card / 1e9  # two GPUs share one, at 0.8 of 100 GB/s
    80.0

    Raises:
        BadInput: cards that the devices of a node cannot share equally.
    """
    each = cluster.per_node if cards is None else cards
    if cluster.per_node % each:
        raise BadInput(f"--cards {each}: should divide the {cluster.per_node} devices of a node")
    share = cluster.efficiency.links
    return Machine(
        1, cluster.per_node, each, group or cluster.nodes, share * cluster.inside.bandwidth,
        share * cluster.outside.bandwidth * cluster.per_node / each,
        local=8 * share * cluster.outside.bandwidth * cluster.per_node / each, taper=taper,
        start_inside=cluster.inside.latency, start_outside=cluster.outside.latency,
    )  # fmt: skip


def compare(name: str, cluster: Cluster, job: Job, machine: Machine, micro: int = 2) -> dict[str, Any]:
    """Every method's best plan, the fastest first, and how its all-to-alls go.

    >>> eight = clusters.read("8xh200")
    >>> compare("qwen3-30b-a3b", eight, Job(16, 4096), machine_of(eight), micro=1)["table"][0]["all_to_all"]
    'within a node'

    Raises:
        BadInput: a model without experts, or nothing fits.
    """
    shape = model(name)
    if shape.experts is None:
        raise BadInput(f"--model {shape.name} has no experts; choose one that has, such as qwen3-30b-a3b")
    networks = {halo: Network.of(cluster, halo, machine) for halo in (True, False)}
    plans = possible(shape, cluster, job, micro=micro)
    found = {key: fits[0] for key, fits in fitting(shape, cluster, job, plans, networks).items() if fits}
    if not found:
        raise BadInput(
            f"no plan of {shape.name} fits {cluster.ranks} x {cluster.device.name} with {job.batch} sequences; use "
            "more ranks, or a batch that is a multiple of them"
        )
    ranked = sorted(found.items(), key=lambda pair: pair[1].step)
    table = [{"method": key, **one.row(), "all_to_all": _way(shape, one, networks, key)} for key, one in ranked]
    return {
        "job": {"model": shape.name, "cluster": cluster.name, "batch": job.batch, "seq": job.seq, "plans": len(plans)},
        "machine": {"nodes": cluster.nodes, "cards": machine.cards, "group": machine.group, "played": MOST},
        "table": table, "why": why(found), "trust": trust, "units": {"step": "s", "memory": "bytes a rank"},
        "shown": SHOWN,
    }  # fmt: skip


def _way(shape: Model, one: Outcome, networks: dict[bool, Network], method: str) -> str:
    """Flat or HALO, and by how much that is quicker."""
    layout = one.plan.layout
    stride = layout.etp
    if layout.ep == 1:
        return "none"
    if layout.ep * stride <= one.cluster.per_node:
        return "within a node"
    halo = method == "piper" or method.endswith("halo")
    nbytes = traffic(shape, one.plan, one.job)
    chosen = networks[halo].choice(range(0, layout.ep * stride, stride), nbytes)
    if chosen.algorithm == "flat":
        return f"flat over {layout.ep} ranks"
    return f"{chosen.algorithm} over {layout.ep} ranks, {chosen.flat / chosen.seconds:.2f} times as quick as flat"


def why(found: dict[str, Outcome]) -> str:
    """Whether stages pay against expert parallelism alone, and from which seconds the lead comes."""
    ours, theirs = found.get("piper"), found.get("x-moe")
    if ours is None:
        return "No PP x EP mesh fits; see the table for what does."
    if theirs is None:
        return f"Without stages nothing fits; {ours.plan.name} does."
    gain = theirs.step / ours.step - 1
    if gain < TIE:
        return f"Stages bring {100 * gain:.1f} %, less than the model knows: {theirs.plan.name} will do."
    saved = {name: seconds - parts(ours)[name] for name, seconds in parts(theirs).items()}
    most = max(saved, key=lambda key: saved[key])
    return (
        f"{ours.plan.name} takes {ours.step:.3g} s a step, the best without stages ({theirs.plan.name}) "
        f"{100 * gain:.1f} % longer: {saved[most]:.2g} s more of {most}."
    )
