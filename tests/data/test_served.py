"""Who serves, probes or crashes beside producers and consumers takes nothing away and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.data.served import Killed, Served
from tests.data.test_layers import explored


def test_twenty_sequences_beside_servers_lose_nothing() -> None:
    explored(38, 20, 8, Served)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_four_hundred_sequences_beside_servers_lose_nothing(number: int) -> None:
    explored(number, 200, 12, Served)


@pytest.mark.slow
def test_a_hundred_sequences_with_killed_processes_lose_nothing() -> None:
    explored(3, 100, 12, Killed, shrink=False)
