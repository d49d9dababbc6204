"""PBFT replicas with two properly signed stories."""

from __future__ import annotations

from functools import partial

import pytest

from assay.protocols.kernel.net import Net, Uniform
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.pbft import Pbft, PbftClient
from assay.protocols.nodes.pbft_proofs import equivocators


def run(n: int, liars: int, rounds: int = 80, seed: int = 0, slow: float = 1.0) -> Outcome:
    client = PbftClient([("write", "x", number) for number in range(rounds)], patience=20)
    net = Net(Uniform(0.5, slow + 0.5))
    world = World(
        n=n, f=(n - 1) // 3, node=partial(Pbft, patience=10), clients=[client], net=net,
        faults=equivocators(range(liars), n), seed=seed,
    )  # fmt: skip
    return world.run("rounds", limit=rounds, metered=False)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "liars"), [(4, 1), (7, 1), (7, 2), (10, 3)])
def test_up_to_f_of_them_cannot_make_correct_replicas_disagree(n: int, liars: int, seed: int) -> None:
    assert not run(n, liars, seed=seed, slow=2.0).conflicts


@pytest.mark.parametrize("n", [4, 7, 10])
def test_one_more_can_and_it_is_seen(n: int) -> None:
    assert run(n, (n - 1) // 3 + 1).conflicts


def test_both_stories_hold_up_to_scrutiny() -> None:
    outcome = run(7, 3)
    first, second = ({outcome.decisions[node].get(1, "none") for node in nodes} for nodes in ((4, 6), (3, 5)))
    assert first == {(7, 1, "write", "x", 0)}
    assert second == {None}  # the request that does nothing, committed with 2f + 1 valid votes


def test_each_of_them_that_comes_to_lead_costs_a_change_of_view() -> None:
    answered = [sum(operation.status == "ok" for operation in run(10, liars).operations) for liars in range(3)]
    assert answered == sorted(answered, reverse=True)
    assert answered[0] > answered[2] > 0
