"""Facts about the machine and the installation, stored with every result."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).parents[3]
_LIBRARIES = ("numpy", "scipy", "numba", "polars", "torch", "ray", "fpsample")


@cache
def facts() -> dict[str, Any]:
    """Processor, cores, memory, GPUs, operating system and Python of this machine.

    >>> sorted(facts())
    ['cores', 'cpu', 'gpus', 'memory_bytes', 'os', 'python']
    """
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "gpus": gpus(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # what a container really gives us
    return os.cpu_count() or 1


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs the driver shows; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    listing = _answer("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return listing.splitlines() if listing else []


def versions() -> dict[str, str]:
    """Versions of assay and of the libraries a number can depend on."""
    found = {}
    for name in ("assay", *_LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The checkout's commit, with a + if files differ from it; None outside a checkout."""
    if not (_CHECKOUT / ".git").exists():
        return None
    head = _answer("git", "-C", str(_CHECKOUT), "rev-parse", "--short=12", "HEAD")
    changed = _answer("git", "-C", str(_CHECKOUT), "status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if head and changed else head


def _answer(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
