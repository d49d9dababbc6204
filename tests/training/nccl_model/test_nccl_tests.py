"""Measured times are read as nccl-tests prints them, old and new, and from a CSV; what is wrong is said in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.record.errors import BadInput
from assay.training.nccl_model.nccl_tests import read

HEAD = """# Collective test starting: {op}_perf
# Using devices
#  Rank  0 Group  0 Pid  1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  1888 on   worker-2 device  0 [000f:01:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""
LINE = "{} {} float sum -1 {:.2f} 1.0 1.0 0 5.0 1.0 1.0 0"
ROWS = "\n".join(LINE.format(size, size // 4, size / 100 + 20) for size in (1024, 2048, 4096, 8192))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_out_of_place_time_and_the_header_are_read(tmp_path: Path) -> None:
    found = read(written(tmp_path, HEAD.format(op="all_gather") + ROWS))
    assert found.sizes.tolist() == [1024, 2048, 4096, 8192]
    assert found.seconds[0] == pytest.approx(30.24e-6)
    assert (found.op, found.nodes, found.per_node, found.gpu) == ("all_gather", 2, 1, "h100")
    assert found.held("all_gather", 2)[0] == 512  # what nccl-tests calls the size is all that is gathered


def test_older_versions_have_no_root(tmp_path: Path) -> None:
    rows = "\n".join(f"{size} {size // 4} float sum {size}.5 1.0 1.0 0 5.0 1.0 1.0 0" for size in (64, 128, 256, 512))
    found = read(written(tmp_path, "#  size count type redop time algbw busbw error\n" + rows))
    assert found.seconds[0] == pytest.approx(64.5e-6)
    assert (found.op, found.nodes) == ("", 0)


def test_empty_messages_are_left_out_and_a_size_printed_twice_counts_once(tmp_path: Path) -> None:
    zero = "0 0 float sum -1 5.00 0.0 0.0 0 5.0 0.0 0.0 0\n"
    found = read(written(tmp_path, HEAD.format(op="all_reduce") + zero + ROWS + "\n" + ROWS))
    assert found.sizes.tolist() == [1024, 2048, 4096, 8192]


def test_a_csv_is_read_by_its_columns(tmp_path: Path) -> None:
    found = read(written(tmp_path, "time(us),Size(B)\n10,1024\n20,2048\n30,4096\n40,8192\n"))
    assert found.seconds.tolist() == pytest.approx([1e-5, 2e-5, 3e-5, 4e-5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "0 sizes with times; at least 4 expected"),
        ("a,b\n1,2\n", "size (bytes) and time (microseconds) expected"),
        ("size,time\n1024\n", "row 2: 1 columns; 2 expected"),
        ("size,time\n1024,x\n", "row 2: size '1024' and time 'x'"),
        ("size,time\n1024,-3\n", "numbers above 0 expected"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        read(written(tmp_path, text))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read(tmp_path / "none.txt")
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(BadInput, match="image: not text"):
        read(tmp_path / "image")
