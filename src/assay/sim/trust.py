"""How far the formulas for step times are off measured hardware, so that every answer they give can say it.

The figures are measured: serving runs on a real GPU, beside their simulation with each formula's step times
(`benchmarks/cost_error.py` writes them).

>>> measured()["roofline"].gpu
'h200'
>>> print(sentence("roofline"))  # doctest: +ELLIPSIS
Step times come from data sheets; on an H200 they were off by ... % in time to first token and ... % a token.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("trust.toml")


@dataclass(frozen=True)
class Trust:
    """Mean errors of one formula, as shares, over the requests of some serving runs on one GPU."""

    gpu: str
    models: tuple[str, ...]
    runs: int
    requests: int
    ttft: float
    tpot: float
    step: float


@cache
def measured() -> dict[str, Trust]:
    """What is known, by formula."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Trust(**(table | {"models": tuple(table["models"])})) for name, table in content.items()}


def sentence(formula: str = "roofline") -> str:
    """The formula's error in words."""
    found = measured()[formula]
    source = "data sheets" if formula == "roofline" else "iterations measured on such a GPU"
    gpu = f"an {found.gpu.upper()}" if found.gpu.startswith("h") else found.gpu.upper()
    return (
        f"Step times come from {source}; on {gpu} they were off by {found.ttft:.0%} in time to first token and "
        f"{found.tpot:.0%} a token.".replace("%", " %")
    )


def as_toml(errors: dict[str, Trust]) -> str:
    """The file's content."""
    lines = ["# Written by benchmarks/cost_error.py: mean errors of simulated serving runs against the measured ones."]
    for name, found in errors.items():
        lines.append(f"\n[{name}]")
        for key, value in asdict(found).items():
            shown = f"{value:.4f}" if isinstance(value, float) else str(list(value) if key == "models" else value)
            lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {shown}".replace("'", '"'))
    return "\n".join(lines) + "\n"
