"""What was measured once at full size is told beside every quick result that says otherwise."""

from __future__ import annotations

from dataclasses import replace

from assay.record import catalogue, full_size
from assay.record.types import Evidence, Result, Verdict


def test_kept_runs_are_of_built_papers_and_of_claims_of_today() -> None:
    assert full_size.runs()
    for key, run in full_size.runs().items():
        paper = catalogue.paper(key)
        assert catalogue.is_built(paper), key
        assert run.answers, key
        assert run.seconds <= 600, key  # a size that nobody runs is no size
        assert {answer.id for answer in run.answers} <= {claim.id for claim in paper.claims}


def test_only_another_verdict_is_a_contradiction() -> None:
    key, run = next((k, r) for k, r in full_size.runs().items() if r.answers[0].measured is not None)
    first = run.answers[0]
    same = Result(key, Evidence.MODEL, "quick", 1.0, {}, [], (first,))
    assert full_size.contradictions(same) == {}
    other = replace(first, verdict=next(v for v in Verdict if v is not first.verdict))
    assert full_size.contradictions(replace(same, claims=(other,))) == {first.id: first}
    assert full_size.contradictions(replace(same, size="full", claims=(other,))) == {}


def test_what_is_written_is_read_again() -> None:
    import tomllib

    key, run = next(iter(full_size.runs().items()))
    result = Result(key, Evidence.MODEL, "full", 12.0, {"cpu": 'a "cpu"', "cores": 2}, [], run.answers, seeds=(3, 4))
    entry = tomllib.loads(full_size.as_toml([result]))[key]
    assert (entry["machine"], entry["seeds"], entry["seconds"]) == ('a "cpu", 2 cores', 2, 12.0)
    assert entry["claims"][run.answers[0].id].get("measured") == run.answers[0].measured


def test_entries_of_other_papers_are_kept() -> None:
    import tomllib

    before = full_size.FILE.read_text(encoding="utf-8")
    (key, run), *others = full_size.runs().items()
    result = Result(key, Evidence.MODEL, "full", 12.0, {"cpu": "one", "cores": 2}, [], run.answers, seeds=(3, 4))
    after = tomllib.loads(full_size.as_toml([result], before))
    assert after[key]["seconds"] == 12.0
    assert {name: after[name] for name, _ in others} == {name: tomllib.loads(before)[name] for name, _ in others}
