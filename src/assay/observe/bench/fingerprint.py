"""The environment of a measurement: what a number may depend on beside the code.

No user's name, no home, no path: two people on one machine give the same fingerprint, but for what changes by the
minute (`load`).

>>> sorted(fingerprint())[:4]
['compiler', 'container', 'cores', 'cpu']
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from assay.record import machine

STABLE = ("cpu", "cores", "governor", "memory_bytes", "python")  # what makes two machines of one kind


def fingerprint() -> dict[str, Any]:
    """Processor, microcode, governor, kernel, libraries, compiler, container, load; None where it cannot be told."""
    facts = machine.facts()
    return {
        "cpu": facts["cpu"],
        "cores": facts["cores"],
        "memory_bytes": facts["memory_bytes"],
        "microcode": _cpuinfo("microcode"),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo_off": _text("/sys/devices/system/cpu/intel_pstate/no_turbo"),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": f"{platform.python_implementation()} {facts['python']}",
        "libraries": machine.versions(),
        "compiler": _compiler(),
        "container": _container(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def machine_id(found: dict[str, Any]) -> str:
    """A short name for the kind of machine: series of two kinds are never mixed.

    >>> machine_id({"cpu": "x", "load": [0.1]}) == machine_id({"cpu": "x", "load": [3.0]})
    True
    """
    stable = {key: found.get(key) for key in STABLE}
    return hashlib.blake2b(json.dumps(stable, sort_keys=True).encode(), digest_size=4).hexdigest()


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()[:100] or None
    except OSError:
        return None


def _cpuinfo(field: str) -> str | None:
    for line in (_read_all("/proc/cpuinfo") or "").splitlines():
        if line.startswith(field):
            return line.partition(":")[2].strip()
    return None


def _read_all(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _container() -> str | None:
    """The digest or id of the container, where the environment names one."""
    if named := os.environ.get("CONTAINER_DIGEST"):
        return named[:100]
    return "container" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else None


def _compiler() -> str | None:
    for name in ("cc", "gcc", "clang"):
        if (path := shutil.which(name)) is None:
            continue
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return said.splitlines()[0][:100] if said else None
    return None
