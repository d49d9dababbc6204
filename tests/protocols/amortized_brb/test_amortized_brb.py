"""Amortised broadcast: the four properties under attack, what it costs, and what the study concludes."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import polars as pl
import pytest

from assay.protocols import amortized_brb
from assay.protocols.amortized_brb.chained import Chained
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.world import World
from assay.record import charts
from assay.record.catalogue import study
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Answer, Verdict


def answers(table: pl.DataFrame) -> dict[str, Answer]:
    return {answer.id: answer for answer in judge(study("amortized-brb"), table)}


def verdicts(table: pl.DataFrame) -> dict[str, Verdict]:
    return {name: answer.verdict for name, answer in answers(table).items()}


def measured(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A table of the study's shape with made-up numbers."""
    base = {
        "experiment": "bits", "method": "chained", "n": 64, "message": 65_536, "stream": 16, "seed": 0, "bits": 1.0,
        "bits_ratio": 1.0, "messages": 1.0, "delivered_ratio": 1.0, "faults": "none", "rounds_mean": 1.0,
        "rounds_max": 1.0, "rounds_optimistic": 1.0, "optimistic_ratio": 1.0, "runs": 10, "kept": 10,
        "scheduler": "random", "violated": 0, "stalled": 0,
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

    @pytest.mark.parametrize("faults", amortized_brb.BEARABLE)
    @pytest.mark.parametrize("scheduler", ["random", "starving", "dividing"])
    @pytest.mark.parametrize("n", [4, 10])
    def test_they_hold_with_f_byzantine_nodes(self, n: int, scheduler: str, faults: str) -> None:
        """Liars whose camp is cut off from the others until it has delivered, too: the others must come after."""
        assert len(amortized_brb.ATTACKS[faults](n)) == (n - 1) // 3
        assert amortized_brb.safety(n, faults, scheduler, runs=5, seed=100) == {"kept": 5}

    def test_a_vote_that_was_overtaken_does_not_make_a_node_forget_the_later_one(self) -> None:
        """In the last of these runs a node once heard of a tip, then of the one before, and forgot the first."""
        assert amortized_brb.safety(4, "equivocating-and-silent", "dividing", runs=7, seed=0) == {"kept": 7}
        # Here it learnt what the old vote was for from others, and never had a question for that voter.
        assert amortized_brb.safety(16, "colluding", "dividing", runs=3, seed=9) == {"kept": 3}

    def test_and_not_with_one_more(self) -> None:
        assert amortized_brb.safety(10, "one-too-many", "random", runs=10, seed=100)["kept"] < 5

    @pytest.mark.parametrize("method", amortized_brb.SAMPLERS)
    def test_what_decides_by_samples_is_broken_by_a_schedule_that_divides(self, method: str) -> None:
        found = amortized_brb.adversary(method, "dividing", n=31, runs=4, seed=100)
        assert found["violated"] > 0


@pytest.mark.slow
def test_ten_thousand_runs_with_a_lying_sender_and_silent_nodes_keep_all_properties() -> None:
    for seed in range(10):
        found = amortized_brb.safety(10, "equivocating-and-silent", "random", runs=1_000, seed=seed)
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
        found = amortized_brb.cost("chained", n=48, message=65_536, stream=16, seed=0)
        assert 0.97 < found["bits_ratio"] < 1.1
        assert found["delivered_ratio"] == 1.0

    def test_a_longer_stream_makes_small_messages_cheaper(self) -> None:
        short, long = (
            amortized_brb.cost("chained", n=32, message=1_024, stream=length, seed=0)["bits"] for length in (2, 24)
        )
        assert long < 0.6 * short

    def test_digests_alone_go_with_the_square(self) -> None:
        small, large = (
            amortized_brb.cost("hashed-bracha", n=n, message=32, stream=1, seed=0)["bits"] for n in (16, 64)
        )
        assert 12 < large / small < 17


class TestTheStudy:
    def test_a_trial_is_the_same_each_time(self) -> None:
        case = {"method": "chained", "n": 16, "faults": "silent"}
        tables = [Lab("amortized-brb", seeds=(1000, 7)).run(amortized_brb.latency, [case]) for _ in range(2)]
        assert tables[0].equals(tables[1])

    def test_what_the_optimistic_path_delivered_is_told(self) -> None:
        found = amortized_brb.latency("optimistic", n=64, faults="none", seed=3)
        assert found["optimistic_ratio"] > 0.9
        assert found["rounds_optimistic"] == pytest.approx(found["rounds_mean"], rel=0.1)
        plain = amortized_brb.latency("chained", n=64, faults="none", seed=3)
        assert (plain["optimistic_ratio"], plain["rounds_optimistic"]) == (0.0, None)

    def test_linear_bits_are_reproduced_and_quadratic_ones_are_not(self) -> None:
        rows = [{"n": n, "bits": 8e5 * n, "seed": seed} for n in (16, 32, 64) for seed in range(2)]
        assert verdicts(measured(rows))["bits"] is Verdict.REPRODUCED
        squares = [row | {"bits": float(row["n"]) ** 2} for row in rows]
        assert verdicts(measured(squares))["bits"] is Verdict.NOT_REPRODUCED

    def test_the_rival_is_judged_at_the_size_of_the_mechanism(self) -> None:
        """A rival that is quadratic for small messages alone is no steeper for large ones."""
        rows = [
            {"n": n, "method": method, "message": message, "seed": seed, "bits": float(n) ** (2 if steep else 1)}
            for n in (16, 32, 64) for seed in range(3) for message in (1_024, 65_536)
            for method in ("chained", "hashed-bracha") for steep in [method != "chained" and message == 1_024]
        ]  # fmt: skip
        said = verdicts(measured(rows))
        assert (said["steeper-1k"], said["steeper-64k"]) == (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED)

    @staticmethod
    def asked(function: Any, size: str = "quick") -> list[dict[str, Any]]:
        """The cases with which the study would call a function."""
        found: list[dict[str, Any]] = []

        class Cases(Lab):
            def run(self, called: Any, cases: Any, **options: Any) -> pl.DataFrame:
                found.extend(cases if called is function else [])
                return pl.DataFrame({"n": []})

        amortized_brb.study(Cases("amortized-brb", size=size))
        return found

    @pytest.mark.parametrize(
        ("claim", "function", "least"),
        [
            ("bits", amortized_brb.cost, 0),
            ("rounds-worst", amortized_brb.latency, amortized_brb.WIDE),
            ("rounds-optimistic", amortized_brb.latency, amortized_brb.WIDE),
        ],
    )
    def test_a_sentence_says_the_sizes_that_its_answer_comes_from(self, claim: str, function: Any, least: int) -> None:
        quick, full = ([case["n"] for case in self.asked(function, size)] for size in ("quick", "full"))
        told = f"{max(min(quick), least)} to {max(quick)} nodes; full size to {max(full)})"
        assert told in answers(measured([{"n": 64}]))[claim].text

    def test_every_method_stands_at_every_size(self) -> None:
        grid = {(case["method"], case["n"], case["message"]) for case in self.asked(amortized_brb.cost)}
        methods, sizes, lengths = ({cell[place] for cell in grid} for place in range(3))
        assert len(grid) == len(methods) * len(sizes) * len(lengths)

    def test_a_dearer_cell_is_the_counterexample(self) -> None:
        rows = [
            {"n": n, "message": 1_024, "method": method, "bits": 2.0 if method == "chained" and n == 16 else 1.0 + wide}
            for n in (16, 64) for method, wide in (("chained", 0), ("hashed-bracha", 0.5), ("avid", 3))
        ]  # fmt: skip
        found = answers(measured(rows))["every-cell"]
        assert found.verdict is Verdict.NOT_REPRODUCED
        assert found.cases == "not at n = 16, 1,024 bytes, against hashed-bracha"

    def test_a_growing_optimistic_path_is_not_constant(self) -> None:
        rows = [
            {"experiment": "latency", "method": "optimistic", "n": n, "rounds_optimistic": 7.0, "seed": seed}
            for n in (64, 128, 256)
            for seed in range(2)
        ]
        assert verdicts(measured(rows))["rounds-optimistic"] is Verdict.REPRODUCED
        grown = [row | {"rounds_optimistic": 7.0 * (row["n"] / 64)} for row in rows]
        assert verdicts(measured(grown))["rounds-optimistic"] is Verdict.NOT_REPRODUCED

    def test_a_single_breach_is_too_many_and_is_named(self) -> None:
        row = {"experiment": "safety", "faults": "colluding", "scheduler": "dividing", "n": 7, "runs": 400, "seed": 12}
        assert verdicts(measured([row | {"kept": 400}]))["resilience"] is Verdict.REPRODUCED
        found = answers(measured([row | {"kept": 399}]))["resilience"]
        assert found.verdict is Verdict.NOT_REPRODUCED
        assert found.cases == "broken: colluding, dividing, n = 7, seed 12"

    def test_the_runs_with_one_node_too_many_do_not_count_for_resilience(self) -> None:
        rows = [
            {"experiment": "safety", "faults": "colluding", "runs": 400, "kept": 400},
            {"experiment": "safety", "faults": "one-too-many", "runs": 400, "kept": 0},
        ]
        assert verdicts(measured(rows))["resilience"] is Verdict.REPRODUCED

    def test_a_sampled_broadcast_that_no_run_breaks_is_a_counterexample(self) -> None:
        rows = [
            {"experiment": "adversary", "method": method, "scheduler": "dividing", "runs": 10, "violated": 3}
            for method in amortized_brb.SAMPLERS
        ]
        found = answers(measured(rows))["committees"]
        assert found.verdict is Verdict.REPRODUCED
        assert "sampled broken in 3 of 10 runs" in found.cases
        rows[1]["violated"] = 0
        assert verdicts(measured(rows))["committees"] is Verdict.NOT_REPRODUCED

    def test_the_plot_is_drawn(self) -> None:
        rows = [{"n": n, "message": size, "bits_ratio": 1.0 + n / 100} for n in (16, 32) for size in (1_024, 65_536)]
        assert charts.svg(amortized_brb.plot(measured(rows))).startswith("<svg")
