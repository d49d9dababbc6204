"""Miners and the rules by which a chain counts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.interface import Ctx
from assay.protocols.kernel.net import Net, Uniform
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes import chain
from assay.protocols.nodes.chain import GENESIS, Block, Ghost, LongestChain, Miner
from assay.protocols.quantas.parasite import coalition
from tests.oracles import chains

TREES = st.lists(st.integers(0, 10**6), max_size=14).map(
    lambda draws: [-1, *(draw % (place + 1) for place, draw in enumerate(draws))]
)
MESSAGES = st.lists(
    st.one_of(st.integers(), st.binary(max_size=20), st.text(max_size=4), st.none(), st.tuples(st.integers())),
    max_size=7,
)
RULES = pytest.mark.parametrize("rule", [LongestChain, Ghost])


def blocks_of(tree: list[int]) -> list[Block]:
    """The tree's blocks, in its order; the first one is the genesis block."""
    names, made = [GENESIS], [Block(0, GENESIS, (), -1, 0, ())]
    for place, parent in list(enumerate(tree))[1:]:
        block = Block(made[parent].height + 1, names[parent], (), 0, place, ((0, place),))
        made.append(block)
        names.append(block.hash)
    return made


class Told(Ctx):
    """A context that remembers what a node sends and decides."""

    def __init__(self, n: int = 3) -> None:
        self.id, self.n, self.f, self.peers, self.input = 0, n, 0, tuple(range(1, n)), None
        self.sent: list[tuple[int, Any]] = []
        self.decided: list[tuple[Any, Any]] = []

    now = 0.0
    rng = None  # type: ignore[assignment]

    def send(self, to: int, msg: Any) -> None:
        self.sent.append((to, msg))

    def broadcast(self, msg: Any, to: Any = None) -> None:
        self.sent += [(other, msg) for other in (self.peers if to is None else to)]

    def decide(self, value: Any, slot: Any = 0) -> None:
        self.decided.append((slot, value))

    def _unused(self, *arguments: Any) -> Any:
        raise AssertionError("a miner that only listens does not do this")

    timer = invoke = complete = sign = verify = _unused


class TestTheRules:
    @settings(max_examples=300, deadline=None)
    @given(TREES)
    def test_the_head_is_the_one_that_a_search_from_the_first_block_finds(self, tree: list[int]) -> None:
        for rule, oracle in ((LongestChain, chains.longest), (Ghost, chains.ghost)):
            ledger = rule()
            for place, block in list(enumerate(blocks_of(tree)))[1:]:
                assert ledger.add(block.hash, block)
                assert ledger.tip == oracle(tree[: place + 1])

    def test_they_differ_where_stale_blocks_stand_behind_the_shorter_branch(self) -> None:
        #  0 ── 1 ── 2 ── 3     and     0 ── 4 with the children 5, 6, 7
        tree = [-1, 0, 1, 2, 0, 4, 4, 4]
        tips = {}
        for rule in (LongestChain, Ghost):
            ledger = rule()
            for block in blocks_of(tree)[1:]:
                ledger.add(block.hash, block)
            tips[rule] = ledger.tip
        assert tips == {LongestChain: 3, Ghost: 5}

    @RULES
    def test_a_block_of_a_wrong_height_and_a_known_block_are_refused(self, rule: type[LongestChain]) -> None:
        ledger = rule()
        good = Block(1, GENESIS, (), 0, 1, ())
        assert ledger.add(good.hash, good)
        assert not ledger.add(good.hash, good)
        for height in (0, 2, 7):
            bad = good._replace(height=height)
            assert not ledger.add(bad.hash, bad)
        assert len(ledger) == 2

    def test_uncles_are_stale_and_named_once_within_seven_generations(self) -> None:
        world = World(n=8, node=partial(Miner, rate=0.1, rule=Ghost), seed=4)
        ledger = world.run("rounds", limit=300, metered=False).nodes[0].ledger  # type: ignore[attr-defined]
        main = ledger.chain()
        named = [(block.height, uncle) for name in main for block in [ledger.blocks[ledger.places[name]]]
                 for uncle in block.uncles]  # fmt: skip
        assert len(named) > 10
        assert not {uncle for _, uncle in named} & set(main)
        assert len({uncle for _, uncle in named}) == len(named)
        assert all(height - ledger.blocks[ledger.places[uncle]].height <= 7 for height, uncle in named)


