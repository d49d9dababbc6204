"""`assay trace`: where the time of a training run went, from the files of its profiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table
from assay.record.wording import number

if TYPE_CHECKING:
    from rich.table import Table

    from assay.sim.telemetry import Frame

LONGEST = 84  # letters of a kernel's name
NOTHING = "nothing recorded (Python?)"
REASONS = {"gap": "the device was idle with work given to it: what it waited for is not in the trace"}
WORDS = {
    "kernel": "compute", "comm": "communication", "memcpy": "copies", "gap": "waiting", "launch": "launching",
    "host": "host", "sync": "synchronising",
}  # fmt: skip


@click.command(
    epilog="Example:  assay trace examples/run/rank-*.json --plot run.svg    "
    "assay trace examples/job.0.et --what-if bandwidth=4 --json"
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Look at this step only (the number of ProfilerStep).")
@click.option("--what-if", "what_ifs", multiple=True, help="bandwidth=FACTOR or no-stragglers; both unless given.")
@click.option(
    "--convert",
    type=click.Path(path_type=Path),
    help="Write it as .et, .json, .json.gz or .parquet; several ranks as out.0.et, out.1.et …",
)
@click.option("--break-cycles", is_flag=True, help="Remove (and list) edges of a Chakra trace until it has no cycle.")
@click.option("--metrics", is_flag=True, help="All metrics of a folder with the traces and workload card of a run.")
@click.option("--plot", "chart", type=click.Path(path_type=Path), help="Draw the timeline (.svg .png .pdf .html).")
@json_option
def command(
    files: tuple[Path, ...],
    step: int | None,
    what_ifs: tuple[str, ...],
    convert: Path | None,
    break_cycles: bool,
    metrics: bool,
    chart: Path | None,
    as_json: bool,
) -> None:
    """Break a run down: compute, exposed communication, copies, idle; stragglers, critical path, what-ifs.

    FILES are Kineto or Chrome JSON (plain or .gz), Nsight Systems SQLite exports or Chakra traces, or a folder of them;
    several files are several ranks. Traces of requests to an LLM are for 'assay traces'.
    """
    if metrics:
        _metrics(files, as_json)
        return
    from assay.observe.traces import files as trace_files
    from assay.observe.traces import report

    for text in what_ifs:
        report.changes(text)  # a typing error should not cost the reading of gigabytes
    with progress_bar("reading") as progress:
        run = trace_files.read(files, progress=progress, break_cycles=break_cycles)
    frame = run.frame if step is None else report.only_step(run.frame, step)
    about = {"kind": run.kind} | report.report(frame, what_ifs or report.WHAT_IFS, run.replayed)
    if convert is not None:
        trace_files.convert(run, frame, convert)
    if chart is not None:
        _draw(frame, chart)
    if as_json:
        print_json(about)
    else:
        _print(about)


def _metrics(folders: tuple[Path, ...], as_json: bool) -> None:
    """Every metric of a benchmark row, or why it cannot be had."""
    from assay.observe.traces.metrics import metrics_table
    from assay.record.errors import BadInput

    if len(folders) != 1 or not folders[0].is_dir():
        raise BadInput("--metrics: one folder with a run's traces, and its card.yaml if there is one, would be right")
    rows = metrics_table(folders[0]).to_dicts()
    if as_json:
        print_json(rows)
        return
    table = quiet_table()
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        value = "–" if row["value"] is None else number(row["value"])
        table.add_row(row["metric"], value, *(str(row[name] or "") for name in row if name not in ("metric", "value")))
    console().print(table)


def _draw(frame: Frame, chart: Path) -> None:
    from assay.observe.traces.picture import plot
    from assay.record import charts

    charts.write(plot(frame), chart)


def _print(about: dict[str, Any]) -> None:
    screen = console()
    spans, ranks = about["spans"], len(about["overlap"])
    screen.print(f"{about['kind']} trace, {spans:,} spans, {ranks} rank{'s' if ranks != 1 else ''}")
    for what, count in about["repairs"].items():
        screen.print(f"mended: {what}" + (f" ({count:,})" if count > 1 else ""), markup=False, soft_wrap=True)
    for line in about["notes"]:
        screen.print(f"note: {line}", markup=False)
    screen.print()
    screen.print(_breakdown(about))
    if about["stragglers"]:
        screen.print()
        screen.print(_stragglers(about["stragglers"]))
    if about["critical_path"]:
        screen.print()
        screen.print(_path(about["critical_path"]))
        if len(about["overlap"]) > 1:
            screen.print(_path_ranks(about["critical_path"]))
    screen.print()
    screen.print(_kernels(about["kernels"]))
    if about["what_if"]:
        screen.print()
        screen.print(_what_ifs(about["what_if"]))


def _breakdown(about: dict[str, Any]) -> Table:
    table = quiet_table()
    for name in ("rank", "step", "time", "compute", "exposed comm", "copies", "idle", "overlap"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = about["breakdown"]
    limit = 40
    for row in rows[:limit]:
        shares = [_share(row[part], row["total"]) for part in ("compute", "exposed", "memcpy", "idle")]
        step = "all" if row["step"] is None else str(row["step"])
        table.add_row(row["rank"], step, _time(row["total"]), *shares, _share(row["overlapped"], row["comm"]))
    if len(rows) > limit:
        table.add_row(f"… {len(rows) - limit} more: --json")
    return table


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _short(name: str) -> str:
    """A kernel's name with its templates may fill a page."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _stragglers(rows: list[dict[str, Any]]) -> Table:
    table = quiet_table()
    for name in ("rank", "came last at", "of collectives", "which cost the others", "waited itself"):
        table.add_column(name, justify="right")
    for row in rows[:10]:
        cost, waited = _time(row["cost"]), _time(row["waited"])
        table.add_row(row["rank"], _share(row["last"], row["collectives"]), number(row["collectives"]), cost, waited)
    return table


