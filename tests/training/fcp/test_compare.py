"""What the model says of FCP and its rivals, and `assay compare fcp` on the user's own lengths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.training import fcp
from assay.training.fcp.compare import drawn
from assay.training.fcp.pace import best_ring, cluster, proportional, ring, travelling
from assay.workloads.lengths import lognormal

EXAMPLE = Path(__file__).parents[3] / "examples" / "lengths.jsonl"


def test_the_users_own_lengths_are_compared_and_the_answer_says_who_wins() -> None:
    found = CliRunner().invoke(command, ["fcp", "--lengths", str(EXAMPLE), "--ranks", "16", "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert {row["system"] for row in answer["table"]} == {"fcp", "fcp, heads cut", "usp", *fcp.RIVALS}
    assert "times as long" in answer["why"]
    assert "model" in answer["trust"]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("12\nmany\n", [], "line 2: not JSON"),
        ('{"words": 3}\n', [], "line 1: tokens or length should be a number, at least 1"),
        ("0\n", [], "line 1: tokens or length should be a number, at least 1"),
        ("", [], "no lengths in it"),
        ("12\n", ["--model", "deepseek-v3"], "has latent attention"),
        ("12\n", ["--ranks", "1024", "--tokens", "1000000"], "at most 67108864 tokens a batch"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    refused: Any, tmp_path: Any, content: Any, options: Any, says: Any
) -> None:
    (tmp_path / "lengths.txt").write_text(content)
    assert says in refused("compare", "fcp", "--lengths", str(tmp_path / "lengths.txt"), *options)


def test_batches_have_as_many_tokens_as_asked() -> None:
    for batch in drawn(np.array([5, 3000, 70]), 10_000, seed=1):
        assert batch.sum() == 10_000
        assert batch.min() >= 1


def test_one_long_sequence_is_as_fast_in_a_ring_and_pairs_are_never_computed_faster_than_the_rate() -> None:
    on, lengths = cluster(8), np.array([8 * 32768])
    pairs = float(lengths[0]) * (lengths[0] + 1) / 2
    times = ring(lengths, on), best_ring(lengths, on)[0], travelling(fcp.plan(lengths, 8), on)
    for found in times:
        assert found.forward >= pairs / 8 / on.rate * 0.999
        assert found.mfu(pairs, on) <= 0.7001
    assert times[2].forward == pytest.approx(times[0].forward, rel=0.35)


def test_groups_by_length_balance_tokens_and_not_work() -> None:
    for ranks in (32, 128):
        assert proportional(lognormal(ranks * 32768, 0), cluster(ranks)).imbalance >= 0.3


def test_more_of_the_peak_is_used_on_many_ranks_and_as_much_on_eight() -> None:
    """Beside the best of the rivals that the paper names; a ring whose heads are cut is another matter."""
    gains = {}
    for ranks in (8, 128):
        found = fcp.compare_at(ranks, seed=0)
        gains[ranks] = found["fcp"]["mfu"] / max(found[rival]["mfu"] for rival in fcp.RIVALS)
    assert 0.9 <= gains[8] <= 1.1
    assert 1.1 <= gains[128] <= 2.3
    assert "torus" in fcp.avoid_when  # where rounds of any pairs share links


def test_heads_are_cut_where_the_network_is_slow_and_not_where_it_is_free() -> None:
    lengths, on = lognormal(64 * 32768, 1), cluster(64)
    assert best_ring(lengths, on)[1] > 1
    free = replace(on, inside=replace(on.inside, bandwidth=1e18), outside=replace(on.outside, bandwidth=1e18))
    slow, fast = (ring(lengths, where).forward for where in (on, free))
    assert fast < slow


def test_each_part_helps_where_there_is_much_to_move() -> None:
    found = fcp.ablation(64, seed=0)
    speeds = [row["mfu"] for row in found.values()]
    assert speeds == sorted(speeds)
    assert speeds[-1] > 1.2 * speeds[0]
