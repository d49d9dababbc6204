"""How long the light commands take from the shell, in whole processes.

.venv/bin/python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from assay.record.timing import interleave, median

ASSAY = str(Path(sys.executable).with_name("assay"))
COMMANDS = {"python -c pass": [sys.executable, "-c", "pass"]} | {
    f"assay {words}": [ASSAY, *words.split()] for words in ("--help", "list", "list --json", "show lmetric")
}


def main() -> None:
    run = partial(subprocess.run, stdout=subprocess.DEVNULL, check=True)
    seconds = interleave({name: partial(run, command) for name, command in COMMANDS.items()}, rounds=15)
    for name, times in seconds.items():
        print(f"{name:<20}{median(times) * 1e3:>8.0f} ms")


if __name__ == "__main__":
    main()
