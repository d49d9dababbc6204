"""A task of one's own for `assay compare marlaas`: which two digits are a good answer to three."""

from __future__ import annotations

from collections.abc import Sequence


class Task:
    """Write the prompt's last digit, then its first."""

    name = "mirror"

    def reward(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """The share of digits that are right."""
        return ((output[0] == prompt[2]) + (output[1] == prompt[0])) / 2
