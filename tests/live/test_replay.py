"""Times of answers, as whoever replays a trace notes them."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("uvloop")

from assay.live import replay


@pytest.mark.parametrize("origin", [-1e6, -1.0, 0.0, 1e6])
def test_times_are_differences_whatever_the_clock_says_when_it_starts(
    origin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, silent = replay.Sent(0, due=0.0, sent=origin, status=200), replay.Sent(1, due=0.0, sent=origin)
    asked = replay._Asked(row, lambda: None)
    for at in (1.0, 3.0, 5.0):  # with an origin of -1, the first token comes at 0
        monkeypatch.setattr(replay, "monotonic", lambda at=at: origin + at)
        asked.payload(b'data: {"n":1}\n\n')
    first, second = replay._table([row, silent], began=origin).to_dicts()
    assert (first["arrival"], first["ttft"], first["tpot"], first["e2e"], first["tokens"]) == (0.0, 1.0, 2.0, 5.0, 3)
    assert all(math.isnan(second[name]) for name in ("ttft", "tpot", "e2e"))
