"""`assay calibrate`: what an iteration of your engines costs, from a gateway's log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record.wording import number

if TYPE_CHECKING:
    from assay.live.calibrate import Calibration


@click.command(
    epilog="Example:  assay calibrate examples/gateway.jsonl --out mine.toml    then    "
    "assay compare serving --trace examples/gateway.jsonl --fleet 4xfitted:mine.toml"
)
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the cost to this TOML file, for --fleet.")
@click.option("--engine", help="Use only what went to this engine, as the log names it (default: all, as if alike).")
@click.option(
    "--kv-tokens", type=click.IntRange(1), help="Tokens of KV that an engine has room for (it says so at its start)."
)
@json_option
def command(log: Path, out: Path | None, engine: str | None, kv_tokens: int | None, as_json: bool) -> None:
    """Fit the step time of the engines behind 'assay gateway' to its LOG.

    The result names a fleet: simulate your own engines, with other policies, sizes and loads, without their GPUs.
    """
    from assay.live import calibrate
    from assay.record.errors import BadInput
    from assay.record.store import write_whole
    from assay.sim import cost_file

    lines = calibrate.read(log)
    if engine is not None:
        names = sorted({line.engine for line in lines if line.engine})
        if engine not in names:
            raise BadInput(f"no engine '{engine}' in {log}; there are {', '.join(names) or 'none'}")
        lines = [line for line in lines if line.engine == engine]
    found = calibrate.fit(lines, kv_tokens=kv_tokens or 0)
    text = cost_file.text(found.cost)
    if out is not None:
        write_whole(out, text.encode())
    if as_json:
        told = {name: value for name, value in asdict(found).items() if name != "cost"}
        print_json({"formula": found.formula, **told, "cost": cost_file.table(found.cost)})
    else:
        _print(found, out)


def _print(found: Calibration, out: Path | None) -> None:
    from rich.text import Text

    table = quiet_table()
    table.add_column("")
    table.add_column("", overflow="fold")
    low, high = (number(round(value, 1)) for value in found.batch)
    short, long = (number(round(value)) for value in found.prompts)
    rows = [
        ("iteration", found.formula),
        ("from", f"{number(found.requests)} requests on {found.engines} engines: gaps of {number(found.gaps)} answers"
         f" in batches of {low} to {high}, {number(found.firsts)} first tokens of {short} to {long} prompt tokens"),
        ("held back", f"gaps are predicted to {found.itl_error:.1%}, times to first token to {found.ttft_error:.1%}"
         " (median error; half an iteration of waiting is chance)"),
    ]  # fmt: skip
    rows += [("note", note) for note in found.notes]
    for name, value in rows:
        table.add_row(name, Text(value))
    console().print(table)
    # A line of its own, never wrapped: it is there to be copied.
    click.echo(f"next: assay compare serving --trace … --fleet 4xfitted:{out}" if out else "--out FILE keeps it")
