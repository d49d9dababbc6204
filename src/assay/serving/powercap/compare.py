"""`assay compare powercap`: clocks and caps for the user's own trace, or for one batch regime."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.serving import fleet as fleets
from assay.serving import powercap
from assay.serving.engine import step_sources
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.standings import Measure, add_leads, ranked, why
from assay.serving.powercap import power_profile
from assay.sim.mixer_shapes import FAMILIES
from assay.workloads.requests import Requests
from assay.workloads.time_option import TIME_UNIT, read_decided

ENERGY = Measure("joules_per_request", "J a request", "stretches of time")
STRETCHES = 40
UNITS = {
    "joules_per_request": "J", "work_joules_per_request": "J", "tpot_change": "share", "prompt_change": "share",
    "clock_mean": "MHz", "sm_clock": "MHz", "watts": "W", "slowdown": "share", "joules_change": "share",
}  # fmt: skip
NONE: dict[str, Any] = dict.fromkeys(("led_by", "led_by_low", "led_by_high"))


@click.command(epilog="Example:  assay compare powercap --batch 64 --context 8192 --loss 0.05")
@click.option("--trace", help="Any trace of requests; without it, one batch regime.")
@click.option(
    "--fleet", "fleet_text", default="1xh200:qwen3-32b:prefill+2xh200:qwen3-32b:decode", show_default=True,
    help="H200s of one model, COUNTxh200:MODEL[:prefill|decode]: no other card's power was measured.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@click.option("--phase", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True)
@click.option("--family", type=click.Choice(FAMILIES), default="gqa", show_default=True, help="Kind of attention.")
@click.option("--batch", type=click.IntRange(1, 4096), default=64, show_default=True, help="Sequences.")
@click.option("--context", type=click.IntRange(1, 2**20), default=4096, show_default=True, help="Tokens of each.")
@click.option("--caps", default="500,300", show_default=True, help="Power caps to try, in watts.")
@click.option(
    "--loss", type=click.FloatRange(0, 0.5), default=powercap.LOSS, show_default=True, help="Time that may be lost."
)
@TIME_UNIT
def command(
    trace: str | None, fleet_text: str, limit: int | None, caps: str, loss: float, time_unit: str | None, **point: Any
) -> dict[str, Any]:
    """Clocks and power caps on your own trace or batch: what each saves, and what it costs in time."""
    try:
        watts = [float(cap) for cap in caps.split(",") if cap.strip()]
    except ValueError:
        raise BadInput(f"--caps '{caps}': watts separated by commas, for example 500,300") from None
    if trace is None:
        if time_unit is not None:
            raise BadInput(f"--time-unit {time_unit}: one batch regime has no times; add --trace")
        return at_point(watts, loss, **point)
    progress = click.get_current_context().obj
    progress(0, 2)
    served, name = serve(read_decided(trace, limit, time_unit), fleet_text)
    progress(1, 2)
    return on_trace(served, name, watts, loss)


def serve(requests: Requests, fleet_text: str) -> tuple[Outcome, str]:
    """The trace on a fleet of H200s that have one model, and the model's name."""
    from assay.serving.baselines.routers import LeastRequests
    from assay.serving.engine.simulator import simulate

    fleet = fleets.parse(fleet_text)
    if any(not one.name.startswith("h200:") or one.gpus != 1 for one in fleet.instances):
        raise BadInput(f"--fleet {fleet_text}: only one-GPU H200 instances; power was measured on no other card")
    if len({one.model for one in fleet.instances}) > 1:
        raise BadInput(f"--fleet {fleet_text}: several models; give one, and compare the others on their own")
    outcome = simulate(requests, fleet, LeastRequests())
    if not outcome.served.any():
        raise BadInput("no request fits the fleet; give it more instances or a smaller model")
    return outcome, fleet.instances[0].model


