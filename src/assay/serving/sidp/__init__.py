"""SiDP: keep each layer's weights on one GPU of the data-parallel group, and pull them when they are needed.

Replicas of one model hold the same weights many times over, in memory that could hold KV cache. In offline work the
batch is bounded by that cache, and throughput by the batch. SiDP lets layer l live on GPU l mod G alone. While a GPU
computes one layer, the next ones arrive over NVLink into a small ring of buffers; a step costs no more as long as
computing a layer takes longer than fetching one. That needs many tokens per step. When the batch is small, at the end
of the job, the activations travel instead: each layer's owner computes it for the whole group's tokens at once. Each
iteration takes the cheaper way, with some hysteresis.

The study runs batches to completion on machines of eight GPUs, beside replicated data parallelism, tensor and pipeline
parallelism, and weights offloaded to the host. `dp` and `sidp` have the same replicas, with the smallest cut that fits;
the others have their best layout. Pipelines and wider cuts free as much memory as SiDP and stream nothing, so the claim
on throughput is answered best cut against best cut, not against replicas that starve for want of a better one. A second
part really moves weights and activations between processes, and compares every output with the unsplit model's, bit by
bit.

"SiDP: Memory-Efficient Data Parallelism for Offline LLM Inference", arXiv:2605.28095.

>>> pool = Pool("h20", "qwen3-32b", group=8)
>>> round(pool.freed / 1e9, 1), round(pool.kv_tokens / Pool("h20", "qwen3-32b").kv_tokens, 1)
(52.7, 3.2)
>>> pool.hidden_from  # tokens in a step from which streaming costs nothing
259
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures
from assay.record.errors import BadInput
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.serving.sidp import offline, weight_pool
from assay.serving.sidp.offline import Done, Pace
from assay.serving.sidp.pool_pace import MAX_SEQS, MAX_TOKENS, Pool, offloaded, pipelined, replicated, shared
from assay.sim.random import stream
from assay.sim.trust import sentence

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # the layer formula on data-sheet GPUs; the equality of outputs is real
use_when = (
    "Large offline batches of a model that nearly fills each replica's memory, where cutting it wider (tensor or "
    "pipeline parallelism) is not possible: the replicas' batches grow with the memory that sharing frees."
)
avoid_when = (
    "Someone waits for the tokens; KV cache is plentiful (a small model, short outputs); or replicas may be cut "
    "differently: a wider tensor-parallel cut or a pipeline frees as much memory and streams nothing."
)
trust = sentence("roofline")
own_input = "assay compare sidp --job examples/azure.csv --copies 10 --gpus 4xh20:qwen3-32b"
references = (
    "Continuous batching: Yu et al., Orca, OSDI 2022; paged KV: Kwon et al., SOSP 2023.",
    "Streaming weights through a small buffer: Aminabadi et al., DeepSpeed Inference (ZeRO-Inference), SC 2022.",
)

OVERLAP = Path(__file__).with_name("overlap.csv")  # by benchmarks/h200_overlap.py
GPUS = 8  # of the machine
DEVICES = ("h20", "h200", "b200")
MODELS = ("qwen3-32b", "qwen2.5-72b", "llama-3.1-70b")
WORKLOADS = {"short": (512, 128), "long": (512, 2048), "reasoning": (1024, 8192)}  # mean prompt and output tokens
CUTS = (1, 2, 4, 8)  # tensor parallelism of a replica
OFFLOADED = (0.05, 0.2, 0.6)  # share of the layers in host memory
SAMPLED = 2  # replicas of a job that are run; they are dealt their requests in turn, so they are alike


# ------------------------------------------------------------------------------------------- the study


@dataclass(frozen=True)
class Option:
    """One way to run the machine: equal replicas, and what to call it."""

    layout: str
    pace: Pace
    pool: Pool
    gpus: int = GPUS

    @property
    def replicas(self) -> int:
        """Replicas on the machine, or batches in its pipelines."""
        return self.gpus // self.pool.tp


def options(system: str, pool: Pool, gpus: int = GPUS) -> Iterator[Option]:
    """The layouts of a system whose replicas are cut as the pool says; one that leaves no room for KV is left out."""
    groups = [group for group in (2, 4, 8) if group * pool.tp <= gpus]
    found: dict[str, tuple[Pool, Pace]] = {}
    match system:
        case "replicas":
            found[""] = pool, replicated(pool)
        case "pipeline":
            found |= {f"-pp{stages}": (pool, pipelined(pool, stages)) for stages in groups}
        case "offload":
            found |= {f"-host{share:g}": (pool, offloaded(pool, share)) for share in OFFLOADED}
        case "pool":
            pools = (replace(pool, group=group) for group in groups)
            found |= {f"-g{each.group}": (each, shared(each)) for each in pools}
    for label, (used, pace) in found.items():
        if pace.kv_tokens > 0:
            yield Option(f"tp{pool.tp}{label}", pace, used, gpus)


def batch(workload: str, requests: int, seed: int) -> tuple[Any, Any]:
    """Prompt and output lengths of an offline job: log-normal around the workload's means.

    >>> prompt, output = batch("long", 1000, seed=0)
    >>> bool(400 < prompt.mean() < 620), bool(1700 < output.mean() < 2400)
    (True, True)
    """
    mean_prompt, mean_output = WORKLOADS[workload]
    random = stream(seed, "sidp", workload)

    def lengths(mean: float, sigma: float, least: int) -> Any:
        drawn = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, requests)
        return np.clip(np.rint(drawn), least, 8 * mean).astype(np.int64)

    return lengths(mean_prompt, 0.5, 16), lengths(mean_output, 0.5, 4)


def makespan(option: Option, prompt: Any, output: Any) -> tuple[float, list[Done]]:
    """The job dealt to the option's replicas in turn: seconds until the last of those sampled is done."""
    done = []
    for first in range(min(SAMPLED, option.replicas)):
        mine = slice(first, None, option.replicas)
        done.append(offline.run(option.pace, prompt[mine], output[mine], max_seqs=MAX_SEQS, max_tokens=MAX_TOKENS))
    return max(each.seconds for each in done), done


