"""The ratios that count are those of files from which land cover is still told; claims say over which they are."""

from __future__ import annotations

import polars as pl
import pytest

from assay.training import d2ar


@pytest.mark.parametrize(
    ("claim", "value", "cases"), [("best", 1001.0, "1,000x, of 3 cases"), ("least", 100.0, "100x")]
)
def test_a_ratio_counts_where_its_files_are_usable(claim: str, value: float, cases: str) -> None:
    of = {100: (100.0, True), 1000: (1001.0, True), 10_000: (9_990.0, False)}
    table = pl.DataFrame(
        [
            {"experiment": "held out", "method": f"d2ar at {ratio}", "seed": seed, "ratio": found, "usable": usable}
            for ratio, (found, usable) in of.items()
            for seed in (0, 1)
        ]
    )
    (one,) = [each for each in d2ar.claims if each.id == claim]
    answer = one.measure(table)
    assert answer.value == pytest.approx(value) and answer.cases.startswith(cases)
