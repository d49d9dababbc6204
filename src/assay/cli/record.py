"""`assay record`: the whole record, run, printed and written as a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from assay.cli.output import (
    console,
    json_option,
    number,
    paper_row,
    print_json,
    progress_bar,
    quiet_table,
    verdict_text,
)
from assay.record import catalogue, sources
from assay.record.errors import AssayError, Interrupted
from assay.record.store import latest, stored
from assay.record.types import ROOMS, Paper

if TYPE_CHECKING:
    from assay.record.types import Result


@click.command(epilog="Example:  assay record --run --html report && xdg-open report/index.html")
@click.option("--run", "run_missing", is_flag=True, help="First run built studies without a result at this version.")
@click.option("--room", type=click.Choice(ROOMS), help="Only this room.")
@click.option("--html", type=click.Path(file_okay=False, path_type=Path), help="Write the report site into DIR.")
@json_option
def command(run_missing: bool, room: str | None, html: Path | None, as_json: bool) -> None:
    """The record: every paper with its headline claim, the measured answer and the verdict."""
    chosen = [p for p in catalogue.papers().values() if room in (None, p.room)]
    code = _run_missing(chosen) if run_missing else 0
    results = {p.key: newest for p in chosen if catalogue.is_built(p) and (newest := latest(p.key))}
    if html:
        from assay.record.report import write_site

        write_site(html, chosen, results)
    if as_json:
        print_json([_row(p, results[p.key][1] if p.key in results else None) for p in chosen])
    else:
        _print(chosen, {key: result for key, (_, result) in results.items()})
    if html:
        click.echo(f"report: {(html / 'index.html').absolute()}", err=as_json)
    if code:
        raise click.exceptions.Exit(code)


def _run_missing(chosen: list[Paper]) -> int:
    from assay.record.runner import run

    code = 0
    for paper in filter(catalogue.is_built, chosen):
        version = sources.digest(paper.module)
        if any(result.source == version for _, result in stored(paper.key)):
            continue
        try:
            with progress_bar(paper.key) as progress:
                run(paper.key, progress=progress)
        except AssayError as error:
            if isinstance(error, Interrupted):
                raise
            click.echo(f"assay: {error}", err=True)
            code = max(code, error.exit_code)
    return code


def _row(paper: Paper, result: Result | None) -> dict[str, Any]:
    return paper_row(paper, catalogue.is_built(paper), result) | {
        "size": result.size if result else None,
        "started": result.started if result else None,
        "current": result is not None and result.source == sources.digest(paper.module),
        "claims": msgspec.to_builtins(result.claims if result else paper.claims),
    }


def _print(chosen: list[Paper], results: dict[str, Result]) -> None:
    screen = console()
    table = quiet_table()
    for name in ("key", "claim", "paper", "measured", "verdict", "evidence", "all claims"):
        table.add_column(name, no_wrap=name != "claim", justify="right" if name in ("paper", "measured") else "left")
    for key, result in results.items():
        answer = result.headline
        if answer is None:
            continue
        tally = ", ".join(f"{count} {verdict}" for verdict, count in result.tally.items())
        table.add_row(
            key, answer.text, number(answer.paper), number(answer.measured), verdict_text(answer.verdict),
            result.evidence.value, tally,
        )  # fmt: skip
    if results:
        screen.print(table)
    built = sum(map(catalogue.is_built, chosen))
    screen.print(f"\n{len(chosen)} papers, {built} built, {len(results)} measured here.")
    if built > len(results):
        screen.print("'assay record --run' measures the rest.")
