"""The version of a study: a digest of the code it consists of.

A study's numbers can change when its module, or anything of assay that the module imports, changes. Following the
imports through the source gives exactly those files, without importing any of them. A result is "at this version"
when its digest is today's; only then may an interrupted run be resumed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def digest(module: str) -> str:
    """Sixteen hex digits that change when the module or an assay module it leans on changes.

    >>> len(digest("assay.protocols.div"))
    16
    """
    return _hash(_closure(module))


def compiled_digest() -> str:
    """The same over all compiled code of the package, so that everything shares what is compiled.

    Modules with compiled functions count, and those they import constants from. They are found by pattern, not by
    parsing: this is on the way to a command's first answer.

    >>> len(compiled_digest())
    16
    """
    found: set[Path] = set()
    for path in _PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "njit" in text:
            named = re.findall(r"^(?:from|import) (assay[\w.]*)(?: import (\w+))?", text, re.MULTILINE)
            files = [_file(module) for parts in named for module in (parts[0], ".".join(parts))]
            found |= {path, *(file for file in files if file is not None)}
    return _hash(found)


def compiled_folder(home: Path) -> Path:
    """Where compiled code of exactly this version is kept: beside the code if it may be written, else under `home`.

    Numba's own cache does not notice a change in a function that another module's compiled function calls.
    """
    beside = _PACKAGE / "__pycache__"
    ours = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return (beside if ours else home) / "compiled" / compiled_digest()


def share_compiled(home: Path) -> None:
    """Use what any command or study of this version has compiled. Numba reads the variable when it is imported."""
    if "numba" not in sys.modules:
        os.environ.setdefault("NUMBA_CACHE_DIR", str(compiled_folder(home)))


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
