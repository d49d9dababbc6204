"""The study: each claim is answered from its table, and comparisons say who wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assay.data import solanet
from assay.data.solanet import trials
from assay.data.solanet.compare import _why
from assay.record.tables import joined
from assay.record.types import NotMeasured

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "points.fbin")


def answer(name: str, **tables: list[dict[str, Any]]) -> Any:
    found = joined({experiment: pl.from_dicts(rows) for experiment, rows in tables.items()})
    return next(claim for claim in solanet.claims if claim.id == name).measure(found)


def way(refine: str, recall: float, distances: float, seed: int = 0) -> dict[str, Any]:
    return {"refine": refine, "recall": recall, "distances": distances, "seed": seed}


def test_ways_to_refine_are_compared_where_both_find_the_same() -> None:
    rows = [way("tree", 0.98, 10.0), way("tree", 0.992, 30.0), way("tree", 0.998, 50.0), way("all-pairs", 0.995, 80.0)]
    assert answer("tree", refine=rows).value == pytest.approx(0.5)
    rows[3] = way("all-pairs", 0.5, 5.0)
    with pytest.raises(NotMeasured, match=r"did not find 99\.0%"):
        answer("tree", refine=rows)


def quality(parts: int, recall: float, wrong: int = 0) -> dict[str, Any]:
    counted = {"local_distances": 1000.0, "pulled_bytes": 1500.0 * (parts > 1)}
    return {"parts": parts, "seed": 0, "n": 100, "width": 46, "recall": recall, "wrong": wrong} | counted


def test_recall_is_that_of_the_worst_number_of_parts() -> None:
    rows = [quality(1, 0.999), quality(2, 0.991), quality(4, 0.995)]
    assert answer("recall", quality=rows).value == pytest.approx(0.991)
    assert answer("parts", quality=rows).value == pytest.approx(0.004)
    with pytest.raises(NotMeasured):
        answer("recall", quality=rows[:2])


def test_one_wrong_list_breaks_the_universal_claim() -> None:
    rows = [quality(1, 1.0), quality(2, 1.0), quality(4, 1.0, wrong=1)]
    assert answer("lists", quality=rows).value == pytest.approx(299 / 300)


def test_messages_are_counted_at_their_least() -> None:
    rows = [quality(1, 1.0), quality(4, 1.0)]
    assert answer("bytes", quality=rows).value == pytest.approx(1500 / (1000 * 0.75 * 200))


def test_larger_machines_are_counted_from_small_builds() -> None:
    found = trials.scaling(parts=8, size=64, width=8, k=8, seed=0)
    builds = ("1e9 on 32", "1e9 on 512", "2e9 on 64", "2e9 on 512")
    assert set(found) == {f"{refine}, {build}" for refine in ("tree", "all-pairs") for build in builds}
    times = {
        refine: found[f"{refine}, 1e9 on 32"]["seconds"] / found[f"{refine}, 1e9 on 512"]["seconds"]
        for refine in ("tree", "all-pairs")
    }
    assert 1 < times["tree"] < 16, "a rank has a sixteenth of the points, and four rounds more"
    assert times["all-pairs"] < times["tree"], "and here as many rounds more as there are ranks"


def test_one_part_alone_is_timed_beside_its_rivals() -> None:
    found = trials.local(n=400, width=8, k=8, rounds=1, seed=0)
    assert set(found) == {"lock-free", "in-place", "exact"}
    assert found["exact"]["recall"] > 0.999 and all(row["seconds"] > 0 for row in found.values())


def test_ways_are_compared_on_vectors_of_ones_own() -> None:
    from assay.cli.compare import command

    given = [
        "data",
        "--job",
        "knn",
        "--input",
        EXAMPLE,
        "-k",
        "10",
        "--points",
        "300",
        "--without-pynndescent",
        "--json",
    ]
    told = CliRunner().invoke(command, given, catch_exceptions=False)
    found = json.loads(told.output)
    assert {row["method"] for row in found["table"]} == {"solanet", "all-pairs", "one process", "exact"}
    assert found["input"]["compared"] == 300 and found["why"]


def row(method: str, seconds: float, recall: float = 1.0) -> dict[str, Any]:
    return {"method": method, "seconds": seconds, "recall": recall}


def test_who_finds_too_little_does_not_win_and_close_ones_tie() -> None:
    assert _why([row("solanet", 1.0, 0.9), row("exact", 2.0), row("one process", 3.0)]) == (
        "exact is 1.5 times as fast as one process: so few points need no graph. solanet finds 90.0%."
    )
    assert _why([row("solanet", 1.0), row("exact", 1.05), row("one process", 3.0)]) == "solanet and exact tie."
    assert _why([row("exact", 1.0), row("solanet", 2.0, 0.5)]).startswith("Only exact finds 99% of the neighbours.")