class TestAMiner:
    @settings(max_examples=150, deadline=None)
    @given(TREES, st.randoms(use_true_random=False))
    def test_blocks_may_come_in_any_order_and_payments_are_never_lost(self, tree: list[int], random: Any) -> None:
        blocks = blocks_of(tree)[1:]
        in_order = Miner()
        shuffled = Miner()
        ctx = Told()
        for block in blocks:
            in_order.recv(ctx, 1, ("block", *block))
        random.shuffle(blocks)
        for block in blocks:
            shuffled.recv(ctx, 1, ("block", *block))
        assert set(shuffled.ledger.names) == set(in_order.ledger.names)
        assert shuffled.ledger.head.height == in_order.ledger.head.height
        assert not shuffled.orphans
        for miner in (in_order, shuffled):
            ledger = miner.ledger
            counted = {pay for name in ledger.chain() for pay in ledger.blocks[ledger.places[name]].transactions}
            stale = {pay for block in ledger.blocks for pay in block.transactions} - counted
            assert not counted & set(miner.pool)
            assert set(miner.pool) <= stale  # what was in a block that lost its place waits again

    def test_a_payment_of_a_block_that_lost_its_place_waits_again(self) -> None:
        tree = [-1, 0, 0, 2]  # 1 counts until 3 comes
        one, two, three = blocks_of(tree)[1:]
        miner, ctx = Miner(), Told()
        for block in (one, two):
            miner.recv(ctx, 1, ("block", *block))
        assert list(miner.pool) == []
        miner.recv(ctx, 1, ("block", *three))
        assert list(miner.pool) == [(0, 1)]

    def test_it_asks_for_a_parent_that_it_does_not_know(self) -> None:
        first, second = blocks_of([-1, 0, 1])[1:]
        miner, ctx = Miner(), Told()
        miner.recv(ctx, 2, ("block", *second))
        assert ctx.sent == [(2, ("ask", first.hash))]
        miner.recv(ctx, 2, ("block", *first))
        assert miner.ledger.head == second

    def test_it_answers_for_what_it_knows_and_only_that(self) -> None:
        (first,) = blocks_of([-1, 0])[1:]
        miner, ctx = Miner(), Told()
        miner.recv(ctx, 1, ("block", *first))
        for name in (first.hash, bytes(16), b"short", 3):
            miner.recv(ctx, 2, ("ask", name))
        assert ctx.sent == [(2, ("block", *first))]

    @settings(max_examples=200, deadline=None)
    @given(st.sampled_from(["block", "pay", "ask", "hoard", "what"]), MESSAGES)
    def test_it_survives_any_message(self, kind: str, body: list[Any]) -> None:
        miner, ctx = Miner(), Told()
        miner.recv(ctx, 1, (kind, *body))
        assert len(miner.ledger) == 1

    @pytest.mark.parametrize("number", [-1, 2**63, 2**200, True, 1.0])
    def test_numbers_that_no_frame_can_carry_are_no_block(self, number: Any) -> None:
        good = ("block", 1, GENESIS, (), 1, 1, ((1, 1),))
        for place in (1, 4, 5):
            assert chain.parse((*good[:place], number, *good[place + 1 :])) is None
        assert chain.parse((*good[:6], ((1, number),))) is None
        assert chain.parse(good)

    def test_it_keeps_only_so_many_blocks_without_a_parent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chain, "ORPHANS", 5)
        miner, ctx = Miner(), Told()
        for number in range(20):
            miner.recv(ctx, 1, ("block", 9, bytes([number]) * 16, (), 1, number, ()))
        assert sum(map(len, miner.orphans.values())) == miner.waiting == 5

    def test_in_rounds_it_finds_blocks_with_the_chance_it_was_given(self) -> None:
        chance, rounds, n = 0.2, 2000, 10
        world = World(n=n, node=partial(Miner, rate=chain.rate_of_chance(chance)), seed=3)
        nodes = world.run("rounds", limit=rounds, metered=False).nodes
        mined = sum(node.mined for node in nodes)  # type: ignore[attr-defined]
        spread = math.sqrt(n * rounds * chance * (1 - chance))
        assert abs(mined - n * rounds * chance) < 4 * spread

    @pytest.mark.parametrize("mode", ["rounds", "timed"])
    @RULES
    def test_all_agree_on_what_lies_deep_enough(self, mode: str, rule: type[LongestChain]) -> None:
        world = World(n=6, node=partial(Miner, rate=0.01, rule=rule), net=Net(Uniform(0.5, 1.5)), seed=5)
        outcome = world.run(mode, limit=2000)
        assert not outcome.conflicts
        assert len(chain.common([chain.settled(outcome, node) for node in range(6)])) > 80

    def test_blocks_travel_hop_by_hop_where_not_all_are_neighbours(self) -> None:
        world = World(n=8, node=partial(Miner, rate=0.002), topology="ring", seed=6)
        outcome = world.run("rounds", limit=3000)
        heads = {node.ledger.head.height for node in outcome.nodes}  # type: ignore[attr-defined]
        assert max(heads) > 20
        assert max(heads) - min(heads) <= 2

    def test_payments_end_up_in_the_chain(self) -> None:
        world = World(n=4, node=partial(Miner, rate=0.02, submits=0.05), seed=7)
        outcome = world.run("rounds", limit=2000)
        ledger = outcome.nodes[0].ledger  # type: ignore[attr-defined]
        held = {pay for name in ledger.chain() for pay in ledger.blocks[ledger.places[name]].transactions}
        submitted = sum(node.submitted for node in outcome.nodes)  # type: ignore[attr-defined]
        assert submitted > 300
        assert len(held) > 0.9 * submitted

    def test_a_payment_taken_back_is_a_conflict(self) -> None:
        world = World(n=6, node=partial(Miner, rate=0.02, confirmations=2), faults=coalition(range(4), lead=8), seed=8)
        outcome = world.run("rounds", limit=2000)
        assert outcome.conflicts

    @pytest.mark.parametrize("bad", [{"rate": -1.0}, {"rate": math.nan}, {"submits": math.inf}])
    def test_a_senseless_rate_is_refused(self, bad: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="numbers from 0"):
            Miner(**bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="from 0 to below 1"):
            chain.rate_of_chance(1.0)


class TestShares:
    def outcome(self, log: list[tuple[int, int, int]]) -> Outcome:
        world = World(n=2, node=Miner)
        run = world.run("rounds", limit=1)
        run.log = [Decision(0.0, node, height, (b"%d" % miner, miner)) for node, height, miner in log]
        return run

    def test_the_share_is_that_of_the_common_chain(self) -> None:
        run = self.outcome([(0, 1, 5), (0, 2, 6), (0, 3, 5), (1, 1, 5), (1, 2, 6)])
        assert chain.share(run, [5]) == 0.5
        assert chain.share(run, [7]) == 0.0

    def test_what_was_taken_back_does_not_count(self) -> None:
        run = self.outcome([(0, 1, 5), (0, 2, 5), (0, 1, 6), (1, 1, 6)])
        assert chain.settled(run, 0) == [(b"6", 6)]
        assert chain.share(run, [5]) == 0.0

    def test_no_chain_no_share(self) -> None:
        assert math.isnan(chain.share(self.outcome([]), [0]))
