"""Coins are moved, never made; only their owner moves them; cheating costs more than it brings once it is seen."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.safecloud import economy
from assay.data.safecloud.economy import Accounts, Member, claim, market, place, split, unlocked
from assay.data.safecloud.grants import public_key

SECRET = bytes(range(32))


def test_a_claim_is_carried_out_once_and_only_as_it_was_signed() -> None:
    books, payer = Accounts(), public_key(SECRET).hex()
    books.move("mint", payer, 10)
    one = claim(SECRET, "node", 4, number=1)
    assert not books.settle(msgspec.structs.replace(one, amount=9)), "forged"
    assert not books.settle(msgspec.structs.replace(one, payee="thief")), "redirected"
    assert books.settle(one) and not books.settle(one), "used once"
    assert not books.settle(claim(SECRET, "node", 7, number=2)), "not covered"
    assert not books.settle(claim(SECRET, "node", -7, number=3)), "nobody is paid less than nothing"
    assert (books.of[payer], books.of["node"], sum(books.of.values())) == (6, 4, 0)


@given(st.integers(0, 10**12))
def test_a_fee_is_split_without_loss(fee: int) -> None:
    parts = split(fee)
    assert sum(parts.values()) == fee and min(parts.values()) >= 0
    assert all(abs(parts[name] - fee * share) < 4 for name, share in economy.SPLIT.items())


def test_three_failures_within_an_hour_cost_the_stake_and_three_within_two_do_not() -> None:
    slow, fast = Member("slow", 1.0), Member("fast", 1.0)
    assert [slow.challenged(now, failed=True) for now in (0.0, 1900.0, 3700.0)] == [False, False, False]
    assert [fast.challenged(now, failed=True) for now in (0.0, 1700.0, 3500.0)] == [False, False, True]


def test_a_stake_comes_back_by_a_tenth_a_day() -> None:
    assert [unlocked(1000, 0.0, days * economy.DAY) for days in (0, 1, 5.5, 20)] == [0, 100, 550, 1000]


def test_chunks_go_to_different_nodes_by_weight_and_never_to_one_that_was_slashed() -> None:
    rng = np.random.default_rng(0)
    members = [Member("rich", 0, stake=3000), Member("poor", 0, stake=1000), Member("gone", 0, slashed=1.0)]
    chosen = [tuple(one.name for one in place(members, rng, copies=1)) for _ in range(4000)]
    assert chosen.count(("rich",)) / 4000 == pytest.approx(0.75, abs=0.03)
    assert all({one.name for one in place(members, rng)} == {"rich", "poor"} for _ in range(20))


@pytest.mark.parametrize(("caught", "slashed"), [(0.0, False), (0.76, True)])
def test_a_cheat_loses_its_stake_under_an_audit_that_sees_it(caught: float, slashed: bool) -> None:
    books, members = market({"honest": 0.0, "cheat": caught, "other": 0.0}, 3, 4.0, 1.0, seed=1)
    assert sum(books.of.values()) == 0
    assert [member.slashed is not None for member in members] == [False, slashed, False]
    assert (books.of["stake of cheat"] == 0) is slashed
    assert all(value >= 0 for name, value in books.of.items() if name != "mint")
