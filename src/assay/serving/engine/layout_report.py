"""What a search for a layout came to, in a table and in words: the cheapest few, why the first wins, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.record.wording import number
from assay.serving.engine import bill, columns, step_sources
from assay.serving.engine.layout_search import Found, Search, Tried
from assay.serving.engine.outcome import Outcome
from assay.serving.fleet import FleetSpec
from assay.sim.layouts import Layout, read_layout

SHOWN = ["layout", "gpus", "usd_per_hour", "usd_per_mtok", "attainment", "goodput_per_gpu"]
ROWS = 6
NAMED = 4  # cuts that are named one by one
NOT_SEARCHED = (
    "sizes that are no powers of two, replicas of different cuts in one pool, lock-step attention, other dtypes, batch "
    "limits and routers"
)


def question(fleet: FleetSpec, gpus: int | None, gpu: str | None, model: str | None) -> tuple[str, int]:
    """The uncut layout and the number of GPUs that are asked about; what is not given is the fleet's.

    >>> from assay.serving.fleet import parse
    >>> question(parse("4xh200:qwen3-32b:tp2:fp8"), None, None, None)
    ('h200:qwen3-32b:fp8', 8)
    >>> question(parse("1xh200:qwen3-8b"), 4, "h100", None)
    ('h100:qwen3-8b', 4)
    """
    kinds = {_uncut(read_layout(one.name)) for one in fleet.instances if one.model}
    if len(kinds) != 1 and not (gpu and model):
        raise BadInput("--find layout asks about one model on one kind of GPU: give --model and --gpu")
    on, _, what = min(kinds, default="").partition(":")
    layout = f"{gpu or on}:{model or what}"
    if read_layout(layout).ranks > 1:
        raise BadInput(f"--model {model}: give it uncut; the search cuts it")
    return layout, gpus or fleet.gpus


def _uncut(cut: Layout) -> str:
    dtype = "" if cut.dtype == "bf16" else f":{cut.dtype}"
    return f"{cut.device.name}:{cut.model.name}{dtype}"


def answer(search: Search, found: Found) -> dict[str, Any]:
    """The search's answer: facts, the table, why, and how far to trust it."""
    best = _first_of_each(found.meets)
    rows = best[:ROWS] or ([found.nearest] if found.nearest else [])
    instances = tuple(one for tried in rows for one in tried.outcome.fleet.instances)
    return {
        "search": _facts(search, found),
        "table": [_row(search, tried) for tried in rows],
        "why": _why(search, found, best),
        "units": columns.UNITS | {"goodput_per_gpu": columns.RATE},
        "trust": step_sources.told(FleetSpec(instances)),
        "shown": SHOWN,
    }


def _kinds(tried: Tried) -> tuple[tuple[str, str], ...]:
    return tuple((pool.kind, pool.role) for pool in tried.pools)


def _first_of_each(meets: Sequence[Tried]) -> list[Tried]:
    """Of every kind of layout the cheapest."""
    first: dict[tuple[tuple[str, str], ...], Tried] = {}
    for tried in meets:
        first.setdefault(_kinds(tried), tried)
    return list(first.values())


def _row(search: Search, tried: Tried) -> dict[str, Any]:
    run, usd = tried.outcome, sum(one.usd_per_hour for one in tried.outcome.fleet.instances)
    goodput = run.goodput(search.slo)
    several = run.records["output"][run.served] > 1
    return {
        "layout": _short(search.layout, tried), "gpus": tried.gpus, "usd_per_hour": usd or None,
        "usd_per_mtok": bill.per_million(run)["usd_per_mtok"],
        "attainment": tried.attainment, "goodput_per_gpu": goodput / tried.gpus, "goodput": goodput,
        "ttft_p99": float(np.quantile(run.ttft, 0.99)) if len(run.ttft) else None,
        "tpot_p99": float(np.quantile(run.tpot[several], 0.99)) if several.any() else None,
        "preemptions": int(run.records["preemptions"].sum()), "refused": int((~run.served).sum()), "fleet": tried.text,
    }  # fmt: skip


