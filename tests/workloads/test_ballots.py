"""Ballots: PrefLib's files as published, and electorates that are what they say."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.workloads import ballots
from tests.oracles.goodness import p_value

HEAD = """# FILE NAME: 00001-00000001.soc
# TITLE: A test
# NUMBER ALTERNATIVES: 4
# NUMBER VOTERS: 6
# ALTERNATIVE NAME 1: Ada
# ALTERNATIVE NAME 2: Bo
# ALTERNATIVE NAME 3: Cy: the third
# ALTERNATIVE NAME 4: Di
"""


def written(folder: Path, lines: str, name: str = "x.soc", head: str = HEAD) -> Path:
    file = folder / name
    file.write_text(head + lines)
    return file


def test_a_complete_file_is_read_as_it_stands(tmp_path: Path) -> None:
    profile = ballots.read_ballots(written(tmp_path, "4: 2,1,3,4\n2: 4,3,2,1\n"))
    assert profile.names == ("Ada", "Bo", "Cy: the third", "Di")
    assert profile.orders.tolist() == [[1, 0, 2, 3]] * 4 + [[3, 2, 1, 0]] * 2
    assert profile.completed == 0


def test_ties_and_gaps_are_filled_voter_by_voter(tmp_path: Path) -> None:
    profile = ballots.read_ballots(written(tmp_path, "300: 3,{1,2}\n", "x.toi"), seed=1)
    assert profile.completed == 300
    assert (profile.orders[:, 0] == 2).all() and (profile.orders[:, 3] == 3).all()
    firsts = np.bincount(profile.orders[:, 1], minlength=4)
    assert firsts[0] + firsts[1] == 300 and 100 < firsts[0] < 200
    assert (profile.orders == ballots.read_ballots(tmp_path / "x.toi", seed=1).orders).all()


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("3 1,2\n", "line 9"), ("x: 1,2\n", "number of voters"), ("0: 1\n", "number of voters"), ("1: 5\n", "1 to 4"),
        ("1: 1,1\n", "twice"), ("1: 1,{2\n", "no candidate"), ("1: a\n", "no candidate"), ("", "no ballots"),
        ("99999999999: 1\n", "voters"),
    ],
)  # fmt: skip
def test_bad_ballots_are_one_line(tmp_path: Path, lines: str, word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        ballots.read_ballots(written(tmp_path, lines))
    assert "\n" not in str(caught.value) and "x.soc" in str(caught.value)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.soc"):
        ballots.read_ballots(written(tmp_path, "1: 1\n", "x.csv"))
    with pytest.raises(ValueError, match="NUMBER ALTERNATIVES"):
        ballots.read_ballots(written(tmp_path, "1: 1\n", head=""))
    (tmp_path / "b.soc").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        ballots.read_ballots(tmp_path / "b.soc")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.toi"
    file.write_bytes(HEAD.encode() + content)
    try:
        profile = ballots.read_ballots(file)
    except ValueError as refused:
        assert "\n" not in str(refused)
    else:
        assert sorted(profile.orders[0].tolist()) == [0, 1, 2, 3]


def test_mallows_has_its_distribution() -> None:
    centre, phi = [2, 0, 1], 0.6
    weights = {}
    for order in permutations(range(3)):
        swaps = sum(centre.index(a) > centre.index(b) for i, a in enumerate(order) for b in order[i + 1 :])
        weights[order] = phi**swaps
    number = {order: index for index, order in enumerate(weights)}
    total = sum(weights.values())
    seen = [number[tuple(order)] for order in ballots.mallows(20_000, centre, phi, seed=3).orders.tolist()]
    assert p_value(seen, {number[order]: weight / total for order, weight in weights.items()}) > 1e-3


def test_plackett_luce_has_its_distribution() -> None:
    weights = [3.0, 2.0, 1.0]
    law = {}
    for a, b, c in permutations(range(3)):
        law[a, b, c] = weights[a] / 6 * weights[b] / (6 - weights[a])
    number = {order: index for index, order in enumerate(law)}
    seen = [number[tuple(order)] for order in ballots.plackett_luce(20_000, weights, seed=3).orders.tolist()]
    assert p_value(seen, {number[order]: chance for order, chance in law.items()}) > 1e-3


def test_a_cycle_has_no_condorcet_winner() -> None:
    places = ballots.cycle(9, 3).positions
    assert all((places[:, c] < places[:, (c + 1) % 3]).sum() == 6 for c in range(3))


def test_two_camps_lead_by_the_margin_and_are_second_to_each_other() -> None:
    profile = ballots.two_camps(1000, 5, margin=0.05, seed=1)
    firsts = np.sort(np.bincount(profile.orders[:, 0], minlength=5))
    assert firsts.tolist() == [0, 0, 0, 475, 525]
    front = set(profile.orders[:, 0].tolist())
    assert {tuple(sorted(row)) for row in profile.orders[:, :2].tolist()} == {tuple(sorted(front))}


def test_a_candidate_leaves_and_the_others_keep_their_order() -> None:
    profile = ballots.Profile(("x", "y", "z"), np.array([[2, 1, 0], [0, 2, 1]], np.int16))
    assert profile.without(1).orders.tolist() == [[1, 0], [0, 1]]
    assert profile.without(1).names == ("x", "z")


def test_senseless_electorates_are_refused() -> None:
    for make in (lambda: ballots.impartial(0, 3), lambda: ballots.mallows(3, [0, 1], 1.5),
                 lambda: ballots.plackett_luce(3, [0.0, 1.0]), lambda: ballots.two_camps(3, 1, 0.1)):  # fmt: skip
        with pytest.raises(ValueError):
            make()
