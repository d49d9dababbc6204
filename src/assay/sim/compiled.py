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
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler_lock import global_compiler_lock

from assay.record import sources
from assay.sim.parallel import Parallel

R = TypeVar("R")
_PACKAGE = Path(__file__).parents[1]
_BEGAN = time.time()  # modules with compiled functions are read after this one


def njit(**options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`numba.njit` with the same options; `cache=True` keeps the compiled code by its import closure.

    `counted=False` counts no references to arrays, which is for functions that make no array (nor does what they
    call): where many arrays go through many small functions, counting takes longer than the work.

    >>> @njit()
    ... def twice(x):
    ...     return 2 * x
    >>> twice(4)
    8
    """
    cached = options.pop("cache", False)
    if not options.pop("counted", True):
        options["_nrt"] = False
    options = {
        "no_cfunc_wrapper": True
    } | options  # an eighth of the compiling, for callers that are not Python or Numba

    def compile_lazily(function: Callable[..., R]) -> Callable[..., R]:
        compiled: Any = numba.njit(**options)(function)
        if options.get("parallel") and hasattr(compiled, "enable_caching"):
            compiled.__class__ = Parallel
            compiled.alone = njit(**options | {"parallel": False, "cache": cached})(_named(function, "alone"))
        if cached and hasattr(compiled, "enable_caching"):  # a plain function under NUMBA_DISABLE_JIT
            if _PACKAGE in Path(compiled.py_func.__code__.co_filename).parents:
                compiled._cache = _Cache(function)
                compiled.compile = _once(compiled.compile, compiled._cache.lock)
            else:
                compiled.enable_caching()  # a function of the user's, as Numba does it
        return compiled  # type: ignore[no-any-return]

    return compile_lazily


def _named(function: FunctionType | Callable[..., R], suffix: str) -> Callable[..., R]:
    """The same function under another name: what is compiled from it with other options is kept apart."""
    assert isinstance(function, FunctionType)
    code, scope = function.__code__, function.__globals__
    made = FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__qualname__, made.__module__ = f"{function.__qualname__}.{suffix}", function.__module__
    return made


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


def _plain(kind: Any) -> Any:
    """The type to compile for: once for all whole numbers, not again for every constant and every width of them.

    A caller's constant is put in where LLVM inlines, and a narrower number is widened on the way.
    """
    if isinstance(kind, numba.types.IntegerLiteral | numba.types.BooleanLiteral):
        kind = numba.types.unliteral(kind)
    return numba.types.int64 if kind in (numba.types.int32, numba.types.int16, numba.types.int8) else kind


def _once(compile_now: Callable[[Any], Any], lock: Path) -> Callable[[Any], Any]:
    """Let one process compile a function; those that need it at the same time wait, and then load it.

    Waiting cannot go round in a circle: who compiles a function waits only for those it calls.
    """
    depth = 0  # a function that calls itself asks for itself

    def compile_once(signature: Any) -> Any:
        nonlocal depth
        if isinstance(signature, tuple):
            signature = tuple(_plain(kind) for kind in signature)
        with global_compiler_lock, ExitStack() as held:
            if not depth:
                with suppress(OSError):  # where nothing can be written, each compiles for itself
                    lock.parent.mkdir(parents=True, exist_ok=True)
                    fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
            depth += 1
            try:
                return compile_now(signature)
            finally:
                depth -= 1

    return compile_once


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

    @property
    def lock(self) -> Path:
        """A file to lock while the function is compiled and kept; Numba's index itself allows one writer only."""
        return Path(self._cache_path, f"{self._impl.filename_base}.lock")

    def _save_overload(self, signature: Any, compiled: Any) -> None:
        with suppress(OSError):  # a full disk costs compiling again, not the run
            super()._save_overload(signature, compiled)
