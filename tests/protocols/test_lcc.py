"""Light cone consistency: what the theorems say, counted and run; and what a user gets."""

from __future__ import annotations

from itertools import product

import polars as pl
import pytest

from assay.protocols import lcc
from assay.protocols.judges import planted
from assay.protocols.nodes.stores import PRESETS, WAITS
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict


def verdicts(rows: list[dict[str, object]]) -> dict[str, Verdict]:
    table = pl.from_dicts([{"seed": 0} | row for row in rows], infer_schema_length=None)
    return {answer.text: answer.verdict for answer in judge(study("lcc"), table)}


def claim(words: str) -> str:
    return next(one.text for one in lcc.claims if words in one.text)


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
        trial = lcc.store_trial("stores", "linearizable", runs=3, seed=0)
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
        trial = lcc.store_trial("stores", store, runs=2, seed=3)
        assert trial["agreeing"] == trial["checked"]

    def test_a_store_without_metadata_detects_nothing_of_what_there_is(self) -> None:
        blind = lcc.metadata_trial("metadata", "nothing", 2, 0)
        seeing = lcc.metadata_trial("metadata", "causes", 2, 0)
        assert blind["inversions"] == seeing["inversions"] > 0
        assert (blind["checked"], blind["prevented"]) == (0, 0)
        assert seeing["checked"] == seeing["prevented"] == seeing["inversions"]

    def test_a_trial_is_the_same_each_time_and_other_seeds_differ(self) -> None:
        case = {"experiment": "metadata", "keeps": "causes", "runs": 1}
        table = Lab("lcc", seeds=3).run(lcc.metadata_trial, [case])
        assert table["inversions"].n_unique() > 1
        assert table.equals(Lab("lcc", seeds=3).run(lcc.metadata_trial, [case]))

    def test_one_pair_that_disagrees_is_enough_to_fail(self) -> None:
        text = claim("decidable")
        row: dict[str, object] = {"experiment": "order", "checked": 100, "agreeing": 100}
        assert verdicts([row])[text] is Verdict.REPRODUCED
        assert verdicts([row | {"agreeing": 99}])[text] is Verdict.NOT_REPRODUCED

    def test_an_inversion_detected_and_not_preventable_would_refute(self) -> None:
        text = claim("inverted order")
        row: dict[str, object] = {"experiment": "metadata", "checked": 10, "agreeing": 10}
        assert verdicts([row])[text] is Verdict.REPRODUCED
        assert verdicts([row, row | {"agreeing": 9}])[text] is Verdict.NOT_REPRODUCED

    def test_a_level_that_came_back_on_one_path_is_not_never_and_on_all_would_refute(self) -> None:
        text = claim("never regained")
        paths: list[dict[str, object]] = [
            {"experiment": "migration", "first": a, "second": b, "third": "causes", "least": "nothing", "missed": 1}
            for a in WAITS
            for b in WAITS
        ]
        assert verdicts(paths)[text] is Verdict.REPRODUCED
        assert verdicts([*paths[1:], paths[0] | {"missed": 0}])[text] is Verdict.DIRECTION
        assert verdicts([row | {"missed": 0} for row in paths])[text] is Verdict.NOT_REPRODUCED

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
    rows = lcc.run_live(tuple(PRESETS))
    assert [row["store"] for row in rows] == list(lcc.STORES)
    assert all(row["agreeing"] == 1 for row in rows)


@pytest.mark.slow
def test_ten_thousand_clean_histories_raise_no_alarm() -> None:
    trial = lcc.planted_trial("clean", "none", 30, 10_000, 0)
    assert trial["wrong"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("plant", list(planted.PLANTS))
def test_every_plant_is_placed_where_the_lattice_says(plant: str) -> None:
    trial = lcc.planted_trial("planted", plant, 60, 100, 0)
    assert trial["agreeing"] == 100
