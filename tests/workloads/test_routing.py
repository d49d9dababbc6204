"""Routing loads: a generator that keeps its promises, and files that are read or refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads.routing import drifting, read, uneven


@settings(max_examples=15)
@given(st.integers(0, 1000), st.sampled_from([1.3, 1.6, 1.9]))
def test_every_token_uses_so_many_different_experts_and_the_first_microbatch_is_as_uneven_as_asked(seed, by) -> None:
    loads = drifting(8, 32, 4, 500, by, 2, seed)
    assert (loads.sum(axis=2) == 4 * 500).all()
    assert loads.min() >= 0
    assert loads.max() <= 500
    assert uneven(loads[0], 8) == pytest.approx(by, rel=0.02)


def test_who_is_hot_drifts_and_the_same_seed_gives_the_same() -> None:
    loads = drifting(4, 64, 4, 2000, 2.0, 64, seed=1, half_life=16)
    total = loads.sum(axis=1).astype(float)
    near, far = (np.corrcoef(total[0], total[lag])[0, 1] for lag in (1, 63))
    assert near > far + 0.3
    assert (drifting(4, 64, 4, 2000, 2.0, 2, seed=1, half_life=16) == loads[:2]).all()


def test_what_no_popularity_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="no popularity makes the busiest rank 9 times the mean"):
        drifting(4, 8, 2, 100, 9.0, 1, seed=0)


def test_a_matrix_is_read_from_npy_and_from_csv(tmp_path: Path) -> None:
    load = np.arange(24).reshape(2, 3, 4)[:, :2]
    np.save(tmp_path / "loads.npy", load)
    assert (read(tmp_path / "loads.npy") == load).all()
    (tmp_path / "loads.csv").write_text("e0,e1,e2,e3\n0,1,2,3\n4,5,6,7\n")
    assert (read(tmp_path / "loads.csv") == load[:1]).all()


def test_routed_indices_are_counted_by_source_and_microbatch(tmp_path: Path) -> None:
    routed = np.random.default_rng(0).integers(0, 8, (45, 2))
    pl.DataFrame({"indices": routed.astype(np.int16).tolist()}).write_parquet(tmp_path / "layer.parquet")
    loads = read(tmp_path / "layer.parquet", ranks=2, tokens=10, experts=8)
    assert loads.shape == (2, 2, 8)
    assert loads[1, 0].tolist() == np.bincount(routed[20:30].ravel(), minlength=8).tolist()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "1,2\n3,x\n", r"line 2: '3,x'; counts separated by commas expected"),
        ("a.csv", "1,2\n3\n", r"line 2: 1 numbers, 2 expected"),
        ("a.csv", "1,-2\n3,4\n", r"-2.0 at \[0, 1\]; whole numbers of tokens from 0 expected"),
        ("a.csv", "1.5,2\n3,4\n", r"1.5 at \[0, 0\]"),
        ("a.csv", "nan,2\n3,4\n", r"nan at \[0, 0\]"),
        ("a.csv", "", r"\[source, expert\] or \[microbatch, source, expert\] expected"),
        ("a.csv", "0,0\n0,0\n", r"microbatch 0 has no token at all"),
        ("a.csv", "1,2,3\n3,4,5\n", r"3 experts on 2 ranks; a multiple of the sources expected"),
        ("a.npy", "no array", r"not a plain .npy array"),
        ("a.parquet", "no table", r"no parquet with the column 'indices'"),
        ("a.json", "[]", r"a .npy or .csv matrix \[source, expert\], or a .parquet"),
    ],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=says) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_parquet_without_lists_or_with_too_few_tokens_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"indices": [1, 2]}).write_parquet(tmp_path / "flat.parquet")
    with pytest.raises(BadInput, match="must hold a list of experts for each token"):
        read(tmp_path / "flat.parquet")
    pl.DataFrame({"indices": [[1, 2]]}).write_parquet(tmp_path / "few.parquet")
    with pytest.raises(BadInput, match="1 tokens, 32768 expected for one microbatch; lower --tokens"):
        read(tmp_path / "few.parquet")
