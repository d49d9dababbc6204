"""The committee coin: its plan, its tosses under a greedy adversary, and what the study concludes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest

from assay.protocols import subcubic_coin
from assay.protocols.kernel import wire
from assay.protocols.kernel.run import all_decided
from assay.protocols.kernel.world import World
from assay.protocols.nodes.aba import ABA
from assay.protocols.nodes.committees import Plan, Tally
from assay.protocols.nodes.strong_coin import StrongCoin
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict


def verdicts(table: pl.DataFrame) -> dict[str, Verdict]:
    return {answer.text: answer.verdict for answer in judge(study("subcubic-coin"), table)}


def claim(words: str) -> str:
    return next(one.text for one in subcubic_coin.claims if words in one.text)


def measured(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A table of the study's shape with made-up numbers."""
    base = {
        "experiment": "cost", "k": 4, "n": 64, "seed": 0, "messages": 1.0, "bits": 1.0, "counted": 1.0,
        "published_by_log": 1.0, "fallen": 0, "missing": 2, "fallen_ratio": 0.0, "all_at_once": 1.0, "tosses": 10,
        "variant": "planned", "common": 10, "ones": 5, "runs": 4, "same": 4, "rounds": 10.0, "method": "local",
        "scheduler": "splitting", "rounds_mean": 3.0, "safe": 3,
    }  # fmt: skip
    return pl.from_dicts([base | row for row in rows], infer_schema_length=None)


class TestThePlan:
    @pytest.mark.parametrize("k", [3, 4])
    def test_its_numbers_grow_as_the_paper_says(self, k: int) -> None:
        small, large = (subcubic_coin.plan_for(n, k) for n in (256, 4096))
        assert large.committees / small.committees == pytest.approx(16 ** (2 - 2 / k), rel=0.01)
        assert large.size / small.size == pytest.approx(16 ** (1 / k), rel=0.02)
        assert large.missing / small.missing == pytest.approx(16 ** (1 - 1 / k), rel=0.4)

    def test_another_exponent_is_refused(self) -> None:
        with pytest.raises(ValueError, match="k of 4, 3 expected"):
            subcubic_coin.plan_for(64, k=5)


class TestAToss:
    @pytest.mark.parametrize(("k", "n"), [(4, 128), (4, 256), (3, 128), (3, 343)])
    def test_the_adversary_fells_fewer_committees_than_parties_do_without(self, k: int, n: int) -> None:
        plan = subcubic_coin.plan_for(n, k)
        assert all(subcubic_coin.toss(plan, k, seed).fallen <= plan.missing for seed in range(3))

    def test_it_is_common_if_every_party_is_sure_and_not_if_all_can_be_pushed(self) -> None:
        plan = Plan(n=10, committees=100, size=5, links=3, missing=5, faults=1)
        corrupted = np.zeros(10, np.uint8)
        corrupted[0] = 1
        sure = Tally(100, np.full(10, 30), np.full(10, 70), np.zeros(100, np.int64))
        assert subcubic_coin.verdict(plan, sure, corrupted) == (1, True)
        close = Tally(100, np.full(10, 49), np.full(10, 51), np.zeros(100, np.int64))
        assert not subcubic_coin.verdict(plan, close, corrupted)[1]

    def test_the_last_rounds_mend_a_few_misled_parties_but_not_half(self) -> None:
        plan = Plan(n=16, committees=100, size=5, links=3, missing=5, faults=2)
        corrupted = np.zeros(16, np.uint8)
        for misled, common in ((2, True), (7, False)):
            ones = np.full(16, 70)
            ones[:misled] = 50
            tally = Tally(100, 100 - ones, ones, np.zeros(100, np.int64))
            assert subcubic_coin.verdict(plan, tally, corrupted)[1] is common

    def test_doing_without_more_committees_makes_it_common_less_often(self) -> None:
        plan = subcubic_coin.plan_for(128, 4)
        made = [subcubic_coin.toss(plan, 4, seed) for seed in range(12)]
        more = replace(plan, missing=40)
        planned = sum(one.common for one in made)
        pushed = sum(replace(one, plan=more).common for one in made)
        assert planned >= 8
        assert pushed < planned

    def test_a_weak_coin_in_the_committees_is_not_enough(self) -> None:
        """If one committee coin in four fails, the adversary has far more than the root of their number."""
        plan = subcubic_coin.plan_for(128, 4)
        assert not any(subcubic_coin.toss(plan, 4, seed, failure=0.25).common for seed in range(6))

    def test_published_bits_are_those_of_the_frames(self) -> None:
        sent = np.zeros(300, np.int64)
        sent[[5, 130, 299]] = 7, 11, 13
        tally = Tally(300, np.zeros(1), np.zeros(1), sent)
        frames = [(7, 5), (11, 130), (13, 299)]
        expected = sum(count * wire.frame_bits(wire.encode(("publish", number, 1))) for count, number in frames)
        assert subcubic_coin._frames(tally) == expected


