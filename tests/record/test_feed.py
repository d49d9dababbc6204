"""arXiv answers: read, matched, and refused in one line when they are not what they say."""

from __future__ import annotations

import io
import tomllib
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import feed
from assay.record.catalogue import paper, papers
from assay.record.errors import AssayError, BadInput
from tests.conftest import Package


def atom(*entries: tuple[str, str, str]) -> bytes:
    """An answer as the public API writes it."""
    body = "".join(
        f"<entry><id>http://arxiv.org/abs/{arxiv}</id><title>{escape(title)}</title>"
        f"<updated>2026-06-05T06:53:34Z</updated><summary>{escape(summary)}</summary>"
        "<published>2026-06-02T18:07:51Z</published><author><name>A. Author</name></author>"
        '<category term="cs.DC" scheme="http://arxiv.org/schemas/atom"/></entry>'
        for arxiv, title, summary in entries
    )
    head = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/" '
        'xmlns:arxiv="http://arxiv.org/schemas/atom" xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://arxiv.org/api/G51</id><title>arXiv Query</title>"
        "<opensearch:totalResults>2</opensearch:totalResults>"
    )
    return f"{head}{body}</feed>".encode()


KNOWN = ("2606.06381v1", "Discrete Incremental Voting: New Bounds\n  for General Graphs and Expanders", "Voting.")
ROUTER = (
    "2611.00001v2",
    'Fast & "Fair": LLM request routing',
    "We route requests over KV caches of LLM replicas.",
)
BREAD = ("2611.00002v1", "Sourdough at altitude", "Baking bread.")


def read(content: bytes) -> list[feed.Entry]:
    return feed.read(io.BytesIO(content), "answer.xml")


def test_known_papers_come_first_then_the_closest() -> None:
    matches = feed.match(read(atom(BREAD, ROUTER, KNOWN)), papers().values())
    assert [m.key for m in matches] == ["div", None, None]
    assert matches[1].entry.arxiv == "2611.00001"
    assert matches[1].room == "serving"
    assert matches[1].closeness > matches[2].closeness


def test_a_paper_is_known_by_title_when_its_id_is_new() -> None:
    title = paper("lmetric").title.upper().replace(":", " - ")
    assert feed.match(read(atom(("2699.99999", title, ""))), papers().values())[0].key == "lmetric"


def test_every_paper_of_the_record_is_closest_to_its_own_room_mostly() -> None:
    entries = [feed.Entry("2699.99999", f"{p.title} x", p.line, "") for p in papers().values()]
    matches = {m.entry.summary: m.room for m in feed.match(entries, papers().values())}
    right = sum(matches[p.line] == p.room for p in papers().values())
    assert right / len(papers()) > 0.9


def test_toml_can_be_pasted(package: Package) -> None:
    (package.root / "answer.xml").write_bytes(atom(KNOWN, ROUTER, BREAD, (BREAD[0], "Sourdough at altitude", "")))
    printed = package.assay("feed", "answer.xml", "--toml").stdout
    entries = tomllib.loads(printed)["paper"]
    assert [e["key"] for e in entries] == ["fast-fair", "sourdough-at-altitude", "sourdough-at-altitude-2"]
    assert entries[0]["title"] == 'Fast & "Fair": LLM request routing'
    with (package.root / "assay" / "record" / "papers.toml").open("a") as file:
        file.write(printed)
    assert len(package.json("list")) == 137


def test_feed_on_the_command_line(package: Package) -> None:
    (package.root / "answer.xml").write_bytes(atom(KNOWN, BREAD))
    rows = package.json("feed", "answer.xml")
    assert [(row["known"], row["key"], row["arxiv"]) for row in rows] == [
        (True, "div", "2606.06381"), (False, None, "2611.00002"),
    ]  # fmt: skip
    assert "1 in the record, 1 not" in package.assay("feed", "answer.xml").stdout


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
        (atom(KNOWN)[:-40], "cut short"),
        (b"<html><body>Rate exceeded.</body></html>", "not an Atom feed"),
        (b'{"not": "xml"}', "not well-formed"),
        (b"<a>" * 100_000, "not an Atom feed"),
        (b'<feed xmlns="http://www.w3.org/2005/Atom">' + b"<a>" * 100_000, "nested"),
        (atom(("2611.00001", "x" * 200_000, "")), "longer than"),
        (atom(("not-an-id", "Title", "")), "no arXiv id"),
        (atom(("2611.00001", " ", "")), "no title"),
        (atom(KNOWN).replace(b"abs/2606.06381v1", b"api/errors#bad_id"), "arXiv answered with an error"),
        (atom(KNOWN).replace(b"UTF-8", b"UTF-0"), "unknown encoding"),
        (atom(KNOWN).replace(b"UTF-8", b"shift-jis"), "multi-byte encodings"),
        (b"\xff\xfe" + "nonsense".encode("utf-16-le"), "not well-formed"),
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
            return b"<feed xmlns='http://www.w3.org/2005/Atom'>".ljust(size) if self.served == size else b" " * size

    stream = Endless()
    with pytest.raises(BadInput, match="larger than"):
        feed.read(stream, "endless")  # type: ignore[arg-type]
    assert stream.served < 2 * feed.MAX_BYTES


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_fuzz_bytes(content: bytes) -> None:
    try:
        read(content)
    except AssayError as error:
        assert len(str(error).splitlines()) <= 1


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=4), st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_fuzz_mutated_answers(at: int, junk: bytes, cut: int) -> None:
    good = atom(KNOWN, ROUTER)
    try:
        read(good[: at % len(good)] + junk + good[at % len(good) + cut :])
    except AssayError as error:
        assert len(str(error).splitlines()) <= 1
