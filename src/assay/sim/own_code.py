"""The user's own code by name: `package.module:Name`, imported from where the user stands, or `file.py:Name`.

>>> load("math:floor")(2.5)
2
>>> load("no_such_file.py:Mine")
Traceback (most recent call last):
assay.record.errors.BadInput: cannot read no_such_file.py: No such file or directory
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, unreadable

REFUSE = "ASSAY_OWN_CODE"  # set to no: a process that answers others than its user, and all that it starts


def load(name: str) -> Any:
    """What the name stands for; BadInput where there is no such thing or its module cannot be run."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise BadInput(f"'{name}' names no code; package.module:Name or file.py:Name expected")
    if os.environ.get(REFUSE) == "no":
        raise BadInput(f"'{name}' names code of one's own, which does not run here")
    if os.sep in where and not where.endswith(".py"):
        raise BadInput(f"'{name}': {where} is no .py file; package.module:Name or file.py:Name expected")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
        return getattr(module, attribute)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"cannot load '{name}': {type(error).__name__}: {error}") from error


def _module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise unreadable(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
