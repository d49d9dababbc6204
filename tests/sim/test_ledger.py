from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.ledger import LIST_PRICES, Ledger

lines = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "list", "delete", "transfer"]), st.sampled_from(["a", "b"]),
        st.sampled_from(["", "x>y"]), st.integers(0, 10**9), st.floats(0, 100), st.integers(1, 5),
    )
)  # fmt: skip


def ledger(entries: list[tuple]) -> Ledger:
    made = Ledger()
    for op, who, zone, nbytes, seconds, requests in entries:
        made.add(op, who, zone, nbytes, seconds, requests)
    return made


@given(lines, lines)
def test_ledgers_add_up(one: list[tuple], other: list[tuple]) -> None:
    apart, together = ledger(one) + ledger(other), ledger(one + other)
    assert {key: (line.requests, line.nbytes) for key, line in apart.lines.items()} == {
        key: (line.requests, line.nbytes) for key, line in together.lines.items()
    }
    assert apart.seconds() == pytest.approx(together.seconds())
    assert apart.usd() == pytest.approx(together.usd())
    assert apart.waits == together.waits


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_one_bucket_above_the_true_one(seconds: list[float], q: float) -> None:
    made = Ledger()
    for took in seconds:
        made.add("get", seconds=took)
    true = float(np.quantile(seconds, q, method="inverted_cdf"))
    assert true * (1 - 1e-9) <= made.quantile("get", q) <= true * 2 ** (1 / 16) * (1 + 1e-9)


def test_dollars_come_from_counts_and_prices() -> None:
    made = ledger([("put", "a", "", 100, 0, 1000), ("get", "a", "", 100, 0, 1000), ("delete", "a", "", 0, 0, 1000)])
    assert made.usd() == pytest.approx(0.005 + 0.0004)
    made.add("transfer", zone="a>b", nbytes=10**9)
    assert made.usd() == pytest.approx(0.0054 + 0.02)
    assert made.usd(replace(LIST_PRICES, cross_zone_gb=0.0)) == pytest.approx(0.0054)
    assert made.usd(stored_gb_months=2) == pytest.approx(0.0254 + 0.046)


def test_no_request_has_no_quantile() -> None:
    assert math.isnan(Ledger().quantile("put", 0.5))


WORK = """
from assay.sim.ledger import Ledger
first, second = Ledger(), Ledger()
with first.measuring():
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
del held
with second.measuring():
    pass
print(first.peak_rss - second.peak_rss)
"""


def test_the_peak_of_memory_is_that_of_the_block() -> None:
    """In a process of its own: threads that other tests left take and free memory meanwhile."""
    ended = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 40 << 20
