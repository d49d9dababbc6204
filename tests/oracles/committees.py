"""Publishing and corrupting committees, one message and one party at a time, in plain Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.protocols.subcubic_coin.committees import Plan

Bits = npt.NDArray[np.uint8]


def tally(plan: Plan, bits: Bits, corrupted: Bits, bad: Bits) -> tuple[list[int], list[int], list[int]]:
    """Zeros and ones that each party surely takes, and messages of each committee."""
    members = plan.members().tolist()
    zeros, ones, sent = [0] * plan.n, [0] * plan.n, [0] * plan.committees
    for committee, row in enumerate(members):
        heard = plan.heard(committee).tolist()
        for party in range(plan.n):
            tellers = [row[place] for place in heard[party] if not corrupted[row[place]]]
            sent[committee] += sum(teller != party for teller in tellers)
            if len(tellers) > plan.links / 2 and not bad[committee]:
                (ones if bits[committee] else zeros)[party] += 1
    return zeros, ones, sent


def corrupt(members: npt.NDArray[np.int32], n: int, budget: int, most: int, wanted: Bits, base: float) -> Bits:
    """The greedy adversary by recomputing every party's pull from nothing before each step."""
    corrupted = np.zeros(n, np.uint8)
    for _ in range(budget):
        pull = np.zeros(n)
        for committee, row in enumerate(members):
            load = int(corrupted[row].sum())
            if wanted[committee] and load <= most:
                pull[row] += base**load
        pull[corrupted == 1] = -np.inf
        corrupted[int(np.argmax(pull))] = 1
    return corrupted
