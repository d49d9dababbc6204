"""`assay compare flying-serving`: static layouts and ones that switch, on the user's own requests and engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.serving import flying_serving as paper
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.own_trace import at_rate
from assay.serving.engine.standings import Measure, add_leads, why
from assay.serving.flying_serving import Engines, Flying
from assay.workloads.requests import Requests
from assay.workloads.time_option import TIME_UNIT, read_decided

LATENCY = Measure("e2e_mean", "s mean end-to-end latency", "stretches of the second half's requests")
UNITS = {
    "e2e_mean": "s", "e2e_p99": "s", "ttft_mean": "s", "tpot_mean": "s", "express_e2e_mean": "s",
    "recomputed": "requests", "width": "engines",
}  # fmt: skip


@click.command(epilog="Example:  assay compare flying-serving --trace examples/shifts.csv --engines 4xh200:qwen3-32b")
@click.option("--trace", required=True, help="Any trace of requests; a tier may be urgent.")
@click.option("--engines", "text", default="8xh200:llama-3-8b", show_default=True, help="COUNTxGPU:MODEL[:tpN].")
@click.option("--express", default=paper.EXPRESS, show_default=True, help="The tier that is worth a merge of its own.")
@click.option("--rate", default="x1", show_default=True, help="x2 doubles the trace's rate; 12: requests a second.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@TIME_UNIT
def command(trace: str, text: str, express: str, rate: str, limit: int | None, time_unit: str | None) -> dict[str, Any]:
    """Layouts of one pool on your own requests: replicas, wide groups, and engines that merge and part."""
    requests = at_rate(read_decided(trace, limit, time_unit), rate)
    if express in requests.tiers:
        requests = replace(requests, tiers=tuple(paper.EXPRESS if t == express else t for t in requests.tiers))
    elif express != paper.EXPRESS:
        there = ", ".join(requests.tiers) or "none"
        raise BadInput(f"--express {express}: the trace has no such tier; it has {there}")
    return compare(requests, engines_of(text), progress=click.get_current_context().obj)


def engines_of(text: str) -> Engines:
    """Engines that may merge, from `8xh200:llama-3-8b`.

    >>> engines_of("2xh200:llama-3-70b:tp2").tp
    2
    """
    found = re.fullmatch(r"(\d{1,2})x(\S+:\S+)", text.strip())
    if not found or int(found[1]) < 2:
        raise BadInput(f"--engines '{text}': write COUNTxGPU:MODEL, at least two of them, such as 8xh200:llama-3-8b")
    engines = Engines(found[2], int(found[1]))
    if engines.count & (engines.count - 1) or engines.count > max(paper.PENALTY):
        raise BadInput(f"--engines '{text}': 2, 4 or 8 engines, since groups are powers of two")
    engines.native(1)  # a layout that is unknown or does not fit is refused by name
    return engines


def compare(
    requests: Requests, engines: Engines, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Every layout on the same requests. Flying's setting is the best of the first half; the second half is judged.

    >>> from assay.workloads.chat import chat
    >>> answer = compare(chat(120, rate=1.0, seed=0), Engines("h200:qwen3-32b", 2))
    >>> [row["layout"] for row in answer["table"]]
    ['flying', 'static DP', 'static TP', 'restart']
    """
    later = requests.arrival > 0.5 * (requests.arrival[0] + requests.arrival[-1])
    if not later.any() or later.all():
        raise BadInput("the trace has no second half to judge: all requests come at once")
    prompt, output = float(requests.prompt.mean()), float(requests.output.mean())
    urgent = paper.EXPRESS in requests.tiers
    # Whether urgent requests are worth a merge is one more thing that an operator would try.
    wishes = (False, True) if urgent else (False,)
    tried = [one | {"by_request": by} for by in wishes for one in paper.settings(engines, prompt, output)]
    statics = paper.statics(engines)
    total, runs = len(tried) + len(statics) + 1, {}
    tuned = []
    for done, one in enumerate(tried):
        progress(done, total)
        planner = Flying(engines, **one)
        tuned.append((planner, paper.served(requests, engines, planner)))
    best = int(np.argmin([_mean(outcome, ~later) for _, outcome in tuned]))
    runs["flying"] = tuned[best]
    for name, width in statics.items():
        progress(len(tried) + len(runs) - 1, total)
        runs[name] = (None, paper.served(requests, engines, width))  # type: ignore[assignment]
    slow = Flying(engines, **tried[best], restart=paper.RESTART, dwell=60.0, alarm=60.0, rest=600.0)
    runs["restart"] = (slow, paper.served(requests, engines, slow))
    everywhere = np.all([outcome.served for _, outcome in runs.values()], axis=0) & later
    table = [
        {"layout": name} | _row(outcome, planner, everywhere, statics.get(name))
        for name, (planner, outcome) in runs.items()
    ]
    add_leads(table, {name: outcome.e2e[everywhere[outcome.served]] for name, (_, outcome) in runs.items()}, LATENCY)
    said = why(table, LATENCY, "flying")
    if not runs["flying"][0].switches:
        said += " Flying never switched here, so its layout is that of replicas at the price of a shared pool."
    return {
        "trace": {
            "requests": len(requests), "judged": int(everywhere.sum()), "rate": requests.rate,
            "urgent": f"tier {paper.EXPRESS}" if urgent else "none",
        },
        "pool": {
            "engines": engines.count, "layout": engines.layout, "method": tried[best]["method"],
            "widest": tried[best]["widest"], "prefix_cache": "off",
        },
        "table": table, "units": UNITS, "why": said, "trust": paper.trust,
        "shown": ["layout", "e2e_mean", "e2e_p99", "ttft_mean", "tpot_mean", "switches"],
    }  # fmt: skip


def _mean(outcome: Outcome, part: Any) -> float:
    return float(outcome.e2e[part[outcome.served]].mean())


def _row(outcome: Outcome, planner: Flying | None, judged: Any, width: int | None) -> dict[str, Any]:
    mine = judged[outcome.served]
    tier = outcome.requests.tier
    urgent = None
    if tier is not None and paper.EXPRESS in outcome.requests.tiers:
        chosen = (tier[outcome.served] == outcome.requests.tiers.index(paper.EXPRESS)) & mine
        urgent = float(outcome.e2e[chosen].mean()) if chosen.any() else None
    return {
        "e2e_mean": float(outcome.e2e[mine].mean()), "e2e_p99": float(np.quantile(outcome.e2e[mine], 0.99)),
        "ttft_mean": float(outcome.ttft[mine].mean()), "tpot_mean": float(outcome.tpot[mine].mean()),
        "switches": planner.switches if planner else 0, "express_e2e_mean": urgent,
        "recomputed": planner.pool.recomputed if planner else 0,
        "width": planner.widest if planner else width,
    }  # fmt: skip
