"""The options of a comparison as a form shows them, read off the click command that the command line has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec

# What writes files, or asks other machines: the page gives tables and pictures itself.
LEFT_OUT = {"plot", "timeline", "out", "json", "wide", "bootstrap", "convert"}
_FILES = re.compile(r"\b(files?|traces?|toml|json|jsonl|csv|folder|requests|input)\b", re.IGNORECASE)
CODE = "policy"  # where serving takes a router of one's own: the editor fills it


class Option(msgspec.Struct, frozen=True):
    """One field of a form."""

    name: str  # rate
    word: str  # as on the command line: --rate; nothing for an argument
    kind: str  # file, text (or a file), word, choice, number, flag; or of the serving room fleet, rate, slo, several
    help: str = ""
    default: list[str] = []
    choices: list[str] = []
    more: dict[str, list[str]] = {}  # lists of a field's parts
    multiple: bool = False
    required: bool = False
    low: float | None = None
    high: float | None = None
    whole: bool = False


def described(name: str, command: click.Command) -> Iterator[Option]:
    """The fields of a comparison's form."""
    special = _serving() if command.callback and command.callback.__module__ == "assay.serving.compare" else {}
    for param in command.params:
        if isinstance(param, click.Argument):
            yield Option(param.name or "", "", "file", multiple=param.nargs == -1, required=True)
        if not isinstance(param, click.Option):
            continue
        found = _option(param)
        if found.name in LEFT_OUT or (special and found.name == CODE):
            continue
        kind, choices, more = special.get(found.name, (found.kind, found.choices, {}))
        yield msgspec.structs.replace(found, kind=kind, choices=choices, more=more)


def _option(param: click.Option) -> Option:
    word = max(param.opts, key=len)
    kind, choices, low, high = "text" if _FILES.search(f"{param.name} {param.help}") else "word", [], None, None
    if param.is_flag:
        kind = "flag"
    elif isinstance(param.type, click.Path | click.File):
        kind = "file"
    elif isinstance(param.type, click.Choice):
        kind, choices = "choice", [str(choice) for choice in param.type.choices]
    elif isinstance(param.type, click.types.IntRange | click.types.FloatRange):
        kind, low, high = "number", param.type.min, param.type.max
    elif param.type in (click.INT, click.FLOAT):
        kind = "number"
    whole = param.type is click.INT or isinstance(param.type, click.types.IntRange)
    return Option(
        word.lstrip("-"), word, kind, param.help or "", _default(param), choices, {}, param.multiple,
        param.required, low, high, whole,
    )  # fmt: skip


def _default(param: click.Option) -> list[str]:
    value: Any = param.default
    if value is None or callable(value) or type(value).__name__ == "Sentinel":
        return []
    if param.is_flag:
        return ["1"] if value else []
    return [str(one) for one in (value if isinstance(value, list | tuple) else [value])]


def _serving() -> dict[str, tuple[str, list[str], dict[str, list[str]]]]:
    """What the serving room's form offers as lists and sliders."""
    from assay.record import catalogue
    from assay.serving.baselines.orders import ORDERS
    from assay.serving.baselines.routers import BASELINES
    from assay.serving.compare import DEFAULT
    from assay.sim.hardware import devices
    from assay.sim.models import models

    usual = DEFAULT.split(",")
    others = {*BASELINES, *catalogue.offering("router", "serving")} - set(usual)
    routers = [*usual, *sorted(others)]
    parts = {"gpu": [device.name for device in devices()], "model": [model.name for model in models()]}
    orders = [*ORDERS, *catalogue.offering("order", "serving")]
    return {
        "trace": ("trace", ["agents", "chat"], {}),
        "fleet": ("fleet", [], parts),
        "policies": ("several", routers, {}),
        "rate": ("rate", [], {}),
        "slo": ("slo", [], {}),
        "order": ("choice", orders, {}),
    }
