"""Metrics of a benchmark row, computed from its evidence: card and traces go in, a number or a reason comes out.

A metric is a function of a :class:`~assay.observe.traces.rows.Row`. It never changes the evidence, and where something
it needs is missing it raises :class:`NotApplicable` with the reason; it never says 0 instead. So a metric thought of
later runs on rows recorded long ago: give it to :func:`measure` beside `METRICS`.

Times of overlap, exposure and idleness come from unions of intervals, clipped to the step; sums of durations would
count two collectives at once twice. Units: seconds, bytes, bytes a second, ratios of 0 … 1.

>>> from assay.sim.telemetry import Frame
>>> from assay.observe.traces.cards import Card
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0},
...             {"id": 2, "kind": "stream", "name": "20", "parent": 0}]
>>> spans = [{"entity": 1, "name": "ProfilerStep#1", "cat": "step", "start": 0, "dur": 100, "seq": 1},
...          {"entity": 1, "name": "gemm", "cat": "kernel", "start": 0, "dur": 60},
...          {"entity": 2, "name": "ncclAllReduce", "cat": "comm", "start": 40, "dur": 50}]
>>> row = Row(Card(), Frame.of(entities, spans=spans))
>>> measure(row, ["compute_comm_overlap", "mfu"]).select("value", "why").rows()
[(0.4, None), (None, "the card's workload.model.model_arch lacks num_params, num_layers, num_heads, head_dim")]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from assay.observe.traces import breakdown
from assay.observe.traces import comm_metrics as comm
from assay.observe.traces.comm_metrics import mean
from assay.observe.traces.rows import Metric, NotApplicable, Row, load
from assay.record.errors import BadInput
from assay.sim.hardware import device

__all__ = ["METRICS", "NotApplicable", "Row", "explain", "load", "measure", "metrics_table"]

PASS = r"^(execute_|gpu_model_runner: forward|step\[|engine_step)"  # how engines mark one pass of the model
TPU_PEAKS = {"tpu_v6e": 918e12}  # bf16 FLOP/s, docs.cloud.google.com/tpu/docs/v6e; GPUs are in sim/hardware.toml


# ---------------------------------------------------------------------------------------------------- the step


def avg_step_time(row: Row) -> float:
    """Seconds of a step, over all ranks and steps; of an engine, of a pass."""
    begun = breakdown.steps(row.frame)
    if begun.is_empty():
        return float(_passes(row)["dur"].mean()) / 1e9  # type: ignore[arg-type]
    return float((begun["end"] - begun["start"]).mean()) / 1e9  # type: ignore[arg-type]


def _passes(row: Row) -> pl.DataFrame:
    """The passes of an engine on its first rank, in order."""
    marked = row.frame.spans.filter(
        pl.col("cat").is_in(["annotation", "step"]) & pl.col("name").cast(pl.String).str.contains(PASS)
    )
    if marked.is_empty():
        raise NotApplicable("the traces mark no step (ProfilerStep#N) and no pass of an engine")
    first = marked.sort("start")["entity"][0]
    return marked.filter(pl.col("entity") == first).sort("start")


def _inferring(row: Row) -> pl.DataFrame:
    if row.card.workload.model.phase == "training":
        raise NotApplicable("a training run has no first token")
    try:
        return _passes(row)
    except NotApplicable:
        own = breakdown.steps(row.frame)
        if own.is_empty():
            raise
        first = own.filter(pl.col("rank") == own["rank"][0])
        return first.select(start="start", dur=pl.col("end") - pl.col("start"))


def ttft(row: Row) -> float:
    """Seconds of an engine's first pass: the prompt's."""
    return float(_inferring(row)["dur"][0]) / 1e9


def tpot(row: Row) -> float:
    """Mean seconds of the passes after the first: a token each."""
    return mean(_inferring(row)["dur"][1:], "one pass only: there is no decoding in it") / 1e9


def mfu(row: Row) -> float:
    """The share of the devices' peak that the model's own arithmetic takes; the paper's FLOPs a token."""
    model, data, spec = row.card.workload.model, row.card.workload.data, row.card.workload.hardware.xpu_spec
    arch = model.model_arch
    needed = ("num_params", "num_layers", "num_heads", "head_dim")
    if lacking := [name for name in needed if not getattr(arch, name)]:
        raise NotApplicable(f"the card's workload.model.model_arch lacks {', '.join(lacking)}")
    active = arch.num_params_active or arch.num_active_params
    if model.moe and not active:
        raise NotApplicable("a mixture of experts, and the card's model_arch lacks num_params_active")
    training = model.phase == "training"
    length = data.seq_len or data.input_len
    if not data.batch_size or not length or not spec.total_count:
        raise NotApplicable("the card lacks data.batch_size, data.seq_len or xpu_spec.total_count")
    weights = (active or arch.num_params or 0.0) - (arch.num_params_embedding or 0.0)
    attention = (arch.num_layers or 0.0) * (arch.num_heads or 0.0) * (arch.head_dim or 0.0) * length
    flops = 6 * weights + 12 * attention if training else 2 * weights + 4 * attention
    tokens = data.batch_size * (length if training else 1.0)  # a decoding pass makes one token of each sequence
    seconds = avg_step_time(row) if training else tpot(row)
    return flops * tokens / seconds / (_peak(spec.model, model.precision) * spec.total_count)


def _peak(model: str, precision: str) -> float:
    word = model.lower().removeprefix("nvidia_").replace("_", "-")
    if model.lower() in TPU_PEAKS:
        return TPU_PEAKS[model.lower()]
    try:
        return device(word.split("-")[0]).flops(precision.lower() or "bf16")
    except BadInput:
        raise NotApplicable(f"the peak of '{model or 'a device without a name'}' is not known") from None


