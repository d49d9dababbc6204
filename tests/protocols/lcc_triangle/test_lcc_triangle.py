"""The triangle: which two demands an adversary leaves only one of, what spreads, and when nothing matters."""

from __future__ import annotations

import math

import polars as pl
import pytest

from assay.protocols import lcc_triangle as triangle
from assay.protocols.nodes.stores import PRESETS, Design
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict
from assay.workloads.histories import Operation


def answer(claim: str, rows: list[dict[str, object]]) -> Answer:
    table = pl.from_dicts([{"seed": 0} | row for row in rows], infer_schema_length=None)
    return next(one for one in judge(study("lcc-triangle"), table) if one.id == claim)


def verdict(claim: str, rows: list[dict[str, object]]) -> Verdict:
    return answer(claim, rows).verdict


class TestTheSurfaces:
    @pytest.mark.parametrize("prompt", [True, False])
    def test_a_partition_leaves_closure_or_timeliness(self, prompt: bool) -> None:
        met = [triangle.demands("partition", "causes", "lamport", prompt, seed) for seed in range(3)]
        assert all(run["timeliness"] == prompt for run in met)
        assert all(run["closure"] for run in met) == (not prompt)

    @pytest.mark.parametrize("prompt", [True, False])
    def test_a_crashed_leader_leaves_one_sequence_or_timeliness(self, prompt: bool) -> None:
        met = triangle.demands("crash", "causes", "leader", prompt, 0)
        assert (met["sequence"], met["timeliness"]) == (not prompt, prompt)

    def test_forgetting_leaves_closure_or_ordering(self) -> None:
        waiting = triangle.demands("forgetting", "causes", "lamport", True, 0)
        hasty = triangle.demands("forgetting", "nothing", "wall", True, 0)
        assert (waiting["closure"], waiting["ordering"]) == (True, False)
        assert (hasty["closure"], hasty["ordering"]) == (False, True)

    def test_in_calm_weather_all_can_be_had(self) -> None:
        assert triangle.demands("calm", "causes", "leader", True, 0) == {
            "closure": True, "ordering": True, "timeliness": True, "sequence": True,
        }  # fmt: skip

    def test_every_setting_of_the_knobs_is_there_once(self) -> None:
        rows = [tuple(sorted(row.items())) for row in triangle.designs()]
        assert len(set(rows)) == len(rows) == 16
        assert {row["store"] for row in triangle.designs()} == {"", *PRESETS}  # the named stores are among them


class TestJudging:
    def read(self, process: int, result: int | None, at: float, took: float = 0.01) -> Operation:
        return Operation(process, "read", "x", None, result, at, at + took)

    def test_opposite_changes_are_no_agreement_even_if_the_ends_are_alike(self) -> None:
        one = [self.read(0, 1, 0.0), self.read(0, 2, 1.0), self.read(0, 3, 2.0)]
        other = [self.read(1, 2, 0.0), self.read(1, 1, 1.0), self.read(1, 3, 2.0)]
        assert not triangle.agreed([*one, *other], keys=1)
        assert triangle.agreed([*one, self.read(1, 2, 0.0), self.read(1, 3, 2.0)], keys=1)

    def test_different_ends_are_no_agreement(self) -> None:
        assert not triangle.agreed([self.read(0, 1, 0.0), self.read(1, 2, 0.0)], keys=1)

    def test_an_answer_that_never_came_is_not_in_time(self) -> None:
        never = Operation(0, "read", "x", None, None, 0.0, math.inf, "info")
        assert not triangle.judge([never])["timeliness"]
        assert triangle.judge([self.read(0, None, 0.0)])["timeliness"]
        assert not triangle.judge([self.read(0, None, 0.0, took=1.0)])["timeliness"]

    def test_one_sequence_means_beginnings_of_the_same(self) -> None:
        assert triangle.one_sequence({0: {0: "a", 1: "b"}, 1: {0: "a"}})
        assert not triangle.one_sequence({0: {0: "a"}, 1: {0: "b"}})


