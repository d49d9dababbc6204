"""The study: its trials measure what they say, and each claim is answered from the tables."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from assay.data import graphflash
from assay.data.graphflash import trials
from assay.record.tables import joined

SYSTEMS = {"graphflash": 1.0, "graphflash-rotating": 4.0, "graphless-like": 60.0, "in-memory": 0.5}


def table(**changed: Any) -> pl.DataFrame:
    def rows(**case: Any) -> pl.DataFrame:
        return pl.from_dicts(
            [
                {**case, "system": name, "seed": seed, "seconds": took * (1 + seed / 50), "gb_seconds": took,
                 "usd": took / 100, "same": changed.get("same", True)}
                for name, took in SYSTEMS.items()
                for seed in (0, 1, 2)
            ]
        )  # fmt: skip

    ample = pl.concat([rows(graph=graph, program=program) for graph, program in graphflash.RUNS])
    crashes = pl.DataFrame(
        {"ops": [9, 9], "seed": [0, 1], "cases": [100, 100], "kept": [100, changed.get("kept", 100)]}
    )
    return joined({"ample": ample, "limited": ample, "large": rows(graph="rmat"), "crashes": crashes})


def answer(name: str, found: pl.DataFrame) -> Any:
    return next(claim for claim in graphflash.claims if claim.id == name).measure(found)


def test_the_papers_claims_are_read_off_against_a_key_a_vertex_and_against_memory() -> None:
    found = table()
    assert answer("speed", found).value == pytest.approx(60.0)
    assert answer("resources", found).value == pytest.approx(1 / 60 - 1)
    assert answer("limited", found).value == pytest.approx(15.0)
    assert answer("cost", found).value == pytest.approx(4 / 60 - 1)
    assert answer("clusters", found).value == pytest.approx(1.0)


def test_one_wrong_answer_or_lost_case_breaks_a_universal_claim() -> None:
    assert answer("right", table()).value == 1.0 and answer("right", table(same=False)).value == 0.0
    assert answer("crashes", table(kept=99)).value == pytest.approx(0.995)


def test_a_plot_has_every_system() -> None:
    assert "graphless-like" in graphflash.plot(table()).to_json()


def test_each_part_of_the_design_saves_what_it_is_for() -> None:
    """On a small grid of roads, with nothing else changed."""
    rows = trials.counted("road", "bfs", nodes=144, degree=4, parts=9, seed=1)
    ours = rows["graphflash-rotating"]
    assert all(row["same"] for row in rows.values())
    assert rows["an object a vertex"]["requests"] > rows["an object a pair"]["requests"] > ours["requests"]
    assert rows["all are woken"]["calls"] > ours["calls"]
    assert rows["a hop a superstep"]["steps"] > ours["steps"]
    assert rows["graphflash"]["requests"] < ours["requests"]


def test_the_model_pays_for_latency_and_cold_starts() -> None:
    rows = trials.modelled("rmat", "bfs", nodes=64, degree=4, workers=2, profile="s3-standard", seed=1)
    assert rows["graphless-like"]["seconds"] > rows["graphflash"]["seconds"] > 0.25
    again = trials.modelled("rmat", "bfs", nodes=64, degree=4, workers=2, profile="s3-standard", seed=1)
    assert {name: row["seconds"] for name, row in rows.items()} == {n: row["seconds"] for n, row in again.items()}
