"""`assay show`: one paper explained."""

from __future__ import annotations

import dataclasses

import click

from assay.cli.keys import complete
from assay.cli.output import claims_table, console, full_size_lines, json_option, print_json
from assay.record import catalogue
from assay.record.store import latest
from assay.record.types import Paper, Stated, Study
from assay.record.wording import spoken, with_unit


@click.command(epilog="Example:  assay show radius-fps")
@click.argument("key", shell_complete=complete)
@json_option
def command(key: str, as_json: bool) -> None:
    """The idea in a paragraph, when to use it and when not, its claims, how to run it."""
    paper = catalogue.paper(key)
    study = catalogue.study(key) if catalogue.is_built(paper) else None
    if as_json:
        about = {
            n: getattr(study, n, "") for n in ("idea", "example", "own_input", "use_when", "avoid_when", "references")
        }
        print_json(dataclasses.asdict(paper) | {"built": study is not None} | about)
        return
    _print(paper, study)


def _print(paper: Paper, study: Study | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    screen = console()

    def section(title: str, body: object) -> None:
        screen.print(f"\n[bold]{title}[/bold]")
        screen.print(Padding(body, (0, 0, 0, 2)))  # type: ignore[arg-type]

    screen.print(Text(paper.title, style="bold"))
    arxiv = f"arXiv:{paper.arxiv}" if paper.arxiv else "no arXiv id"
    screen.print(Text(f"{paper.key} · {paper.room} · {arxiv}", style="bright_black"))
    section("In one line", Text(paper.line))
    if study is None:
        for claim in paper.claims:
            section("Claims" if claim is paper.claims[0] else "", Text(_stated(claim)))
        screen.print("\nNot built yet. [bold]assay list --built[/bold] shows what can be run.")
        return
    section("Idea", Text(spoken(study.idea)))
    section("Use it when", Text(study.use_when or "–"))
    section("Leave it when", Text(study.avoid_when or "–"))
    if newest := latest(paper.key):
        section(f"Claims, as measured on {newest[1].started[:10]} ({newest[1].size})", claims_table(newest[1].claims))
        for line in full_size_lines(newest[1]):
            screen.print(Padding(Text(line, style="yellow"), (0, 0, 0, 2)))
    else:
        section("Claims (not measured here yet)", Text("\n".join(map(_stated, paper.claims))))
    section("Run it", Text(f"assay run {paper.key}\nassay run {paper.key} --full --plot {paper.key}.svg"))
    if study.own_input:
        section("On your own input", Text(f"{study.own_input}\n\n{study.example}"))
    link = [f"https://arxiv.org/abs/{paper.arxiv}"] if paper.arxiv else []
    section("References", Text("\n".join([*link, *study.references])))


def _stated(claim: Stated) -> str:
    number = f" {with_unit(claim.value, claim.measured_in)}" if claim.value is not None else ""
    return f"{claim.text}{number}"
