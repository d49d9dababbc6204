"""`assay watch`: where a training job's steps go and which rank to look at, while it runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.live.watch.rounds import Over, Watch
    from assay.live.watch.summary import Summary


@click.command(
    epilog="Example:  assay watch run -- torchrun --nproc-per-node 4 examples/train.py    or    "
    "assay watch /scratch/run7 --once"
)
@click.argument("where", nargs=-1, metavar="[DIR | run -- COMMAND...]")
@click.option("--port", type=click.IntRange(0, 65535), default=9099, show_default=True, help="UDP port; 0: any free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for other nodes.")
@click.option("--once", is_flag=True, help="One summary when the job is over, instead of a view.")
@click.option("--seconds", type=click.FloatRange(0.0), help="End after so many seconds; with run, the job as well.")
@click.option("--window", default=50, show_default=True, help="Steps that are judged together.")
@click.option(
    "--reference", type=int, default=0, metavar="STEPS",
    help="Compare with the first STEPS of the job, taken for healthy, instead of ranks with one another.",
)  # fmt: skip
@click.option(
    "--lengths", type=click.Path(path_type=Path), metavar="CSV",
    help="Which sequences each rank got (step, rank, lengths): suspects are asked whether these explain their time.",
)  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this loopback port.")
@json_option
def command(
    where: tuple[str, ...], port: int, host: str, once: bool, seconds: float | None, window: int, reference: int,
    lengths: Path | None, metrics_port: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Show where a job's steps go and which rank holds the others up.

    The job imports `assay.live.monitor` and finds this watcher by ASSAY_WATCH=HOST:PORT. Where ranks cannot reach a
    port, they write into a shared folder DIR. `assay watch run -- COMMAND` starts the job itself, and ends with its
    exit code. With --json, a line for every window, for every change in a rank's state, and for a hang.

    Exit code 1: the job hangs, or ended while it hung; --once waits for its end, or until it has hung for long.
    """
    from assay.live.announce import announce
    from assay.live.watch.gather import SILENCE, Gathering
    from assay.live.watch.metrics import MetricsPage
    from assay.live.watch.rounds import Watch
    from assay.live.watch.second_opinion import SecondOpinion
    from assay.live.watch.sources import Folder, Port, Source

    second = None if lengths is None else SecondOpinion(lengths)
    job = where[1:] if where[:1] == ("run",) else ()
    if where and not job and (len(where) > 1 or where == ("run",)):
        raise BadInput("one folder, or 'run -- COMMAND', would be right; for a folder named run write ./run")
    source: Source = Folder(Path(where[0])) if where and not job else Port(0 if job and port == 9099 else port, host)
    # Files on a shared file system may come into sight half a minute late.
    watch = Watch(source, Gathering(window, reference, SILENCE if isinstance(source, Port) else 6 * SILENCE), second)
    page = None if metrics_port is None else MetricsPage(metrics_port, lambda: watch.latest)
    if page is not None:
        click.echo(f"metrics: http://127.0.0.1:{page.port}/metrics", err=True)
        announce("watch", f"http://127.0.0.1:{page.port}")  # the workbench looks at it
    try:
        code = _run(watch, job, once, seconds, as_json) if job else _watch(watch, once, seconds, as_json)
    finally:
        source.close()
        if page is not None:
            page.close()
    raise click.exceptions.Exit(code)


def _watch(watch: Watch, once: bool, seconds: float | None, as_json: bool) -> int:
    from assay.live.watch.rounds import at_the_end, endless, follow

    live = sys.stdout.isatty() and not once and not as_json
    if not live:
        click.echo(f"watching; in the job's environment: ASSAY_WATCH={watch.source.place}", err=True)
    signal.signal(signal.SIGTERM, _leave)
    over = at_the_end if once or not (live or as_json) else endless
    try:
        if live:
            follow(watch, console(), over, seconds)
        else:
            _gather(watch, over, seconds, as_json and not once)
    except KeyboardInterrupt:
        pass  # the way to end it
    if not live:
        _tell(watch, as_json)
    return int(watch.whole().hang)


def _run(watch: Watch, command: Sequence[str], once: bool, seconds: float | None, as_json: bool) -> int:
    """The job and the view side by side; the watcher lasts as long as the job, and the job `seconds` at most."""
    from time import monotonic

    from assay.live.watch.job import Job

    end = None if seconds is None else monotonic() + seconds
    live = sys.stdout.isatty() and not once and not as_json
    screen, hung = console(), None
    job = Job(
        command, watch.source.place, (lambda line: screen.print(line, markup=False)) if live else None,
        output=sys.stderr.fileno() if as_json else None,
    )  # fmt: skip
    # The terminal sends Ctrl-C to the job as well: it decides, we wait for it.
    before = {number: signal.signal(number, job.forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)

    def over(seen: Summary) -> bool:
        return not job.running or (end is not None and monotonic() >= end) or (once and seen.given_up)

    try:
        if live:
            _beside(watch, screen, over)
        else:
            _gather(watch, over, None, as_json and not once)
        if job.running:
            late = end is not None and monotonic() >= end
            hung = None if late else watch.whole()  # who is frozen and who waits: in a moment all of them are dead
            click.echo(f"the job is ended{f' after {seconds:g} s' if late else ': it will not go on'}", err=True)
    finally:
        job.end()
        for number, handler in before.items():
            signal.signal(number, handler)
    code = job.code()
    watch.poll(0.0)  # last words
    _tell(watch, as_json, hung)
    return 1 if watch.whole().hang else code


def _beside(watch: Watch, screen: Any, over: Over) -> None:
    """A view below what the job prints."""
    from rich.live import Live

    from assay.live.watch.picture import frame

    with Live(console=screen, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        for summary in watch.polls(over, every=0.5):
            width, height = screen.size
            live.update(frame(summary, width, max(height - 8, 10), watch.source.place), refresh=True)


def _gather(watch: Watch, over: Over, seconds: float | None, lines: bool) -> None:
    hung = False
    for seen in watch.polls(over, seconds, every=0.5):
        if seen.hang and not hung:
            click.echo(f"the job hangs: {seen.why}", err=True)
        hung = seen.hang
        for due in watch.due() if lines else ():
            _line("window" if due is not watch.latest else "hang" if due.hang else "ranks", due)


def _tell(watch: Watch, as_json: bool, whole: Summary | None = None) -> None:
    """The whole job, as far as it is still known, or as it was."""
    whole = whole or watch.whole()
    if as_json:
        _line("end", whole)
        return
    from assay.live.watch.picture import frame

    screen = console()
    screen.print(frame(whole, screen.width, 60, watch.source.place))


def _line(kind: str, summary: Summary) -> None:
    import msgspec

    row = {"kind": kind} | msgspec.to_builtins(summary)
    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    sys.stdout.flush()


def _leave(*_: Any) -> None:
    """End as if interrupted, so that the terminal is left as it was found and the summary is printed."""
    raise KeyboardInterrupt
