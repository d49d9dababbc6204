"""Strong coins for small groups, Ben-Or's agreement, crusader agreement."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Chaos, Crash, Equivocate
from assay.protocols.interface import Fault, NodeId
from assay.protocols.kernel.asynchronous import QuorumStarver, Random, Scheduler, SplitBrain
from assay.protocols.kernel.world import World
from assay.protocols.nodes.agreement import ABA
from assay.protocols.subcubic_coin import Splitter
from assay.protocols.subcubic_coin.ben_or import BenOr, Crusader
from assay.protocols.subcubic_coin.strong_coin import StrongCoin

BIT = st.integers(0, 1)


class TestBenOr:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(BIT, min_size=6, max_size=6), st.integers(0, 2**20), st.booleans())
    def test_all_decide_one_bit_that_somebody_brought(self, inputs: list[int], seed: int, mad: bool) -> None:
        fault: Fault = Chaos() if mad else Crash()
        outcome = World(n=6, f=1, node=BenOr, inputs=inputs, faults={5: fault}, seed=seed).run("async")
        decided = set(outcome.decided().values())
        assert len(outcome.decided()) == 5
        assert len(decided) == 1
        if len(set(inputs[:5])) == 1:
            assert decided == {inputs[0]}

    def test_everybody_stops_a_round_after_deciding(self) -> None:
        outcome = World(n=11, f=2, node=BenOr, inputs=[1] * 11).run("async")
        assert outcome.stopped == "quiet"
        assert {node.round for node in outcome.nodes} == {3}  # type: ignore[attr-defined]

    def test_a_splitter_makes_it_wait_for_luck(self) -> None:
        rounds = {}
        for n in (6, 16):
            worlds = [World(n=n, f=(n - 1) // 5, node=BenOr, inputs=[0, 1] * (n // 2), seed=seed) for seed in range(10)]
            runs = [world.run("async", scheduler=Splitter(), metered=False) for world in worlds]
            rounds[n] = sum(max(node.round for node in run.nodes) for run in runs)  # type: ignore[attr-defined]
        assert rounds[16] > 3 * rounds[6]


class TestCrusader:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(BIT, min_size=7, max_size=7), st.integers(0, 2**20), st.sampled_from(["mad", "split", "crash"]))
    def test_no_two_end_with_different_bits(self, inputs: list[int], seed: int, kind: str) -> None:
        fault: Fault = {"mad": Chaos(), "split": Equivocate(), "crash": Crash()}[kind]
        world = World(n=7, f=2, node=Crusader, inputs=inputs, faults={5: fault, 6: fault}, seed=seed)
        ends = world.run("async").decided()
        assert len(ends) == 5
        assert not {0, 1} <= set(ends.values())
        if len(set(inputs[:5])) == 1:
            assert set(ends.values()) == {inputs[0]}


class TestTheStrongCoin:
    @pytest.mark.parametrize("scheduler", [Random(1), SplitBrain(range(3)), QuorumStarver()])
    def test_it_is_common_under_any_schedule(self, scheduler: Scheduler) -> None:
        for seed in range(3):
            faults: dict[NodeId, Fault] = {5: Chaos()}
            outcome = World(n=6, f=1, node=StrongCoin, faults=faults, seed=seed).run("async", scheduler=scheduler)
            assert len(outcome.decided()) == 5
            assert len(set(outcome.decided().values())) == 1

    def test_it_shows_both_sides(self) -> None:
        shown = [
            World(n=6, f=1, node=StrongCoin, seed=seed).run("rounds", metered=False).decided()[0] for seed in range(80)
        ]
        assert 22 <= sum(shown) <= 58  # a fair coin leaves this range once in 10,000

    def test_nothing_is_opened_before_it_is_settled_whose_secrets_count(self) -> None:
        outcome = World(n=6, f=1, node=StrongCoin, seed=3).run("async", traced=True)
        first = min(entry.time for entry in outcome.trace if entry.src >= 0 and entry.msg[2][0] == "reveal")
        settled = sorted(
            entry.time for entry in outcome.trace
            if entry.src >= 0 and entry.msg[1][0] == "choose" and entry.msg[2][0] == "propose"
        )  # fmt: skip
        assert sum(time < first for time in settled) >= 6 * 5  # n - f proposals for each of the n agreements

    def test_it_serves_as_the_coin_of_an_agreement(self) -> None:
        for seed in range(3):
            world = World(n=6, f=1, node=partial(ABA, StrongCoin), inputs=[0, 1] * 3, faults={4: Crash()}, seed=seed)
            outcome = world.run("async")
            assert len(outcome.decided()) == 5
            assert not outcome.conflicts
