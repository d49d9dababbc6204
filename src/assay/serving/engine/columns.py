"""The columns of a comparison: the unit each is in, and which of them people see first."""

from __future__ import annotations

import math

from assay.serving.engine.targets import Targets
from assay.serving.interface import SLO

SECONDS = "s"
RATE = "req/s"
_BY_UNIT = {
    SECONDS: "ttft_mean ttft_p50 ttft_p99 tpot_mean tpot_p50 tpot_p99 e2e_mean e2e_p99 queueing_mean itl_p99 "
    "sim_seconds seconds best",
    RATE: "offered completed goodput capacity capacity_above rate",
    "tokens/s": "tokens_per_second",
    "tokens": "prompt_mean output_mean kv_tokens block smallest_prompt its_output",
    "$/Mtok": "usd_per_mtok usd_per_mtok_all",
    "J/Mtok": "joules_per_mtok joules_per_mtok_all",
    "J": "joules_per_request",
    "$/h": "usd_per_hour",
    "share": "cached_ratio attainment attainment_counted imbalance led_by led_by_low led_by_high",
}
# By column. What is missing counts something.
UNITS = {name: unit for unit, names in _BY_UNIT.items() for name in names.split()}

# How long the simulation itself took is no latency of anybody: it is told apart from them.
APART = ["sim_seconds"]

COSTS = ["usd_per_mtok", "joules_per_mtok"]
SHOWN = ["policy", "ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "cached_ratio", *COSTS]


def shown(targets: Targets | None, find: bool) -> list[str]:
    """The columns that matter: who, the measure that decides, what users feel, and why; with targets, those they name.

    >>> shown(SLO(e2e=60.0), find=False)
    ['policy', 'goodput', 'attainment', 'e2e_p99', 'cached_ratio', 'usd_per_mtok', 'joules_per_mtok']
    """
    if targets is None:
        return SHOWN
    each = [targets] if isinstance(targets, SLO) else list(targets.values())
    named = [f"{name}_p99" for name in SLO._fields if any(getattr(slo, name) < math.inf for slo in each)]
    first = ["policy", "capacity", "attainment_counted"] if find else ["policy", "goodput", "attainment"]
    return [*first, *named, "cached_ratio", *COSTS]
