"""Routers that papers compare with: the rules that production systems ship, each from its documented formula."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from assay.serving.interface import Fleet, Request


@dataclass
class RoundRobin:
    """In turn."""

    key = "round-robin"
    _next: int = field(default=-1, repr=False)

    def route(self, request: Request, fleet: Fleet) -> int:
        """The next eligible one."""
        n = len(fleet)
        for _ in range(n):
            self._next = (self._next + 1) % n
            if fleet.eligible is None or fleet.eligible[self._next]:
                break
        return self._next
