"""`assay plan ROOM`: what to set before anything runs, for the user's own model and machines.

The command is `command` in the room's `commands/plan.py`; its answer is printed as a comparison's is. A paper that
plans something of its own brings `commands/plan_NAME.py`, which is `assay plan NAME`.
"""

from __future__ import annotations

import importlib

import click

from assay.cli.compare import printing
from assay.record import catalogue
from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.record.types import ROOMS


class Plans(click.Group):
    """The rooms that plan, and papers that plan something of their own, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of plans."""
        return list(_homes())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With a line each."""
        rows = [(name, _load(name).get_short_help_str(90)) for name in self.list_commands(ctx)]
        with formatter.section("Rooms"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command."""
        return printing(_load(name)) if name in _homes() else None


def _homes() -> dict[str, str]:
    """The module of each plan."""
    found = {}
    for room in ROOMS:
        for verb, modules in catalogue.verbs(room).items():
            if verb == "plan" or verb.startswith("plan-"):
                found[verb.removeprefix("plan").removeprefix("-") or room] = modules[0]
    return found


def _load(name: str) -> click.Command:
    try:
        found: click.Command = importlib.import_module(_homes()[name]).command
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("plan", error)) from error
    return found


@click.group(cls=Plans, epilog="Example:  assay plan training --model llama-3-8b --cluster 64xh100:ib400")
def command() -> None:
    """What to set before anything runs: layouts, sizes, schedules."""
