"""The record as a static site: a front page like a journal's contents, and one page a paper.

Every page carries its style and scripts, asks for nothing over the network, and can be mailed alone. Templates escape
all text; a policy in each page admits no script but the page's own, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from assay.record import catalogue, full_size, sources
from assay.record.fold import Folded, folded
from assay.record.site import typeset
from assay.record.site.drawing import plain_svg
from assay.record.site.forest import MARKS, forest
from assay.record.site.strip import strip
from assay.record.store import write_whole
from assay.record.types import ROOMS, Answer, Evidence, Paper, Result, Verdict
from assay.record.wording import interval_text, seeds_text, share_text, with_unit

NOT_BUILT = "not built yet"
# A sign, a word and what it means: no verdict is told by its colour alone.
STATES = {
    Verdict.REPRODUCED.value: ("✓", "at least two thirds of the paper’s effect, and certain; a bound that is kept"),
    Verdict.EXCEEDED.value: ("↑", "more than three halves of the paper’s effect: mostly a weak rival; never counted"),
    Verdict.DIRECTION.value: ("~", "a certain effect that is smaller, or two thirds of it and not certain"),
    Verdict.NOT_REPRODUCED.value: ("✗", "the measurement does not bear the claim out"),
    Verdict.NOT_MEASURED.value: ("·", "no answer from this machine yet; the page says what it takes"),
    Verdict.BY_CONSTRUCTION.value: ("=", "true by how it was written here; no measurement, and never counted"),
    NOT_BUILT: ("–", "listed with its claims; the study is still to be written"),
}
EVIDENCE = {
    Evidence.REAL.value: ("●", "the real thing ran: sockets, files, training, a GPU"),
    Evidence.REPLAY.value: ("◐", "a real public trace drove it"),
    Evidence.MODEL.value: ("○", "a calibrated simulator stood in for hardware that was not at hand"),
}
_SITE = Path(__file__).with_name("site")
_ROWS = 200  # what a reader scrolls through; `assay run KEY --json` has the rest
_TABLE = 300_000  # characters of markup; with the largest plot a page stays below one megabyte


@dataclass(frozen=True, slots=True)
class Entry:
    """A paper as the site shows it."""

    paper: Paper
    built: bool
    result: Result | None = None
    stored: Path | None = None

    @property
    def stale(self) -> bool:
        """Whether the study's code has changed since it was measured."""
        return self.built and self.result is not None and self.result.source != sources.digest(self.paper.module)

    @property
    def tally(self) -> dict[str, int]:
        """How many of the paper's claims got which verdict, or how far they are from one."""
        if self.result and self.result.tally:
            return self.result.tally
        return {Verdict.NOT_MEASURED.value if self.built or self.result else NOT_BUILT: len(self.paper.claims)}

    @property
    def sentences(self) -> list[tuple[str, str, str]]:
        """Each of the paper's claims with its verdict, or how far it is from one, and why it is exceeded."""
        if self.result and self.result.stated:
            return [(answer.verdict.value, answer.text, answer.exceeds) for answer in self.result.stated]
        return [(next(iter(self.tally)), claim.text, "") for claim in self.paper.claims]

    @property
    def contradicted(self) -> dict[str, Answer]:
        """What the study at full size says otherwise, by the claim's id."""
        return full_size.contradictions(self.result) if self.result else {}

    @property
    def full_size(self) -> str:
        """When and where the study ran at full size, and whether that is stale."""
        kept = full_size.runs().get(self.paper.key)
        return kept.where if kept else ""

    @property
    def rank(self) -> int:
        """What was measured comes first in its room, what is not built last."""
        return 0 if self.result else 1 if self.built else 2


@dataclass(frozen=True, slots=True)
class Table:
    """A study's table as text, cut to what a page can carry."""

    name: str
    columns: list[tuple[str, bool]]  # name, and whether its cells are numbers
    rows: list[list[str]]
    cases: int


def write_site(folder: Path, papers: Sequence[Paper], results: Mapping[str, tuple[Path, Result]]) -> None:
    """Write index.html and papers/<key>.html for every paper; `results` maps keys to a stored file and its result."""
    entries = in_order(papers, results)
    for entry, before, after in with_neighbours(entries):
        write_whole(folder / "papers" / f"{entry.paper.key}.html", paper_page(entry, before, after).encode())
    # Last, so that a front page never links to a page that is not there.
    write_whole(folder / "index.html", _render("index.html", scripts=("contents.js",), **front(entries)).encode())


def in_order(papers: Sequence[Paper], results: Mapping[str, tuple[Path, Result]]) -> list[Entry]:
    """The papers as the record lists them: by room, what was measured first."""
    entries = []
    for paper in papers:
        stored, result = results.get(paper.key, (None, None))
        entries.append(Entry(paper, catalogue.is_built(paper), result, stored))
    return sorted(entries, key=lambda entry: (ROOMS.index(entry.paper.room), entry.rank))


def with_neighbours(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Paper | None, Paper | None]]:
    """Each entry with the papers before and after it."""
    papers = [None, *(entry.paper for entry in entries), None]
    yield from zip(entries, papers, papers[2:], strict=False)


