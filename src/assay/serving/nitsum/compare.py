"""`assay compare nitsum`: plans for a pool that serves tiers, on the user's own requests and targets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.serving import nitsum
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.own_trace import at_rate
from assay.serving.engine.standings import Measure, add_leads, why
from assay.serving.engine.targets import check_tiers, of_tier, read_targets
from assay.serving.interface import SLO
from assay.serving.nitsum import Site, tier_plan, traffic
from assay.serving.nitsum.tiers import Demand, strict_first
from assay.workloads.requests import Requests
from assay.workloads.time_option import TIME_UNIT, read_decided

IN_TIME = Measure("attainment", "of the requests within both targets", "stretches of the second half", least=False)
RESTARTS = 60.0  # seconds over which a restart has to pay: the shorter of the study's, as a trace is not a day
UNITS = {"attainment": "share", "goodput": "req/s", "paused": "share of GPU time"}


@click.command(
    epilog="Example:  assay compare nitsum --trace examples/shifts.csv --slo express:ttft=1,tpot=0.02 "
    "--slo standard:ttft=4,tpot=0.1 --slo batch:ttft=30,tpot=0.2"
)
@click.option("--trace", required=True, help="Requests with a column tier.")
@click.option("--gpus", "text", default="8xh200:qwen3-32b", show_default=True, help="COUNTxGPU:MODEL.")
@click.option(
    "--slo", "slos", multiple=True, required=True, help="Targets of a tier: chat:ttft=1,tpot=0.02; repeat it."
)
@click.option("--rate", default="x1", show_default=True, help="x2 doubles the trace's rate; 12: requests a second.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@TIME_UNIT
def command(
    trace: str, text: str, slos: tuple[str, ...], rate: str, limit: int | None, time_unit: str | None
) -> dict[str, Any]:
    """Plans for one pool and several tiers, on your own requests: static layouts, plans made once, plans that move."""
    found = re.fullmatch(r"(\d{1,2})x(\S+:[^\s:]+)", text.strip())
    if not found or int(found[1]) < 1:
        raise BadInput(f"--gpus '{text}': write COUNTxGPU:MODEL, for example 8xh200:qwen3-32b; widths are planned")
    requests = at_rate(read_decided(trace, limit, time_unit), rate)
    site = Site(found[2], int(found[1]), promised(slos, requests))
    if not any(tier_plan.fits(site.layout, width) for width in tier_plan.WIDTHS if width <= site.gpus):
        raise BadInput(f"--gpus '{text}': the model does not fit; give more or larger GPUs")
    return compare(requests, site, progress=click.get_current_context().obj)


def promised(slos: Sequence[str], requests: Requests) -> dict[str, SLO]:
    """Targets by tier: the planner needs both times of every tier of the trace."""
    if not requests.tiers or requests.tier is None or (requests.tier < 0).any():
        raise BadInput("every request needs a tier here: give the trace a column tier")
    targets = read_targets(slos)
    check_tiers(targets, requests)
    assert targets is not None, "the command asks for one"
    found = {tier: of_tier(targets, tier) for tier in requests.tiers}
    for tier, slo in found.items():
        if not max(slo.ttft, slo.tpot) < math.inf:
            raise BadInput(f"tier {tier}: the planner needs both targets; add --slo {tier}:ttft=1,tpot=0.05")
    return found


def compare(
    requests: Requests, site: Site, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Every plan on the same requests: what is tuned or planned once is so on the first half, the second is judged.

    >>> from assay.workloads.chat import chat
    >>> trace = chat(150, rate=4.0, seed=0, tiers=(("chat", 0.7), ("batch", 0.3)))
    >>> site = Site("h200:qwen3-32b", 2, {"chat": SLO(1.0, 0.03), "batch": SLO(30.0, 0.15)})
    >>> [row["system"] for row in compare(trace, site)["table"]][:2]
    ['nitsum', 'restart']
    """
    later = requests.arrival > 0.5 * (requests.arrival[0] + requests.arrival[-1])
    if not later.any() or later.all():
        raise BadInput("the trace has no second half to judge: all requests come at once")
    known = traffic.mean_demand(requests.part(0, int(np.flatnonzero(later)[0])))
    tried = _contenders(requests, known, site)
    total, runs = sum(map(len, tried.values())), dict[str, tuple[Outcome, dict[str, Any]]]()
    done = 0
    for name, ways in tried.items():
        found = []
        for way in ways:
            progress(done, total)
            found.append(way())
            done += 1
        runs[name] = max(found, key=lambda run: _met(run[0], site)[~later].mean())
    samples = {name: _met(outcome, site)[later] for name, (outcome, _) in runs.items()}
    seconds = float(requests.arrival[-1] - requests.arrival[later][0]) or 1.0
    table = [_row(name, samples[name], runs[name], requests, later, seconds) for name in runs]
    add_leads(table, samples, IN_TIME)
    order = strict_first(site.targets)
    return {
        "trace": {"requests": len(requests), "judged": int(later.sum()), "rate": requests.rate},
        "pool": {"gpus": site.gpus, "layout": site.layout, "tiers": ", ".join(order), "prefix_cache": "off"},
        "table": table, "units": UNITS | {f"{tier}_attainment": "share" for tier in order},
        "why": why(table, IN_TIME, "nitsum"), "trust": nitsum.trust,
        "shown": ["system", "attainment", "goodput", *(f"{tier}_attainment" for tier in order), "switches"],
    }  # fmt: skip


