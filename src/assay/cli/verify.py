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
    epilog="Example:  assay verify strb.ta    then    assay verify strb.ta --weaken 'N >= 3*T'    for what needs it"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--spec", "specifications", multiple=True, help="Only this specification; may be given more than once.")
@click.option(
    "--algorithm", type=click.Choice([*ALGORITHMS, "all"]), default="smt", show_default=True,
    help="smt: one formula; acs: backward from the goal; zcs: empty or not; explicit: all runs at fixed parameters.",
)  # fmt: skip
@click.option("--weaken", multiple=True, metavar="CONDITION", help='Replace an assumption, e.g. "N >= 3*T".')
@click.option("--parameters", metavar="N=4,T=1", help="For explicit: the one size to search.  [all small ones]")
@click.option("--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="For one answer.")
@json_option
def command(
    file: Path, specifications: tuple[str, ...], algorithm: str, weaken: tuple[str, ...], parameters: str | None,
    seconds: float, as_json: bool,
) -> None:  # fmt: skip
    """Check the specifications of a threshold automaton FILE (.ta or .eta) for all parameters it admits.

    Exit code 0: what the algorithm takes is proved (explicit: not violated); 1: something is violated or unknown.
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
    try:
        found = list(
            verify(automaton, specifications=specifications, algorithms=chosen, parameters=size, seconds=seconds)
        )
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("assay verify", error)) from None
    if as_json:
        print_json({"file": str(file), "automaton": _facts(automaton), "findings": [_row(f, automaton) for f in found]})
    else:
        _print(found, automaton)
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
    verdicts = {finding.verdict.value for finding in found}
    return 1 if verdicts & {"violated", "unknown"} or not verdicts & {"proved", "checked"} else 0


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


def _print(found: list[Finding], automaton: Automaton) -> None:
    from rich.text import Text

    table = quiet_table()
    for name in ("specification", "kind", "verdict", "algorithm"):
        table.add_column(name, no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("note", overflow="fold")
    for finding in found:
        verdict = Text(finding.verdict.value, style=COLOURS[finding.verdict.value])
        seconds = "–" if finding.algorithm == "–" else f"{finding.seconds:.2f}"
        table.add_row(finding.specification, finding.kind, verdict, finding.algorithm, seconds, Text(finding.note))
    console().print(table)
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