class TestTheStudy:
    def surfaces(self, **met: dict[str, int]) -> list[dict[str, object]]:
        """Two settings under each adversary, that keep one demand each; both in calm weather."""
        rows: list[dict[str, object]] = []
        for name, (one, other) in ({"calm": ("", "")} | triangle.SURFACES).items():
            for order, kept in (("arrival", one), ("leader", other)):
                demands = dict.fromkeys(("closure", "ordering", "timeliness", "sequence"), 5 if name == "calm" else 0)
                rows.append(
                    {"experiment": "surfaces", "adversary": name, "wait": "causes", "order": order, "prompt": True,
                     "ordered": False, "trials": 5} | demands | ({kept: 5} if kept else {}) | met.get(name, {})
                )  # fmt: skip
        return rows

    def test_three_surfaces_that_stand_are_reproduced(self) -> None:
        assert verdict("impossibilities", self.surfaces()) is Verdict.REPRODUCED

    def test_a_setting_that_keeps_both_under_the_adversary_refutes(self) -> None:
        rows = self.surfaces(partition={"closure": 5, "timeliness": 5})
        assert verdict("impossibilities", rows) is Verdict.NOT_REPRODUCED

    def test_the_setting_that_refutes_is_shown(self) -> None:
        found = answer("impossibilities", self.surfaces(partition={"closure": 5, "timeliness": 5}))
        told = "partition: wait causes, order arrival, prompt True, ordered False kept closure and timeliness"
        assert found.cases == told and found.n == 3 * (2 + 2 + 1)

    def test_a_pair_that_nobody_keeps_in_calm_weather_proves_nothing(self) -> None:
        rows = self.surfaces(calm={"sequence": 4})
        assert verdict("impossibilities", rows) is Verdict.NOT_REPRODUCED

    def test_a_demand_that_is_always_broken_shows_no_independence(self) -> None:
        rows = self.surfaces(crash={"timeliness": 0})
        assert verdict("impossibilities", rows) is Verdict.NOT_REPRODUCED

    def test_losses_break_what_gives_first_and_calm_does_not(self) -> None:
        calm = triangle.repair_trial("timeliness", 0.0, 3, 0)
        lossy = triangle.repair_trial("timeliness", 0.6, 3, 0)
        assert (calm["timeliness_broken"], lossy["timeliness_broken"]) == (0, 3)
        assert lossy["closure_broken"] == 0  # who waits keeps closure

    def test_a_store_that_hardly_writes_is_linearizable_and_a_busy_one_is_not(self) -> None:
        assert triangle.idle_trial("eventual", 0.0005, 4, 0)["linear"] == 4
        assert triangle.idle_trial("eventual", 1.0, 4, 0)["linear"] == 0

    def test_what_counts_rows_of_our_own_file_is_no_measurement(self) -> None:
        rows: list[dict[str, object]] = [
            {"experiment": "catalogue", "named": True, "coordinates": str(place)} for place in range(85)
        ]
        for claim in ("configurations", "models"):
            assert verdict(claim, rows) is Verdict.BY_CONSTRUCTION

    def test_one_way_that_losses_do_not_spread_is_a_counterexample_and_is_shown(self) -> None:
        rows: list[dict[str, object]] = [
            {"experiment": "repair", "gives": gives, "loss": loss, "trials": 4}
            | dict.fromkeys(("closure_broken", "ordering_broken", "timeliness_broken"), 4 if loss else 0)
            for gives in triangle.GIVES
            for loss in (0.0, 0.6)
        ]
        assert verdict("spread", rows) is Verdict.REPRODUCED
        waits = next(row for row in rows if row["gives"] == "timeliness" and row["loss"])
        found = answer("spread", [row for row in rows if row is not waits] + [waits | {"closure_broken": 0}])
        assert found.verdict is Verdict.NOT_REPRODUCED
        assert found.cases.startswith("a store that gives up timeliness: closure was broken in 0% of runs")

    def test_one_run_of_one_store_that_is_not_linearizable_refutes(self) -> None:
        rows: list[dict[str, object]] = [
            {"experiment": "idle", "store": store, "load": triangle.LOADS[0], "trials": 4, "linear": 4}
            for store in PRESETS
        ]
        assert verdict("slow-writes", rows) is Verdict.REPRODUCED
        found = answer("slow-writes", [*rows[1:], rows[0] | {"linear": 3}])
        assert found.verdict is Verdict.NOT_REPRODUCED and found.cases == "the eventual store"

    def test_more_load_is_never_better_by_far(self) -> None:
        table = Lab("lcc-triangle", seeds=(1000, 7)).run(
            triangle.idle_trial,
            [{"store": "causal", "load": load, "runs": 6} for load in (0.001, 0.03, 1.0)],
        )
        shares = table.group_by("load").agg(pl.col("linear").sum()).sort("load")["linear"].to_list()
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > shares[-1]

    def test_a_copy_that_shows_late_is_not_in_time(self) -> None:
        world = triangle.run_store("partition", Design("causes", "lamport"), 0)
        assert not triangle.shown_in_time(world)
        assert triangle.shown_in_time(triangle.run_store("calm", Design("causes", "lamport"), 0))

    def test_a_description_is_judged_by_what_it_tells_of_settings_it_has_not_seen(self) -> None:
        """What follows the deadline alone is told by CAP; what no description sees is a coin to all of them."""
        rows = [
            {"adversary": "partition", "trials": 1, "closure": int(not row["prompt"]), "timeliness": int(row["prompt"]),
             "ordering": 1, "sequence": 1} | {knob: row[knob] for knob in triangle.KNOBS}
            for row in triangle.designs()
        ]  # fmt: skip
        table = pl.DataFrame(rows)
        assert triangle.guessed(table, "CAP") == 1.0
        assert triangle.guessed(table, "model's name") < 1.0  # the name does not tell the deadline
        lonely = table.filter((pl.col("wait") == "causes") & (pl.col("order") == "lamport"))
        assert triangle.guessed(lonely, "triangle") == 0.5  # two settings, guessed from one another

    def test_the_descriptions_of_the_specification_are_all_there(self) -> None:
        assert set(triangle.DESCRIPTIONS) == {"triangle", "CAP", "PACELC", "model's name"}
        rows = [
            {"experiment": "surfaces", "adversary": "partition", "trials": 1, "seed": seed, "sequence": 1,
             "ordering": 1, "closure": int(row["wait"] == "causes"), "timeliness": int(row["prompt"])}
            | {knob: row[knob] for knob in triangle.KNOBS}
            for row in triangle.designs()
            for seed in (7, 1000, 12)
        ]  # fmt: skip
        found = answer("descriptions", rows)
        assert found.verdict is Verdict.REPRODUCED and "CAP" in found.cases and "PACELC" in found.cases

    def test_the_plot_is_drawn(self) -> None:
        rows = [
            {"experiment": "idle", "store": "causal", "load": load, "linear": 1, "trials": 2} for load in (0.1, 1.0)
        ]
        assert charts.svg(triangle.plot(pl.DataFrame(rows))).startswith("<svg")


@pytest.mark.slow
def test_over_tcp_a_partition_leaves_closure_or_timeliness_too() -> None:
    waits, answers = triangle.run_live(1000)
    assert (waits["closure"], waits["timeliness"]) == (1, 0)
    assert answers["timeliness"] == 1
