"""Where a fleet's step times come from, how far they were measured, and how much of a run lay beyond that.

>>> from assay.serving.fleet import parse
>>> used(parse("2xh200:qwen3-32b+1xh100:qwen3-32b:tp2"))
'2 x h200:qwen3-32b measured, 1 x h100:qwen3-32b:tp2 roofline'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from assay.serving.engine.outcome import Outcome
from assay.serving.fleet import FleetSpec
from assay.sim import trust
from assay.sim.layouts import read_layout
from assay.sim.step_times import MEASURED, profile_of


def used(fleet: FleetSpec) -> str:
    """Which step times each kind of instance has."""
    kinds = Counter((one.name or "unnamed", one.source or "given") for one in fleet.instances)
    return ", ".join(f"{count} x {name} {source}" for (name, source), count in kinds.items())


def told(fleet: FleetSpec, runs: Iterable[Outcome] = ()) -> str:
    """How far the fleet's step times are off measured hardware, and how much of the runs lay beyond what was measured.

    >>> from assay.serving.fleet import parse
    >>> told(parse("1xh100:qwen3-8b")).endswith("On h100 nothing was measured.")
    True
    """
    said = trust.told((one.name, one.source) for one in fleet.instances if one.source)
    share = max((beyond(run) for run in runs), default=0.0)
    if share < 0.005:
        return said
    reach = ", or ".join(dict.fromkeys(_reach(one.name) for one in fleet.instances if one.source == MEASURED))
    return f"{said} {share:.0%} of the iterations lay beyond what was measured ({reach}): a scaled roofline.".replace(
        "%", " %"
    )


def _reach(name: str) -> str:
    seen = profile_of(read_layout(name))
    assert seen is not None  # whose source says that it was measured
    return seen.reach


def beyond(run: Outcome) -> float:
    """The share of a run's iterations that were larger than any that was measured; of measured instances only."""
    limits = np.full((len(run.fleet), 3), np.inf)
    for i, one in enumerate(run.fleet.instances):
        seen = profile_of(read_layout(one.name)) if one.source == MEASURED else None
        if seen is not None:
            limits[i] = seen.tokens, seen.sequences, seen.context
    known = np.isfinite(limits[:, 0])[run.spans["instance"]]
    spans = run.spans[known]
    if not len(spans):
        return 0.0
    sizes = np.stack([spans["tokens"], spans["decodes"], spans["kv_blocks"] * run.fleet.block], 1)
    over = (sizes > limits[spans["instance"]]).any(1)
    return float(spans["iterations"][over].sum() / spans["iterations"].sum())
