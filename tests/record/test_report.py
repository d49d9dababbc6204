"""The report site as files: what it says, that it stays safe with hostile text, light, and whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record import catalogue
from assay.record.fold import fold
from assay.record.report import write_site
from assay.record.site.drawing import plain_svg
from assay.record.site.strip import strip
from assay.record.types import (
    Answer,
    Evidence,
    Kind,
    Paper,
    Result,
    Stated,
    Study,
    Verdict,
)
from assay.record.verdicts import answered as rejudged

HOSTILE = """<script>alert(1)</script>"><img src=x onerror=alert(2)> & '{{ 7 * 7 }}"""
PLOT = """<svg xmlns="http://www.w3.org/2000/svg" width="300" height="120" viewBox="0 0 300 120">
<defs><clipPath id="clip0"><rect width="300" height="120"/></clipPath></defs>
<g clip-path="url(#clip0)" class="mark-line" role="graphics-object" aria-label="lines">
<path d="M0,100L300,20" stroke="#0072B2" fill="none"/><text x="5" y="12" fill="currentColor">steps</text></g></svg>"""
MACHINE = {
    "cpu": "Test CPU", "cores": 8, "memory_bytes": 64e9, "gpus": ["Test GPU"], "os": "Linux 6", "python": "3.11"
}  # fmt: skip
# One paper for every state a paper can be in, in three rooms.
STATES = {
    "lmetric": "reproduced|direction",
    "taper": "direction",
    "radius-fps": "not reproduced",
    "div": "not measured here",
    "balanceroute": "not measured here",  # built, never run
    "nitsum": "not built yet",
}


def answered(text: str, verdict: Verdict, paper: float | None = 2.0, **more: Any) -> Answer:
    """An answer whose numbers fit its verdict, for a paper's factor of two."""
    numbers = {
        Verdict.REPRODUCED: (1.65172, 1.30511, 1.88213),
        Verdict.DIRECTION: (1.2, 1.1, 1.3),
        Verdict.NOT_REPRODUCED: (0.98, 0.9, 1.05),
        Verdict.NOT_MEASURED: (None, None, None),
    }
    value, low, high = numbers[verdict]
    n = 0 if value is None else 5
    toward = "up" if paper is None else ""
    sentence = Stated("claim", text, Kind.RATIO, paper, toward=toward)
    blank = Answer(text, paper, value, low, high, n, Verdict.NOT_MEASURED, Evidence.REPLAY, **more)
    return replace(rejudged(blank, sentence), id=more.get("id", text.split()[0].lower()))


def make_result(key: str, *answers: Answer, table: list[dict[str, Any]] | None = None) -> Result:
    rows = [{"rule": rule, "size": 10, "seed": seed, "steps": 3.5 + seed} for rule in ("a", "b") for seed in range(3)]
    return Result(
        key, Evidence.REAL, "full", 12.5, MACHINE, rows if table is None else table, answers, seeds=3,
        started="2026-07-09T12:00:00.000Z", source="0123456789abcdef", commit="4f136b5acfd0+",
        versions={"assay": "0.1.0", "numpy": "2.3.1"}, on="ray", resumed=2, cases=("case", "rule", "size"),
    )  # fmt: skip


def make_results(folder: Path) -> dict[str, tuple[Path, Result]]:
    """Stored results of four papers: reproduced, direction, not reproduced and not measured; the first has a plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lmetric.svg").write_text(PLOT, encoding="utf-8")
    results = {
        "lmetric": make_result(
            "lmetric",
            answered("Time to first token falls against vLLM-v1's load-only router.", Verdict.REPRODUCED),
            answered("time per output token falls", Verdict.DIRECTION, note="at `rate=8` alone"),
            answered("the product is the sum of its parts", Verdict.NOT_REPRODUCED, None, stated=False),
        ),
        "taper": make_result("taper", answered("goodput rises", Verdict.DIRECTION)),
        "radius-fps": make_result("radius-fps", answered("sampling is faster", Verdict.NOT_REPRODUCED)),
        "div": make_result("div", answered("steps on a large torus", Verdict.NOT_MEASURED, note="needs a day")),
    }
    return {key: (folder / f"{key}.json", result) for key, result in results.items()}


def pretend_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which papers are built is the fixture's to say: the real answer changes with every paper written."""
    built = {key for key, state in STATES.items() if state != "not built yet"}
    monkeypatch.setattr(catalogue, "is_built", lambda paper: paper.key in built)
    monkeypatch.setattr(catalogue, "about", pretend_study)


