"""What a run cost: dollars and joules for a million tokens, and how that was reckoned.

A fleet is paid for and draws power whether it works or idles. Both are reckoned over the steady window of a run (its
`flow`), against the tokens that were generated in it: neither a fleet that fills up nor one that drains is what anybody
means to pay for. As in the field's tables (prices of APIs, energy leaderboards), what is divided by are the tokens that
the fleet generated; the prompts are in the cost, not in the count. `…_all` divides by prompt and output tokens
together, cached ones too. A calm trace is dear on either count: compare at the load you mean to serve, or at capacity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from assay.record.errors import BadInput
from assay.serving.engine.outcome import Outcome
from assay.serving.fleet import FleetSpec, Instance
from assay.sim import energy_scale
from assay.sim.cost_file import FITTED
from assay.sim.hardware import device, devices

MILLION = 1e6
HOUR = 3600.0


def per_million(outcome: Outcome) -> dict[str, float | None]:
    """Dollars and joules for a million tokens; None where a price or the power of some instance is not known.

    >>> from assay.serving import simulate, parse, RoundRobin, chat
    >>> spent = per_million(simulate(chat(100, rate=5.0, seed=0), parse("1xh200:qwen3-8b"), RoundRobin()))
    >>> bool(spent["usd_per_mtok"] > spent["usd_per_mtok_all"] > 0)
    True
    """
    flow = outcome.flow
    seconds, written, prompts, share = flow.seconds, flow.tokens, flow.prompts, flow.share
    if not seconds or not written:  # all came at once, or so few that none was answered in between
        records = outcome.records[outcome.served]
        seconds, share = outcome.span, 1.0
        written, prompts = float(records["output"].sum()), float(records["prompt"].sum())
    instances = outcome.fleet.instances
    priced = all(one.usd_per_hour > 0 for one in instances)
    usd = sum(one.usd_per_hour for one in instances) * seconds / HOUR if priced else None
    joules = joules_of(outcome, seconds, share)
    every = written + prompts
    answered = share * max(int(outcome.served.sum()), 1)
    return {
        "usd_per_mtok": _over(usd, written), "joules_per_mtok": _over(joules, written),
        "usd_per_mtok_all": _over(usd, every), "joules_per_mtok_all": _over(joules, every),
        "joules_per_request": None if joules is None else joules / answered,
    }  # fmt: skip


def _over(spent: float | None, tokens: float) -> float | None:
    return None if spent is None or not tokens else spent / tokens * MILLION


def joules_of(outcome: Outcome, seconds: float | None = None, share: float = 1.0) -> float | None:
    """Energy of the fleet's GPUs for a share of a run's work in so many seconds; None where some cost has none.

    By default it is all of it, from the first request sent to the last token.
    """
    seconds = outcome.span if seconds is None else seconds
    total, scale = 0.0, energy_scale.measured()
    for one, record in zip(outcome.fleet.instances, outcome.instances, strict=True):
        if not _knows_power(one):
            return None
        board = device(gpu_of(one))
        idle = scale.idle_watts if board.name == scale.gpu else board.idle_watts
        work, busy = share * float(record["joules"]), min(share * float(record["busy"]), seconds)
        total += energy_scale.joules(work, busy, seconds, one.gpus * idle, one.gpus * board.tdp_watts)
    return total


def _knows_power(instance: Instance) -> bool:
    return instance.cost.energy is not None and gpu_of(instance) in {board.name for board in devices()}


def gpu_of(instance: Instance) -> str:
    """The kind of GPU an instance runs on, by its record's name where there is one; else as the fleet names it.

    >>> from assay.serving import parse
    >>> gpu_of(parse("1xH200:qwen3-8b:tp2").instances[0])
    'h200'
    """
    named = instance.name.partition(":")[0]
    try:
        return device(named).name
    except BadInput:
        return named or "gpu"


def priced(fleet: FleetSpec, text: str) -> FleetSpec:
    """The fleet at these prices: `2.5` dollars an hour for each GPU, or `h200=3.5,h100=2` by kind.

    >>> from assay.serving import parse
    >>> [one.usd_per_hour for one in priced(parse("1xh200:qwen3-8b:tp2+1xh100:qwen3-8b"), "h200=3,h100=2").instances]
    [6.0, 2.0]
    """
    kinds = sorted({gpu_of(one) for one in fleet.instances})
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.strip().rpartition("=")
        try:
            usd = float(value)
        except ValueError:
            usd = 0.0
        if not 0 < usd < float("inf"):
            raise BadInput(f"--price '{part.strip()}': write dollars an hour for a GPU, 2.5 or {kinds[0]}=2.5")
        if sign and name not in kinds:
            raise BadInput(f"--price '{part.strip()}': the fleet has no {name}; it has {', '.join(kinds)}")
        prices |= {name: usd} if sign else dict.fromkeys(kinds, usd)
    instances = (
        replace(one, usd_per_hour=one.gpus * prices[gpu_of(one)]) if gpu_of(one) in prices else one
        for one in fleet.instances
    )
    return replace(fleet, instances=tuple(instances))


def reckoning(fleet: FleetSpec, price: str | None) -> dict[str, Any]:
    """How dollars and joules came about, and how far they can be trusted."""
    return {
        "tokens": "those generated; …_all: prompts, too",
        "dollars": _dollars(fleet, price),
        "joules": _joules(fleet),
    }


def _dollars(fleet: FleetSpec, price: str | None) -> str:
    unpriced = sorted({gpu_of(one) for one in fleet.instances if not one.usd_per_hour > 0})
    if unpriced:
        return f"not known: {', '.join(unpriced)} has no price; give --price, dollars an hour for a GPU"
    usd = sum(one.usd_per_hour for one in fleet.instances)
    return f"{usd:.4g} $/h while the load is steady; {_source(fleet, price)}"


def _source(fleet: FleetSpec, price: str | None) -> str:
    told = []
    for one in {gpu_of(one): one for one in fleet.instances}.values():
        each, gpu = one.usd_per_hour / one.gpus, gpu_of(one)
        listed = gpu != FITTED and device(gpu).usd_per_hour == each
        origin = device(gpu).source["usd_per_hour"] if listed else "--price" if price else "the fleet's file"
        told.append(f"{gpu} {each:.4g} $/h a GPU ({origin})")
    return ", ".join(told)


def _joules(fleet: FleetSpec) -> str:
    if not all(map(_knows_power, fleet.instances)):
        return "not known: step times alone say nothing of power"
    others = sorted({gpu_of(one) for one in fleet.instances} - {energy_scale.measured().gpu})
    unknown = f"; on {', '.join(others)} nothing was measured" if others else ""
    how = "GPUs alone, no host or cooling; idling, and work by the roofline's FLOPs and bytes"
    return f"{how}, {energy_scale.sentence()}{unknown}"
