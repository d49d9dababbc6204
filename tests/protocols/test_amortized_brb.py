"""Amortised broadcast: the four properties under attack, what it costs, and what the study concludes."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import polars as pl
import pytest

from assay.protocols import amortized_brb
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.chained import Chained
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Verdict


def verdicts(table: pl.DataFrame) -> dict[str, Verdict]:
    return {answer.text: answer.verdict for answer in judge(study("amortized-brb"), table)}


def claim(words: str) -> str:
    return next(one.text for one in amortized_brb.claims if words in one.text)


def measured(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A table of the study's shape with made-up numbers."""
    base = {
        "experiment": "bits", "method": "chained", "n": 64, "message": 65_536, "stream": 16, "seed": 0, "bits": 1.0,
        "bits_ratio": 1.0, "messages": 1.0, "delivered_ratio": 1.0, "faults": "none", "rounds_mean": 1.0,
        "rounds_max": 1.0, "runs": 10, "kept": 10, "scheduler": "random", "violated": 0, "stalled": 0, "broken": 0,
    }  # fmt: skip
    return pl.from_dicts([base | row for row in rows], infer_schema_length=None)


def ended(*decisions: tuple[int, Hashable, Any]) -> Outcome:
    """A run of two correct nodes that put out these values."""
    outcome = Outcome(2, (0, 1), Meter(2), {0: {}, 1: {}})
    for node, slot, value in decisions:
        outcome.log.append(Decision(0.0, node, slot, value))
        outcome.decisions[node].setdefault(slot, value)
    return outcome


class TestTheFourProperties:
    def test_all_the_same_is_fine_and_so_is_nothing_from_a_liar(self) -> None:
        assert amortized_brb.kept(ended((0, 1, b"a"), (1, 1, b"a")), [b"a"])
        assert amortized_brb.kept(ended(), None)

    @pytest.mark.parametrize(
        ("decisions", "sent"),
        [
            ([(0, 1, b"a"), (1, 1, b"b")], None),  # agreement
            ([(0, 1, b"a")], None),  # totality
            ([(0, 1, b"a"), (1, 1, b"a"), (0, 1, b"a")], None),  # delivered twice
            ([(0, 1, b"b"), (1, 1, b"b")], [b"a"]),  # integrity
            ([(0, 1, b"a"), (1, 1, b"a")], [b"a", b"c"]),  # validity
        ],
    )
    def test_each_breach_is_seen(self, decisions: list[Any], sent: list[bytes] | None) -> None:
        assert not amortized_brb.kept(ended(*decisions), sent)

    @pytest.mark.parametrize("faults", ["equivocating-and-silent", "colluding", "silent"])
    def test_they_hold_with_f_byzantine_nodes(self, faults: str) -> None:
        assert amortized_brb.safety("safety", n=10, faults=faults, runs=40, seed=100) == {"kept": 40}

    def test_and_not_with_one_more(self) -> None:
        assert amortized_brb.safety("safety", n=10, faults="one-too-many", runs=10, seed=100)["kept"] < 5


@pytest.mark.slow
def test_ten_thousand_runs_with_a_lying_sender_and_silent_nodes_keep_all_properties() -> None:
    for seed in range(10):
        found = amortized_brb.safety("safety", n=10, faults="equivocating-and-silent", runs=1_000, seed=seed)
        assert found == {"kept": 1_000}


@pytest.mark.slow
def test_the_same_nodes_run_over_sockets() -> None:
    stream = [b"one", b"two", b"three"]
    world = World(n=16, f=5, node=partial(Chained, pace=0.1), inputs=[stream])
    outcome = world.run("live", processes=4, limit=60.0, until=amortized_brb._over(3))
    for node in outcome.correct:
        assert outcome.decisions[node] == dict(enumerate(stream, 1))


class TestCosts:
    def test_large_messages_cost_little_more_than_sending_them(self) -> None:
        found = amortized_brb.cost("bits", "chained", n=48, message=65_536, stream=16, seed=0)
        assert 0.97 < found["bits_ratio"] < 1.1
        assert found["delivered_ratio"] == 1.0

    def test_a_longer_stream_makes_small_messages_cheaper(self) -> None:
        short, long = (
            amortized_brb.cost("bits", "chained", n=32, message=1_024, stream=length, seed=0)["bits"]
            for length in (2, 24)
        )
        assert long < 0.6 * short

    def test_digests_alone_go_with_the_square(self) -> None:
        small, large = (
            amortized_brb.cost("bits", "hashed-bracha", n=n, message=32, stream=1, seed=0)["bits"] for n in (16, 64)
        )
        assert 12 < large / small < 17


class TestTheStudy:
    def test_a_trial_is_the_same_each_time(self) -> None:
        case = {"experiment": "latency", "method": "chained", "n": 16, "faults": "silent"}
        table = Lab("amortized-brb", seeds=2).run(amortized_brb.latency, [case])
        assert table.equals(Lab("amortized-brb", seeds=2).run(amortized_brb.latency, [case]))

    def test_linear_bits_are_reproduced_and_quadratic_ones_are_not(self) -> None:
        text = claim("amortised bits")
        rows = [{"n": n, "bits": 8e5 * n, "seed": seed} for n in (16, 32, 64) for seed in range(2)]
        assert verdicts(measured(rows))[text] is Verdict.REPRODUCED
        squares = [row | {"bits": float(row["n"]) ** 2} for row in rows]
        assert verdicts(measured(squares))[text] is Verdict.NOT_REPRODUCED

    def test_a_growing_optimistic_path_is_not_constant(self) -> None:
        text = claim("optimistic path grow")
        rows = [
            {"experiment": "latency", "method": "optimistic", "n": n, "rounds_mean": 7.0, "seed": seed}
            for n in (64, 128, 256)
            for seed in range(2)
        ]
        assert verdicts(measured(rows))[text] is Verdict.REPRODUCED
        grown = [row | {"rounds_mean": 7.0 * (row["n"] / 64)} for row in rows]
        assert verdicts(measured(grown))[text] is Verdict.NOT_REPRODUCED

    def test_a_single_breach_in_twenty_is_too_many(self) -> None:
        text = claim("fewer than a third")
        row = {"experiment": "safety", "faults": "colluding", "runs": 400}
        assert verdicts(measured([row | {"kept": 400}]))[text] is Verdict.REPRODUCED
        assert verdicts(measured([row | {"kept": 380}]))[text] is Verdict.NOT_REPRODUCED

    def test_the_runs_with_one_node_too_many_do_not_count_for_resilience(self) -> None:
        rows = [
            {"experiment": "safety", "faults": "colluding", "runs": 400, "kept": 400},
            {"experiment": "safety", "faults": "one-too-many", "runs": 400, "kept": 0},
        ]
        assert verdicts(measured(rows))[claim("fewer than a third")] is Verdict.REPRODUCED

    def test_a_schedule_that_breaks_nothing_contradicts_the_impossibility(self) -> None:
        text = claim("third version")
        row = {"experiment": "adversary", "method": "optimistic", "scheduler": "dividing", "runs": 100}
        assert verdicts(measured([row | {"violated": 80}]))[text] is Verdict.REPRODUCED
        assert verdicts(measured([row | {"violated": 0}]))[text] is Verdict.NOT_REPRODUCED

    def test_the_plot_is_drawn(self) -> None:
        rows = [{"n": n, "message": size, "bits_ratio": 1.0 + n / 100} for n in (16, 32) for size in (1_024, 65_536)]
        assert charts.svg(amortized_brb.plot(measured(rows))).startswith("<svg")
