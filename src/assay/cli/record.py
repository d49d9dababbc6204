"""`assay record`: the whole record, run, printed and written as a site."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from assay.cli.output import (
    claim_text,
    console,
    json_option,
    paper_row,
    print_json,
    progress_bar,
    quiet_table,
    verdict_text,
)
from assay.record import catalogue, sources
from assay.record.errors import AssayError, BadInput, Interrupted, unreadable
from assay.record.store import standing, stored
from assay.record.types import ROOMS, Paper, Verdict
from assay.record.wording import share_text, with_unit

if TYPE_CHECKING:
    from assay.record.types import Result


@click.command(epilog="Example:  assay record --html report")
@click.option("--run", "run_missing", is_flag=True, help="First run built studies without a result at this version.")
@click.option("--yes", is_flag=True, help="With --run: do not ask before starting.")
@click.option("--room", type=click.Choice(ROOMS), help="Only this room.")
@click.option("--html", type=click.Path(file_okay=False, path_type=Path), help="Write the report site into DIR.")
@click.option(
    "--since",
    type=click.Path(path_type=Path),
    help="Which verdicts changed, and why, since FILE: what 'assay record --json' printed then.",
)
@json_option
def command(
    run_missing: bool, yes: bool, room: str | None, html: Path | None, since: Path | None, as_json: bool
) -> None:  # fmt: skip
    """The record: every paper's claims, what was measured of them, the share of the effect and the verdict."""
    chosen = [p for p in catalogue.papers().values() if room in (None, p.room)]
    code, told = _run_missing(chosen, yes) if run_missing else (0, [])
    results = {p.key: found for p in chosen if catalogue.is_built(p) and (found := standing(p.key))}
    if html:
        from assay.record.report import write_site

        write_site(html, chosen, results)
    if since:
        _print_changes(since, {key: result for key, (_, result) in results.items()}, as_json)
    elif as_json:
        print_json([_row(p, results[p.key][1] if p.key in results else None) for p in chosen])
    else:
        _print(chosen, {key: result for key, (_, result) in results.items()})
    if html:
        click.echo(f"report: {(html / 'index.html').absolute()}", err=as_json)
    for line in told:
        click.echo(line, err=as_json)
    if code:
        raise click.exceptions.Exit(code)


def _run_missing(chosen: list[Paper], yes: bool) -> tuple[int, list[str]]:
    """Run what can run and has no result at this version; the exit code, and a line a built paper."""
    from assay.record.readiness import cures, readiness

    built = [readiness(paper) for paper in chosen if catalogue.is_built(paper)]
    current = {one.paper.key for one in built if _current(one.paper)}
    due = [one for one in built if one.paper.key not in current]
    able = [one.paper for one in due if one.runs]
    click.echo(f"{len(able)} of {len(built)} studies to run, {len(current)} measured at this version", err=True)
    for line in cures(due):
        click.echo(line, err=True)
    if able and not yes and sys.stdin.isatty() and not click.confirm("Start?", default=True, err=True):
        raise click.Abort
    code, told = 0, dict.fromkeys(current, "measured before")
    told |= {one.paper.key: f"not run: needs {', '.join(one.extras)}" for one in due if not one.runs}
    for paper in able:
        failed, told[paper.key] = _run(paper)
        code = max(code, failed)
    width = max(map(len, told), default=0)
    return code, ["", *(f"{one.paper.key:{width}}  {told[one.paper.key]}" for one in built)]


def _current(paper: Paper) -> bool:
    version = sources.digest(paper.module)
    return any(result.source == version for _, result in stored(paper.key))


def _run(paper: Paper) -> tuple[int, str]:
    """One study; its exit code, and what became of it."""
    from assay.record.runner import run

    try:
        with progress_bar(paper.key) as progress:
            result = run(paper.key, progress=progress)
    except AssayError as error:
        if isinstance(error, Interrupted):
            raise
        click.echo(f"assay: {error}", err=True)
        return error.exit_code, f"failed: {error}"
    return 0, f"{result.headline} in {result.seconds:.0f} s"


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
    for name in ("key", "claim", "paper", "measured", "share of effect", "verdict", "evidence"):
        figure = name in ("paper", "measured", "share of effect")
        table.add_column(name, no_wrap=name != "claim", justify="right" if figure else "left")
    for key, result in results.items():
        for position, answer in enumerate(result.stated):
            table.add_row(
                f"{key} {result.headline}" if position == 0 else "", claim_text(answer, answer.exceeds),
                with_unit(answer.paper, answer.unit), with_unit(answer.measured, answer.unit), share_text(answer),
                verdict_text(answer.verdict), "–" if answer.measured is None else answer.evidence.value,
            )  # fmt: skip
    if results:
        screen.print(table)
    built = sum(map(catalogue.is_built, chosen))
    screen.print(f"\n{len(chosen)} papers, {built} built, {len(results)} measured here: {_sum(results.values())}.")
    if built > len(results):
        screen.print("'assay record --run' measures the rest.")


def _sum(results: Iterable[Result]) -> str:
    """All verdicts of the papers' claims, counted."""
    found = [answer.verdict for result in results for answer in result.stated]
    return ", ".join(f"{found.count(v)} {v.value}" for v in Verdict if v in found) or "no claim"


def _print_changes(since: Path, results: dict[str, Result], as_json: bool) -> None:
    from assay.record.changes import changes

    try:
        before = msgspec.json.decode(since.read_bytes())
        found = list(changes(before, results))
    except OSError as error:
        raise unreadable(since, error) from error
    except (msgspec.MsgspecError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadInput(f"{since}: not what 'assay record --json' prints ({error})") from error
    if as_json:
        print_json(found)
        return
    table = quiet_table()
    for name in ("key", "claim", "then", "now", "share of effect", "why"):
        table.add_column(name, no_wrap=name in ("key", "then", "now"))
    for row in found:
        share = "–" if row.share is None else f"{100 * row.share:.0f} %".replace("-", "−")
        table.add_row(row.key, row.text, row.before, verdict_text(row.now), share, row.why or "–")
    console().print(table)
    console().print(f"\n{sum(bool(row.why) for row in found)} of {len(found)} verdicts changed.")
