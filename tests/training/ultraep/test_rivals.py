"""The rivals: what EPLB, LPLB and a forced gate do with loads, and that none of them loses a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.training.interface import Hosts
from assay.training.ultraep.rivals import Eplb, EplbPlus, Ideal, Lplb, Nobody, beside, placed
from tests.oracles import expert_plans

HOSTS = Hosts.dealt(experts=16, ranks=8, slots=2)
LOADS = arrays(np.int64, (3, 8, 16), elements=st.integers(0, 500))


@pytest.mark.parametrize(
    "balancer", [Nobody(), Eplb(2), Eplb(2, nodes=2), EplbPlus(), EplbPlus(moves=True), Lplb(2)], ids=repr
)
@given(loads=LOADS)
def test_no_token_is_lost(balancer: Any, loads: Any) -> None:
    for load in loads:
        assert expert_plans.conserved(load, balancer.rebalance(load, HOSTS).tokens)


@given(LOADS)
def test_a_forced_gate_is_even_to_a_token_a_source(loads: Any) -> None:
    shares = Ideal().rebalance(loads[0], HOSTS)
    assert (shares.tokens.sum(axis=(1, 2)) == loads[0].sum(axis=1)).all()
    assert np.ptp(shares.tokens.sum(axis=(0, 2))) <= 1


@given(arrays(np.float64, 16, elements=st.integers(1, 1000)), st.sampled_from([1, 2, 4]))
def test_eplb_fills_every_place_and_leaves_no_expert_out(load: Any, nodes: Any) -> None:
    copies = placed(load, HOSTS, nodes)
    assert (copies.sum(axis=0) == 16 // 8 + 2).all()
    assert (copies.sum(axis=1) >= 1).all()
    spans = (copies.reshape(16, nodes, -1).sum(axis=2) > 0).sum(axis=1)
    assert (spans == 1).all()  # of the hierarchical variant: an expert stays within its node


@given(arrays(np.float64, 16, elements=st.integers(1, 1000)))
def test_eplb_on_exact_counts_leaves_every_expert_at_home_and_fills_the_slots(load: Any) -> None:
    copies = beside(load, HOSTS)
    assert (copies[np.arange(16), HOSTS.main] >= 1).all()
    assert (copies.sum(axis=0) == 16 // 8 + 2).all()


def test_eplb_balances_the_past_and_not_the_present() -> None:
    hot, cold = np.full((8, 16), 10), np.full((8, 16), 10)
    hot[:, 0], cold[:, 15] = 500, 500
    balancer = Eplb(window=1)
    before, same, other = (balancer.rebalance(load, HOSTS).load() for load in (hot, hot, cold))
    assert before.max() == hot.sum(axis=0)[:2].sum()
    assert same.max() < 0.5 * before.max()
    assert other.max() > 2 * same.max()


def test_a_placement_stands_for_as_long_as_it_is_told_to() -> None:
    random = np.random.default_rng(1)
    lazy = Eplb(window=1, every=2)
    where = [lazy.rebalance(random.integers(50, 500, (8, 16)), HOSTS).tokens.sum(axis=0) > 0 for _ in range(5)]
    assert (where[1] == where[2]).all()
    assert (where[2] != where[3]).any()


def test_lplb_is_as_even_as_one_copy_an_expert_allows() -> None:
    load = np.full((8, 16), 10)
    load[:, 0] = 100
    balancer = Lplb(1)
    balancer.rebalance(load, HOSTS)
    found = balancer.rebalance(load, HOSTS)
    assert ((found.tokens.sum(axis=0) > 0).sum(axis=1) <= 2).all()
    assert found.load().max() == pytest.approx(400, abs=8)  # the hot expert's 800, on two ranks at most
