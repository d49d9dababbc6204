"""`assay compare ROOM`: a room's components side by side on the user's own input.

A room fills this hook with a module `compare.py` that holds a click command named `command`. The command has the
room's own options and returns its answer: facts about the input by name, a `table` (a list of rows) and `why`, who
wins in a sentence or two. Printing it, as tables or JSON, happens here; `shown` names the columns that people get to
see where there are more than fit. `click.get_current_context().obj` is a
`Progress` the room may call.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from assay.cli.output import console, print_json, progress_bar, quiet_table
from assay.record import sources, store
from assay.record.errors import BadInput
from assay.record.types import ROOMS
from assay.record.wording import number

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
            sources.share_compiled(store.home())
            return _printing(importlib.import_module(f"assay.{name}.compare").command)
        if name in ROOMS:
            raise BadInput(f"the room '{name}' has no comparison yet; these have one: {', '.join(ready)}")
        raise BadInput(f"'{name}' is no room; the rooms are {', '.join(ROOMS)}")


def _printing(command: click.Command) -> click.Command:
    """The room's command, with --json, whose answer is printed."""
    answer_of = command.callback
    assert answer_of is not None

    def show(as_json: bool, **options: Any) -> None:
        context = click.get_current_context()
        with progress_bar(f"compare {command.name}") as context.obj:
            try:
                answer = answer_of(**options)
            except ValueError as error:
                raise BadInput(str(error)) from error
            except OSError as error:
                raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error
        shown = answer.pop("shown", None)
        print_json(answer) if as_json else _print(answer, shown or list(next(iter(answer["table"]), {})))

    json_flag = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for machines instead.")
    return click.Command(
        command.name, callback=show, params=[*command.params, json_flag], help=command.help, epilog=command.epilog
    )


def _print(answer: dict[str, Any], columns: list[str]) -> None:
    from rich.text import Text

    screen = console()
    for name, facts in answer.items():
        if isinstance(facts, dict):
            listed = ", ".join(f"{fact.replace('_', ' ')} {number(value)}" for fact, value in facts.items())
            screen.print(Text.assemble((f"{name}: ", "bold"), listed))
    table = quiet_table()
    rows = answer["table"]
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(number(row[column]) for column in columns))
    screen.print()
    screen.print(table)
    screen.print(Text(f"\n{answer['why']}"))


@click.group(cls=Rooms, epilog="Example:  assay compare kernels --cloud scan.ply -k 4096")
def command() -> None:
    """A room's components side by side on your own input."""
