"""What tests of the keeper share: seats that vote, each from a thread of its own."""

from __future__ import annotations

import threading
from typing import Any

from assay.training.recover.seat import Seat

LONG = 120.0


def votes(seats: list[Seat], values: list[Any]) -> list[Any]:
    """What each seat gets that votes for its value, all at once; None where it got nothing."""
    got: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda s=seat, v=value: got.__setitem__(s.rank, s.agree(v)), daemon=True)
        for seat, value in zip(seats, values, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    return [got.get(seat.rank) for seat in seats]
