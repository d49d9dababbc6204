"""The record's 134 papers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from assay.record import catalogue, sources
from assay.record.types import ROOMS, Verdict


def test_all_134_papers_in_eight_rooms() -> None:
    rooms = Counter(paper.room for paper in catalogue.papers().values())
    assert sum(rooms.values()) == 134
    assert set(rooms) == set(ROOMS)
    assert len(ROOMS) == 8


def test_every_paper_has_a_line_and_a_claim_of_its_own() -> None:
    for paper in catalogue.papers().values():
        assert 20 <= len(paper.line) <= 160, paper.key
        texts = [claim.text for claim in paper.claims]
        assert texts, paper.key
        assert len(set(texts)) == len(texts), paper.key
        assert paper.arxiv is None or re.fullmatch(r"\d{4}\.\d{5}", paper.arxiv), paper.key


@pytest.mark.traces
def test_keys_titles_and_ids_are_those_of_the_list(public_traces: str) -> None:
    path = Path(public_traces).with_name("papers.md")
    if not path.exists():
        pytest.skip("the list of papers is not beside the public traces")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in path.read_text().splitlines()]
    listed = {row[1].strip("`"): (row[0], row[2], row[4]) for row in rows if len(row) == 5 and row[1].startswith("`")}
    assert {p.key: (p.room, p.title, p.arxiv or "") for p in catalogue.papers().values()} == listed


@pytest.mark.parametrize(
    "paper", [p for p in catalogue.papers().values() if catalogue.is_built(p)], ids=lambda p: p.key
)
def test_every_built_paper_explains_itself(paper) -> None:
    study = catalogue.study(paper.key)
    assert len(study.idea.split()) > 40
    assert study.use_when
    assert study.avoid_when
    assert study.plot is not None
    assert study.claims


def test_digest_follows_imports_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "assay"
    for name in ("data", "sim"):
        (package / name).mkdir(parents=True)
    (package / "data" / "mine.py").write_text("from assay.sim import clock\nfrom assay.sim.links import Link\n")
    (package / "sim" / "clock.py").write_text("")
    (package / "sim" / "links.py").write_text("import assay.sim.deep\nimport numpy\n")
    (package / "sim" / "deep.py").write_text("x = 1\n")
    (package / "sim" / "other.py").write_text("y = 1\n")
    monkeypatch.setattr(sources, "_PACKAGE", package)
    before = sources.digest("assay.data.mine")
    (package / "sim" / "other.py").write_text("y = 2\n")
    assert sources.digest("assay.data.mine") == before
    for touched in ("sim/deep.py", "sim/clock.py", "data/mine.py"):
        (package / touched).write_text((package / touched).read_text() + "# more\n")
        after = sources.digest("assay.data.mine")
        assert after != before, touched
        before = after


def test_verdicts_are_the_six_words() -> None:
    words = ["reproduced", "exceeded", "direction", "not reproduced", "not measured here", "by construction"]
    assert [v.value for v in Verdict] == words


def test_every_claim_is_a_whole_sentence_with_a_unit() -> None:
    dangling = re.compile(r"(up to|at least|at most|by|about|below|than|to this power|with probability)\.$")
    for paper in catalogue.papers().values():
        for claim in paper.claims:
            where = f"{paper.key} {claim.id}: {claim.text}"
            assert claim.text[0].isupper() or claim.text[0].isdigit() or claim.text.startswith(("vLLM", "n ")), where
            assert len(claim.text.split()) >= 4, where
            assert not dangling.search(claim.text), where
            assert claim.value is None or claim.measured_in.strip("?"), where
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", claim.id), where
            assert not re.fullmatch(r"claim-\d+", claim.id), where


def test_older_sentences_lead_to_claims_of_today() -> None:
    for key, sentences in catalogue.renamed().items():
        assert set(sentences.values()) <= {claim.id for claim in catalogue.paper(key).claims}, key


def numbers_of(text: str) -> set[float]:
    """The numbers a sentence prints, percentages also as shares."""
    words = {
        "half": 0.5, "third": 1 / 3, "quarter": 0.25, "tenth": 0.1, "nine in ten": 0.9, "twice": 2.0, "million": 1e6,
        "no ": 0.0, "not grow": 0.0, "linearly": 1.0, "no faster than": 1.0, "quadratically": 2.0, "one": 1.0,
        "two": 2.0, "three": 3.0,
    }  # fmt: skip
    found = {value for word, value in words.items() if word in f"{text.lower()} "}
    for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", text):
        value = float(figure.replace(",", ""))
        found |= {value, value / 100, 1 + value / 100, value * 1000, value / 1000, value * 1e6, value * 60}
    return found


@pytest.mark.parametrize(
    "paper", [p for p in catalogue.papers().values() if catalogue.is_built(p)], ids=lambda p: p.key
)
def test_a_bound_of_our_own_question_stands_in_its_sentence(paper) -> None:
    for claim in catalogue.study(paper.key).claims:
        if claim.question and claim.value is not None:
            assert any(abs(claim.value - value) < 1e-9 for value in numbers_of(claim.asks)), claim.asks
            assert claim.question.measured_in.strip("?"), claim.asks
