"""TACO's study: what it measures, on which files, and how its table answers the claims."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.protocols import taco
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.tables import joined
from assay.record.types import Answer, Verdict

LIBRARY = Path(taco.__file__).parent / "library"


def answers(table: pl.DataFrame) -> dict[str, Answer]:
    return {answer.id: answer for answer in judge(study("taco"), table)}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of traces with our own automata in the published format, under published names."""
    folder = tmp_path / "taco"
    (folder / "popl17").mkdir(parents=True)
    shutil.copy(LIBRARY / "broadcast.ta", folder / "strb.ta")
    shutil.copy(LIBRARY / "agreement.ta", folder / "popl17" / "asyn-byzagreement0.ta")
    (folder / "torn.ta").write_text("skel Proc {")
    monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))
    return folder


ASKED: list[tuple[str, dict[str, Any], int]] = []
NOTHING = {
    "automaton": pl.String,
    "algorithm": pl.String,
    "verdict": pl.String,
    "rules": pl.Int64,
    "seconds": pl.Float64,
}


class Noting(Lab):
    """Runs nothing, and notes what it was asked for."""

    def run(self, function: Any, cases: Any, **options: Any) -> pl.DataFrame:
        ASKED.extend((function.__name__, dict(case), seed) for case in cases for seed in self.seeds)
        return pl.DataFrame(schema=NOTHING)


def asked(size: str = "quick") -> tuple[list[tuple[str, dict[str, Any], int]], pl.DataFrame]:
    ASKED.clear()
    table = joined(taco.study(Noting("taco", size, seeds=(1000, 7, 12, 13))))
    return list(ASKED), table


