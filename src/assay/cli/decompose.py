"""`assay decompose`: trend, cycles that come and go, jumps, and a forecast of a long series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table
from assay.record.wording import number

if TYPE_CHECKING:
    from assay.observe.series.guides import Guide
    from assay.observe.series.report import Backtest, Report
    from assay.record.types import Estimate
    from assay.workloads.long_series import Grid


@click.command(
    epilog="Example:  assay decompose examples/latency.csv --forecast 30d --plot parts.svg    or    "
    "assay decompose examples/latency.csv --period 1d,7d"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--value", help="The column of values; told from its name unless given.")
@click.option("--time", help="The column of times: ISO dates, or numbers since 1970; told from its name unless given.")
@click.option("--by", help="The column that says which series a row belongs to.")
@click.option("--series", "only", help="Only the series of this name.")
@click.option("--step", help="The grid's step (10min, 1h, 1d); else a little more than the samples' usual distance.")
@click.option("--period", help="Periods to use instead of looking for them: 1d,7d,quarter.")
@click.option("--analyst", type=click.Path(path_type=Path), help="A TOML guide: periods, when they ran, jumps.")
@click.option("--forecast", "ahead", help="Forecast so long (30d), and backtest it beside simple forecasts.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw to .svg, .png, .pdf or .html.")
@json_option
def command(
    file: Path, value: str | None, time: str | None, by: str | None, only: str | None, step: str | None,
    period: str | None, analyst: Path | None, ahead: str | None, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Take the series of FILE apart; gaps stay gaps.

    FILE is a CSV table such as time,value; Prometheus text with times, or the JSON of its query_range; or OTLP metrics
    and traces (of traces, how long the spans of each name took). --value METRIC chooses among the latter; counters
    become rates.
    """
    from assay.observe.series import guides, report
    from assay.record import charts
    from assay.record.errors import BadInput

    if period and analyst:
        raise BadInput("give --period or --analyst, not both")
    guide = guides.Guide.of(period) if period else guides.read(analyst) if analyst else None
    horizon = guides.duration(ahead) if ahead else None
    if plot and plot.suffix.lower() not in charts.FORMATS:
        raise BadInput(f"cannot draw to '{plot.name}': the suffix must be one of {', '.join(charts.FORMATS)}")
    grids, repairs = _grids(file, value, time, by, only, guides.duration(step) if step else None)
    if plot and len(grids) > 1:
        raise BadInput(f"{file} holds {len(grids)} series; --series NAME chooses the one to draw")
    told = _reports(grids, guide, horizon)
    if plot:
        charts.write(report.picture(told[0]), plot)
    if as_json:
        print_json({"file": str(file), "repairs": repairs, "series": [report.as_json(one) for one in told]})
        return
    for what, count in repairs.items():
        click.echo(f"{what}: {count:,}")
    for one in told:
        _print(one)
    if plot:
        click.echo(f"drawn to {plot}")


def _grids(
    file: Path, value: str | None, time: str | None, by: str | None, only: str | None, step: float | None
) -> tuple[list[Grid], dict[str, int]]:
    from assay.record.errors import BadInput
    from assay.workloads import long_series

    if _monitored(file):
        if time or by:
            raise BadInput(f"{file}: --time and --by are for CSV; its series have names: --value METRIC, --series NAME")
        from assay.workloads import telemetry_files

        frame = telemetry_files.read(file)
        every = long_series.of_telemetry(frame, value)
        if not every:
            what = f"series of '{value}'" if value else "series"
            raise BadInput(f"{file}: no {what} with {long_series.LEAST} samples or more; one scrape is no series")
    else:
        frame = long_series.read(file, value=value, time=time, by=by)
        every = long_series.split(frame)
    chosen = [one for one in every if only is None or one.name == only]
    if not chosen:
        names = ", ".join(one.name for one in every[:12])
        raise BadInput(f"{file}: no series '{only}'; there are {names}")
    return [long_series.regular(one, step) for one in chosen], dict(frame.repairs)


