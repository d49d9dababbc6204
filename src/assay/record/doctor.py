"""What this machine has, what each missing thing would enable, and the one command that gets it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

from assay.record import machine, traces
from assay.record.extras import EXTRAS, install_command
from assay.record.store import home


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for: whether it is here, what was found, what it enables, how to get it."""

    name: str
    ok: bool
    found: str
    enables: str = ""
    cure: str = ""


def examine() -> list[Finding]:
    """Look at Python, the machine, the extras, a browser, traces and the store."""
    facts = machine.facts()
    memory = facts["memory_bytes"]
    findings = [
        Finding("python", sys.version_info >= (3, 11), facts["python"], "assay", "install Python 3.11 or later"),
        Finding("cores", True, f"{facts['cores']} × {facts['cpu']}"),
        Finding("memory", True, f"{memory / 1e9:.1f} GB" if memory else "unknown"),
        _gpu(facts["gpus"]),
    ]
    for extra in EXTRAS:
        missing = extra.missing
        found = f"missing {', '.join(missing)}" if missing else "installed"
        cure = install_command(extra.name) if missing else ""
        findings.append(Finding(f"extra {extra.name}", not missing, found, extra.enables, cure))
    return [*findings, _browser(), _traces(), _store()]


def _gpu(gpus: list[str]) -> Finding:
    enables = "GPU kernels and claims about them"
    if gpus:
        return Finding("gpu", True, ", ".join(gpus), enables)
    return Finding("gpu", False, "no NVIDIA driver answers", enables, "run on a machine with an NVIDIA GPU and driver")


def browser() -> str | None:
    """The path of a Chromium on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def _browser() -> Finding:
    path = browser()
    return Finding(
        "browser", path is not None, path or "no Chromium", "the tests of the report's pages",
        "" if path else "apt-get install chromium",
    )  # fmt: skip


def _traces() -> Finding:
    folder = traces.folder()
    if folder is None:
        return Finding(
            "traces", False, "no folder", "studies that replay public traces",
            "download the traces docs/traces.md names and set ASSAY_TRACES to their folder",
        )  # fmt: skip
    names = sorted(path.name for path in folder.iterdir() if path.name != "README.md")
    return Finding("traces", True, f"{folder}: {', '.join(names)}", "studies that replay public traces")


def _store() -> Finding:
    path = home()
    nearest = next(p for p in (path, *path.parents) if p.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK)
    free = shutil.disk_usage(nearest).free / 1e9
    return Finding(
        "store", ok, f"{path} ({free:.0f} GB free)", "results that last",
        "" if ok else "set ASSAY_HOME to a folder you can write",
    )  # fmt: skip
