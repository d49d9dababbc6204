"""Find a component by name: a baseline's key, a paper's key, or `package.module:Class` of the user's own."""

from __future__ import annotations

import inspect
from typing import Any

from assay.record import catalogue
from assay.record.errors import BadInput
from assay.serving.baselines.routers import BASELINES
from assay.serving.interface import Fleet
from assay.sim import own_code


def router(name: str, seed: int | None = None) -> Any:
    """A fresh router; one that draws does so by the `seed`, where it takes one.

    >>> router("vllm-v1")
    VllmV1()
    """
    if ":" in name:
        return own(name, ("route", "assign"), seed)
    if name in BASELINES:
        return BASELINES[name](**_seeded(BASELINES[name], seed))
    papers = catalogue.offering("router", "serving")
    if name in papers:
        return catalogue.component("router", name)
    known = ", ".join(sorted([*BASELINES, *papers]))
    raise BadInput(f"unknown policy '{name}'; there are {known}, or your own as package.module:Class or file.py:Class")


def order(name: str) -> Any:
    """A fresh order of admission.

    >>> order("driftsched").policy
    'sjf'
    """
    from assay.serving.baselines.orders import ORDERS

    if ":" in name:
        return own(name, ("key",))
    if name in ORDERS:
        return ORDERS[name]()
    papers = catalogue.offering("order", "serving")
    if name in papers:
        return catalogue.component("order", name)
    known = ", ".join([*ORDERS, *papers])
    raise BadInput(f"unknown order '{name}'; there are {known}, or your own as package.module:Class")


def missing(router: Any, fleet: Fleet) -> list[str]:
    """What a router needs (it says so in `needs`) and the fleet cannot tell it.

    >>> from assay.serving.interface import Cacheless
    >>> missing(router("predicted-ttft"), Cacheless()), missing(router("lmetric"), Cacheless())
    (['costs'], [])
    """
    return [name for name in getattr(router, "needs", ()) if not len(getattr(fleet, name, ()))]


def made_for_lockstep() -> list[str]:
    """Papers' routers for workers that step together; such a class says `lockstep = True`.

    >>> made_for_lockstep()
    ['balanceroute']
    """
    papers = catalogue.offering("router", "serving")
    return [name for name in papers if getattr(catalogue.component("router", name), "lockstep", False)]


def _seeded(kind: Any, seed: int | None) -> dict[str, int]:
    """The seed as an argument, where there is one and what is made takes it."""
    try:
        takes = seed is not None and "seed" in inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return {}
    return {"seed": seed} if takes and seed is not None else {}


def own(name: str, methods: tuple[str, ...], seed: int | None = None) -> Any:
    """An object of the user's class, imported from where the user stands."""
    kind = own_code.load(name)
    try:
        made = kind(**_seeded(kind, seed))
    except Exception as error:
        raise BadInput(f"cannot make '{name}': {type(error).__name__}: {error}") from error
    if not any(callable(getattr(made, method, None)) for method in methods):
        raise BadInput(f"'{name}' needs a method {' or '.join(methods)}; see assay.serving.interface")
    return made
