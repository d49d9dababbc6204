"""What a trace is like, in numbers a person compares: rate, burstiness, lengths, reuse, turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.workloads.prefixes import infinite_cache_hit, turns
from assay.workloads.requests import Floats, Ints, Requests


def burstiness(arrival: Floats) -> dict[str, float]:
    """How unevenly requests come.

    `cv`: coefficient of variation of the gaps (Poisson: 1); `lag1`: correlation of a gap with the next (0);
    `dispersion_1` and `dispersion_60`: variance over mean of the counts in 1 s and 60 s (1); nan where there are too
    few to tell.

    >>> burstiness(np.arange(10.0))["cv"]
    0.0
    """
    gaps = np.diff(arrival)
    varies = len(gaps) > 2 and gaps[1:].std() > 0 and gaps[:-1].std() > 0
    return {
        "cv": float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else float("nan"),
        "lag1": float(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) if varies else float("nan"),
        "dispersion_1": dispersion(arrival, 1.0),
        "dispersion_60": dispersion(arrival, 60.0),
    }


def dispersion(arrival: Floats, seconds: float) -> float:
    """Variance over mean of the number of arrivals in windows of so many seconds; nan for fewer than five windows
    or more than ten million."""
    if len(arrival) and arrival[-1] - arrival[0] > 1e7 * seconds:
        return float("nan")  # a count of nothing but empty windows
    counted = counts(arrival, seconds)[:-1]  # the last window is not whole
    return float(counted.var() / counted.mean()) if len(counted) >= 5 and counted.mean() > 0 else float("nan")


def counts(arrival: Floats, seconds: float) -> Ints:
    """Arrivals in each window of so many seconds.

    >>> counts(np.array([0.0, 0.5, 2.5]), 1.0).tolist()
    [2, 0, 1]
    """
    if not len(arrival):
        return np.empty(0, np.int32)
    return np.bincount(((arrival - arrival[0]) / seconds).astype(np.int64)).astype(np.int32)


def spread_of(values: Ints) -> dict[str, float]:
    """Mean, quantiles and maximum of a column."""
    p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def _groups(requests: Requests) -> dict[str, dict[str, int]]:
    """How many requests each tier, tenant, model and category has."""
    columns = {
        "tiers": (requests.tier, requests.tiers),
        "tenants": (requests.tenant, requests.tenants),
        "models": (requests.model, requests.models),
        "categories": (requests.category, requests.categories),
    }
    groups = {}
    for name, (codes, labels) in columns.items():
        if codes is not None:
            counted = np.bincount(codes[codes >= 0], minlength=len(labels)).tolist()
            groups[name] = dict(zip(labels, counted, strict=True))
    return groups


def describe(requests: Requests) -> dict[str, Any]:
    """A trace as `assay traces FILE` prints it.

    >>> about = describe(Requests.of([0.0, 0.5, 2.0], [100, 20, 60], [5, 7, 9]))
    >>> about["requests"], about["seconds"], about["prompt"]["max"], about["infinite_cache_hit"]
    (3, 2.0, 100.0, None)
    """
    seconds = requests.seconds
    window = max(1.0, seconds / 1e6)
    before = turns(requests)
    known = requests.session is not None or requests.prefixes is not None
    return {
        "requests": len(requests),
        "seconds": seconds,
        "rate": requests.rate if seconds else None,
        "rate_peak": float(counts(requests.arrival, window).max() / window),
        "burstiness": {k: None if np.isnan(v) else v for k, v in burstiness(requests.arrival).items()},
        "prompt": spread_of(requests.prompt),
        "output": spread_of(requests.output),
        "infinite_cache_hit": infinite_cache_hit(requests) if requests.prefixes is not None else None,
        "sessions": int((before < 0).sum()) if known else None,
        "sessions_inferred": known and requests.session is None,
        "turns_mean": float(len(before) / (before < 0).sum()) if known else None,
        **_groups(requests),
    }
