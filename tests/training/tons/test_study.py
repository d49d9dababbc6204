"""The search beats tori and draws at equal ports; its wiring serves the rest of the room; bad input is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from assay.sim import topology
from assay.sim.collectives import Link
from assay.sim.links import max_min
from assay.training import tons
from assay.training.tons import compare as command
from assay.training.tons.flows import throughput
from assay.training.tons.pods import distances, torus
from assay.training.tons.search import best_torus, best_twisted, random_shifts, synthesise


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    rows = [
        {"experiment": "pods", "cubes": 2, "seed": seed, "network": name, **row}
        for seed in (0, 1)
        for name, row in tons.compared(2, steps=200, seed=seed).items()
    ]
    same = {"experiment": "large", "cubes": 32, "seed": 0, "chips": 2048}
    large = [same | {"network": name, "all_to_all": x, "bound": x} for name, x in (("torus", 0.5), ("tons", 0.7))]
    return pl.concat([pl.from_dicts(rows), pl.from_dicts(large)], how="diagonal")


def test_at_512_chips_an_all_to_all_gets_a_third_more_than_on_the_best_torus() -> None:
    found = throughput(synthesise(8, steps=1500)).reached
    assert found >= 1.3 * throughput(best_torus(8)).bound
    assert found >= 1.2 * throughput(best_twisted(8)).bound


@pytest.mark.slow
def test_at_1024_chips_it_gets_a_third_more_than_on_the_best_twisted_torus_too() -> None:
    found = throughput(synthesise(16, steps=4000)).reached
    assert found >= 1.3 * throughput(best_twisted(16)).bound
    assert found >= 2.0 * throughput(best_torus(16)).reached


def test_claims_are_read_off_the_table(table: pl.DataFrame) -> None:
    found = {claim.id: claim.measure(table).value for claim in tons.claims}
    assert found["plain-torus"] >= found["all-to-all"] > 0
    assert found["scales"] == 1.0
    assert found["channels"] >= 1 and found["certain"] < 0.2


def test_the_same_seed_finds_the_same_wiring() -> None:
    assert (synthesise(4, seed=3, steps=100).shift == synthesise(4, seed=3, steps=100).shift).all()


def test_more_steps_never_lengthen_the_way() -> None:
    totals = [distances(synthesise(3, seed=1, steps=steps)).sum() for steps in (1, 100, 400)]
    assert totals == sorted(totals, reverse=True)


def test_what_was_found_is_a_topology_on_which_an_all_to_all_is_quicker(tmp_path: Path) -> None:
    link, rates = Link(1e-6, 45e9), {}
    command.export(synthesise(2, steps=300), tmp_path / "tons.json", link)
    for name, network in (("torus", best_torus(2).topology(link)), ("tons", topology.read(tmp_path / "tons.json"))):
        pairs = [(a, b) for a in range(network.ranks) for b in range(network.ranks) if a != b]
        rates[name] = max_min([network.path(a, b) for a, b in pairs], network.bandwidth).min()
    assert rates["tons"] > 1.1 * rates["torus"]  # the slowest pair decides when all have arrived


def test_bad_input_is_told_in_a_line(refused: Callable[..., str]) -> None:
    assert "--cubes" in refused("compare", "tons", "--cubes", "0")
    assert "--steps" in refused("compare", "tons", "--cubes", "2", "--steps", "none")


def test_the_answer_says_who_carries_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = command.command.callback(2, 50, 0, tmp_path / "mine.json", 45e9)  # type: ignore[misc]
    assert {row["network"] for row in answer["table"]} == set(tons.NETWORKS)
    assert answer["why"].startswith("tons ") and json.loads((tmp_path / "mine.json").read_text())["ranks"] == 128


def test_draws_are_as_many_as_the_search_tries_and_the_best_of_them_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw once stood for all that chance could find, against the best of 1,500 steps."""
    given: list[int] = []
    monkeypatch.setattr(tons, "random_shifts", lambda cubes, seed, draws: given.append(draws) or torus((2, 1, 1)))
    tons.networks(2, seed=0, steps=30)
    assert given == [30]
    hops = [distances(random_shifts(3, seed=1, draws=draws)).sum() for draws in (1, 30, 300)]
    assert hops == sorted(hops, reverse=True) and hops[0] > hops[-1]
