"""`assay hang`: the rank a hung job waits for, and what dumps cannot tell."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.hang import command
from assay.record.errors import BadInput
from assay.sim.ranks import Ranks
from tests.cli.gloo_hang import hang


def call(seq: int, kind: str = "all_reduce", group: str = "0", size: int = 8, done: bool = True) -> dict[str, Any]:
    return {
        "collective_seq_id": seq, "profiling_name": f"nccl:{kind}", "process_group": (group, f"group {group}"),
        "input_sizes": [[size]], "input_dtypes": ["Float"], "state": "completed" if done else "started",
        "retired": done, "is_p2p": False, "time_created_ns": 1_000_000 * seq,
        "time_discovered_completed_ns": 1_000_000 * seq + 100 if done else None,
    }  # fmt: skip


def write(folder: Path, calls: dict[int, list[dict[str, Any]]], groups: dict[str, list[int]] | None = None) -> Path:
    config = {name: {"ranks": str(ranks)} for name, ranks in (groups or {"0": sorted(calls)}).items()}
    for rank, own in calls.items():
        value = {"version": "2.10", "pg_config": config, "entries": own}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, 2))
    return folder


def told(folder: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(command, [str(folder), "--json"])
    return result.exit_code, json.loads(result.output)


def suspects(group: dict[str, Any]) -> list[tuple[int, str]]:
    return [(suspect["rank"], suspect["class"]) for suspect in group["suspects"]]


def test_a_rank_that_did_not_call_is_named_and_the_exit_code_is_one(tmp_path: Path) -> None:
    write(tmp_path, {rank: [call(1), *([call(2, done=False)] if rank != 2 else [])] for rank in range(4)})
    code, answer = told(tmp_path)
    assert code == 1
    assert suspects(answer["groups"][0]) == [(2, "H1")]
    assert answer["groups"][0]["waiting"] == [0, 1, 3] and answer["groups"][0]["operation"] == 2
    shown = CliRunner().invoke(command, [str(tmp_path)])
    assert shown.exit_code == 1 and "rank 2: has not called it" in shown.output and "0-1, 3" in shown.output


def test_later_calls_queued_behind_the_stuck_one_do_not_make_anyone_late(tmp_path: Path) -> None:
    queued = {rank: [call(1), *(call(seq, done=False) for seq in range(2, 3 + rank))] for rank in range(3)}
    write(tmp_path, queued | {3: [call(1)]}, {"0": [0, 1, 2, 3]})
    _, answer = told(tmp_path)
    assert suspects(answer["groups"][0]) == [(3, "H1")]


@pytest.mark.parametrize("odd", [{"kind": "all_gather"}, {"size": 16}])
def test_a_rank_that_called_something_else_is_named_even_if_it_is_done(tmp_path: Path, odd: dict[str, Any]) -> None:
    write(tmp_path, {0: [call(1, done=False)], 1: [call(1, **odd), call(2, done=False)], 2: [call(1, done=False)]})
    _, answer = told(tmp_path)
    assert suspects(answer["groups"][0]) == [(1, "H2")]


def test_uneven_exchanges_are_no_mismatch(tmp_path: Path) -> None:
    write(tmp_path, {rank: [call(1, "all_to_all", size=8 + rank, done=False)] for rank in range(3)})
    code, answer = told(tmp_path)
    assert code == 1 and suspects(answer["groups"][0]) == []
    assert answer["groups"][0]["undecided"] == ["H3", "S2", "S3"]


def test_all_inside_the_same_call_is_left_undecided_and_said_so(tmp_path: Path) -> None:
    write(tmp_path, {rank: [call(1, done=False)] for rank in range(3)})
    shown = CliRunner().invoke(command, [str(tmp_path)])
    assert shown.exit_code == 1
    assert "cannot say who is stuck inside" in shown.output
    assert "not decidable from dumps" in shown.output and "H3" in shown.output


def test_a_member_without_a_dump_is_named(tmp_path: Path) -> None:
    write(tmp_path, {0: [call(1, done=False)], 2: [call(1, done=False)]}, {"0": [0, 1, 2]})
    _, answer = told(tmp_path)
    assert suspects(answer["groups"][0]) == [(1, "no dump")]


def unlisted(kind: str = "all_reduce") -> dict[str, Any]:
    """A call as Gloo's dumps have it, which do not say who belongs to a group."""
    return call(1, kind, done=False) | {"process_group": ("0", "default_pg")}