class TestAgreementOnTop:
    @pytest.mark.parametrize("method", ["committees", "setup", "strong", "local"])
    def test_split_inputs_end_in_agreement(self, method: str) -> None:
        found = subcubic_coin.agreement("agreement", method, n=6, scheduler="splitting", runs=2, seed=1)
        assert found["safe"] == 2
        assert found["rounds_mean"] >= 2


class TestTheStudy:
    def test_a_trial_is_the_same_each_time_and_other_seeds_differ(self) -> None:
        case = {"experiment": "cost", "k": 3, "n": 64}
        table = Lab("subcubic-coin", seeds=3).run(subcubic_coin.cost, [case])
        assert table["counted"].n_unique() == 3
        assert table.equals(Lab("subcubic-coin", seeds=3).run(subcubic_coin.cost, [case]))

    def test_the_printed_exponents_are_reproduced_and_cubic_ones_are_not(self) -> None:
        messages, bits = claim("perfectly secure"), claim("hash-based")
        rows = [
            {"n": n, "k": k, "messages": 3.0 * n**2.5, "bits": 9.0 * n ** (7 / 3), "seed": seed}
            for n in (64, 128, 256, 512)
            for k in (4, 3)
            for seed in range(2)
        ]
        found = verdicts(measured(rows))
        assert (found[messages], found[bits]) == (Verdict.REPRODUCED, Verdict.REPRODUCED)
        cubes = [row | {"messages": row["n"] ** 3.0, "bits": row["n"] ** 3.0} for row in rows]
        found = verdicts(measured(cubes))
        assert (found[messages], found[bits]) == (Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED)

    def test_a_coin_that_is_seldom_common_is_not_reproduced(self) -> None:
        text = claim("constant failure probability")
        row = {"experiment": "commonness", "tosses": 100}
        assert verdicts(measured([row | {"common": 92}]))[text] is Verdict.REPRODUCED
        assert verdicts(measured([row | {"common": 50}]))[text] is Verdict.NOT_REPRODUCED

    def test_latency_may_grow_with_the_logarithm_and_no_faster(self) -> None:
        text = claim("only with log n")
        rows = [
            {"experiment": "latency", "n": n, "rounds": float(np.log(n)) ** 0.5, "seed": seed}
            for n in (8, 64, 512)
            for seed in range(2)
        ]
        assert verdicts(measured(rows))[text] is Verdict.REPRODUCED
        linear = [row | {"rounds": float(row["n"])} for row in rows]
        assert verdicts(measured(linear))[text] is Verdict.NOT_REPRODUCED

    def test_an_adversary_that_spoils_more_than_planned_is_told(self) -> None:
        text = claim("greedy adaptive")
        assert verdicts(measured([{"fallen_ratio": 0.9}, {"fallen_ratio": 0.2}]))[text] is Verdict.REPRODUCED
        assert verdicts(measured([{"fallen_ratio": 1.5}, {"fallen_ratio": 0.2}]))[text] is Verdict.NOT_REPRODUCED

    def test_the_plot_is_drawn(self) -> None:
        rows = [
            {"n": n, "k": k, "messages": n**2.5, "counted": n**2.4, "all_at_once": n**k}
            for n in (64, 128)
            for k in (3, 4)
        ]
        assert charts.svg(subcubic_coin.plot(measured(rows))).startswith("<svg")


@pytest.mark.slow
def test_the_adversary_stays_below_the_plan_at_a_thousand_parties() -> None:
    for k in (3, 4):
        plan = subcubic_coin.plan_for(1024, k)
        assert subcubic_coin.toss(plan, k, seed=0).fallen <= plan.missing


@pytest.mark.slow
@pytest.mark.parametrize("node", [StrongCoin, partial(ABA, StrongCoin)], ids=["the coin", "agreement on top"])
def test_the_real_coin_runs_over_sockets(node: Any) -> None:
    world = World(n=6, f=1, node=node, inputs=[0, 1] * 3, seed=3)
    outcome = world.run("live", processes=3, limit=60.0, until=all_decided)
    assert len(outcome.decided()) == 6
    assert len(set(outcome.decided().values())) == 1
