"""Make every generated file of this folder: small inputs in the published formats, with nobody else's data in them.

    python examples/make.py            # writes them beside this file
    python examples/make.py OTHER      # or into another folder

The same files come out every time; a test makes them again and compares. The makers of a room's files stand in
`making/`; the other Python files here are written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from making import data, kernels, observe, protocols, serving, training  # noqa: F401  each notes its files
from making.formats import FILES


def make(folder: Path) -> None:
    """Write every file."""
    for name, function in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = function(Random(name))
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    observe.profiled(folder / "run")
    observe.graphs(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
