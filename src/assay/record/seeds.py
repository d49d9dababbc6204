"""The seeds of a run, as people write them: how many, or which."""

from __future__ import annotations

from assay.record.errors import BadInput
from assay.record.types import SEEDS


def read(text: str) -> tuple[int, ...] | int:
    """How many seeds, as an int, or a list of them, as a tuple.

    >>> read("8"), read("3,17,99"), read("123456,")
    (8, (3, 17, 99), (123456,))

    Raises:
        BadInput: neither of them.
    """
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    many = "," in text
    if not found or min(found) < (0 if many else 1) or max(found) >= 1 << 32 or len(set(found)) < len(found):
        raise BadInput("give a count such as 8, or different seeds such as 3,17,99")
    if not many and found[0] > 100_000:
        raise BadInput("more than 100,000 seeds; name one seed as 123456,")
    return tuple(found) if many else found[0]


def chosen(seeds: tuple[int, ...] | int | None, first: int, size: str) -> tuple[int, ...]:
    """The seeds that a count or a list stands for; without either, as many as a study of this size takes.

    >>> chosen(3, 100, "quick")
    (100, 101, 102)
    """
    if isinstance(seeds, tuple):
        if first:
            raise BadInput("--first-seed goes with a count of seeds, not with a list of them")
        return seeds
    return tuple(range(first, first + (seeds or SEEDS[size])))
