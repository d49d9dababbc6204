"""`assay doctor`: what this machine can run."""

from __future__ import annotations

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record.doctor import cures, examine


@click.command(epilog="Example:  assay doctor --json")
@json_option
def command(as_json: bool) -> None:
    """Python, extras, cores, memory, GPU, Ray, traces: what is here, what is missing and how to get it."""
    findings = examine()
    if as_json:
        print_json(findings)
        return
    from rich.text import Text

    table = quiet_table()
    for name in ("", "what", "found", "enables"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        sign = Text("✓", style="green") if finding.ok else Text("–", style="yellow")
        table.add_row(sign, finding.name, Text(finding.found), finding.enables)
    screen = console()
    screen.print(table)
    for what, cure in cures(findings).items():
        screen.print(Text.assemble((f"\n{what}: ", "bold"), cure), soft_wrap=True)