def pretend_study(key: str) -> Study:
    return Study(
        catalogue.papers()[key], lambda lab: None, (), Evidence.REAL,
        idea="The first line.\n\nA `product` needs no weights, see arXiv:2603.15202.\n\n    score = a * b",
        use_when="prompts share prefixes", avoid_when="every instance is idle", references=("Somebody, 2026",),
    )  # fmt: skip


def make_site(folder: Path) -> Path:
    """The whole record with the results above, written below a folder."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        pretend_built(monkeypatch)
        write_site(folder / "site", list(catalogue.papers().values()), make_results(folder / "store"))
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("report"))


class Page(HTMLParser):
    """A page's tags with their attributes, its text, and what its elements load or link to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._silent = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def one_page(folder: Path, paper: Paper, results: Mapping[str, tuple[Path, Result]]) -> Page:
    write_site(folder, [paper], results)
    return Page(folder / "papers" / f"{paper.key}.html")


def words(page: Page) -> str:
    return " ".join(page.text.split())


def test_every_paper_has_a_page_and_every_link_leads_somewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == len(catalogue.papers()) + 1
    for path in pages:
        page = Page(path)
        ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
        for link in page.all("a"):
            target = urlsplit(link["href"] or "")
            if target.scheme:
                assert (target.scheme, target.netloc) in {("https", "arxiv.org")}
            elif target.path:
                assert (path.parent / target.path).is_file(), f"{path.name} links to {link['href']}"
            else:
                assert target.fragment in ids


def test_a_page_loads_nothing_and_is_light(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path)
        assert path.stat().st_size < 1_000_000
        assert not any(page.all(tag) for tag in ("img", "iframe", "object", "embed", "base", "image", "video"))
        assert [link["href"] for link in page.all("link")] == ["data:,"]
        assert all("src" not in script for script in page.all("script"))
        style = path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
        assert "url(" not in style
        assert "@import" not in style
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))


def test_no_file_is_left_aside(site: Path) -> None:
    assert {path.suffix for path in site.rglob("*") if path.is_file()} == {".html"}


def test_the_front_page_shows_every_state(site: Path) -> None:
    page = Page(site / "index.html")
    states = {}
    for path, attributes in zip(
        [a["href"] for a in page.all("a") if (a["href"] or "").startswith("papers/") and "title" not in a],
        [li for li in page.all("li") if "data-verdict" in li],
        strict=True,
    ):
        states[Path(path or "").stem] = attributes["data-verdict"]
    assert len(states) == len(catalogue.papers())
    assert {key: states[key] for key in STATES} == STATES
    text = words(page)
    assert "1 of 2 reproduced" in text  # all of the paper's claims, and not our own question
    assert "✓1 reproduced" in text
    assert "✗1 not reproduced" in text
    assert "4 measured, 4 claims answered; 9 July 2026, on Test CPU, 8 cores, 64 GB, Test GPU." in text


def test_the_front_page_has_the_forest_of_all_claims(site: Path) -> None:
    page = Page(site / "index.html")
    labels = [svg.get("aria-label") or "" for svg in page.all("svg") if svg.get("role") == "img"]
    assert labels == [
        "Share of the effect: 72 % (38 … 91)",
        "Share of the effect: 26 % (14 … 38)",
        "Share of the effect: 26 % (14 … 38)",
        "Share of the effect: −3 % (−15 … 7)",
    ]


