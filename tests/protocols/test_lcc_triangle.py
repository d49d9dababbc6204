"""The triangle: which two demands an adversary leaves only one of, what spreads, and when nothing matters."""

from __future__ import annotations

import math

import polars as pl
import pytest

from assay.protocols import lcc_triangle as triangle
from assay.protocols.nodes.stores import Design
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict
from assay.workloads.histories import Operation


def verdict(words: str, rows: list[dict[str, object]]) -> Verdict:
    table = pl.from_dicts([{"seed": 0} | row for row in rows], infer_schema_length=None)
    return next(answer.verdict for answer in judge(study("lcc-triangle"), table) if words in answer.text)


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
        assert len(set(rows)) == len(rows) == 15


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
        assert verdict("own impossibility", self.surfaces()) is Verdict.REPRODUCED

    def test_a_setting_that_keeps_both_under_the_adversary_refutes(self) -> None:
        rows = self.surfaces(partition={"closure": 5, "timeliness": 5})
        assert verdict("own impossibility", rows) is Verdict.NOT_REPRODUCED

    def test_a_pair_that_nobody_keeps_in_calm_weather_proves_nothing(self) -> None:
        rows = self.surfaces(calm={"sequence": 4})
        assert verdict("own impossibility", rows) is Verdict.NOT_REPRODUCED

    def test_a_demand_that_is_always_broken_shows_no_independence(self) -> None:
        rows = self.surfaces(crash={"timeliness": 0})
        assert verdict("own impossibility", rows) is Verdict.NOT_REPRODUCED

    def test_losses_break_what_gives_first_and_calm_does_not(self) -> None:
        calm = triangle.repair_trial("repair", "timeliness", 0.0, 3, 0)
        lossy = triangle.repair_trial("repair", "timeliness", 0.6, 3, 0)
        assert (calm["timeliness_broken"], lossy["timeliness_broken"]) == (0, 3)
        assert lossy["closure_broken"] == 0  # who waits keeps closure

    def test_a_store_that_hardly_writes_is_linearizable_and_a_busy_one_is_not(self) -> None:
        assert triangle.idle_trial("idle", "eventual", 0.0005, 4, 0)["linear"] == 4
        assert triangle.idle_trial("idle", "eventual", 1.0, 4, 0)["linear"] == 0

    def test_more_load_is_never_better_by_far(self) -> None:
        table = Lab("lcc-triangle", seeds=2).run(
            triangle.idle_trial,
            [{"experiment": "idle", "store": "causal", "load": load, "runs": 6} for load in (0.001, 0.03, 1.0)],
        )
        shares = table.group_by("load").agg(pl.col("linear").sum()).sort("load")["linear"].to_list()
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > shares[-1]

    def test_a_copy_that_shows_late_is_not_in_time(self) -> None:
        world = triangle.run_store("partition", Design("causes", "lamport"), 0)
        assert not triangle.shown_in_time(world)
        assert triangle.shown_in_time(triangle.run_store("calm", Design("causes", "lamport"), 0))

    def test_the_plot_is_drawn(self) -> None:
        rows = [
            {"experiment": "idle", "store": "causal", "load": load, "linear": 1, "trials": 2} for load in (0.1, 1.0)
        ]
        assert charts.svg(triangle.plot(pl.DataFrame(rows))).startswith("<svg")


@pytest.mark.slow
def test_over_tcp_a_partition_leaves_closure_or_timeliness_too() -> None:
    waits, answers = triangle.run_live()
    assert (waits["closure"], waits["timeliness"]) == (1, 0)
    assert answers["timeliness"] == 1
