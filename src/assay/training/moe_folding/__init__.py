"""MoE Parallel Folding: attention and experts on two meshes over the same ranks, which share only the pipeline.

A mesh that suits attention (tensor and context parallelism near, data parallelism far) makes experts talk over slow
links: without folding, only data-parallel ranks can be dealt different experts, and these are the ranks that are
farthest apart. Folded, a stage's ranks are numbered twice. The experts' all-to-all then runs among neighbours, across
ranks that attention uses for slices of one sequence or of one layer, and gradients of experts are reduced over other
groups than those of attention. Layouts, groups and costs are the engine's (:class:`assay.training.interface.Layout`);
here are the dispatcher that connects the meshes, in torch on real processes, and the comparison with those who do not
fold: Megatron without it, TP+EP+DP, FSDP, FSDP with expert parallelism, each at the best plan of one search.

Model FLOP utilisation is predicted. One share of the peak is calibrated on a dense model that is not judged (GPT-3 on
96 H100 with 1,152 sequences: 47 % by Megatron-Core's own account; 2,048 tokens and tp4 pp8 are assumed); what is not
known of links and memory is drawn for every seed and the calibration repeated. The sizes of the runs (Mixtral 8x22B on
128 GPUs, Qwen2-57B-A14B on 64, 256 sequences of 4,096 tokens; 1,024 sequences on 128 to 1,024 GPUs; as many
tokens in sequences of 16 K to 128 K) are the customary ones, since the full text was not at hand
(inferred). Experts are evenly loaded.

Liu et al., NVIDIA, 2025, arXiv:2504.14960.

>>> from assay.training.interface import Layout
>>> near, far = Layout(cp=4, dp=8, ep=8), Layout(cp=4, dp=8, ep=8, ecp=4)
>>> near.experts.groups("ep")[0].tolist(), far.experts.groups("ep")[0].tolist()
([0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 8, 12, 16, 20, 24, 28])
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import Measure, best, change, counted, mean, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.models import Experts, Model, model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster, Efficiency, read
from assay.training.engine.step import Outcome, simulate, simulate_many
from assay.training.interface import Job, Layout, Plan
from assay.training.moe_folding import layer_job
from assay.training.moe_folding.layer_job import Case
from assay.training.moe_folding.methods import METHODS, best_of_each, fitting, possible

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Experts are many and small, or sequences are cut (CP, TP): then the all-to-all fits a node only if folded."
avoid_when = "Experts fit a rank, or tensor and context parallelism are not needed: there is nothing to fold."
trust = (
    "Utilisation is a model: one share of an H100's peak is calibrated on a published dense run, links are data sheets "
    "times drawn shares, experts are evenly loaded. That the dispatcher computes the same is measured."
)
own_input = "assay compare moe-folding --model examples/moe.json --cluster examples/cluster.toml --batch 16 --seq 32768"
references = (
    "Megatron-Core: groups of ranks (RankGenerator), the dispatcher's steps, and GPT-3's utilisation.",
    "TP+EP+DP: Singh et al., DeepSpeed-TED, ICS 2023.",
    "FSDP: Zhao et al., VLDB 2023.",
)

MIXTRAL, QWEN, FINE = "mixtral-8x22b", "qwen2-57b-a14b", "mixtral-8x22b-g8t8"
ATTENTION = 0.66  # a fused attention attains so much of what a large product does (assumed, as in the engine)
DENSE = Model("gpt3-175b", 12_288, 51_200, True, 96, 0, 0, 96, 0, 96, 96, 128, 4 * 12_288, gated_mlp=False)
PUBLISHED = Plan(Layout(tp=4, pp=8, dp=3, vpp=4), "interleaved"), Job(1152, 2048), 96, 0.47
SHORT = 24  # plans of each method that are asked for again with every seed's efficiencies
CALIBRATED = "the share of its peak that a product attains is set so that a published dense run has its utilisation"
MESHES = (
    Layout(tp=2, dp=2, ep=4), Layout(tp=2, dp=2, ep=2, etp=2), Layout(tp=2, cp=2, ep=2, etp=2),
    Layout(cp=2, dp=2, ep=2, ecp=2), Layout(tp=2, dp=2, etp=4), Layout(dp=4, ep=2),
)  # fmt: skip


def named(name: str) -> Model:
    """A model by its name; fine-grained Mixtral has each expert cut into eight and eight of them used.

    >>> round(named("mixtral-8x22b-g8t8").params / 1e9), round(named("mixtral-8x22b-g8t8").active_params / 1e9)
    (141, 22)
    """
    if name != FINE:
        return model(name)
    return replace(model(MIXTRAL), name=FINE, experts=Experts(count=64, top_k=8, ffn=2048))


@lru_cache(maxsize=64)
def calibrated(seed: int | None) -> Efficiency:
    """Guesses of what nobody published (without a seed the middle), and the share of peak that meets the dense run."""
    guess = Efficiency(links=0.75, memory=0.825)
    if seed is not None:
        random = stream(seed, "moe-folding", "machine")
        guess = Efficiency(links=float(random.uniform(0.6, 0.9)), memory=float(random.uniform(0.7, 0.95)))
    plan, job, gpus, published = PUBLISHED
    low, high = 0.1, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        at = replace(guess, matrix=middle, attention=ATTENTION * middle)
        slow = simulate(DENSE, h100s(gpus, at), plan, job).mfu < published
        low, high = (middle, high) if slow else (low, middle)
    return replace(guess, matrix=high, attention=ATTENTION * high)


def h100s(gpus: int, at: Efficiency) -> Cluster:
    """Nodes of eight H100 with a port of 400 Gb/s each."""
    return replace(read(f"{gpus}xh100:ib400"), efficiency=at)


@lru_cache(maxsize=64)
def shortlist(name: str, gpus: int, batch: int, seq: int, any_etp: bool) -> tuple[Plan, ...]:
    """The best plans of each method at the middle of all guesses; the same number for each."""
    shape, cluster, job = named(name), h100s(gpus, calibrated(None)), Job(batch, seq)
    micro = 2 if seq <= 4096 else 1
    found = fitting(shape, cluster, job, possible(shape, cluster, job, micro, any_etp))
    chosen = [[one.plan for one in found if may(one.plan)][:SHORT] for may in METHODS.values()]
    return tuple(dict.fromkeys(plan for some in chosen for plan in some))


def contest(name: str, gpus: int, batch: int, seq: int, any_etp: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Every method's best plan; what does not fit at all has no utilisation."""
    shape, cluster, job = named(name), h100s(gpus, calibrated(seed)), Job(batch, seq)
    asked = simulate_many(shape, cluster, shortlist(name, gpus, batch, seq, any_etp), job)
    found = best_of_each(sorted((one for one in asked if one.fits), key=lambda one: one.step))
    return {method: _row(one) for method, one in found.items()}


