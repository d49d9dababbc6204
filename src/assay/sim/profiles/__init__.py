"""Step times that were measured: one folder a device, one file a model, and the measurements they were fitted to.

>>> names()
['h200:llama-3-8b', 'h200:qwen3-32b']
>>> seen = profile("h200", "qwen3-32b")
>>> seen.tokens, seen.iterations
(2048, 289)

`benchmarks/h200_engine.py` measures, `benchmarks/cost_error.py` fits and says how far the fit is off on serving runs
that it never saw (`assay.sim.trust`). A file that is there is used; no list names it.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from assay.record.errors import BadInput
from assay.sim import cost_file
from assay.sim.llm_cost import StepCost

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Profile:
    """A step time fitted to iterations of one model on one device, and how far those reached."""

    cost: StepCost
    tokens: int  # of the largest iteration
    sequences: int  # that decoded in it
    context: int  # tokens of KV that the decodes of one iteration read
    iterations: int
    engine: str

    @property
    def reach(self) -> str:
        """What was measured, in words."""
        return f"{self.tokens:,} tokens, {self.sequences} decodes, {self.context:,} tokens of KV an iteration"


def names() -> list[str]:
    """What there are measurements of, as layouts are named."""
    return sorted(f"{path.parent.name}:{path.stem}" for path in FOLDER.glob("*/*.toml"))


@lru_cache(maxsize=64)
def profile(device: str, model: str) -> Profile | None:
    """What was measured of a model on one such device; None where nobody did."""
    path = FOLDER / device / f"{model}.toml"
    if not path.is_file():
        return None
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return Profile(**content.pop("measured"), cost=cost_file.from_table(path, content))
    except (KeyError, TypeError) as error:
        wanted = "tokens, sequences, context, iterations, engine"
        raise BadInput(f"{path}: needs a table [measured] with {wanted}") from error


def text(found: Profile) -> str:
    """The file of a profile."""
    facts = {name: value for name, value in asdict(found).items() if name != "cost"}
    lines = [f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in facts.items()]
    return f"{cost_file.text(found.cost)}\n[measured]\n" + "\n".join(lines) + "\n"
