"""`assay plan ROOM`: what to set before anything runs, for the user's own model and machines.

The command is `command` in the room's `commands/plan.py`; its answer is printed as a comparison's is.
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
    """The rooms that plan, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Rooms with a plan of their own."""
        return [room for room in ROOMS if "plan" in catalogue.verbs(room)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With a line each."""
        rows = [(room, _load(room).get_short_help_str(90)) for room in self.list_commands(ctx)]
        with formatter.section("Rooms"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the room's command."""
        return printing(_load(name)) if name in self.list_commands(ctx) else None


def _load(room: str) -> click.Command:
    try:
        found: click.Command = importlib.import_module(f"assay.{room}.commands.plan").command
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("plan", error)) from error
    return found


@click.group(cls=Plans, epilog="Example:  assay plan training --model llama-3-8b --cluster 64xh100:ib400")
def command() -> None:
    """What to set before anything runs: layouts, sizes, schedules."""
