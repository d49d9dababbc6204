"""The step time of a layout from the best that is known of it: measured where somebody did, else from data sheets.

>>> [step_time(name).source for name in ("h200:qwen3-32b", "h200:qwen3-32b:tp2", "h100:qwen3-32b")]
['measured', 'scaled', 'roofline']

A profile holds as far as it was measured. Beyond its largest iteration the roofline goes on, scaled to meet it there;
attention goes on along its fitted line, which is the roofline's scaled in the same way, both being straight. Other cuts
of a measured model (tp, pp, ep) take the roofline of the cut times what the profile is of the roofline uncut: tp1 and
tp2 are then slower than their data sheets for the same reasons, and may be compared. No such cut was measured.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from assay.record.errors import BadInput
from assay.sim import models, trust
from assay.sim.layouts import Layout, read_layout
from assay.sim.llm_cost import COEFFICIENTS, StepCost
from assay.sim.profiles import Profile, profile
from assay.sim.roofline import layout as roofline_layout

MEASURED, SCALED, ROOFLINE = "measured", "scaled", "roofline"
COSTS = (MEASURED, ROOFLINE)  # what can be asked for: the best there is, or data sheets only


class StepTime(NamedTuple):
    """A cost and where it comes from: `measured`, `scaled` (another cut of what was measured) or `roofline`."""

    cost: StepCost
    source: str


def profile_of(cut: Layout) -> Profile | None:
    """The measurements of the model on this device, whatever its cut; a shape of one's own has none, nor other dtypes.

    >>> profile_of(read_layout("h200:qwen3-32b:fp8")) is None
    True
    """
    found = profile(cut.device.name, cut.model.name) if cut.dtype == "bf16" else None
    return found if found and cut.model == models.model(cut.model.name) else None


def source(text: str, cost: str = MEASURED) -> str:
    """Where the step time of a layout comes from, without computing it.

    >>> source("h200:llama-3-8b"), source("h200:llama-3-8b", "roofline")
    ('measured', 'roofline')
    """
    if cost not in COSTS:
        raise BadInput(f"cost '{cost}': there are {' and '.join(COSTS)}")
    cut = read_layout(text)
    if cost == ROOFLINE or profile_of(cut) is None:
        return ROOFLINE
    return MEASURED if cut.ranks == 1 else SCALED


def trust_of(*layouts: str) -> str:
    """How far the step times of some layouts are off measured hardware, in words.

    >>> trust_of("h200:qwen3-32b") == trust.sentence("h200:qwen3-32b")
    True
    """
    return trust.told((text, source(text)) for text in layouts)


@lru_cache(maxsize=256)
def step_time(text: str, cost: str = MEASURED) -> StepTime:
    """The cost of a layout by its name, and its source. Answers are kept: do not write into them.

    Raises:
        BadInput: a layout that is not understood, or a model that does not fit.
    """
    cut, sheet, known = read_layout(text), roofline_layout(text), source(text, cost)
    if known == ROOFLINE:
        return StepTime(sheet, ROOFLINE)
    seen = profile_of(cut)
    assert seen is not None  # else the source were the roofline
    whole = roofline_layout(f"{cut.device.name}:{cut.model.name}")
    uncut = dataclasses.replace(blend(seen.cost, whole, seen.tokens), name=sheet.name)
    return StepTime(uncut if known == MEASURED else scaled(uncut, whole, sheet), known)


def best(text: str) -> StepCost:
    """The cost of a layout by its name, measured if possible.

    >>> best("h200:llama-3-8b").launch_alone > 0  # the host launches prompts, which no data sheet knows
    True
    """
    return step_time(text).cost


def blend(profile: StepCost, roofline: StepCost, covered: int) -> StepCost:
    """The profile up to `covered` tokens, and beyond it the roofline scaled to agree at the border.

    >>> profile = StepCost(tokens=np.array([1.0, 2.0, 4.0]))
    >>> blend(profile, StepCost(tokens=np.array([1.0, 1.0, 2.0, 3.0, 4.0])), covered=2).tokens.tolist()
    [1.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not 0 < covered < len(profile.tokens):
        raise BadInput(f"a profile of {len(profile.tokens) - 1} tokens cannot cover {covered}")
    if len(roofline.tokens) <= covered:
        return profile
    factor = float(profile.tokens[covered] / roofline.tokens[covered])
    tokens = np.concatenate([profile.tokens[: covered + 1], factor * roofline.tokens[covered + 1 :]])
    note = f"beyond {covered} tokens a roofline times {factor:.3g}"
    return dataclasses.replace(
        profile, tokens=tokens, window=roofline.window, kv_tokens=profile.kv_tokens or roofline.kv_tokens,
        kv_bytes=profile.kv_bytes or roofline.kv_bytes, energy=profile.energy or roofline.energy,
        notes=(*profile.notes, note),
    )  # fmt: skip


def scaled(known: StepCost, whole: StepCost, cut: StepCost) -> StepCost:
    """The roofline of a cut, times what is known of the model uncut over the roofline of that.

    What a roofline has no term for (a fixed price of a prompt, the host's launches) is no shorter on several devices.

    >>> line = np.arange(1.0, 4.0)
    >>> found = scaled(StepCost(3 * line, launch=0.5), StepCost(line), StepCost(line / 2))
    >>> found.tokens.tolist(), found.launch
    ([1.5, 3.0, 4.5], 0.5)
    """
    changed = {}
    for name in COEFFICIENTS:
        mine, theirs, there = (getattr(one, name) for one in (known, whole, cut))
        if name != "window":
            changed[name] = there * mine / theirs if theirs else mine
    note = "the roofline of this cut, times what was measured of the model uncut over its roofline"
    tokens = cut.tokens * (known.tokens / whole.tokens)
    return dataclasses.replace(cut, tokens=tokens, notes=(*known.notes, note), **changed)
