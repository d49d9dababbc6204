"""Reading long series: telling columns, blemishes that are counted, and files that are refused in one line."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import traces
from assay.record.errors import BadInput
from assay.workloads import long_series

MONTH_STARTS = [(date(2023 + m // 12, m % 12 + 1, 1) - date(2023, 1, 1)).days for m in range(120)]


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "series.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_times_are_read_as_dates_or_as_numbers_of_any_unit(tmp_path: Path) -> None:
    expected = [1_700_000_000_000_000_000, 1_700_003_600_000_000_000]
    for cells in (
        ("2023-11-14 22:13:20", "2023-11-14T23:13:20Z"), ("2023-11-15T00:13:20+02:00", "2023-11-14T23:13:20.000"),
        ("1700000000", "1700003600"), ("1700000000000", "1700003600000"), ("1700000000.0", "1700003600.0"),
        ("1700000000000000000", "1700003600000000000"),
    ):  # fmt: skip
        frame = long_series.read(write(tmp_path, f"time,value\n{cells[0]},1\n{cells[1]},2\n"))
        assert long_series.split(frame)[0].times.tolist() == expected, cells


def test_doubled_disordered_and_empty_samples_are_mended_and_counted(tmp_path: Path) -> None:
    rows = "time,value\n3600,2\n0,1\n3600,3\n7200,\n10800,inf\n14400,x\n18000,5\n,4\n"
    frame = long_series.read(write(tmp_path, rows))
    assert dict(frame.repairs) == {
        "rows without a time left out": 1,
        "samples without a number left out": 3,
        "samples out of order put in order": 1,
        "samples given twice, the last one kept": 1,
    }
    assert long_series.split(frame)[0].values.tolist() == [1.0, 3.0, 5.0]


def test_several_series_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    text = "value,runtime,starttime,VM_id\n1.5,9,2024-06-06 12:34:44.350,1\n2.5,9,2024-06-06 12:00:00.000,0\n"
    parts = long_series.split(long_series.read(write(tmp_path, text)))
    assert [(part.name, part.values.tolist()) for part in parts] == [("0", [2.5]), ("1", [1.5])]


def test_a_gap_stays_a_gap_on_the_grid(tmp_path: Path) -> None:
    frame = long_series.read(write(tmp_path, "time,value\n0,1\n1800,3\n10800,5\n"))
    made = long_series.regular(long_series.split(frame)[0], step=3600.0)
    assert made.values[[0, 3]].tolist() == [2.0, 5.0]
    assert np.isnan(made.values[1:3]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"), ("time,value\n", "header"), ("a,b,c\n1,2,3\n", "which column"),
        ("time,value\nyesterday,1\ntoday,2\n", "line 2.*no time"),
        ("time,value\n0,fast\n1,slow\n", "line 2.*no number"),
        ("time,value\n0,\n1,\n", "no number"), ("\x00\x01", "CSV|header"),
        ("time;value\n2024-01-01;fast\n", "no number"),
        ("time,value,value\n0,1,2\n", "each once"),
        ("2024-01-01,1.5\n2024-01-02,1.6\n", "line 1 must name the columns"),
        ('time,value\n2024-01-01,"1,5"\n', "1.5 would be right"),
    ],
)  # fmt: skip
def test_what_is_no_series_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        long_series.read(write(tmp_path, text))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("days", "step"), [([7 * k for k in range(9)], 7.0), (MONTH_STARTS, 30.4375)])
def test_weeks_and_months_get_a_bin_for_each_sample_beginning_with_the_first(days: list[int], step: float) -> None:
    first = 19_358  # days from 1970 to 2023-01-01, a Sunday
    times = (first + np.array(days)) * 86400 * 10**9
    grid = long_series.regular(long_series.Series("a", times, np.arange(len(days), dtype=float)))
    assert (grid.start, grid.step) == (first * 86400.0, step * 86400.0)
    assert grid.values.tolist() == list(range(len(days)))


def test_a_time_far_away_does_not_fill_the_memory(tmp_path: Path) -> None:
    frame = long_series.read(write(tmp_path, "time,value\n0,1\n60,1\n120,1\n9000000000,1\n"))
    with pytest.raises(BadInput, match="longer step"):
        long_series.regular(long_series.split(frame)[0])


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_mutated_files_are_read_or_refused_never_worse(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    plain = bytearray(b"time,value,VM_id\n" + b"".join(b"2024-01-01 %02d:00:00,%d.5,0\n" % (h, h) for h in range(20)))
    for _ in range(data.draw(st.integers(1, 8))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(plain)))
    try:
        frame = long_series.read(write(tmp_path_factory.mktemp("fuzz"), bytes(plain[:cut])))
        for part in long_series.split(frame):
            assert np.isfinite(part.values).all()
            assert (np.diff(part.times) > 0).all()
    except BadInput as refused:
        assert "\n" not in str(refused)


@pytest.mark.traces
def test_the_public_record_of_cloud_machines_is_read() -> None:
    frame = long_series.read(traces.find("azure_vm_noise") / "pg_ro_westus2_d8sv5.csv")
    parts = long_series.split(frame)
    assert [part.name for part in parts] == ["0", "1", "2"]
    assert long_series.natural_step(parts[1]) == 7200.0


@pytest.mark.parametrize("text", ["time;value\n2024-01-01;1,5\n", "time\tvalue\n2024-01-01\t1.5\n"])
def test_semicolons_and_tabs_divide_as_well(tmp_path: Path, text: str) -> None:
    (series,) = long_series.split(long_series.read(write(tmp_path, text)))
    assert series.values.tolist() == [1.5]


@pytest.mark.parametrize("quote", ["", '"'])
def test_rows_of_another_length_are_left_out_and_counted(tmp_path: Path, quote: str) -> None:
    frame = long_series.read(write(tmp_path, f"time,value\n0,{quote}1{quote}\n\n1,2,3\n4\n5,6\n"))
    (series,) = long_series.split(frame)
    assert (series.values.tolist(), dict(frame.repairs)) == (
        [1.0, 6.0],
        {"rows with another number of fields left out": 2},
    )
