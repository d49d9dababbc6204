"""`assay bench`: continuous benchmarking of your own repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table
from assay.record.wording import number

if TYPE_CHECKING:
    from rich.text import Text

    from assay.observe.bench.history import Change, Series
    from assay.observe.bench.judge import Comparison, Judgement

HUES = {
    "regression": ("✗", "red"), "improvement": ("✓", "green"), "no change": ("=", "green"),
    "undecided": ("?", "yellow"), "error": ("!", "red"), "rise": ("↑", "yellow"), "fall": ("↓", "yellow"),
}  # fmt: skip

config_option = click.option(
    "--config", type=click.Path(path_type=Path), default="bench.toml", show_default=True,
    help="What to measure; may extend other files.",
)  # fmt: skip
only_option = click.option("--only", multiple=True, metavar="NAME", help="Just this benchmark; may be given again.")


@click.group(
    epilog="Example:  assay bench compare main .    Then:  assay bench run    assay bench watch --html bench.html"
)
def command() -> None:
    """Benchmarks of your own repository: compare two commits, keep a history, find what made it slower.

    A benchmark takes two lines of bench.toml:

    \b
      [benchmark.parse]
      call = "mypackage.bench:parse_a_page"  # or  command = ["./build/parse", "page.html"]

    \b
    It may also have
      setup = "mypackage.bench:page"         # called once; what it returns is the first argument
      args = [100, "utf-8"]                  # the arguments behind that
      metric = "cpu"                         # seconds of the processor, not of the clock
      timeout = 60.0                         # seconds after which it has failed

    \b
    Above the first benchmark, for all of them:
      path = ["lib"]                         # import from here too; from . and src anyway
      prepare = [["make", "-s"]]             # run once in each checkout
      env = { THREADS = "1" }
      seconds = 120.0                        # for each benchmark of a comparison
      min_change = 0.01                      # the smallest change worth an alarm
      extends = "base.toml"                  # what is said here wins

    Paths and commands start at the root of the repository, wherever bench.toml lies in it.
    """


@command.command(
    epilog="Example:  assay bench compare main .    or    assay bench compare v1.2 v1.3 --only parse --json"
)
@click.argument("base")
@click.argument("head")
@config_option
@only_option
@click.option("--min-change", type=float, help="The smallest change worth an alarm: 0.02 is two per cent.")
@click.option("--instructions", type=click.Choice(["always", "auto", "never"]), help="Count instructions as well.")
@json_option
def compare(
    base: str, head: str, config: Path, only: tuple[str, ...], min_change: float | None, instructions: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure HEAD beside BASE in turns: commits, or . for the tree as it is.

    Exit code 0: no regression; 1: a regression; 2: the input is wrong, or a benchmark did not run.
    """
    from assay.observe.bench import children
    from assay.observe.bench import compare as bench_compare

    with children.interruptible(), progress_bar("comparing") as progress:
        session = bench_compare.compare(
            config, base, head, only, progress, min_change=min_change, instructions=instructions
        )
    if as_json:
        print_json(bench_compare.as_json(session))
    else:
        click.echo(f"base {session.base}   head {session.head}   configuration {session.config.digest}")
        console().print(_comparisons(session.comparisons))
        click.echo(bench_compare.summary(session))
    raise click.exceptions.Exit(bench_compare.exit_code(session))


