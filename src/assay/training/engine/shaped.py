"""A link by its speed, for messages between real processes that behave as if they crossed it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.record.errors import BadInput

LATENCY = 50e-6


@dataclass(frozen=True)
class Link:
    """Bytes a second, seconds a message; `shaped` makes the processes' messages behave so."""

    bandwidth: float
    latency: float = LATENCY
    shaped: bool = False


def link(name: str, *, shaped: bool = False) -> Link:
    """A link by its speed.

    >>> link("1gbit").bandwidth, link("2.5gbit").bandwidth, link("100mbit").bandwidth
    (125000000.0, 312500000.0, 12500000.0)

    Raises:
        BadInput: no speed of a link.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mg])bit", name.strip().lower())
    if not found or not float(found[1]):
        raise BadInput(f"'{name}' is no link: give its speed, as in 100mbit, 1gbit or 2.5gbit")
    return Link(float(found[1]) * {"m": 1e6, "g": 1e9}[found[2]] / 8, shaped=shaped)
