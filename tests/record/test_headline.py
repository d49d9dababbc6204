"""What people read first of a study's table: six columns, the contenders, no more rows than fit a screen."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from assay.record.fold import Folded, FoldedRow
from assay.record.headline import COLUMNS, ROWS, headline, named
from assay.record.measures import best, change, mean
from assay.record.types import Claim, Estimate

POLICIES = [f"policy {n}" for n in range(8)]


def table(case: dict[str, list[Any]], measured: list[str]) -> Folded:
    """All combinations of the cases; what is measured counts the rows."""
    combined: list[tuple[Any, ...]] = [()]
    for values in case.values():
        combined = [(*row, value) for row in combined for value in values]
    rows = [
        FoldedRow(each, 5, tuple(at + column for column in range(len(measured)))) for at, each in enumerate(combined)
    ]
    return Folded(tuple(case), tuple(measured), rows)


def custom(found: pl.DataFrame) -> Estimate:
    chosen = found.filter(pl.col("regime") == "burst")
    return Estimate(_helper(chosen), 0.0, 0.0, 1)


def _helper(found: pl.DataFrame) -> float:
    return float(found["latency"].sum())


def test_the_claims_name_what_they_are_about() -> None:
    claims = [
        Claim("one", change("ttft", new={"policy": "mine"}, old={"policy": "theirs"}, load=0.85)),
        Claim("two", best({"a": mean("tpot", workload="chat")})),
        Claim("three", custom),
    ]
    assert {"ttft", "policy", "mine", "theirs", 0.85, "tpot", "chat", "regime", "burst", "latency"} <= named(claims)


def test_a_small_table_is_shown_whole() -> None:
    small = table({"policy": POLICIES[:3], "load": [0.5, 0.9]}, ["ttft", "tpot"])
    first = headline(small)
    assert first.columns == ("policy", "load", "ttft", "tpot")
    assert [row[:2] for row in first.rows] == [row.case for row in small.rows]
    assert (first.over, first.hidden, first.everywhere) == ((), 0, {})


def test_what_is_the_same_in_all_rows_is_said_once() -> None:
    first = headline(table({"gpu": ["h200"], "policy": POLICIES[:2], "n": [100]}, ["ttft"]))
    assert first.columns == ("policy", "ttft")
    assert first.everywhere == {"gpu": "h200", "n": 100}


def test_of_a_large_table_the_contenders_are_shown_with_their_means() -> None:
    large = table({"workload": ["chat", "agents", "batch"], "policy": POLICIES, "n": [1, 2, 3]}, ["ttft"])
    first = headline(large, frozenset({"policy 1", "policy 2", "chat", "agents", "batch"}))
    assert first.columns == ("policy", "ttft")
    assert [row[0] for row in first.rows] == POLICIES
    assert first.over == ("workload", "n")
    assert first.cases == 72
    assert first.rows[0][1] == pytest.approx(sum(w * 24 + n for w in range(3) for n in range(3)) / 9)


def test_the_name_of_a_run_is_no_contender() -> None:
    rows = [FoldedRow((method, f"{run} {method}"), 1, (run,)) for run in range(12) for method in ("replay", "timeline")]
    first = headline(Folded(("method", "run"), ("error",), rows))
    assert first.columns == ("method", "error")
    assert first.over == ("run",)


def test_six_columns_those_that_vary_and_that_claims_name() -> None:
    names = ["rounds", "a", "b", "c", "d", "e", "f", "wanted"]
    wide = table({"policy": POLICIES[:3]}, names)
    wide = wide._replace(rows=[row._replace(means=(7, *row.means[1:])) for row in wide.rows])  # always 7 rounds
    first = headline(wide, frozenset({"wanted", "rounds"}))
    assert first.columns == ("policy", "a", "b", "c", "d", "wanted")
    assert (len(first.columns), first.hidden) == (COLUMNS, 3)


def test_what_holds_or_not_is_a_share_where_rows_are_means() -> None:
    rows = [FoldedRow((policy, n), 1, (n > 4,)) for policy in POLICIES[:2] for n in range(20)]
    first = headline(Folded(("policy", "n"), ("right",), rows))
    assert first.rows == [("policy 0", 0.75), ("policy 1", 0.75)]


def test_a_table_without_cases_is_left_as_it_is() -> None:
    first = headline(Folded((), ("model", "named"), [FoldedRow((), 1, (str(n), True)) for n in range(85)]))
    assert first.columns == ("model", "named")
    assert len(first.rows) == 85 > ROWS
