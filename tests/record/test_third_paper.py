"""A paper is one file and one TOML entry, and nothing else: everything then knows it."""

from __future__ import annotations

import json
from pathlib import Path

import altair as alt
import polars as pl
import pytest

from assay.cli.main import assay
from assay.record import charts
from tests.conftest import SOURCE, THIRD_ENTRY, THIRD_PAPER, THIRD_PLOT, Package, copied


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The third paper with its drawing, which has been run once."""
    package = copied(tmp_path_factory.mktemp("ran"))
    package.add(THIRD_PAPER + THIRD_PLOT)
    (package.root / "printed").write_text(package.assay("run", "third-paper", "--plot", "picture.svg").stdout)
    return package


@pytest.fixture(scope="module")
def result(ran: Package) -> dict:
    (path,) = (ran.home / "results" / "third-paper").glob("*.json")
    return json.loads(path.read_text())


def files(package: Path) -> set[Path]:
    found = [path for part in ("continuum", "data", "record") for path in (package / part).rglob("*")]
    return {path.relative_to(package) for path in found if path.is_file() and path.suffix != ".pyc"}


def test_only_one_file_and_one_entry_differ(with_third: Package) -> None:
    copy = with_third.root / "assay"
    assert all(path.is_symlink() or path.name in ("continuum", "data", "record") for path in copy.iterdir())
    theirs, ours = files(copy), files(SOURCE)
    assert theirs - ours == {Path("continuum/third_paper.py")}
    changed = {path for path in ours & theirs if (copy / path).read_bytes() != (SOURCE / path).read_bytes()}
    assert changed == {Path("record/papers.toml")}


def test_list_and_show_know_it(with_third: Package) -> None:
    row = next(row for row in with_third.json("list") if row["key"] == "third-paper")
    assert row["built"]
    assert row["headline"] is None
    shown = with_third.assay("show", "third-paper").stdout
    assert "worth its size plus its seed" in shown
    assert "Testing the machinery." in shown
    assert "assay run third-paper" in shown


def test_what_is_printed_ends_with_how_the_papers_claims_fared(ran: Package) -> None:
    assert "Of the paper's 2 claims: 1 reproduced, 1 not reproduced." in (ran.root / "printed").read_text()


def test_why_an_effect_exceeds_the_papers_is_told_wherever_it_is(package: Package) -> None:
    why = "Sizes and seeds are both small here."
    easy = THIRD_ENTRY.replace("value = 4.0,", f'value = 1.5, exceeds = "{why}",')
    package.add(entry=easy)
    printed = package.assay("run", "third-paper").stdout
    assert "Of the paper's 2 claims: 1 exceeded, 1 not reproduced." in printed
    assert "↑ exceeded" in printed and f"exceeded: {why}" in printed
    assert f"exceeded: {why}" in package.assay("show", "third-paper").stdout
    told = package.assay("record", "--room", "continuum", "--html", "site").stdout
    assert f"exceeded: {why}" in told and "1 exceeded" in told
    (row,) = [row for row in package.json("record") if row["key"] == "third-paper"]
    assert (row["headline"], row["tally"]) == ("0 of 2", {"exceeded": 1, "not reproduced": 1})
    assert [claim["exceeds"] for claim in row["claims"] if claim["stated"]] == [why, ""]
    for page in ("index.html", "papers/third-paper.html"):
        assert why in (package.root / "site" / page).read_text(encoding="utf-8")


def test_only_a_printed_effect_can_be_exceeded(package: Package) -> None:
    package.add(entry=THIRD_ENTRY.replace("value = 120.0,", 'value = 120.0, exceeds = "A bound has no upper side.",'))
    assert "exceeds goes with a printed number" in package.assay("list", code=2).stderr


def test_why_is_a_whole_sentence(package: Package) -> None:
    package.add(entry=THIRD_ENTRY.replace("value = 4.0,", 'value = 4.0, exceeds = "weak rival",'))
    assert "exceeds must be a whole sentence" in package.assay("list", code=2).stderr


def test_one_seed_that_keeps_a_bound_is_not_certain_and_not_against_it(package: Package) -> None:
    package.add(entry=THIRD_ENTRY.replace("value = 120.0", "value = 0.5"))
    for seeds in ("1", "2"):
        package.assay("run", "third-paper", "--seeds", seeds)
        (row,) = [row for row in package.json("record") if row["key"] == "third-paper"]
        assert row["tally"] == {"direction": 2}, seeds
    package.assay("run", "third-paper", "--seeds", "3")
    (row,) = [row for row in package.json("record") if row["key"] == "third-paper"]
    assert row["tally"] == {"reproduced": 1, "direction": 1}


def test_result_has_the_promised_shape(result: dict) -> None:
    assert {"key", "evidence", "size", "seconds", "machine", "table", "claims"} <= set(result)
    assert {"seeds", "versions", "commit", "source", "started"} <= set(result)
    assert result["table"][0] == {"size": 1, "seed": 0, "worth": 1}
    assert list(result["table"][0]) == ["size", "seed", "worth"]
    for claim in result["claims"]:
        assert {"id", "text", "kind", "unit", "paper", "measured", "low", "high", "n", "verdict"} <= set(claim)
        assert {"share", "share_low", "share_high", "stated", "cases"} <= set(claim)
    assert result["seeds"] == [0, 1, 2, 3, 4]


def test_a_true_claim_is_reproduced(result: dict) -> None:
    claim = result["claims"][0]
    assert claim["verdict"] == "reproduced"
    assert claim["paper"] == 4.0  # joined from papers.toml; the module does not know it
    assert claim["measured"] == 5.0
    assert claim["low"] < 5.0 < claim["high"]
    assert claim["n"] == 5
    assert claim["unit"] == "ratio"
    assert 1 < claim["share"] < 1.3  # ln 5 of ln 4
    assert claim["share_low"] < claim["share"] < claim["share_high"]


def test_a_false_claim_is_not_reproduced_in_json_table_and_report(ran: Package, result: dict) -> None:
    assert result["claims"][1]["verdict"] == "not reproduced"
    printed = (ran.root / "printed").read_text()
    assert "✗ not reproduced" in printed
    assert "Small cases are worth a hundred." in printed
    assert "seeds 0–4" in printed
    ran.assay("record", "--html", "site")
    page = (ran.root / "site" / "papers" / "third-paper.html").read_text()
    assert "not reproduced" in page
    assert "A Third Paper &amp; Its &lt;Title&gt;" in page
    row = next(row for row in ran.json("record") if row["key"] == "third-paper")
    assert [claim["verdict"] for claim in row["claims"]] == ["reproduced", "not reproduced", "reproduced"]
    assert row["headline"] == "1 of 2"  # all of the paper's claims, and none of our own questions


@pytest.mark.parametrize(
    ("chosen", "seeds"),
    [
        (("--seeds", "2", "--first-seed", "40"), [40, 41]),
        (("--seeds", "99,7"), [7, 99]),
        (("--seeds", "8,"), [8]),
        (("--first-seed", "3"), [3, 4, 5, 6, 7]),
    ],
)
def test_the_seeds_are_those_asked_for(
    monkeypatch: pytest.MonkeyPatch, chosen: tuple[str, ...], seeds: list[int]
) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr("assay.cli.run._run", lambda key, size, chosen, *more: asked.append(chosen) or exit())
    with pytest.raises(SystemExit):
        assay.main(["run", "div", *chosen], standalone_mode=False)
    assert sorted(asked[0]) == seeds


def test_a_result_holds_the_seeds_that_were_asked_for(with_third: Package) -> None:
    result = with_third.json("run", "third-paper", "--seeds", "99,7")
    assert result["seeds"] == [7, 99]
    assert sorted(row["seed"] for row in result["table"]) == [7, 7, 7, 99, 99, 99]


def test_one_observation_is_certain_of_nothing(with_third: Package) -> None:
    claim = with_third.json("run", "third-paper", "--seeds", "1")["claims"][0]
    assert claim["verdict"] == "direction"
    assert claim["low"] is None
    assert claim["high"] is None


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "html"])
def test_plot_files(ran: Package, tmp_path: Path, suffix: str) -> None:
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype html>"}
    assert (ran.root / "picture.svg").read_bytes().startswith(starts["svg"])
    charts.write(alt.Chart(pl.DataFrame({"x": [1, 2]})).mark_point().encode(x="x:Q"), tmp_path / f"picture.{suffix}")
    assert (tmp_path / f"picture.{suffix}").read_bytes().startswith(starts[suffix])


def test_record_runs_only_what_has_no_result_at_this_version(with_third: Package) -> None:
    results = with_third.home / "results" / "third-paper"
    with_third.assay("record", "--run", "--room", "continuum")
    with_third.assay("record", "--run", "--room", "continuum")
    assert len(list(results.glob("*.json"))) == 1
    module = with_third.root / "assay" / "continuum" / "third_paper.py"
    module.write_text(module.read_text() + "# changed\n")
    assert not with_third.json("record", "--room", "continuum")[-1]["current"]
    with_third.assay("record", "--run", "--room", "continuum")
    assert len(list(results.glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('room = "continuum"', 'room = "kitchen"', "no room"),
        ('key = "third-paper"', 'key = "Third Paper"', "lower-case"),
        ('key = "third-paper"', 'key = "div"', "taken"),
        ('line = "Add the seed to the size."', "", "'line'"),
        ("value = 4.0", 'value = "four"', "value"),
        ('kind = "ratio"', 'kind = "hunch"', "no kind"),
        ("value = 4.0, ", "", "toward"),
        ('unit = "points", ', "", "unit"),
        ("more than one.", "more than", "whole sentence"),
        ('id = "small"', 'id = "large"', "same id"),
        ("value = 4.0, ", "value = 4.0, bound = 3.0, ", "unknown bound"),
        ('arxiv = "2601.00001"', "arxiv = ", "papers.toml"),
    ],
)
def test_a_bad_entry_is_one_line(package: Package, old: str, new: str, word: str) -> None:
    from tests.conftest import THIRD_ENTRY

    package.add(entry=THIRD_ENTRY.replace(old, new, 1))
    said = package.assay("list", code=2).stderr.strip()
    assert word in said
    assert len(said.splitlines()) == 1
