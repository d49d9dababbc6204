"""What people have of papers: told by its content, read, matched, and refused in one line when it is hostile."""

from __future__ import annotations

import io
import re
import tomllib
from html import escape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import feed
from assay.record.catalogue import paper, papers
from assay.record.errors import AssayError, BadInput
from assay.record.feed.entry import Entry
from tests.conftest import Package

Three = tuple[str, str, str]  # number with its version, title, abstract


def atom(*entries: Three) -> bytes:
    """An answer as the public API writes it."""
    body = "".join(
        f"<entry><id>http://arxiv.org/abs/{arxiv}</id><title>{escape(title)}</title>"
        f"<updated>2026-06-05T06:53:34Z</updated>"
        f'<link href="https://arxiv.org/abs/{arxiv}" rel="alternate" type="text/html"/>'
        f"<summary>{escape(summary)}</summary>"
        "<published>2026-06-02T18:07:51Z</published><author><name>A. Author</name></author>"
        '<category term="cs.DC" scheme="http://arxiv.org/schemas/atom"/></entry>'
        for arxiv, title, summary in entries
    )
    head = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/" '
        'xmlns:arxiv="http://arxiv.org/schemas/atom" xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://arxiv.org/api/G51</id><title>arXiv Query</title><updated>2026-06-09T23:24:39Z</updated>"
        "<opensearch:totalResults>2</opensearch:totalResults>"
    )
    return f"{head}{body}</feed>".encode()


def stripped(separator: str) -> bytes:
    """What is left of an answer when its tags go: glued together, or with a space where they were."""
    answer = atom(*ALL).decode().split("\n", 1)[1].replace("&amp;", "&").replace("&quot;", '"')
    return separator.join(part for part in re.split(r"<[^>]*>", answer) if part).encode()


def rss(*entries: Three) -> bytes:
    """arXiv's daily feed, RSS 2."""
    items = "".join(
        f"<item><title>{escape(title)}</title><link>https://arxiv.org/abs/{arxiv.partition('v')[0]}</link>"
        f"<description>arXiv:{arxiv} Announce Type: new \nAbstract: {escape(summary)}</description>"
        f'<guid isPermaLink="false">oai:arXiv.org:{arxiv}</guid><category>cs.DC</category>'
        "<pubDate>Fri, 05 Jun 2026 00:00:00 -0400</pubDate><dc:creator>A. Author</dc:creator></item>"
        for arxiv, title, summary in entries
    )
    return (
        '<?xml version="1.0"?><rss xmlns:dc="http://purl.org/dc/elements/1.1/" version="2.0"><channel>'
        f"<title>cs.DC updates on arXiv.org</title><link>http://rss.arxiv.org/rss/cs.DC</link>{items}</channel></rss>"
    ).encode()


def old_rss(*entries: Three) -> bytes:
    """RSS 1, as mirrors and archives still have it: the number stands behind the title."""
    items = "".join(
        f'<item rdf:about="http://arxiv.org/abs/{arxiv}"><title>{escape(title)}. (arXiv:{arxiv} [cs.DC])</title>'
        f"<link>http://arxiv.org/abs/{arxiv}</link><description>{escape(summary)}</description></item>"
        for arxiv, title, summary in entries
    )
    return (
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
        f"<channel><title>cs.DC</title></channel>{items}</rdf:RDF>"
    ).encode()