def tuned(
    system: str, on: str, name: str, prompt: Any, output: Any, cuts: tuple[int, ...], gpus: int = GPUS
) -> Option | None:
    """The system's fastest layout with one of these tensor-parallel cuts, by running a part of the job on each."""
    longest = int((prompt + output).max()) + 16

    def pilot(option: Option) -> float:
        mine = slice(0, None, 2 * option.replicas)
        job = prompt[mine], output[mine]
        return offline.run(option.pace, *job, max_seqs=MAX_SEQS, max_tokens=MAX_TOKENS, stride=256).seconds

    fitting = [
        option
        for tp in cuts
        if gpus % tp == 0
        for option in options(system, Pool(on, name, tp), gpus)
        if option.pace.kv_tokens >= longest
    ]
    return min(fitting, key=pilot) if fitting else None


def trial(on: str, name: str, workload: str, requests: int, seed: int) -> dict[str, dict[str, Any]]:
    """One job on one machine, by every system."""
    prompt, output = batch(workload, requests, seed)
    return {system: row(option, prompt, output) for system, option in contenders(on, name, prompt, output).items()}


def contenders(on: str, name: str, prompt: Any, output: Any, gpus: int = GPUS) -> dict[str, Option]:
    """Every system with the layout it would run a job in.

    Data parallelism proper replicates as often as it can, so its replicas have the smallest cut that holds the model
    and the longest request; SiDP shares the weights of exactly those replicas. Beside them, each at its best over all
    cuts: replicas, SiDP, pipelines, and weights in host memory.
    """
    job = on, name, prompt, output
    cuts = tuple(tp for tp in CUTS if gpus % tp == 0)
    fits = (option for tp in cuts if (option := tuned("replicas", *job, cuts=(tp,), gpus=gpus)))
    dp = next(fits, None)
    if dp is None:
        raise BadInput(f"{name} does not fit on {gpus} x {on}")
    sidp = tuned("pool", *job, cuts=(dp.pool.tp,), gpus=gpus)
    found = {
        "dp": dp,
        "sidp": sidp,
        "sidp-stream": sidp and replace(sidp, pace=shared(sidp.pool, sends=False)),
        "tp": tuned("replicas", *job, cuts=cuts[-1:], gpus=gpus),
        "dp-best-cut": tuned("replicas", *job, cuts=cuts, gpus=gpus),
        "sidp-best-cut": tuned("pool", *job, cuts=cuts, gpus=gpus),
        "pp": tuned("pipeline", *job, cuts=cuts, gpus=gpus),
        "offload": tuned("offload", *job, cuts=cuts, gpus=gpus),
    }
    return {system: option for system, option in found.items() if option}


def row(option: Option, prompt: Any, output: Any) -> dict[str, Any]:
    """What the job comes to in a layout."""
    seconds, done = makespan(option, prompt, output)
    plain = replace(option.pool, group=1).kv_tokens
    return {
        "layout": option.layout,
        "seconds": seconds,
        "tokens_per_second": float(output.sum()) / seconds,
        "batch_mean": float(np.mean([each.batch_mean for each in done])),
        "kv_bound_share": float(np.mean([each.full_share for each in done])),
        "sent_share": float(np.mean([each.sent_share for each in done])),
        "kv_tokens_per_gpu": option.pace.kv_tokens / option.pool.tp,
        "kv_ratio": option.pace.kv_tokens / plain if plain else None,
    }


