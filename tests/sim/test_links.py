"""Links are shared fairly: no flow can have more without taking from one that has no more than it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.links import deliver, max_min
from tests.oracles import fair_shares

capacities = st.lists(st.integers(1, 20), min_size=1, max_size=6)


@st.composite
def networks(draw: st.DrawFn, flows: int = 8, least: int = 0) -> tuple[list[list[int]], list[int]]:
    capacity = draw(capacities)
    path = st.lists(st.integers(0, len(capacity) - 1), unique=True, min_size=least, max_size=4)
    return draw(st.lists(path, min_size=1, max_size=flows)), capacity


@given(networks())
def test_rates_are_those_of_exact_fractions(network: tuple[list[list[int]], list[int]]) -> None:
    paths, capacity = network
    expected = [np.inf if rate is None else float(rate) for rate in fair_shares.rates(paths, capacity)]
    assert max_min(paths, capacity) == pytest.approx(expected, rel=1e-9)


@given(networks(least=1))
def test_every_flow_is_held_by_a_full_link_on_which_nobody_has_more(network: tuple[list[list[int]], list[int]]) -> None:
    paths, capacity = network
    rates = max_min(paths, capacity)
    load = [sum(rate for rate, path in zip(rates, paths, strict=True) if link in path) for link in range(len(capacity))]
    assert all(x <= c * (1 + 1e-9) for x, c in zip(load, capacity, strict=True))
    for rate, path in zip(rates, paths, strict=True):
        most = [max(r for r, other in zip(rates, paths, strict=True) if link in other) for link in path]
        full = [load[link] >= capacity[link] * (1 - 1e-9) for link in path]
        assert any(f and rate >= m * (1 - 1e-9) for f, m in zip(full, most, strict=True))


@given(networks(flows=6), st.data())
@settings(max_examples=30)
def test_flows_arrive_when_exact_fractions_say(network: tuple[list[list[int]], list[int]], data: st.DataObject) -> None:
    paths, capacity = network
    count = len(paths)
    nbytes = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    latency = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    queue = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    after = [data.draw(st.lists(st.integers(0, f - 1), unique=True, max_size=2)) if f else [] for f in range(count)]
    expected = [float(t) for t in fair_shares.deliver(paths, nbytes, capacity, latency, after, queue)]
    found = deliver(paths, nbytes, capacity, latency=latency, after=after, queue=queue)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_flows_that_wait_for_each_other_are_told() -> None:
    with pytest.raises(ValueError, match="flow 0 waits for one that waits for it"):
        deliver([[0], [0]], [1, 1], [1], after=[[1], [0]])


def test_a_link_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="names link 3; there are links 0 to 1"):
        max_min([[0, 3]], [1.0, 1.0])
