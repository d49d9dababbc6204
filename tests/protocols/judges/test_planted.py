"""A planted violation is always found and never blamed on more than it breaks; clean histories raise no alarm."""

from __future__ import annotations

import pytest

from assay.protocols.judges import linearizable, list_append
from assay.protocols.judges.judgement import HOLDS, VIOLATED, relax
from assay.protocols.judges.lattice import ISOLATION, STRONGER, strongest
from assay.protocols.judges.specifications import SPECIFICATIONS
from assay.workloads import planted_histories as planted
from assay.workloads.histories import Operation


def implies(stronger: str, weaker: str, order: dict[str, tuple[str, ...]]) -> bool:
    return stronger == weaker or any(implies(below, weaker, order) for below in order[stronger])


@pytest.mark.parametrize("name", planted.PLANTS)
def test_a_planted_anomaly_breaks_exactly_what_it_should(name: str) -> None:
    for seed in range(5):
        spoiled, where = planted.plant(planted.registers(60, seed=seed, lost=0.05), name, seed)
        ladder = strongest(spoiled)
        for model in STRONGER:
            broken = any(implies(model, weakest, STRONGER) for weakest in planted.PLANTS[name].breaks)
            assert ladder[model].verdict == (VIOLATED if broken else HOLDS), (model, ladder[model].reason)
            assert set(ladder[model].witness) <= set(where)
        # The border runs at the plant: of what is broken and has nothing broken below it, there are these.
        assert {judgement.model for judgement in ladder.broken} == set(planted.PLANTS[name].breaks)


@pytest.mark.parametrize("name", planted.TRANSACTIONS)
def test_a_planted_transaction_breaks_exactly_what_it_should(name: str) -> None:
    for seed in range(5):
        spoiled, where = planted.plant(planted.transactions(60, seed=seed), name, seed)
        ladder = strongest(spoiled)
        level = planted.TRANSACTIONS[name][0]
        for model in ISOLATION:
            expected = VIOLATED if implies(model, level, ISOLATION) else HOLDS
            assert ladder[model].verdict == expected, (model, ladder[model].reason)
            assert set(ladder[model].witness) <= set(where)


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_history_raises_no_alarm(seed: int) -> None:
    history = planted.registers(200, processes=6, keys=3, seed=seed, lost=0.1)
    assert strongest(history).maximal == ("linearizable",)
    assert {judgement.verdict for judgement in strongest(history).judgements} == {HOLDS}
    assert list_append.anomalies(planted.transactions(100, seed=seed)) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_stale_answer_is_found_and_explained_by_a_minimal_witness(seed: int) -> None:
    made = planted.stale(planted.registers(300, seed=seed, lost=0.05), seed)
    assert made is not None
    history, read = made
    judgement = linearizable.judge(history)
    register = SPECIFICATIONS["register"]
    assert judgement.verdict == VIOLATED and read in judgement.witness
    assert linearizable.verdict(relax(history, judgement.witness), register) == VIOLATED
    for spared in judgement.witness:
        rest = [i for i in judgement.witness if i != spared]
        assert linearizable.verdict(relax(history, rest), register) == HOLDS


def test_a_bank_with_thousands_of_overlapping_events_is_judged() -> None:
    history = planted.bank(2_000, processes=15)
    judgement = linearizable.judge(history)
    assert judgement.verdict == HOLDS and judgement.order is not None and len(judgement.order) == len(history)


def test_money_that_vanishes_is_found_among_many_events() -> None:
    history = planted.bank(1_000, processes=20)
    broken = next(i for i, item in enumerate(history) if item.f == "read" and i > 500)
    history[broken] = history[broken]._replace(result=history[broken].result | {0: -1})
    judgement = linearizable.judge(history)
    assert judgement.verdict == VIOLATED and judgement.witness == (broken,)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [10, 50, 100])
def test_five_thousand_concurrent_bank_operations_stay_within_memory(processes: int) -> None:
    import tracemalloc

    history = planted.bank(5_000, processes=processes)
    tracemalloc.start()
    judgement = linearizable.judge(history)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 600_000_000
    assert judgement.verdict == HOLDS if processes <= 50 else judgement.verdict != VIOLATED


def test_a_plant_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no plant 'weed'; there are stale-read"):
        planted.plant([Operation(0, "read", "x", None, None, 0.0, 1.0)], "weed")
