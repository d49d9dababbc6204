"""`assay trace` as a command: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assay.cli.trace import command
from assay.record.errors import BadInput
from assay.workloads import chakra, kineto
from assay.workloads.kineto_generate import Job, write
from tests.workloads.test_nsight import export

JOB = Job(ranks=2, steps=2, layers=3, slow_rank=1, slow_by=1.5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(JOB, tmp_path_factory.mktemp("job"))


def run(*words: object) -> str:
    done = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def as_json(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json"))
    return found


def refused(*words: object) -> str:
    with pytest.raises(BadInput) as error:
        CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_parts_of_every_row_add_up_to_its_time(files: list[Path]) -> None:
    rows = as_json(*files)["breakdown"]
    assert {(row["rank"], row["step"]) for row in rows} == {(r, s) for r in "01" for s in (None, 0, 1)}
    for row in rows:
        parts = row["compute"] + row["exposed"] + row["memcpy"] + row["idle"]
        assert parts == pytest.approx(row["total"], abs=1e-12)


def test_it_names_the_slow_rank_the_path_and_both_what_ifs(files: list[Path]) -> None:
    found = as_json(*files)
    assert found["stragglers"][0]["rank"] == "1"
    assert sum(found["critical_path"]["kinds"].values()) == pytest.approx(found["critical_path"]["total"])
    assert [row["what_if"] for row in found["what_if"]] == ["bandwidth=2", "no-stragglers"]
    assert all(row["changed"] < row["recorded"] for row in found["what_if"])


def test_what_people_read_has_every_part(files: list[Path]) -> None:
    said = run(*files)
    for words in (
        "exposed comm",
        "overlap",
        "came last at",
        "critical path",
        "on rank 1 ",
        "ncclDevKernel_AllReduce",
        "no-stragglers",
    ):
        assert words in said


def test_one_step_can_be_looked_at(files: list[Path]) -> None:
    assert {row["step"] for row in as_json(*files, "--step", 1)["breakdown"]} == {None, 1}
    assert "no step 7" in refused(*files, "--step", 7)


def test_a_cut_file_is_read_and_said_to_be_cut(files: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "rank-0.json"
    cut.write_bytes(files[0].read_bytes()[:-3000])
    assert "ends early, at byte" in run(cut)


def test_a_plot_is_drawn(files: list[Path], tmp_path: Path) -> None:
    run(*files, "--plot", tmp_path / "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    assert "critical path" in drawn
    assert "rank 1 communication" in drawn


def test_a_converted_trace_reads_back_as_the_same_spans(files: list[Path], tmp_path: Path) -> None:
    run(files[0], "--convert", tmp_path / "again.json.gz")
    before, after = kineto.read(files[0]), kineto.read(tmp_path / "again.json.gz")
    columns = [pl.col("name", "group").cast(pl.String), "start", "dur", "seq", "bytes"]
    assert after.spans.select(columns).rows() == before.spans.select(columns).rows()
    assert after.edges.equals(before.edges)
    assert as_json(tmp_path / "again.json.gz")["overlap"] == as_json(files[0])["overlap"]


def test_several_ranks_are_converted_to_a_file_each(files: list[Path], tmp_path: Path) -> None:
    for name in ("again.json", "again.et"):
        before = run(*files, "--convert", tmp_path / name)
    assert not (tmp_path / "again.json").exists()
    assert run(*(tmp_path / f"again.{rank}.json" for rank in range(2))) == before
    assert len(as_json(*(tmp_path / f"again.{rank}.et" for rank in range(2)))["overlap"]) == 2


def test_steps_of_an_nsight_export_are_converted_too(tmp_path: Path) -> None:
    before = as_json(export(tmp_path / "x.sqlite"), "--convert", tmp_path / "x.json")["breakdown"]
    assert [row["step"] for row in before] == [None, 3] * 2
    assert as_json(*(tmp_path / f"x.{rank}.json" for rank in range(2)))["breakdown"] == before


def test_spans_are_written_as_a_table(files: list[Path], tmp_path: Path) -> None:
    run(*files, "--convert", tmp_path / "run.parquet")
    table = pl.read_parquet(tmp_path / "run.parquet")
    assert set(table["rank"]) == {"0", "1"}
    assert len(table) == len(kineto.read(files).spans)


def test_an_nsight_export_is_taken_too(tmp_path: Path) -> None:
    found = as_json(export(tmp_path / "x.sqlite"))
    assert found["kind"] == "nsight"
    assert found["stragglers"][0]["rank"] == "1"


def graphs(*, cycle: bool = False) -> list[chakra.Graph]:
    made = []
    for rank, busy in enumerate((100, 300)):
        deps = [[2] if cycle else [], [1], [2]]
        kinds = [chakra.COMP, chakra.COLL, chakra.COMP]
        said: dict[str, list[Any]] = {"is_cpu_op": [False] * 3, "stream": [7, 20, 7]}
        made.append(
            chakra.Graph.of([1, 2, 3], ["mm", "all_reduce", "step"], kinds, data_deps=deps, attributes=said,
                            duration_micros=[busy, 50, 10], rank=rank)
        )  # fmt: skip
    return made


def written(folder: Path, *, cycle: bool = False) -> list[Path]:
    paths = [folder / f"job.{i}.et" for i in range(2)]
    for graph, path in zip(graphs(cycle=cycle), paths, strict=True):
        chakra.write(graph, path)
    return paths


def test_chakra_traces_are_replayed(tmp_path: Path) -> None:
    found = as_json(*written(tmp_path))
    assert found["kind"] == "chakra"
    assert found["critical_path"]["total"] == pytest.approx(360e-6)
    faster, alike = found["what_if"]
    assert faster["changed"] == pytest.approx(335e-6)
    assert alike["changed"] == pytest.approx(160e-6)  # of two the faster: 100 us, the collective, 10 us
    slow, fast = found["stragglers"]
    assert (slow["rank"], slow["last"], slow["cost"], slow["waited"]) == ("1", 1, pytest.approx(200e-6), 0)
    assert (fast["rank"], fast["last"], fast["cost"], fast["waited"]) == ("0", 0, 0, pytest.approx(200e-6))


def test_collectives_of_chakra_traces_are_paired_as_they_ran_not_as_they_are_listed(tmp_path: Path) -> None:
    for rank, (first, second) in enumerate(((0, 1), (1, 0))):
        kinds, said = [chakra.COLL] * 2, {"stream": [7, 7], "comm_type": [0, 0]}
        starts, lengths = [100, 200], [5, 50 + 40 * rank]
        graph = chakra.Graph.of(
            [1, 2], ["early", "late"], kinds, data_deps=[[], []], attributes=said, rank=rank,
            start_micros=[starts[first], starts[second]], duration_micros=[lengths[first], lengths[second]],
        )  # fmt: skip
        chakra.write(graph, tmp_path / f"job.{rank}.et")
    found = as_json(tmp_path / "job.0.et", tmp_path / "job.1.et")
    assert all(row["cost"] == row["waited"] == 0 for row in found["stragglers"])  # each meets its own


def test_a_cycle_is_refused_until_it_may_be_broken(tmp_path: Path) -> None:
    paths = written(tmp_path, cycle=True)
    assert "cycle" in refused(*paths)
    assert any("waits for" in note for note in as_json(*paths, "--break-cycles")["notes"])


def test_a_chakra_trace_converts_between_its_two_layouts(tmp_path: Path) -> None:
    path = written(tmp_path)[0]
    run(path, "--convert", tmp_path / "out.json")
    run(tmp_path / "out.json", "--convert", tmp_path / "out.et")
    assert chakra.read(tmp_path / "out.et").data_deps == chakra.read(path).data_deps


def test_profiler_files_are_linked_into_chakra_traces_that_replay(files: list[Path], tmp_path: Path) -> None:
    run(*files, "--convert", tmp_path / "job.et")
    paths = [tmp_path / "job.0.et", tmp_path / "job.1.et"]
    collectives = 2 * JOB.steps * JOB.layers
    assert sum(int((graph.type == chakra.COLL).sum()) for graph in chakra.read_all(paths)) == collectives
    recorded, replayed = as_json(*files)["critical_path"]["total"], as_json(*paths)["critical_path"]["total"]
    assert replayed == pytest.approx(recorded, rel=0.02)
    assert "nsight export" in refused(export(tmp_path / "x.sqlite"), "--convert", tmp_path / "x.et")


def test_a_request_trace_names_the_right_command(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"timestamp": 1, "input_length": 5}\n' * 3)
    assert "'assay traces'" in refused(path)


def test_wrong_words_and_files_are_refused_in_one_line(files: list[Path], tmp_path: Path) -> None:
    assert "would be right" in refused(*files, "--what-if", "bandwith=2")
    assert "suffix" in refused(*files, "--convert", tmp_path / "x.csv")
    assert "suffix" in refused(*files, "--plot", tmp_path / "x.bmp")
    assert "No such file" in refused(tmp_path / "none.json")
    assert "different kinds" in refused(files[0], export(tmp_path / "x.sqlite"))
    (tmp_path / "empty.json").write_bytes(b"")
    assert "empty" in refused(tmp_path / "empty.json")


def test_a_folder_stands_for_the_traces_in_it(files: list[Path], tmp_path: Path) -> None:
    found, named = as_json(files[0].parent), as_json(*sorted(files))
    assert found["breakdown"] == named["breakdown"]
    (tmp_path / "notes.txt").write_text("no trace")
    assert ".json" in refused(tmp_path)


def test_a_byte_order_mark_before_the_trace_is_passed_over(files: list[Path], tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + files[0].read_bytes())
    assert as_json(marked)["breakdown"] == as_json(files[0])["breakdown"]
    run(marked, "--convert", tmp_path / "linked.et")
    assert len(chakra.read(tmp_path / "linked.et"))


def test_one_rank_is_said_to_be_one(files: list[Path]) -> None:
    told = run(files[0])
    assert " 1 rank\n" in told
    assert "one rank only" in told


def test_sends_and_receives_of_a_profilers_trace_are_said_to_be_unmatched(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank-{rank}.json" for rank in range(2)]
    for word, path in zip(("gloo:send", "gloo:recv"), paths, strict=True):
        events = [{"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 5, "pid": 1, "tid": 1}
                  for cat, name, ts in (("cpu_op", "aten::mm", 0), ("user_annotation", word, 10))]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": events}))
    assert any("not matched" in note for note in as_json(*paths)["notes"])
    assert not any("not matched" in note for note in as_json(paths[0])["notes"])


def test_what_ifs_of_chakra_traces_are_not_rounded_to_microseconds(tmp_path: Path) -> None:
    graph = chakra.Graph.of([1, 2], ["mm", "all_reduce"], [chakra.COMP, chakra.COLL], data_deps=[[], [1]],
                            duration_micros=[1, 1])  # fmt: skip
    chakra.write(graph, tmp_path / "tiny.et")
    (row,) = as_json(tmp_path / "tiny.et", "--what-if", "bandwidth=4")["what_if"]
    assert row["changed"] == pytest.approx(1.25e-6)


def test_all_metrics_of_a_folder(files: list[Path], tmp_path: Path) -> None:
    rows = {row["metric"]: row for row in json.loads(run(files[0].parent, "--metrics", "--json"))}
    assert rows["avg_step_time"]["value"] > 0
    assert 0 <= rows["compute_comm_overlap"]["value"] <= 1
    assert rows["mfu"]["value"] is None  # the card would say how large the model is
    assert "avg_step_time" in run(files[0].parent, "--metrics")
    assert "one folder" in refused(tmp_path / "none", "--metrics")


def test_a_what_if_that_the_trace_does_not_decide_is_not_called_zero(files: list[Path], tmp_path: Path) -> None:
    """One rank whose messages have no sizes: a slow transfer looks like waiting for somebody else."""
    kernels = [
        ("gemm", 0, 100),
        ("ncclKernel_AllReduce", 100, 80),
        ("gemm", 180, 100),
        ("ncclKernel_AllReduce", 280, 30),
    ]
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7}
              for name, ts, dur in kernels]  # fmt: skip
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    rows = as_json(path)["what_if"]
    assert [(row["changed"], row["ratio"]) for row in rows] == [(None, None)] * 2
    assert ["sizes" in rows[0]["note"], rows[1]["note"]] == [True, "one rank only"]
    told = run(path)
    assert told.count("cannot be told") == 2
    assert "0.0%" not in told.split("what if")[1]
    assert as_json(files[0])["what_if"][1]["changed"] is None  # with sizes bandwidth is told, stragglers are not
    assert as_json(files[0])["what_if"][0]["changed"] > 0


def test_a_chakra_trace_without_communication_leaves_bandwidth_undecided(tmp_path: Path) -> None:
    graph = chakra.Graph.of([1], ["mm"], [chakra.COMP], data_deps=[[]], duration_micros=[5])
    chakra.write(graph, tmp_path / "alone.et")
    assert [row["changed"] for row in as_json(tmp_path / "alone.et")["what_if"]] == [None, None]
