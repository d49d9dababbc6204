"""Light cone consistency: what the theorems say, counted and run; and what a user gets."""

from __future__ import annotations

from itertools import product

import polars as pl
import pytest

from assay.protocols import lcc
from assay.protocols.lcc import rivals
from assay.protocols.nodes.stores import PRESETS, WAITS
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict
from assay.workloads import planted_histories as planted


def answers(rows: list[dict[str, object]]) -> dict[str, Answer]:
    table = pl.from_dicts([{"seed": 0} | row for row in rows], infer_schema_length=None)
    return {answer.id: answer for answer in judge(study("lcc"), table)}


def verdict(claim: str, rows: list[dict[str, object]]) -> Verdict:
    return answers(rows)[claim].verdict


class TestReading:
    def test_weaker_readers_may_read_and_stronger_ones_may_not(self) -> None:
        assert lcc.readable("read-your-writes", "causal")
        assert not lcc.readable("causal", "read-your-writes")
        assert not lcc.readable("causal-memory", "causal-convergent")

    def test_an_unknown_model_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(ValueError, match="no model 'strong'; one of none, read-your-writes"):
            lcc.readable("strong", "causal")


class TestMigration:
    def test_what_waits_for_causes_all_the_way_stays_causal(self) -> None:
        assert all(lcc.satisfies(lcc.migrate(("causes",) * 3, seed), "causal") for seed in range(4))

    @pytest.mark.parametrize("weak", range(3))
    def test_one_store_that_waits_for_nothing_loses_causality_for_all_after_it(self, weak: int) -> None:
        first, second, third = ("nothing" if at == weak else "causes" for at in range(3))
        lost = [not lcc.satisfies(lcc.migrate((first, second, third), seed), "causal") for seed in range(6)]
        assert any(lost)

    @pytest.mark.parametrize("path", [path for path in product(WAITS, repeat=3) if "nothing" not in path])
    def test_the_weakest_stores_level_is_kept(self, path: tuple[str, str, str]) -> None:
        assert lcc.satisfies(lcc.migrate(path, 1), "monotonic-writes")

    def test_readers_see_what_writers_wrote(self) -> None:
        history = lcc.migrate(("causes", "causes", "causes"), 0)
        read = {operation.result for operation in history if operation.f == "read" and operation.process >= 12}
        written = {operation.value for operation in history if operation.f == "write"}
        assert len(read - {None}) > 10
        assert read - {None} <= written


class TestTheBoundary:
    def test_shifting_clocks_changes_no_verdict_but_that_of_linearizability(self) -> None:
        trial = lcc.store_trial("linearizable", runs=3, seed=0)
        assert (trial["linear"], trial["unchanged"]) == (3, 3)
        assert trial["shifted"] < 3

    def test_shifting_keeps_each_process_as_it_was(self) -> None:
        history = planted.registers(40, seed=1)
        moved = lcc.shift_clocks(history, 1)
        for process in {one.process for one in history}:
            before = [(one.f, one.key, one.value, one.result) for one in history if one.process == process]
            after = [(one.f, one.key, one.value, one.result) for one in moved if one.process == process]
            assert before == after


