"""`assay traces`: which request traces are published, and what a file of yours holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record.wording import number
from assay.workloads.public_traces import PUBLIC


@click.command(
    epilog="Example:  assay traces mine.jsonl --plot mine.svg    assay traces mooncake-conversation --dejitter"
)
@click.argument("file", required=False)
@click.option("--format", "layout", help="Read it as this format instead of the one its content tells.")
@click.option("--dejitter", is_flag=True, help="Spread arrivals that were rounded to a coarse clock.")
@click.option("--skip-bad", is_flag=True, help="Leave out and count rows that cannot be read.")
@click.option("--limit", type=click.IntRange(min=1), help="Read only the first rows.")
@click.option("--plot", "chart", type=click.Path(path_type=Path), help="Draw rate and lengths (.svg .png .pdf .html).")
@json_option
def command(
    file: str | None,
    layout: str | None,
    dejitter: bool,
    skip_bad: bool,
    limit: int | None,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Describe a trace of LLM requests: a FILE of yours or a public one by name; without either, list those.

    Mooncake, Bailian, Azure, BurstGPT, Vidur, ShareGPT, OpenAI, engine and gateway logs, any CSV or JSON lines with
    telling column names; plain, .gz or .zst.
    """
    if file is None:
        _list(as_json)
        return
    from assay.workloads.request_files import read  # NumPy, Numba, Polars: not for the list
    from assay.workloads.request_summary import describe

    requests = read(file, layout, dejitter, limit, skip_bad)
    about = {"source": asdict(requests.source)} | describe(requests)
    if chart is not None:
        from assay.record import charts
        from assay.workloads.request_plot import plot

        charts.write(plot(requests), chart)
    if as_json:
        print_json(about)
    else:
        _print(about)


def _list(as_json: bool) -> None:
    if as_json:
        print_json([trace._asdict() | {"path": str(trace.path) if trace.path else None} for trace in PUBLIC])
        return
    from rich.text import Text

    table = quiet_table()
    for name in ("", "name", "what", "published at", "licence"):
        table.add_column(name, overflow="fold", no_wrap=name in ("name", "licence"))
    for trace in PUBLIC:
        sign = Text("✓", style="green") if trace.path else Text("–", style="yellow")
        table.add_row(sign, trace.name, trace.what, Text(trace.published), trace.licence)
    screen = console()
    screen.print(table)
    at_hand = sum(trace.path is not None for trace in PUBLIC)
    screen.print(
        f"\n{at_hand} of {len(PUBLIC)} at hand (✓). Put what you download into one folder, named as docs/traces.md"
        " says, and set ASSAY_TRACES to it."
    )


def _print(about: dict[str, Any]) -> None:
    source = about["source"]
    table = quiet_table()
    table.add_column("")
    table.add_column("", overflow="fold")
    rows = [("file", source["name"]), ("format", source["format"])]
    rows += [(f"  {ours}", theirs) for ours, theirs in source["mapping"].items()]
    rows += [
        ("rows", f"{number(source['read'])} read, {number(source['used'])} used, {number(source['refused'])} refused")
    ]
    rows += [("note", note) for note in source["notes"]]
    rows += [("duration", f"{number(about['seconds'])} s")]
    rows += [("rate", f"{number(about['rate'])} requests a second, at most {number(about['rate_peak'])}")]
    burst = about["burstiness"]
    gaps = f"gaps vary by {number(burst['cv'])} (Poisson: 1), lag-1 correlation {number(burst['lag1'])}"
    counts = f"dispersion {number(burst['dispersion_1'])} at 1 s, {number(burst['dispersion_60'])} at 60 s"
    rows += [("burstiness", f"{gaps}; {counts}")]
    if about["infinite_cache_hit"] is not None:
        rows += [("reuse", f"{about['infinite_cache_hit']:.1%} of prompt blocks were in an earlier prompt")]
    if about["sessions"] is not None:
        how = " (inferred from prefixes)" if about["sessions_inferred"] else ""
        rows += [("sessions", f"{number(about['sessions'])}{how}, {number(about['turns_mean'])} turns on average")]
    for name in ("tiers", "tenants", "models", "categories"):
        if about.get(name):
            top = sorted(about[name].items(), key=lambda item: -item[1])
            more = f" and {len(top) - 8} more" if len(top) > 8 else ""
            rows += [(name, ", ".join(f"{label} {number(count)}" for label, count in top[:8]) + more)]
    from rich.text import Text

    for name, value in rows:
        table.add_row(name, Text(str(value)))
    screen = console()
    screen.print(table)
    screen.print()
    screen.print(_lengths(about))


def _lengths(about: dict[str, Any]) -> Any:
    table = quiet_table()
    table.add_column("tokens")
    for name in about["prompt"]:
        table.add_column(name, justify="right")
    for what in ("prompt", "output"):
        table.add_row(what, *(f"{value:,.0f}" for value in about[what].values()))
    return table
