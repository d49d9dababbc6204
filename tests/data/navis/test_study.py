"""The study's tables answer its claims."""

from __future__ import annotations

import numpy as np
import polars as pl

from assay.data import navis
from assay.data.navis import trials


def table() -> pl.DataFrame:
    """As a run would give it, with made-up numbers: ours twice as good."""
    rows = []
    for seed in range(3):
        for width in navis.WIDTHS:
            for design in (trials.PACKED, "layout", trials.OURS):
                good = 2.0 if design == trials.OURS else 1.0
                noise = 1 + 0.01 * seed
                shared = {"width": width, "design": design, "seed": seed, "recall": 0.97}
                counted = {"kib_read_per_insert": 200 / good * noise, "hops": 4 / good, "searches_per_s": 9.0}
                alone = {"experiment": "growth", "inserts_per_s": 100 * good * noise, "search_ms": None, **counted}
                beside = {"experiment": "together", "inserts_per_s": 50.0, "search_ms": 4 / good * noise}
                nothing = {"kib_read_per_insert": None, "hops": None, "searches_per_s": 100 * good}
                rows += [shared | alone, shared | beside | nothing]
    return pl.DataFrame(rows)


def test_claims_read_what_they_say() -> None:
    answers = {claim.id: claim.measure(table()).value for claim in navis.claims}
    assert np.isclose(answers["insertion"], 2.0) and np.isclose(answers["search"], 2.0)
    assert np.isclose(answers["latency"], -0.5) and np.isclose(answers["bytes"], 0.5)
    assert np.isclose(answers["recall"], 0.97) and np.isclose(answers["drift"], 0.5)


def test_a_search_beside_insertions_is_measured_on_the_same_stream() -> None:
    found = trials.together(width=24, base=400, inserts=64, queries=20, seed=1)
    assert list(found) == [trials.PACKED, trials.OURS]
    for row in found.values():
        assert row["searches"] > 0 and row["recall"] > 0.9