class TestTheStudy:
    @pytest.mark.parametrize("store", lcc.STORES)
    def test_stores_keep_their_promise(self, store: str) -> None:
        trial = lcc.store_trial(store, runs=2, seed=3)
        assert trial["agreeing"] == trial["checked"]

    def test_a_store_without_metadata_detects_nothing_of_what_there_is(self) -> None:
        blind = lcc.metadata_trial("nothing", 2, 0)
        seeing = lcc.metadata_trial("causes", 2, 0)
        assert blind["inversions"] == seeing["inversions"] > 0
        assert (blind["checked"], blind["prevented"]) == (0, 0)
        assert seeing["checked"] == seeing["prevented"] == seeing["inversions"]

    def test_a_trial_is_the_same_each_time_and_other_seeds_differ(self) -> None:
        case = {"keeps": "causes", "runs": 1}
        table = Lab("lcc", seeds=(1000, 7, 12345)).run(lcc.metadata_trial, [case])
        assert table["inversions"].n_unique() > 1
        assert table.equals(Lab("lcc", seeds=(1000, 7, 12345)).run(lcc.metadata_trial, [case]))

    def test_one_pair_that_disagrees_is_enough_to_fail(self) -> None:
        row: dict[str, object] = {"experiment": "order", "checked": 100, "agreeing": 100}
        assert verdict("decidable", [row]) is Verdict.REPRODUCED
        assert verdict("decidable", [row | {"agreeing": 99}]) is Verdict.NOT_REPRODUCED

    def test_the_model_whose_definition_disagrees_is_shown(self) -> None:
        rows: list[dict[str, object]] = [
            {"experiment": "definitions", "model": model, "checked": 10, "agreeing": agreeing}
            for model, agreeing in (("pram", 10), ("causal", 9))
        ]
        assert answers(rows)["points"].cases == "definitions: causal"

    def test_what_is_read_off_the_same_edges_twice_is_no_measurement(self) -> None:
        row: dict[str, object] = {"experiment": "metadata", "keeps": "causes", "checked": 10, "agreeing": 10}
        assert verdict("metadata", [row]) is Verdict.BY_CONSTRUCTION

    def test_one_path_on_which_the_level_came_back_is_a_counterexample_and_is_shown(self) -> None:
        paths: list[dict[str, object]] = [
            {"experiment": "migration", "first": a, "second": b, "third": "causes", "least": "nothing", "missed": 1}
            for a in WAITS
            for b in WAITS
        ]
        assert verdict("migration", paths) is Verdict.REPRODUCED
        found = answers([*paths[1:], paths[0] | {"missed": 0}])["migration"]
        assert found.verdict is Verdict.NOT_REPRODUCED
        assert found.cases == "nothing → nothing → causes: no run missed the last store's level"

    def test_the_rivals_of_the_specification_tell_the_same_histories(self) -> None:
        rows = lcc.rivals_trial("causal", runs=2, seed=1000)
        assert set(rows) == {"lattice", "flat", "linearizability", "cycles"}
        assert {row["checked"] for row in rows.values()} == {2}
        assert rows["lattice"]["agreeing"] == 2 and rows["lattice"]["asked"] < rows["flat"]["asked"] == 20

    def test_a_checker_that_tells_as_much_is_a_tie(self) -> None:
        rows: list[dict[str, object]] = [
            {"experiment": "rivals", "method": method, "checked": 4, "agreeing": 4, "asked": 8, "seed": seed}
            for method in rivals.METHODS
            for seed in (1000, 7, 12)
        ]
        found = answers(rows)
        assert found["over-checkers"].verdict is found["judges"].verdict is Verdict.NOT_REPRODUCED
        less = [row | {"agreeing": 1} if row["method"] in ("linearizability", "cycles") else row for row in rows]
        assert verdict("over-checkers", less) is Verdict.REPRODUCED

    def test_paths_that_lose_nothing_do_not_count(self) -> None:
        kept = {"experiment": "migration", "first": "causes", "second": "causes", "third": "causes"}
        lost = kept | {"second": "nothing", "least": "nothing", "missed": 1}
        table = pl.from_dicts([kept | {"least": "causes", "missed": 0, "seed": 0}, lost | {"seed": 0}])
        assert lcc.dropped_paths(table).n == 1

    def test_the_counts_cover_every_model_and_every_ordering(self) -> None:
        rows = lcc.count_definitions(3)
        assert len(rows) == 14
        assert all(row["agreeing"] == row["checked"] for row in rows)

    def test_the_plot_is_drawn(self) -> None:
        table = pl.DataFrame({"experiment": ["order"], "checked": [9], "seed": [0]})
        assert charts.svg(lcc.plot(table)).startswith("<svg")


@pytest.mark.slow
def test_over_tcp_stores_keep_their_promise_too() -> None:
    rows = lcc.run_live(tuple(PRESETS), seed=1000)
    assert [row["store"] for row in rows] == list(lcc.STORES)
    assert all(row["agreeing"] == 1 for row in rows)


@pytest.mark.slow
def test_ten_thousand_clean_histories_raise_no_alarm() -> None:
    trial = lcc.planted_trial("none", 30, 10_000, 0)
    assert trial["agreeing"] == trial["checked"] == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("plant", list(planted.PLANTS))
def test_every_plant_is_placed_where_the_lattice_says(plant: str) -> None:
    trial = lcc.planted_trial(plant, 60, 100, 0)
    assert trial["agreeing"] == 100
