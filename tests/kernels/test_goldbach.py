"""Goldbach: every even number up to a bound, exactly, by segments that can be taken up again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.kernels.engine import elsewhere
from assay.kernels.goldbach import RECORDS, checking, goldbach, gpu_bytes, per_number, redo, tables
from assay.record.errors import BadInput


def test_a_million_agrees_with_a_plain_table() -> None:
    found, plain = goldbach(10**6, threads=1), checking.head(10**6 + 2)
    assert found.counts == plain.counts
    assert found.records == [(4, 2), *(pair for pair in RECORDS if pair[0] <= 10**6)]


@pytest.mark.parametrize(
    "limit", [4, 5, 6, 7, 100, checking.HEAD - 2, checking.HEAD, checking.HEAD + 2, checking.HEAD + 127]
)
def test_every_bound_counts_its_even_numbers(limit: int) -> None:
    assert goldbach(limit, threads=1).checked == limit // 2 - 1


def test_a_far_segment_agrees_with_a_byte_table() -> None:
    begin = 128 * 7_654_321_987
    assert checking.check(begin, begin + 100_000, 1).counts == per_number(begin, begin + 100_000)


def test_the_sieve_finds_the_primes() -> None:
    every = tables.primes_below(128 * 1040 + 1)
    assert (checking.primes_among(128 * 1000 + 1, 40) == every[every > 128_000]).all()


def test_a_certificate_is_taken_up_again_and_any_line_can_be_redone(tmp_path: Path) -> None:
    file = tmp_path / "certificate"
    whole = goldbach(400_000, file, threads=1)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + lines[1][:50])  # killed in the middle of a line
    file.write_text(lines[0])
    assert goldbach(400_000, file, threads=1).digest == whole.digest
    assert redo(file, 0)
    assert redo(file, 1)


def test_a_crash_at_any_byte_of_the_last_lines_costs_what_it_cut_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut anywhere, also just before the line's end: the resumed certificate is the one of a run that nobody killed."""
    monkeypatch.setattr(checking, "SEGMENT", 1 << 17)
    known = {span: checking.check(*span, 1) for span in checking._spans(450_000) if span[0] > 4}
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(checking, "check", lambda begin, end, threads: done.append((begin, end)) or known[begin, end])
    monkeypatch.setattr(checking.os, "fsync", lambda _: None)  # a disk's time, a thousand times
    file = tmp_path / "certificate"
    whole = goldbach(450_000, file)
    text = file.read_bytes()
    lines = text.splitlines(keepends=True)
    assert len(lines) == 4
    for cut in range(len(lines[0]) + len(lines[1]), len(text) + 1):
        for rubbish in (b"", b"\0" * 7) if cut % 50 == 0 else (b"",):
            file.write_bytes(text[:cut] + rubbish)
            done.clear()
            resumed = goldbach(450_000, file)
            assert len(done) == 3 - (text[:cut].count(b"\n") - 1)
            assert (resumed.digest, file.read_bytes()) == (whole.digest, text)


def test_what_is_no_certificate_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    for text in (b"my notes", b"my notes\n", "für\n".encode(), b"{}\n", b'{"begin":4}\n'):
        file.write_bytes(text)
        with pytest.raises(BadInput, match=r"notes\.txt:1"):
            goldbach(70_000, file)
        assert file.read_bytes() == text
    for nowhere in (tmp_path / "none" / "certificate", tmp_path):
        with pytest.raises(BadInput, match="cannot"):
            goldbach(70_000, nowhere)


def test_a_certificate_that_was_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "certificate"
    goldbach(70_000, file, threads=1)
    file.write_text(file.read_text().replace('"3":', '"3":1', 1))
    with pytest.raises(BadInput, match="digest"):
        goldbach(70_000, file)


@pytest.mark.parametrize("limit", [3, -4, 10**16, "many", 1.5])
def test_a_bound_that_is_none_gets_one_line(limit: object) -> None:
    with pytest.raises(BadInput, match="limit"):
        goldbach(limit)  # type: ignore[arg-type]


def test_the_h200_checked_all_and_found_the_published_records() -> None:
    rows = {row["limit"]: row for row in elsewhere.rows("h200", "goldbach")}
    assert all(row["left"] == 0 and row["checked"] == limit // 2 - 1 for limit, row in rows.items())
    assert {tuple(pair) for pair in rows[10**10]["records"]} >= set(RECORDS)
    assert rows[10**12]["seconds"] < 37
    assert gpu_bytes() < 14e6


def test_wheels_repeat() -> None:
    made = tables.wheel((3, 5))
    bits = np.unpackbits(made.view(np.uint8), bitorder="little")
    assert all(bits[i] == ((1 + 2 * i) % 3 == 0 or (1 + 2 * i) % 5 == 0) for i in range(len(bits)))
