"""What this machine has, what each missing thing would enable, and the one command that gets it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

from assay.record import machine, traces
from assay.record.extras import EXTRAS, WHEELS_UNTIL, Extra, install_command
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
    findings += [_extra(extra) for extra in EXTRAS]
    return [*findings, _browser(), _traces(), _store()]


def _extra(extra: Extra, python: tuple[int, int] = sys.version_info[:2]) -> Finding:
    missing = extra.missing
    found = f"missing {', '.join(missing)}" if missing else "installed"
    if missing and extra.compiled and python > WHEELS_UNTIL:
        newest = ".".join(map(str, WHEELS_UNTIL))
        found += f"; {', '.join(extra.compiled)}: no wheel for this Python, it takes a C compiler or Python {newest}"
    cure = install_command(extra.name) if missing else ""
    return Finding(f"extra {extra.name}", not missing, found, extra.enables, cure)


def cures(findings: list[Finding]) -> dict[str, str]:
    """How to get what is missing, by what: each cure once, and one command for all extras.

    >>> torch, ray = (Finding(f"extra {name}", False, "missing", cure="…") for name in ("torch", "ray"))
    >>> cures([torch, ray, Finding("gpu", False, "none", cure="get one")])["gpu"]
    'get one'
    """
    missing = [finding for finding in findings if not finding.ok]
    extras = [finding.name.removeprefix("extra ") for finding in missing if finding.name.startswith("extra ")]
    found = {finding.name: finding.cure for finding in missing if not finding.name.startswith("extra ")}
    if extras:
        which = "the extras, or some of those in brackets" if len(extras) > 1 else f"the extra {extras[0]}"
        found[which] = install_command(",".join(extras))
    return found


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
    enables = "studies that replay public traces"
    known = traces.published()
    here = [trace.name for trace in known if trace.path is not None]
    lacking = [trace.name for trace in known if trace.fetchable and trace.path is None]
    found = f"{len(here)} of {len(known)}: {', '.join(here)}" if here else "none at hand"
    where = ", ".join(map(str, traces.folders()))
    return Finding(
        "traces", not lacking, f"{found} (in {where})" if where else found, enables,
        f"assay traces get {'--all' if len(lacking) > 3 else ' '.join(lacking)}" if lacking else "",
    )  # fmt: skip


def _store() -> Finding:
    path = home()
    nearest = next(p for p in (path, *path.parents) if p.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK)
    free = shutil.disk_usage(nearest).free / 1e9
    return Finding(
        "store", ok, f"{path} ({free:.0f} GB free)", "results that last",
        "" if ok else "set ASSAY_HOME to a folder you can write",
    )  # fmt: skip
