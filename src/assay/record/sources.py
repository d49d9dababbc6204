"""The version of a study: a digest of the code it consists of.

A study's numbers can change when its module, or anything of assay that the module runs, changes. Following the imports
through the source gives exactly those files, without importing any of them. What is imported for type checkers only is
not run. Of `record` itself only what turns a table into an estimate counts: the rest finds, keeps, judges and shows
results, and changes none. A result is "at this version" when its digest is today's; only then may an interrupted run be
resumed.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_MEASURING = ("record/intervals.py", "record/measures.py", "record/timing.py")


def digest(module: str) -> str:
    """Sixteen hex digits that change when the module or an assay module it runs changes.

    >>> len(digest("assay.protocols.div"))
    16
    """
    return _hash(_closure(module, _measured))


def compiled_version(module: str) -> tuple[str, float]:
    """The same for a module with compiled functions, and when the latest of its sources was written.

    Compiled functions call and read what their module imports, but nothing of `record`; and how code is kept does not
    change the code.

    >>> compiled_version("assay.sim.caches")[0] == compiled_version("assay.sim.llm_cost")[0]
    False
    """
    found = _closure(module, _compiled)
    return _hash(found), max((path.stat().st_mtime for path in found), default=0.0)


def _measured(path: Path) -> bool:
    place = _place(path)
    return not place.startswith("record/") or place in _MEASURING


def _compiled(path: Path) -> bool:
    place = _place(path)
    return not place.startswith("record/") and place not in ("sim/compiled.py", "sim/parallel.py")


def _hash(sources: dict[Path, bytes]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for path, source in sorted(sources.items()):
        total.update(_place(path).encode() + b"\0" + source + b"\0")
    return total.hexdigest()


def _place(path: Path) -> str:
    return path.relative_to(_PACKAGE).as_posix()


def _closure(module: str, counts: Callable[[Path], bool]) -> dict[Path, bytes]:
    found: dict[Path, bytes] = {}
    waiting = [module]
    while waiting:
        path = _file(waiting.pop())
        if path is None or path in found or not counts(path):
            continue
        found[path] = path.read_bytes()
        waiting += _imports(path, found[path])
    return found


def _file(module: str) -> Path | None:
    """The file of an assay module; None for anything else, and for a name that is a function in a module."""
    parts = module.split(".")
    if parts[0] != _PACKAGE.name:
        return None
    base = _PACKAGE.joinpath(*parts[1:])
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if len(parts) > 1 and p.is_file()), None)


@lru_cache(maxsize=4096)
def _imports(path: Path, source: bytes) -> tuple[str, ...]:
    """What a file imports when it is run."""
    names: list[str] = []
    for node in _run(ast.parse(source).body):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            names += [module, *(_home(module, alias.name) for alias in node.names)]
    return tuple(name for name in names if name.partition(".")[0] == _PACKAGE.name)


def _run(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a program, inner ones too, but what stands under `if TYPE_CHECKING`.

    An import is a statement: expressions, of which there are many times as many nodes, are not looked into.
    """
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, part, ())
            if inner and not (part == "body" and _for_checkers(node)):
                yield from _run(inner)


def _for_checkers(node: ast.stmt) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    """The module an import names, dots at its beginning resolved."""
    if not node.level:
        return node.module or ""
    above = path.relative_to(_PACKAGE.parent).parts[: -node.level]
    return ".".join((*above, *filter(None, [node.module])))


def _home(module: str, name: str) -> str:
    """Where an imported name comes from: a room's public names live where its stub says."""
    stub = _PACKAGE.joinpath(*module.split(".")[1:], "__init__.pyi")
    if module.partition(".")[0] == _PACKAGE.name and stub.is_file():
        for node in ast.parse(stub.read_bytes()).body:
            if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
                return node.module or module
    return f"{module}.{name}"
