"""`assay compare ROOM`: a room's components side by side on the user's own input.

A room fills this hook with a module `compare.py` that holds a click command named `command`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from assay.record.errors import BadInput
from assay.record.types import ROOMS

_PACKAGE = Path(__file__).parents[1]


class Rooms(click.Group):
    """The rooms that can compare, each with options of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Rooms with a comparison."""
        return [room for room in ROOMS if (_PACKAGE / room / "compare.py").is_file()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the room's comparison."""
        ready = self.list_commands(ctx)
        if name in ready:
            found: click.Command = importlib.import_module(f"assay.{name}.compare").command
            return found
        if name in ROOMS:
            raise BadInput(f"the room '{name}' has no comparison yet; these have one: {', '.join(ready)}")
        raise BadInput(f"'{name}' is no room; the rooms are {', '.join(ROOMS)}")


@click.group(cls=Rooms, epilog="Example:  assay compare kernels --cloud scan.ply -k 4096")
def command() -> None:
    """A room's components side by side on your own input."""
