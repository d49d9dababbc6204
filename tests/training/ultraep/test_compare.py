"""`assay compare ultraep` and the study: what a user sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.record.lab import Lab
from assay.sim.collectives import Link
from assay.training import ultraep
from assay.training.interface import Hosts
from assay.training.ultraep.compare import compare
from assay.training.ultraep.step_time import copying, pace
from assay.workloads.routing import drifting

EXAMPLE = Path(__file__).parents[3] / "examples" / "routing.npy"


def test_the_users_own_counts_are_compared_and_the_answer_says_who_wins() -> None:
    found = CliRunner().invoke(command, ["ultraep", "--input", str(EXAMPLE), "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert {row["balancer"] for row in answer["table"]} == {"ultraep", "none", "eplb", "eplb+", "lplb"}
    assert answer["table"][0]["busiest_mean"] <= 1.03
    assert answer["routing"]["judged"] == 7
    assert "times the mean" in answer["why"]
    assert "model" in answer["trust"]


def test_even_loads_are_a_tie() -> None:
    answer = compare(np.full((4, 8, 16), 300))
    assert "tie" in answer["why"]


def test_one_microbatch_is_judged_without_a_past() -> None:
    answer = compare(drifting(8, 32, 4, 2048, 2.0, 1, seed=0))
    assert answer["routing"]["judged"] == 1
    assert "interval" not in answer["why"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "llama-3-8b"], "--model llama-3-8b has no experts"),
        (["--model", "no-such-model"], "unknown model"),
        (["--ranks", "8"], "16 sources, but --ranks is 8"),
        (["--device", "abacus"], "unknown device"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(refused: Any, options: list[str], says: str) -> None:
    assert says in refused("compare", "ultraep", "--input", str(EXAMPLE), *options)


def test_relays_shorten_the_way_of_a_hot_experts_weights_and_leave_few_copies_alone() -> None:
    link, main = Link(1e-6, 100e9), np.zeros(4, np.int64)
    for count in range(1, 16):
        copies = np.zeros((4, 16), bool)
        copies[0, 1 : count + 1] = True
        direct, relayed = (copying(copies, main, 1e8, link, relays) for relays in (False, True))
        assert direct == pytest.approx(1e-6 + count * 1e-3)
        assert relayed == direct if count <= 4 else relayed < direct
        assert relayed >= 1e-3  # nobody is served faster than by one transfer


def test_the_pace_goes_with_the_busiest_rank_and_training_is_three_forward_passes() -> None:
    rack = pace("qwen3-30b-a3b", "h200", ranks=8, tokens=512)
    even, twice = (rack.seconds(x, 0.0, training=False, planned=False) for x in (1.0, 2.0))
    assert twice - even == pytest.approx(rack.matrices + rack.exchange)
    assert min(rack.alike, rack.matrices, rack.exchange) > 0
    training = rack.seconds(1.0, 0.0, training=True, planned=False)
    assert 2 * even < training <= 3 * even


def test_the_study_prefers_the_exact_counts_on_a_small_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EXPERTS", 32), ("TOP_K", 4), ("TOKENS", 2048), ("MODEL", "qwen3-30b-a3b")):
        monkeypatch.setattr(ultraep, name, value)
    table = Lab("ultraep", seeds=(0, 1)).run(
        ultraep.balance, [{"ranks": 8, "uneven_by": 2.0, "history": 2, "judged": 2}], per="policy"
    )
    after = dict(zip(table["policy"], table["after_mean"], strict=True))
    assert after["ultraep"] < after["lplb"] < after["none"]
    assert after["ultraep"] < after["eplb"] < after["none"]
    assert after["ideal"] == pytest.approx(1.0, abs=1e-3)
    assert max(table.filter(policy="ultraep")["copies_mean"].to_list()) < Hosts.dealt(32, 8, ultraep.SLOTS).slots * 8
