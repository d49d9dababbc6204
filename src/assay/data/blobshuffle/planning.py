"""How large and how old a blob should get: the cheapest choice that still arrives in time.

A byte waits for the commit that shows it, for the puts of that commit, for the broker, and for its get and those before
it. Requests fall as blobs grow. The plan draws those waits from the store's latencies and reads dollars off the price
book; `assay run blobshuffle` holds it against the simulated cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.data.blobshuffle.billing import TIB
from assay.data.store.delayed import PROFILES, Latency, Profile
from assay.record.errors import BadInput
from assay.sim.ledger import GB, LIST_PRICES, PriceBook
from assay.sim.streams import stream

SIZES = tuple((256 << 10) << power for power in range(9))  # bytes, to 64 MiB
AGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
NOTE = 80  # bytes, about
DRAWS = 4000
BROKER = Latency(0.005, 0.030)  # a commit with three replicas; approximate


@dataclass(frozen=True)
class Plan:
    """Bytes and seconds to a blob, and what to expect of them."""

    size: int
    age: float
    blob: float  # bytes that a blob really gets
    p95: float
    usd_per_tib: float


def plan(
    rate: float, p95: float, *, tasks: int = 64, parts: int = 64, zones: int = 3, by_zone: bool = True,
    profile: Profile = PROFILES["s3-standard"], prices: PriceBook = LIST_PRICES, broker: Latency = BROKER,
) -> Plan:  # fmt: skip
    """The cheapest size and age with which 95 of 100 bytes arrive in `p95` seconds, at `rate` bytes/s in all.

    >>> found = plan(rate=2 << 30, p95=2.0)
    >>> found.p95 <= 2.0, found.usd_per_tib < plan(rate=2 << 30, p95=0.8).usd_per_tib
    (True, True)
    """
    group = rate / tasks / (zones if by_zone else 1)
    told = (group, tasks, parts, zones, by_zone, profile, prices, broker)
    every = [_expected(size, age, *told) for size in SIZES for age in AGES]
    fits = [one for one in every if one.p95 <= p95]
    if not fits:
        least = min(one.p95 for one in every)
        raise BadInput(f"no blob arrives in {p95:g} s with {profile.name}; {least:.2f} s is the least, or go native")
    return min(fits, key=lambda one: (one.usd_per_tib, one.p95))


def _expected(
    size: int, age: float, group: float, tasks: int, parts: int, zones: int, by_zone: bool, profile: Profile,
    prices: PriceBook, broker: Latency,
) -> Plan:  # fmt: skip
    random = stream(0, "blobshuffle", "plan")

    def slowest(latency: Latency, of: int) -> NDArray[np.float64]:
        drawn = random.standard_normal((DRAWS, of)).max(axis=1)
        return np.asarray(latency.median * np.exp(latency.sigma * drawn))

    blob = group * age / (group * age // size + 1)  # a commit sends the rest of what filled blobs, however small
    wire = blob / profile.bandwidth
    commit = slowest(profile.put, zones if by_zone else 1) + slowest(broker, 1) + wire
    # A task does nothing else while it commits, so its records wait for that, too. A reader hands out in order, so
    # what has arrived waits for the slowest of those that are under way with it.
    cycle = age + float(np.median(commit))
    together = max(1, round(tasks / cycle * (profile.get.median + wire)))
    waits = random.uniform(0.0, cycle, DRAWS) + commit + slowest(profile.get, min(together, 64)) + wire
    usd = full_blobs(blob, parts, zones=zones, by_zone=by_zone, prices=prices)
    return Plan(size, age, blob, float(np.quantile(waits, 0.95)), usd)


def full_blobs(
    blob: float, parts: int, *, zones: int = 3, by_zone: bool = True, prices: PriceBook = LIST_PRICES
) -> float:
    """Dollars a TiB where every blob has so many bytes: its put, a get for each zone that reads it, and its notes.

    >>> full_blobs(4 << 20, parts=64) > 3 * full_blobs(16 << 20, parts=64)
    True
    """
    segments = parts / zones if by_zone else parts
    crossed = 2 * (1 - 1 / zones) + (min(3, zones) - 1)
    gets = 1 if by_zone else zones
    request = prices.put + gets * prices.get + segments * NOTE * crossed * prices.cross_zone_gb / GB
    return request * TIB / blob
