"""What can go wrong, as the one line a person reads, with the exit code it ends in."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.record.types import Result


class AssayError(Exception):
    """An error with a one-line message that says what was wrong and what would be right."""

    exit_code = 1


class BadInput(AssayError):  # noqa: N818 - read as a sentence: raise BadInput("…")
    """The user's input is wrong: unknown key, unreadable file, missing extra."""

    exit_code = 2


def unreadable(path: object, error: OSError | None = None, right: str = "") -> BadInput:
    """A file that is not there or cannot be read, in the one phrase that all of assay has for it.

    >>> raise unreadable("mine.csv", right="time,value expected")
    Traceback (most recent call last):
    assay.record.errors.BadInput: cannot read mine.csv: No such file or directory; time,value expected
    """
    why = os.strerror(errno.ENOENT) if error is None else error.strerror or " ".join(str(error).split())
    named = "" if path is None else f" {path}"  # some libraries say the file in their own words only
    return BadInput(f"cannot read{named}: {why}{'; ' if right else ''}{right}")


class StudyFailed(AssayError):  # noqa: N818
    """A study raised. What it finished is kept."""


class StoreFailed(AssayError):  # noqa: N818
    """Something could not be written: a full disk, a folder that is not ours.

    A run that measured everything and only failed to store it hands its result over in `result`.
    """

    result: Result | None = None


class Interrupted(AssayError):  # noqa: N818
    """The user stopped a run. What it finished is kept."""

    exit_code = 130