def front(entries: Sequence[Entry]) -> dict[str, Any]:
    """What the front page shows."""
    results = [entry.result for entry in entries if entry.result]
    tallies = [entry.tally for entry in entries]
    counts = {state: sum(tally.get(state, 0) for tally in tallies) for state in STATES}
    by_room = {room: [entry for entry in entries if entry.paper.room == room] for room in ROOMS}
    return {
        "entries": entries,
        "rooms": {room: members for room, members in by_room.items() if members},
        "counts": {state: count for state, count in counts.items() if count},
        "forest": forest(results),
        "marks": MARKS,
        "days": typeset.days([result.started for result in results if result.started]),
        "machines": sorted({typeset.machine(result.machine) for result in results} - {""}),
        "claims": sum(a.measured is not None for result in results for a in result.stated),
        "measured": len(results),
    }


def paper_page(entry: Entry, before: Paper | None = None, after: Paper | None = None) -> str:
    """A paper's page, which can be mailed alone."""
    return _render("paper.html", scripts=("copy.js",), before=before, after=after, **about(entry))


def about(entry: Entry) -> dict[str, Any]:
    """What a paper's page shows."""
    result = entry.result
    return {
        "entry": entry,
        "paper": entry.paper,
        "result": result,
        "study": catalogue.about(entry.paper.key) if entry.built else None,
        "plot": _plot(entry),
        "tables": _tables(folded(result)) if result else [],
        "facts": provenance(result) if result else [],
        "command": _command(entry),
    }


def _plot(entry: Entry) -> Markup | None:
    if entry.stored is None:
        return None
    try:
        drawing = entry.stored.with_suffix(".svg").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return plain_svg(drawing, f"Plot of the study of {entry.paper.key}; the table on this page holds its numbers")


def _tables(tables: Mapping[str, Folded]) -> list[Table]:
    """The folded tables: of each as many cases as its part of a page can carry."""
    return [_table(name, table, _TABLE // len(tables)) for name, table in tables.items()]


def _table(name: str, table: Folded, budget: int) -> Table:
    names = [*table.case, "seeds", *table.measured]
    cells = [[*row.case, row.seeds, *row.means] for row in table.rows]
    columns = [[row[i] for row in cells[:_ROWS]] for i in range(len(names))]
    shown: list[list[str]] = []
    for row in zip(*map(typeset.column, columns), strict=True):
        budget -= sum(len(escape(text)) + len("<td class=num></td>") for text in row)
        if budget < 0:
            break
        shown.append(list(row))
    heads = [(head.replace("_", " "), typeset.numeric(column)) for head, column in zip(names, columns, strict=True)]
    return Table(name.replace("_", " ").replace("-", " "), heads, shown, len(cells))


def _command(entry: Entry) -> str:
    """What to type to get this result again, or for the first time."""
    words = ["assay", "run", entry.paper.key]
    if result := entry.result:
        words += ["--full"] if result.size == "full" else []
        words += seeds_words(result.seeds)
        words += ["--on", result.on] if result.on != "local" else []
    return " ".join(words)


def seeds_words(seeds: Sequence[int] | int) -> list[str]:
    """Seeds as `assay run` takes them.

    >>> seeds_words((0, 1, 2)), seeds_words((7,)), seeds_words((3, 17))
    (['--seeds', '3'], ['--seeds', '1', '--first-seed', '7'], ['--seeds', '3,17'])
    """
    if isinstance(seeds, int):
        return ["--seeds", str(seeds)] if seeds else []
    if not seeds:
        return []
    if list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return ["--seeds", str(len(seeds)), *(["--first-seed", str(seeds[0])] if seeds[0] else [])]
    return ["--seeds", ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")]


def provenance(result: Result) -> list[tuple[str, str]]:
    """Where a result comes from, fact by fact."""
    facts = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    python = f"Python {facts['python']}" if facts.get("python") else None
    return [
        ("key", result.key),
        ("size", result.size),
        ("seeds", seeds_text(result.seeds)),
        ("evidence", f"{result.evidence.value}: {EVIDENCE[result.evidence.value][1]}"),
        *([("trust", result.trust)] if result.trust else []),
        ("started", result.started or "unknown"),
        ("took", typeset.seconds(result.seconds)),
        ("machine", typeset.machine(facts) or "unknown"),
        ("system", ", ".join(str(part) for part in (facts.get("os"), python) if part) or "unknown"),
        ("ran on", result.on),
        ("resumed", f"{result.resumed} cases from an interrupted run" if result.resumed else "nothing"),
        ("versions", versions or "unknown"),
        ("commit", result.commit or "outside a checkout"),
        ("source digest", result.source or "unknown"),
    ]


def _render(template: str, scripts: Sequence[str], **values: Any) -> str:
    """A page with its style, its scripts and the policy that admits just those."""
    early, late = _asset("theme.js"), "\n".join(map(_asset, ("switch.js", *scripts)))
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in (early, late))
    policy = (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = templates(_SITE).get_template(template)
    return page.render(
        policy=policy, style=Markup(_asset("style.css")), early=Markup(early), late=Markup(late), **values
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (_SITE / name).read_text(encoding="utf-8").strip()


@cache
def templates(*folders: Path) -> jinja2.Environment:
    """The report's templates; those of other folders may stand in for them, or build on them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, _SITE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        STATES=STATES, EVIDENCE=EVIDENCE, strip=strip, with_unit=with_unit, interval_text=interval_text
    )
    environment.filters.update(
        number=typeset.number, rule=typeset.rule, share=share_text,
        curly=typeset.curly, prose=typeset.prose, inline=typeset.inline,
    )  # fmt: skip
    return environment
