"""`assay data VERB`: the data room's tools on your own files and stores.

A verb is a module in a folder `commands/` of the room or of one of its papers, and holds a click command (or a group)
named `command`. It returns its answer: facts by name, perhaps a `table` (a list of rows), `why`, a sentence or two, and
`fails` where what was checked does not hold. Printing it happens here. `click.get_current_context().obj` is a
`Progress` it may call. Groups of one name, from several papers, are one group.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import click

from assay.cli.output import console, plain_table, print_json, print_whole, progress_bar
from assay.record import catalogue
from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module
from assay.record.wording import number


class Verbs(click.Group):
    """The room's verbs and its papers', each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """By name."""
        return sorted(catalogue.verbs("data"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With the line that each module begins with, read and not imported."""
        found = catalogue.verbs("data")
        with formatter.section("Verbs"):
            lines = {name: [_line(module).rstrip(".") for module in modules] for name, modules in found.items()}
            formatter.write_dl([(name, "; ".join(lines[name]) + ".") for name in sorted(found)])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the verb."""
        return verb(name) if name in catalogue.verbs("data") else None


def verb(name: str) -> click.Command:
    """A verb, imported, that prints its answer."""
    return _printing(_one([_load(module, name) for module in catalogue.verbs("data")[name]], name), name)


def _load(module: str, name: str) -> click.Command | BadInput:
    """A verb, or what its paper lacks here: then the others' subcommands still work."""
    try:
        found: click.Command = importlib.import_module(module).command
    except ModuleNotFoundError as error:
        return BadInput(missing_module(f"assay data {name}", error))
    return found


def _one(brought: list[click.Command | BadInput], name: str) -> click.Command:
    """The verb; where several papers bring it, a group of all their subcommands."""
    found = [command for command in brought if isinstance(command, click.Command)]
    lacks = [error for error in brought if isinstance(error, BadInput)]
    if not found:
        raise lacks[0]
    if len(brought) == 1:
        return found[0]
    inside: dict[str, click.Command] = {}
    for group in found:
        if not isinstance(group, click.Group) or set(inside) & set(group.commands):
            raise TypeError(f"several modules bring 'assay data {name}'; groups without a common subcommand expected")
        inside |= group.commands
    hints = [f"More with what is missing: {error}" for error in lacks]
    help_ = "\n\n".join([*dict.fromkeys(group.help or "" for group in found), *hints])
    return click.Group(name, commands=inside, help=help_, epilog=found[0].epilog)


def _line(module: str) -> str:
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return said.partition("\n")[0].partition(": ")[2]


def _printing(command: click.Command, name: str) -> click.Command:
    """The verb, or each verb of a group, with --json, and its answer printed."""
    if isinstance(command, click.Group):
        inside = {verb: _printing(one, f"{name} {verb}") for verb, one in command.commands.items()}
        return click.Group(name, commands=inside, help=command.help, epilog=command.epilog)
    answer_of = command.callback
    assert answer_of is not None

    def show(as_json: bool, **options: Any) -> None:
        context = click.get_current_context()
        with progress_bar(name) as context.obj:
            try:
                answer = answer_of(**options)
            except OSError as error:
                raise unreadable(error.filename, error) from error
        fails = bool(answer.pop("fails", False))
        print_json(answer) if as_json else _print(answer)
        if fails:
            raise click.exceptions.Exit(1)

    flag = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for machines instead.")
    return click.Command(
        command.name, callback=show, params=[*command.params, flag], help=command.help, epilog=command.epilog
    )


def _print(answer: dict[str, Any]) -> None:
    from rich.text import Text

    screen = console()
    for name, facts in answer.items():
        if isinstance(facts, dict):
            told = {fact: value for fact, value in facts.items() if value not in ("", None)}
            listed = ", ".join(f"{fact.replace('_', ' ')} {number(value)}" for fact, value in told.items())
            screen.print(Text.assemble((f"{name}: ", "bold"), listed), soft_wrap=True)
    if rows := answer.get("table"):
        screen.print()
        print_whole(plain_table(rows, list(rows[0])))
    if "why" in answer:
        screen.print(Text(f"\n{answer['why']}"), soft_wrap=True)


@click.group(cls=Verbs, epilog="Example:  assay data crash append-log --ops 50")
def command() -> None:
    """Checkpoints, object stores and the rest of the data room, on your own files."""
