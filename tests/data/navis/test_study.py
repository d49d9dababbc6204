"""The study's tables answer its claims."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from assay.data import navis
from assay.data.navis import trials
from assay.record.types import NotMeasured


def table(**changed: float) -> pl.DataFrame:
    """As a run would give it, with made-up numbers: ours twice as good."""
    rows = []
    for seed in range(3):
        for width in navis.WIDTHS:
            for design in (trials.PACKED, "layout", trials.OURS):
                good = 2.0 if design == trials.OURS else 1.0
                noise = 1 + 0.01 * seed
                case = {"width": width, "base": 50_000, "design": design, "seed": seed}
                alone = {"inserts_per_s": 100 * good * noise, "searches_per_s": 9.0, "recall": 0.97}
                counted = {"kib_read_per_insert": 200 / good * noise, "hops": 4 / good, "joined": 40}
                beside = {"searches_per_s": 100 * good, "search_ms": 4 / good * noise, "recall": 0.96}
                meanwhile = {f"{name}_meanwhile": value for name, value in beside.items()}
                rows.append(case | alone | counted | meanwhile | {"free_cores": 2.0} | changed)
    return pl.DataFrame(rows)


def test_claims_read_what_they_say() -> None:
    answers = {claim.id: claim.measure(table()).value for claim in navis.claims}
    assert np.isclose(answers["insertion"], 2.0) and np.isclose(answers["search"], 2.0)
    assert np.isclose(answers["latency"], -0.5) and np.isclose(answers["bytes"], 0.5)
    assert np.isclose(answers["recall"], 0.97) and np.isclose(answers["recall-meanwhile"], 0.96)
    assert np.isclose(answers["drift"], 0.5)


def answer(key: str, rows: pl.DataFrame) -> float:
    return next(claim.measure(rows).value for claim in navis.claims if claim.id == key)


def test_what_the_clock_says_on_a_busy_machine_is_no_answer() -> None:
    busy = table(free_cores=0.4)
    for key in ("insertion", "search", "latency"):
        with pytest.raises(NotMeasured, match=r"others left 0\.4 processors"):
            answer(key, busy)
    assert np.isclose(answer("bytes", busy), 0.5)


def test_an_entrance_that_hardly_moved_says_nothing_of_moving() -> None:
    with pytest.raises(NotMeasured, match="took in 3 nodes"):
        answer("drift", table(joined=3))
    with pytest.raises(NotMeasured, match="an index of 1,200 vectors looks at its whole entrance"):
        answer("drift", table(base=1200))


def test_a_search_beside_insertions_is_measured_on_the_same_stream() -> None:
    found = trials.trial(width=24, base=120, inserts=32, queries=16, every=False, seed=1)
    assert list(found) == [trials.PACKED, trials.OURS]
    for row in found.values():
        assert row["searches_meanwhile"] > 0 and row["recall_meanwhile"] > 0.9 and row["recall"] > 0.9
