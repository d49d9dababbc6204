"""Public traces: which there are (`traces.toml`), and where they lie on this machine.

assay ships none. `assay traces get` brings those whose address and checksum are known into `$ASSAY_HOME/traces`; a
folder of one's own is named by `$ASSAY_TRACES`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from assay.record.errors import BadInput
from assay.record.store import home
from assay.record.types import NotMeasured

_CATALOGUE = Path(__file__).with_name("traces.toml")


@dataclass(frozen=True, slots=True)
class File:
    """One file of a trace: its path below the folder of traces and, where known, how to get and check it."""

    path: str
    url: str = ""
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A published trace. `format` is that of requests to language models; other data have none."""

    name: str
    what: str
    published: str
    licence: str
    files: tuple[File, ...]
    format: str = ""

    @property
    def file(self) -> str:
        """Its path below the folder of traces: a file, or the folder that its files share.

        >>> named("azure-2023-conv").file, named("taco").file
        ('AzureLLMInferenceTrace_conv.csv', 'taco')
        """
        return os.path.commonpath([file.path for file in self.files])

    @property
    def path(self) -> Path | None:
        """Where it lies on this machine, complete; None where it does not."""
        there = (base for base in folders() if all((base / file.path).exists() for file in self.files))
        return next((base / self.file for base in there), None)

    @property
    def fetchable(self) -> bool:
        """Whether the address and the checksum of all its files are known."""
        return all(file.url and file.sha256 for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all its files; 0 where nobody knows."""
        return sum(file.size for file in self.files)

    @property
    def cure(self) -> str:
        """What brings it here."""
        if self.fetchable:
            return f"run: assay traces get {self.name}"
        return f"it is at {self.published}; put it as {self.file} into a folder and set ASSAY_TRACES to that"


@cache
def published() -> tuple[Trace, ...]:
    """Every published trace that assay knows, in the order of the file.

    >>> [trace.name for trace in published() if trace.format == "vidur"]
    ['vidur-splitwise-conv']
    """
    entries = tomllib.loads(_CATALOGUE.read_text(encoding="utf-8"))["trace"]
    return tuple(
        Trace(files=tuple(File(**file) for file in entry.pop("file")), **entry) for entry in map(dict, entries)
    )


def named(name: str) -> Trace:
    """The published trace of this name; an error that names the closest ones where there is none."""
    known = {trace.name: trace for trace in published()}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "'assay traces' lists them"
    raise BadInput(f"no published trace has the name '{name}'; {hint}")


def folders() -> list[Path]:
    """Where traces are looked for, in this order: `$ASSAY_TRACES`, else a checkout's neighbour; what was fetched."""
    chosen = os.environ.get("ASSAY_TRACES")
    own = Path(chosen).expanduser() if chosen else Path(__file__).parents[4] / "shared" / "traces"
    return [path for path in (own, home() / "traces") if path.is_dir()]


def folder() -> Path | None:
    """The first folder of traces; None where there is none."""
    return next(iter(folders()), None)


def find(name: str) -> Path:
    """The trace file or folder of this name.

    Raises NotMeasured, with the cure, where it is not at hand.
    """
    for base in folders():
        if (base / name).exists():
            return base / name
    raise NotMeasured(lacking([name]))


def of_file(name: str) -> Trace | None:
    """The published trace that a file or folder below the folder of traces belongs to.

    >>> of_file("azure_vm_noise").name, of_file("taco/aba.ta").name, of_file("mine.csv")
    ('azure-vm-noise', 'taco', None)
    """
    exact = (trace for trace in published() if name in (trace.file, *(file.path for file in trace.files)))
    inside = (trace for trace in published() if name.startswith(f"{trace.file}/"))
    return next(exact, None) or next(inside, None)


def lacking(names: Iterable[str]) -> str:
    """One line for traces that are not at hand, by file: which, and what brings them.

    >>> lacking(["AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"])
    'not at hand: azure-2023-conv, mooncake-conversation; run: assay traces get azure-2023-conv mooncake-conversation'
    """
    found = {name: of_file(name) for name in sorted(set(names))}
    known = {trace.name: trace for trace in found.values() if trace is not None}
    fetched = [name for name, trace in known.items() if trace.fetchable]
    cures = [f"run: assay traces get {' '.join(fetched)}"] if fetched else []
    cures += [f"{name}: {trace.cure}" for name, trace in known.items() if not trace.fetchable]
    strange = [name for name, trace in found.items() if trace is None]
    cures += [f"put {name} into a folder and set ASSAY_TRACES to that" for name in strange]
    return f"not at hand: {', '.join([*known, *strange])}; {'; '.join(cures)}"
