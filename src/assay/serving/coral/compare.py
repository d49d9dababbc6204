"""`assay compare coral`: what to rent for the user's own requests on the user's own market."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.wording import listed
from assay.serving import coral
from assay.serving.coral.gpu_rental import Rental
from assay.serving.coral.rental_served import met, peak, serve
from assay.serving.coral.replica_designs import Lengths, Service
from assay.serving.engine.lead import stretches
from assay.serving.engine.own_trace import at_rate
from assay.serving.engine.standings import Measure, add_leads_over_draws, why
from assay.serving.engine.targets import read_slo
from assay.serving.interface import SLO
from assay.sim.models import model
from assay.sim.random import stream
from assay.workloads import gpu_market
from assay.workloads.gpu_market import Offer
from assay.workloads.requests import Requests
from assay.workloads.time_option import TIME_UNIT, read_decided

RENT = Measure("usd_per_hour", "US dollars an hour", "stretches of requests")
DRAWS = 8
DEFAULT = SLO(2.0, 0.08)
UNITS = {
    "usd_per_hour": "$/h", "usd_per_million": "$/Mtok output", "attainment": "share", "served_share": "share",
    "plan_seconds": "s",
}  # fmt: skip
NONE: dict[str, Any] = dict.fromkeys(("led_by", "led_by_low", "led_by_high"))


@click.command(epilog="Example:  assay compare coral --trace examples/models.csv --market examples/market.csv")
@click.option("--trace", required=True, help="Requests, with a column for the model, or with --models for all of them.")
@click.option(
    "--market", "market", required=True, type=click.Path(path_type=Path),
    help="CSV of time (s), config (4xh100@us), price ($ per node and hour), available (nodes).",
)  # fmt: skip
@click.option("--at", type=click.FloatRange(0), default=0.0, show_default=True, help="Second of the market.")
@click.option("--models", default="", help="Which model all requests ask for, where the trace does not say.")
@click.option("--slo", help="Targets for every model: ttft=1,tpot=0.05.  [by the model's size]")
@click.option("--rate", type=click.FloatRange(1e-6), help="Requests a second.  [the trace's]")
@click.option(
    "--headroom", type=click.FloatRange(1), default=coral.HEADROOM, show_default=True, help="Planned over the peak."
)
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@TIME_UNIT
def command(
    trace: str, market: Path, at: float, models: str, slo: str | None, rate: float | None, headroom: float,
    limit: int | None, time_unit: str | None,
) -> dict[str, Any]:  # fmt: skip
    """What to rent for your own requests on your own market, by each way to plan it."""
    requests = named(read_decided(trace, limit, time_unit), listed(models))
    requests = requests if rate is None else at_rate(requests, f"{rate}")
    target = read_slo(slo) if slo else None
    services = [
        Service(name, target or coral.TARGETS.get(name, DEFAULT), Lengths.of(_of(requests, m)))
        for m, name in enumerate(requests.models)
    ]
    offer = gpu_market.read(market).at(at)
    return compare(services, requests, offer, headroom, progress=click.get_current_context().obj)


def named(requests: Requests, models: Sequence[str]) -> Requests:
    """The requests with the models that they ask for, under the names by which their sizes are known."""
    if len(models) == 1:
        return replace(requests, model=np.zeros(len(requests), np.int32), models=(model(models[0]).name,))
    if models:
        raise BadInput(f"--models {','.join(models)}: one for all requests; several are told apart in the trace only")
    if requests.model is None:
        raise BadInput("the trace names no models; say which one all requests ask for: --models qwen3-32b")
    return replace(requests, models=tuple(model(name).name for name in requests.models))


def _of(requests: Requests, m: int) -> Requests:
    assert requests.model is not None
    mine = requests.model == m
    return Requests.of(requests.arrival[mine], requests.prompt[mine], requests.output[mine])


def compare(
    services: Sequence[Service], requests: Requests, offer: Offer, headroom: float = coral.HEADROOM,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Every way to plan on one market: its rent, what it serves, and what the simulator makes of it.

    Whoever cannot serve all demand is shown and does not win. The interval is that of demand: stretches of the trace
    are drawn with replacement, and planned for again.

    >>> offer = gpu_market.generate(["1xl40s", "2xh100"], seed=1).at(0)
    >>> trace = Requests.of(np.arange(60) / 10, [500] * 60, [50] * 60, model=np.zeros(60, int), models=("llama-3-8b",))
    >>> answer = compare([Service("llama-3-8b", SLO(1.0, 0.05), Lengths.of(trace))], trace, offer)
    >>> answer["table"][0]["rule"], answer["table"][0]["served_share"]
    ('coral', 1.0)
    """
    if not requests.seconds > 0:
        raise BadInput("all requests come at once, which is no rate to plan for; give a trace that lasts some time")
    choices, every, _ = coral.first_stage(tuple(services), offer.configs)
    for service, some in zip(services, choices, strict=True):
        if not some:
            raise BadInput(
                f"no node of this market serves {service.model} within its targets; relax --slo or add nodes"
            )
    names = ("coral", *coral.BASELINES)
    rules = {name: coral.rent_by(name, every, services) for name in names}
    wanted = [headroom * demand for demand in drawn(requests, len(services))]
    table, draws = [], {}
    for done, name in enumerate(names):
        progress(done, len(names))
        rental = rules[name](choices, offer, wanted[0], gap=coral.STOP)
        table.append({"rule": name} | _row(rental, services, requests, offer) | NONE)
        if rental.complete:
            again = [rules[name](choices, offer, demand, gap=coral.STOP).usd_per_hour for demand in wanted[1:]]
            draws[name] = [rental.usd_per_hour, *again]
    fit = [row for row in table if row["rule"] in draws]
    if fit:
        add_leads_over_draws(fit, draws, RENT)
    said = (
        why(fit, RENT, "coral")
        if fit
        else "This market cannot serve all of that demand, whoever plans; see the shares."
    )
    return {
        "requests": {
            "count": len(requests), "rate": requests.rate,
            "peak": ", ".join(
                f"{one.model} {rate / headroom:.3g}/s" for one, rate in zip(services, wanted[0], strict=True)
            ),
        },
        "market": {"configurations": len(offer.configs), "nodes": int(offer.available.sum()), "headroom": headroom},
        "table": table, "units": UNITS, "why": said, "trust": coral.trust,
        "shown": ["rule", "usd_per_hour", "usd_per_million", "served_share", "attainment", "nodes"],
    }  # fmt: skip