class TestGivenFiles:
    def test_every_file_that_can_be_read_is_checked_and_the_others_are_named(self, files: Path) -> None:
        """The study once looked for eight names, all or none, and at full size only."""
        calls, table = asked()
        checked = [case["automaton"] for name, case, seed in calls if name == "checking" and seed == 1000]
        assert sorted(set(checked)) == ["popl17/asyn-byzagreement0.ta", "strb.ta"]
        assert "strb.ta" in {case["automaton"] for name, case, _ in calls if name == "proving"}
        assert table.filter(pl.col("experiment") == "not read")["automaton"].to_list() == ["torn.ta"]

    def test_a_file_that_the_paper_times_is_timed(self, files: Path) -> None:
        rows = [taco.checking("popl17/asyn-byzagreement0.ta", "smt", 10.0, seed) | {"seed": seed} for seed in range(3)]
        table = pl.DataFrame(rows).with_columns(
            experiment=pl.lit("claimed"), automaton=pl.lit("popl17/asyn-byzagreement0.ta"), algorithm=pl.lit("smt")
        )
        found = answers(table)["aba"]
        assert found.verdict is not Verdict.NOT_MEASURED and found.n == 3
        assert found.cases == "smt on popl17/asyn-byzagreement0.ta, of 1 cases"

    def test_a_large_one_waits_for_the_full_size(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(taco.LARGE, "quick", 3)
        calls, table = asked()
        assert not [case for name, case, _ in calls if name == "checking"]
        assert "run with --full" in answers(table)["aba"].note
        assert [case for name, case, _ in asked("full")[0] if name == "checking"]

    def test_without_the_files_the_claims_say_what_brings_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASSAY_TRACES", str(tmp_path))
        found = answers(asked()[1])
        for claim in taco.CLAIMED:
            assert found[claim].verdict is Verdict.NOT_MEASURED
            assert f"not at hand: {taco.CLAIMED[claim][1][0]}.ta; run: assay traces get taco" in found[claim].note

    def test_all_safety_of_a_file_makes_its_verdict(self, files: Path) -> None:
        assert taco.checking("strb.ta", "zcs", 10.0, 0)["verdict"] == "safe"
        weaker = (files / "strb.ta").read_text().replace("t >= f", "t + 1 >= f")
        (files / "strb.ta").write_text(weaker)
        assert taco.checking("strb.ta", "smt", 10.0, 0)["verdict"] == "unsafe"

    @pytest.mark.traces
    @pytest.mark.parametrize("name", ["strb", "frb", "aba", "toy"])
    def test_published_files_get_their_published_verdict(self, name: str) -> None:
        found = taco.checking(f"{name}.ta", "smt", 10.0, 0)
        assert found["verdict"] == taco.published(f"{name}.ta", found["rules"]) == "safe"


class TestTheStudy:
    def test_every_automaton_goes_through_all_three_algorithms(self) -> None:
        rows = taco.proving("broadcast", 10.0, 1000)
        assert {name: row["verdict"] for name, row in rows.items()} == dict.fromkeys(taco.ALGORITHMS, "safe")
        assert taco.proving("rounds", 10.0, 1000)["smt"]["verdict"] == "not taken"

    def test_a_weakened_condition_breaks_a_proved_specification(self) -> None:
        found = taco.weakening(*taco.WEAKENED[0], seed=1000)
        assert found["flips"] and found["replays"]

    def test_its_plot_is_drawn(self) -> None:
        table = proofs(("a", "smt", 1, "safe"), ("a", "acs", 2, "safe"))
        assert charts.svg(taco.plot(table)).startswith("<svg")


def proofs(*rows: tuple[str, str, float, str], experiment: str = "prove") -> pl.DataFrame:
    names = ("automaton", "algorithm", "seconds", "verdict")
    frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
    return frame.with_columns(experiment=pl.lit(experiment), rules=pl.lit(8), seed=pl.lit(0))


class TestTheClaims:
    def test_an_algorithm_that_is_always_the_fastest_refutes_that_none_wins(self) -> None:
        always = proofs(("a", "smt", 1, "safe"), ("a", "acs", 2, "safe"), ("a", "zcs", 2, "safe"),
                        ("b", "smt", 1, "safe"), ("b", "acs", 3, "safe"), ("b", "zcs", 3, "safe"))  # fmt: skip
        found = answers(always)["no-winner"]
        assert found.verdict is Verdict.NOT_REPRODUCED and "smt: wins everywhere" in found.cases

    def test_one_loss_is_enough_for_it_and_so_is_an_automaton_not_taken(self) -> None:
        won = (("a", "smt", 1, "safe"), ("a", "acs", 2, "safe"), ("a", "zcs", 2, "safe"))
        lost = (("b", "smt", 5, "safe"), ("b", "acs", 3, "safe"), ("b", "zcs", 9, "safe"))
        assert answers(proofs(*won, *lost))["no-winner"].verdict is Verdict.REPRODUCED
        refused = (("b", "smt", 0, "not taken"), *lost[1:])
        assert answers(proofs(*won, *refused))["no-winner"].verdict is Verdict.REPRODUCED

    def test_a_difference_inside_the_noise_is_a_tie(self) -> None:
        won = (("a", "smt", 1, "safe"), ("a", "acs", 2, "safe"), ("a", "zcs", 2, "safe"))
        near = (("b", "smt", 1.00, "safe"), ("b", "acs", 0.95, "safe"), ("b", "zcs", 9, "safe"))
        assert answers(proofs(*won, *near))["no-winner"].verdict is Verdict.NOT_REPRODUCED

    def test_a_verdict_other_than_the_published_one_is_shown(self) -> None:
        right = proofs(("sub/strb.ta", "smt", 1, "safe"), ("mine.ta", "smt", 1, "unsafe"), experiment="given")
        found = answers(right)["published"]
        assert found.verdict is Verdict.REPRODUCED and found.n == 1
        wrong = answers(proofs(("strb.ta", "smt", 1, "unsafe"), experiment="given"))["published"]
        assert wrong.verdict is Verdict.NOT_REPRODUCED and wrong.cases == "strb.ta: safe as published, unsafe here"

    def test_a_contradiction_is_seen_and_an_unknown_is_none(self) -> None:
        torn = proofs(("a", "smt", 1, "safe"), ("a", "acs", 2, "unsafe"), ("b", "smt", 1, "safe"),
                      ("b", "zcs", 3, "unknown"))  # fmt: skip
        found = answers(torn)["one-answer"]
        assert (found.measured, found.n, found.cases) == (0.0, 1, "a")

    def test_of_two_files_of_one_name_the_smaller_is_meant(self) -> None:
        rows = [
            (f"{folder}/strb.ta", name, took, "safe") for folder, took in (("a", 9.0), ("b", 0.05)) for name in "xy"
        ]
        table = proofs(*rows).with_columns(rules=pl.when(pl.col("automaton") == "a/strb.ta").then(21).otherwise(8))
        assert answers(table)["broadcast"].measured == 0.05
