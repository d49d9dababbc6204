"""Libra's planner and loop: GPUs are conserved, nothing is lost, plans are worth their cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import assay
from assay.record.errors import BadInput
from assay.training import libra
from assay.training.engine.rollout import Rule
from assay.training.libra import loop, planner
from assay.training.libra.planner import SIZES, Machine, Split
from assay.workloads.trajectories import as_lines, draw, read

SMALL = Machine("qwen3-8b", "a800", 16)
EXAMPLE = Path(__file__).parents[3] / "examples" / "trajectories.jsonl"


@given(gpus=st.integers(1, 24), allowed=st.sets(st.sampled_from(SIZES), min_size=1).map(sorted))
def test_partitions_are_all_ways_to_cut(gpus: int, allowed: list[int]) -> None:
    every = {
        counts
        for counts in product(*(range(gpus // size + 1) if size in allowed else range(1) for size in SIZES))
        if sum(size * count for size, count in zip(SIZES, counts, strict=True)) == gpus
    }
    found = list(planner.partitions(gpus, allowed))
    assert len(found) == len(set(found)) and set(found) == every


def test_allotment_is_longest_first_to_whom_would_be_done_first() -> None:
    needs = planner.Demand(np.array([8.0, 4.0, 4.0]), np.zeros((4, 3)), np.array([1.0, 2.0, 4.0, 8.0]))
    assert planner.estimate(needs, (2, 0, 0, 0)) == 8.0
    assert planner.estimate(needs, (0, 2, 0, 0)) == 4.0
    alone = np.zeros((4, 3))
    alone[0, 0] = 20.0  # the longest would take that long on a small one, however idle
    slow = planner.Demand(needs.work, alone, needs.rate)
    assert planner.estimate(slow, (1, 0, 0, 1)) < 8.0


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 1000), elastic=st.booleans(), drift=st.sampled_from(libra.DRIFTS))
def test_gpus_are_conserved_and_no_trajectory_is_lost(seed: int, elastic: bool, drift: str) -> None:
    parts = libra.course(drift, 6, 64, seed)
    found = loop.run(SMALL, parts, Split(8, (8, 0, 0, 0)), loop.Manner(elastic=elastic))
    assert found.finished == 6 * 64 and found.tokens == sum(int(part.written.sum()) for part in parts)
    assert {split.train + split.rollout for split in found.splits} == {16}


def test_lent_instances_train_and_at_least_one_rolls_out() -> None:
    split = Split(4, (4, 0, 2, 0))
    assert [loop.lent_gpus(split, n) for n in (0, 4, 5)] == [0, 4, 8]
    assert planner.pool(SMALL, split, 5).total_gpus == 4
    work = draw(64, seed=0)
    assert loop.training(SMALL, Split(8, (8, 0, 0, 0)), 4, work) < loop.training(SMALL, Split(8, (8, 0, 0, 0)), 0, work)


def test_a_plan_that_saves_little_is_not_applied() -> None:
    work = draw(64, seed=0)
    best = planner.best(SMALL, work)[0]
    assert loop.worth(SMALL, work, best.split, Rule("learnt"), 10) is None
    poor = Split(8, (8, 0, 0, 0))
    found = loop.worth(SMALL, work, poor, Rule("learnt"), 10)
    assert found is not None and found.split == best.split
    assert loop.worth(SMALL, work, poor, Rule("learnt"), 0) is None  # nothing is left to save in


def test_where_returns_tell_what_is_to_come_the_tree_moves_long_ones_and_otherwise_stays() -> None:
    found = libra.routed(1.0, 512, seed=3)
    assert found["c-mlfq"]["migrations"] > 20 and found["least-connections"]["migrations"] == 0
    assert all(one["finished"] == 512 for one in found.values())
    assert found["c-mlfq"]["reread"] > 0  # moving is not free


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    work = draw(20, seed=2)
    file = tmp_path / "mine.jsonl"
    file.write_text(as_lines(work))
    found = read(file)
    assert (found.prompt == work.prompt).all() and (found.output == work.output).all()
    assert found.turns.tolist() == work.turns.tolist() and np.allclose(found.env, work.env, atol=1e-3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"trajectory": 1, "turn": 0, "prompt_tokens": 5}', "line 1: gen_tokens should be a number"),
        ('{"trajectory": 1, "turn": 1, "prompt_tokens": 5, "gen_tokens": 5}', "trajectory 1 has turns"),
        ('{"trajectory": 1, "turn": 0, "prompt_tokens": 0, "gen_tokens": 5}', "prompt_tokens is 0"),
        ('{"trajectory": 1, "turn": 0, "prompt_tokens": 5, "gen_tokens": 5, "status": "odd"}', "status one of"),
        ("[]", "an object expected"),
        ("nonsense", "line 1: not JSON"),
        ("", "no trajectories in it"),
    ],
)
def test_bad_lines_are_told_in_one_line(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(BadInput, match=said) as caught:
        read(file)
    assert "\n" not in str(caught.value)


def test_the_command_plans_on_the_example() -> None:
    options = ["plan", "rl", "--trajectories", str(EXAMPLE), "--model", "qwen3-8b", "--device", "a800", "--gpus", "16"]
    found = CliRunner().invoke(assay, options)
    assert found.exit_code == 0, found.output
    assert "train" in found.output and "a step" in found.output


def test_an_unknown_device_is_told(refused: Callable[..., str]) -> None:
    assert "abacus" in refused("plan", "rl", "--trajectories", str(EXAMPLE), "--device", "abacus")
