"""Discrete incremental voting: what the theorem says, and what a user gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import networkx as nx
import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array

from assay.protocols import div
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict
from assay.sim import graphs
from tests.conftest import Package


def answers(table: pl.DataFrame) -> dict[str, Answer]:
    return {answer.id: answer for answer in judge(study("div"), table)}


def verdict(claim: str, table: pl.DataFrame) -> Verdict:
    return answers(table)[claim].verdict


def measured(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """A table of the study's shape with made-up numbers."""
    base = {
        "experiment": "size", "graph": "random-regular:8", "n": 64, "span": 7, "rule": "div", "replicas": 100,
        "seed": 0, "steps_mean": 1.0, "bound_ratio": 0.1, "inverse_conductance": 3.0, "hits": 100, "bias_ratio": 0.0,
        "censored": 0,
    }  # fmt: skip
    return pl.from_dicts([{**base, **row} for row in rows], infer_schema_length=None)


class TestTheProcess:
    def test_it_ends_at_the_rounded_average_on_the_complete_graph(self) -> None:
        n = 1024
        opinions = np.arange(n) % 32
        outcome = div.vote(graphs.complete(n), opinions, replicas=60, seed=1)
        assert abs(outcome.final - opinions.mean()).max() < 1
        assert not outcome.censored.any()

    def test_the_mean_result_is_the_degree_weighted_average(self) -> None:
        star = graphs.star(17)
        opinions = np.where(star.degrees > 1, 8, 0)
        outcome = div.vote(star, opinions, replicas=10_000, seed=2)
        error = outcome.final.std() / math.sqrt(10_000)
        assert abs(outcome.final.mean() - 4.0) < 3 * error  # the hub has half of all degrees
        assert abs(outcome.final.mean() - outcome.average[0]) > 30 * error

    def test_the_edge_variant_keeps_the_plain_average_instead(self) -> None:
        star = graphs.star(17)
        opinions = np.where(star.degrees > 1, 8, 0)
        outcome = div.vote(star, opinions, rule="div-edge", replicas=10_000, seed=2)
        assert abs(outcome.final.mean() - 8 / 17) < 3 * outcome.final.std() / math.sqrt(10_000)

    @pytest.mark.parametrize("graph", [graphs.star(64), graphs.barbell(20, 4)], ids=["star", "barbell"])
    def test_without_expansion_the_average_is_often_missed(self, graph: graphs.CSR) -> None:
        opinions = np.arange(graph.n) % 17
        outcome = div.vote(graph, opinions, replicas=300, seed=3)
        near = abs(outcome.final - outcome.weighted_average[0]) < 1
        assert near.mean() < 0.9

    def test_it_stops_at_agreement_and_not_one_step_earlier(self) -> None:
        outcome = div.vote(graphs.complete(40), [0, 1] * 20, replicas=50)
        assert (outcome.low == outcome.high).all()
        assert (outcome.steps >= 20).all()  # someone had to move in at least half of the nodes


class TestAUsersGraph:
    def test_networkx_scipy_edges_and_csr_give_the_same(self) -> None:
        known = nx.random_regular_graph(4, 30, seed=3)
        edges = np.array(known.edges)
        order = list(known)
        opinions = np.arange(30) % 5
        matrix = csr_array(nx.to_scipy_sparse_array(known))
        by_networkx = div.vote(known, opinions[order], replicas=5)
        renumbered = nx.convert_node_labels_to_integers(known)
        by_edges = div.vote(np.array(renumbered.edges), opinions[order], replicas=5)
        assert by_networkx.steps.tolist() == by_edges.steps.tolist()
        by_scipy = div.vote(matrix, opinions[order], replicas=5)
        assert by_scipy.final.tolist() == by_networkx.final.tolist()
        assert edges.shape == (60, 2)
        by_name = div.vote(known, dict(enumerate(opinions.tolist())), replicas=5)
        assert by_name.steps.tolist() == by_networkx.steps.tolist()

    def test_opinions_by_name_must_fit_the_nodes(self) -> None:
        with pytest.raises(ValueError, match="'c' is only in one of graph and opinions"):
            div.vote(nx.Graph([("a", "b"), ("b", "c")]), {"a": 0, "b": 1})

    def test_on_the_command_line(self, package: Package) -> None:
        graph = nx.random_regular_graph(6, 100, seed=1)
        lines = ["# a comment", *(f"node{a}\tnode{b}" for a, b in graph.edges)]
        (package.root / "edges.txt").write_text("\n".join(lines))
        rows = ["node,opinion", *(f"node{node},{node % 4}" for node in graph)]
        (package.root / "opinions.csv").write_text("\n".join(rows))
        answer = package.json("compare", "protocols", "--graph", "edges.txt", "--opinions", "opinions.csv")
        assert answer["graph"]["nodes"] == 100
        assert answer["opinions"]["average"] == 1.5
        assert [row["rule"] for row in answer["table"]] == ["div", "pull", "median"]
        assert answer["table"][0]["on_average_ratio"] > 0.9
        assert "div" in answer["why"] or "median" in answer["why"]
        assert "closest to the initial average" in answer["why"]

    @pytest.mark.parametrize(
        ("content", "arguments", "word"),
        [
            ("1 2\n3\n", (), "line 2"),
            ("1 2\n3 4\n", (), "several parts"),
            ("1 2\n", ("--rules", "shout"), "no rule 'shout'"),
            ("1 2\n", ("--rules", ","), "no rule given"),
            ("1 2\n", ("--opinions", "missing.csv"), "missing.csv"),
            ("1 2\n", ("--opinions", "x.csv", "--span", "3"), "not both"),
            ("", (), "edges.txt"),
        ],
    )
    def test_bad_input_is_one_line(
        self, refused: Callable[..., str], tmp_path: Path, content: str, arguments: tuple[str, ...], word: str
    ) -> None:
        (tmp_path / "edges.txt").write_text(content)
        assert word in refused("compare", "protocols", "--graph", "edges.txt", *arguments)


