"""`assay show`: one paper explained."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from assay.cli.keys import complete
from assay.cli.output import claims_table, console, full_size_lines, json_option, print_json, quiet_table
from assay.record import catalogue, full_size
from assay.record.store import latest
from assay.record.types import Paper, Study, Verdict
from assay.record.wording import spoken, with_unit

if TYPE_CHECKING:
    from rich.table import Table


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
        screen.print(Padding(body, (0, 0, 0, 2), expand=False))  # type: ignore[arg-type]

    screen.print(Text(paper.title, style="bold"))
    arxiv = f"arXiv:{paper.arxiv}" if paper.arxiv else "no arXiv id"
    screen.print(Text(f"{paper.key} · {paper.room} · {arxiv}", style="bright_black"))
    section("In one line", Text(paper.line))
    if study is None:
        section("What it claims", _claims(paper))
        screen.print("\nNot built yet. [bold]assay list --built[/bold] shows what can be run.")
        return
    section("Idea", Text(spoken(study.idea)))
    section("Use it when", Text(study.use_when or "–"))
    section("Leave it when", Text(study.avoid_when or "–"))
    if newest := latest(paper.key):
        section(f"Claims, as measured on {newest[1].started[:10]} ({newest[1].size})", claims_table(newest[1].claims))
        for line in full_size_lines(newest[1]):
            screen.print(Padding(Text(line, style="yellow"), (0, 0, 0, 2), expand=False))
    else:
        section("What it claims (not measured here yet)", _claims(paper))
        if kept := full_size.runs().get(paper.key):
            reproduced = sum(answer.verdict is Verdict.REPRODUCED for answer in kept.answers)
            found = f"{reproduced} of {len(kept.answers)} reproduced"
            found += f"; {full_size.STALE}" if kept.stale else ""
            once = Text(f"At full size, {kept.started[:10]} on {kept.machine}: {found}.", style="bright_black")
            screen.print(Padding(once, (0, 0, 0, 2), expand=False))
    section("Run it", Text(f"assay run {paper.key}\nassay run {paper.key} --full --plot {paper.key}.svg  (minutes)"))
    if study.own_input:
        section("On your own input", Text(f"{study.own_input}\n\n{study.example}"))
    link = [f"https://arxiv.org/abs/{paper.arxiv}"] if paper.arxiv else []
    section("References", Text("\n".join([*link, *study.references])))


def _claims(paper: Paper) -> Table:
    """The paper's sentences, the paper's number behind each."""
    from rich.text import Text

    table = quiet_table()
    table.show_header = False
    for claim in paper.claims:
        said = Text(claim.text)
        if claim.value is not None:
            said.append(f" Paper: {with_unit(claim.value, claim.measured_in)}.", style="bright_black")
        table.add_row("•", said)
    return table