def _row(one: Outcome | None) -> dict[str, Any]:
    if one is None:
        return dict.fromkeys(("mfu", "exchange", "bubble", "data", "folds", "ep")) | {"plan": "none fits"}
    layout = one.plan.layout
    return {"mfu": one.mfu, "exchange": one.exchange, "bubble": one.bubble, "data": one.data,
            "folds": float(layout.folded), "ep": layout.ep, "plan": one.plan.name}  # fmt: skip


def blocks(tokens: int, meshes: int, seed: int) -> dict[str, dict[str, float]]:
    """Torch blocks on four processes and two meshes, dropless, with drops by slice and by sequence."""
    cases = [Case(layout, *drop) for layout in MESHES[:meshes] for drop in ((None, False), (1.0, False), (1.0, True))]
    ways = ("none", "by slice", "by sequence")
    found = layer_job.steps(cases, tokens, seed)
    return {
        f"{case.layout.name}, drops {ways[at % 3]}": layer_job.apart(case, ranks, tokens, seed)
        for at, (case, ranks) in enumerate(zip(cases, found, strict=True))
    }


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """All methods on the paper's two models, on a fine-grained one, on more GPUs and longer sequences; real blocks."""
    here = replace(lab, workers=0)  # the shortlists are kept within a process; and workers may not start ranks
    every = lab.pick(quick=False, full=True)

    def cases(*some: tuple[str, int, int, int]) -> list[dict[str, Any]]:
        return [dict(zip(("name", "gpus", "batch", "seq"), one, strict=True)) | {"any_etp": every} for one in some]

    models = cases((MIXTRAL, 128, 256, 4096), (QWEN, 64, 256, 4096))
    fine = cases(*((FINE, 128, 2**21 // seq, seq) for seq in lab.pick(quick=(32_768,), full=(4096, 16_384, 32_768))))
    strong = cases(*((MIXTRAL, gpus, 1024, 4096) for gpus in lab.pick(quick=(128, 1024), full=(128, 256, 512, 1024))))
    weak = cases(*((MIXTRAL, gpus, 2 * gpus, 4096) for gpus in lab.pick(quick=(1024,), full=(256, 512, 1024))))
    longer = lab.pick(quick=(16_384, 131_072), full=(16_384, 32_768, 65_536, 131_072))
    tokens = cases(*((MIXTRAL, 128, 2**22 // seq, seq) for seq in longer))
    real = [{"tokens": lab.pick(quick=16, full=128), "meshes": lab.pick(quick=4, full=len(MESHES))}]
    return {
        "models": here.run(contest, models, per="method"),
        "fine": here.run(contest, fine, per="method"),
        "gpus": here.run(contest, [*strong, *weak], per="method"),
        "tokens": here.run(contest, tokens, per="method"),
        "blocks": replace(lab.with_seeds(quick=1, full=3), workers=0).run(blocks, real, per="mesh"),
    }


def _mfu(name: str, **where: Any) -> Measure:
    return mean("mfu", method="folded", name=name, **where)


def _grown(experiment: str, column: str, small: int, large: int, **where: Any) -> Measure:
    return change("mfu", new={column: large}, old={column: small}, experiment=experiment, method="folded", **where)


def _weak(table: pl.DataFrame) -> Estimate:
    """Folded on 1,024 GPUs with 2,048 sequences, over 128 GPUs with 256."""
    return change("mfu", new={"gpus": 1024, "batch": 2048}, old={"gpus": 128, "batch": 256, "experiment": "models"},
                  method="folded", name=MIXTRAL)(table)  # fmt: skip


def _apart(table: pl.DataFrame) -> Estimate:
    """The largest difference in any block: arithmetic, not a sample."""
    found = rows(table, {"experiment": "blocks"})
    return counted(max(max(found[name]) for name in ("out", "loss", "gradients")), len(found))


claims = [
    Claim("mixtral", best({
        "256 sequences": _mfu(MIXTRAL, experiment="models"),
        "1,024 sequences": _mfu(MIXTRAL, experiment="gpus", gpus=128, batch=1024),
    }), construction=CALIBRATED),
    Claim("qwen2", _mfu(QWEN, experiment="models"), construction=CALIBRATED),
    Claim("gpus", _grown("gpus", "gpus", 128, 1024, batch=1024)),
    Claim("tokens", _grown("tokens", "seq", 16_384, 131_072)),
    Claim(
        "fine-grained", ratio("mfu", of={"method": "folded"}, to={"method": "unfolded"}, experiment="fine", seq=32_768),
        kind=Kind.AT_LEAST, value=1.05,
        unit="ratio",
        asks="With 64 small experts and sequences of 32 K tokens, cut by context parallelism, folding is at least 1.05 "
        "times as fast as the best that does not fold.",
    ),
    Claim(
        "weak", _weak, kind=Kind.UNCHANGED, unit="change",
        asks="Utilisation of Mixtral 8x22B is the same on 128 and on 1,024 GPUs with two sequences a GPU.",
    ),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-5, unit="value", evidence=Evidence.REAL,
        asks="On four real processes outputs, losses and reduced gradients of every mesh, dropless and dropped, are "
        "those of the block in one piece to 0.01 thousandths.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Utilisation of every method on every model."""
    import altair as alt

    fine = (pl.col("experiment") == "fine") & (pl.col("seq") == 32_768)
    both = table.filter((pl.col("experiment") == "models") | fine)
    label = pl.format("{}, {} K tokens", pl.col("name"), (pl.col("seq") / 1024).cast(pl.Int64))
    means = both.with_columns(case=label).group_by("case", "method", maintain_order=True).agg(pl.col("mfu").mean())
    chart: alt.Chart = (
        alt.Chart(means.drop_nulls())
        .mark_bar()
        .encode(
            x=alt.X("mfu:Q", title="model FLOP utilisation, predicted"),
            y=alt.Y("method:N", title=None, sort=list(METHODS)),
            color=alt.Color("method:N", legend=None),
            row=alt.Row("case:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
        )
        .properties(width=340, height=90)
    )
    return chart