def _path(path: dict[str, Any]) -> Table:
    from rich.text import Text

    table = quiet_table()
    table.add_column("critical path", no_wrap=True)
    for name in ("time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most of it", no_wrap=True)
    for kind, seconds in path["kinds"].items():
        names = [row["name"] for row in path["longest"] if row["kind"] == kind]
        told = _host(path) if kind == "host" else _short(names[0]) if names else REASONS.get(kind, "")
        named = Text(told, style="bright_black")
        table.add_row(WORDS[kind], _time(seconds), _share(seconds, path["total"]), named)
    return table


def _host(path: dict[str, Any]) -> str:
    """What the host's time went to, the three longest."""
    whole = path["kinds"]["host"]
    return _short(", ".join(f"{_share(row['seconds'], whole)} {row['name'] or NOTHING}" for row in path["host"][:3]))


def _path_ranks(path: dict[str, Any]) -> str:
    """On which ranks the path runs, the longest part first."""
    limit = 5
    shares = [f"rank {rank} {_share(seconds, path['total'])}" for rank, seconds in path["ranks"].items()]
    more = f", {len(shares) - limit} others" if len(shares) > limit else ""
    return "on " + ", ".join(shares[:limit]) + more


def _kernels(rows: list[dict[str, Any]]) -> Table:
    from rich.text import Text

    table = quiet_table()
    for name in ("time", "calls", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for row in rows:
        table.add_row(_time(row["total"]), number(row["calls"]), _time(row["mean"]), Text(_short(row["name"])))
    return table


def _what_ifs(rows: list[dict[str, Any]]) -> Table:
    table = quiet_table()
    table.add_column("what if", no_wrap=True)
    for name in ("time", "instead of", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        told = row["changed"] is not None
        changed, change = (_time(row["changed"]), f"{row['ratio'] - 1:+.1%}") if told else ("–", "cannot be told")
        table.add_row(row["what_if"], changed, _time(row["recorded"]), change, row["note"])
    return table