# ------------------------------------------------------------------------------------------------- the device


def mean_sm_coverage(row: Row) -> float:
    """The share of multiprocessors that a kernel's grid can fill, weighted by the kernels' time."""
    known = [(one.multiprocessors, one.kernels) for one in row.details if one.multiprocessors and len(one.kernels)]
    if not known:
        raise NotApplicable("no file tells the grids of its kernels and the device's multiprocessors")
    weight = sum(int(kernels["dur"].sum()) for _, kernels in known)
    if not weight:
        raise NotApplicable("its kernels take no time")
    filled = sum(float(((kernels["blocks"] / count).clip(0.0, 1.0) * kernels["dur"]).sum()) for count, kernels in known)
    return filled / weight


def dominant_kernel_share(row: Row) -> float:
    """The share of kernel time (compute and communication) that the longest kernel takes."""
    busy = row.device.filter(pl.col("cat").is_in(["kernel", "comm"]))
    total = int(busy["dur"].sum())
    if not total:
        raise NotApplicable("no kernel took any time")
    return int(busy.group_by("name").agg(pl.col("dur").sum())["dur"].max()) / total  # type: ignore[arg-type]


def memory_copy_bandwidth(row: Row) -> float:
    """Bytes a second of memory copies, over all of them."""
    copies = row.device.filter((pl.col("cat") == "memcpy") & pl.col("bytes").is_not_null() & (pl.col("dur") > 0))
    if copies.is_empty():
        raise NotApplicable("no memory copy with its size in it")
    return int(copies["bytes"].sum()) / (int(copies["dur"].sum()) / 1e9)


def exposed_copy_share(row: Row) -> float:
    """The share of a step in which only copies run."""
    if row.device.filter(pl.col("cat") == "memcpy").is_empty():
        raise NotApplicable("no memory copy in it")
    steps = row.steps
    return mean(steps["memcpy"] / steps["total"], "no step")


def idle_share(row: Row) -> float:
    """The share of a step in which the device does nothing."""
    steps = row.steps
    return mean(steps["idle"] / steps["total"], "no step")


METRICS: dict[str, Metric] = {
    "avg_step_time": avg_step_time, "ttft": ttft, "tpot": tpot, "mfu": mfu,
    "mean_sm_coverage": mean_sm_coverage, "dominant_kernel_share": dominant_kernel_share,
    "memory_copy_bandwidth": memory_copy_bandwidth, "exposed_copy_share": exposed_copy_share,
    "idle_share": idle_share, "communication_fraction": comm.communication_fraction,
    "exposed_comm_time": comm.exposed_comm_time, "compute_comm_overlap": comm.compute_comm_overlap,
    "collective_volume": comm.collective_volume(),
    **{f"{kind}_volume": comm.collective_volume(kind) for kind in comm.BUS},
    **{f"{kind}_bandwidth": comm.bus_bandwidth(kind) for kind in comm.BUS},
    "load_imbalance": comm.load_imbalance, "straggler_delay": comm.straggler_delay,
    "scale_up_bw_utility": comm.scale_up_bw_utility,
}  # fmt: skip


def measure(row: Row, metrics: Iterable[str] | Mapping[str, Metric] | None = None) -> pl.DataFrame:
    """A line for each metric: `metric`, `value`, and `why` there is none."""
    chosen = METRICS if metrics is None else metrics
    if not isinstance(chosen, Mapping):
        names = list(chosen)
        if odd := [name for name in names if name not in METRICS]:
            raise BadInput(f"no metric '{odd[0]}'; there are {', '.join(METRICS)}")
        chosen = {name: METRICS[name] for name in names}
    lines = [{"metric": name, **_answer(metric, row)} for name, metric in chosen.items()]
    return pl.DataFrame(lines, schema={"metric": pl.String, "value": pl.Float64, "why": pl.String})


def _answer(metric: Metric, row: Row) -> dict[str, float | str | None]:
    try:
        value = float(metric(row))
    except (NotApplicable, BadInput) as error:
        return {"value": None, "why": str(error)}
    if not math.isfinite(value):
        return {"value": None, "why": "the evidence gives no finite number"}
    return {"value": value, "why": None}


def metrics_table(folder: Path, metrics: Iterable[str] | Mapping[str, Metric] | None = None) -> pl.DataFrame:
    """The metrics of a folder with traces and a card, or without one."""
    return measure(load(folder), metrics)


def explain(one: Row, other: Row, most: int = 5) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Why two rows differ: their metrics side by side, and the kernels whose seconds a step changed most."""
    both = measure(one).select("metric", one="value").join(
        measure(other).select("metric", other="value"), on="metric", maintain_order="left"
    )  # fmt: skip
    both = both.filter(pl.col("one").is_not_null() | pl.col("other").is_not_null())
    ratio = both.with_columns(ratio=pl.when(pl.col("one") != 0).then(pl.col("other") / pl.col("one")))

    def seconds(row: Row) -> pl.DataFrame:
        count = max(len(row.steps), 1)
        return row.device.group_by(pl.col("name").cast(pl.String), pl.col("cat").cast(pl.String)).agg(
            seconds=pl.col("dur").sum() / 1e9 / count
        )

    joined = seconds(one).rename({"seconds": "one"}).join(
        seconds(other).rename({"seconds": "other"}), on=["name", "cat"], how="full", coalesce=True
    ).with_columns(pl.col("one", "other").fill_null(0.0))  # fmt: skip
    change = joined.with_columns(change=pl.col("other") - pl.col("one"))
    order = np.argsort(-change["change"].abs().to_numpy(), kind="stable")[:most]
    return ratio, change[order.tolist()]
