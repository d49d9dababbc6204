"""The machine of the paper as the room's engine has it: weak scaling of a dense transformer over 20,480 CPU nodes.

Nothing of it was measured here. Of the machine it is known that a node does about what one A100 does; what links and
kernels attain is drawn for every seed, the transformer's size is ours, and nothing is fitted to the published rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from assay.sim.collectives import Link
from assay.sim.hardware import device
from assay.sim.models import Model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster, Efficiency
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

NODES = (256, 1024, 4096, 20_480)
GROUP = 64  # nodes that share a switch: reduced there first
SEQ, PER_NODE = 1024, 8  # latents and tokens of a sample; samples of a node and step
SHAPE = Model("dense-2b", 2048, 1024, True, 36, 0, 0, 36, 0, 16, 16, 128, 8192, gated_mlp=False)


def machine(nodes: int, seed: int) -> Cluster:
    """So many nodes; what nobody published is drawn."""
    draw = stream(seed, "d2ar", "machine")
    efficiency = Efficiency(
        matrix=float(draw.uniform(0.35, 0.6)), attention=float(draw.uniform(0.2, 0.4)),
        memory=float(draw.uniform(0.6, 0.85)), links=float(draw.uniform(0.6, 0.85)),
    )  # fmt: skip
    node = replace(device("a100"), mem_bw=float(draw.uniform(1.0e12, 3.0e12)), mem_bytes=128e9, launch=2e-5)
    bandwidth = float(draw.choice([25e9, 50e9, 100e9]))
    return Cluster(node, nodes, GROUP, Link(4e-6, bandwidth), Link(8e-6, bandwidth / 2), efficiency, f"cpu-{nodes}")


def weak(nodes: int, seed: int) -> dict[str, Any]:
    """Flop/s of the whole machine, over a step and while it computes, and the efficiency against few nodes."""
    rates = []
    for count in (NODES[0], nodes):
        job = Job(PER_NODE * count, SEQ)
        outcome = simulate(SHAPE, machine(count, seed), Plan(Layout(dp=count), mbs=PER_NODE, zero=1), job)
        done = outcome.mfu * count * device("a100").flops("bf16")
        rates.append((done, done / outcome.compute, outcome.step))
    (first, _, _), (sustained, peak, step) = rates
    return {"flops": sustained, "peak": peak, "efficiency": sustained / nodes / (first / NODES[0]), "step": step}
