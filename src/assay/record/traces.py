"""Where public traces lie on this machine. assay ships none: they are downloaded from where they are published."""

from __future__ import annotations

import os
from pathlib import Path

from assay.record.types import NotMeasured


def folder() -> Path | None:
    """`$ASSAY_TRACES`, else `../shared/traces` beside the checkout; None where neither is a folder."""
    chosen = os.environ.get("ASSAY_TRACES")
    candidates = [Path(chosen).expanduser()] if chosen else [Path(__file__).parents[4] / "shared" / "traces"]
    return next((path for path in candidates if path.is_dir()), None)


def find(name: str) -> Path:
    """The trace file or folder of this name.

    Raises NotMeasured, with the cure, where it is not at hand.
    """
    base = folder()
    if base is None or not (base / name).exists():
        raise NotMeasured(f"the trace '{name}' is not at hand; put it into a folder and set ASSAY_TRACES to it")
    return base / name
