"""`assay demo`: a comparison, two studies and the report, and one screen that says what came out."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import json_option, print_json, progress_bar
from assay.record import catalogue, dots
from assay.record.store import latest

if TYPE_CHECKING:
    from assay.record.types import Result

FLEET = "8xh200:qwen3-32b"
STUDIES = ("div", "radius-fps")
TRACES = 5
OWN = Path("examples/chats.jsonl")


@click.command(epilog="Example:  assay demo --html report")
@click.option(
    "--html", type=click.Path(file_okay=False, path_type=Path), default=Path("report"), show_default=True,
    help="Write the report and the picture of the comparison into DIR.",
)  # fmt: skip
@json_option
def command(html: Path, as_json: bool) -> None:
    """Compare routers, run two studies, write the report, and say on one screen what came out."""
    answer, picture = _compare(html)
    results = [_study(key) for key in STUDIES]
    _say("writing the report")
    from assay.record.report import write_site

    papers = list(catalogue.papers().values())
    write_site(html, papers, {p.key: newest for p in papers if catalogue.is_built(p) and (newest := latest(p.key))})
    if as_json:
        counts = {result.key: result.headline for result in results}
        print_json({"comparison": answer, "reproduced": counts, "report": str(html / "index.html")})
        return
    width = min(shutil.get_terminal_size((96, 24)).columns, 96)
    for line in screen(answer, results, [html / "index.html", picture], width, _plain()):
        click.echo(line)


def _plain() -> bool:
    """Whether this output can show nothing but ASCII."""
    return dots.signs(sys.stdout.encoding) is dots.ASCII


def _say(what: str) -> None:
    click.echo(f"{what} …" if not _plain() else f"{what} ...", err=True)


def _compare(html: Path) -> tuple[dict[str, Any], Path]:
    from assay.record import charts
    from assay.serving import compare as serving
    from assay.serving import fleet
    from assay.serving.engine import step_sources
    from assay.serving.engine.own_trace import generated
    from assay.serving.engine.plots import comparison

    traces = [generated("agents", seed=seed) for seed in range(TRACES)]
    policies, spec = serving.DEFAULT.split(","), fleet.parse(FLEET)
    many = sum(map(len, traces))
    _say(f"comparing {len(policies)} routers on {many:,} requests (the first time the simulator is compiled)")
    with progress_bar("compare") as progress:
        table, runs = serving.over_traces(traces, spec, policies, progress)
    picture = html / "compare.svg"
    charts.write(comparison(runs), picture)
    told = {"requests": many, "traces": len(traces), "table": table, "trust": step_sources.told(spec)}
    return told, picture


def _study(key: str) -> Result:
    from assay.record.runner import run

    _say(f"running the study of {key}")
    with progress_bar(key) as progress:
        return run(key, progress=progress)


def screen(
    answer: dict[str, Any], results: Sequence[Result], pictures: Sequence[Path], width: int, plain: bool
) -> list[str]:
    """What was compared, who won and how sure that is, where the picture is, what to type next."""
    best, second, *_ = rows = answer["table"]
    gap = f"{100 * second['led_by']:.0f} %"
    sure = f"{100 * second['led_by_low']:.0f} to {100 * second['led_by_high']:.0f} %".replace("-", "−")
    if second["led_by_low"] > 0:
        won = f"{best['policy']}: answers begin {gap} sooner than with {second['policy']}, the next best."
        certain = f"With other traces of the same kind the lead would be {sure} (95 % interval)."
    else:
        won = f"Nobody: {best['policy']} and {second['policy']} tie."
        certain = f"The difference of {gap} could as well be {sure} with other traces (95 % interval)."
    parts = {
        "compared": f"{len(rows)} ways to choose which of 8 GPUs gets the next question to a language model. A "
        f"simulator ({FLEET}) sent each of them the same {answer['requests']:,} requests of chats and agents, in "
        f"{answer['traces']} traces.",
        "won": won,
        "sure": f"{certain} {answer['trust']}",
        "also run": "the studies of two papers, on this machine: "
        + "; ".join(f"of {result.key} {result.headline} claims reproduced" for result in results),
        "pictures": ", ".join(map(str, pictures)),
    }
    lines = [""]
    for name, text in parts.items():
        lines += [*_folded(name, text, width), ""]
        if name == "compared":
            lines[-1:] = [*_bars({row["policy"]: row["ttft_mean"] for row in rows}, width, plain), ""]
    lines += _next(width)
    if plain:
        lines = [line.replace("−", "-").encode("ascii", "replace").decode() for line in lines]
    return lines


_HEAD = 10  # letters before the text


def _folded(name: str, text: str, width: int) -> list[str]:
    import textwrap

    first = f"{name.upper():<{_HEAD}}"
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * _HEAD, break_on_hyphens=False)


def _bars(seconds: dict[str, float], width: int, plain: bool) -> list[str]:
    label, most = max(map(len, seconds)), max(seconds.values())
    room = max(8, min(40, width - _HEAD - label - 11))
    drawn = [
        f"{'':<{_HEAD}}{name:<{label}}  {value:.2f} s  {('#' if plain else '█') * max(1, round(room * value / most))}"
        for name, value in seconds.items()
    ]
    return [f"{'':<{_HEAD}}Mean time until an answer begins:", *drawn]


def _next(width: int) -> list[str]:
    program = _program()
    trace = OWN if OWN.exists() else Path("my.jsonl")
    lines = {
        f"{program} compare serving --trace {trace}": "the same with a file of your own requests",
        f"{program} show lmetric": "one paper explained",
        f"{program} web --open": "the workbench: all of this in the browser",
    }
    wide = max(map(len, lines))
    said = [f"{line:<{wide}}  {what}" for line, what in lines.items()]
    if max(map(len, said)) + _HEAD > width:
        said = [part for line, what in lines.items() for part in (f"{what}:", f"  {line}")]
    return [f"{'TYPE NEXT' if at == 0 else '':<{_HEAD}}{line}" for at, line in enumerate(said)]


def _program() -> str:
    """How this program can be called again from here."""
    called = Path(sys.argv[0])
    if called.name != "assay" or shutil.which("assay"):
        return "assay"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)
