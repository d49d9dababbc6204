"""TACO's study: what it measures, and how its table answers the claims."""

from __future__ import annotations

import polars as pl
import pytest

pytest.importorskip("z3", reason="extra protocols")
pytest.importorskip("dd", reason="extra protocols")

from assay.protocols import taco
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return taco.study(Lab("taco", seeds=1))


def answers(table: pl.DataFrame) -> dict[str, Answer]:
    return {answer.text: answer for answer in judge(study("taco"), table)}


def claim(words: str) -> str:
    return next(claim.text for claim in taco.claims if words in claim.text)


class TestTheStudy:
    def test_every_question_is_answered_by_at_least_two_algorithms(self, table: pl.DataFrame) -> None:
        proofs = table.filter(pl.col("experiment") == "prove")
        by = proofs.group_by("automaton", "specification").agg(pl.col("algorithm").n_unique())
        assert by["algorithm"].min() == 3
        assert set(proofs["verdict"].to_list()) == {"proved"}

    def test_weakened_conditions_break_proved_specifications(self, table: pl.DataFrame) -> None:
        weakened = table.filter(pl.col("experiment") == "weaken")
        assert weakened["flips"].all()
        assert weakened["replays"].all()
        assert len(weakened) == 3

    def test_its_plot_is_drawn(self, table: pl.DataFrame) -> None:
        assert charts.svg(taco.plot(table)).startswith("<svg")

    def test_claims_that_need_files_of_others_are_not_measured(self, table: pl.DataFrame) -> None:
        found = answers(table)
        for words in ("aba case2", "nbac", "asynchronous Byzantine agreement"):
            assert found[claim(words)].verdict is Verdict.NOT_MEASURED
            assert "not at hand" in found[claim(words)].note

    def test_the_algorithms_give_one_answer(self, table: pl.DataFrame) -> None:
        assert answers(table)[claim("give one answer")].measured == 1.0


def proofs(*rows: tuple[str, str, float, str]) -> pl.DataFrame:
    names = ("automaton", "algorithm", "seconds", "verdict")
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame.with_columns(experiment=pl.lit("prove"), specification=pl.lit("it"), seed=pl.lit(0))


class TestTheClaims:
    def test_an_algorithm_that_is_always_the_fastest_refutes_that_none_wins(self) -> None:
        always = proofs(("a", "smt", 1, "proved"), ("a", "acs", 2, "proved"), ("b", "smt", 1, "proved"),
                        ("b", "zcs", 3, "proved"))  # fmt: skip
        assert taco.most_wins(always).value == 1.0
        assert taco.claims[4].holds.judge(taco.most_wins(always)) is Verdict.NOT_REPRODUCED

    def test_one_loss_is_enough_for_it(self) -> None:
        mixed = proofs(("a", "smt", 1, "proved"), ("a", "acs", 2, "proved"), ("b", "smt", 5, "proved"),
                       ("b", "zcs", 3, "proved"))  # fmt: skip
        assert taco.most_wins(mixed).value == 0.5
        assert taco.claims[4].holds.judge(taco.most_wins(mixed)) is Verdict.REPRODUCED

    def test_a_contradiction_is_seen(self) -> None:
        torn = proofs(("a", "smt", 1, "proved"), ("a", "acs", 2, "violated"), ("b", "smt", 1, "proved"),
                      ("b", "zcs", 3, "unknown"))  # fmt: skip
        assert taco.agreeing(torn).value == 0.5
