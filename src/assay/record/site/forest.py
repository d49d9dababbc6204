"""The forest of the front page: the share of the effect of every measured claim, on one axis.

0 is no effect, 1 the paper's own. A bound lies at 1 and is kept to the right of it. Positions are percentages; what
lies beyond the ends of the axis is drawn at them, with an arrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from assay.record.types import EFFECTS, Answer, Result
from assay.record.verdicts import ENOUGH, MOST
from assay.record.wording import share_text

LEFT, RIGHT = -0.5, 2.0


def place(share: float) -> float:
    """Where a share lies on the axis, in per cent.

    >>> place(-0.5), place(1.0), place(9.0)
    (0.0, 60.0, 100.0)
    """
    return round(100 * (min(max(share, LEFT), RIGHT) - LEFT) / (RIGHT - LEFT), 2)


MARKS = {"none": place(0.0), "enough": place(ENOUGH), "paper": place(1.0), "most": place(MOST)}


@dataclass(frozen=True, slots=True)
class Tree:
    """One claim in the forest."""

    key: str
    answer: Answer
    share: float
    low: float
    high: float
    beyond: bool  # the share itself lies outside the axis
    text: str


def forest(results: Iterable[Result]) -> list[tuple[str, list[Tree]]]:
    """The claims whose sentence has a number: effects first, then bounds and other figures."""
    trees = [tree for result in results for answer in result.stated if (tree := _tree(result.key, answer))]
    effects = [tree for tree in trees if tree.answer.kind in EFFECTS]
    others = [tree for tree in trees if tree.answer.kind not in EFFECTS]
    named = [("Effects", effects), ("Bounds, exponents and other figures", others)]
    return [(name, members) for name, members in named if members]


def _tree(key: str, answer: Answer) -> Tree | None:
    if answer.share is None:
        return None
    low = LEFT if answer.share_low is None else answer.share_low
    high = RIGHT if answer.share_high is None else answer.share_high
    outside = not LEFT <= answer.share <= RIGHT
    return Tree(key, answer, place(answer.share), place(low), place(high), outside, share_text(answer))