def _short(layout: str, tried: Tried) -> str:
    """`3 x tp2 prefill + 1 x tp4 decode`."""
    gpu, model, *_ = layout.split(":")
    parts = []
    for pool in tried.pools:
        cut = ":".join(part for part in pool.kind.split(":") if part not in (gpu, model)) or "tp1"
        parts.append(f"{pool.size} x {cut}" + ("" if pool.role == "both" else f" {pool.role}"))
    return " + ".join(parts)


def _facts(search: Search, found: Found) -> dict[str, Any]:
    held = sorted(found.cannot_hold)
    named = ", ".join(name.partition(":")[2] for name in held[:NAMED]) + (" …" if len(held) > NAMED else "")
    why = f" ({next(iter(found.cannot_hold.values()))})" if held else ""
    ruled = sorted(found.forbidden.items())
    return {
        "policy": search.policy, "model": search.layout, "gpus": search.gpus, "attainment_wanted": search.attainment,
        "cuts": found.kinds,
        "cannot_hold_the_model": f"{named}{why}" if held else "",
        "forbidden_by_bounds": f"{len(ruled)} of {found.roles} cuts and roles, such as {ruled[0][0]}: {ruled[0][1]}"
        if ruled else "",
        "simulated": found.simulated, "not_searched": NOT_SEARCHED,
    }  # fmt: skip


def _why(search: Search, found: Found, best: Sequence[Tried]) -> str:
    """Who wins and by what, what one replica less would do, and how complete the search was."""
    rest = "" if found.complete else f" It stopped after {found.simulated} simulations: a cheaper one may exist."
    if not best:
        if found.nearest is None:
            bound = next(iter(found.forbidden.values()), "")
            return f"No layout of {search.gpus} GPUs can serve {search.attainment:.0%} in time: {bound}.{rest}"
        near = found.nearest
        misses = _misses(search, near.outcome)
        none = f"No layout of {search.gpus} GPUs serves {search.attainment:.0%} in time."
        return f"{none} {_short(search.layout, near)} comes nearest with {near.attainment:.1%}{misses}.{rest}"
    first, others = best[0], best[1:]
    usd = sum(one.usd_per_hour for one in first.outcome.fleet.instances)
    price = f" (${number(usd)} an hour)" if usd else ""
    name, gpus = _short(search.layout, first), f"{first.gpus} GPU{'s' * (first.gpus > 1)}{price}"
    equal = [_short(search.layout, one) for one in others if one.gpus == first.gpus]
    dearer = [one for one in others if one.gpus > first.gpus]
    if equal:
        names = ", ".join([name, *equal[: NAMED - 1]]) + (" …" if len(equal) >= NAMED else "")
        wait = float(first.outcome.ttft.mean())
        said = f"{names} cost the same, {gpus}. Of them {name} serves best: {first.attainment:.1%} in time, "
        said += f"{number(wait)} s to the first token on average"
    else:
        said = f"{name} is the cheapest: {gpus}, {first.attainment:.1%} in time"
    if dearer:
        said += f"; {_short(search.layout, dearer[0])}, the next, needs {dearer[0].gpus}"
    return f"{said}.{_with_less(search, found, first)}{rest} Try it: --fleet {first.text}"


def _with_less(search: Search, found: Found, first: Tried) -> str:
    """What the winner's kind does with fewer GPUs, and which target that misses."""
    fewer = [one for one in found.misses if _kinds(one) == _kinds(first) and one.gpus < first.gpus]
    if not fewer:
        return ""
    nearest = max(fewer, key=lambda one: one.gpus)
    what = f" With {_short(search.layout, nearest)} only {nearest.attainment:.1%} would be"
    return f"{what}{_misses(search, nearest.outcome)}."


def _misses(search: Search, run: Outcome) -> str:
    """Which targets are missed, and by how many."""
    ttft, tpot, e2e = (limit[run.served] for limit in search.limits)
    shares = {
        "time to first token": (run.ttft > ttft).mean(), "time a token": (run.tpot > tpot).mean(),
        "the whole answer": (run.e2e > e2e).mean(), "memory": (~run.served).mean(),
    }  # fmt: skip
    missed = [f"{name} {share:.1%}" for name, share in shares.items() if share > 0]
    return f" (missed: {', '.join(missed)})" if missed else ""
