"""The Nsight reader, on a database with the tables and columns that `nsys export --type sqlite` writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from assay.observe.traces import breakdown
from assay.record.errors import BadInput
from assay.workloads import nsight

PROCESS = 0x1000_0004_D200_0000  # a global process id: hypervisor, machine and process above 24 bits of thread
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, blockX INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
STRINGS = {
    1: "gemm(float*)",
    2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)",
    3: "cudaLaunchKernel_v7000",
    4: "step 3",
}


def export(path: Path, *, ranks: int = 2) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        for rank in range(ranks):
            process, shift = PROCESS + (rank << 24), 10 * rank
            kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, ?, ?, ?, ?, ?, 1, 1)"
            database.execute(kernel, (100, 160, 7, 11, process, 1, 1))
            database.execute(kernel, (140 + shift, 200, 20, 12, process, 2, 2))
            copy = "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (210, 220, 0, 1, 7, 13, ?, 4096, 1)"
            database.execute(copy, (process,))
            call = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 3, 0)"
            database.executemany(call, [(80, 90, process + 5, 11), (91, 99, process + 5, 12)])
            database.execute("INSERT INTO NVTX_EVENTS VALUES (70, 230, 59, NULL, ?, 4, 0)", (process + 5,))
            database.execute("INSERT INTO NVTX_EVENTS VALUES (71, NULL, 34, 'a mark', ?, NULL, 0)", (process + 5,))
        database.commit()
    return path


def test_processes_become_ranks_with_streams_threads_and_steps(tmp_path: Path) -> None:
    frame = nsight.read(export(tmp_path / "x.sqlite"))
    assert frame.entities.filter(pl.col("kind") == "rank")["name"].to_list() == ["0", "1"]
    assert frame.entities.filter(pl.col("kind") == "stream")["name"].to_list() == [
        "0/stream 7", "0/stream 20", "1/stream 7", "1/stream 20",
    ]  # fmt: skip
    steps = frame.spans.filter(pl.col("cat") == "step")
    assert steps.select("seq", "start", "dur").rows() == [(3, 70, 160)] * 2
    assert len(frame.edges) == 4
    assert not frame.repairs


def test_streams_of_one_number_on_two_devices_are_two(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite", ranks=1)
    with closing(sqlite3.connect(path)) as database:
        kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (110, 150, 1, 2, 7, 14, ?, 1, 1, 1, 1)"
        database.execute(kernel, (PROCESS,))
        database.commit()
    frame = nsight.read(path)
    streams = frame.entities.filter(pl.col("kind") == "stream")
    assert streams["name"].to_list() == ["0/GPU 0 stream 7", "0/GPU 0 stream 20", "0/GPU 1 stream 7"]
    of_second = frame.spans.filter(pl.col("entity") == streams["id"][2])
    assert of_second.select("start", "dur").rows() == [(110, 40)]


def test_the_breakdown_of_an_export_adds_up(tmp_path: Path) -> None:
    frame = nsight.read(export(tmp_path / "x.sqlite"))
    rows = breakdown.split(frame).filter(pl.col("step") == 3).select("total", *breakdown.PARTS, "overlapped").rows()
    assert rows == [(160, 60, 40, 10, 50, 20), (160, 60, 40, 10, 50, 10)]


def test_who_came_last_is_told_from_an_export(tmp_path: Path) -> None:
    frame = nsight.read(export(tmp_path / "x.sqlite"))
    assert breakdown.stragglers(breakdown.device_spans(frame)).row(0, named=True)["rank"] == "1"


def test_a_cuda_graph_in_one_piece_counts_as_compute_and_is_said(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite", ranks=1)
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL,"
            " deviceId INTEGER NOT NULL, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL,"
            " contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER)"
        )
        graph = "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (300, 1000, 0, 5, 6, 1, 7, 14, ?)"
        database.execute(graph, (PROCESS,))
        database.commit()
    frame = nsight.read(path)
    whole = breakdown.split(frame).filter(pl.col("step").is_null())
    assert whole.select("total", "compute").row(0) == (900, 60 + 700)
    assert any("CUDA graphs" in what and times == 1 for what, times in frame.repairs.items())


def test_tables_that_were_not_recorded_are_not_needed(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database:
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"):
            database.execute(f"DROP TABLE {table}")
        database.commit()
    assert set(nsight.read(path).spans["cat"].cast(pl.String)) == {"kernel", "comm"}


def test_spans_that_end_before_they_start_are_left_out_and_counted(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = 1")
        database.commit()
    assert nsight.read(path).repairs == {"spans without a usable time left out": 2}


def test_the_file_is_not_written_to(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite")
    before = path.read_bytes()
    nsight.read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.sqlite"]


def test_a_view_in_the_place_of_a_table_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as database:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
        database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
        database.commit()
    with pytest.raises(BadInput, match="not an Nsight export"):
        nsight.read(path)


def test_text_where_numbers_belong_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")
        database.commit()
    with pytest.raises(BadInput, match="text where numbers belong"):
        nsight.read(path)


@pytest.mark.parametrize("cut", [20, 100, 4096, 9000])
def test_damaged_databases_are_refused_in_one_line(tmp_path: Path, cut: int) -> None:
    path = export(tmp_path / "x.sqlite")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput) as refused:
        nsight.read(path)
    assert "\n" not in str(refused.value)


def test_every_overwritten_page_is_read_or_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "x.sqlite")
    whole = path.read_bytes()
    for at in range(16, len(whole), 97):
        path.write_bytes(whole[:at] + b"\xff" * 24 + whole[at + 24 :])
        try:
            frame = nsight.read(path)
        except BadInput as refused:
            assert "\n" not in str(refused)
        else:
            assert (frame.spans["dur"] >= 0).all()


def test_a_report_that_was_not_exported_names_the_command(tmp_path: Path) -> None:
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"QDSS" + b"\0" * 100)
    with pytest.raises(BadInput, match="nsys export --type sqlite"):
        nsight.read(path)
