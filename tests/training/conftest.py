"""For tests of jobs: what they start has ended when they have."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest


@pytest.fixture
def nobody_left() -> Iterator[None]:
    """No child of this test's outlives it; those that other tests of the process keep do not count."""
    before = set(multiprocessing.active_children())
    yield
    assert not set(multiprocessing.active_children()) - before
