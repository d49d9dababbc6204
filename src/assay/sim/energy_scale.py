"""From the roofline's joules to a GPU's: what was measured beside it, and how far the outcome is still off.

The roofline's joules follow FLOPs and bytes by assumed shares of the board's power, which a measured H200 exceeds by
half as much again in every pass, whether arithmetic or memory bounds it. One factor on the work, and the idling power
that was measured, mend most of that; the board's limit holds. The error is that of attention families which had no
part in finding the factor (`benchmarks/energy_error.py` writes the figures).

>>> measured().gpu
'h200'
>>> print(sentence())  # doctest: +ELLIPSIS
scaled to an H200's measured power, where passes were off by ... % on average, ... % at most
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("energy_scale.toml")


@dataclass(frozen=True)
class EnergyScale:
    """The factor on joules above idling, measured idling, and errors as shares of the measured joules of passes."""

    gpu: str
    passes: int
    idle_watts: float
    factor: float
    mean: float
    most: float
    unscaled: float  # the mean error of the roofline's own joules


@cache
def measured() -> EnergyScale:
    """What is known."""
    return EnergyScale(**tomllib.loads(FILE.read_text(encoding="utf-8")))


def joules(work: float, busy: float, seconds: float, idle_watts: float, limit_watts: float) -> float:
    """What a board takes over `seconds`, of which it is busy for some: idling, and work within its power limit.

    >>> joules(work=0.0, busy=0.0, seconds=10.0, idle_watts=100.0, limit_watts=700.0)
    1000.0
    >>> joules(work=1e9, busy=2.0, seconds=10.0, idle_watts=100.0, limit_watts=700.0)  # the limit while it is busy
    2200.0
    """
    return idle_watts * seconds + min(measured().factor * work, (limit_watts - idle_watts) * busy)


def sentence() -> str:
    """How the joules came about and their error, in words."""
    found = measured()
    gpu = f"an {found.gpu.upper()}" if found.gpu.startswith("h") else found.gpu.upper()
    return (
        f"scaled to {gpu}'s measured power, where passes were off by {100 * found.mean:.0f} % on average, "
        f"{100 * found.most:.0f} % at most"
    )


def as_toml(found: EnergyScale) -> str:
    """The file's content."""
    lines = ["# Written by benchmarks/energy_error.py: the roofline's joules of single passes against measured ones."]
    for key, value in asdict(found).items():
        lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {round(value, 4)}")
    return "\n".join(lines) + "\n"
