"""Targets as a user writes them: for every request, or for each tier of the trace its own; and how well tiers fare.

`ttft=1,tpot=0.05` is meant for all requests; `batch:e2e=60` for those of the tier "batch", in place of those for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.serving.engine.outcome import Outcome
from assay.serving.interface import SLO
from assay.workloads.requests import Requests

Targets = SLO | Mapping[str, SLO]  # by tier; "" stands for the tiers without an entry and for requests without a tier
EXAMPLE = "ttft=1,tpot=0.05"


def read_slo(text: str) -> SLO:
    """Targets from `ttft=1,tpot=0.05`.

    >>> read_slo("ttft=1,tpot=0.05")
    SLO(ttft=1.0, tpot=0.05, e2e=inf)
    """
    targets: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if name not in SLO._fields or not 0 < seconds < math.inf:
            raise BadInput(f"--slo '{part.strip()}': write seconds, for example {EXAMPLE} (also e2e)")
        if name in targets:
            raise BadInput(f"--slo '{text}': {name} is given twice")
        targets[name] = seconds
    return SLO(**targets)


def read_targets(texts: Sequence[str]) -> Targets | None:
    """What all `--slo` say together; None where there is none.

    >>> read_targets(["ttft=1", "batch:e2e=60"])["batch"]
    SLO(ttft=inf, tpot=inf, e2e=60.0)
    """
    found: dict[str, SLO] = {}
    for text in texts:
        tier, _, targets = text.rpartition(":")
        tier = tier.strip()
        if tier in found:
            raise BadInput(f"--slo '{text}': {f'tier {tier!r}' if tier else 'every request'} has targets already")
        found[tier] = read_slo(targets)
    if not found:
        return None
    return found[""] if set(found) == {""} else found


def check_tiers(targets: Targets | None, requests: Requests) -> None:
    """A tier that the trace lacks is refused, with those it has.

    >>> check_tiers({"batch": SLO(e2e=60.0)}, Requests.of([0.0], [9], [1]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    assay.record.errors.BadInput: --slo batch:…: generated names no tiers (a column tier, service_tier or priority); ...
    """
    if targets is None or isinstance(targets, SLO):
        return
    for tier in targets:
        if tier and tier not in requests.tiers:
            name = requests.source.name
            if not requests.tiers:
                cure = (
                    f"names no tiers (a column tier, service_tier or priority); write --slo {EXAMPLE} for all requests"
                )
                raise BadInput(f"--slo {tier}:…: {name} {cure}")
            raise BadInput(f"--slo {tier}:…: {name} has no such tier; it has {', '.join(requests.tiers)}")


def of_tier(targets: Targets, tier: str) -> SLO:
    """The targets of a tier's requests.

    >>> of_tier({"batch": SLO(e2e=60.0), "": SLO(ttft=1.0)}, "chat").ttft
    1.0
    """
    return targets if isinstance(targets, SLO) else targets.get(tier, targets.get("", SLO()))


def written(slo: SLO) -> str:
    """Targets as they are given on the command line.

    >>> written(SLO(ttft=1.0, e2e=60.0)), written(SLO())
    ('ttft=1,e2e=60', 'none')
    """
    given = [f"{name}={value:g}" for name, value in slo._asdict().items() if value < math.inf]
    return ",".join(given) or "none"


def tier_rows(policy: str, outcome: Outcome, targets: Targets) -> list[dict[str, Any]]:
    """How each tier of the trace fared: a row each; refused requests count as missed.

    >>> from assay.serving import simulate, parse, RoundRobin
    >>> trace = Requests.of([0.0, 1.0], [90, 90], [2, 2], tier=np.array([0, -1], np.int32), tiers=("chat",))
    >>> outcome = simulate(trace, parse("1xh200:qwen3-8b"), RoundRobin())
    >>> [(row["tier"], row["attainment"]) for row in tier_rows("round-robin", outcome, {"chat": SLO(ttft=9.0)})]
    [('chat', 1.0), ('no tier', 1.0)]
    """
    tier = outcome.requests.tier
    if tier is None:
        return []
    met, served = outcome.met(targets), outcome.judged
    rows = []
    for code, name in [*enumerate(outcome.requests.tiers), (-1, "")]:
        asked, here = int(((tier == code) & outcome.asked).sum()), tier[served] == code
        if not asked:
            continue
        row: dict[str, Any] = {"policy": policy, "tier": name or "no tier", "requests": asked}
        row |= {"targets": written(of_tier(targets, name)), "attainment": float(met[here].sum() / asked)}
        for measure in ("ttft", "tpot", "e2e"):
            values = getattr(outcome, measure)[here]
            row[f"{measure}_p99"] = float(np.quantile(values, 0.99)) if len(values) else None
        rows.append(row)
    return rows