def test_measured_papers_come_first_in_their_room(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    order = [text.index(f"papers/{key}.html") for key in ("lmetric", "taper", "balanceroute", "nitsum")]
    assert order == sorted(order)


def test_a_paper_page_says_all_there_is(site: Path) -> None:
    page = Page(site / "papers" / "lmetric.html")
    text = words(page)
    for part in (
        "✓1 reproduced", "~1 direction", "✗verdict: not reproduced", "A product needs no weights",
        "prompts share prefixes", "every instance is idle", "against vLLM-v1’s load-only router",
        "1.305 … 1.882×", "72 % (38 … 91)", "1.587 … 2.828",
        "at rate=8 alone",
        "assay’s own question", "assay run lmetric --full --seeds 3 --on ray", "4f136b5acfd0+", "0123456789abcdef",
        "2 cases from an interrupted run", "numpy 2.3.1", "12.5 s", "2026-07-09T12:00:00.000Z", "Somebody, 2026",
    ):  # fmt: skip
        assert part in text, part
    labels = [svg.get("aria-label") or "" for svg in page.all("svg") if svg.get("role") == "img"]
    expected = "Measured 1.652×; 95 % interval 1.305 … 1.882×; the paper says 2×; reproduced if 1.587 … 2.828."
    assert expected in labels
    assert any(label.startswith("Plot of the study") for label in labels)
    assert 'clip-path="url(#plot-clip0)"' in (site / "papers" / "lmetric.html").read_text(encoding="utf-8")


def test_papers_without_a_result_say_so(site: Path) -> None:
    built = words(Page(site / "papers" / "balanceroute.html"))
    assert "Not measured here yet. Run: assay run balanceroute" in built
    unbuilt = words(Page(site / "papers" / "nitsum.html"))
    assert "Not built yet." in unbuilt
    assert "5.3" in unbuilt
    assert catalogue.papers()["nitsum"].line in unbuilt


def test_prose_is_read_off_the_source_so_no_module_is_imported_for_it(site: Path) -> None:
    page = Page(site / "papers" / "taper.html")
    assert "idea" in [attributes.get("id") for _, attributes in page.tags]
    assert catalogue.papers()["taper"].line in words(page)


def test_a_missing_number_of_the_paper_is_not_a_zero(tmp_path: Path) -> None:
    better = Stated("claim", "It is better.", Kind.RATIO, toward="up")
    paper = Paper("quiet", "data", "Quiet", None, "Says nothing.", (better,))
    result = make_result("quiet", answered("is better", Verdict.REPRODUCED, None))
    page = one_page(tmp_path, paper, {"quiet": (tmp_path / "quiet.json", result)})
    assert "no number" in words(page)
    assert "arxiv.org" not in " ".join(a["href"] or "" for a in page.all("a"))


def test_works_with_no_results_and_with_no_papers(tmp_path: Path) -> None:
    write_site(tmp_path / "all", list(catalogue.papers().values()), {})
    assert "Nothing is measured here yet" in words(Page(tmp_path / "all" / "index.html"))
    write_site(tmp_path / "none", [], {})
    assert "0 papers" in words(Page(tmp_path / "none" / "index.html"))


def test_hostile_text_is_only_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper("evil", "data", HOSTILE, '"><script>', HOSTILE, (Stated("claim", HOSTILE, Kind.RATIO, 2.0),))
    hostile_study = Study(
        paper, lambda lab: None, (), Evidence.REAL, idea=f"{HOSTILE}\n\n- `{HOSTILE}`\n\n    {HOSTILE}",
        use_when=HOSTILE, avoid_when=HOSTILE, references=(f"https://example.org/{HOSTILE}", "javascript:alert(1)"),
    )  # fmt: skip
    monkeypatch.setattr(catalogue, "is_built", lambda paper: True)
    monkeypatch.setattr(catalogue, "about", lambda key: hostile_study)
    result = Result(
        "evil", Evidence.REAL, HOSTILE, 1.0, {"cpu": HOSTILE, "cores": HOSTILE, "gpus": [HOSTILE], "os": HOSTILE},
        [{HOSTILE: HOSTILE, "seed": 0, "steps": HOSTILE}],
        (answered(HOSTILE, Verdict.REPRODUCED, note=HOSTILE, broken=True),),
        started=HOSTILE, source=HOSTILE, commit=HOSTILE, versions={HOSTILE: HOSTILE}, on=HOSTILE,
    )  # fmt: skip
    for page in (
        one_page(tmp_path, paper, {"evil": (tmp_path / "evil.json", result)}),
        Page(tmp_path / "index.html"),
    ):
        assert len(page.all("script")) == 2
        assert not page.all("img")
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        assert not any((a["href"] or "").startswith("javascript:") for a in page.all("a"))
        assert "<script>alert(1)</script>" in page.text
        assert "{{ 7 * 7 }}" in page.text


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<g onclick="alert(1)"/>',
        '<g OnLoad="alert(1)"/>',
        "<foreignObject><p>hi</p></foreignObject>",
        '<image href="https://example.org/a.png"/>',
        '<use href="https://example.org/a.svg#x"/>',
        '<use xmlns:xlink="http://www.w3.org/1999/xlink" xlink:href="https://example.org/a.svg#x"/>',
        '<use href="javascript:alert(1)"/>',
        '<a href="#x"><text>x</text></a>',
        '<rect fill="url(https://example.org/a.svg#x)"/>',
        '<rect mask="u\\72l(https://example.org)"/>',
        '<rect mask="image-set(&quot;https://example.org/a.png&quot; 1x)"/>',
        "<style>@import 'https://example.org/a.css'</style>",
        '<animate attributeName="href" to="javascript:alert(1)"/>',
        '<set attributeName="onclick" to="alert(1)"/>',
        '<html:script xmlns:html="http://www.w3.org/1999/xhtml">alert(1)</html:script>',
        '<g unknown="1"/>',
        "<unclosed>",
    ],
)
def test_a_hostile_plot_is_refused(inside: str, tmp_path: Path) -> None:
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    assert plain_svg(drawing, "plot") is None
    (tmp_path / "evil.svg").write_text(drawing)
    paper = Paper("evil", "data", "Evil", None, "Draws.", ())
    page = one_page(tmp_path / "site", paper, {"evil": (tmp_path / "evil.json", make_result("evil"))})
    assert "plot" not in [attributes.get("id") for _, attributes in page.tags]


