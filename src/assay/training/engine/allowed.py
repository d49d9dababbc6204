"""Which plans can be: what a layout has to divide, and what the frameworks that would run it refuse.

>>> from assay.sim.models import model
>>> from assay.training.engine.cluster import read
>>> check(model("llama-3-8b"), read("8xh100"), Plan(Layout(tp=2, dp=4)), Job(64, 4096))
16
"""

from __future__ import annotations

from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.training.engine.cluster import Cluster
from assay.training.interface import Job, Layout, Plan

RECOMPUTE = ("none", "selective", "full")  # as Megatron's --recompute-granularity
MOST_PASSES = 2**17  # of microbatches through parts of a model, in a step that is simulated


def check(shape: Model, cluster: Cluster, plan: Plan, job: Job) -> int:
    """How many microbatches a step has.

    Raises:
        BadInput: a layout that cannot be; the message names the field and what would be right.
    """
    layout = plan.layout
    for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "etp", "ecp"):
        if getattr(layout, name) < 1:
            raise BadInput(f"{name} is {getattr(layout, name)}, should be at least 1")
    if plan.mbs < 1:
        raise BadInput(f"mbs is {plan.mbs}, should be at least 1")
    if layout.ranks != cluster.ranks:
        raise BadInput(f"{layout.name} is {layout.ranks} ranks, the cluster has {cluster.ranks}")
    if shape.heads % layout.tp:
        raise BadInput(f"tp{layout.tp} does not divide the {shape.heads} heads of {shape.name}")
    _check_slices(shape, layout)
    if layout.vpp > layout.pp == 1:
        raise BadInput(f"vpp{layout.vpp} needs pp2 or more; one stage has nothing to wait for")
    if layout.stages > shape.layers:
        raise BadInput(f"pp{layout.pp} x vpp{layout.vpp}: more stages than the {shape.layers} layers of {shape.name}")
    if job.seq % (2 * layout.cp if layout.cp > 1 else 1):
        raise BadInput(f"cp{layout.cp} needs sequences of a multiple of {2 * layout.cp} tokens, not {job.seq}")
    if (own := job.seq // layout.cp) % layout.tp:
        raise BadInput(f"tp{layout.tp} cuts sequences, too: {own} tokens of a rank are no multiple of {layout.tp}")
    _check_experts(shape, layout)
    if plan.recompute not in RECOMPUTE or plan.zero not in (0, 1, 2, 3):
        raise BadInput(
            f"recompute {plan.recompute!r}, zero {plan.zero}: recompute is {'|'.join(RECOMPUTE)}, zero 0 to 3"
        )
    if plan.zero >= 2 and plan.schedule == "dualpipe":
        raise BadInput(
            f"dualpipe keeps two copies of the weights and sums gradients up on both: zero 0 or 1, not {plan.zero}"
        )
    if job.batch % (layout.dp * plan.mbs):
        raise BadInput(f"a batch of {job.batch} sequences is not a multiple of dp{layout.dp} x mbs{plan.mbs}")
    m = job.batch // (layout.dp * plan.mbs)
    if m * layout.stages > MOST_PASSES:
        raise BadInput(
            f"{m:,} microbatches through {layout.stages} parts of the model: at most {MOST_PASSES:,} passes of a step "
            "are simulated; take more copies (dp), a larger mbs or a smaller batch"
        )
    return m


def _check_slices(shape: Model, layout: Layout) -> None:
    """What Megatron-LM, NeMo and torchtitan refuse to cut."""
    tp, shared = layout.tp, shape.experts.shared_ffn if shape.experts else 0
    if shape.attention_layers and shape.latent is None and shape.kv_heads % tp:
        raise BadInput(
            f"tp{tp} cuts across the {shape.kv_heads} key-value heads of {shape.name}, which megatron-core 0.14, NeMo "
            f"and torchtitan refuse; take a tp that divides {shape.kv_heads}"
        )
    for what, width in (("", shape.ffn if shape.dense_layers else 0), (" of its shared expert", shared)):
        if width % tp:
            raise BadInput(f"tp{tp} does not divide the feed-forward width {width}{what} of {shape.name}")


def _check_experts(shape: Model, layout: Layout) -> None:
    """The experts' mesh has to cover a stage, and slices of an expert have to be alike."""
    count, stage = shape.experts.count if shape.experts else 1, layout.tp * layout.cp * layout.dp
    if layout.ep > 1 and (count % layout.ep or stage % layout.ep):
        raise BadInput(f"ep{layout.ep} should divide {count} experts and the {stage} ranks of a stage")
    if shape.experts is None and layout.etp * layout.ecp > 1:
        raise BadInput(f"etp{layout.etp}, ecp{layout.ecp}: {shape.name} has no experts")
    if shape.experts and (shape.experts.ffn % layout.etp or stage % (layout.etp * layout.ep)):
        raise BadInput(
            f"etp{layout.etp} should divide the experts' width {shape.experts.ffn} and, with ep{layout.ep}, the "
            f"{stage} ranks of a stage"
        )
    if layout.ecp > 1 and ((layout.tp * layout.cp) % (layout.etp * layout.ecp) or layout.edp % layout.ecp):
        raise BadInput(f"ecp{layout.ecp} with etp{layout.etp} should divide tp x cp, and the {layout.edp} copies")
