from __future__ import annotations

import asyncio

import numpy as np
import pytest

from assay.data.store.delayed import PROFILES, Delayed, Latency, Profile, fitted, profile
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.clock import VirtualClock, run_virtual
from assay.sim.ledger import Ledger


def measured(kind: Profile, requests: int, seed: int = 0) -> Ledger:
    async def main() -> Ledger:
        ledger, clock = Ledger(), VirtualClock()
        store = Metered(Delayed(MemStore(clock), kind, seed=seed), ledger, clock=clock)

        async def one(i: int) -> None:
            await store.put(f"{i}/x", b"1")
            await store.get(f"{i}/x")

        await asyncio.gather(*map(one, range(requests)))
        return ledger

    return run_virtual(main())


def test_latencies_have_the_profiles_middle_and_tail() -> None:
    ledger = measured(PROFILES["s3-standard"], 5000)
    assert ledger.quantile("put", 0.5) == pytest.approx(0.060, rel=0.1)
    assert ledger.quantile("get", 0.5) == pytest.approx(0.030, rel=0.1)
    assert ledger.quantile("put", 0.99) == pytest.approx(0.400, rel=0.2)


def test_the_same_seed_gives_the_same_times() -> None:
    rows = [measured(PROFILES["s3-express"], 50, seed).rows() for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]


def test_bytes_take_their_time_in_both_directions() -> None:
    kind = Profile("pipe", Latency(0.001, 0.001), Latency(0.001, 0.001), bandwidth=1e6)

    async def main() -> list[float]:
        store, times = Delayed(MemStore(VirtualClock()), kind), [0.0]
        await store.put("a", bytes(2_000_000))
        times.append(VirtualClock().now())
        await store.get("a")
        times.append(VirtualClock().now())
        await store.get("a", 0, 500_000)
        times.append(VirtualClock().now())
        return np.diff(times).tolist()

    assert run_virtual(main()) == pytest.approx([2.001, 2.001, 0.501])


def test_above_a_prefixs_rate_requests_are_refused_and_come_again() -> None:
    kind = Profile("capped", Latency(0.001, 0.001), Latency(0.001, 0.001), puts=100)

    async def main(prefixes: int) -> tuple[float, int]:
        store = Delayed(MemStore(VirtualClock()), kind)
        await asyncio.gather(*(store.put(f"p{i % prefixes}/{i}", b"") for i in range(1000)))
        return VirtualClock().now(), store.refused

    seconds, refused = run_virtual(main(1))
    assert 9.0 <= seconds < 25.0 and refused > 900  # a thousand at a hundred a second, after a burst of one second
    assert run_virtual(main(10))[0] < seconds / 3  # the limit is a prefix's own


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(BadInput, match="there are zero, s3-standard"):
        profile("s4")


def test_a_profile_fitted_to_a_store_behaves_like_it() -> None:
    like = measured(PROFILES["minio-lan"], 2000)
    seconds = {"get": [0.0] * 0, "put": []}
    rng = np.random.default_rng(3)
    for op in seconds:
        latency = getattr(PROFILES["minio-lan"], op)
        seconds[op] = (latency.median * np.exp(latency.sigma * rng.standard_normal(4000))).tolist()
    again = measured(fitted("mine", seconds, 500e6, "here"), 2000)
    for op in ("get", "put"):
        for q in (0.5, 0.95):
            assert again.quantile(op, q) == pytest.approx(like.quantile(op, q), rel=0.15)


@pytest.mark.timed
def test_virtual_time_serves_fifty_thousand_requests_a_second() -> None:
    import time

    began = time.process_time()
    ledger = measured(PROFILES["s3-standard"], 50_000)
    assert ledger.requests() / (time.process_time() - began) > 50_000
