"""`assay run`: run studies and answer their claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from assay.cli.keys import complete
from assay.cli.output import (
    claims_plot,
    claims_table,
    console,
    full_size_lines,
    headline_tables,
    json_option,
    print_json,
    print_whole,
    progress_bar,
    wide_option,
    wide_tables,
)
from assay.record import catalogue
from assay.record import seeds as seed_words
from assay.record.errors import AssayError, BadInput, Interrupted, StoreFailed
from assay.record.headline import named
from assay.record.store import home, latest
from assay.record.wording import seeds_text

if TYPE_CHECKING:
    from assay.record.types import Result


def parse_seeds(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...] | int | None:
    """How many seeds, as an int, or a list of them, as a tuple."""
    if value is None:
        return None
    try:
        return seed_words.read(value)
    except BadInput as error:
        raise click.BadParameter(str(error), context, option) from error


@click.command(epilog="Example:  assay run div --seeds 8 --first-seed 100 --json")
@click.argument("keys", nargs=-1, required=True, shell_complete=complete)
@click.option("--full", is_flag=True, help="Full size, some minutes, instead of quick, some seconds.")
@click.option(
    "--seeds",
    callback=parse_seeds,
    metavar="N|A,B",
    help="How many seeds (default 5 quick, 10 full), or which: 3,17,99.",
)
@click.option("--first-seed", type=click.IntRange(0, 1 << 31), default=0, show_default=True, help="Count from here.")
@click.option("--on", default="local", show_default=True, help="local, ray, or ray://HOST:PORT.")
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted run finished.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw to FILE: .svg .png .pdf .html (one key).")
@wide_option
@json_option
def command(
    keys: tuple[str, ...],
    full: bool,
    seeds: tuple[int, ...] | int | None,
    first_seed: int,
    on: str,
    fresh: bool,
    plot: Path | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Run the studies of papers: the table, the plot, and each claim's measured answer.

    A claim that is not reproduced is a result like any other: the exit code tells whether the studies ran.
    """
    _check(keys, on, plot)
    size = "full" if full else "quick"
    chosen = seed_words.chosen(seeds, first_seed, size)
    answers: list[Any] = []
    code = 0
    for key in keys:
        try:
            result = _run(key, size, chosen, on, fresh)
        except StoreFailed as error:
            if error.result is None:
                raise
            result = error.result  # measured, so shown; only not stored
            click.echo(f"assay: {key}: not stored: {error}", err=True)
            code = error.exit_code
        except AssayError as error:
            if len(keys) == 1 or isinstance(error, Interrupted):
                raise
            click.echo(f"assay: {error}", err=True)  # the others still run
            answers.append({"key": key, "error": str(error)})
            code = max(code, error.exit_code)
            continue
        answers.append(msgspec.to_builtins(result))
        if plot:
            _draw(result, plot)
        if not as_json:
            _print(result, wide)
        for answer in result.claims:
            if answer.broken:
                click.echo(f"assay: {key}: '{answer.text}': {answer.note}", err=True)
                code = max(code, 1)
    if as_json:
        print_json(answers[0] if len(keys) == 1 else answers)
    if code:
        raise click.exceptions.Exit(code)


def _check(keys: tuple[str, ...], on: str, plot: Path | None) -> None:
    """Refuse what cannot work before anything runs."""
    for key in keys:
        catalogue.paper(key)
    if on not in ("local", "ray") and not on.startswith("ray://"):
        raise BadInput(f"--on must be local, ray or ray://HOST:PORT, not '{on}'")
    if plot is not None:
        from assay.record.charts import FORMATS

        if len(keys) > 1:
            raise BadInput("--plot draws one paper; name one key")
        if plot.suffix.lower() not in FORMATS:
            raise BadInput(f"--plot {plot}: the suffix must be one of {', '.join(FORMATS)}")


def _run(key: str, size: str, seeds: tuple[int, ...], on: str, fresh: bool) -> Result:
    from assay.observe.bench.children import interruptible
    from assay.record.runner import run

    with interruptible(), progress_bar(key) as progress:  # what a study started and wrote goes with it
        return run(key, size=size, seeds=seeds, on=on, fresh=fresh, progress=progress)


def _draw(result: Result, path: Path) -> None:
    import polars as pl

    from assay.record import charts

    plot = catalogue.study(result.key).plot
    if plot is None:
        raise BadInput(f"{result.key} draws no plot")
    charts.write(plot(pl.from_dicts(result.table, infer_schema_length=None)), path)


def _print(result: Result, wide: bool) -> None:
    from rich.text import Text

    screen = console()
    paper = catalogue.paper(result.key)
    screen.print(Text(f"\n{paper.title}", style="bold"))
    screen.print(Text(paper.line, style="bright_black"))
    screen.print()
    for part in wide_tables(result) if wide else ():
        print_whole(part)
        screen.print()
    for first, left_out in () if wide else headline_tables(result, named(catalogue.study(result.key).claims)):
        screen.print(first)
        screen.print(Text(f"{left_out}\n" if left_out else "", style="bright_black"))
    screen.print(claims_table(result.claims, wide))
    for line in ("", *claims_plot(result.claims, min(screen.width, 140))):
        screen.print(Text(line), no_wrap=True)
    found = ", ".join(f"{count} {verdict}" for verdict, count in result.tally.items())
    screen.print(Text(f"\nOf the paper's {len(result.stated)} claims: {found}.", style="bold"))
    for line in full_size_lines(result):
        screen.print(Text(line, style="yellow"))
    if result.trust:
        screen.print(Text(f"\n{result.trust}", style="yellow"))
    resumed = f", {result.resumed} cases resumed" if result.resumed else ""
    facts = (
        f"{result.size}, {seeds_text(result.seeds)}, {result.seconds:.1f} s{resumed}; evidence {result.evidence.value}",
        f"{result.machine['cpu']}, {result.machine['cores']} cores; version {result.source}",
    )
    screen.print(Text("\n" + "; ".join(facts), style="bright_black"))
    newest = latest(result.key)
    if newest and newest[0].with_suffix(".svg").exists():
        screen.print(Text(f"plot: {newest[0].with_suffix('.svg')}", style="bright_black"), soft_wrap=True)
    elif newest is None:
        screen.print(Text(f"not stored under {home()}", style="bright_black"), soft_wrap=True)