def test_a_rank_between_those_that_left_dumps_is_missed_although_no_dump_lists_it(tmp_path: Path) -> None:
    write(tmp_path, {rank: [unlisted()] for rank in (0, 1, 3)}, {"": []})
    _, answer = told(tmp_path)
    assert suspects(answer["groups"][0]) == [(2, "no dump")]


def test_where_dumps_do_not_say_how_many_ranks_there_are_a_missing_one_is_not_ruled_out(tmp_path: Path) -> None:
    write(tmp_path, {rank: [unlisted()] for rank in range(3)}, {"": []})
    _, answer = told(tmp_path)
    group = answer["groups"][0]
    assert suspects(group) == [] and "H1" in group["undecided"]
    assert "do not list the members: a rank after 2 without a dump is unseen" in group["why"]


def test_another_root_of_a_broadcast_is_not_ruled_out(tmp_path: Path) -> None:
    write(tmp_path, {rank: [call(1, "broadcast", done=False)] for rank in range(3)})
    _, answer = told(tmp_path)
    assert "H2" in answer["groups"][0]["undecided"] and "root" in answer["groups"][0]["why"]


def test_the_group_to_act_on_comes_first_and_the_one_behind_it_says_so(tmp_path: Path) -> None:
    # Rank 1 is missing in group a because it waits in group b, where rank 2 is missing.
    write(
        tmp_path,
        {0: [call(1, group="a", done=False)], 1: [call(1, group="b", done=False)], 2: []},
        {"a": [0, 1], "b": [1, 2]},
    )
    _, answer = told(tmp_path)
    assert [group["group"] for group in answer["groups"]] == ["b", "a"]
    assert suspects(answer["groups"][0]) == [(2, "H1")]
    assert answer["groups"][1]["behind_group"] == "b"


def test_a_rank_that_comes_late_shows_in_durations(tmp_path: Path) -> None:
    def timed(seq: int, took: int) -> dict[str, Any]:
        return call(seq) | {"time_discovered_completed_ns": 1_000_000 * seq + took}

    rounds = {rank: [timed(seq, 1000 if seq <= 8 or rank == 1 else 5000) for seq in range(1, 13)] for rank in range(3)}
    write(tmp_path, rounds)
    code, answer = told(tmp_path)
    assert code == 1 and suspects(answer["groups"][0]) == [(1, "S1")]


def test_a_healthy_job_ends_in_zero(tmp_path: Path) -> None:
    write(tmp_path, {rank: [call(seq) for seq in range(1, 4)] for rank in range(3)})
    code, answer = told(tmp_path)
    assert code == 0 and answer["healthy"] is True


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert isinstance(result.exception, BadInput)
    assert "rank_0: offset 0: asks for a class or a function" in str(result.exception)


@pytest.mark.parametrize(
    ("absent", "odd", "expected"), [(1, -1, (1, "H1")), pytest.param(-1, 2, (2, "H2"), marks=pytest.mark.slow)]
)
def test_the_dumps_of_a_real_gloo_job_name_its_rank(
    tmp_path: Path, absent: int, odd: int, expected: tuple[int, str]
) -> None:
    pytest.importorskip("torch")
    with Ranks(3, hang, str(tmp_path), absent, odd, arrays={"written": np.zeros(3)}) as ranks:
        end = time.monotonic() + 120
        while not ranks.array("written").all() and time.monotonic() < end:
            time.sleep(0.1)
        assert ranks.array("written").all(), "the job never came to stand still"
    code, answer = told(tmp_path)
    assert code == 1
    assert [suspects(group) for group in answer["groups"] if not group["healthy"]] == [[expected]]
    assert answer["groups"][0]["called_at"].startswith("gloo_hang.py:")