def test_a_plot_must_be_svg_without_document_type_and_of_a_size() -> None:
    assert plain_svg("<html/>", "plot") is None
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaa">]><svg xmlns="http://www.w3.org/2000/svg"><text>&a;</text></svg>'
    assert plain_svg(bomb, "plot") is None
    assert plain_svg(PLOT.replace("steps", "s" * 1_000_000), "plot") is None
    assert plain_svg("<g>" * 100_000, "plot") is None


def test_a_styled_chart_of_ours_is_plain(tmp_path: Path) -> None:
    import altair as alt
    import polars as pl

    from assay.record import charts

    rows = pl.DataFrame({"x": [1, 2, 3], "y": [2.0, 4.0, 8.0], "by": ["a", "b", "a"]})
    line = alt.Chart(rows).mark_line(clip=True, point=True).encode(x="x:Q", y="y:Q", color="by:N")
    heat = alt.Chart(rows).mark_rect().encode(x="x:O", y="by:N", color="y:Q")
    for chart in (line, heat, line | heat, line.facet("by:N")):
        drawing = plain_svg(charts.svg(chart), 'a "plot"')
        assert drawing is not None
        assert 'aria-label="a &quot;plot&quot;"' in drawing


def test_an_unreadable_plot_is_no_plot(tmp_path: Path) -> None:
    (tmp_path / "odd.svg").write_bytes(b"\xff\xfe\x00")
    paper = Paper("odd", "data", "Odd", None, "Draws.", ())
    assert one_page(tmp_path / "site", paper, {"odd": (tmp_path / "odd.json", make_result("odd"))})


def test_a_large_table_is_cut_and_the_page_says_so(tmp_path: Path) -> None:
    rows = [{"case": i, "seed": 0, **{f"column_{c}": i / 7 + c for c in range(10)}} for i in range(5_000)]
    paper = Paper("large", "data", "Large", None, "Has rows.", ())
    (tmp_path / "large.svg").write_text(PLOT.replace("steps", "s" * 490_000))
    stored = {"large": (tmp_path / "large.json", make_result("large", table=rows))}
    page = one_page(tmp_path / "site", paper, stored)
    assert (tmp_path / "site" / "papers" / "large.html").stat().st_size < 1_000_000
    assert "5,000 cases, means over seeds. The first 200 are shown; assay run large --json has all." in words(page)
    assert len(page.all("tr")) == 201


