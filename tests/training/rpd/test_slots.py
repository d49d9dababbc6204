"""Slots and delays: the law of S² − S/2, and a plain twin that agrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.rpd.slots import delays, timeline
from tests.oracles import pipedream


@given(st.integers(1, 6), st.integers(1, 14), st.integers(1, 8))
def test_slots_and_delays_are_those_of_the_plain_twin(stages: int, microbatches: int, most: int) -> None:
    found = timeline(stages, microbatches, most)
    plain = pipedream.slots(stages, microbatches, most)
    signs = [[0 if op is None else (op[1] + 1) * (1 if op[0] == "F" else -1) for op in row] for row in plain]
    assert found.tolist() == signs
    ages = delays(found).of_updates
    assert {(m, s): int(ages[m, s]) for m in range(microbatches) for s in range(stages)} == pipedream.delays(plain)


@pytest.mark.parametrize("stages", [2, 4, 8, 16, 24, 32, 64])
def test_the_oldest_block_is_s_squared_less_half_s_updates_old(stages: int) -> None:
    assert delays(timeline(stages, 8 * stages)).steady() == stages**2 - stages // 2


@given(st.integers(2, 8), st.integers(4, 20))
def test_every_pass_happens_once_after_its_input_and_few_are_on_the_way(stages: int, microbatches: int) -> None:
    slots = timeline(stages, microbatches)
    when = {(int(op), s): t for t, row in enumerate(slots) for s, op in enumerate(row) if op}
    assert len(when) == 2 * stages * microbatches
    for m in range(1, microbatches + 1):
        for s in range(stages):
            assert s == 0 or when[m, s - 1] < when[m, s]
            assert when[m, s] < when[-m, s]
            assert s == stages - 1 or when[-m, s + 1] < when[-m, s]
    assert np.max(np.cumsum(np.sign(slots[:, 0]))) <= stages


def test_counted_in_its_own_versions_the_delay_is_only_linear() -> None:
    """The trap: in a stage's own versions weights are less than S old, not S²."""
    from assay.training.rpd.pipeline import _oldest

    assert _oldest(timeline(8, 64))[0] == 7
    assert max(_oldest(timeline(8, 64))) == 7
    assert _oldest(timeline(8, 64))[-1] == 0


def test_no_stages_and_no_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        timeline(0, 4)
