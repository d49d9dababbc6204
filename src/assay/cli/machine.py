"""`assay machine`: what this machine can do, measured once and kept."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.output import console, json_option, plain_table, print_json
from assay.record.wording import number


@click.command(epilog="Example:  assay machine --again    assay machine h200 --json")
@click.argument("name", default="here")
@click.option("--again", is_flag=True, help="Measure anew: some seconds, best on an idle machine.")
@click.option("--export", "out", type=click.Path(path_type=Path), help="Write the settings tuned here to this file.")
@click.option("--import", "source", type=click.Path(path_type=Path), help="Take over settings exported elsewhere.")
@json_option
def command(name: str, again: bool, out: Path | None, source: Path | None, as_json: bool) -> None:
    """Bandwidth, peaks, random reads and synchronisation of a machine: 'here', or 'h200' as it was measured there.

    Fractions of the limit in 'assay compare kernels' are shares of these.
    """
    from dataclasses import asdict

    from assay.kernels.engine import machine, tuning
    from assay.record.errors import BadInput
    from assay.record.store import write_whole

    if source is not None:
        try:
            taken = tuning.Tuning().read(source.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise BadInput(f"{source}: no text; assay machine --export writes such files") from None
        click.echo(f"{taken} settings taken over")
    if out is not None:
        write_whole(out, tuning.Tuning().export().encode())
    found = machine.here(again) if name == "here" else machine.named(name)
    if as_json:
        print_json(asdict(found))
        return
    gpu = 0 in found.bandwidth
    rows = [{"what": f"memory, {_threads(n)}", "rate": f"{number(v / 1e9)} GB/s"} for n, v in found.bandwidth.items()]
    rows += [{"what": f"matrix product, {d}", "rate": f"{number(v / 1e9)} GFLOP/s"} for d, v in found.peaks.items()]
    rows += [
        {"what": f"random reads, {_threads(n)}", "rate": f"{number(v / 1e6)} M/s"} for n, v in found.gathers.items()
    ]
    rows += [{"what": "launch" if gpu else "start and join of threads", "rate": f"{number(found.sync * 1e6)} µs"}]
    screen = console()
    screen.print(f"{found.name} ({found.measured})")
    screen.print(plain_table(rows, ["what", "rate"]))


def _threads(count: int) -> str:
    return {0: "GPU", 1: "1 thread"}.get(count, f"{count} threads")
