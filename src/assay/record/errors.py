"""What can go wrong, as the one line a person reads, with the exit code it ends in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.record.types import Result


class AssayError(Exception):
    """An error with a one-line message that says what was wrong and what would be right."""

    exit_code = 1


class BadInput(AssayError):  # noqa: N818 - read as a sentence: raise BadInput("…")
    """The user's input is wrong: unknown key, unreadable file, missing extra."""

    exit_code = 2


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
