"""`assay compare ROOM` and `assay compare KEY`: components side by side on the user's own input.

A room, or a paper that is a folder, fills this hook with a module `compare.py` that holds a click command named
`command`. The command has options of its own and returns its answer: facts about the input by name, a `table` (a list
of rows) and `why`, who wins in a sentence or two; a modelled answer also `trust`, how far off the model is. Printing
it, as tables or JSON, happens here; `shown` names the columns that people get to see without `--wide`, else it is the
first six; `apart` those that are told elsewhere, not in the table; `units` the units of columns and facts by name;
`pictures` functions that draw Altair charts, by name, for who can show them; `fails`, where the answer is a check that
was not passed, says so in one line, which ends the command with code 1.
Other lists of rows are tables of their own; a list of whole answers is printed one after the other, before the table
over all. `click.get_current_context().obj` is a `Progress` it may call.

The name of a room without a comparison of its own stands for its papers': `--job VERB` names the one that brings this
verb of the room (`assay data dedup`, `--job dedup`), else the options that are given decide which. A paper without one
that offers a component of its room is compared by the room's command; `beside(kind, key)` of the room's `compare.py`
says with which defaults.
"""

from __future__ import annotations

from typing import Any

import click

from assay.cli.output import console, plain_table, print_json, print_whole, progress_bar
from assay.record import catalogue
from assay.record.comparisons import found, has_own, load
from assay.record.errors import AssayError, BadInput, unreadable
from assay.record.headline import COLUMNS
from assay.record.types import ROOMS
from assay.record.wording import number