class TestTheStudy:
    def test_a_trial_is_the_same_each_time_and_other_seeds_differ(self) -> None:
        case = {"start": "size", "graph": "random-regular:8", "n": 64, "span": 7, "rule": "div", "replicas": 4}
        table = Lab("div", seeds=(1000, 7, 12345)).run(div.trial, [case])
        assert table["steps_mean"].n_unique() == 3
        assert table.equals(Lab("div", seeds=(1000, 7, 12345)).run(div.trial, [case]))

    def test_every_family_gives_a_connected_graph_of_the_asked_size(self) -> None:
        for name, n in [("complete", 20), ("random-regular:8", 64), ("cycle", 16), ("torus", 64),
                        ("ring-of-cliques:8", 32), ("star", 17), ("barbell", 20)]:  # fmt: skip
            graph = div._graph(name, n, 0)
            assert graph.n == n, name
            assert graph.is_connected, name
        with pytest.raises(ValueError, match="no graph family"):
            div._graph("hypercube", 16, 0)

    def test_the_starts_have_the_span_they_say(self) -> None:
        for name in ("size", "average", "expectation"):
            start = div._start(name, graphs.star(17), 8, seed=1)
            assert (start.min(), start.max()) == (0, 8)
        assert div._start("size", graphs.complete(64), 7, seed=1).mean() == 3.5

    def test_quadratic_growth_is_reproduced_and_cubic_is_not(self) -> None:
        square = [{"n": n, "steps_mean": 0.7 * n**2, "seed": s} for n in (64, 128, 256, 512) for s in range(2)]
        cube = [row | {"steps_mean": row["n"] ** 3} for row in square]
        assert verdict("expanders", measured(square)) is Verdict.REPRODUCED
        assert verdict("expanders", measured(cube)) is Verdict.NOT_REPRODUCED

    def test_a_miss_of_the_average_is_not_reproduced(self) -> None:
        row = {"experiment": "average", "graph": "complete", "replicas": 500}
        assert verdict("rounded", measured([row | {"hits": 500}])) is Verdict.REPRODUCED
        assert verdict("rounded", measured([row | {"hits": 400}])) is Verdict.NOT_REPRODUCED

    def test_only_the_largest_graph_counts_for_high_probability(self) -> None:
        row = {"experiment": "average", "graph": "complete", "replicas": 500}
        table = measured([row | {"n": 64, "hits": 10}, row | {"n": 2048, "hits": 500}])
        assert verdict("rounded", table) is Verdict.REPRODUCED

    def test_a_rival_that_hits_as_often_is_a_tie(self) -> None:
        rows = [
            {"experiment": "average", "graph": "complete", "rule": rule, "hits": hits, "seed": seed}
            for rule, hits in (("div", 100), ("pull", 40))
            for seed in (1000, 7, 12)
        ]
        assert verdict("over-pull", measured(rows)) is Verdict.REPRODUCED
        assert verdict("over-pull", measured([row | {"hits": 100} for row in rows])) is Verdict.NOT_REPRODUCED

    def test_a_bias_in_one_graph_is_not_averaged_away_by_another(self) -> None:
        rows = [
            {"experiment": "expectation", "graph": graph, "bias_ratio": bias, "seed": seed}
            for graph, bias in (("star", 0.06), ("barbell", -0.05))
            for seed in range(3)
        ]
        found = answers(measured(rows))["expectation"]
        assert found.verdict is Verdict.NOT_REPRODUCED
        assert found.measured == pytest.approx(0.06) and found.cases == "star, of 2 cases"

    def test_the_steepest_family_counts_and_is_named(self) -> None:
        rows = [
            {"experiment": "conductance", "graph": graph, "inverse_conductance": phi, "bound_ratio": 1e-6 * phi**power}
            for graph, power in (("cycle", -1.0), ("torus", 1.0))
            for phi in (2.0, 4.0, 8.0, 16.0)
        ]
        found = answers(measured(rows))["conductance"]
        assert found.verdict is Verdict.NOT_REPRODUCED  # 1/Φ³ on one family is too much
        assert found.cases == "torus, of 2 cases"

    def test_one_case_above_the_bound_is_a_counterexample(self) -> None:
        kept = [{"n": n, "bound_ratio": 0.4} for n in (64, 128, 256)]
        assert verdict("constant", measured(kept)) is Verdict.REPRODUCED
        found = answers(measured([*kept, {"n": 512, "bound_ratio": 1.5}]))["constant"]
        assert found.verdict is Verdict.NOT_REPRODUCED and "1.5 of the bound: random-regular:8 of 512" in found.cases

    def test_the_plot_is_drawn(self) -> None:
        rows = [{"n": n, "steps_mean": n**2} for n in (64, 128)]
        assert charts.svg(div.plot(measured(rows))).startswith("<svg")


@pytest.mark.slow
def test_high_probability_grows_with_n() -> None:
    shares = []
    for n in (256, 1024, 4096):
        table = Lab("div", seeds=(0, 1, 2, 3)).run(
            div.trial,
            [
                {
                    "experiment": "average",
                    "graph": "complete",
                    "n": n,
                    "span": math.isqrt(n),
                    "rule": "div",
                    "replicas": 100,
                }
            ],
        )
        shares.append(table["hits"].sum() / 400)
    assert shares == sorted(shares)
    assert shares[-1] >= 0.99