def saved_page(*entries: Three) -> bytes:
    """arxiv.org/list/cs.DC/new, saved."""
    items = "".join(
        f'<dt>\n<a name=\'item{n}\'>[{n}]</a>\n <a href ="/abs/{number}" title="Abstract" id="{number}">\n'
        f'  arXiv:{number}\n</a>\n(cross-list from cs.LG)\n[<a href="/pdf/{number}">pdf</a>, '
        f'<a href="https://arxiv.org/html/{arxiv}">html</a>, <a href="/format/{number}">other</a>]\n</dt>\n<dd>\n'
        "<div class='meta'>\n<div class='list-title mathjax'><span class='descriptor'>Title:</span>\n"
        f"  {escape(title)}\n</div>\n<div class='list-authors'><a href=\"https://arxiv.org/a/b\">A. Author</a></div>\n"
        "<div class='list-comments'><span class='descriptor'>Comments:</span> 12 pages</div>\n"
        f"<div class='list-subjects'><span class='descriptor'>Subjects:</span> cs.DC</div>\n"
        f"<p class='mathjax'>\n{escape(summary)}\n</p></div></dd>\n"
        for n, (arxiv, title, summary) in enumerate(entries, 1)
        for number in [arxiv.partition("v")[0]]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><title>Distributed Computing</title><script>alert("arXiv:2699.99999")'
        f"</script></head><body><h1>Showing new listings</h1><dl id='articles'>{items}</dl></body></html>"
    ).encode()


def search_page(*entries: Three) -> bytes:
    """arxiv.org/search, saved: titles carry no label."""
    items = "".join(
        f'<li class="arxiv-result"><p class="list-title"><a href="https://arxiv.org/abs/{number}">arXiv:{number}</a>'
        f'<span>&nbsp;[<a href="https://arxiv.org/pdf/{number}">pdf</a>]</span></p><span class="tag">cs.DC</span>'
        f'<p class="title is-5 mathjax">{escape(title)}</p><p class="authors"><span>Authors:</span> A. Author</p>'
        f'<p class="abstract">Abstract: {escape(summary)}</p></li>'
        for arxiv, title, summary in entries
        for number in [arxiv.partition("v")[0]]
    )
    return f"<html><body><ol>{items}</ol></body></html>".encode()


def links(*entries: Three) -> bytes:
    """Somebody's reading list: titles that link to arXiv."""
    items = "".join(f'<li><a href="https://arxiv.org/abs/{a}">{escape(t)}</a> (2026)</li>' for a, t, _ in entries)
    return f"<!doctype html><title>To read</title><ul>{items}</ul>".encode()


def copied(*entries: Three) -> bytes:
    """A listing page as a browser copies it."""
    return "\n".join(
        f"[{n}]\narXiv:{arxiv.partition('v')[0]} (replaced) [pdf, html, other]\nTitle: {' '.join(title.split())}\n"
        f"A. Author, B. Author\nComments: 12 pages\nSubjects: Distributed Computing (cs.DC)\n{summary}\n"
        for n, (arxiv, title, summary) in enumerate(entries, 1)
    ).encode()


def mailed(*entries: Three) -> bytes:
    """arXiv's daily mail: a long title goes on in the next line."""
    return "\n".join(
        f"{'-' * 78}\n\\\\\narXiv:{arxiv.partition('v')[0]}\nDate: Tue, 2 Jun 2026 18:07:51 GMT   (39kb)\n\n"
        f"Title: {' '.join(title.split()).replace(' for ', chr(10) + '  for ')}\nAuthors: A. Author\n"
        f"Categories: cs.DC\n\\\\\n  {summary}\n\\\\ ( https://arxiv.org/abs/{arxiv.partition('v')[0]} ,  39kb)"
        for arxiv, title, summary in entries
    ).encode()


def bibtex(*entries: Three) -> bytes:
    """A bibliography as arXiv, Scholar and hand-written files have it."""
    first, second, third = entries
    return (
        "% my reading\n@string{arx = {arXiv preprint arXiv:}}\n@comment{nothing}\n"
        f"@misc{{a, title={{{{{first[1]}}}}},\n eprint={{{first[0]}}}, archivePrefix={{arXiv}}, year={{2026}}}}\n"
        f'@article{{b, title = "{second[1].replace("&", chr(92) + "&").replace(chr(34), "{" + chr(34) + "}")}",\n'
        f' journal = arx # "{second[0]}", year = 2026 }}\n'
        f"@inproceedings(c, title={{{third[1]}}}, doi={{10.48550/arXiv.{third[0]}}})\n"
    ).encode()


def numbers(*entries: Three) -> bytes:
    """One number, one citation, one link."""
    a, b, c = (arxiv for arxiv, _, _ in entries)
    return f"# to read\n{a}\narXiv:{b}, https://arxiv.org/pdf/{c}.pdf\n\n".encode()