def drawn(requests: Requests, models: int) -> list[Any]:
    """The peak rate of each model, then that of traces drawn from this one: so many of each stretch as the draw has."""
    assert requests.model is not None
    now, where = peak(requests, models), stretches(requests)
    parts = int(where.max()) + 1
    counts = np.zeros((parts, models))
    np.add.at(counts, (where, requests.model), 1.0)
    random = stream(0, "coral", "draws")
    times = random.multinomial(parts, np.full(parts, 1 / parts), size=DRAWS)
    return [now, *(now * (each @ counts) / np.maximum(counts.sum(0), 1.0) for each in times)]


def _row(rental: Rental, services: Sequence[Service], requests: Requests, offer: Offer) -> dict[str, Any]:
    assert requests.model is not None
    kept = met(serve(rental, services, requests), services, requests)
    counts = np.bincount(requests.model, minlength=len(services))
    held = rental.nodes(len(offer.configs))
    tokens = float(requests.output.sum()) / max(requests.seconds, 1e-9) * 3600 / 1e6
    return {
        "usd_per_hour": rental.usd_per_hour,
        "usd_per_million": rental.usd_per_hour / tokens,
        "served_share": float(rental.served.sum() / rental.demand.sum()),
        "attainment": float((kept[counts > 0] / counts[counts > 0]).min()),
        "nodes": " + ".join(f"{n} {one.name}" for n, one in zip(held, offer.configs, strict=True) if n),
        "replicas": sum(count for _, _, count in rental.replicas),
        "plan_seconds": rental.seconds,
    }
