"""What is counted and simulated is what it says, and the study answers every claim."""

from __future__ import annotations

import polars as pl
import pytest

from assay.data.blobshuffle import MIB, costs, off, plan
from assay.data.blobshuffle.shuffle import DESIGNS, Placement
from assay.data.blobshuffle.simulate import GIB, cluster, counted, named, records_of
from assay.record.errors import BadInput
from assay.record.runner import run
from assay.record.types import Verdict
from assay.sim.ledger import LIST_PRICES


@pytest.mark.slow
def test_the_study_answers_every_claim() -> None:
    result = run("blobshuffle", seeds=(3, 17, 99))
    verdicts = {claim.id: claim.verdict for claim in result.claims}
    assert Verdict.NOT_MEASURED not in verdicts.values()
    for name in ("cost", "p95", "rate", "four", "small", "exact", "crashes"):
        assert verdicts[name] is Verdict.REPRODUCED, name


def test_native_crosses_zones_ten_thirds_times_and_eight_thirds_with_the_nearest_replica() -> None:
    placement = Placement(parts=9)  # every pair of a leader's and a reader's zone once
    batches = [(f"t{task}", list(range(9)), [bytes(1000)] * 9) for task in range(3)]
    for name, times in (("native", 10 / 3), ("native, follower fetch", 8 / 3)):
        found = counted(DESIGNS[name], batches, placement)
        assert found["crossings"] == pytest.approx(times, rel=0.01) and found["missing"] == 0
        assert found["usd_per_TiB"] == pytest.approx(times * 0.02 * 2**40 / 1e9, rel=0.01)


def test_dollars_are_the_requests_that_were_made() -> None:
    found = counted(DESIGNS["blob"].sized(MIB // 4), records_of(3000, 1024, 64, seed=1), Placement(64))
    asked = found["puts"] * LIST_PRICES.put + found["gets"] * LIST_PRICES.get
    crossed = found["crossings"] * found["bytes"] / 1e9 * LIST_PRICES.cross_zone_gb
    kept = found["bytes"] / 1e9 / 730 * LIST_PRICES.gb_month  # an hour
    assert found["usd_per_TiB"] == pytest.approx((asked + crossed + kept) * 2**40 / found["bytes"])
    assert found["missing"] == 0 and found["gets"] > 10 * found["puts"]


def test_bytes_that_stand_for_more_cost_the_same() -> None:
    size, records = MIB, 4000
    real = counted(DESIGNS["blob + cache"].sized(size), records_of(records, 4096, 64, seed=2), Placement(64))
    less = counted(DESIGNS["blob + cache"].sized(size), records_of(records, 64, 64, seed=2), Placement(64), scale=64)
    assert less["bytes"] == real["bytes"] and (less["puts"], less["gets"]) == (real["puts"], real["gets"])
    assert less["usd_per_TiB"] == pytest.approx(real["usd_per_TiB"], rel=0.02)


def test_large_blobs_with_a_cache_are_forty_times_cheaper_and_small_ones_are_not_fifteen_times() -> None:
    large, small = costs(4 * MIB, 8, seed=1), costs(MIB // 4, 8, seed=1)
    assert large["native"]["usd_per_TiB"] >= 40 * large["blob + cache"]["usd_per_TiB"]
    assert small["native"]["usd_per_TiB"] < 15 * small["blob + cache"]["usd_per_TiB"]
    assert large["blob + cache, all zones"]["gets_per_blob"] <= 3.01
    assert {row["missing"] for row in (*large.values(), *small.values())} == {0}


def test_a_cluster_loses_nothing_and_goes_the_same_way_twice() -> None:
    def once() -> dict[str, object]:
        return cluster(named("blob + cache"), GIB / 4, tasks=8, parts=8, seconds=2.0, seed=5)

    found = once()
    assert (found["lost"], found["disorder"], found["gets_per_blob"]) == (0, 0, 1.0)
    assert 0.3 < found["p95"] < 2.0  # type: ignore[operator]
    assert found == once()


def test_a_plan_keeps_its_target_in_the_cluster_or_says_that_none_can() -> None:
    found = plan(GIB / 4, 1.5, tasks=8, parts=8)
    seen = cluster(named("blob + cache", found.size, found.age), GIB / 4, tasks=8, parts=8, seconds=4.0, seed=1)
    assert seen["p95"] == pytest.approx(found.p95, rel=0.2)
    assert seen["usd_per_TiB"] == pytest.approx(found.usd_per_tib, rel=0.2)
    with pytest.raises(BadInput, match=r"no blob arrives in 0.05 s"):
        plan(GIB, 0.05)


def test_a_plans_error_is_its_larger_one() -> None:
    row = {"experiment": "plan", "seed": 0, "planned_p95": 1.1, "p95": 1.0, "planned_usd": 0.7, "usd_per_TiB": 1.0}
    assert off(pl.DataFrame([row])).value == pytest.approx(0.3)
