"""The version of a study: a digest of the code it consists of.

A study's numbers can change when its module, or anything of assay that the module imports, changes. Following the
imports through the source gives exactly those files, without importing any of them. A result is "at this version"
when its digest is today's; only then may an interrupted run be resumed.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def digest(module: str) -> str:
    """Sixteen hex digits that change when the module or an assay module it leans on changes.

    >>> len(digest("assay.protocols.div"))
    16
    """
    return _hash(_closure(module))


def compiled_digest(module: str) -> str:
    """The same over the compiled code that a module leans on, and what that leans on: studies of one engine share it.

    >>> compiled_digest("assay.protocols.div") == compiled_digest("assay.protocols.compare")
    True
    """
    found: set[Path] = set()
    for path in _closure(module):
        if b"njit" in path.read_bytes():
            found |= _closure(".".join([_PACKAGE.name, *path.relative_to(_PACKAGE).with_suffix("").parts]))
    return _hash(found)


def _hash(paths: set[Path]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for path in sorted(paths):
        total.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def _closure(module: str) -> set[Path]:
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = _file(waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        waiting += _imports(path)
    return found


def _file(module: str) -> Path | None:
    """The file of an assay module; None for anything else, and for a name that is a function in a module."""
    parts = module.split(".")
    if parts[0] != _PACKAGE.name:
        return None
    base = _PACKAGE.joinpath(*parts[1:])
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if len(parts) > 1 and p.is_file()), None)


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
