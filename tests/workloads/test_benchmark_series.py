"""Readers of other tools' benchmark results: generated in their published formats, mutated, cut short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import benchmark_series


def pytest_benchmark(
    commit: str = "ab12", time: str = "2026-01-05T10:00:00+00:00", median: float = 0.01
) -> dict[str, Any]:
    stats = {"min": 0.009, "max": 0.02, "mean": 0.011, "median": median, "rounds": 5}
    entry = {"name": "test_a", "fullname": "tests/b.py::test_a", "stats": stats, "params": None}
    info = {"id": commit, "time": time, "dirty": False}
    return {"machine_info": {}, "commit_info": info, "benchmarks": [entry], "datetime": time, "version": "5.3.1"}


def asv(commit: str = "cd34", date: int = 1_700_000_000_000) -> dict[str, Any]:
    columns = ["result", "params", "version", "started_at", "duration"]
    results = {
        "time_sort.run": [[0.5], [], "v1", 0, 1.0],
        "time_join.run": [[0.1, None, 0.3, 0.4], [["1", "2"], ["'a'", "'b'"]], "v1", 0, 1.0],
    }
    return {"commit_hash": commit, "date": date, "result_columns": columns, "results": results, "version": 2}


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(frame: Frame) -> list[tuple[str, int, float]]:
    names = dict(frame.entities.select("id", "name").iter_rows())
    return [(names[e], t, v) for e, t, v in frame.samples.select("entity", "t", "value").iter_rows()]


def test_pytest_benchmark_files_of_several_commits_are_one_series(tmp_path: Path) -> None:
    late = write(tmp_path, "2.json", pytest_benchmark("b", "2026-01-06T10:00:00Z", 0.02))
    early = write(tmp_path, "1.json", pytest_benchmark("a", "2026-01-05T10:00:00Z", 0.01))
    frame = benchmark_series.read([late, early])
    assert [(name, value) for name, _, value in rows(frame)] == [
        ("tests/b.py::test_a", 0.01),
        ("tests/b.py::test_a", 0.02),
    ]
    assert frame.events["text"].to_list() == ["b", "a"]


def test_asv_results_have_a_name_for_each_parameter_and_gaps_stay_gaps(tmp_path: Path) -> None:
    frame = benchmark_series.read(write(tmp_path, "cd34-env.json", asv()))
    assert {(name, value) for name, _, value in rows(frame)} == {
        ("time_sort.run", 0.5), ("time_join.run(1, 'a')", 0.1), ("time_join.run(2, 'a')", 0.3),
        ("time_join.run(2, 'b')", 0.4),
    }  # fmt: skip
    assert rows(frame)[0][1] == 1_700_000_000_000_000_000
    assert frame.repairs["results without a number left out"] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("commit,parse,render\na,1,10\nb,,20\n", [("parse", 2, 1.0), ("render", 2, 10.0), ("render", 3, 20.0)]),
        ("time;commit;parse\n10;a;1.5\n", [("parse", 10_000_000_000, 1.5)]),
        ("benchmark,value,time\nx,1,1970-01-01T00:00:01Z\ny,2,2\n", [("x", 10**9, 1.0), ("y", 2 * 10**9, 2.0)]),
        ("\ufeffcommit,parse\na,1\n\nb,nan\nc,\nd,4\n", [("parse", 2, 1.0), ("parse", 6, 4.0)]),
    ],
)  # fmt: skip
def test_csv_in_its_forms(tmp_path: Path, text: str, expected: list[tuple[str, int, float]]) -> None:
    assert rows(benchmark_series.read(write(tmp_path, "s.csv", text))) == expected


def test_results_are_named_by_their_unit_where_the_file_tells_it(tmp_path: Path) -> None:
    results = {name: [[1.0], []] for name in ("b.time_a", "b.S.peakmem_b", "track_c")}
    told = benchmark_series.read(write(tmp_path, "a.json", {"commit_hash": "a", "date": 1, "results": results}))
    assert sorted(told.samples["metric"].to_list()) == ["bytes", "seconds", "value"]
    table = "benchmark,value,unit\nx,1,MB/s\ny,2,\n"
    frame = benchmark_series.read(write(tmp_path, "s.csv", table))
    assert frame.samples["metric"].to_list() == ["MB/s", "value"]


def test_a_cut_last_row_is_left_out_and_said(tmp_path: Path) -> None:
    frame = benchmark_series.read(write(tmp_path, "s.csv", "time,commit,parse\n1,a,1.0\n2,b\n"))
    assert len(frame.samples) == 1 and frame.repairs["rows with another number of fields left out"] == 1


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", '{"benchmarks": [', "is it whole"),
        ("a.json", "{}", "neither pytest-benchmark's JSON"),
        ("a.json", {"benchmarks": [{"name": "x"}]}, "benchmarks[0] has no 'stats'"),
        ("a.json", {"benchmarks": []}, "no benchmark result"),
        ("a.json", "[" * 100_000, "a.json"),
        ("a.csv", "", "line 1 must name the columns"),
        ("a.csv", "1,2,3\n4,5,6\n", "line 1 must name the columns"),
        ("a.csv", "name,commit\nx,a\n", "needs a column 'value'"),
        ("a.csv", "time,parse\nyesterday,1\n", "line 2, column 'time': 'yesterday' is no time"),
        ("a.csv", "time,parse\n1e300,1\n", "line 2, column 'time': '1e300' is no time"),
        ("a.csv", "commit,parse\n", "no benchmark result"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, name: str, content: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        benchmark_series.read(write(tmp_path, name, content))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        benchmark_series.read(tmp_path / "nowhere.csv")


SEEDS = [json.dumps(pytest_benchmark()), json.dumps(asv()), "time,commit,parse\n1,a,1.0\n2,b,2.0\n"]


@given(st.sampled_from(SEEDS), st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_and_cut_files_give_a_frame_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    content = bytearray(text.encode())
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path_factory.mktemp("fuzz") / "f"
    path.write_bytes(bytes(content[:cut]) if data.draw(st.booleans()) else bytes(content))
    try:
        assert len(benchmark_series.read(path).samples) > 0
    except BadInput as error:
        assert str(error) and "\n" not in str(error)
