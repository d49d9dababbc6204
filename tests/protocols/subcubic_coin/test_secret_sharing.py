"""Verifiable secret sharing: what was dealt is opened by all, or nothing is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.faults import Chaos, Crash
from assay.protocols.interface import Fault, Node
from assay.protocols.kernel import signatures
from assay.protocols.kernel.world import World
from assay.protocols.subcubic_coin.strong_coin import PRIME, Avss, evaluate, interpolate


class TestSecretSharing:
    @given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=6), st.integers(0, PRIME - 1))
    def test_interpolation_inverts_evaluation(self, coefficients: list[int], x: int) -> None:
        points = {place: evaluate(coefficients, place) for place in range(1, len(coefficients) + 1)}
        assert interpolate(points, x) == evaluate(coefficients, x)
        assert interpolate(points, 0) == coefficients[0]

    @pytest.mark.parametrize("seed", range(8))
    def test_what_an_honest_dealer_dealt_is_opened_by_all(self, seed: int) -> None:
        faults: dict[int, Fault] = {3: Crash(), 6: Chaos()}
        node = partial(Avss, dealer=0, opening=True)
        outcome = World(n=7, f=2, node=node, inputs=[99], faults=faults, seed=seed).run("async")
        assert outcome.decided("secret") == dict.fromkeys((0, 1, 2, 4, 5), 99)

    def test_shares_off_the_polynomial_are_opened_as_zero_by_all(self) -> None:
        shares = [(place * place * place + 7, 1) for place in range(1, 8)]  # of degree three, not two
        leaves = [a.to_bytes(8, "little") + b.to_bytes(8, "little") for a, b in shares]
        root, proofs = signatures.tree(leaves)

        class Dealer(Avss):
            def deal(self, ctx: Any, secret: int) -> None:
                for node in range(7):
                    ctx.send(node, ("deal", root, *shares[node], proofs[node]))

        for seed in range(10):
            nodes: list[Node] = [Dealer(0, opening=True), *(Avss(0, opening=True) for _ in range(6))]
            outcome = World(n=7, f=2, node=nodes, inputs=[1], seed=seed).run("async")
            assert set(outcome.decided("secret").values()) == {0}

    def test_f_shares_say_nothing_about_the_secret(self) -> None:
        """Every secret fits f shares: for each there is a polynomial of degree f through them and it."""
        shares = {1: 123, 2: 456}
        for secret in (0, 1, PRIME - 1):
            points = {0: secret, **shares}
            assert all(interpolate(points, place) == value for place, value in points.items())