def test_experiments_are_tables_with_names_and_share_the_page(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"experiment": name, "case": i, "seed": 0, **{f"column_{c}": "x" * 90 for c in range(9)}, f"only_{name}": 1}
        for name in ("cost", "safety", "latency")
        for i in range(500)
    ]
    paper = Paper("three", "data", "Three", None, "Has tables.", ())
    page = one_page(tmp_path, paper, {"three": (tmp_path / "three.json", make_result("three", table=rows))})
    assert (tmp_path / "papers" / "three.html").stat().st_size < 1_000_000
    shown = words(page)
    assert len(page.all("thead")) == 3
    assert [shown.count(f"only {name}") for name in ("cost", "safety", "latency")] == [1, 1, 1]


def test_a_table_of_long_hostile_cells_is_cut_too(tmp_path: Path) -> None:
    rows = [{f"column_{c}": "<" * 5_000 for c in range(40)} for _ in range(500)]
    paper = Paper("wide", "data", "Wide", None, "Has cells.", ())
    one_page(tmp_path, paper, {"wide": (tmp_path / "wide.json", make_result("wide", table=rows))})
    assert (tmp_path / "papers" / "wide.html").stat().st_size < 1_000_000


def test_fold_keeps_cases_apart_and_takes_means() -> None:
    rows = [
        {"graph": "torus", "n": 4, "seed": 0, "steps": 2, "ok": True, "by": "a"},
        {"graph": "torus", "n": 4, "seed": 1, "steps": 4, "ok": False, "by": "b"},
        {"graph": "torus", "n": 8, "seed": 0, "steps": None, "ok": True, "by": "a", "late": [1]},
    ]
    case, measured, folded = fold(rows, cases=("graph", "n"))
    assert (case, measured) == (("graph", "n"), ("steps", "ok", "by", "late"))
    assert [tuple(row) for row in folded] == [
        (("torus", 4), 2, (3.0, False, "2 kinds", None)),
        (("torus", 8), 1, (None, True, "a", [1])),
    ]


def test_fold_takes_lists_as_cases_and_tables_without_seeds() -> None:
    assert len(fold([{"path": [1], "seed": 0}, {"path": [2], "seed": 0}], ["path"]).rows) == 2
    assert fold([{"a": 1}, {"a": 1}], ()).rows == [((), 1, (1,)), ((), 1, (1,))]
    assert fold([], ()) == ((), (), [])


reals = st.floats(allow_nan=True, allow_infinity=True) | st.none()


@given(reals, reals, reals, st.floats(-1e300, 1e300) | st.none(), st.sampled_from(Kind))
def test_a_strip_stays_on_its_axis(
    measured: float | None, low: float | None, high: float | None, paper: float | None, kind: Kind
) -> None:
    answer = Answer("", paper, measured, low, high, 3, Verdict.REPRODUCED, Evidence.REAL, kind=kind, toward="up")
    drawn = strip(answer)
    if drawn is None:
        return
    marks = [drawn.measured, *(drawn.interval or ()), *drawn.region, *drawn.bounds]
    marks += [mark for mark in (drawn.paper, drawn.zero, drawn.neutral) if mark is not None]
    assert all(0 <= mark <= 100 for mark in marks)
    assert not re.search("nan|None", drawn.left + drawn.right + drawn.text)


def test_a_result_of_an_earlier_version_says_so(site: Path) -> None:
    # The fixture's digest is made up, so it is no version that exists.
    assert "Measured with an earlier version of this study" in (site / "papers" / "radius-fps.html").read_text()


def test_the_policy_admits_the_page_own_scripts_only(site: Path) -> None:
    page = Page(site / "index.html")
    policy = next(meta["content"] or "" for meta in page.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert len(page.all("script")) == policy.count("sha256-") == 2