def overlap_rows(path: Path = OVERLAP) -> pl.DataFrame:
    """Measured on one GPU: a layer's time while the next arrives, beside max(compute, fetch); empty if not stored."""
    if not path.exists():
        return pl.DataFrame()
    table = pl.read_csv(path, infer_schema_length=None)
    return table.select(
        evidence=pl.lit("real"), group="group", rate="rate", tokens="batch",
        slots="slots", seed=pl.lit(0), compute="compute", fetch="fetch", overlap="overlap", overlap_ratio="ratio",
        equal="equal",
    )  # fmt: skip


def study(lab: Lab) -> Tables:
    """Offline jobs on machines of eight GPUs; real processes that share a model; the overlap measured on a GPU."""
    requests = lab.pick(quick=2_200, full=6_000)
    cases = [{"on": on, "name": name, "workload": "long", "requests": requests} for on in DEVICES for name in MODELS]
    cases += [
        {"on": on, "name": "qwen3-32b", "workload": workload, "requests": requests}
        for on in DEVICES
        for workload in ("short", "reasoning")
    ]
    jobs = lab.run(trial, cases, per="system").with_columns(evidence=pl.lit("model"))
    shown = [
        {"evidence": "real", "system": mode, "group": group, "seed": seed,
         "equal": weight_pool.demonstrate(group, mode, seed=seed).equal}
        for seed, (group, mode) in enumerate([(2, "stream"), (3, "send"), (4, "stream")])
    ]  # fmt: skip
    lab.cases.update(("evidence", "group", "rate", "tokens", "slots"))
    return {"job": jobs, "processes": pl.DataFrame(shown), "overlap": overlap_rows()}


def plot(table: pl.DataFrame) -> alt.Chart:
    """Throughput of every system over replicated data parallelism, by machine and model."""
    import altair as alt

    title = alt.Title(
        "Offline throughput, eight GPUs, long outputs", subtitle="Times that of replicated data parallelism"
    )

    jobs = table.filter((pl.col("experiment") == "job") & (pl.col("workload") == "long"))
    means = jobs.group_by("on", "name", "system", maintain_order=True).agg(pl.col("tokens_per_second").mean())
    base = means.filter(pl.col("system") == "dp").select("on", "name", dp="tokens_per_second")
    shown = means.join(base, on=["on", "name"]).with_columns(ratio=pl.col("tokens_per_second") / pl.col("dp"))
    chart: alt.Chart = (
        alt.Chart(shown.filter(pl.col("system") != "dp"))
        .mark_bar()
        .encode(
            x=alt.X("system:N", title=None, sort=["tp", "pp", "offload", "stream", "sidp"]),
            y=alt.Y("ratio:Q", title="times"),
            color=alt.Color("system:N"),
            column=alt.Column("name:N", title=None),
            row=alt.Row("on:N", title=None),
        )
        .properties(width=140, height=120, title=title)
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims


def largest_gain(column: str, of: str, to: str) -> measures.Measure:
    """The largest ratio of two systems over all jobs, paired by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        jobs = table.filter(pl.col("experiment") == "job").sort("seed")
        found: dict[str, measures.Measure] = {}
        for case, job in jobs.group_by("on", "name", "workload", maintain_order=True):
            ours, theirs = (job.filter(pl.col("system") == system)[column].to_list() for system in (of, to))
            found[_job(case)] = partial(lambda two, _: intervals.ratio(*two), (ours, theirs))
        return measures.best(found)(table)

    return measure


def largest_capacity(table: pl.DataFrame) -> Estimate:
    """The largest KV gain over a replica of the same tensor parallelism, among the layouts that were used."""
    jobs = table.filter((pl.col("experiment") == "job") & (pl.col("system") == "sidp"))
    ratios = {
        _job(case): partial(lambda ratios, _: intervals.bootstrap(ratios), job["kv_ratio"].to_list())
        for case, job in jobs.group_by("on", "name", "workload", maintain_order=True)
        if not job["kv_ratio"].null_count()
    }
    if not ratios:
        raise NotMeasured("no layout that SiDP used fits without it")
    return measures.best(ratios)(table)


def _job(case: tuple[Any, ...]) -> str:
    on, name, workload = case
    return f"{name} on {on}, {workload} outputs"


claims = [
    Claim("throughput", largest_gain("tokens_per_second", "sidp", "dp")),
    Claim(
        "kv-capacity",
        largest_capacity,
        construction="both capacities come from one formula of memory: what a GPU does not hold of the weights is room",
    ),
    Claim(
        "own-cut",
        largest_gain("tokens_per_second", "sidp-best-cut", "dp"),
        asks="In some job SiDP at its best tensor-parallel cut generates more tokens a second than data parallelism at "
        "the smallest cut that fits.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "best-cuts",
        largest_gain("tokens_per_second", "sidp-best-cut", "dp-best-cut"),
        asks="In some job SiDP generates more tokens a second than data parallelism where each has its own best "
        "tensor-parallel cut.",
        kind=Kind.RATIO,
        toward="up",
    ),
]