class Comparisons(click.Group):
    """What can be compared: rooms, and papers by key, each with options of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Rooms with a comparison, then the papers that bring one."""
        rooms = [room for room in ROOMS if has_own(room) or catalogue.comparisons(room)]
        return [*rooms, *(key for room in ROOMS for key in catalogue.comparisons(room))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The same with a line each, without importing any of them."""
        rows = [(name, _line(name)) for name in self.list_commands(ctx)]
        with formatter.section("Rooms and papers"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A room that leaves comparing to its papers: the one that takes the options given."""
        if args[0] in ROOMS and not has_own(args[0]) and not {"--help", "-h"} & set(args):
            job, rest = _job(args[1:])
            args = [_doing(args[0], job) if job else _taking(args[0], rest), *rest]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the comparison of a room or a paper."""
        return _overview(name) if name in ROOMS and not has_own(name) else printing(found(name))


def _line(name: str) -> str:
    if name not in ROOMS:
        return catalogue.paper(name).line
    return "one question of the whole room" if has_own(name) else "whichever of its papers takes the options given"


def _papers(room: str) -> dict[str, click.Command]:
    found = {key: load(module) for key, module in catalogue.comparisons(room).items()}
    if not found:
        ready = [other for other in ROOMS if has_own(other) or catalogue.comparisons(other)]
        raise BadInput(f"the room '{room}' has no comparison yet; these have one: {', '.join(ready)}")
    return found


def _job(args: list[str]) -> tuple[str | None, list[str]]:
    """The value of `--job`, and the other arguments."""
    for place, arg in enumerate(args):
        if arg.startswith("--job="):
            return arg.removeprefix("--job="), args[:place] + args[place + 1 :]
        if arg == "--job" and place + 1 < len(args):
            return args[place + 1], args[:place] + args[place + 2 :]
    return None, args


def _doing(room: str, job: str) -> str:
    """The paper of the room that brings this verb and a comparison."""
    homes = {catalogue.paper(key).module: key for key in catalogue.comparisons(room)}
    jobs: dict[str, list[str]] = {}
    for verb, modules in catalogue.verbs(room).items():
        keys = [homes[home] for module in modules if (home := module.partition(".commands.")[0]) in homes]
        jobs |= {verb: keys} if keys else {}
    jobs |= {key: [key] for key in homes.values()}
    if job not in jobs:
        raise BadInput(f"no comparison of {room} does the job '{job}'; choose from {', '.join(jobs)}")
    if len(jobs[job]) > 1:
        raise BadInput(f"several comparisons of {room} do the job '{job}'; name one: --job {'|'.join(jobs[job])}")
    return jobs[job][0]


def _taking(room: str, args: list[str]) -> str:
    """The paper of the room whose comparison takes all the options given."""
    named = [arg.partition("=")[0] for arg in args if arg.startswith("-") and arg.strip("-")[:1].isalpha()]  # no -3
    given = {name for name in named if name not in ("--json", "--wide")}
    known = {key: {opt for param in command.params for opt in param.opts} for key, command in _papers(room).items()}
    fits = [key for key, options in known.items() if given <= options]
    if len(fits) == 1:
        return fits[0]
    cure = f"name one: assay compare {'|'.join(fits or known)}"
    if not fits:
        raise BadInput(f"no comparison of {room} takes {' and '.join(sorted(given))} together; {cure}")
    if not given:
        raise BadInput(f"{room} has several comparisons, each with an input of its own; {cure}")
    raise BadInput(f"several comparisons of {room} take {' and '.join(sorted(given))}; {cure}")


def _overview(room: str) -> click.Command:
    """The room's papers and the options of each, as help."""
    lines = []
    for key, command in _papers(room).items():
        options = " ".join(max(param.opts, key=len) for param in command.params)
        lines += [f"assay compare {key}: {command.help}", f"{options}"]
    return click.Command(
        room, help="\n\n".join(["--job VERB or the options that are given decide what is compared.", *lines])
    )


def printing(command: click.Command) -> click.Command:
    """The room's command, with --json, whose answer is printed."""
    answer_of = command.callback
    assert answer_of is not None

    def show(as_json: bool, wide: bool, **options: Any) -> None:
        context = click.get_current_context()
        with progress_bar(f"compare {command.name}") as context.obj:
            try:
                answer = answer_of(**options)
            except (ValueError, EOFError) as error:  # click would take the end of a file for Ctrl-D
                raise BadInput(str(error)) from error
            except OSError as error:
                raise unreadable(error.filename, error) from error
        print_json(_told(answer)) if as_json else _print(answer, wide)
        if answer.get("fails"):
            raise AssayError(answer["fails"])

    flags = [
        click.Option(["--wide"], is_flag=True, help="Show every column."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for machines instead."),
    ]
    params = [*command.params, *flags]
    return click.Command(command.name, callback=show, params=params, help=command.help, epilog=command.epilog)


_LAYOUT = ("shown", "apart", "pictures")  # how to print an answer, no part of it


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without what only says how to print it."""
    return {
        name: [_told(part) for part in value] if _holds_answers(value) else value
        for name, value in answer.items()
        if name not in _LAYOUT
    }


def _holds_answers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "table" in value[0]


def _print(answer: dict[str, Any], wide: bool) -> None:
    from rich.text import Text

    screen, units, lines = console(), answer.get("units", {}), answer.get("lines", ())
    for name, facts in answer.items():
        if isinstance(facts, dict) and name not in ("units", "pictures", *lines):
            _print_facts(name, facts, units)
    for part in next((value for value in answer.values() if _holds_answers(value)), []):
        screen.print()
        _print(part | {"units": units}, wide)
    _print_table(answer, units, wide)
    screen.print(Text(f"\n{answer['why']}"))
    if "trust" in answer:
        screen.print(Text(answer["trust"], style="yellow"))
    for name in lines:
        for told, line in answer[name].items():  # to be copied: as long as they are
            screen.print(Text.assemble("\n", (f"{told}:\n", "bold"), line), soft_wrap=True)


def _print_facts(name: str, facts: dict[str, Any], units: dict[str, str]) -> None:
    from rich.text import Text

    told = {fact: value for fact, value in facts.items() if value not in ("", None)}
    listed = ", ".join(
        f"{fact.replace('_', ' ')} {number(value)}" + (f" {units[fact]}" if _measured(value) and fact in units else "")
        for fact, value in told.items()
    )
    if listed:
        console().print(Text.assemble((f"{name}: ", "bold"), listed))


def _measured(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _print_table(answer: dict[str, Any], units: dict[str, str], wide: bool) -> None:
    from rich.text import Text

    screen, rows = console(), answer["table"]
    every = [name for name in next(iter(rows), {}) if name not in answer.get("apart", ())]
    columns = every if wide else answer.get("shown") or every[:COLUMNS]
    screen.print()
    print_whole(plain_table(rows, columns, units=units))
    if len(columns) < len(every):
        screen.print(Text(f"{len(every) - len(columns)} more columns: --wide", style="bright_black"))
    for name, more in answer.items():
        if name != "table" and isinstance(more, list) and more and isinstance(more[0], dict) and "table" not in more[0]:
            screen.print()
            print_whole(plain_table(more, list(more[0]), name, units))


@click.group(cls=Comparisons, epilog="Example:  assay compare radius-fps --cloud examples/scan.ply -k 4096")
def command() -> None:
    """Components side by side on your own input: of a room, or those that a paper brings."""
