"""How much of a difference between two policies is luck: what they do when the same trace comes again.

Who sends a request elsewhere changes the queues that all later ones find. So the same policy, with other draws or with
one request less before it, gives other figures, and neither stretches of one run nor anything else in that run tells by
how much: the whole of a short run may be one such accident. Both policies therefore go on: the trace comes again and
again, lap by lap, each without its first sessions, after a pause in which the fleet runs empty. A policy that draws
draws anew in every lap, whether it takes a seed or not. The spread of the difference over laps is what luck brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from assay.serving.engine.outcome import Outcome
from assay.workloads.more_sessions import by_session, compose
from assay.workloads.requests import Requests

RUNS = 5  # of each policy over the trace, with the one that is judged
PAUSE = 60.0  # seconds at least between the end of a lap and the next one
MISSING = 0.05  # of the sessions at most are missing in a lap


@dataclass
class Again:
    """The laps of policies over a trace, run when somebody asks for them."""

    requests: Requests
    run: Callable[[Requests, str, int], Outcome]  # of a trace, a policy and a seed
    known: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)

    def laps(self, policy: str, first: Outcome) -> tuple[Outcome, ...]:
        """What the policy does in the laps after the `first`, which was judged; nothing where a lap holds too little.

        The first lap is run again, so that who draws has drawn for it.
        """
        if len(self.requests) < 4 * RUNS:
            return ()
        if policy not in self.known:
            apart = 2 * first.span + PAUSE
            whole = self.run(lap_by_lap(self.requests, apart), policy, 1)
            start, stop = self.requests.steady or (0.0, apart)
            self.known[policy] = tuple(
                replace(whole, requests=replace(whole.requests, steady=(lap * apart + start, lap * apart + stop)))
                for lap in range(1, RUNS)
            )
        return self.known[policy]


def lap_by_lap(requests: Requests, apart: float) -> Requests:
    """The trace `RUNS` times, so many seconds apart, each time without one more of its first sessions.

    >>> trace = Requests.of(np.arange(40.0), [9] * 40, [1] * 40)
    >>> laps = lap_by_lap(trace, 1000.0)
    >>> len(laps), laps.arrival[[0, 40, 79]].tolist()
    (193, [0.0, 1001.0, 2002.0])
    """
    sessions = by_session(requests)
    count = len(sessions.opens)
    missing = [min(lap, int(MISSING * count)) for lap in range(RUNS)]
    which = np.concatenate([np.arange(gone, count) for gone in missing])
    lap = np.repeat(np.arange(RUNS), [count - gone for gone in missing])
    return compose(requests, sessions, which, sessions.opens[which] - requests.arrival[0] + lap * apart, np.inf)


def luck(
    again: Again, policies: tuple[str, str], runs: tuple[Outcome, Outcome], measure: Callable[[Outcome], float],
) -> float:  # fmt: skip
    """How far the logarithm of the ratio of two policies' measures may be off by luck (95 %); `runs` are those judged.

    It is as far as a further lap may lie from those seen, by Student's t; and as far as the lead itself, where one of
    them has the other policy ahead.
    """
    ours, theirs = (again.laps(policy, run) for policy, run in zip(policies, runs, strict=True))
    apart = []
    for pair in zip((runs[0], *ours), (runs[1], *theirs), strict=True):
        values = [measure(run) for run in pair]
        if not min(values) > 0:
            return np.inf
        apart.append(float(np.log(values[0] / values[1])))
    if len(apart) < RUNS:
        return np.inf
    spread = float(np.std(apart, ddof=1))
    further = float(special.stdtrit(RUNS - 1, 0.975)) * spread * float(np.sqrt(1 + 1 / RUNS))
    return max(further, abs(apart[0])) if min(apart) < 0 < max(apart) else further
