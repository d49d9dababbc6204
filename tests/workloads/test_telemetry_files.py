"""Files opened by what is in them, whatever their names."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.observe.traces import files as trace_files
from assay.record.errors import BadInput
from assay.workloads import chakra, kineto_generate, telemetry_files
from tests.workloads import test_nsight, test_otlp

ENTRY = {
    "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
    "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "started", "time_created_ns": 5, "is_p2p": False,
}  # fmt: skip
DUMP: dict[str, Any] = {"version": "2.10", "pg_config": {}, "entries": [ENTRY]}
ANSWER = {"status": "success", "data": {"resultType": "matrix", "result": [
    {"metric": {"__name__": "up", "instance": "n1", "ph": "X"}, "values": [[1, "1"]]}]}}  # fmt: skip
BENCHMARK = {"benchmarks": [{"fullname": "test_x", "stats": {"mean": 1.0}}], "commit_info": {"id": "a1"},
             "datetime": "2026-01-01T00:00:00Z"}  # fmt: skip


def graph() -> bytes:
    return chakra.encode(chakra.Graph.of([1], ["forward"], [chakra.COMP], data_deps=[[]], duration_micros=[50]))


def kineto() -> bytes:
    job = kineto_generate.Job(ranks=1, steps=1, layers=1)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return kineto_generate.write(job, Path(folder))[0].read_bytes()


def nsight() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return test_nsight.export(Path(folder, "x")).read_bytes()


def otlp_protobuf() -> bytes:
    return test_otlp.as_protobuf(test_otlp.TRACES)


SAMPLES: list[tuple[str, str, Callable[[], bytes]]] = [
    ("prometheus", "a", lambda: b"# HELP up It is.\nup 1 1000\n"),
    ("prometheus", "a.json", lambda: json.dumps(ANSWER, indent=2).encode()),
    ("otlp", "a.json", lambda: test_otlp.as_json(test_otlp.METRICS)),
    ("otlp", "a.bin", otlp_protobuf),
    ("kineto", "a.json", kineto),
    ("chakra", "a.et", graph),
    ("nsight", "a.db", nsight),
    ("flight recorder", "rank_3.json", lambda: json.dumps(DUMP).encode()),
    ("flight recorder", "nccl_trace_rank_3", lambda: pickle.dumps(DUMP)),
    ("benchmarks", "a.json", lambda: json.dumps(BENCHMARK).encode()),
    ("benchmarks", "a.csv", lambda: b"commit,parse\na1,1.0\nb2,1.1\n"),
    ("series", "a.csv", lambda: b"time,value\n2024-01-01,1\n2024-01-02,2\n"),
]


@pytest.mark.parametrize(("kind", "name", "content"), SAMPLES, ids=[f"{kind} {name}" for kind, name, _ in SAMPLES])
def test_every_format_is_told_by_its_content_and_read(
    tmp_path: Path, kind: str, name: str, content: Callable[[], bytes]
) -> None:
    file = tmp_path / name
    file.write_bytes(content())
    assert telemetry_files.kind_of(file) == kind
    frame = telemetry_files.read(file)
    assert len(frame.samples) + len(frame.spans) > 0


@pytest.mark.parametrize("content", [b"up 1 1000\n", json.dumps(ANSWER).encode()])
def test_gzipped_files_are_told_too(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(content))
    assert len(telemetry_files.read(file).samples) == 1


def test_a_folder_of_one_kind_is_one_frame(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(DUMP))
    assert telemetry_files.read(tmp_path).clocks == ["rank 0", "rank 1", "rank 2"]


def test_tables_of_several_files_stand_side_by_side(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("time,value\n2024-01-01,1\n2024-01-02,\n")
    frame = telemetry_files.read(tmp_path)
    assert frame.entities["name"].to_list() == ["a", "b"]
    assert frame.samples["entity"].to_list() == [0, 1]
    assert frame.repairs == {"samples without a number left out": 2}


def test_mixed_kinds_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text("up 1 1000\n")
    (tmp_path / "b.csv").write_text("time,value\n2024-01-01,1\n")
    with pytest.raises(BadInput, match=r"a\.prom is prometheus, .*b\.csv is series"):
        telemetry_files.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b'{"a": 1}', b"hello world\n", b"\x1f\x8b\xff\xff\xff", b"\x00" * 50, b"%PDF-1.7,\x01"]
)
def test_strangers_are_refused_in_one_line_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        telemetry_files.read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        telemetry_files.read(tmp_path / "none")
    with pytest.raises(BadInput, match="no file in it"):
        telemetry_files.read(tmp_path)


NOTES = {
    "README": "Traces of our cluster, taken in May, by hand\n\nReleased 2024\n",
    "readme.rst": "Released 2024\n",
    "notes.md": "# Runs\n\nup 1\n",
    "notes.txt": "Taken on a quiet day, with nothing else running.\nAsk Kim.\n",
    "empty.txt": "",
    ".hidden": "\x00",
}


@pytest.mark.parametrize("kind", ["prometheus", "series"])
def test_what_people_write_beside_their_telemetry_is_skipped_and_named(tmp_path: Path, kind: str) -> None:
    for name, text in NOTES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    (tmp_path / ".git" / "objects" / "a").write_bytes(b"\x01")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "README.md").write_text("x")
    content = {"prometheus": "up 1 1000\n", "series": "time,value\n2024-01-01,1\n"}[kind]
    (tmp_path / "deep" / "z.txt").write_text(content)  # telemetry, whatever it is called
    frame = telemetry_files.read(tmp_path)
    assert frame.samples["value"].to_list() == [1.0]
    skipped = [tmp_path / name for name in (*NOTES, ".git", "deep/README.md")]
    assert set(frame.repairs) == {f"{path} skipped: no telemetry" for path in skipped}


def test_a_folder_of_notes_alone_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("README.md", "notes.txt"):
        (tmp_path / name).write_text("nothing to read here\n")
    with pytest.raises(BadInput, match=r"no telemetry in it, only .*README\.md, .*notes\.txt; one of .* would be"):
        telemetry_files.read(tmp_path)


def test_a_note_that_is_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text("up 1 1000\n")
    (tmp_path / "notes.txt").write_text("nothing to read here\n")
    for paths in (tmp_path / "notes.txt", [tmp_path / "a.prom", tmp_path / "notes.txt"]):
        with pytest.raises(BadInput, match=r"notes\.txt: none of the formats known"):
            telemetry_files.read(paths)


def test_another_stranger_in_a_folder_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text("up 1 1000\n")
    (tmp_path / "b.bin").write_bytes(b"\x01\x02")
    with pytest.raises(BadInput, match=r"b\.bin: none of the formats known"):
        telemetry_files.read(tmp_path)


@pytest.mark.parametrize(("kind", "name", "content"), SAMPLES, ids=[f"{kind} {name}" for kind, name, _ in SAMPLES])
def test_profiler_traces_are_told_by_the_same_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, content: Callable[[], bytes]
) -> None:
    file = tmp_path / name
    file.write_bytes(content())
    asked: list[Path] = []
    rules = telemetry_files.kind_of
    monkeypatch.setattr(telemetry_files, "kind_of", lambda path, right: asked.append(path) or rules(path, right))
    assert trace_files.kind_of(file) == (kind if kind in ("nsight", "chakra") else "kineto")
    assert asked == [file]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty; a profiler trace would be right"), (b"\x1f\x8b\xff\xff\xff", "damaged gzip data"),
     (None, "No such file or directory; a profiler trace would be right")],
)  # fmt: skip
def test_what_cannot_be_a_profiler_trace_is_refused_with_its_own_cure(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "x"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=says) as caught:
        trace_files.kind_of(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE t (a)")
        database.commit()
    with pytest.raises(BadInput):
        telemetry_files.read(tmp_path / "x.db")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_in_one_line_or_read(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    try:
        telemetry_files.read(file)
    except BadInput as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 600
