"""Numba's `njit`, keeping what it compiles by the code it was compiled from.

Numba's own cache looks at the file a function stands in: it does not notice a change in a function or a constant that
comes from another module, and it compiles anew for every copy of a file. Here the folder's name is a digest of the
module and of everything of assay that it imports. So old code is never used; a changed module costs only those that
lean on it; and all processes, worktrees and copies of the same sources share what any of them has compiled.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from assay.record import sources

R = TypeVar("R")
_PACKAGE = Path(__file__).parents[1]
_BEGAN = time.time()  # modules with compiled functions are read after this one


def njit(**options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`numba.njit` with the same options; `cache=True` keeps the compiled code by its import closure.

    >>> @njit()
    ... def twice(x):
    ...     return 2 * x
    >>> twice(4)
    8
    """
    cached = options.pop("cache", False)

    def compile_lazily(function: Callable[..., R]) -> Callable[..., R]:
        compiled: Any = numba.njit(**options)(function)
        if cached and hasattr(compiled, "enable_caching"):  # a plain function under NUMBA_DISABLE_JIT
            if _PACKAGE in Path(compiled.py_func.__code__.co_filename).parents:
                compiled._cache = _Cache(function)
            else:
                compiled.enable_caching()  # a function of the user's, as Numba does it
        return compiled  # type: ignore[no-any-return]

    return compile_lazily


@cache
def root() -> Path:
    """Where compiled code is kept: NUMBA_CACHE_DIR, or beside the code if that may be written, or under ASSAY_HOME.

    >>> root().is_absolute()
    True
    """
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen).absolute()
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside / "compiled"
    from assay.record import store

    return store.home().absolute() / "compiled"


@cache
def folder(file: str) -> Path:
    """The folder for the functions of one file of assay.

    >>> folder(__file__).name.startswith("assay.sim.compiled-")
    True
    """
    parts = Path(file).relative_to(_PACKAGE.parent).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    digest, changed = sources.compiled_version(module)
    # What was edited while this process runs may be in memory in its old form: that is kept for this process only.
    return (root() if changed < _BEGAN else Path(_own().name)) / f"{module}-{digest}"


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="assay-compiled-")


class _Locator:
    """What Numba asks for a function's place in the cache."""

    def __init__(self, function: FunctionType, file: str) -> None:
        self._py_file, self._line, self._folder = file, function.__code__.co_firstlineno, folder(file)

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> _Locator:
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Place(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _Place

    def _save_overload(self, signature: Any, compiled: Any) -> None:
        """One process at a time: two that save different signatures at once would give both the same file."""
        with suppress(OSError):  # a full disk costs compiling again, not the run
            self._impl.locator.ensure_cache_path()
            with Path(self._cache_path, "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                super()._save_overload(signature, compiled)