KNOWN = ("2606.06381v1", "Discrete Incremental Voting: New Bounds\n  for General Graphs and Expanders", "Voting.")
ROUTER = (
    "2611.00001v2",
    'Fast & "Fair": LLM request routing',
    "We route requests over KV caches of LLM replicas; see http://arxiv.org/abs/2501.00001 for the long version.",
)
BREAD = ("2611.00002v1", "Sourdough at altitude", "Baking bread.")
ALL = (KNOWN, ROUTER, BREAD)
FORMATS = {
    "Atom": atom(*ALL),
    "RSS": rss(*ALL),
    "Atom without its tags": stripped(" "),
    "arXiv listing as a page": saved_page(*ALL),
    "arXiv listing as text": copied(*ALL),
    "BibTeX": bibtex(*ALL),
    "list of arXiv numbers": numbers(*ALL),
}
WRITTEN = [
    *FORMATS.items(), ("RSS", old_rss(*ALL)), ("Atom without its tags", stripped("")),
    ("arXiv listing as a page", search_page(*ALL)), ("arXiv listing as a page", links(*ALL)),
    ("arXiv listing as text", mailed(*ALL)), ("Atom", atom(*ALL).replace(b"http://arxiv.org/abs/", b"oai:arXiv.org:")),
    ("BibTeX", bibtex(*ALL).replace(b"\n", b"\r\n")), ("list of arXiv numbers", b"\xef\xbb\xbf" + numbers(*ALL)),
    ("arXiv listing as text", copied(*ALL).decode().encode("utf-16")),
]  # fmt: skip


def read(content: bytes) -> list[Entry]:
    return feed.read(io.BytesIO(content), "answer").entries


@pytest.mark.parametrize(("name", "content"), WRITTEN)
def test_the_content_tells_the_format(name: str, content: bytes) -> None:
    found = feed.read(io.BytesIO(content), "answer")
    assert found.format == name
    assert [entry.arxiv for entry in found.entries] == ["2606.06381", "2611.00001", "2611.00002"]
    if name != "list of arXiv numbers":
        assert [entry.title.rstrip(".") for entry in found.entries] == [" ".join(t.split()) for _, t, _ in ALL]


def test_a_listing_without_numbers_is_matched_by_its_titles() -> None:
    block = (
        "0\ncs.DC 2026-05-14 Recognition\n\nVoting settles sooner\n\n{}\n\nOne line.\n\nabstract click to expand\nA.\n"
    )
    text = (
        "cs.DC\n\nDistributed Computing\n\n" + block.format(paper("div").title) + block.format("Sourdough at altitude")
    )
    assert [m.key for m in feed.match(read(text.encode()), papers().values())] == ["div", None]
    page = "<html><body>" + "".join(f"<p>{line}</p>" for line in text.splitlines()) + "</body></html>"
    assert [entry.title for entry in read(page.encode())] == [paper("div").title, "Sourdough at altitude"]


def test_prose_that_mentions_papers_gives_their_numbers() -> None:
    text = b"We like arXiv:2606.06381v1 and, of 2025, https://arxiv.org/abs/2611.00002. In 2024.12345 we trust nobody."
    assert [entry.arxiv for entry in read(text)] == ["2606.06381", "2611.00002"]
    assert [e.arxiv for e in read(b'<html><a href="https://arxiv.org/abs/2606.06381">abs</a></html>')] == ["2606.06381"]


def test_known_papers_come_first_then_the_closest() -> None:
    matches = feed.match(read(atom(BREAD, ROUTER, KNOWN)), papers().values())
    assert [m.key for m in matches] == ["div", None, None]
    assert matches[1].entry.arxiv == "2611.00001"
    assert matches[1].room == "serving"
    assert matches[1].closeness > matches[2].closeness


def test_a_paper_is_known_by_title_when_its_number_is_new() -> None:
    title = paper("lmetric").title.upper().replace(":", " - ")
    assert feed.match(read(atom(("2699.99999", title, ""))), papers().values())[0].key == "lmetric"


