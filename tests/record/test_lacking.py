"""A study without its trace measures everything else, and the claims that need it say which command brings it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assay.record import catalogue, measures, tables
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Claim, Evidence, Kind, NoRows, Paper, Study, Verdict
from assay.workloads import chat

AZURE = "AzureLLMInferenceTrace_conv.csv"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any trace."""
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path / "none"))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    return tmp_path


@dataclass(frozen=True)
class Asked(Lab):
    """A lab that runs nothing: it notes what would be run and answers with a row a case."""

    asked: list[Any] = field(default_factory=list)

    def run(self, function: Any, cases: Sequence[Any], **options: Any) -> pl.DataFrame:
        self.asked.extend(cases)
        rows = [{**case, "seed": 0, "policy": "", "system": ""} for case in cases]
        return pl.from_dicts(rows) if rows else pl.DataFrame()


def test_a_lab_notes_the_traces_that_a_study_went_without(bare: Path) -> None:
    lab = Lab("demo")
    assert lab.trace_or_none(AZURE) is None
    assert lab.with_seeds(quick=1, full=1).lacking == {AZURE}, "all parts of a study note into one list"
    (bare / "traces").mkdir()
    (bare / "traces" / AZURE).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert Lab("demo").trace_or_none(AZURE) == bare / "traces" / AZURE


def demo(*claims: Claim) -> Study:
    return Study(Paper("demo", "serving", "Demo", None, "A line.", ()), lambda lab: None, claims, Evidence.MODEL)


def question(name: str, measure: Any) -> Claim:
    return Claim(name, measure, asks="It is more.", kind=Kind.RATIO, toward="up")


def test_claims_that_find_nothing_name_the_command_and_the_others_are_judged() -> None:
    study = demo(
        question("replayed", measures.mean("gain", workload="azure")),
        question("by column", measures.mean("gain", machine="a")),
        question("by polars", lambda table: measures.counted(table["machine"].len())),
        question("generated", measures.mean("gain", workload="chat")),
        question("elsewhere", measures.not_here("needs a GPU")),
    )
    table = pl.DataFrame({"workload": ["chat"] * 5, "seed": range(5), "gain": [2.0, 2.1, 2.2, 2.1, 2.0]})
    found = {answer.id: answer for answer in judge(study, table, {AZURE})}
    for name in ("replayed", "by column", "by polars"):
        assert found[name].verdict is Verdict.NOT_MEASURED
        assert found[name].note == "not at hand: azure-2023-conv; run: assay traces get azure-2023-conv"
        assert not found[name].broken
    assert found["generated"].verdict is Verdict.REPRODUCED
    assert found["elsewhere"].note == "needs a GPU"
    assert judge(study, table)[1].broken, "with all traces at hand a missing column is a mistake"


def test_a_sentence_about_every_case_is_open_where_one_is_missing() -> None:
    both = {name: measures.mean("gain", workload=name) for name in ("azure", "chat")}
    table = pl.DataFrame({"workload": ["chat", "chat"], "seed": [0, 1], "gain": [2.0, 2.1]})
    assert measures.best(both)(table).cases == "chat, of 1 cases"
    with pytest.raises(NoRows):
        measures.best(both, every=True)(table)


@pytest.mark.parametrize(
    ("key", "experiments"),
    [
        ("lmetric", None),
        ("balanceroute", ["timed"]),
        ("coral", ["market, generated demand", "joint, generated demand", "hour, generated demand"]),
    ],
)
def test_a_study_asks_for_what_can_be_measured(key: str, experiments: list[str] | None) -> None:
    lab = Asked(key)
    table = tables.joined(catalogue.study(key).run(lab))
    assert lab.lacking
    assert lab.asked
    paths = [str(case.get("path", case.get("trace", ""))) for case in lab.asked]
    assert not [path for path in paths if "/" in path], "nobody is sent to a file that is not there"
    if experiments:
        assert table["experiment"].unique(maintain_order=True).to_list() == experiments
    assert {case.get("workload") for case in lab.asked} <= {None, "chat", "agents"}


def test_requests_are_generated_where_the_trace_is_missing() -> None:
    made = chat.read_or_hour("")
    assert 1000 < made.prompt.mean() < 1300
    assert 180 < made.output.mean() < 240
    assert made.prefixes is None