def _monitored(file: Path) -> bool:
    """Whether it holds what a monitoring system wrote: Prometheus text or answers, OTLP."""
    from assay.record.errors import BadInput
    from assay.workloads import telemetry_files

    try:
        return file.is_dir() or telemetry_files.kind_of(file) in ("prometheus", "otlp")
    except BadInput:
        return False  # the reader of tables says what is wrong with it


def _reports(grids: list[Grid], guide: Guide | None, horizon: float | None) -> list[Report]:
    from assay.observe.series import report

    each = 1 if horizon is None else 2 + report.FOLDS
    total, done = each * len(grids), 0
    with progress_bar("taking apart") as show:

        def tick() -> None:
            nonlocal done
            done += 1
            show(min(done, total), total)

        return [report.report(grid, guide, horizon, tick) for grid in grids]


def _print(told: Report) -> None:
    from assay.observe.series.report import day, instant

    made, grid = told.made, told.made.grid
    there = int((grid.values == grid.values).sum())
    click.echo(
        f"\n{grid.name}: {there:,} of {len(grid.values):,} steps of {grid.step:g} s, {day(grid.start)} to "
        f"{day(instant(grid, len(grid.values)))}; parts {'multiply' if made.multiplicative else 'add up'}"
    )
    table = quiet_table()
    for name, justify in (("part", "left"), ("period", "right"), ("strength", "right"), ("swing", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("runs", overflow="fold", ratio=1)
    parts = made.parts()
    trend = parts["trend"]
    table.add_row(
        "trend",
        "",
        "",
        number(float(trend.max() - trend.min())),
        f"{number(float(trend[0]))} → {number(float(trend[-1]))}",
    )
    for name, cycle in zip(made.names, made.cycles, strict=True):
        values = parts[name]
        spans = [f"{day(instant(grid, p.start))} … {day(instant(grid, p.stop))}" for p in cycle.pieces]
        always = cycle.pieces[0].start == 0 and cycle.pieces[-1].stop >= len(grid.values) and len(spans) == 1
        table.add_row(
            name, f"{cycle.period * grid.step / 3600:.4g} h", f"{cycle.strength:.2f}",
            number(float(values.max() - values.min())), "always" if always else "; ".join(spans),
        )  # fmt: skip
    spikes = int((made.spikes != 0).sum())
    word = "spike" if spikes == 1 else "spikes"
    table.add_row(
        "rest",
        "",
        "",
        number(2 * float(parts["rest"][grid.values == grid.values].std())),
        f"and {spikes:,} {word}",
    )
    console().print(table)
    if not made.cycles:
        click.echo("no cycle stands out of the noise")
    if made.shifts:
        click.echo("the level jumps at " + ", ".join(day(instant(grid, shift)) for shift in made.shifts))
    if told.ahead is not None:
        _print_forecast(told)


def _print_forecast(told: Report) -> None:
    from assay.observe.series.report import day

    ahead = told.ahead
    assert ahead is not None
    table = quiet_table()
    table.add_column("forecast for")
    for q in ahead.quantiles:
        table.add_column(f"{q:.0%}", justify="right")
    count = len(ahead.median)
    for place in sorted({0, count // 4, count // 2, 3 * count // 4, count - 1}):
        table.add_row(day(float(ahead.times[place])), *(number(float(v[place])) for v in ahead.quantiles.values()))
    console().print(table)
    if told.tested is None:
        click.echo(told.untested)
        return
    _print_backtest(told.tested)


def _print_backtest(tested: Backtest) -> None:
    table = quiet_table()
    for name in (f"held out {tested.ratio.n} times", "MAPE", "interval", "MASE", "interval"):
        table.add_column(name, justify="left" if name.startswith("held") else "right")
    for name, one in {"from the parts": tested.ours, **tested.simple}.items():
        mape, mase = one.mape, one.mase
        shown = f"{name} (the best of them)" if name == tested.best else name
        table.add_row(shown, f"{mape.value:.2%}", _span(mape, 100), f"{mase.value:.3f}", _span(mase, 1))
    console().print(table)
    click.echo(tested.sentence)


def _span(estimate: Estimate, times: float) -> str:
    return f"{estimate.low * times:.3g} … {estimate.high * times:.3g}"
