"""Two commits of one repository side by side, and which code a measurement is of.

A commit is checked out as a git worktree in a folder of its own, so that the user's own tree is never touched; names
of equal length keep paths, and with them what a path's length costs, alike on both sides. `.` means the working tree
as it is; if it differs from its commit it is marked as dirty.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.record.errors import BadInput

WORKING_TREE = "."
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Checkout:
    """Code to measure: where it lies, which commit it is, and whether it differs from it."""

    root: Path
    commit: str
    dirty: bool = False

    def __str__(self) -> str:
        return f"{self.commit[:12]}{'+dirty' if self.dirty else ''}"


def git(repository: Path, *words: str) -> str:
    """What git answers, or `BadInput` with its own last line."""
    command = ["git", "-C", str(repository), *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise BadInput("git is not installed; benchmarks of commits need it") from None
    except subprocess.TimeoutExpired:
        raise BadInput(f"git {words[0]} did not end within {_SECONDS} s in {repository}") from None
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip() or f"exit code {ended.returncode}").splitlines()
        raise BadInput(f"git {words[0]} in {repository}: {said[-1]}")
    return ended.stdout.strip()


def top(folder: Path) -> Path:
    """The root of the repository that holds a folder."""
    return Path(git(folder, "rev-parse", "--show-toplevel"))


def resolve(repository: Path, ref: str) -> str:
    """The full name of a commit; `BadInput` where there is none."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except BadInput:
        raise BadInput(
            f"'{ref}' is no commit of {repository}; give a branch, a tag, a hash, or . for the tree"
        ) from None


def working_tree(repository: Path) -> Checkout:
    """The user's own tree as it is."""
    changed = git(repository, "status", "--porcelain", "--untracked-files=no")
    return Checkout(repository, resolve(repository, "HEAD"), dirty=bool(changed))


@contextlib.contextmanager
def session() -> Iterator[Path]:
    """A folder for one session of measurements, gone at its end."""
    folder = Path(tempfile.mkdtemp(prefix="assay-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def checkouts(repository: Path, refs: Sequence[str], folder: Path) -> Iterator[list[Checkout]]:
    """The commits as worktrees below `folder`; `.` is the user's own tree, untouched."""
    made: list[Path] = []
    found: list[Checkout] = []
    try:
        for position, ref in enumerate(refs):
            if ref == WORKING_TREE:
                found.append(working_tree(repository))
                continue
            commit = resolve(repository, ref)
            root = folder / f"side{position}"
            git(repository, "worktree", "add", "--detach", "--force", str(root), commit)
            made.append(root)
            found.append(Checkout(root, commit))
        yield found
    finally:
        for root in made:
            with contextlib.suppress(BadInput):
                git(repository, "worktree", "remove", "--force", "--force", str(root))


def prepare(checkout: Checkout, commands: Sequence[Sequence[str]], env: Mapping[str, str], timeout: float) -> str:
    """Run the commands that a build needs; the line that says what went wrong, or nothing."""
    for command in commands:
        try:
            ended = subprocess.run(
                command, cwd=checkout.root, env=dict(env), capture_output=True, text=True, timeout=timeout, check=False,
                stdin=subprocess.DEVNULL, errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"prepare '{' '.join(command)}' at {checkout}: {error}"
        if ended.returncode:
            said = (ended.stderr.strip() or ended.stdout.strip() or f"exit code {ended.returncode}").splitlines()
            return f"prepare '{' '.join(command)}' at {checkout}: {said[-1][:300]}"
    return ""


def first_parents(repository: Path, ref: str = "HEAD", limit: int = 100_000) -> list[str]:
    """The commits of a branch, the oldest first: the order in which a history is read."""
    return git(
        repository, "rev-list", "--first-parent", "--reverse", f"--max-count={limit}", resolve(repository, ref)
    ).split()
