"""Why a power cap does nothing for decode, and what does: a lower clock for the phase that waits for memory.

Decode reads weights and KV cache and hardly computes, so a GPU draws far less than its limit. A power cap lowers the
clock only when the draw would exceed it, so in decode it never acts, and where it does act it hits prefill, which
needs its clock. Locking the SM clock is different: it always acts, and while memory is the bottleneck a slower clock
costs no time but saves the power of multiprocessors that wait. `PhaseClock` does that: prefill keeps the full clock,
decode gets the lowest one whose predicted loss stays within 2 %, chosen anew for each batch regime.

What was measured on an H200 is stored with its machine: watts, clocks and throttle reasons of four attention families
in decode and prefill, with the card's settings as found. Answers that need a locked clock are given only where a sweep
of clocks is stored as well; the model of power and time, fitted to the same points, illustrates the rest.

"The Illusion of Power Capping in LLM Decode: A Phase-Aware Energy Characterisation Across Attention Architectures",
arXiv:2605.11999.

>>> from assay.sim.power import GpuPower, Load
>>> gpu = GpuPower(idle=75, hbm=150, waiting=120, sm=355, limit=700)
>>> decode, prefill = Load(mem=10e-3, compute=2e-3), Load(mem=2e-3, compute=20e-3)
>>> planner = PhaseClock(gpu)
>>> planner.clock(decode) < 1.0e9, bool(planner.clock(prefill) > 1.93e9)
(True, True)
>>> classify(gpu, decode), classify(gpu, prefill)
('insensitive', 'proportional')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, NotMeasured
from assay.serving.powercap import power_profile
from assay.sim.hardware import device
from assay.sim.mixer_shapes import FAMILIES, Shape
from assay.sim.models import model
from assay.sim.power import GpuPower, Load
from assay.sim.random import stream
from assay.sim.roofline import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, OVERHEAD, roofline

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.serving.engine.outcome import Outcome

evidence = Evidence.MODEL  # answers read off the stored measurement say `real` themselves
use_when = (
    "Decode instances of their own (disaggregated serving, or decode-heavy traffic) on GPUs whose clocks you may lock: "
    "the energy of waiting multiprocessors is saved at hardly any cost in time."
)
avoid_when = (
    "Prefill shares the instance and time to first token matters, the batch is large enough for decode to compute as "
    "long as it reads, or the clocks belong to somebody else. A power cap is no substitute."
)
trust = "The model of the card is fitted to an H200's measurements; the table has its errors in time and power."
own_input = "assay compare powercap --trace examples/azure.csv --fleet 1xh200:qwen3-32b:prefill+2xh200:qwen3-32b:decode"
references = (
    "Roofline with a clock: Williams, Waterman, Patterson, CACM 2009.",
    "What NVML's power sensor misses: Yang, Adamek, Armour, Part-time Power Measurements, SC 2024.",
    "Gated DeltaNet: arXiv:2412.06464; Mamba2: arXiv:2405.21060; MLA: arXiv:2405.04434.",
)

CAPS = (700.0, 600.0, 500.0, 400.0, 300.0)  # watts
POINTS = (("decode", 1, 1024), ("decode", 32, 4096), ("decode", 128, 4096), ("decode", 256, 16384),
          ("prefill", 1, 1024), ("prefill", 1, 8192), ("prefill", 4, 8192))  # fmt: skip
PRODUCTION = ("decode", 128, 4096), ("prefill", 1, 8192)  # the points of a request at production batch
PROMPT, OUTPUT = 4096, 1024  # tokens of that request
LOSS = 0.02
MID = 0.6  # of the full clock: a fixed setting that an operator might choose
CASE = ("experiment", "evidence", "kind", "family", "phase", "batch", "context", "cap", "lock", "policy")
POLICIES = ("default", "cap-500", "cap-300", "mid-clock", "phase-clock")
UNLOCKED = (
    "the stored measurement left the card's settings as found: clocks were not locked; it takes "
    "a GPU whose clocks one may lock"
)


# --------------------------------------------------------------------------------------- the mechanism


@dataclass(frozen=True)
class PhaseClock:
    """The lowest clock whose predicted time loss stays within `loss`; for work bound by arithmetic that is about full.

    Asked once per batch regime, it keeps prefill at full clock and lets decode fall as far as memory hides it.
    """

    gpu: GpuPower
    loss: float = LOSS

    def clock(self, load: Load) -> Any:
        """The clock to lock for this step, or for an array of them.

        >>> gpu = GpuPower(idle=75, hbm=150, waiting=120, sm=355, limit=700, f_max=2e9, f_min=1e9)
        >>> PhaseClock(gpu, loss=0.0).clock(Load(mem=0.6, compute=0.6))  # nothing to spare
        2000000000.0
        """
        gpu, clocks = self.gpu, self.gpu.clocks
        each = Load(*(np.asarray(part, float)[..., None] for part in (load.mem, load.compute, load.fixed)))
        allowed = (1 + self.loss) * gpu.seconds(each, gpu.f_max) * (1 + 1e-12)
        fine = gpu.seconds(each, clocks) <= allowed
        found = np.where(fine.any(-1), clocks[np.argmax(fine, axis=-1)], gpu.f_max)
        return float(found) if found.ndim == 0 else found


def classify(gpu: GpuPower, load: Load) -> str:
    """How throughput reacts to the clock: `insensitive`, a `knee` on the way down, or `proportional`.

    Insensitive: at half the clock at most 5 % is lost. Proportional: at nine tenths already at least 7 % of the 10 %.

    >>> classify(GpuPower(75, 150, 120, 355, 700), Load(mem=1.0, compute=0.7))
    'knee'
    """
    full = gpu.seconds(load, gpu.f_max)
    if full / gpu.seconds(load, 0.5 * gpu.f_max) >= 0.95:
        return "insensitive"
    return "proportional" if full / gpu.seconds(load, 0.9 * gpu.f_max) <= 0.93 else "knee"


def clock_of(policy: str, gpu: GpuPower, load: Load, loss: float = LOSS) -> Any:
    """The clock a policy runs a step at.

    `default` is also race-to-idle: the driver boosts while there is work and drops to idle when there is none.
    """
    match policy.split("-"):
        case ["default"]:
            return gpu.f_max
        case ["cap", watts]:
            return gpu.capped(load, float(watts))
        case ["mid", "clock"]:
            return MID * gpu.f_max
        case ["phase", "clock"]:
            return PhaseClock(gpu, loss).clock(load)
    raise ValueError(f"no policy '{policy}'; there are {', '.join(POLICIES)}")


def span_loads(outcome: Outcome, rows: Any, name: str, on: str) -> Load:
    """The mean step of each span of a served trace, by what bounds it.

    Weights are read once a step; beyond what the tokens alone take, a step with decodes waits for KV reads, and one of
    prompts alone computes attention. What neither explains (launches, the scheduler) is fixed.
    """
    shape, hardware = model(name), device(on)
    cost = outcome.fleet.instances[0].cost
    seconds = rows["alpha"] + rows["gamma"] * 0.5 * (rows["iterations"] - 1)
    n = rows["tokens"].astype(np.int64)
    attention = np.maximum(seconds - cost.tokens[n], 0.0)
    decodes = rows["decodes"] > 0
    mem = shape.active_param_bytes() / (hardware.mem_bw * MEMORY_EFFICIENCY) + np.where(decodes, attention, 0.0)
    compute = shape.flops(n) / (hardware.flops("bf16") * COMPUTE_EFFICIENCY) + np.where(decodes, 0.0, attention)
    return Load(mem, compute, np.maximum(seconds - np.maximum(mem, compute), 0.0))


@dataclass(frozen=True)
class Spans:
    """What the spans of a served trace come to under a clock: seconds, those at full clock, joules, and the clock."""

    seconds: Any
    full: Any
    joules: Any
    clock: Any


def under(outcome: Outcome, policy: str, gpu: GpuPower, name: str, on: str = "h200", loss: float = LOSS) -> Spans:
    """The spans of a served trace under a clock policy.

    Spans keep their batch; a slower clock stretches them, which is reported and, at 2 %, does not change who is batched
    with whom.
    """
    rows = outcome.spans
    load = span_loads(outcome, rows, name, on)
    clock = np.broadcast_to(clock_of(policy, gpu, load, loss), len(rows))
    times = rows["iterations"].astype(float)
    seconds, full = gpu.seconds(load, clock) * times, gpu.seconds(load, gpu.f_max) * times
    return Spans(seconds, full, gpu.joules(load, clock) * times, clock)


def joules(
    outcome: Outcome, policy: str, gpu: GpuPower, name: str, on: str = "h200", loss: float = LOSS
) -> dict[str, float]:
    """The energy of a served trace under a clock policy, from its span table: any router, trace and fleet of one kind.

    Instances that have nothing to do idle until the trace ends.
    """
    found = under(outcome, policy, gpu, name, on, loss)
    work, busy = float(found.joules.sum()), float(found.seconds.sum())
    idle = max(0.0, outcome.makespan * len(outcome.fleet) - busy) * gpu.idle
    decoding = outcome.spans["decodes"] * 1.0
    before = float((decoding * found.full).sum())  # none where every answer is one token
    return {
        "joules_per_request": (work + idle) / max(1, int(outcome.served.sum())),
        "work_joules_per_request": work / max(1, int(outcome.served.sum())),
        "tpot_change": float((decoding * found.seconds).sum()) / before - 1.0 if before else 0.0,
        "clock_mean": float((found.clock * found.seconds).sum() / busy),
    }


def at_point(
    family: str, phase: str, batch: int, context: int, caps: Sequence[float] = CAPS, loss: float = LOSS
) -> list[dict[str, Any]]:
    """One batch regime under every setting, by the model: watts, and what it loses and saves against the full clock.

    >>> rows = {row["policy"]: row for row in at_point("gqa", "decode", 32, 4096)}
    >>> rows["phase-clock"]["joules_change"] < rows["cap-500"]["joules_change"] <= 0.0
    True
    """
    gpu, rates, _ = power_profile.h200()
    load = rates.load(Shape(), family, phase, batch, context)
    settings = [("default", gpu.f_max), ("phase-clock", PhaseClock(gpu, loss).clock(load))]
    settings += [(f"lock-{share:g}", share * gpu.f_max) for share in (0.8, 0.6, 0.4)]
    settings += [(f"cap-{cap:g}", gpu.capped(load, cap)) for cap in caps]
    full = gpu.seconds(load, gpu.f_max), gpu.joules(load, gpu.f_max)
    return [
        {
            "policy": policy, "sm_clock": clock, "watts": float(gpu.watts(load, clock)), "dvfs": classify(gpu, load),
            "slowdown": float(gpu.seconds(load, clock) / full[0]) - 1,
            "joules_change": float(gpu.joules(load, clock) / full[1]) - 1,
        }
        for policy, clock in settings
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- the study


def serve(kind: str, seed: int) -> dict[str, dict[str, Any]]:
    """A trace on disaggregated H200s, and its energy under every policy."""
    from assay.serving.baselines.routers import RoundRobin
    from assay.serving.engine.simulator import simulate
    from assay.serving.fleet import FleetSpec, Instance
    from assay.workloads.requests import Requests

    random = stream(seed, "powercap", kind)
    prompt_mean, output_mean, rate, requests = {"chat": (600, 400, 6.0, 600), "reasoning": (400, 2000, 2.0, 250)}[kind]
    arrival = np.cumsum(random.exponential(1 / rate, requests))
    lengths = [
        np.maximum(8, random.lognormal(np.log(mean) - 0.18, 0.6, requests)) for mean in (prompt_mean, output_mean)
    ]
    trace = Requests.of(arrival, *(np.rint(values).astype(np.int64) for values in lengths))
    name = "qwen3-32b"
    cost = roofline(name, "h200", overhead=OVERHEAD)
    roles = ("prefill", "decode", "decode")
    fleet = FleetSpec(tuple(Instance(cost, model=name, role=role) for role in roles))
    outcome = simulate(trace, fleet, RoundRobin())
    gpu, _, _ = power_profile.h200()
    return {policy: joules(outcome, policy, gpu, name) for policy in POLICIES}


SEEN = (
    "experiment", "evidence", "family", "phase", "batch", "context", "cap", "lock", "seed", "step", "watts", "sm_clock",
    "held_sw_power_cap", "joules_per_token", "tokens_per_second", "machine",
)  # fmt: skip


def measured_rows() -> pl.DataFrame:
    """The stored rows as they were measured, per token and layer; empty where none are stored."""
    parts = []
    for path, experiment in ((power_profile.PROFILE, "measured"), (power_profile.SWEEP, "sweep")):
        table = power_profile.read(path)
        if table is not None:
            tokens = pl.col("tokens") * pl.col("layers") / pl.col("model_layers")
            facts = power_profile.machine(path)
            parts.append(
                table.filter(pl.col("family").is_in(FAMILIES)).with_columns(
                    experiment=pl.lit(experiment), evidence=pl.lit("real"), seed=pl.lit(0),
                    machine=pl.lit(str(facts.get("gpu", "unknown"))),
                    joules_per_token=pl.col("watts") * pl.col("step") / tokens,
                    tokens_per_second=tokens / pl.col("step"),
                )
            )  # fmt: skip
    return pl.concat(parts, how="diagonal_relaxed").select(SEEN) if parts else pl.DataFrame()


def model_rows() -> pl.DataFrame:
    """Every family and point under every cap and a sweep of locked clocks, by the model."""
    _, rates, found = power_profile.h200()
    errors = {"fit_time_error": rates.error_mean, "fit_power_error": found.error_mean if found else None}
    same = {"experiment": "model", "evidence": "model", "seed": 0}
    return pl.DataFrame(
        [
            same | {"family": family, "phase": phase, "batch": batch, "context": context} | row | errors
            for family in FAMILIES
            for phase, batch, context in POINTS
            for row in at_point(family, phase, batch, context)
        ]
    )


def study(lab: Lab) -> Tables:
    """What is stored of the real card; the fitted model under caps and clocks; a served trace with each policy."""
    kinds = lab.pick(quick=("chat",), full=("chat", "reasoning"))
    traces = lab.run(serve, [{"kind": kind} for kind in kinds], per="policy")
    lab.cases.update(CASE)
    return {"trace": traces.with_columns(evidence=pl.lit("model")), "stored": measured_rows(), "model": model_rows()}


def plot(table: pl.DataFrame) -> alt.Chart:
    """Energy saved against time lost, for every setting: caps pile up at nothing, clocks move left."""
    import altair as alt

    rows = table.filter((pl.col("experiment") == "model") & (pl.col("policy") != "default"))
    rows = rows.with_columns(setting=pl.col("policy").str.split("-").list.first())
    chart: alt.Chart = (
        alt.Chart(rows.select("family", "phase", "setting", "policy", "slowdown", "joules_change"))
        .mark_point(filled=True, opacity=0.7)
        .encode(
            x=alt.X("slowdown:Q", title="time lost", axis=alt.Axis(format="%")),
            y=alt.Y("joules_change:Q", title="energy change", axis=alt.Axis(format="%")),
            color=alt.Color("setting:N"),
            shape=alt.Shape("family:N"),
            column=alt.Column("phase:N", title=None),
        )
        .properties(width=260, height=260, title=alt.Title("Caps and locked clocks, by phase"))
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims


def _measured(table: pl.DataFrame, experiment: str, why: str) -> pl.DataFrame:
    rows = table.filter((pl.col("experiment") == experiment) & (pl.col("evidence") == "real"))
    if rows.is_empty():
        raise NotMeasured(why)
    return rows


def largest_saving(table: pl.DataFrame) -> Estimate:
    """The largest fall of decode energy under a locked clock that costs at most 3 % of throughput."""
    rows = _measured(table, "sweep", UNLOCKED).filter((pl.col("phase") == "decode") & (pl.col("cap") == 0))
    best: dict[str, float] = {}
    for point, group in rows.group_by("family", "batch", "context"):
        free = group.filter(pl.col("lock") == 0)
        if free.is_empty():
            continue
        kept = group.filter((pl.col("lock") > 0) & (pl.col("step") <= 1.03 * free["step"][0]))
        changes = (kept["joules_per_token"] / free["joules_per_token"][0] - 1).to_list()
        best[_point(point)] = min([0.0, *changes])
    if not best:
        raise NotMeasured(UNLOCKED)
    name = min(best, key=lambda point: best[point])
    # A point was measured once: what it saves has no spread that we know of, and so is certain of nothing.
    return replace(intervals.bootstrap([best[name]]), cases=f"{name}, of {len(best)} points")


def decode_watts(table: pl.DataFrame) -> Estimate:
    """The highest mean draw of any decode point, with the card as found."""
    rows = _measured(table, "measured", "measured on an H200 only, and no profile of one is stored")
    decode = rows.filter(pl.col("phase") == "decode").sort("watts")
    point = _point(decode.select("family", "batch", "context").row(-1))
    return replace(measures.counted(decode["watts"][-1], len(decode)), cases=f"{point}, of {len(decode)} points")


def no_cap_acts(table: pl.DataFrame) -> Estimate:
    """The share of decode points at which the card's own limit was never seen to hold its clock back.

    Only that limit was set when the points were measured; what a lower cap would do is the model's to say.
    """
    rows = _measured(table, "measured", "measured on an H200 only, and no profile of one is stored")
    decode = rows.filter(pl.col("phase") == "decode").sort("held_sw_power_cap")
    acting = int((decode["held_sw_power_cap"] > 0.02).sum())
    found = intervals.clopper_pearson(len(decode) - acting, len(decode))
    worst = _point(decode.select("family", "batch", "context").row(-1))
    return replace(found, cases=f"it acts at {acting} of {len(decode)} points, most at {worst}" if acting else "")


def _point(case: Sequence[Any]) -> str:
    family, batch, context = case
    return f"{family}, batch {batch}, context {context:,}"


def request_energy(table: pl.DataFrame) -> Estimate:
    """The change of a whole request's energy against GQA, as a mean over the newer attention types.

    Three types are all there are, not a sample of types, and each was measured once: the mean has no spread we know of.
    """
    rows = _measured(table, "measured", "measured on an H200 only, and no profile of one is stored")

    def cost(family: str) -> float:
        found = []
        for phase, batch, context in PRODUCTION:
            # A recurrent state does not know the context, so its decode points carry any one.
            where = {"family": family, "phase": phase, "batch": batch, "context": context}
            found.append(float(measures.rows(rows, where)["joules_per_token"][0]))
        return OUTPUT * found[0] + PROMPT * found[1]

    base = cost("gqa")
    changes = {family: cost(family) / base - 1 for family in FAMILIES[1:]}
    each = ", ".join(f"{family} {change:+.0%}" for family, change in changes.items())
    return replace(intervals.bootstrap([sum(changes.values()) / len(changes)]), cases=f"{each}; each measured once")


claims = [
    Claim("locked-clock", largest_saving, evidence=Evidence.REAL),
    Claim("decode-watts", decode_watts, evidence=Evidence.REAL),
    Claim("caps", no_cap_acts, evidence=Evidence.REAL),
    Claim("request-energy", request_energy, evidence=Evidence.REAL),
]
