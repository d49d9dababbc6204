"""Directories of agents: what the paper says, what a user gets, and how it is counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from assay.protocols import dht_discovery
from assay.protocols.dht_discovery import compare as compare_overlays
from assay.protocols.dht_discovery import directory
from assay.protocols.dht_discovery.directory import Presence, Scenario
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Outcome
from assay.protocols.nodes.overlay import Agent, Settings
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict
from assay.workloads.histories import Operation
from tests.conftest import Package

OVERLAYS = dht_discovery.OVERLAYS


def fit(x: list[float], y: list[float]) -> tuple[float, float]:
    """Slope and R² of the least-squares line."""
    slope, _ = np.polyfit(x, y, 1)
    return float(slope), float(np.corrcoef(x, y)[0, 1] ** 2)


class TestWhatMustHold:
    @pytest.mark.parametrize("nodes", OVERLAYS)
    def test_after_the_warm_up_everything_is_found_and_from_a_cold_start_it_is_not(self, nodes: str) -> None:
        warm = directory.run(nodes, 64, Scenario(dht_discovery.warm_up(64), 40.0, rate=0.3))
        cold = directory.run(nodes, 64, Scenario(0.0, 30.0, rate=0.3))
        assert warm["lookups"] > 400
        assert warm["success_ratio"] >= 0.999
        assert cold["success_ratio"] < warm["success_ratio"]
        assert cold["settled"] > 0

    @pytest.mark.parametrize("nodes", OVERLAYS)
    def test_churn_breaks_tables_for_good_measure(self, nodes: str) -> None:
        calm = directory.run(nodes, 64, Scenario(30.0, 30.0, rate=0.2))
        wild = directory.run(nodes, 64, Scenario(30.0, 30.0, rate=0.2, session=5.0, pause=5.0))
        assert wild["success_ratio"] < calm["success_ratio"]
        assert wild["latency_p99"] > 2 * calm["latency_p99"]

    def test_hops_grow_with_the_logarithm(self) -> None:
        sizes = [16, 32, 64, 128]
        hops = [directory.run("chord-oracle", n, Scenario(8.0, 20.0, rate=0.5))["hops_mean"] for n in sizes]
        slope, straight = fit([math.log2(n) for n in sizes], hops)
        assert 0.4 < slope < 0.6
        assert straight > 0.98


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "low", "high", "least"),
    # A digit of Pastry has sixteen values: its line is a staircase, four doublings to a stair.
    [("chord", 0.4, 0.6, 0.98), ("pastry", 0.15, 0.35, 0.95), ("kademlia", 0.05, 1, 0.98)],
)
def test_hops_grow_with_the_logarithm_up_to_the_papers_size(nodes: str, low: float, high: float, least: float) -> None:
    sizes = [64, 128, 256, 512, 1024, 2048, 4096]
    hops = [
        directory.run(nodes, n, Scenario(dht_discovery.warm_up(n), 40.0), metered=False)["hops_mean"] for n in sizes
    ]
    slope, straight = fit([math.log2(n) for n in sizes], hops)
    assert low < slope < high
    assert straight > least


@pytest.mark.slow
@pytest.mark.parametrize("nodes", OVERLAYS)
def test_success_falls_with_the_pace_of_churn(nodes: str) -> None:
    def success(session: float | None) -> float:
        pace = Scenario(30.0, 60.0, rate=0.2, session=session, pause=10.0)
        runs = [directory.run(nodes, 64, replace(pace, seed=seed)) for seed in range(4)]
        return sum(run["successes"] for run in runs) / sum(run["lookups"] for run in runs)

    shares = [success(session) for session in (None, 20.0, 5.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


class TestCounting:
    def test_a_lookup_succeeds_only_with_an_agent_that_is_there(self) -> None:
        agents = [Agent("did:a", ("x",), "h"), Agent("did:b", ("x",), "h"), Agent("did:c", ("y",), "h")]
        changes = [(10.0, 0, False), (10.0, 2, False)]

        def asked(key: str, found: tuple[str, ...], invoke: float, status: str = "ok") -> Operation:
            return Operation(1, "lookup", key, None, (2, found), invoke, invoke + 0.5, status)

        outcome = Outcome(3, (0, 1, 2), Meter(3), {})
        outcome.operations = [
            asked("x", ("did:a",), 5.0),  # there
            asked("x", ("did:a",), 20.0),  # gone, and did:b would have been there
            asked("x", ("did:a", "did:b"), 20.0),
            asked("x", (), 20.0, "fail"),
            asked("y", (), 20.0, "fail"),  # nobody offers it any more: not the directory's fault
            asked("x", (), 20.0, "info"),  # the asker left
        ]
        found = directory.figures(outcome, agents, changes, 40.0, 10.0)
        assert (found["lookups"], found["successes"]) == (4, 2)
        assert found["hops_mean"] == 2.0

    def test_presence_follows_the_changes(self) -> None:
        present = Presence(2, [(5.0, 1, True), (8.0, 0, False), (9.0, 1, False)])
        assert [present(0, 7.0), present(0, 8.5), present(1, 1.0), present(1, 6.0), present(1, 9.5)] == [
            True, False, False, True, False,
        ]  # fmt: skip
        assert present.seconds(10.0) == pytest.approx(8 + 4)

    def test_all_messages_are_counted_somewhere(self) -> None:
        found = directory.run("pastry", 24, Scenario(20.0, 20.0, rate=0.2))
        parts = found["control_rate"] + found["publish_rate"] + found["lookup_rate"]
        assert parts == pytest.approx(found["messages_rate"])
        assert found["control_rate"] > found["lookup_rate"] > 0

    def test_departures_spare_the_gateways_and_the_cloud(self) -> None:
        n = 200
        changes = directory.departures(Scenario(20.0, 100.0, session=30.0, tiers=True), n)
        gone = {node for _, node, up in changes if not up}
        of = directory.tiers(n)
        assert gone
        assert min(gone) >= Settings.gateways
        assert all(of[node] for node in gone)


class TestAUsersAgents:
    def test_on_the_command_line(self, package: Package) -> None:
        rows = [f"did:web:{node},{'translate;plan' if node % 3 else 'search'},10.0.0.{node}:80" for node in range(20)]
        (package.root / "agents.csv").write_text("\n".join(["did,capabilities,endpoint", *rows]))
        sessions = ["node,up,down", *(f"{node},0,{30 + node}" for node in range(10, 18))]
        (package.root / "sessions.csv").write_text("\n".join(sessions))
        answer = package.json(
            "compare", "protocols", "--nodes", "chord,registry", "--agents", "agents.csv", "--churn", "sessions.csv",
            "--seconds", "40", "--rate", "0.2",
        )  # fmt: skip
        assert answer["directory"]["agents"] == 20
        assert answer["churn"]["departures"] == 8
        assert [row["nodes"] for row in answer["table"]] == ["chord", "registry"]
        assert all(row["success_ratio"] > 0.8 for row in answer["table"])
        assert "Cheapest is registry" in answer["why"]

    def test_in_processes_of_their_own_directories_do_what_they_do_in_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def table() -> list[dict[str, Any]]:
            steps: list[tuple[int, int]] = []
            answer = compare_overlays.compare(
                ["pastry", "kademlia"], n=24, churn="30", warm_up=20.0, seconds=30.0, rate=0.2,
                progress=lambda done, total: steps.append((done, total)),
            )  # fmt: skip
            assert steps == [(0, 2), (1, 2), (2, 2)]
            return [{name: value for name, value in row.items() if name != "sim_seconds"} for row in answer["table"]]

        alone = table()
        monkeypatch.setattr(compare_overlays, "WORTHWHILE", 0.0)
        assert [row["nodes"] for row in alone] == ["pastry", "kademlia"]
        assert table() == alone

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (("--nodes", "gnutella"), "no node 'gnutella'"),
            (("--nodes", ","), "no node given"),
            (("--nodes", "chord", "--rules", "div"), "no comparison of protocols takes --nodes and --rules together"),
            (("--nodes", "chord", "--graph", "x"), "takes --graph and --nodes together"),
            ((), "name one: assay compare dht-discovery"),
            (("--nodes", "chord", "--churn", "-3"), "--churn"),
            (("--nodes", "chord", "--churn", "missing.csv"), "missing.csv"),
            (("--nodes", "chord", "--agents", "bad.csv"), "bad.csv:3"),
            (("--nodes", "chord", "--agents", "empty.csv"), "no agent"),
            (("--nodes", "chord", "--agents", "good.csv", "--n", "2"), "a node for each"),
            (("--nodes", "chord", "--n", "4", "--churn", "churn.csv"), "node 9"),
            (
                ("--nodes", "chord", "--churn", "twice.csv"),
                "twice.csv:2: node 9 comes up at 20 s, but is up until 30 s",
            ),
            (("--nodes", "chord", "--churn", "late.csv"), "late.csv: node 0 comes up at 20 s; it founds the directory"),
            (("--nodes", "chord", "--rate", "inf"), "--rate is inf; a finite number expected"),
            (("--nodes", "chord", "--seconds", "nan"), "--seconds is nan; a finite number expected"),
        ],
    )
    def test_bad_input_is_one_line(
        self, refused: Callable[..., str], tmp_path: Path, arguments: tuple[str, ...], word: str
    ) -> None:
        head = "did,capabilities,endpoint\n"
        (tmp_path / "bad.csv").write_text(f"{head}did:a,x,h\ndid:a,y,h\n")
        (tmp_path / "empty.csv").write_text(head)
        (tmp_path / "good.csv").write_text(head + "".join(f"did:{node},x,h\n" for node in range(3)))
        (tmp_path / "churn.csv").write_text("node,up,down\n9,0,20\n")
        (tmp_path / "late.csv").write_text("node,up,down\n0,20,\n1,0,30\n")
        (tmp_path / "twice.csv").write_text("node,up,down\n9,20,40\n9,10,30\n")
        assert word in refused("compare", "protocols", *arguments)

    def test_agents_are_read_as_they_are_written(self, tmp_path: Path) -> None:
        path = tmp_path / "agents.csv"
        path.write_text("endpoint,did,capabilities\nh:1,did:a, x ; y ;x\n")
        assert directory.read_agents(path) == [Agent("did:a", ("x", "y"), "h:1")]


def measured(main: int = 64, **changed: Any) -> pl.DataFrame:
    """A table of the study's shape with made-up numbers; `changed` maps (nodes, regime) to values."""
    base = {
        "success_ratio": 1.0, "messages_per_lookup": 5.0, "latency_mean": 0.1, "latency_p99": 1.0, "control_rate": 2.0,
        "messages_rate": 4.0, "bytes_rate": 200.0, "lookups": 10_000, "successes": 10_000,
    }  # fmt: skip
    cases = [
        ("regimes", main, "cold", 300.0), ("regimes", main, "stationary", 300.0), ("regimes", main, "churn", 300.0),
        ("churn", main, "churn", 5.0), ("growth", 128, "stationary", 300.0), ("growth", 256, "stationary", 300.0),
    ]  # fmt: skip
    rows = []
    for nodes in OVERLAYS:
        for experiment, n, regime, session in cases:
            for seed in range(3):
                case = {"nodes": nodes, "n": n, "regime": regime, "session": session, "seed": seed}
                row = {"experiment": experiment, **case, **base}
                row["hops_mean"] = math.log2(n) / 2
                rows.append(row | changed.get(nodes, {}) | changed.get(regime, {}))
    return pl.from_dicts(rows, infer_schema_length=None)


