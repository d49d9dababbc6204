"""`assay verify`: prove a threshold automaton safe for every number of processes, or show how it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record.wording import number

if TYPE_CHECKING:
    from assay.protocols.automata.automaton import Automaton
    from assay.protocols.automata.verify import Finding

ALGORITHMS = ("smt", "acs", "zcs", "explicit")
COLOURS = {"proved": "green", "checked": "green", "violated": "red", "unknown": "yellow", "unsupported": "bright_black"}


@click.command(
    epilog="Example:  assay verify examples/broadcast.ta    then    "
    "assay verify examples/broadcast.ta --weaken 'n >= 3*t'    for what needs it"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--spec", "specifications", multiple=True, help="Only this specification; may be given more than once.")
@click.option(
    "--algorithm", type=click.Choice(["auto", *ALGORITHMS, "all"]), default="auto", show_default=True,
    help="auto: the one that can decide; smt: one formula; acs: backward from the goal; zcs: empty or not; "
    "explicit: all runs at fixed parameters.",
)  # fmt: skip
@click.option("--weaken", multiple=True, metavar="CONDITION", help='Replace an assumption, e.g. "n >= 3*t".')
@click.option("--parameters", metavar="N=4,T=1", help="For explicit: the one size to search.  [all small ones]")
@click.option("--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="For all answers.")
@json_option
def command(
    file: Path, specifications: tuple[str, ...], algorithm: str, weaken: tuple[str, ...], parameters: str | None,
    seconds: float, as_json: bool,
) -> None:  # fmt: skip
    """Check the specifications of a threshold automaton FILE (.ta or .eta) for all parameters it admits.

    Division is that of whole numbers, rounded down: 7 / 2 is 3. Answers are printed as they come.

    Exit code 0: every specification is proved (explicit: not violated at the sizes searched); 1: one is violated,
    unknown or unsupported; 2: the file or an option cannot be used.
    """
    from assay.protocols.automata import automaton as automata
    from assay.protocols.automata import parser
    from assay.protocols.automata.verify import verify
    from assay.record.errors import BadInput
    from assay.record.extras import missing_module

    if parameters is not None and algorithm not in ("explicit", "all"):
        raise BadInput("--parameters fixes the size for '--algorithm explicit'; the others answer for all sizes")
    automaton = parser.read(file)
    for text in weaken:
        automaton = automata.weaken(automaton, parser.condition(text, automaton))
    chosen = ALGORITHMS if algorithm == "all" else (algorithm,)
    size = None if parameters is None else _parameters(parameters)
    found: list[Finding] = []
    try:
        answers = verify(automaton, specifications=specifications, algorithms=chosen, parameters=size, seconds=seconds)
        shown = Lines(specifications or tuple(automaton.specifications))
        for finding in answers:
            found.append(finding)
            if not as_json:
                shown.show(finding)
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("assay verify", error)) from None
    if as_json:
        print_json({"file": str(file), "automaton": _facts(automaton), "findings": [_row(f, automaton) for f in found]})
    else:
        _print_runs(found, automaton)
    raise SystemExit(_exit_code(found))


def _parameters(text: str) -> dict[str, int]:
    from assay.record.errors import BadInput

    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name or not value.isdecimal() or len(value) > 6 or name in found:
            raise BadInput(f"--parameters '{part}': expected NAME=NUMBER, each name once, as in N=4,T=1,F=1")
        found[name] = int(value)
    return found


def _exit_code(found: list[Finding]) -> int:
    """0 where every specification has a proof, or nothing but a search was asked for and it found nothing."""
    by_name: dict[str, set[str]] = {}
    for finding in found:
        by_name.setdefault(finding.specification, set()).add(finding.verdict.value)
    return 0 if by_name and all(_settled(verdicts) for verdicts in by_name.values()) else 1


def _settled(verdicts: set[str]) -> bool:
    return verdicts == {"checked"} or ("proved" in verdicts and "violated" not in verdicts)


def _facts(automaton: Automaton) -> dict[str, Any]:
    return {
        "name": automaton.name,
        "locations": len(automaton.locations),
        "rules": len({rule.name for rule in automaton.rules}),
        "shared": list(automaton.shared),
        "assumptions": [" or ".join(" and ".join(map(str, case)) for case in cases) for cases in automaton.assumptions],
    }


def _row(finding: Finding, automaton: Automaton) -> dict[str, Any]:
    run = finding.counterexample
    shown = None if run is None else {"parameters": run.parameters, "steps": run.rows(automaton)}
    return {
        "specification": finding.specification,
        "kind": finding.kind,
        "verdict": finding.verdict.value,
        "algorithm": finding.algorithm,
        "seconds": finding.seconds,
        "note": finding.note,
        "counterexample": shown,
    }


class Lines:
    """A table that is printed line by line: its widths are known before its last row."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.widths = (max(map(len, ("specification", *names))), 8, 11, 9, 7)
        self.begun = False

    def show(self, finding: Finding) -> None:
        """One row; the head goes before the first."""
        if not self.begun:
            self._row(("specification", "kind", "verdict", "algorithm", "seconds", "note"), "bold")
            self.begun = True
        seconds = "–" if finding.algorithm == "–" else f"{finding.seconds:.2f}"
        cells = (finding.specification, finding.kind, finding.verdict.value, finding.algorithm, seconds, finding.note)
        self._row(cells, COLOURS[finding.verdict.value])

    def _row(self, cells: tuple[str, ...], style: str) -> None:
        from rich.text import Text

        *fitted, note = cells
        line = Text()
        for place, (cell, width) in enumerate(zip(fitted, self.widths, strict=True)):
            padded = cell.rjust(width) if place == 4 else cell.ljust(width)
            line.append(f"{padded}  ", style if place == 2 or style == "bold" else "")
        line.append(note, "bold" if style == "bold" else "")
        console().print(line, soft_wrap=True)


def _print_runs(found: list[Finding], automaton: Automaton) -> None:
    for finding in found:
        if finding.counterexample is not None:
            _draw(finding, automaton)


def _draw(finding: Finding, automaton: Automaton) -> None:
    run = finding.counterexample
    assert run is not None
    listed = ", ".join(f"{name} = {value}" for name, value in run.parameters.items())
    console().print(f"\n{finding.specification} is violated at {listed} ({finding.algorithm}, replayed):")
    table = quiet_table()
    for name in ("rule", "move"):
        table.add_column(name, no_wrap=True)
    table.add_column("times", justify="right")
    places = [name for name in automaton.locations if any(now.values[name] for now in run.trail)]
    for name in (*places, *automaton.shared):
        table.add_column(name, justify="right")
    for row, now in zip(run.rows(automaton), run.trail, strict=True):
        counts = [number(now.values[name]) for name in (*places, *automaton.shared)]
        table.add_row(str(row["rule"]), str(row["move"]), str(row["times"] or ""), *counts)
    console().print(table)
