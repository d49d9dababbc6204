"""A job goes on as if nothing had happened, whatever happens to its replicas and its keeper."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.training.recover import soak


@pytest.mark.slow
@pytest.mark.alone
def test_ten_minutes_of_kills_stops_and_hangs_leave_every_step_as_it_would_have_been() -> None:
    """An hour is `python -m tests.training.recover.soak 3600`."""
    found = soak.main(600.0, 1)
    assert not found.wrong, found.wrong[:5]
    assert found.jobs >= 5
    assert found.steps > soak.STEPS * found.jobs  # more than one replica ended, most of the time
    assert all(found.faults[kind] for kind in ("kill", "stop", "hang", "kill keeper"))
