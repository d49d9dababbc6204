"""Delays that come now and then: an evaluation on one rank, a checkpoint every tenth step, three slow steps in fifty.

They may cost a third of the time and still lie within three standard errors, which they widen themselves. What tells
them from a machine's hiccups is who has them: hiccups fall on any rank, these on one. A handful on one rank may be
chance, too. Such a window names the rank and says that it cannot be sure.

>>> beyond = np.zeros((40, 1))
>>> beyond[::5] = 30.0                                  # every fifth step is late, always behind rank 2
>>> leaders = np.where(beyond > 0, 2, np.arange(40)[:, None] % 4)
>>> seen = seldom(beyond, leaders, ranks=4, least=1.0)
>>> seen.found.tolist(), seen.sure.tolist(), int(seen.late.sum())
([True], [True], 8)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from assay.observe.frontier.advances import Bools, Floats, Ints

FEW = 3  # late rows: fewer are an accident,
MUCH = 5.0  # unless they lose so many times what matters at all
FAR = 6.0  # times the usual scatter
LEADS = 0.7  # of the loss, behind one rank
CHANCE = 0.005  # that hiccups on any rank fall on one this often


@dataclass(frozen=True)
class Seldom:
    """Which stages are late now and then, in which rows, and whether it is one rank's doing."""

    late: Bools  # (rows, stages)
    found: Bools  # (stages,): enough rows, most of the loss behind one rank, and worth a look
    sure: Bools  # (stages,): chance would hardly pick one rank so often


def seldom(beyond: Floats, leaders: Ints, ranks: int, least: float, usual: Floats | None = None) -> Seldom:
    """Look for rows that are late by far.

    Args:
        beyond: how much each row's stages took beyond the expected.
        leaders: who led in them.
        ranks: how many ranks there are.
        least: what a late row, and all rows in the mean, must lose for it to matter.
        usual: the same of healthy rows; then only what none of them took counts as far.
    """
    middle = np.median(beyond, 0)
    far = middle + FAR * 1.4826 * np.median(np.abs(beyond - middle), 0) if usual is None else usual.max(0)
    lost = beyond.mean(0)
    late = beyond > np.maximum(np.maximum(far, lost), least)  # those that make up the loss, not every small hiccup
    count, most, share = late.sum(0), np.zeros(late.shape[1], int), np.zeros(late.shape[1])
    for stage in np.flatnonzero(count).tolist():
        rows = late[:, stage]
        behind = np.bincount(leaders[rows, stage], beyond[rows, stage])
        most[stage] = (leaders[rows, stage] == behind.argmax()).sum()
        share[stage] = behind.max() / behind.sum()
    rare = middle < 0.5 * lost  # else most rows are late, and the latest of them are no case of their own
    found = rare & (share >= LEADS) & (lost > least) & ((most >= FEW) | (lost > MUCH * least))
    return Seldom(late, found, found & one_of_many(most, count, ranks))


def one_of_many(most: Ints, count: Ints, ranks: int) -> Bools:
    """Whether the rank that leads `most` of `count` rows does so more often than chance picks any one of so many.

    >>> one_of_many(np.array([8, 20, 40]), np.array([8, 50, 50]), ranks=4).tolist()
    [True, False, True]
    """
    chance = ranks * bdtrc(np.maximum(most - 1, 0), np.maximum(count, 1), 1 / ranks)
    found: Bools = (most > 0) & (chance <= CHANCE)
    return found
