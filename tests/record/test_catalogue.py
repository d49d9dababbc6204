"""The record's 134 papers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from assay.record import catalogue, sources
from assay.record.types import ROOMS, Verdict

PAPERS = Path(__file__).parents[3] / "shared" / "papers.md"


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


@pytest.mark.skipif(not PAPERS.exists(), reason="the list of papers is not beside this checkout")
def test_keys_titles_and_ids_are_those_of_the_list() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAPERS.read_text().splitlines()]
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


def test_verdicts_are_the_four_words() -> None:
    assert [v.value for v in Verdict] == ["reproduced", "direction", "not reproduced", "not measured here"]
