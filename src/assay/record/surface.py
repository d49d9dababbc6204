"""A package's public names, imported when they are first used, so that starting up stays fast.

A room lists what its users import in the stub beside its `__init__.py`, in the way that type checkers read anyway
(``from assay.serving.engine.simulator import simulate as simulate``), and says ``__all__, __dir__, __getattr__ =
surface.of(__name__, __file__)``. There is no second list.

>>> import assay.serving
>>> "simulate" in dir(assay.serving)
True
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def of(package: str, file: str) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """The names in the package's stub: all of them, how to list them, and how to get one."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'; there are {', '.join(names)}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    names = sorted(homes)
    return names, lambda: names, get
