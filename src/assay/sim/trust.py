"""How far step times are off measured hardware, so that every answer they give can say it.

The figures are measured: serving runs on a real GPU, beside their simulation with the step times of data sheets
(`roofline`) and of each profile (by its layout's name), which was fitted to other runs than these.
`benchmarks/cost_error.py` writes them.

>>> measured()["roofline"].gpu
'h200'
>>> print(sentence("roofline"))  # doctest: +ELLIPSIS
Step times come from data sheets; on an H200 they were off by ... % in time to first token and ... % a token.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("trust.toml")


@dataclass(frozen=True)
class Trust:
    """Mean errors of some step times, as shares, over the requests of some serving runs on one GPU."""

    gpu: str
    models: tuple[str, ...]
    runs: int
    requests: int
    ttft: float
    tpot: float
    step: float


@cache
def measured() -> dict[str, Trust]:
    """What is known: of `roofline`, and of each profile by its layout's name."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Trust(**(table | {"models": tuple(table["models"])})) for name, table in content.items()}


def sentence(name: str = "roofline") -> str:
    """The error in words: of data sheets, or of a profile by its layout's name."""
    found = measured()[name]
    off = f"off by {found.ttft:.0%} in time to first token and {found.tpot:.0%} a token.".replace("%", " %")
    if name == "roofline":
        gpu = f"an {found.gpu.upper()}" if found.gpu.startswith("h") else found.gpu.upper()
        return f"Step times come from data sheets; on {gpu} they were {off}"
    return f"Step times of {name} were measured on assay's own engine; on {found.runs} runs held back they were {off}"


def told(used: Iterable[tuple[str, str]]) -> str:
    """The error of the step times that were used: pairs of a layout's name and of their source, in words.

    >>> print(told([("h200:qwen3-32b", "measured"), ("h200:qwen3-32b:tp2", "scaled")]))  # doctest: +ELLIPSIS
    Step times of h200:qwen3-32b were measured ... Other cuts of h200:qwen3-32b ...: none of them was measured.
    """
    names: dict[str, list[str]] = {}
    for name, source in dict.fromkeys(used):
        names.setdefault(source, []).append(name)
    parts = [sentence(name) for name in names.get("measured", ())]
    if scaled := names.get("scaled"):
        models = list(dict.fromkeys(":".join(name.split(":")[:2]) for name in scaled))
        what = "take data sheets times what was measured of the model on one device"
        parts.append(f"Other cuts of {_listed(models)} {what}: none of them was measured.")
    if sheets := names.get("roofline"):
        gpus = {name.partition(":")[0] for name in sheets} - {measured()["roofline"].gpu}
        said = sentence("roofline")
        parts.append(said.replace("Step times", f"Those of {_listed(sheets)}") if parts else said)
        parts += [f"On {_listed(sorted(gpus))} nothing was measured."] if gpus else []
    if "fitted" in names:
        parts.append("Step times that assay calibrate fitted to your own engines have the error that it told.")
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def as_toml(errors: dict[str, Trust]) -> str:
    """The file's content."""
    lines = ["# Written by benchmarks/cost_error.py: mean errors of simulated serving runs against the measured ones."]
    for name, found in errors.items():
        lines.append(f'\n["{name}"]' if ":" in name else f"\n[{name}]")
        for key, value in asdict(found).items():
            shown = f"{value:.4f}" if isinstance(value, float) else str(list(value) if key == "models" else value)
            lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {shown}".replace("'", '"'))
    return "\n".join(lines) + "\n"
