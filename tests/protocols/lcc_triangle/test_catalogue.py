"""The catalogue of models: that it loads, that it fits the lattice, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from assay.protocols.judges import lattice
from assay.protocols.lcc_triangle.catalogue import catalogue, parse, weaker

BY_NAME = {row.name: row for row in catalogue()}
SAME = {  # names here and in the lattice
    "read your writes": "read-your-writes", "monotonic reads": "monotonic-reads",
    "monotonic writes": "monotonic-writes", "writes follow reads": "writes-follow-reads", "PRAM": "pram",
    "cache consistency": "coherent", "processor consistency": "processor", "causal consistency": "causal",
    "causal memory": "causal-memory", "causal convergence": "causal-convergent",
    "consistent prefix": "consistent-prefix", "sequential consistency": "sequential",
    "linearizability": "linearizable",
}  # fmt: skip


def row(**changed: Any) -> dict[str, Any]:
    return {
        "name": "mine", "closure": "own", "order": "local", "refines": "none", "timely": "absent", "returns": "last",
        "source": "inferred",
    } | changed  # fmt: skip


def test_names_are_different_and_each_has_a_source() -> None:
    assert len(BY_NAME) == len(catalogue())
    assert all(entry.source for entry in catalogue())


@pytest.mark.parametrize(("name", "model"), SAME.items())
def test_models_that_the_lattice_names_have_its_coordinates(name: str, model: str) -> None:
    assert BY_NAME[name].configuration.demands == lattice.NAMED[model].demands


def test_its_order_is_the_lattices_where_time_and_answers_are_alike() -> None:
    for one in catalogue():
        for other in catalogue():
            if (one.timely, one.returns) == (other.timely, other.returns):
                assert weaker(one, other) == lattice.le(one.configuration, other.configuration)
            if one.returns != other.returns:
                assert not weaker(one, other)


def test_well_known_steps_are_steps_here() -> None:
    for low, high in [
        ("causal+ consistency", "sequential consistency, live"),
        ("eventual consistency", "causal+ consistency"),
        ("sequential consistency", "linearizability"),
        ("timed consistency", "bounded staleness"),
        ("no guarantee", "linearizability"),
    ]:
        assert weaker(BY_NAME[low], BY_NAME[high]), (low, high)
        assert not weaker(BY_NAME[high], BY_NAME[low]), (low, high)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"name": "mine"}], "'mine' lacks 'closure'"),
        ([row(timely="soon")], "'mine': timely is 'soon'; one of absent"),
        ([row(returns="all")], "'mine': returns is 'all'"),
        ([row(closure="own theirs")], "'mine': no relation 'theirs'"),
        ([row(order="some")], "'mine': no agreement 'some'"),
        ([row(), row(name="yours")], "'yours' has the coordinates of 'mine'"),
    ],
)
def test_a_wrong_row_is_refused_in_one_line_that_names_it(rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        parse(rows)
    assert "\n" not in str(error.value)


def test_two_rows_may_share_coordinates_if_one_says_why() -> None:
    first, second = parse([row(), row(name="yours", caveat="with a probability")])
    assert first.coordinates == second.coordinates