Way = Callable[[], tuple[Outcome, dict[str, Any]]]


def _contenders(requests: Requests, known: Mapping[str, Demand], site: Site) -> dict[str, list[Way]]:
    """What an operator would try of each system: planners with and without groups that do both, layouts of a family."""
    planned: dict[str, dict[str, Any]] = {
        "nitsum": {}, "restart": nitsum.restarting(RESTARTS), "planned once": {"adapts": False},
    }  # fmt: skip

    def plan(given: Mapping[str, Any], roles: tuple[str, ...]) -> tuple[Outcome, dict[str, Any]]:
        outcome, told = nitsum.run_planned(requests, known, site, **given, roles=roles)
        return outcome, told | {"layout": "planned, prefill apart" if roles == nitsum.APART else "planned"}

    def keep(option: nitsum.Option) -> tuple[Outcome, dict[str, Any]]:
        width, tokens, prefill, _ = option
        name = f"tp{width}, {tokens} tokens" + (f", {prefill} prefill" if prefill else "")
        return nitsum.run_static(requests, *option, site=site), {"switches": 0, "paused": 0.0, "layout": name}

    able = partial(tier_plan.best_plan, site.layout, site.gpus, site.targets, known)
    roles = [each for each in (nitsum.APART, tier_plan.ROLES) if able(roles=each).served > 0]
    if not roles:
        raise BadInput(f"no cut of {site.gpus} GPUs keeps these targets for any tier; relax --slo or give more GPUs")
    ways: dict[str, list[Way]] = {
        name: [partial(plan, given, each) for each in roles] for name, given in planned.items()
    }
    return ways | {name: [partial(keep, one) for one in family] for name, family in nitsum.options(site).items()}


def _met(outcome: Outcome, site: Site) -> Any:
    """Which requests met their targets; those that fitted nowhere did not."""
    found = np.zeros(len(outcome.served))
    found[outcome.served] = outcome.met(site.targets)
    return found


def _row(
    name: str, met: Any, run: tuple[Outcome, dict[str, Any]], requests: Requests, later: Any, seconds: float
) -> dict[str, Any]:
    assert requests.tier is not None
    tier = requests.tier[later]
    each = {
        f"{label}_attainment": float(met[tier == code].mean()) if (tier == code).any() else None
        for code, label in enumerate(requests.tiers)
    }
    share = float(met.mean())
    return {"system": name, "attainment": share, "goodput": float(met.sum()) / seconds, **each, **run[1]}