def test_where_two_papers_are_versions_of_one_number_the_title_decides() -> None:
    number = paper("lcc").arxiv
    assert number == paper("lcc-triangle").arxiv

    def keys(*entries: Entry) -> set[str | None]:
        return {m.key for m in feed.match(feed.distinct(entries), papers().values())}

    assert keys(Entry(number or "", paper("lcc").title)) == {"lcc"}
    assert keys(Entry(number or "", paper("lcc").title), Entry("", paper("lcc-triangle").title)) == {
        "lcc",
        "lcc-triangle",
    }
    assert keys(Entry(number or "")) == {"lcc", "lcc-triangle"}


def test_every_paper_of_the_record_is_closest_to_its_own_room_mostly() -> None:
    entries = [Entry("", f"{p.title} x", p.line, "") for p in papers().values()]
    matches = {m.entry.summary: m.room for m in feed.match(entries, papers().values())}
    right = sum(matches[p.line] == p.room for p in papers().values())
    assert right / len(papers()) > 0.9


@pytest.mark.traces
def test_the_listings_give_exactly_the_record(public_traces: str) -> None:
    """The five listings from which the record was made, where they lie beside the traces."""
    found, listings = [], sorted(Path(public_traces).with_name("seeds").glob("*.txt"))
    if not listings:
        pytest.skip("the record's listings are not beside the public traces")
    for path in listings:
        with path.open("rb") as stream:
            found.append(feed.read(stream, path.name))
    assert [len(listing.entries) for listing in found] == [15, 74, 15, 15, 15]
    each = [feed.match(listing.entries, papers().values()) for listing in found]
    keys = [match.key for matches in each for match in matches]
    assert None not in keys
    assert len(keys) == len(set(keys)) == len(papers())  # each listing names its own


def test_a_draft_can_be_pasted(package: Package) -> None:
    (package.root / "answer.xml").write_bytes(atom(KNOWN, ROUTER, BREAD, (BREAD[0], "Sourdough at altitude", "")))
    (package.root / "ids.txt").write_text("2611.00003\n2611.00001\n")
    printed = package.assay("feed", "answer.xml", "ids.txt", "--draft", "-").stdout
    entries = tomllib.loads(printed)["paper"]
    assert [e["key"] for e in entries] == ["fast-fair", "sourdough-at-altitude", "paper"]
    assert entries[0]["title"] == 'Fast & "Fair": LLM request routing'
    with (package.root / "assay" / "record" / "papers.toml").open("a") as file:
        file.write(printed)
    assert len(package.json("list")) == 137


def test_a_draft_is_written_once(package: Package) -> None:
    (package.root / "answer.xml").write_bytes(atom(KNOWN, BREAD))
    said = package.assay("feed", "answer.xml", "--draft", "new.toml").stdout
    assert "new.toml: a draft of 1 paper" in said
    kept = (package.root / "new.toml").read_text()
    assert tomllib.loads(kept)["paper"][0]["arxiv"] == "2611.00002"
    again = package.assay("feed", "answer.xml", "--draft", "new.toml", code=2)
    assert again.stderr == "assay: --draft new.toml: the file exists; name another\n"


def test_feed_on_the_command_line(package: Package) -> None:
    (package.root / "answer.xml").write_bytes(atom(KNOWN, BREAD))
    (package.root / "ids.txt").write_text("2603.15202\n2606.06381\n")
    rows = package.json("feed", "answer.xml", "ids.txt")
    assert {(row["known"], row["key"], row["arxiv"], row["headline"]) for row in rows} == {
        (True, "div", "2606.06381", None), (True, "lmetric", "2603.15202", None), (False, None, "2611.00002", None),
    }  # fmt: skip
    assert rows[-1]["room"] is None or rows[-1]["closeness"] > 0
    said = package.assay("feed", "answer.xml", "ids.txt").stdout
    assert "answer.xml: Atom, 2 papers" in said
    assert "3 papers: 2 in the record (2 built, 0 measured here), 1 new." in said


LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><feed xmlns="http://www.w3.org/2005/Atom"><title>&c;</title></feed>"""
OUTSIDE = b"""<!DOCTYPE feed [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>&x;</title></entry></feed>"""


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (LAUGHS, "DOCTYPE"),
        (OUTSIDE, "DOCTYPE"),
        (b"", "empty"),
        (b" \n\t", "empty"),
        (atom(KNOWN)[:-40], "cut short"),
        (b"<html><body>Rate exceeded.</body></html>", "no paper in it; expected Atom, RSS"),
        (b'{"not": "xml"}', "no paper in it"),
        (b"\x00\x01\x02" * 1000, "no paper in it"),
        (b"<a>" * 100_000, "neither Atom nor RSS"),
        (b'<feed xmlns="http://www.w3.org/2005/Atom">' + b"<a>" * 100_000, "nested"),
        (atom(("2611.00001", "x" * 200_000, "")), "longer than"),
        (atom(("not-a-number", " ", "")), "neither an arXiv number nor a title"),
        (atom(KNOWN).replace(b"abs/2606.06381v1", b"api/errors#bad_id"), "arXiv answered with an error"),
        (atom(KNOWN).replace(b"UTF-8", b"UTF-0"), "unknown encoding"),
        (atom(KNOWN).replace(b"UTF-8", b"shift-jis"), "multi-byte encodings"),
        (b"\xff\xfe" + "nonsense".encode("utf-16-le"), "no paper in it"),
        (b"@misc{a,\n  title = {Never closed},\n", "line 1: @misc is not closed"),
        (b"\n@misc{a, title = {Opens {twice}\n@misc{b, title = {B}}", "line 2: @misc is not closed"),
        (b"@misc{a, year = 2026}", "no paper in it"),
    ],
)
def test_hostile_or_broken_answers_are_refused(content: bytes, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        read(content)


def test_huge_answers_are_refused_while_reading() -> None:
    class Endless(io.RawIOBase):
        served = 0

        def read(self, size: int = -1) -> bytes:
            self.served += size
            return b" " * size

    stream = Endless()
    with pytest.raises(BadInput, match="larger than"):
        feed.read(stream, "endless")  # type: ignore[arg-type]
    assert stream.served < 2 * feed.MAX_BYTES


PIECES = (
    "@misc{", "@a{" + "b" * 50, "<a href=/abs/2611.00001>", "<!--", "<a b=c ", "<script>", "&#", "&#9", "a = {", "[",
    "arxiv.org/abs/2611.00001 x ", "arXiv:2611.00001\n", "cs.DC 2026-05-14\n", "\\'{", "2026-06-05T06:53:34Z ",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_repetition_costs_no_more_than_its_length(piece: str) -> None:
    content = (("<html>" if piece[0] in "<&" else "") + piece * (200_000 // len(piece))).encode()
    try:  # a reader that goes back and forth would not end
        read(content)
    except AssayError as error:
        assert len(str(error).splitlines()) == 1


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_fuzz_bytes(content: bytes) -> None:
    _survives(content)


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 4000), st.binary(min_size=1, max_size=4), st.integers(0, 40))
@settings(max_examples=200)
def test_fuzz_mutated_listings(name: str, at: int, junk: bytes, cut: int) -> None:
    good = FORMATS[name]
    _survives(good[: at % len(good)] + junk + good[at % len(good) + cut :])


@given(st.text(alphabet='@{}()",=#\\\n a1misctle<>&;:[].-/vX', max_size=200))
@settings(max_examples=200)
def test_fuzz_words_of_the_formats(text: str) -> None:
    for start in ("", "@misc{a, title = ", "<html>", "arXiv:2611.00001\n", "cs.DC 2026-05-14\n"):
        _survives((start + text).encode())


def _survives(content: bytes) -> None:
    try:
        entries = read(content)
    except AssayError as error:
        assert len(str(error).splitlines()) <= 1
    else:
        assert all(entry.arxiv or entry.title for entry in entries)
        drafts = [feed.Match(entry, None, "serving", 0.0) for entry in entries]
        assert len(tomllib.loads("\n".join(feed.as_toml(drafts, papers())))["paper"]) == len(entries)
