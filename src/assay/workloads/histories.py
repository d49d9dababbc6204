"""Histories of operations on shared objects: who asked what when, what came back, and when.

The judges of the protocols room read them; the kernel records them; users bring their own. Four formats, told apart by
their content (:func:`read`):

- ``jsonl``: ours, an object a line with the fields of :class:`Operation`;
- ``jepsen-edn`` and ``jepsen-json``: events with ``type``, ``process``, ``f``, ``value``, ``time``;
- ``porcupine-log``: the register logs of Porcupine's tests; its key-value logs are EDN with a ``:key``;
- ``porcupine-json``: a list of call and return events.

>>> import tempfile, pathlib
>>> folder = tempfile.TemporaryDirectory()
>>> path = pathlib.Path(folder.name, "history.edn")
>>> _ = path.write_text('''{:type :invoke, :process 0, :f :write, :value 3}
... {:type :ok, :process 0, :f :write, :value 3}''')
>>> read(path)
[Operation(process=0, f='write', key=None, value=3, result=None, invoke=0.0, complete=1.0, status='ok')]
>>> folder.cleanup()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FORMATS = ("jsonl", "jepsen-edn", "jepsen-json", "porcupine-log", "porcupine-json")


class Operation(NamedTuple):
    """One call of one process on one object, from its invocation to its return.

    >>> write = Operation(0, "write", "x", 1, None, 0.0, 1.5)
    >>> write.precedes(Operation(1, "read", "x", None, 1, 2.0, 3.0))
    True
    """

    process: int
    f: str
    """What was asked: ``read``, ``write``, ``cas``, ``append``, ``add``, ``transfer``, …"""
    key: Any
    """Which object."""
    value: Any
    """The argument: the value to write, (old, new) of a compare-and-set, None of a read."""
    result: Any
    """What came back: the value read, whether the compare-and-set took place; None where nothing did."""
    invoke: float
    complete: float = math.inf
    """When it returned; infinite where it never did."""
    status: str = "ok"
    """``ok``; ``fail``: surely without effect; ``info``: nobody knows whether it took effect."""

    def precedes(self, other: Operation) -> bool:
        """Whether this operation returned before the other began."""
        return self.complete < other.invoke


def read(path: Path, format: str | None = None) -> list[Operation]:
    """Read a history; the format is told from the content unless given.

    Raises:
        BadInput: what is wrong, in which line, and what would be right.

    """
    from assay.workloads import history_files

    return history_files.read(path, format)


def write(path: Path, history: Sequence[Operation], format: str = "jsonl") -> None:
    """Write a history, whole or not at all."""
    from assay.workloads import history_files

    history_files.write(path, history, format)
