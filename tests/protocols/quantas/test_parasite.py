"""A coalition of miners that withhold their blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.chain import Ghost, LongestChain, Miner, share
from assay.protocols.quantas.parasite import Parasite, coalition

NEVER = 10**6


def run(
    members: int, lead: int, *, seed: int = 1, rounds: int = 1500, rule: Any = LongestChain, **more: Any
) -> Outcome:
    faults = coalition(range(members), lead, **more) if lead else {}
    world = World(n=12, node=partial(Miner, rate=0.01, rule=rule), faults=faults, seed=seed)
    return world.run("rounds", limit=rounds, metered=False, traced=True)


def miners_of(outcome: Outcome, node: int) -> set[int]:
    return {block.miner for block in outcome.nodes[node].ledger.blocks} - {-1}  # type: ignore[attr-defined]


def test_nothing_leaks_before_it_is_published() -> None:
    outcome = run(4, NEVER)
    assert all(miners_of(outcome, node) == set(range(4, 12)) for node in outcome.correct)
    assert share(outcome, range(4)) == 0.0
    hoarded = [delivery for delivery in outcome.trace if delivery.msg[0] == "hoard"]
    assert hoarded
    assert {delivery.dst for delivery in hoarded} == set(range(4))


def test_the_members_mine_together_on_what_they_hide() -> None:
    outcome = run(4, NEVER)
    ledger = outcome.nodes[0].ledger  # type: ignore[attr-defined]
    line = [ledger.blocks[ledger.places[name]].miner for name in ledger.chain()]
    hidden = next(place for place, miner in enumerate(line) if miner < 4)
    assert set(line[hidden:]) == set(range(4))  # from the first hidden block on, nothing public


def test_work_is_not_forged() -> None:
    honest, hidden = run(4, 0), run(4, 3)
    assert [node.mined for node in honest.nodes] == [node.mined for node in hidden.nodes]  # type: ignore[attr-defined]


@pytest.mark.parametrize("lead", [1, 2, 4])
def test_what_is_published_is_that_much_higher_than_the_public_chain(lead: int) -> None:
    outcome = run(7, lead)
    honest: dict[float, int] = {}
    published: dict[float, int] = {}
    for time, _, dst, msg in outcome.trace:
        if msg[0] == "block" and dst >= 7:
            table = published if msg[4] < 7 else honest
            table[time] = max(table.get(time, 0), msg[1])
    assert published
    for time, height in published.items():
        seen = [
            high for when, high in {**honest, **{t: h for t, h in published.items() if t < time}}.items() if when < time
        ]
        assert height >= max(seen, default=0) + lead - 1  # a block under way to the coalition may be missing


def test_with_most_of_the_power_all_honest_work_is_lost_and_payments_are_taken_back() -> None:
    outcome = run(9, 4, rounds=3000)
    assert share(outcome, range(9)) > 0.95
    assert outcome.conflicts


@pytest.mark.parametrize("rule", [LongestChain, Ghost])
def test_a_weak_coalition_that_waits_for_a_long_lead_gets_nothing(rule: Any) -> None:
    assert share(run(2, 4, rule=rule), range(2)) < 0.05


def test_a_weak_coalition_that_gives_up_wastes_less() -> None:
    stubborn = sum(share(run(3, 2, seed=seed), range(3)) for seed in range(4))
    patient = sum(share(run(3, 2, seed=seed, patience=1), range(3)) for seed in range(4))
    assert patient > stubborn + 0.2


def test_alone_with_lead_one_it_is_an_honest_miner() -> None:
    honest, alone = run(1, 0, rounds=4000), run(1, 1, rounds=4000)
    assert abs(share(honest, [0]) - share(alone, [0])) < 0.03


def test_the_faults_of_one_run_do_not_leak_into_the_next() -> None:
    assert run(4, 2).digest == run(4, 2).digest
    faults = coalition(range(4), 2)
    world = World(n=12, node=partial(Miner, rate=0.01), faults=faults, seed=1)
    assert world.run("rounds", limit=500).digest == world.run("rounds", limit=500).digest
    assert all(isinstance(fault, Parasite) and not fault.own for fault in faults.values())


@pytest.mark.parametrize("bad", [{"lead": 0}, {"lead": 1, "patience": 0}])
def test_senseless_settings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Parasite(frozenset({0}), **bad)
