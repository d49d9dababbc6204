"""SIGHUP: the settings are read again, and all that can change while requests run does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from assay.live import keys
from assay.live.access_log import AccessLog
from assay.live.gateway import new_canary, priced
from assay.live.origins import Origins
from assay.live.settings import Settings
from assay.live.shadow import Shadow
from assay.record.errors import AssayError, BadInput
from assay.serving.engine import components

if TYPE_CHECKING:
    from assay.live.gateway import Gateway
    from assay.live.serve import Running

# What a socket, the index or a thread was made with.
RESTART = ("host", "port", "tls_cert", "tls_key", "engine_ca", "tokenizer", "block", "otel", "budgets")


def renew(running: Running, reread: Callable[[], Settings]) -> None:
    """Do as the settings say now; where one of them cannot be, nothing changes. Either is told on standard error."""
    try:
        told = apply(running, reread())
    except AssayError as error:  # not to standard output: the access log may go there
        told = f"{error}; the settings stay as they are"
    print(f"assay: {told}", file=sys.stderr, flush=True)


def apply(running: Running, new: Settings) -> str:
    """Change what can be changed; BadInput before anything did where something cannot be. What it says to the user."""
    gateway = running.gateway
    old = gateway.settings
    router, order, shadow = _components(gateway, old, new)
    canary = gateway.canary
    if _other(old.canary, new.canary) or _other(old.policy, new.policy):  # a new comparison begins
        canary = new_canary(new)
    found = keys.read(new.key, priced(new))
    log = AccessLog(new.log)  # a file that was moved away is left to whoever moved it
    gateway.roster.check(new.engine)
    gateway.roster.check_sources(new.discover)
    changed = [name for name in Settings.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    stay = [name for name in changed if name in RESTART]
    gateway.settings = msgspec.structs.replace(new, **{name: getattr(old, name) for name in stay})
    log.follow(gateway.log)
    gateway.keys, gateway.origins, gateway.log = found, Origins(new.origins) if new.origins else None, log
    gateway.quotas.renew(found, new.price, gateway.now())
    gateway.canary, gateway.aliases = canary, {model.name: model for model in new.model}
    gateway.index.capacity, gateway.index.ttl = new.blocks, new.ttl
    running.server.limits = replace(new.limits, connections=running.server.affordable(new.connections))
    if shadow is not gateway.shadow:
        gateway.shadow = shadow
        if shadow is not None:
            for engine in gateway.fleet.engines:
                shadow.add(engine, None)
    gateway.roster.renew(new.engine)
    gateway.roster.discover(new.discover)
    gateway.placing.renew(router, order, new)
    done = [name for name in changed if name not in RESTART]
    what = ", ".join(done) if done else "nothing"
    return f"settings read again; changed: {what}" + (f"; needs a restart: {', '.join(stay)}" if stay else "")


def _components(gateway: Gateway, old: Settings, new: Settings) -> tuple[Any, Any, Shadow | None]:
    """Fresh ones where the settings name others, or a file, which may say something else now."""
    placing = gateway.placing
    router = components.router(new.policy) if _other(old.policy, new.policy) else placing.router
    order = placing.order
    if _other(old.order, new.order):
        order = components.order(new.order) if new.order else None
    shadow = gateway.shadow
    if _other(old.shadow, new.shadow):
        shadow = Shadow(components.router(new.shadow), new) if new.shadow else None
    for name, part in ((new.policy, router), (new.shadow, shadow.router if shadow else None)):
        if part is not None and components.missing(part, gateway.fleet):
            raise BadInput(f"policy '{name}' wants the engines' step times, which their [[engine]] does not say")
    return router, order, shadow


def _other(old: str, new: str) -> bool:
    return old != new or ":" in new
