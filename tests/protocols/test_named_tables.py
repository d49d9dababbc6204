"""A study of several experiments returns each as a table of its own name, and says which columns are the case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from assay.protocols import lcc, lcc_triangle, snowveil
from assay.record import catalogue
from assay.record.lab import Lab
from assay.record.tables import joined

SEVERAL = {
    "amortized-brb": {"bits", "latency", "safety", "adversary"},
    "dht-discovery": {"regimes", "growth", "churn", "rivals"},
    "digraph-auth": {"exact", "approximate", "rivals"},
    "div": {"size", "span", "conductance", "average", "expectation"},
    "lcc": {"order", "dichotomy", "definitions", "live", "migration", "stores", "metadata", "planted", "clean",
            "rivals"},
    "lcc-triangle": {"catalogue", "live", "surfaces", "repair", "idle"},
    "ordered-pp": {"large", "unordered", "inside", "machine", "alike"},
    "quantas2": {"pbft", "raft", "safety", "parasite", "links", "modes"},
    "snowveil": {"size", "sample", "lead", "liars", "rivals", "network"},
    "subcubic-coin": {"cost", "everybody", "commonness", "greedy", "inner", "agreement"},
    "taco": {"prove", "given", "claimed", "not read", "later", "weaken", "search"},
}  # fmt: skip


class Cases(Lab):
    """Runs nothing: a row for each case and seed."""

    def run(
        self, function: Any, cases: Sequence[Mapping[str, Any]], *, per: str | None = None, alone: bool = False
    ) -> pl.DataFrame:
        extra = {per: "one"} if per else {}
        self.cases.update(*cases, extra)
        rows = [dict(case) | extra | {"seed": seed} for case in cases for seed in self.seeds]
        return pl.from_dicts(rows, infer_schema_length=None) if rows else pl.DataFrame()


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lcc, "count_order", lambda events: {"order": [{}], "dichotomy": [{"ordering": "total"}]})
    monkeypatch.setattr(lcc, "count_definitions", lambda events: [{"model": "causal"}])
    monkeypatch.setattr(lcc, "run_live", lambda names, seed: [{"store": "raft"}])
    monkeypatch.setattr(lcc_triangle, "run_live", lambda seed: [{"store": "waits", "seed": seed}])
    kinds = [(name, rule) for name in snowveil.CULTURES for rule in ("chb", "plurality")]
    monkeypatch.setattr(snowveil, "tuned", lambda table: {kind: {"quorum": 1.5, "streak": 6} for kind in kinds})


@pytest.mark.parametrize("key", SEVERAL)
def test_every_experiment_is_a_table_of_its_own(key: str) -> None:
    lab = Cases(key, seeds=(1000, 7, 12))
    tables = catalogue.study(key).run(lab)
    assert isinstance(tables, dict) and set(tables) == SEVERAL[key]
    assert not any("experiment" in table.columns for table in tables.values())
    # Every column is a case or the seed: nothing was measured, and nothing is left to guess.
    uncounted = {"named", "exact", "coordinates"} if key == "lcc-triangle" else set()
    assert set(joined(tables).columns) - {"experiment", "seed"} <= lab.cases | uncounted