def answers(table: pl.DataFrame) -> dict[str, Answer]:
    return {answer.id: answer for answer in judge(study("dht-discovery"), table)}


def verdict(claim: str, table: pl.DataFrame) -> Verdict:
    return answers(table)[claim].verdict


class TestTheClaims:
    def test_pastry_must_be_cheapest_against_both_and_in_both_regimes(self) -> None:
        cheap = measured(4096, pastry={"messages_rate": 3.0})
        assert verdict("cheapest", cheap) is Verdict.REPRODUCED
        rival = measured(4096, pastry={"messages_rate": 3.0}, kademlia={"messages_rate": 2.0})
        assert verdict("cheapest", rival) is Verdict.NOT_REPRODUCED
        assert "kademlia" in answers(rival)["cheapest"].cases and "of 4 cases" in answers(rival)["cheapest"].cases

    def test_both_sizes_are_judged_and_the_sentence_tells_them(self) -> None:
        few = measured(64, pastry={"messages_rate": 3.0})
        assert verdict("cheapest", few) is Verdict.REPRODUCED
        text = answers(few)["cheapest"].text
        assert str(dht_discovery.SIZES["quick"]) in text and f"{dht_discovery.SIZES['full']:,} with --full" in text

    def test_a_cold_start_must_be_worse_with_every_overlay(self) -> None:
        assert verdict("warm-success", measured(cold={"success_ratio": 0.8})) is Verdict.REPRODUCED
        assert verdict("warm-success", measured()) is Verdict.NOT_REPRODUCED
        only = measured().with_columns(
            success_ratio=pl.when((pl.col("regime") == "cold") & (pl.col("nodes") != "pastry")).then(0.8).otherwise(1.0)
        )
        assert verdict("warm-success", only) is Verdict.NOT_REPRODUCED
        assert answers(only)["warm-success"].cases == "pastry, of 3 cases"

    def test_messages_and_latency_are_judged_each_for_itself(self) -> None:
        both = measured(cold={"messages_per_lookup": 9.0, "latency_mean": 0.4})
        assert verdict("warm-messages", both) is verdict("warm-latency", both) is Verdict.REPRODUCED
        one = measured(cold={"messages_per_lookup": 4.0, "latency_mean": 0.4})
        assert verdict("warm-messages", one) is Verdict.NOT_REPRODUCED
        assert verdict("warm-latency", one) is Verdict.REPRODUCED

    def test_one_lookup_that_fails_is_a_counterexample(self) -> None:
        assert verdict("all-found", measured()) is Verdict.REPRODUCED
        lost = measured(chord={"successes": 9_999})
        assert verdict("all-found", lost) is Verdict.NOT_REPRODUCED
        assert answers(lost)["all-found"].cases == "3 lookups of chord failed"

    def test_half_a_hop_for_a_doubling(self) -> None:
        assert verdict("hops-chord", measured()) is Verdict.REPRODUCED
        assert verdict("hops-pastry", measured()) is Verdict.NOT_REPRODUCED

    def test_the_seeds_are_those_that_were_given(self) -> None:
        lab = Lab("dht-discovery", seeds=(1000, 7))
        case = {"nodes": "registry", "n": 16, "regime": "stationary", "session": 300.0, "seconds": 20.0, "rate": 0.2}
        table = lab.run(dht_discovery.trial, [case])
        assert table["seed"].to_list() == [1000, 7] and table["lookups"].n_unique() == 2

    def test_the_plot_is_drawn(self) -> None:
        assert charts.svg(dht_discovery.plot(measured())).startswith("<svg")
