"""Committees: the compiled counts are those of the nodes, and of a plain loop."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Crash
from assay.protocols.interface import Fault
from assay.protocols.kernel.rounds import Rounds
from assay.protocols.kernel.world import World
from assay.protocols.subcubic_coin import committees
from assay.protocols.subcubic_coin.committee_coin import CommitteeCoin, ideal
from assay.protocols.subcubic_coin.committees import Plan, corrupt, fallen
from assay.protocols.subcubic_coin.strong_coin import StrongCoin
from assay.sim.random import key, stream
from tests.oracles import committees as oracle


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    n = draw(st.integers(2, 14))
    size = draw(st.integers(1, n))
    return Plan(
        n,
        draw(st.integers(1, 30)),
        size,
        draw(st.integers(1, size)),
        missing=2,
        faults=0,
        seed=draw(st.integers(0, 99)),
    )


class TestThePlan:
    @settings(deadline=None)
    @given(plans())
    def test_members_and_links_are_distinct(self, plan: Plan) -> None:
        members = plan.members()
        assert members.shape == (plan.committees, plan.size)
        assert all(len(set(row)) == plan.size and max(row) < plan.n for row in members.tolist())
        heard = plan.heard(0)
        assert all(len(set(row)) == plan.links and max(row) < plan.size for row in heard.tolist())

    def test_every_party_sits_in_about_as_many_committees(self) -> None:
        plan = Plan(n=50, committees=2000, size=10, links=5, missing=1, faults=0)
        seats = np.bincount(plan.members().ravel(), minlength=50)
        assert abs(seats - 400).max() < 5 * np.sqrt(400 * 0.8)
        places = np.bincount(np.concatenate([plan.heard(c).ravel() for c in range(40)]), minlength=10)
        assert abs(places - 1000).max() < 5 * np.sqrt(1000 * 0.5)

    def test_more_links_than_members_are_refused(self) -> None:
        with pytest.raises(ValueError, match="links <= members <= n expected"):
            Plan(n=8, committees=4, size=3, links=4, missing=1, faults=1)


class TestTheCount:
    @settings(deadline=None)
    @given(plans(), st.integers(0, 2**16))
    def test_it_is_that_of_a_plain_loop(self, plan: Plan, seed: int) -> None:
        random = stream(seed, "test")
        bits = random.integers(0, 2, plan.committees).astype(np.uint8)
        corrupted = (random.random(plan.n) < 0.3).astype(np.uint8)
        bad = (random.random(plan.committees) < 0.2).astype(np.uint8)
        found = plan.tally(plan.members(), bits, corrupted, bad)
        zeros, ones, sent = oracle.tally(plan, bits, corrupted, bad)
        assert (found.zeros.tolist(), found.ones.tolist(), found.sent.tolist()) == (zeros, ones, sent)

    @pytest.mark.parametrize("crashed", [(), (2,), (1, 5, 9)])
    def test_it_is_that_of_the_nodes_message_by_message(self, crashed: tuple[int, ...]) -> None:
        plan = Plan(n=16, committees=24, size=8, links=5, missing=2, faults=3, seed=3)
        faults: dict[int, Fault] = {node: Crash() for node in crashed}
        node = partial(CommitteeCoin, plan, partial(ideal, 11))
        outcome = World(n=16, f=len(crashed), node=node, faults=faults, seed=1).run("rounds")
        corrupted = np.zeros(16, np.uint8)
        corrupted[list(crashed)] = 1
        bits = np.array([_shown(11, committee) for committee in range(24)], np.uint8)
        found = plan.tally(plan.members(), bits, corrupted, np.zeros(24, np.uint8))
        kinds = outcome.meter.by_kind
        assert int(found.sent.sum()) == kinds["publish"][0]
        last = sum(kinds[kind][0] for kind in ("majority", "bring", "name"))
        assert last == 3 * (16 - len(crashed)) * 15  # majority, bring and name, from each correct party to all others
        for party in outcome.correct:
            taken = outcome.nodes[party].taken  # type: ignore[attr-defined]
            assert (list(taken.values()).count(0), sum(taken.values())) == (found.zeros[party], found.ones[party])

    def test_what_the_adversary_may_choose_is_what_is_not_sure(self) -> None:
        tally = committees.Tally(10, np.array([3, 7, 4]), np.array([7, 2, 4]), np.zeros(10, np.int64))
        to_zero, to_one = tally.pushable(missing=1)
        assert (to_zero.tolist(), to_one.tolist()) == ([0, 1, 1], [1, 0, 1])
        assert tally.pushable(missing=4)[0].tolist() == [1, 1, 1]


def _shown(seed: int, committee: int) -> int:
    """What the ideal coin of a committee shows."""
    return int(stream(key(seed, "toss", 0, committee), "coin", 0).integers(2))


class TestTheAdversary:
    @settings(max_examples=30, deadline=None)
    @given(plans(), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**16))
    def test_it_is_greedy_as_written_down_plainly(self, plan: Plan, budget: int, most: int, seed: int) -> None:
        members = plan.members()
        wanted = stream(seed, "wanted").integers(0, 2, plan.committees).astype(np.uint8)
        budget = min(budget, plan.n)
        found = committees._greedy(members, plan.n, budget, most, wanted, 2.0)
        assert found.tolist() == oracle.corrupt(members, plan.n, budget, most, wanted, 2.0).tolist()
        assert int(found.sum()) == budget

    def test_it_fells_more_committees_than_chance(self) -> None:
        plan = Plan(n=128, committees=1448, size=30, links=5, missing=1, faults=16)
        members = plan.members()
        every = np.ones(plan.committees, np.uint8)
        chosen = fallen(members, corrupt(members, 128, 16, 7, every), 7).sum()
        by_chance = []
        for seed in range(20):
            random = np.zeros(128, np.uint8)
            random[stream(seed, "chance").permutation(128)[:16]] = 1
            by_chance.append(int(fallen(members, random, 7).sum()))
        assert chosen > 2 * max(by_chance)


class TestTheCoin:
    @pytest.mark.parametrize("seed", range(4))
    def test_it_is_the_majority_of_the_committees(self, seed: int) -> None:
        plan = Plan(n=12, committees=15, size=6, links=5, missing=0, faults=2, seed=seed)
        node = partial(CommitteeCoin, plan, partial(ideal, seed))
        outcome = World(n=12, f=2, node=node, seed=seed).run("async")
        shown = sum(_shown(seed, committee) for committee in range(15))
        assert outcome.decided() == dict.fromkeys(range(12), int(2 * shown > 15))
        assert all(one.settled for one in outcome.nodes)  # type: ignore[attr-defined]

    def test_real_coins_sit_in_the_committees_as_well(self) -> None:
        plan = Plan(n=9, committees=11, size=6, links=5, missing=1, faults=1, seed=2)
        node = partial(CommitteeCoin, plan, StrongCoin, tolerance=0.2)
        outcome = World(n=9, f=1, node=node, faults={8: Crash()}, seed=5).run("rounds", limit=100)
        assert len(outcome.decided()) == 8
        assert len(set(outcome.decided().values())) == 1

    def test_outsiders_cannot_publish(self) -> None:
        plan = Plan(n=8, committees=5, size=4, links=3, missing=0, faults=1)
        coin = CommitteeCoin(plan, partial(ideal, 1))
        members = set(plan.members()[0].tolist())
        outsider = next(party for party in range(8) if party not in members)
        world = World(n=8, f=1, node=partial(CommitteeCoin, plan, partial(ideal, 1)))
        ctx = Rounds(world).ctxs[0]
        coin.recv(ctx, outsider, ("publish", 0, 1))
        coin.recv(ctx, outsider, ("publish", 10**9, 1))
        coin.recv(ctx, outsider, ("publish", 0, 1, 1))
        assert coin.said == {}
