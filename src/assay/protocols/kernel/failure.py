"""What a node's code did wrong, in one line: the error, and the last place in it that is the node's own."""

from __future__ import annotations

import traceback
from itertools import pairwise
from pathlib import Path

_ROOM = Path(__file__).parent.parent
_FRAMEWORK = (*(str(_ROOM / folder) for folder in ("kernel", "tcp", "faults")), str(_ROOM / "interface.py"))


def place(error: BaseException) -> str | None:
    """File and line of the node's step that led to the error; None where no node was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = (after for before, after in pairwise(frames) if _ours(before) and not _ours(after))
    step = next(steps, None)
    if step is None:
        return None
    own = [frame for frame in frames if frame.filename == step.filename]  # what it calls is seldom to blame
    return f"{own[-1].filename}:{own[-1].lineno}"


def _ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_FRAMEWORK)


def blame(error: BaseException) -> str:
    """The error and its place.

    >>> blame(KeyError("what now"))
    "KeyError: 'what now'"
    """
    said = " ".join(str(error).split())
    where = place(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}" + (f" ({where})" if where else "")
