"""The laws of pausing, and the race that measures them: the plane's own code, with weights instead of bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.lakestream import commits, contention
from assay.data.lakestream.contention import Load
from assay.data.lakestream.manifest import Full, State
from assay.data.lakestream.pace import Adaptive, Aimd, Fixed, pace_named
from assay.data.store.delayed import PROFILES, Latency, Profile
from assay.record.errors import BadInput

FEW = Load(producers=6, seconds=1.0, nbytes=1 << 20, slices=2)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.001, 5.0), st.integers(1, 500))))
def test_a_pause_stays_within_its_bounds(seen: list[tuple[bool, float, int]]) -> None:
    for pace in (Adaptive(), Aimd()):
        for won, took, versions in seen:
            pace.committed(took, versions) if won else pace.lost(took)
            assert pace.least <= pace.interval <= pace.most


@pytest.mark.parametrize(("producers", "took"), [(4, 0.1), (64, 0.2), (64, 0.7)])
def test_the_pause_grows_with_producers_and_with_the_time_of_an_attempt(producers: int, took: float) -> None:
    pace = Adaptive()
    for _ in range(60):
        pace.committed(took, producers)
    assert pace.interval == pytest.approx(producers * took / 0.35, rel=0.01)


def test_a_pace_has_a_name() -> None:
    assert [type(pace_named(name)) for name in ("adaptive", "aimd", "batch", "2")] == [Adaptive, Aimd, Fixed, Fixed]
    for name in ("often", "-1", "nan"):
        with pytest.raises(BadInput, match="is no pace"):
            pace_named(name)


class Whole(Full):
    """Real bytes where the race has numbers."""

    def __init__(self, states: list[State]) -> None:
        pass


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("pace", ["adaptive", "0.05"])
def test_weights_instead_of_bytes_change_nothing(pace: str, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Profile("endless", Latency(0.03, 0.2), Latency(0.06, 0.4))  # bytes cost nothing: only the order is left

    def outcome() -> dict[str, Any]:
        where: dict[str, Any] = {"background": background, "warm": 10.0, "window": 20.0, "seed": 3}
        return contention.race(FEW, 0, lambda: pace_named(pace), endless, **where)

    numbers = outcome()
    monkeypatch.setattr(contention, "Sketch", Whole)
    assert outcome() == numbers


def test_the_race_is_the_same_every_time_and_costs_what_a_manifest_weighs() -> None:
    one, again = (commits("0.05", 1000, False, 4, 20.0, seed=5) for _ in range(2))
    assert one == again
    small, large = (
        contention.race(
            FEW, n, lambda: Fixed(0.05), PROFILES["s3-standard"], background=False, warm=5.0, window=20.0, seed=1
        )
        for n in (100, 200_000)
    )
    assert small["rate"] > 1.5 * large["rate"] and small["MB_moved"] < large["MB_moved"]


@pytest.mark.slow
def test_sixty_four_adaptive_producers_keep_their_rate_where_a_fixed_pause_loses_most_of_it() -> None:
    rates = {
        (pace, n): commits(pace, n, False, 64, 600.0, seed=0)["rate"]
        for pace in ("adaptive", "0.05")
        for n in (100, 100_000)
    }
    assert rates["adaptive", 100_000] > 0.8 * rates["adaptive", 100]
    assert rates["0.05", 100_000] < rates["0.05", 100] / 3
