"""Recommendation logs and requests: what is read, what is refused, what is generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.workloads.recommendations import catalogue, interactions, ranking_requests, read_interactions


def written(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text)
    return path


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    log = read_interactions(written(tmp_path, "userId,movieId,rating,timestamp\n7,31,2.5,100\n3,31,4.0,50\n"))
    assert (log.users, log.items, log.time.tolist(), log.user.tolist()) == (("7", "3"), ("31",), [50.0, 100.0], [1, 0])


def test_dates_and_plain_columns_are_read(tmp_path: Path) -> None:
    log = read_interactions(written(tmp_path, "a,x,2026-05-01T12:00:00+00:00\n\nb,y,2026-05-01T12:00:05+00:00\n"))
    assert np.diff(log.time).tolist() == [5.0]
    assert log.popularity.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("user,item,time\n", "no interactions"),
        ("a,x\n", "line 1: 2 fields; user,item,time expected"),
        ("a,x,1\n,y,2\n", "line 2: empty user"),
        ("a,x,1\nb,,2\n", "line 2: empty item"),
        ("a,x,1\nb,y,soon\n", "line 2: time 'soon'; seconds or a date"),
        ("a,x,nan\n", "line 1: time 'nan'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        read_interactions(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with pytest.raises(ValueError, match="No such file"):
        read_interactions(path)
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match="UTF-8"):
        read_interactions(path)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 30))
def test_requests_ask_for_different_known_items_in_order_of_arrival(seed: int, candidates: int, users: int) -> None:
    log = interactions(catalogue(60, 6, seed), users, each=20, seed=seed)
    candidates = min(candidates, len(np.unique(log.item)))
    asked = ranking_requests(log, 25, candidates, rate=2.0, seed=seed)
    assert asked.items.shape == (25, candidates) and asked.candidates == candidates
    assert all(len(set(row)) == candidates for row in asked.items.tolist())
    assert np.isin(asked.items, log.item).all()
    assert (np.diff(asked.arrival) >= 0).all()


def test_the_same_seed_gives_the_same_requests() -> None:
    log = interactions(catalogue(100, 5, seed=1), 30, each=10, seed=1)
    one, two, other = (ranking_requests(log, 10, 8, 1.0, seed) for seed in (0, 0, 1))
    assert (one.items == two.items).all() and (one.items != other.items).any()


def test_requests_stay_mostly_within_neighbouring_clusters() -> None:
    shop = catalogue(2000, clusters=40, seed=0)
    asked = ranking_requests(interactions(shop, 500, each=30, seed=0), 200, 30, 1.0, seed=0)
    largest = [np.sort(np.bincount(row, minlength=40))[-4:].sum() / 30 for row in shop.cluster[asked.items]]
    assert np.mean(largest) > 0.6  # four of forty clusters, a tenth of the catalogue


def test_too_many_candidates_and_clusters_are_refused() -> None:
    log = interactions(catalogue(10, 2, seed=0), 5, each=4, seed=0)
    with pytest.raises(ValueError, match="candidates asked for"):
        ranking_requests(log, 5, 11, 1.0, seed=0)
    with pytest.raises(ValueError, match="1 <= clusters <= items"):
        catalogue(3, clusters=4, seed=0)
