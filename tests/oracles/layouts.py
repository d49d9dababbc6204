"""Every layout of a model on at most so many GPUs, simulated: slow, and easy to be sure of."""

from __future__ import annotations

from collections.abc import Iterator

from assay.record.errors import BadInput
from assay.serving.engine import components
from assay.serving.engine.layout_search import Pool, Search
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import parse

SIZES = (1, 2, 4, 8)

Attained = dict[tuple[Pool, ...], tuple[int, float]]


def kinds(layout: str, gpus: int) -> dict[str, int]:
    """Every cut that can be parsed and fits, and its GPUs."""
    found = {}
    gpu, model, *rest = layout.split(":")
    for tp in SIZES:
        for pp in SIZES:
            for ep in SIZES:
                cuts = [f"{name}{size}" for name, size in (("tp", tp), ("pp", pp), ("ep", ep)) if size > 1]
                name = ":".join([gpu, model, *cuts, *rest])
                try:
                    needs = parse(f"1x{name}").gpus
                except BadInput:
                    continue
                if needs <= gpus and (ep == 1 or ep >= tp):
                    found[name] = needs
    return found


def candidates(layout: str, gpus: int) -> Iterator[tuple[tuple[Pool, ...], int]]:
    """Every layout within the budget, and its GPUs."""
    sizes = kinds(layout, gpus)
    for kind, each in sizes.items():
        for n in range(1, gpus // each + 1):
            yield (Pool(n, kind),), n * each
    for first, one in sizes.items():
        for second, other in sizes.items():
            for n in range(1, gpus // one + 1):
                for m in range(1, (gpus - n * one) // other + 1):
                    yield (Pool(n, first, "prefill"), Pool(m, second, "decode")), n * one + m * other


def attainments(search: Search) -> Attained:
    """By layout: its GPUs, and the share of the requests that it serves in time."""
    found = {}
    for pools, gpus in candidates(search.layout, search.gpus):
        fleet = parse("+".join(pool.text for pool in pools), block=search.block, cost=search.cost)
        run = simulate(search.requests, fleet, components.router(search.policy), **search.options)
        found[pools] = gpus, run.attainment(search.slo)
    return found


def monotone(found: Attained, wanted: float) -> bool:
    """Whether one more replica never makes a layout miss what it met."""
    for pools, (_, share) in found.items():
        for at, pool in enumerate(pools):
            more = found.get((*pools[:at], pool._replace(size=pool.size + 1), *pools[at + 1 :]))
            if more is not None and share >= wanted > more[1]:
                return False
    return True
