"""`assay traces`: which traces are published, how to get them, and what a file of yours holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table
from assay.record import traces
from assay.record.errors import AssayError, BadInput
from assay.record.wording import number
from assay.workloads.time_option import TIME_UNIT


class Traces(click.Command):
    """Describes a trace, unless its first word is `get`: a file's name is no command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of this command, or of `get`."""
        if args[:1] == ["get"]:
            return get.make_context(f"{info_name} get", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "traces",
    cls=Traces,
    epilog="Example:  assay traces examples/chats.jsonl --plot chats.svg    assay traces examples/azure.csv --dejitter",
)
@click.argument("file", required=False)
@click.option("--format", "layout", help="Read it as this format instead of the one its content tells.")
@TIME_UNIT
@click.option("--dejitter", is_flag=True, help="Spread arrivals that were rounded to a coarse clock.")
@click.option("--skip-bad", is_flag=True, help="Leave out and count rows that cannot be read.")
@click.option("--limit", type=click.IntRange(min=1), help="Read only the first rows.")
@click.option("--plot", "chart", type=click.Path(path_type=Path), help="Draw rate and lengths (.svg .png .pdf .html).")
@json_option
def command(
    file: str | None,
    layout: str | None,
    time_unit: str | None,
    dejitter: bool,
    skip_bad: bool,
    limit: int | None,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Describe a trace of LLM requests: a FILE of yours or a public one by name; without either, list those.

    `assay traces get NAME…` fetches published ones.

    Mooncake, Bailian, Azure, BurstGPT, Vidur, ShareGPT, OpenAI, engine and gateway logs, any CSV or JSON lines with
    telling column names; plain, .gz or .zst.
    """
    if file is None:
        _list(as_json)
        return
    from assay.workloads.request_files import read  # NumPy, Numba, Polars: not for the list
    from assay.workloads.request_summary import describe

    requests = read(file, layout, dejitter, limit, skip_bad, time_unit)
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
    known = traces.published()
    if as_json:
        print_json([asdict(trace) | _extra(trace) for trace in known])
        return
    from rich.text import Text

    table = quiet_table()
    for name in ("", "name", "what", "size", "published at", "licence"):
        right = name == "size"
        table.add_column(
            name, overflow="fold", no_wrap=name in ("name", "size", "licence"), justify="right" if right else "left"
        )
    for trace in known:
        sign = Text("✓", style="green") if trace.path else Text("–", style="yellow")
        size = megabytes(trace.size) if trace.fetchable else "–"
        table.add_row(sign, trace.name, trace.what, size, Text(trace.published), trace.licence)
    screen = console()
    screen.print(table)
    at_hand = sum(trace.path is not None for trace in known)
    screen.print(
        f"\n{at_hand} of {len(known)} at hand (✓). 'assay traces get NAME' fetches those with a size; the others lack a"
        " checksum: put them into one folder, under the names that --json gives, and set ASSAY_TRACES to it."
    )


def _extra(trace: traces.Trace) -> dict[str, Any]:
    """What a trace says of itself beyond its fields."""
    path = trace.path
    return {"file": trace.file, "size": trace.size, "fetchable": trace.fetchable, "path": str(path) if path else None}


def megabytes(size: int) -> str:
    """A file's size as people read it.

    >>> megabytes(719188), megabytes(1142)
    ('0.72 MB', '0.001 MB')
    """
    return f"{size / 1e6:.2f} MB" if size >= 10_000 else f"{size / 1e6:.3f} MB"


@click.command(epilog="Example:  assay traces get azure-2023-conv mooncake-conversation    assay traces get --all")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Every trace whose address and checksum are known.")
@click.option("--mirror", metavar="URL", default="", help="Fetch from this folder of files, named as here, instead.")
@click.option("--proxy", metavar="URL", default="", help="Through this proxy (default: the environment's).")
@click.option("--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds of silence.")
@json_option
def get(
    names: tuple[str, ...], everything: bool, mirror: str, proxy: str, timeout: float, as_json: bool
) -> None:  # fmt: skip
    """Fetch published traces into $ASSAY_HOME/traces, where studies find them.

    A download that breaks off is resumed by the next. What arrives is checked against the SHA-256 of what was
    published, and a trace takes its place whole or not at all.
    """
    from assay.record.fetch import fetch

    if bool(names) == everything:
        raise BadInput("say which: assay traces get NAME…, or --all; 'assay traces' lists them")
    known = [trace for trace in traces.published() if trace.fetchable]
    chosen = known if everything else [traces.named(name) for name in names]
    rows: list[dict[str, Any]] = []
    code = 0
    for trace in chosen:
        if not as_json:
            click.echo(f"{trace.name}: {trace.published}, {megabytes(trace.size)}, {trace.licence}")
            for file in trace.files:
                click.echo(f"  {file.path}  SHA-256 {file.sha256 or 'unknown'}")
        row = {"name": trace.name, "size": trace.size, "licence": trace.licence}
        try:
            with progress_bar(trace.name) as progress:
                path = fetch(trace, mirror=mirror, proxy=proxy, timeout=timeout, progress=progress)
        except AssayError as error:
            click.echo(f"assay: {error}", err=True)  # the others may still come
            rows.append(row | {"error": str(error)})
            code = max(code, error.exit_code)
            continue
        rows.append(row | {"path": str(path)})
        if not as_json:
            click.echo(f"  checked, in {path}")
    if as_json:
        print_json(rows)
    if code:
        raise click.exceptions.Exit(code)


def _print(about: dict[str, Any]) -> None:
    source = about["source"]
    table = quiet_table()
    table.add_column("")
    table.add_column("", overflow="fold")
    times = f", times in {source['times']}" if source["times"] else ""
    rows = [("file", f"{source['name']}{times}"), ("format", source["format"])]
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