def _comparisons(comparisons: list[Comparison]) -> Any:
    table = quiet_table()
    table.add_column("benchmark")
    for name in ("base", "head", "change", "interval", "pairs", "resolves", "instructions"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    table.add_column("", overflow="fold")
    for one in comparisons:
        time, count = one.time, one.instructions
        table.add_row(
            one.name, _seconds(one.base), _seconds(one.head), _percent(time.change) if time else "–", _interval(time),
            number(time.pairs) if time else "–", _percent(time.resolvable).lstrip("+") if time else "–",
            _percent(count.change) if count else "–", _decision(one.decision, one.by), one.error or one.note,
        )  # fmt: skip
    return table


def _decision(word: str, by: str) -> Text:
    from rich.text import Text

    sign, colour = HUES[word]
    return Text(f"{sign} {word}" + (" by instructions" if by == "instructions" else ""), style=colour)


def _interval(time: Judgement | None) -> str:
    if time is None or time.high > 1e6:
        return "–"
    return f"{_percent(time.low)} … {_percent(time.high)}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


@command.command(epilog="Example:  assay bench run    or    assay bench run --last 20 --only parse")
@config_option
@only_option
@click.option("--at", "ref", default=".", show_default=True, help="A commit to measure; . is the tree as it is.")
@click.option("--last", type=click.IntRange(1, 10_000), help="Each of the branch's last N commits not yet measured.")
@json_option
def run(config: Path, only: tuple[str, ...], ref: str, last: int | None, as_json: bool) -> None:
    """Measure the benchmarks and add them to the history, with the environment they ran in.

    Exit code 0: all ran; 2: the input is wrong, or a benchmark did not run.
    """
    from assay.observe.bench import children, store

    with children.interruptible(), progress_bar("measuring") as progress:
        stored = store.run(config, ref, last, only, progress)
    if as_json:
        print_json([{"stored": path.name, "run": run} for path, run in stored])
    else:
        table = quiet_table()
        for name in ("commit", "benchmark", "seconds", "spread", "instructions", ""):
            table.add_column(name, justify="left" if name in ("commit", "benchmark", "") else "right")
        for _, one in stored:
            for name, measured in one.results.items():
                table.add_row(
                    one.commit[:12] + ("+dirty" if one.dirty else ""), name, _seconds(measured.value),
                    _percent(store.spread(measured)).lstrip("+"), number(measured.instructions), measured.error,
                )  # fmt: skip
        console().print(table if stored else "nothing to measure: every commit is in the history already")
    failed = any(measured.error for _, one in stored for measured in one.results.values())
    raise click.exceptions.Exit(2 if failed else 0)


@command.command(
    epilog="Example:  assay bench watch --html bench.html    or    assay bench watch results/*.json    or    series.csv"
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@config_option
@click.option("--min-change", type=float, default=0.03, show_default=True, help="The smallest step shown.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the page of history here.")
@click.option("--bisect", is_flag=True, help="Narrow each regression down by comparing the commits in between.")
@click.option("--better", type=click.Choice(["less", "more"]), help="Whether less or more is better in FILES.")
@json_option
def watch(
    files: tuple[Path, ...], config: Path, min_change: float, html: Path | None, bisect: bool, better: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Look at the history: where it got slower or faster, and which commits to blame.

    FILES: results of pytest-benchmark or asv, or CSV series, instead of the own history. Names such as parse_ms,
    latency or ops/s tell whether less is better; where none does, a step is a rise or a fall, unless --better is given.

    A step must stand out of noise that is as slow as this history's own; of 64 points or more, cycles are taken out.
    """
    from assay.observe.bench import children
    from assay.observe.bench import watch as bench_watch

    with children.interruptible(), progress_bar("looking") as progress:
        seen = bench_watch.watch(list(files), config, min_change, bisect, progress, better or "")
    if html is not None:
        bench_watch.page(html, seen, min_change)
    if as_json:
        print_json(bench_watch.as_json(seen))
        return
    for line in seen.notes:
        click.echo(line, err=True)
    console().print(_history(seen.series, seen.changes))
    if html is not None:
        click.echo(f"page: {html}")


def _history(series: list[Series], changes: list[Change]) -> Any:
    table = quiet_table()
    for name in (
        "benchmark",
        "machine",
        "commits",
        "failed",
        "step",
        "change",
        "last before",
        "first behind",
        "to blame",
    ):
        table.add_column(name, justify="right" if name in ("commits", "failed", "change", "to blame") else "left")
    for one in series:
        own = [change for change in changes if (change.benchmark, change.machine) == (one.benchmark, one.machine)]
        facts = one.benchmark, one.machine, number(len(one.points)), number(len(one.failed))
        if not own:
            table.add_row(*facts, "none", "", "", "", "")
        for change in own:
            table.add_row(
                *facts, _decision(change.kind, ""), _percent(change.change), change.before[:12], change.after[:12],
                number(change.suspects),
            )  # fmt: skip
            facts = "", "", "", ""
    return table