def on_trace(
    outcome: Outcome, name: str, caps: list[float] | tuple[float, ...] = (500.0, 300.0), loss: float = powercap.LOSS
) -> dict[str, Any]:
    """Every policy's energy for a served trace; who loses more time than allowed cannot win.

    >>> requests = Requests.of(np.arange(60) * 0.2, [500] * 60, [200] * 60)
    >>> answer = on_trace(*serve(requests, "1xh200:qwen3-32b:prefill+1xh200:qwen3-32b:decode"))
    >>> answer["why"].startswith("phase-clock wins")
    True
    """
    gpu, _, _ = power_profile.h200()
    policies = ["default", *(f"cap-{cap:g}" for cap in caps), "mid-clock", "phase-clock"]
    table, samples = [], {}
    for policy in policies:
        row = powercap.joules(outcome, policy, gpu, name, loss=loss)
        row["clock_mean"] *= 1e-6
        spans = powercap.under(outcome, policy, gpu, name, loss=loss)
        prompts = outcome.spans["decodes"] == 0
        before = float(spans.full[prompts].sum())
        row["prompt_change"] = float(spans.seconds[prompts].sum()) / before - 1 if before else 0.0
        table.append({"policy": policy} | row | NONE)
        samples[policy] = in_time(outcome, spans, gpu.idle)
    fit = [row for row in table if max(row["tpot_change"], row["prompt_change"]) <= loss + 1e-9]
    add_leads(fit, samples, ENERGY, np.arange(STRETCHES))
    slow = [row["policy"] for row in table if row not in fit]
    out = f" {', '.join(slow)}: out, over {100 * loss:g} % slower in tokens or prompts." if slow else ""
    return {
        "trace": {
            "requests": int(outcome.served.sum()), "seconds": outcome.makespan, "instances": len(outcome.fleet),
            "model": name,
        },
        "table": table, "units": UNITS, "why": why(fit, ENERGY, "phase-clock") + out,
        "trust": f"{trust()} {step_sources.told(outcome.fleet, [outcome])}",
        "shown": ["policy", "joules_per_request", "tpot_change", "prompt_change", "clock_mean", "led_by"],
    }  # fmt: skip


def in_time(outcome: Outcome, spans: powercap.Spans, idle_watts: float) -> Any:
    """Joules of each fortieth of the run, idling included; a span counts where it begins."""
    span = outcome.makespan / STRETCHES
    part = np.minimum((outcome.spans["start"] / span).astype(int), STRETCHES - 1)
    work, busy = (np.bincount(part, each, STRETCHES) for each in (spans.joules, spans.seconds))
    return work + idle_watts * (span * len(outcome.fleet) - busy)


def at_point(
    caps: list[float] | tuple[float, ...], loss: float = powercap.LOSS, *, family: str = "gqa", phase: str = "decode",
    batch: int = 64, context: int = 4096,
) -> dict[str, Any]:  # fmt: skip
    """One batch regime under every setting; a lead within the power model's mean error is a tie.

    >>> answer = at_point([500.0], batch=8)
    >>> [row["policy"] for row in answer["table"] if row["slowdown"] == 0]
    ['default', 'lock-0.8', 'lock-0.6', 'cap-500']
    """
    _, _, found = power_profile.h200()
    error = found.error_mean if found else np.inf
    rows = powercap.at_point(family, phase, batch, context, caps, loss)
    table = [row | {"sm_clock": row["sm_clock"] * 1e-6} | NONE for row in rows]
    fit = [row for row in table if row["slowdown"] <= loss + 1e-9]
    energy = Measure("joules_change", "of the full clock's energy saved", "points of the fit")
    best, *others = ranked(fit, energy)
    for row in others:
        share = 1 - (1 + best["joules_change"]) / (1 + row["joules_change"])
        row |= {"led_by": share, "led_by_low": share - error, "led_by_high": share + error}
    tied = [row["policy"] for row in others if not row["led_by_low"] > 0]
    said = (
        f"{best['policy']} takes {-100 * best['joules_change']:.1f} % less energy than the full clock and loses "
        f"{100 * best['slowdown']:.1f} % of time, the most that any setting saves within {100 * loss:g} %."
    )
    told = f" Within the model's error ({100 * error:.0f} % of power) of it: {', '.join(tied)}." if tied else ""
    return {
        "batch": {"phase": phase, "family": family, "sequences": batch, "context": context, "reacts": best["dvfs"]},
        "table": table, "units": UNITS, "trust": trust(), "why": f"{said}{told}",
        "shown": ["policy", "sm_clock", "watts", "slowdown", "joules_change", "led_by"],
    }  # fmt: skip


def trust() -> str:
    """How far the card's model is off the points it was fitted to."""
    _, rates, found = power_profile.h200()
    if found is None:
        return "No measured profile is stored: watts and rates are an engineer's guess."
    return (
        f"The model is fitted to an H200 with its clocks as found: off by {100 * rates.error_mean:.0f} % in time and "
        f"{100 * found.error_mean:.0f} % in power there; what a locked clock does is the model's, not measured."
    )
