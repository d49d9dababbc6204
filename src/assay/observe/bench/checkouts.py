"""Two commits of one repository side by side, and which code a measurement is of.

A commit is checked out as a git worktree in a folder of its own, so that the user's own tree is never touched; names
of equal length keep paths, and with them what a path's length costs, alike on both sides. `.` means the working tree
as it is; if it differs from its commit it is marked as dirty.

An interrupted session takes its worktrees with it. One that was killed cannot: the next one finds them registered in
the repository, and that nobody holds the lock of their folder any more, and removes them. Others' worktrees stay as
they are, those in the care of `git worktree prune` too.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.observe.bench import children
from assay.record.errors import BadInput

WORKING_TREE = "."
PREFIX = "assay-bench-"  # of a session's folder
OWNER = "owner.lock"  # in it, locked as long as the session lives
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
        ended = children.run(command, _SECONDS)
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
        cure = "give a branch, a tag, a hash, or . for the tree"
        if git(repository, "rev-parse", "--is-shallow-repository") == "true":
            cure = "the clone is shallow: 'git fetch --unshallow' brings the commits it lacks"
        elif not git(repository, "rev-list", "--all", "--max-count=1"):
            cure = "it has no commit at all yet"
        raise BadInput(f"'{ref}' is no commit of {repository}; {cure}") from None


def working_tree(repository: Path) -> Checkout:
    """The user's own tree as it is."""
    changed = git(repository, "status", "--porcelain", "--untracked-files=no")
    return Checkout(repository, resolve(repository, "HEAD"), dirty=bool(changed))


@contextlib.contextmanager
def session() -> Iterator[Path]:
    """A folder for one session of measurements, gone at its end."""
    folder = None
    try:
        with children.held_back():
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with (folder / OWNER).open("wb") as owner:
            with contextlib.suppress(OSError):  # no locks on this file system: then nobody else gets one either
                fcntl.flock(owner, fcntl.LOCK_EX)
            yield folder
    finally:
        with children.held_back():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def checkouts(repository: Path, refs: Sequence[str], folder: Path) -> Iterator[list[Checkout]]:
    """The commits as worktrees below `folder`; `.` is the user's own tree, untouched."""
    sweep(repository)
    made: list[Path] = []
    found: list[Checkout] = []
    try:
        for position, ref in enumerate(refs):
            if ref == WORKING_TREE:
                found.append(working_tree(repository))
                continue
            commit = resolve(repository, ref)
            root = folder / f"side{position}"
            made.append(root)  # before it is there: git may be interrupted half-way
            git(repository, "worktree", "add", "--detach", "--force", str(root), commit)
            found.append(Checkout(root, commit))
        yield found
    finally:
        with children.held_back():
            for root in made:
                _remove(repository, root)


def sweep(repository: Path) -> None:
    """Remove the worktrees of sessions that were killed."""
    listed = git(repository, "worktree", "list", "--porcelain")
    for line in listed.splitlines():
        word, _, path = line.partition(" ")
        root = Path(path)
        ours = root.parent.name.startswith(PREFIX) and re.fullmatch(r"side\d+", root.name)
        if word == "worktree" and ours and _abandoned(root.parent):
            with children.held_back():
                _remove(repository, root)
                shutil.rmtree(root.parent, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    if not folder.exists():
        return True
    try:
        with (folder / OWNER).open("rb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its session is at work, or it was not made here
        return False
    return True


def _remove(repository: Path, root: Path) -> None:
    """Remove a worktree, a half-made or locked one too: git takes any whose folder is gone off its list."""
    shutil.rmtree(root, ignore_errors=True)
    with contextlib.suppress(BadInput):
        git(repository, "worktree", "remove", "--force", "--force", str(root))


def prepare(checkout: Checkout, commands: Sequence[Sequence[str]], env: Mapping[str, str], timeout: float) -> str:
    """Run the commands that a build needs; the line that says what went wrong, or nothing."""
    for command in commands:
        try:
            ended = children.run(command, timeout, checkout.root, env)
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
