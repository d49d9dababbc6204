"""QUANTAS 2: one code in two modes, and what its traitors achieve."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pytest

from assay.protocols import quantas2
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.data_links import AlternatingBit
from assay.protocols.quantas import parse
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict


def verdicts(table: pl.DataFrame) -> dict[str, Verdict]:
    return {answer.id: answer.verdict for answer in judge(study("quantas2"), table)}


def shares(fill: Any, **also: Any) -> pl.DataFrame:
    """A table of parasite rows; `fill` gives the share of a rule, a coalition and a lead."""
    rows = [
        {"experiment": "parasite", "rule": rule, "members": members, "lead": lead, "pace": 4, "tests": 1, "seed": seed,
         "parasite_ratio": fill(rule, members, lead), **also}
        for rule in quantas2.RULES for members in (1, 2, 3, 4, 6, 8) for lead in range(4) for seed in range(3)
    ]  # fmt: skip
    return pl.from_dicts(rows)


def links(payloads: list[Any]) -> Outcome:
    return World(n=2, node=AlternatingBit, inputs=[tuple(payloads)]).run("rounds")


class TestBothModes:
    @pytest.mark.parametrize("peer", ["AltBitPeer", "PBFTPeer"])
    def test_one_file_decides_the_same_in_rounds_and_over_sockets(self, peer: str) -> None:
        row = quantas2.both_modes(peer, processes=2, seed=0)
        assert row["same"]
        assert row["decisions"] >= 10

    @pytest.mark.parametrize("seed", [2, 7, 1000])
    def test_raft_elects_somebody_and_gets_somewhere_in_rounds(self, seed: int) -> None:
        (experiment,) = parse(quantas2.MODES["RaftPeer"])
        simulated = experiment.world(seed).run("rounds", limit=experiment.rounds)
        assert quantas2.same("RaftPeer", simulated, simulated)

    @pytest.mark.slow
    @pytest.mark.parametrize("peer", sorted(quantas2.MODES))
    def test_so_it_does_with_a_process_for_every_node(self, peer: str) -> None:
        assert quantas2.both_modes(peer, processes=None, seed=1)["same"]

    def test_different_decisions_are_not_the_same(self) -> None:
        letters = links(["a", "b", "c", "d"])
        assert quantas2.same("AltBitPeer", letters, links(["a", "b", "c"]))
        assert not quantas2.same("AltBitPeer", letters, links(["a", "x", "c"]))

    def test_two_runs_that_decided_nothing_prove_nothing(self) -> None:
        assert not quantas2.same("AltBitPeer", links([]), links([]))
        assert not quantas2.same("AltBitPeer", links(["a"]), links(["a"]))

    def test_a_digest_is_equal_for_equal_seeds(self) -> None:
        (experiment,) = parse(quantas2.MODES["BitcoinPeer"])
        digests = [experiment.world(test).run("rounds", limit=40).digest for test in (0, 0, 1)]
        assert digests[0] == digests[1] != digests[2]


class TestTheStudy:
    def test_a_trial_is_the_same_each_time(self) -> None:
        case = {"rule": "ghost", "members": 4, "lead": 2, "pace": 4, "tests": 1}
        table = Lab("quantas2", seeds=(0, 1)).run(quantas2.withholding, [case])
        assert table.equals(Lab("quantas2", seeds=(0, 1)).run(quantas2.withholding, [case]))

    def test_honest_members_get_about_what_they_work_for(self) -> None:
        mine = partial(quantas2.withholding, members=4, lead=0, pace=4, tests=12, seed=0)
        for rule in quantas2.RULES:
            assert mine(rule)["parasite_ratio"] == pytest.approx(1 / 3, abs=0.05)

    def test_equivocators_and_crashes_cost_throughput(self) -> None:
        pbft = [quantas2.replication("pbft", 7, liars, 100, 0)["throughput"] for liars in (0, 2)]
        raft = [
            sum(quantas2.replication("raft", 5, down, 300, seed)["throughput"] for seed in range(3)) for down in (0, 5)
        ]
        assert pbft[0] > 1.2 * pbft[1] > 0
        assert raft[0] > 1.05 * raft[1] > 0

    def test_links_under_disturbance(self) -> None:
        def faithful(link: str, disturbance: str) -> int:
            return sum(quantas2.transfer(link, disturbance, 300, seed)["faithful"] for seed in range(5))

        assert faithful("alternating-bit", "drop") == faithful("alternating-bit", "duplicate") == 5
        assert faithful("alternating-bit", "reorder") < 5
        assert all(faithful("stabilising", disturbance) == 5 for disturbance in quantas2.DISTURBANCES)


class TestTheClaims:
    def test_shares_that_follow_the_power_answer_each_question(self) -> None:
        said = verdicts(shares(lambda rule, members, lead: members / 12 if lead else 0.9 * members / 12))
        assert said["high"] is Verdict.REPRODUCED
        assert said["medium-ghost"] is Verdict.REPRODUCED
        assert said["medium-longest"] is Verdict.NOT_REPRODUCED
        assert said["rising"] is Verdict.REPRODUCED
        assert said["weak"] is Verdict.REPRODUCED
        assert said["half"] is Verdict.REPRODUCED
        assert said["withholding"] is Verdict.REPRODUCED

    def test_the_papers_figures_would_be_reproduced(self) -> None:
        medium = {"longest": 0.12, "ghost": 0.3}
        said = verdicts(
            shares(lambda rule, members, lead: {1: 0.05, 2: 0.06, 6: 0.55, 8: 0.6}.get(members, medium[rule]))
        )
        for name in ("high", "medium-ghost", "medium-longest", "ghost-longest"):
            assert said[name] is Verdict.REPRODUCED, name

    def test_no_case_is_chosen_after_the_fact(self) -> None:
        # One lucky lead of three used to be "the best case"; all that were tried count alike.
        said = verdicts(shares(lambda rule, members, lead: 0.31 if lead == 3 else 0.05))
        assert said["medium-ghost"] is Verdict.NOT_REPRODUCED
        assert said["withholding"] is Verdict.REPRODUCED
        said = verdicts(shares(lambda rule, members, lead: 0.31 if lead == 3 else 0.05 if lead else 0.2))
        assert said["withholding"] is Verdict.NOT_REPRODUCED

    def test_a_mean_of_leads_that_differ_widely_is_not_certain_however_many_seeds(self) -> None:
        """The share was 0 to 36 % by lead, and the interval over seeds of their mean was ± 1 %."""
        table = shares(lambda rule, members, lead: {1: 0.36, 2: 0.03, 3: 0.01}.get(lead, 0.0))
        found = {answer.id: answer for answer in judge(study("quantas2"), table)}["medium-longest"]
        assert found.verdict is Verdict.DIRECTION and found.n == 3 and "36% at a lead of 1" in found.cases

    def test_a_share_a_third_below_the_papers_is_not_about_it(self) -> None:
        found = verdicts(shares(lambda rule, members, lead: 0.085))  # within ± 5 points of 13 %
        assert found["medium-longest"] is Verdict.NOT_REPRODUCED

    def test_a_falling_share_is_not_rising(self) -> None:
        said = verdicts(shares(lambda rule, members, lead: 1 - members / 12))
        assert said["rising"] is Verdict.NOT_REPRODUCED
        assert said["half"] is Verdict.REPRODUCED

    def test_one_pair_of_modes_that_differs_is_too_many(self) -> None:
        rows = [{"experiment": "modes", "peer": peer, "seed": 0, "same": peer != "RaftPeer"} for peer in quantas2.MODES]
        assert verdicts(pl.from_dicts(rows))["two-modes"] is Verdict.NOT_REPRODUCED
        rows = [row | {"same": True} for row in rows]
        assert verdicts(pl.from_dicts(rows))["two-modes"] is Verdict.REPRODUCED

    def test_pbft_that_does_not_slow_down_is_not_reproduced(self) -> None:
        rows = [
            {"experiment": "pbft", "faulty": liars, "seed": seed, "throughput": 0.2 - slow * liars + 0.001 * seed}
            for liars in range(4) for seed in range(3) for slow in (0.0,)
        ]  # fmt: skip
        text = "pbft"
        assert verdicts(pl.from_dicts(rows))[text] is Verdict.NOT_REPRODUCED
        falling = [row | {"throughput": row["throughput"] * (1 - 0.1 * row["faulty"])} for row in rows]
        assert verdicts(pl.from_dicts(falling))[text] is Verdict.REPRODUCED

    def test_one_disagreement_within_f_is_too_many(self) -> None:
        rows = [
            {"experiment": "safety", "faulty": liars, "seed": seed, "conflicts": int(liars == 3)}
            for liars in (1, 2, 3) for seed in range(4)
        ]  # fmt: skip
        said = verdicts(pl.from_dicts(rows))
        assert said["agree"] is Verdict.REPRODUCED
        assert said["disagree"] is Verdict.REPRODUCED
        rows[0]["conflicts"] = 1
        assert verdicts(pl.from_dicts(rows))["agree"] is not Verdict.REPRODUCED

    def test_the_plot_is_drawn(self) -> None:
        assert charts.svg(quantas2.plot(shares(lambda rule, members, lead: members / 12))).startswith("<svg")
