"""Records of a job of thousands of ranks, as the probes would have left them: to time a decision, not to judge it.

The counters follow the ring's arithmetic: a rank that stopped has sent least, the next one step more, and so on;
a late rank's round is short; a slow sender sends long while the next one waits.

>>> records, symptom, culprits = modelled(64, "H3", seed=1)
>>> from assay.observe.ccl.locate import locate
>>> [int(suspect.entity) for suspect in locate(records, symptom).suspects] == culprits
True
"""

from __future__ import annotations

import numpy as np

from assay.observe.ccl.detect import Symptom
from assay.observe.ccl.probe import (
    COUNT,
    ENTERED,
    FINISHED,
    RANK,
    RECVS,
    SENDS,
    SIZE,
    WORDS,
    Records,
    Words,
    channel_at,
    past_at,
)  # fmt: skip
from assay.sim.streams import stream

_NOW, _USUAL, _COUNT, _STEPS = 1_000, 0.05, 1 << 20, 10_000


def modelled(ranks: int, fault: str, seed: int) -> tuple[Records, Symptom, list[int]]:
    """Records of all ranks at the moment of a symptom, the symptom, and who is to blame."""
    random = stream(seed, "ccl-d model", fault)
    culprits = sorted(int(rank) for rank in random.choice(ranks, 2, replace=False))
    one, two = culprits
    words = np.zeros((ranks, WORDS), np.int64)
    words[:, RANK], words[:, SIZE], words[:, COUNT] = np.arange(ranks), ranks, _COUNT
    words[:, FINISHED], words[:, ENTERED] = _NOW - 1, _NOW
    late = fault in ("S1", "S3")
    _rounds(words, random, one if late else None, {"S2": one, "S3": two}.get(fault))
    for channel in range(2):
        words[:, channel_at(channel) + SENDS] = words[:, channel_at(channel) + RECVS] = _STEPS
    if fault == "H1":
        words[one, ENTERED] = _NOW - 1
    if fault == "H2":
        words[one, COUNT] = _COUNT // 2
    if fault == "H3":
        ahead = np.minimum((np.arange(ranks) - one) % ranks, 40)  # a loop is long; buffers let few steps ahead
        words[:, channel_at(0) + SENDS] += ahead
        words[:, channel_at(0) + RECVS] += np.maximum(ahead - 1, 0)
    symptom = Symptom("hang", 0, _NOW) if fault.startswith("H") else Symptom("slow", 0, _NOW - 1, _USUAL)
    return Records(words), symptom, culprits if fault == "S3" else [one]


def _rounds(words: Words, random: np.random.Generator, late: int | None, slow: int | None) -> None:
    """The last sixteen rounds, the last three of them slow."""
    ranks = len(words)
    for operation in range(_NOW - 16, _NOW):
        faulty = operation >= _NOW - 3
        took = _USUAL * (1 + 0.01 * random.standard_normal(ranks))
        send, recv = took * 0.7, took * 0.7
        if faulty and slow is not None:
            took, recv = took + _USUAL, recv + _USUAL
            send[slow] += _USUAL
            recv[slow] = 0.1 * _USUAL
        if faulty and late is not None:
            took, recv = took + _USUAL, recv + _USUAL
            took[late] -= _USUAL
            recv[late] -= _USUAL
        at = past_at(operation)
        words[:, at], words[:, at + 2] = operation, _COUNT
        for place, seconds in enumerate((took, send, recv), at + 3):
            words[:, place] = (np.maximum(seconds, 0) * 1e9).astype(np.int64)
