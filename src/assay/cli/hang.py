"""`assay hang`: which rank a hung job waits for, from the Flight Recorder dumps of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table

if TYPE_CHECKING:
    from assay.observe.ccl.dumps import Finding
    from assay.workloads.flight_recorder import Dumps

SHOWN = 8  # ranks of a list before it is cut


@click.command(epilog="Example:  assay hang examples/dumps    (files such as nccl_trace_rank_0, … or rank_0.json)")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Name the ranks to look at, from a DIR with one Flight Recorder dump a rank: pickle or JSON, nothing is executed.

    Torch writes the dumps when its watchdog fires (TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1), or a
    program asks for them. They tell who did not call a collective and who called another one; what they cannot tell
    is said.

    Exit code 0: nothing hangs and nobody is late; 1: something does; 2: the input is wrong.
    """
    from assay.observe.ccl import dumps as ccl_dumps
    from assay.workloads import flight_recorder

    with progress_bar("reading dumps") as progress:
        dumps = flight_recorder.read(folder, progress)
    found = ccl_dumps.diagnose(dumps)
    if as_json:
        print_json({
            "ranks": len(dumps.ranks), "healthy": all(finding.healthy for finding in found),
            "repairs": dict(dumps.repairs), "groups": [_row(finding) for finding in found],
        })  # fmt: skip
    else:
        _print(dumps, found)
    raise click.exceptions.Exit(0 if all(finding.healthy for finding in found) else 1)


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "group": finding.group,
        "description": finding.description,
        "class": finding.diagnosis.label or None,
        "operation": finding.operation,
        "kind": finding.kind,
        "called_at": finding.where,
        "members": finding.members,
        "waiting": finding.waiting,
        "suspects": [
            {"rank": int(s.entity), "class": s.label, "what": s.indicator, "meaning": s.next}
            for s in finding.diagnosis.suspects
        ],
        "undecided": finding.undecided,
        "behind_group": finding.behind,
        "why": finding.diagnosis.why,
        "healthy": finding.healthy,
    }


def _print(dumps: Dumps, found: list[Finding]) -> None:
    from rich.text import Text

    for what, count in dumps.repairs.items():
        click.echo(f"mended: {what} ({count:,})")
    table = quiet_table()
    for name in ("group", "collective", "ranks inside", "class"):
        table.add_column(name, no_wrap=name != "collective")
    table.add_column("look at", ratio=1, overflow="fold")
    for finding in found:
        colour = "green" if finding.healthy else "yellow" if finding.behind or not finding.diagnosis.suspects else "red"
        name = f"{finding.group} {finding.description}".strip()
        operation = f"#{finding.operation} {finding.kind}" if finding.operation is not None else "–"
        label = finding.diagnosis.label or ("–" if finding.healthy else "?")
        table.add_row(Text(name), Text(operation), _ranks(finding.waiting), Text(label, style=colour), _advice(finding))
    console().print(table)
    if undecided := sorted({label for finding in found for label in finding.undecided}):
        from assay.observe.ccl.locate import MEANING

        click.echo("\nnot decidable from dumps, which hold no Send and Recv counts:")
        for label in undecided:
            click.echo(f"  {label}  {MEANING[label]}")


def _advice(finding: Finding) -> Any:
    from rich.text import Text

    if finding.healthy:
        return Text("nothing hangs")
    suspects = finding.diagnosis.suspects
    if not suspects:
        return Text(finding.diagnosis.why or f"ranks {_ranks(finding.waiting)} wait")
    what = "; ".join(f"rank {s.entity}: {_what(s.indicator, s.label, finding)}" for s in suspects[:SHOWN])
    more = f"; and {len(suspects) - SHOWN} more" if len(suspects) > SHOWN else ""
    text = Text(what + more)
    if finding.behind is not None:
        text.append(f"  (waits itself in group {finding.behind}: look there first)")
    if finding.where:
        text.append(f"\nthe others call from {finding.where}", style="bright_black")
    return text


def _what(indicator: str | None, label: str, finding: Finding) -> str:
    if label == "H1":
        return "has not called it"
    if label == "H2":
        return f"called {indicator}"
    if label == "S1":
        return "comes late"
    return "left no dump: dead, or frozen before it could write" if label == "no dump" else str(indicator)


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks for a person: 0-2, 5."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if run[-1] > run[0] else str(run[0]) for run in runs]
    return ", ".join(words[:SHOWN]) + (", …" if len(words) > SHOWN else "") if words else "–"
